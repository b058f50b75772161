//! What makes this program an image: its boot code, its heap, its way to devices, and what happens when it fails.

pub mod monitor;
pub mod registers;
pub mod rings;
pub mod self_test;

use crate::run;
use core::{
    arch::global_asm,
    sync::atomic::{AtomicPtr, Ordering},
};
use kayvee_x86::{Layout, crash, exception, heap::GuestHeap, machine::Setup};

global_asm!(
    include_str!(env!("KAYVEE_BOOT_CODE")),
    start = sym start,
    exception = sym exception::exception,
    options(att_syntax)
);
global_asm!(include_str!(env!("KAYVEE_MEMORY_CODE")), options(att_syntax));

/// The image's heap: all memory that nothing else uses.
#[global_allocator]
pub static HEAP: GuestHeap = GuestHeap::new();

static LAYOUT: AtomicPtr<Layout> = AtomicPtr::new(core::ptr::null_mut());

/// Where things are in the image.
pub fn layout() -> &'static Layout {
    // SAFETY: `start` sets the pointer before anything else, to a structure that lives for ever.
    unsafe { &*LAYOUT.load(Ordering::Relaxed) }
}

/// Ring 3 starts here.
extern "C" fn start(start_info_at: u64, layout: &'static Layout) -> ! {
    LAYOUT.store((&raw const *layout).cast_mut(), Ordering::Relaxed);
    // SAFETY: `boot.S` calls this once with what it was given, before anything has allocated.
    let setup = unsafe { Setup::start(start_info_at, layout, &HEAP) };
    run(setup)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    crash::panic(layout(), info)
}

/// The standard library's unwinder calls these; a program whose panics end it has none. The prebuilt `core` still
/// refers to them.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    unreachable!("panics do not unwind")
}
