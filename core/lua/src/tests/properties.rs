//! Random data, each from a seed that a failing test shows.

use super::{HEAP_BYTES, machine, run_in};
use crate::Value;
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

#[test]
fn a_table_is_a_map() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let mut machine = machine(HEAP_BYTES);
        let table = machine.heap.table(0, 0).unwrap();
        let mut model = BTreeMap::new();
        let range = random.pick(&[4, 40, 4000]);
        for step in 0..3000 {
            let index = random.below(range) as i64 - 2;
            // Whole numbers, halves and texts.
            let kind = random.below(4);
            let key = match kind {
                0 | 1 => Value::Number(index as f64),
                2 => Value::Number(index as f64 + 0.5),
                _ => Value::String(machine.heap.string(format!("k{index}").as_bytes()).unwrap()),
            };
            let value = if random.below(3) == 0 { Value::Nil } else { Value::Number(f64::from(step)) };
            machine.heap.set(table, key, value).unwrap();
            let name = (kind.max(1), index);
            if value.is_nil() {
                model.remove(&name)
            } else {
                model.insert(name, step)
            };
            let found = machine.heap.get(table, key);
            assert!(machine.heap.raw_equal(found, value), "seed {seed}, step {step}");
        }
        let mut count = 0;
        let mut key = Value::Nil;
        while let Some((next, _)) = machine.heap.next(table, key).unwrap() {
            (key, count) = (next, count + 1);
        }
        assert_eq!(count, model.len(), "seed {seed}");
        let border = machine.heap.len_of(table) as i64;
        assert!(border == 0 || model.contains_key(&(1, border)), "seed {seed}: {border}");
        assert!(!model.contains_key(&(1, border + 1)), "seed {seed}: {border}");
    }
}

#[test]
fn garbage_goes_and_the_rest_stays() {
    for seed in 0..10 {
        let script = format!(
            "math.randomseed({seed}) local live, n = {{}}, 0 \
             for i = 1, 20000 do \
                 local k = math.random(50) \
                 live[k] = {{k, tostring(k), function() return k end, ('x'):rep(k)}} \
                 if i % 100 == 0 then collectgarbage() end \
             end \
             for k, v in pairs(live) do \
                 assert(v[1] == k and v[2] == tostring(k) and v[3]() == k and #v[4] == k) n = n + 1 \
             end return n"
        );
        let mut machine = machine(HEAP_BYTES);
        let result = run_in(&mut machine, script.as_bytes(), 500);
        assert_eq!(result, "50", "seed {seed}");
        machine.collect();
        assert!(machine.heap.used_bytes() < 1 << 20, "seed {seed}: {} bytes", machine.heap.used_bytes());
    }
}

/// Text of tokens in random order: most of it is no Lua.
fn nonsense(random: &mut Random) -> String {
    const WORDS: [&str; 64] = [
        "local ",
        "function ",
        "f",
        "x",
        "y",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "=",
        "==",
        "~=",
        "<",
        "<=",
        ">",
        "..",
        "...",
        "+",
        "-",
        "*",
        "/",
        "%",
        "^",
        "#",
        "and ",
        "or ",
        "not ",
        "nil ",
        "true ",
        "false ",
        "1",
        "2.5",
        "0x",
        "'s'",
        "\"",
        "[[",
        "]]",
        "if ",
        "then ",
        "else ",
        "elseif ",
        "end ",
        "while ",
        "do ",
        "for ",
        "in ",
        "repeat ",
        "until ",
        "return ",
        "break ",
        ",",
        ";",
        ":",
        ".",
        "\n",
        "--",
        "pcall",
        "error",
        "string.rep",
        "next",
        "pairs",
        "setmetatable",
    ];
    (0..random.below(60)).map(|_| random.pick(&WORDS)).collect()
}

#[test]
fn no_text_breaks_the_machine() {
    let mut machine = machine(4 << 20);
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let text = nonsense(&mut random);
        // A script that would run for ever is stopped after some slices.
        let globals = machine.globals();
        if let Ok(function) = machine.compile(text.as_bytes(), b"@t", globals) {
            machine.start(Value::Function(function), &[]).unwrap();
            for _ in 0..20 {
                if !matches!(machine.run(50), crate::Event::Preempted) {
                    break;
                }
            }
        }
        if seed % 1000 == 0 {
            machine.reset();
            machine.collect();
        }
    }
}

/// A random value as Lua text.
fn value_text(random: &mut Random, depth: usize) -> String {
    match random.below(if depth > 0 { 6 } else { 4 }) {
        0 => format!("{}", random.next() as i32),
        1 => format!("{:e}", f64::from(random.next() as i32) / 8.0),
        2 => String::from(random.pick(&["true", "false"])),
        3 => {
            format!("'{}'", ["a", "\\0", "\\n", "/", "\\200", "long"].map(|part| part.repeat(random.below(4))).concat())
        }
        4 => {
            let items: Vec<String> = (0..random.below(5)).map(|_| value_text(random, depth - 1)).collect();
            format!("{{{}}}", items.join(","))
        }
        _ => {
            let fields: Vec<String> =
                (0..1 + random.below(4)).map(|at| format!("k{at}={}", value_text(random, depth - 1))).collect();
            format!("{{{}}}", fields.join(","))
        }
    }
}

#[test]
fn packed_values_come_back() {
    const EQUAL: &str = "local function equal(a, b) if type(a) ~= 'table' then return a == b end \
        if type(b) ~= 'table' then return false end \
        for k, v in pairs(a) do if not equal(v, b[k]) then return false end end \
        for k in pairs(b) do if a[k] == nil then return false end end return true end ";
    let mut machine = machine(HEAP_BYTES);
    for seed in 0..300 {
        let value = value_text(&mut Random(seed), 4);
        let script = format!(
            "{EQUAL} local function equal(a, b) if type(a) ~= 'table' then return a == b end \
             for k, v in pairs(a) do if not equal(v, b[k]) then return false end end return type(b) == 'table' end \
             local v = {value} return equal(v, cjson.decode(cjson.encode(v))), equal(v, (cmsgpack.unpack(cmsgpack.pack(v))))"
        );
        assert_eq!(run_in(&mut machine, script.as_bytes(), 1000), "true true", "seed {seed}: {value}");
    }
}

#[test]
fn no_bytes_break_the_decoders() {
    let mut machine = machine(4 << 20);
    for seed in 0..3000 {
        let mut random = Random(seed);
        let bytes: Vec<u8> = (0..random.below(40)).map(|_| random.next() as u8).collect();
        let json: Vec<u8> =
            (0..random.below(40)).map(|_| random.pick(b"[]{}\",:0123456789eE+-.\\unltrfas \0")).collect();
        let pattern: Vec<u8> = (0..random.below(16)).map(|_| random.pick(b"%()[]^$.*+-?ab1fbs")).collect();
        let format: Vec<u8> = (0..random.below(12)).map(|_| random.pick(b"bBhHlLTiIfdxsc0123456789<>! ")).collect();
        let escaped = |bytes: &[u8]| bytes.iter().map(|b| format!("\\{b:03}")).collect::<String>();
        let script = format!(
            "pcall(cmsgpack.unpack, '{}') pcall(cjson.decode, '{}') pcall(string.find, 'abab1(fb)s', '{}') \
             pcall(string.gsub, 'abab1(fb)s', '{}', '%0') pcall(struct.unpack, '{}', ('\\1'):rep(50)) \
             pcall(struct.pack, '{}', 1, 2, 'text', 3) pcall(struct.size, '{}') pcall(string.format, '%{}', 1, 'x') return 'ok'",
            escaped(&bytes),
            escaped(&json),
            escaped(&pattern),
            escaped(&pattern),
            escaped(&format),
            escaped(&format),
            escaped(&format),
            escaped(&pattern),
        );
        assert_eq!(run_in(&mut machine, script.as_bytes(), 1000), "ok", "seed {seed}");
    }
}
