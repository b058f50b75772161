//! The page in which Kayvee's own monitor tells what it has done.

use crate::sys::rings::share;
use alloc::string::String;
use core::sync::atomic::{AtomicPtr, Ordering};
use kayvee_platform::{MONITOR_PAGE_MAGIC, MonitorFigures};
use kayvee_x86::machine::Setup;
use kayvee_xdp::SharedMemory;

/// A number that says what it is, and the figures.
const WORDS: usize = 1 + MonitorFigures::COUNT;
const WORD_BYTES: usize = size_of::<u64>();
const PAGE_BYTES: usize = WORDS * WORD_BYTES;

/// The page, once there is one; it stays.
static PAGE: AtomicPtr<SharedMemory> = AtomicPtr::new(core::ptr::null_mut());

/// Takes the page at this address into use.
pub fn open(setup: &mut Setup, address: u64) -> Result<(), String> {
    let page = share(setup, address, PAGE_BYTES as u32)?;
    if words(&page)[0] != MONITOR_PAGE_MAGIC {
        return Err("the monitor's page is of another version of the monitor".into());
    }
    PAGE.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(page)), Ordering::Relaxed);
    Ok(())
}

/// What the monitor has written there, if there is such a page.
pub fn figures() -> Option<MonitorFigures> {
    // SAFETY: the pointer is null, or `open` has set it to a value that lives for ever and is never changed.
    let page = unsafe { PAGE.load(Ordering::Relaxed).as_ref() }?;
    let words = words(page);
    Some(MonitorFigures::from_values(core::array::from_fn(|index| words[index + 1])))
}

fn words(page: &SharedMemory) -> [u64; WORDS] {
    let bytes: [u8; PAGE_BYTES] = page.read();
    core::array::from_fn(|word| u64::from_le_bytes(core::array::from_fn(|byte| bytes[word * WORD_BYTES + byte])))
}
