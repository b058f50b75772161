//! The image's self tests, by which it fails on purpose where `selftest=NAME` is on the boot line.

/// Their names, and how the report of each begins.
const SELF_TESTS: [(&str, &str); 8] = [
    ("panic", "panic: asked for by selftest=panic, at "),
    ("null", "exception: page fault reading 0x0: nothing is mapped there"),
    ("write-text", "exception: page fault writing 0x"),
    ("write-constant", "exception: page fault writing 0x"),
    ("exec-heap", "exception: page fault executing 0x"),
    ("exec-data", "exception: page fault executing 0x"),
    ("stack-overflow", "exception: ring 3 stack overflow, page fault writing 0x"),
    ("page-tables", "exception: page fault writing 0x"),
];
/// The monitor's exit status when the image has crashed.
const CRASHED: i32 = 5;

/// Runs all of them by `boot`, which boots the image with a network card and these words, and returns the monitor's exit
/// status and the console's lines. Each has to name its cause and its place.
pub fn check(mut boot: impl FnMut(&str) -> (Option<i32>, Vec<String>)) {
    for (test, cause) in SELF_TESTS {
        let (status, lines) = boot(&format!("selftest={test}"));
        assert_eq!(status, Some(CRASHED), "{test}: {lines:#?}");
        let at = lines.iter().position(|line| line.starts_with(cause));
        let at = at.unwrap_or_else(|| panic!("{test}: no '{cause}' in {lines:#?}"));
        if !matches!(test, "panic" | "null" | "stack-overflow") {
            assert!(lines[at].contains("not allowed there"), "{test}: {}", lines[at]);
        }
        let names_the_place = |line: &String| line.starts_with("  at kayvee_guest::sys::self_test::");
        assert!(lines[at + 1..].iter().any(names_the_place), "{test}: {lines:#?}");
    }
}
