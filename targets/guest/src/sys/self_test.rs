//! Failing on purpose.

use core::hint::black_box;
use kayvee_server::boot::SelfTest;
use kayvee_x86::Layout;

/// Code that does nothing, to be executed where nothing may be executed: `ret`.
const RETURN: u8 = 0xc3;
static CONSTANT: u8 = RETURN;

/// Fails in the way asked for. Returning means that the machine did not stop it.
#[inline(never)]
pub fn run(test: SelfTest, layout: &Layout) {
    // SAFETY: none of these is sound; each is meant to raise an exception, which ends the program, before it has an
    // effect.
    unsafe {
        match test {
            SelfTest::Panic => panic!("asked for by selftest=panic"),
            SelfTest::Null => {
                black_box(black_box(core::ptr::null::<u8>()).read_volatile());
            }
            SelfTest::WriteText => (black_box(run as *const () as *mut u8)).write_volatile(RETURN),
            SelfTest::WriteConstant => black_box((&raw const CONSTANT).cast_mut()).write_volatile(0),
            SelfTest::ExecuteHeap => execute(black_box(alloc::boxed::Box::leak(alloc::boxed::Box::new(RETURN)))),
            SelfTest::ExecuteData => execute(black_box(&CONSTANT)),
            SelfTest::StackOverflow => {
                black_box(recurse(black_box(0)));
            }
            SelfTest::PageTables => (black_box(layout.root_table as *mut u64)).write_volatile(0),
        }
    }
}

/// # Safety
/// There must be code at `at`.
unsafe fn execute(at: *const u8) {
    // SAFETY: passed on to the caller.
    let function: extern "C" fn() = unsafe { core::mem::transmute(at) };
    function();
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "this is the test")]
fn recurse(depth: u64) -> u64 {
    let frame = black_box([depth; 16]);
    recurse(black_box(depth + 1)) + frame[3]
}
