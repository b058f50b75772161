//! The processor: what it says of itself, and the state in which it begins.

use crate::boot::Entry;
use anyhow::{Context, Result, bail};
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd};

const HYPERVISOR_LEAVES: u32 = 0x4000_0000;
/// KVM's features, and the one without which the guest would have no time: the second version of its clock.
const KVM_FEATURES: u32 = HYPERVISOR_LEAVES + 1;
const KVM_FEATURE_CLOCKSOURCE_2: u32 = 1 << 3;
/// A write here, of microseconds, waits. The boot line names it.
pub const SLEEP_PORT: u16 = 0x500;

/// Gives the processor all that KVM has here, but for what the guest must not see. (Paravirtual nested KVM lets ring 3 ask
/// the processor itself, so the image must not rely on what is masked.)
pub fn set_features(kvm: &Kvm, vcpu: &VcpuFd) -> Result<()> {
    let supported =
        kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).context("asking KVM for the processor's features")?;
    let mut entries: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    let has_clock =
        |entry: &kvm_cpuid_entry2| entry.function == KVM_FEATURES && entry.eax & KVM_FEATURE_CLOCKSOURCE_2 != 0;
    if !entries.iter().any(has_clock) {
        bail!("this KVM has no paravirtual clock");
    }
    entries.iter_mut().for_each(mask);
    let features = CpuId::from_entries(&entries).context("listing the processor's features")?;
    vcpu.set_cpuid2(&features).context("setting the processor's features")
}

fn mask(entry: &mut kvm_cpuid_entry2) {
    const APIC: u32 = 1 << 9;
    const MONITOR: u32 = 1 << 3;
    const X2APIC: u32 = 1 << 21;
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR: u32 = 1 << 31;
    const ARCH_CAPABILITIES: u32 = 1 << 29;
    match entry.function {
        1 => {
            entry.ecx = entry.ecx & !(MONITOR | X2APIC | TSC_DEADLINE) | HYPERVISOR;
            entry.edx &= !APIC;
            // The only processor, number 0.
            entry.ebx = entry.ebx & 0xffff | 1 << 16;
        }
        // Some paravirtual nested KVM announce MSR_IA32_ARCH_CAPABILITIES and then have it neither read nor written; a
        // guest has no use for it. Intel SDM volume 2, CPUID leaf 7.
        7 if entry.index == 0 => entry.edx &= !ARCH_CAPABILITIES,
        // Several processors share nothing where there is one.
        0xb | 0x1f => entry.edx = 0,
        _ => {}
    }
}

/// As PVH wants it: 32-bit protected mode without paging, flat segments, interrupts off, `%ebx` at the start information.
pub fn enter_at(vcpu: &VcpuFd, entry: Entry) -> Result<()> {
    const PROTECTED_MODE: u64 = 1;
    const EXTENSION_TYPE: u64 = 1 << 4;
    const RESERVED_FLAG: u64 = 1 << 1;
    const CODE: u8 = 0xb;
    const DATA: u8 = 0x3;
    const TASK: u8 = 0xb;
    let flat = |selector, type_| kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    };
    let mut special = vcpu.get_sregs().context("reading the processor's registers")?;
    special.cs = flat(0x08, CODE);
    for segment in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
        *segment = flat(0x10, DATA);
    }
    special.tr = kvm_segment { limit: 0x67, type_: TASK, present: 1, ..Default::default() };
    special.cr0 = PROTECTED_MODE | EXTENSION_TYPE;
    (special.cr3, special.cr4, special.efer) = (0, 0, 0);
    vcpu.set_sregs(&special).context("setting the processor's registers")?;
    let mut general = vcpu.get_regs().context("reading the processor's registers")?;
    (general.rip, general.rbx, general.rflags) = (entry.address, entry.start_info, RESERVED_FLAG);
    vcpu.set_regs(&general).context("setting the processor's registers")
}
