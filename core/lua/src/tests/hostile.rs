//! Scripts that ask for too much get an error, on a small stack of Rust and in bounded memory.

use super::{machine, run_in};
use alloc::{format, string::String};

/// Less than half of what the guest has for everything; unoptimised code takes several times as much.
const STACK_BYTES: usize = if cfg!(debug_assertions) { 1 << 20 } else { 112 << 10 };
const HEAP_BYTES: usize = 8 << 20;

extern crate std;

/// Runs a script with little of everything. The machine must still work afterwards.
fn run_small(script: String) -> String {
    let run = move || {
        let mut machine = machine(HEAP_BYTES);
        let result = run_in(&mut machine, script.as_bytes(), 1000);
        machine.collect();
        assert!(machine.heap.used_bytes() < HEAP_BYTES);
        assert_eq!(run_in(&mut machine, b"return 1 + 1", 1000), "2", "after {script:.80}");
        result
    };
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).unwrap().join().unwrap()
}

fn expect_small(cases: &[(&str, &str)]) {
    for (script, expected) in cases {
        assert_eq!(run_small(String::from(*script)), *expected, "{script}");
    }
}

#[test]
fn memory_has_a_limit() {
    expect_small(&[
        ("local t = {} while true do t[#t + 1] = {} end", "error: not enough memory"),
        ("for i = 1, 1e5 do cjson.new() end return cjson.new().encode({1})", "[1]"),
        ("local s = 'x' while true do s = s .. s end", "error: not enough memory"),
        ("return ('x'):rep(1e9)", "error: not enough memory"),
        ("return #('x'):rep(1e18, 1e18)", "error: not enough memory"),
        ("return #(''):rep(1e18)", "0"),
        ("local t = {} for i = 1, 1e9 do t['k' .. i] = i end", "error: not enough memory"),
        ("local t = {} for i = 1, 1e9 do t[i] = function() return i end end", "error: not enough memory"),
        (
            "local t = {} for i = 1, 1e9 do t[i] = coroutine.create(function() end) coroutine.resume(t[i]) end",
            "error: not enough memory",
        ),
        ("local s = ('x'):rep(1000000) return (s:gsub('x', ('y'):rep(1000)))", "error: not enough memory"),
        (
            "local t = {} for i = 1, 100 do t[i] = ('x'):rep(100000) end return #table.concat(t)",
            "error: not enough memory",
        ),
        (
            "local ok, e = pcall(string.rep, 'x', 1e9) collectgarbage() return ok, e, #('x'):rep(1000)",
            "false not enough memory 1000",
        ),
        ("local s for i = 1, 1e5 do s = ('x'):rep(1000) .. i end return #s", "1006"),
        ("return #string.format('%99.99f', 1e300)", "401"),
    ]);
}

#[test]
fn depth_has_a_limit() {
    expect_small(&[
        ("local function f() return 1 + f() end f()", "error: t:1: stack overflow"),
        ("local function f() pcall(f) end f() return 'ok'", "ok"),
        ("local t = setmetatable({}, {}) getmetatable(t).__index = t return t.x", "error: t:1: loop in gettable"),
        ("local t = setmetatable({}, {}) getmetatable(t).__newindex = t t.x = 1", "error: t:1: loop in settable"),
        (
            "local t = setmetatable({}, {__index = function(t, k) return t[k] end}) return t.x",
            "error: t:1: stack overflow",
        ),
        (
            "local mt = {} mt.__eq = function(a, b) return a == b end local a, b = setmetatable({}, mt), setmetatable({}, mt) return a == b",
            "error: t:1: stack overflow",
        ),
        (
            "local mt = {} mt.__concat = function(a, b) return a .. b end return setmetatable({}, mt) .. 'x'",
            "error: t:1: stack overflow",
        ),
        ("return pcall(unpack, {}, 1, 1e8)", "false too many results to unpack"),
        ("return pcall(unpack, {}, -1e300, 1e300)", "false too many results to unpack"),
        ("return pcall(string.byte, ('x'):rep(1e5), 1, -1)", "false string slice too long"),
        ("local t = {} for i = 1, 5e4 do t = {t} end return 'nested'", "nested"),
        ("local t = {} t = setmetatable(t, {__call = t}) t()", "error: t:1: attempt to call local 't' (a table value)"),
    ]);
    for (open, close) in [("(", ")"), ("{", "}"), ("f(", ")"), ("function() return ", " end"), ("- ", ""), ("not ", "")]
    {
        let nested = |depth| format!("return {}1{}", open.repeat(depth), close.repeat(depth));
        let deep = run_small(nested(10_000));
        assert!(deep.ends_with("chunk has too many syntax levels"), "{open}: {deep}");
        let shallow = run_small(nested(60).replace("return f(", "local function f(x) return x end return f("));
        assert!(!shallow.contains("too many"), "{open}: {shallow}");
    }
    let blocks = format!("{} {}", "do ".repeat(10_000), "end ".repeat(10_000));
    assert!(run_small(blocks).ends_with("chunk has too many syntax levels"));
    let nested = String::from("local function f(...) return coroutine.wrap(f)(...) end return f()");
    assert!(run_small(nested).ends_with("C stack overflow"));
    let operators = format!("return {}", vec_of("1", " .. ", 1000));
    assert!(run_small(operators).contains("too many syntax levels"));
    let chain = format!("local a = {{}} return a{}", ".b".repeat(100_000));
    assert!(run_small(chain).contains("attempt to index field 'b'"));
}

fn vec_of(item: &str, separator: &str, count: usize) -> String {
    std::vec![item; count].join(separator)
}

#[test]
fn functions_have_limits() {
    let locals = format!("local {}", vec_of("a", ", ", 300));
    assert_eq!(run_small(locals), "error: t:1: main function has more than 200 local variables");
    let registers = format!("return f({})", vec_of("x", ", ", 300));
    assert!(run_small(registers).starts_with("error: t:1: function or expression too complex near"));
    let declared: String = (0..70).map(|i| format!("local v{i} = {i} ")).collect();
    let used: String = (0..70).map(|i| format!("v{i} = 1 ")).collect();
    assert_eq!(
        run_small(format!("{declared}\nlocal function f() {used} end")),
        "error: t:2: function at line 2 has more than 60 upvalues"
    );
    let constants =
        format!("local t = {{{}}} return #t, t[70000]", (0..70_000).map(|i| format!("{i},")).collect::<String>());
    assert_eq!(run_small(constants), "70000 69999");
    let fields: String = (0..20_000).map(|i| format!("t.f{i} = {i} ")).collect();
    assert_eq!(run_small(format!("local t = {{}} {fields} return t.f19999, t.f0")), "19999 0");
    assert_eq!(run_small(format!("return {}", vec_of("'x'", "..", 150))), "x".repeat(150));
}

#[test]
fn patterns_end() {
    expect_small(&[
        ("return pcall(string.find, ('a'):rep(1000), ('a-'):rep(50) .. 'b')", "false pattern too complex"),
        ("return pcall(string.find, ('a'):rep(3000), ('.*'):rep(10) .. 'b')", "false pattern too complex"),
        ("return pcall(string.gsub, ('a'):rep(3000), ('a*'):rep(10) .. 'b', '')", "false pattern too complex"),
        ("return #('x'):rep(100000):match('.*')", "100000"),
        ("return (('x'):rep(1000):find('.-y'))", "nil"),
        ("return ('x'):find(('x?'):rep(10000))", "1 1"),
        ("return pcall(string.find, 'x', ('('):rep(40))", "false too many captures"),
        ("return ('('):rep(1000):find('%b()')", "nil"),
        (
            "return pcall(string.find, ('a'):rep(2000000), ('a'):rep(1000000) .. 'b', 1, true)",
            "false pattern too complex",
        ),
        ("return ('ab'):rep(1000):find('abab' .. ('ab'):rep(900) .. 'c', 1, true), ('xaab'):find('aab')", "nil 2 4"),
    ]);
}

#[test]
fn numbers_have_no_traps() {
    expect_small(&[
        (
            "local t = {} t[2^53] = 1 t[-2^63] = 2 t[1e300] = 3 t[1/0] = 4 return t[2^53], t[-2^63], t[1e300], t[1/0], #t",
            "1 2 3 4 0",
        ),
        ("return ('x'):sub(-1e300, 1e300), ('x'):byte(1e300), ('x'):sub(0/0)", "x nil x"),
        ("return ('x'):find('x', -1e300), ('x'):find('x', 1e300)", "1 nil"),
        ("return pcall(select, -1e300)", "false bad argument #1 to '?' (index out of range)"),
        ("return pcall(table.insert, {}, -1e300, 1)", "false bad argument #2 to '?' (position out of bounds)"),
        (
            "table.insert({}, 1e300, 1) return table.remove({}, 1e300), table.concat({}, '', 1e300, 1e300 - 1)",
            "error: t:1: invalid value (nil) at index 9223372036854775807 in table for 'concat'",
        ),
        (
            "return pcall(string.char, 256), pcall(string.char, -1)",
            "false false bad argument #1 to '?' (invalid value)",
        ),
        (
            "return math.floor(1e300), math.fmod(1, 0) ~= 1, 1 % 0 ~= 1, math.ldexp(1, 1e300), math.random(1e300) >= 1",
            "1e+300 true true inf true",
        ),
        (
            "return tonumber('1' .. ('0'):rep(400)), tonumber(('f'):rep(100), 16), tonumber('0x' .. ('f'):rep(300))",
            "inf 1.844674407371e+19 inf",
        ),
        ("for i = 1, 0/0 do return 'ran' end for i = 1/0, 1/0 do return i end", "inf"),
        ("return string.format('%d %x', 1e300, -1e300)", "9223372036854775807 8000000000000000"),
    ]);
}

#[test]
fn a_script_can_be_stopped() {
    let mut machine = machine(HEAP_BYTES);
    let globals = machine.globals();
    for script in [
        "while true do end",
        "local function f() return f() end f()",
        "for i = 1, 1/0 do end",
        "table.sort({3, 2, 1}, function() while true do end end)",
        "pcall(function() while true do end end)",
        "coroutine.wrap(function() while true do end end)()",
        "repeat until false",
    ] {
        let function = machine.compile(script.as_bytes(), b"@t", globals).unwrap();
        machine.start(crate::Value::Function(function), &[]).unwrap();
        for _ in 0..10 {
            assert!(matches!(machine.run(100), crate::Event::Preempted), "{script}");
        }
        machine.reset();
        assert_eq!(run_in(&mut machine, b"return 1 + 1", 1000), "2");
    }
}

#[test]
fn host_functions_can_be_called_from_anywhere() {
    let mut machine = machine(HEAP_BYTES);
    let globals = machine.globals();
    let function = machine.host_function(7);
    machine.heap.set_str(globals, "host", function).unwrap();
    let script = b"local t = setmetatable({}, {__index = host, __eq = host}) \
        local co = coroutine.wrap(function() return host(3) + 1 end) \
        return host(1), t.x, select(2, pcall(host, 5)), co(), (('ab'):gsub('.', host)), t == setmetatable({}, getmetatable(t))";
    let function = machine.compile(script, b"@t", globals).unwrap();
    machine.start(crate::Value::Function(function), &[]).unwrap();
    let mut calls = 0;
    let event = loop {
        match machine.run(1000) {
            crate::Event::Host(7) => {
                calls += 1;
                assert!(!machine.arguments().is_empty());
                machine.answer(Some(crate::Value::Number(f64::from(calls))));
            }
            event => break event,
        }
    };
    assert!(matches!(event, crate::Event::Done), "{event:?}");
    assert_eq!(calls, 7);
    let results: std::vec::Vec<String> = machine.results().iter().map(|value| super::shown(&machine, *value)).collect();
    assert_eq!(results.join(" "), "1 2 3 5 56 true");
}

#[test]
fn a_refused_call_is_an_error_that_scripts_can_catch() {
    let mut machine = machine(HEAP_BYTES);
    let globals = machine.globals();
    let function = machine.host_function(7);
    machine.heap.set_str(globals, "host", function).unwrap();
    let function = machine.compile(b"local ok, e = pcall(host) host() return ok, e", b"@t", globals).unwrap();
    machine.start(crate::Value::Function(function), &[]).unwrap();
    assert!(matches!(machine.run(1000), crate::Event::Host(7)));
    machine.refuse(crate::Raise::positioned("no"));
    assert!(matches!(machine.run(1000), crate::Event::Host(7)));
    machine.refuse(crate::Raise::positioned("no"));
    let crate::Event::Failed(failure) = machine.run(1000) else { panic!("not refused") };
    assert_eq!(super::shown(&machine, failure.value), "t:1: no");
    assert_eq!(failure.place, Some((b"@t".to_vec(), 1)));
}
