//! Links the image: the boot code and the linker script come from `kayvee-x86`.

fn main() {
    let boot = std::env::var("DEP_KAYVEE_BOOT_DIR").expect("kayvee-x86's build script says where its files are");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=KAYVEE_BOOT_CODE={boot}/boot.S");
    println!("cargo::rustc-env=KAYVEE_MEMORY_CODE={boot}/memory.S");
    let link = |argument: &str| println!("cargo::rustc-link-arg-bins={argument}");
    for argument in ["-nostartfiles", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-z,max-page-size=4096"] {
        link(argument);
    }
    link(&format!("-L{boot}"));
    link(&format!("-T{boot}/image.ld"));
}
