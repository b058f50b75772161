#!/bin/sh
# Runs a program in a Linux that has KVM as on hardware: QEMU emulates an AMD processor with SVM and nested paging.
# cargo calls it with a test program and its arguments (`runner`), whose output and status it has.
#
#   run.sh fetch                    fetches Debian's kernel and busybox, without installing them
#   run.sh PROGRAM [ARGUMENT...]    with the release build beside the program's own
#
# KAYVEE_HARDWARE names the folder for the packages.
set -eu

# What the monitor and its networks need, each after what it depends on.
modules="irqbypass kvm rng-core ccp kvm-amd tun veth inet_diag tcp_diag"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
folder=$KAYVEE_HARDWARE

die() { printf '%s\n' "$*" >&2; exit 1; }

fetch() {
    for program in apt-get dpkg-deb xz ldd qemu-system-x86_64; do
        command -v $program >/dev/null || die "$program is missing"
    done
    [ -e $keyring ] || die "Debian's keys are missing: $keyring"
    mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/packages"
    # A configuration of its own, so that nothing of this system's is changed. Debian 13's kernel can all that is tested.
    echo "deb [signed-by=$keyring] http://deb.debian.org/debian trixie main" >"$folder/sources.list"
    cat >"$folder/apt.conf" <<END
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$folder/lists";
Dir::Cache "$folder";
APT::Architecture "amd64";
APT::Sandbox::User "";
END
    export APT_CONFIG="$folder/apt.conf"
    apt-get update -qq >/dev/null 2>&1 || die "Debian's list of packages cannot be had"
    kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
    [ ! -e "$folder/packages/$kernel" ] || return 0
    cd "$folder/archives"
    rm -rf ./*.deb "$folder/packages"
    apt-get download -qq "$kernel" busybox-static 2>/dev/null || die "Debian's kernel and busybox cannot be had"
    for package in *.deb; do dpkg-deb -x "$package" "$folder/packages"; done
    touch "$folder/packages/$kernel"
}

# Copies a program into the system, with the libraries that it loads.
add() {
    for file in "$1" $(ldd "$1" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$system/$(dirname "$file")"
        cp -L "$file" "$system/$file"
    done
}

# The program that runs first there: sets the system up, runs the tests and switches it off.
first() {
    cat <<END
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin KAYVEE_KILLS=${KAYVEE_KILLS-9}
mkdir -p /proc /sys /dev /tmp /run && mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mount -t cgroup2 cgroup /sys/fs/cgroup
for module in $modules; do [ ! -s /modules/\$module.ko ] || insmod /modules/\$module.ko; done
ip link set lo up
mkdir -p "$PWD" && cd "$PWD"
$*
echo "status \$?"
poweroff -f
END
}

run() {
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    system=$work/system
    target=$(dirname "$1")/../..
    target=$(realpath "$target")
    mkdir -p "$system/bin" "$system/modules" "$system$target/tmp"
    busybox=$folder/packages/usr/bin/busybox
    cp "$busybox" "$system/bin/busybox"
    for module in $modules; do
        # Where there is none, it is in the kernel itself.
        find "$folder/packages/usr/lib/modules" -name "$module.ko.xz" -exec xz -dc {} + >"$system/modules/$module.ko"
    done
    add "$1"
    for name in kayvee kayvee-linux kayvee-guest; do add "$target/release/$name"; done
    first "$@" >"$system/init"
    chmod +x "$system/init"
    (cd "$system" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$work/initrd"
    # One thread for both processors: with one each, QEMU 7.2 shows Linux its own code half changed.
    timeout -k 10 1800 qemu-system-x86_64 -M q35 -accel tcg,thread=single -cpu EPYC-Rome -smp 2 -m 2048 \
        -nodefaults -no-user-config -display none -serial stdio -no-reboot \
        -kernel "$(echo "$folder"/packages/boot/vmlinuz-*)" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off" </dev/null 2>"$work/complaints" |
        tr -d '\r' | tee "$work/said"
    status=$(sed -n 's/^status \([0-9]*\)$/\1/p' "$work/said")
    [ -n "$status" ] || die "the emulated machine has ended early: $(tail -n 1 "$work/complaints")"
    exit "$status"
}

case $1 in
    fetch) fetch ;;
    *) run "$@" ;;
esac
