//! Random commands by the grammar beside this file.

use crate::random::Random;

const GRAMMAR: &str = include_str!("grammar.txt");
/// What Redis 7.0 does not know.
const NEWER_GRAMMAR: &str = include_str!("grammar-7.4.txt");
/// How many different keys there are: few, so that commands meet.
const KEYS: usize = 14;
/// The databases that commands go to most of the time.
const DATABASES: usize = 4;
/// One command in so many is broken on purpose.
const MUTATE_ONE_IN: usize = 12;
const REPEAT_LIMIT: usize = 4;

/// How the replies of two servers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// They are the same.
    Exact,
    /// They have the same elements.
    Unordered,
    /// They are the same, but numbers may be written in different ways: Redis 7.2 prints the shortest form.
    Numbers,
    /// They are integers at most so far apart.
    Near(i64),
    /// Both are null, or neither is.
    Kind,
    /// They are the same but for the server's version and the client's id.
    Hello,
    /// Both iterations give the same keys.
    Scan,
}

/// A command to send.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its words.
    pub words: Vec<Vec<u8>>,
    /// What its replies have to do with each other.
    pub comparison: Comparison,
}

#[derive(Debug)]
enum Form {
    Word(String),
    Sequence(Vec<Form>),
    OneOf(Vec<Form>),
    Optional(Box<Form>),
    Repeated(Box<Form>),
}

struct Rule {
    weight: usize,
    comparison: Comparison,
    form: Vec<Form>,
}

/// Makes random commands.
pub struct Generator {
    rules: Vec<Rule>,
    total_weight: usize,
    random: Random,
}

impl Generator {
    /// A generator whose commands follow from `seed`.
    pub fn new(seed: u64) -> Generator {
        Generator::of(seed, &[GRAMMAR])
    }

    /// The same with commands that are newer than the server that we are compared to.
    pub fn newer(seed: u64) -> Generator {
        Generator::of(seed, &[GRAMMAR, NEWER_GRAMMAR])
    }

    fn of(seed: u64, grammars: &[&str]) -> Generator {
        let lines = grammars.iter().flat_map(|grammar| grammar.lines());
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rules: Vec<Rule> =
            lines.map(|line| Rule::parse(line).unwrap_or_else(|| panic!("grammar: {line}"))).collect();
        Generator { total_weight: rules.iter().map(|rule| rule.weight).sum(), rules, random: Random::new(seed) }
    }

    /// The source of randomness, for choices that are not part of a command.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// The next command.
    pub fn step(&mut self) -> Step {
        let mut at = self.random.below(self.total_weight);
        let rule = self.rules.iter().find(|rule| {
            let here = at < rule.weight;
            at = at.saturating_sub(rule.weight);
            here
        });
        let rule = rule.unwrap_or(&self.rules[0]);
        let mut words = Vec::new();
        expand_all(&rule.form, &mut self.random, &mut words);
        let comparison = rule.comparison;
        // Redis 7.2 changed what a HELLO that fails half way leaves behind.
        if self.random.one_in(MUTATE_ONE_IN) && comparison != Comparison::Hello {
            let whole = words.clone();
            mutate(&mut words, &mut self.random);
            if depends_on_the_moment(&words) || depends_on_chance(&words) || is_unfit(&words) || is_unspecified(&words)
            {
                words = whole;
            }
        }
        Step { words, comparison }
    }
}

impl Rule {
    fn parse(line: &str) -> Option<Rule> {
        let mut fields = line.splitn(3, ' ');
        let weight = fields.next()?.parse().ok()?;
        let rest = fields.collect::<Vec<_>>().join(" ");
        let (comparison, form) = rest.trim_start().split_once(' ')?;
        let comparison = match comparison.split_once(':').unwrap_or((comparison, "")) {
            ("exact", "") => Comparison::Exact,
            ("unordered", "") => Comparison::Unordered,
            ("numbers", "") => Comparison::Numbers,
            ("near", distance) => Comparison::Near(distance.parse().ok()?),
            ("kind", "") => Comparison::Kind,
            ("hello", "") => Comparison::Hello,
            ("scan", "") => Comparison::Scan,
            _ => return None,
        };
        let mut rest = form.trim();
        let form = parse_alternatives(&mut rest)?;
        match form {
            Form::Sequence(form) if rest.is_empty() => Some(Rule { weight, comparison, form }),
            _ => None,
        }
    }
}

/// Reads `a b|c` up to a closing bracket or the end.
fn parse_alternatives(rest: &mut &str) -> Option<Form> {
    let mut alternatives = vec![Vec::new()];
    loop {
        *rest = rest.trim_start();
        let mut chars = rest.chars();
        match chars.next() {
            None | Some(']' | ')') => break,
            Some('|') => {
                *rest = chars.as_str();
                alternatives.push(Vec::new());
            }
            Some(open @ ('[' | '(')) => {
                *rest = chars.as_str();
                let inner = parse_alternatives(rest)?;
                *rest = rest.strip_prefix(if open == '[' { ']' } else { ')' })?;
                let repeated = rest.strip_prefix("...");
                *rest = repeated.unwrap_or(rest);
                alternatives.last_mut()?.push(match (open, repeated) {
                    ('[', _) => Form::Optional(Box::new(inner)),
                    (_, Some(_)) => Form::Repeated(Box::new(inner)),
                    _ => inner,
                });
            }
            Some(_) => {
                let end = rest.find([' ', '[', ']', '(', ')', '|']).unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                alternatives.last_mut()?.push(Form::Word(word.into()));
                *rest = after;
            }
        }
    }
    let mut sequences: Vec<Form> = alternatives.into_iter().map(Form::Sequence).collect();
    if sequences.len() == 1 { sequences.pop() } else { Some(Form::OneOf(sequences)) }
}

fn expand_all(forms: &[Form], random: &mut Random, out: &mut Vec<Vec<u8>>) {
    let mut at = 0;
    while at < forms.len() {
        // Options in a row come in any order.
        let options = forms[at..].iter().take_while(|form| matches!(form, Form::Optional(_))).count();
        let mut order: Vec<usize> = (at..at + options.max(1)).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        for &form in &order {
            expand(&forms[form], random, out);
        }
        at += order.len();
    }
}

fn expand(form: &Form, random: &mut Random, out: &mut Vec<Vec<u8>>) {
    match form {
        Form::Word(word) => out.push(argument(word, random)),
        Form::Sequence(forms) => expand_all(forms, random, out),
        Form::OneOf(forms) => expand(&forms[random.below(forms.len())], random, out),
        Form::Optional(form) => {
            if random.one_in(2) {
                expand(form, random, out);
            }
        }
        Form::Repeated(form) => (0..=random.below(REPEAT_LIMIT)).for_each(|_| expand(form, random, out)),
    }
}

/// Scripts for two keys and two arguments at most. None of them shows the order of a table's fields, which is open.
const SCRIPTS: [&str; 22] = [
    "return redis.call('SET', KEYS[1], ARGV[1])",
    "return redis.call('GET', KEYS[1])",
    "return redis.pcall('INCR', KEYS[1])",
    "return {redis.pcall('APPEND', KEYS[1], ARGV[1]), redis.call('STRLEN', KEYS[1])}",
    "return redis.call('RPUSH', KEYS[1], unpack(ARGV))",
    "return redis.call('LRANGE', KEYS[1], 0, -1)",
    "local n = 0 for _, v in ipairs(ARGV) do n = n + (tonumber(v) or 0) end return n",
    "redis.setresp(3) return redis.pcall('GET', KEYS[1])",
    "return {KEYS[1], ARGV[1], #KEYS, #ARGV, false, 3.7, {1, {2}}, {ok = 'fine'}}",
    "return cjson.encode({ARGV[1], #ARGV, 1.5, true, cjson.null})",
    "return {pcall(cjson.decode, ARGV[1])}",
    "return {pcall(cmsgpack.unpack, ARGV[1])}",
    "return cmsgpack.pack(KEYS, ARGV)",
    "return {pcall(string.format, '%s|%5.2f|%q', ARGV[1], #ARGV, ARGV[2])}",
    "return {pcall(string.gsub, ARGV[1], '%w', '<%0>')}",
    "return {pcall(string.find, ARGV[1], ARGV[2])}",
    "return {pcall(struct.unpack, '>I2', ARGV[1])}",
    "return {tostring(tonumber(ARGV[1])), #tostring(ARGV[2]), ARGV[1] == ARGV[2]}",
    "local t = {} for i, v in ipairs(ARGV) do t[i] = v end table.sort(t) return t",
    "return {redis.sha1hex(ARGV[1]), bit.tohex(#ARGV[1])}",
    "error(ARGV[1])",
    "return redis.call(ARGV[1], KEYS[1])",
];

fn argument(word: &str, random: &mut Random) -> Vec<u8> {
    match word {
        "key" => key(random),
        "script" => random.pick(&SCRIPTS).as_bytes().to_vec(),
        "value" => value(random),
        "field" => field(random),
        "bit" => match random.below(10) {
            0 => random.pick(&["-1", "4294967296", "x", "", "9223372036854775808", "#x", "#-1"]).as_bytes().to_vec(),
            1 => format!("#{}", random.below(40)).into(),
            _ => random.below(400).to_string().into(),
        },
        "width" => match random.below(8) {
            0 => random.pick(&["u64", "i65", "u0", "i", "8", "i64", "u63", "i1", "u1"]).as_bytes().to_vec(),
            _ => format!("{}{}", ["i", "u"][random.below(2)], 1 + random.below(63)).into(),
        },
        "integer" => match random.below(4) {
            0 => edge(random),
            1 => value(random),
            _ => small(random),
        },
        "small" => small(random),
        "edge" => edge(random),
        "zero" if random.one_in(20) => edge(random),
        "zero" => b"0".to_vec(),
        "float" => float(random),
        "score" => score(random),
        "score_bound" => score_bound(random),
        "lex_bound" => lex_bound(random),
        "stream_id" => stream_id(random),
        "range_id" => range_id(random),
        "longitude" => format!("{}", (random.below(360_000) as f64 - 180_000.0) / 1e3).into(),
        "latitude" => format!("{}", (random.below(170_000) as f64 - 85_000.0) / 1e3).into(),
        "distance" => random.below(3_000_000).to_string().into(),
        "offset" => match random.below(8) {
            0 => edge_offset(random),
            1 => (random.below(300)).to_string().into(),
            _ => random.below(30).to_string().into(),
        },
        "index" => match random.below(6) {
            0 => edge(random),
            _ => (random.below(60) as i64 - 30).to_string().into(),
        },
        // Far from now in both directions, and never twice the same: two servers read their clocks at two moments.
        "seconds" if random.one_in(6) => edge_duration(random),
        "seconds" => (1_000 + random.below(100_000_000)).to_string().into(),
        "milliseconds" if random.one_in(6) => edge_duration(random),
        "milliseconds" => (1_000_000 + random.below(100_000_000_000)).to_string().into(),
        "unix_s" if random.one_in(5) => edge_moment(random),
        "unix_s" => (33_177_117_420_u64 + random.below(1000) as u64).to_string().into(),
        "unix_ms" if random.one_in(5) => edge_moment(random),
        "unix_ms" => (33_177_117_420_000_u64 + random.below(1_000_000) as u64).to_string().into(),
        "db" if random.one_in(12) => edge(random),
        "db" => random.below(DATABASES).to_string().into(),
        "count" if random.one_in(8) => edge_count(random),
        "count" => (1 + random.below(20)).to_string().into(),
        "pattern" => pattern(random),
        "word" => short_word(random),
        literal => any_case(literal, random),
    }
}

fn any_case(word: &str, random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => word.to_ascii_lowercase().into(),
        1 => word.bytes().map(|b| if random.one_in(2) { b.to_ascii_lowercase() } else { b }).collect(),
        _ => word.into(),
    }
}

fn key(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => Vec::new(),
        1 => b"a key\r\n\0\xff".to_vec(),
        2 => vec![b'k'; 300],
        _ => format!("key:{}", random.below(KEYS)).into(),
    }
}

/// A member of a collection: one of few, so that commands meet, but of more than a small collection has.
fn field(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => value(random),
        1..=6 => random.below(40).to_string().into(),
        _ => format!("field:{}", random.below(30)).into(),
    }
}

fn score(random: &mut Random) -> Vec<u8> {
    match random.below(16) {
        0 => float(random),
        1 => edge(random),
        2..=5 => format!("{}", (random.below(80) as f64 - 40.0) / 4.0).into(),
        _ => (random.below(20) as i64 - 5).to_string().into(),
    }
}

fn stream_id(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0 => edge(random),
        1..=4 => random.below(60).to_string().into(),
        _ => format!("{}-{}", random.below(60), random.below(4)).into(),
    }
}

fn range_id(random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 => b"-".to_vec(),
        1 => b"+".to_vec(),
        2 => [b"(".to_vec(), stream_id(random)].concat(),
        _ => stream_id(random),
    }
}

fn score_bound(random: &mut Random) -> Vec<u8> {
    let bound = match random.below(4) {
        0 => random.pick(&["-inf", "+inf", "inf", "", " 3"]).as_bytes().to_vec(),
        _ => score(random),
    };
    if random.one_in(4) { [b"(".to_vec(), bound].concat() } else { bound }
}

fn lex_bound(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        0..=2 => b"-".to_vec(),
        3..=5 => b"+".to_vec(),
        6 => value(random),
        7 | 8 => [b"(".to_vec(), field(random)].concat(),
        _ => [b"[".to_vec(), field(random)].concat(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    match random.below(14) {
        0 => Vec::new(),
        1 => edge(random),
        2 => float(random),
        3 => {
            let len = random.below(70);
            random.bytes(len)
        }
        4 => {
            let len = random.below(300);
            (0..len).map(|_| b"abcd"[random.below(4)]).collect()
        }
        // Around the longest string that Redis embeds in its object.
        5 => vec![b'x'; 40 + random.below(10)],
        6 => key(random),
        7..=9 => small(random),
        _ => {
            let len = 1 + random.below(12);
            (0..len).map(|_| b"abcdefgh"[random.below(8)]).collect()
        }
    }
}

fn small(random: &mut Random) -> Vec<u8> {
    (random.below(2000) as i64 - 1000).to_string().into()
}

/// Integers at the limits, and what only looks like one.
fn edge(random: &mut Random) -> Vec<u8> {
    let words = [
        "0",
        "1",
        "-1",
        "-0",
        "+1",
        "01",
        "9999",
        "10000",
        "16",
        "15",
        "2147483647",
        "2147483648",
        "-2147483648",
        "-2147483649",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775807",
        "-9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "",
        " ",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "0x10",
        "abc",
        "-",
        "1x",
        "999999999999999999",
        "1000000000000000000",
        "-999999999999999999",
    ];
    random.pick(&words).as_bytes().to_vec()
}

/// Durations that are invalid, negative or too long; none that two servers may take for the same moment or not.
fn edge_duration(random: &mut Random) -> Vec<u8> {
    let words = [
        "0",
        "-1",
        "-100",
        "abc",
        "",
        "1.5",
        " 5",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854776",
        "99999999999999999999",
    ];
    random.pick(&words).as_bytes().to_vec()
}

/// Moments that are invalid, past or too far away.
fn edge_moment(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => random.pick(&["1", "1000000000000", "9223372036854776", "9223372036854775"]).as_bytes().to_vec(),
        _ => edge_duration(random),
    }
}

/// No offset at which a server would have to find half a gigabyte.
fn edge_offset(random: &mut Random) -> Vec<u8> {
    let words = ["-1", "536870912", "4294967296", "9223372036854775807", "9223372036854775808", "abc", "", "1.5", "-0"];
    random.pick(&words).as_bytes().to_vec()
}

fn edge_count(random: &mut Random) -> Vec<u8> {
    random.pick(&["0", "-1", "abc", "", "1000000", "9223372036854775808"]).as_bytes().to_vec()
}

fn float(random: &mut Random) -> Vec<u8> {
    let words = [
        "0.1",
        "0.2",
        "-0.1",
        "1.5",
        "3.0",
        "5.0e3",
        "1e-5",
        "-1e-17",
        "1e-18",
        "1e20",
        "1e17",
        "123456789.123456789",
        ".5",
        "5.",
        "+1.5",
        "-0",
        "0.0",
        "inf",
        "-inf",
        "nan",
        "1e400",
        "1e-400",
        "1e5000",
        "0x1p3",
        "1,5",
        "1.5 ",
        " 1.5",
        "abc",
        "",
        "1e",
        "9007199254740993",
        "0.000000000000000001",
        "99999999999999999.9",
        "Infinity",
        "3.14159265358979323846264338327950288",
        "18446744073709551615",
        "0.30000000000000004",
        "1e-4951",
    ];
    match random.below(3) {
        0 => random.pick(&words).as_bytes().to_vec(),
        1 => format!("{}.{}", random.below(2000) as i64 - 1000, random.below(100_000)).into(),
        _ => {
            let digits = 1 + random.below(19);
            let mantissa = random.next_u64() % 10_u64.pow(digits as u32);
            format!("{}{mantissa}e{}", ["", "-"][random.below(2)], random.below(41) as i64 - 25).into()
        }
    }
}

fn pattern(random: &mut Random) -> Vec<u8> {
    let words = [
        "*",
        "key:*",
        "key:?",
        "key:1?",
        "key:[0-5]",
        "key:[^0-5]*",
        "k[e-]y*",
        "key:[0-",
        "key:\\1",
        "*\\*",
        "",
        "[",
        "[^",
        "key:[5-0]",
        "KEY:*",
        "*:*",
        "**1**",
        "key:[]]",
        "\\",
        "?*",
        "*[0-9][0-9]",
        "key:[\\0-\\3]",
    ];
    match random.below(6) {
        0 => {
            let len = random.below(8);
            (0..len).map(|_| b"key:*?[]^-\\01"[random.below(13)]).collect()
        }
        _ => random.pick(&words).as_bytes().to_vec(),
    }
}

fn short_word(random: &mut Random) -> Vec<u8> {
    let words = ["", "abc", "a b", "x\n", "name", "get|x", "nosuch", "'quoted'", "\u{e9}", "default", "LEN", "0", "99"];
    random.pick(&words).as_bytes().to_vec()
}

/// Whether the outcome may depend on the very millisecond at which a server reads its clock: a time to live of less
/// than minutes, or one that is compared with another which may be the same.
fn depends_on_the_moment(words: &[Vec<u8>]) -> bool {
    const SOON: std::ops::Range<u64> = 1..1_000_000;
    let is = |word: &Vec<u8>, names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    let number = |word: &Vec<u8>| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    let expires = is(&words[0], &["SET", "GETEX", "SETEX", "PSETEX", "EXPIRE", "PEXPIRE"]);
    let compares = is(&words[0], &["EXPIRE", "PEXPIRE"]) && words.iter().any(|word| is(word, &["GT", "LT"]));
    compares || (expires && words[1..].iter().filter_map(number).any(|number| SOON.contains(&number)))
}

/// Whether two servers may end up with different data, because they draw different members.
fn depends_on_chance(words: &[Vec<u8>]) -> bool {
    words[0].eq_ignore_ascii_case(b"SPOP") && words.get(2).is_none_or(|count| count != b"100000")
}

/// Whether a server would work or reply for long, or Redis 7.2 does otherwise than 7.0.
fn is_unfit(words: &[Vec<u8>]) -> bool {
    const COUNT_LIMIT: u64 = 100_000;
    let is = |names: &[&str]| names.iter().any(|name| words[0].eq_ignore_ascii_case(name.as_bytes()));
    let number = |word: &Vec<u8>| std::str::from_utf8(word).ok()?.parse::<i64>().ok();
    let has_large = || words[1..].iter().filter_map(number).any(|number| number.unsigned_abs() > COUNT_LIMIT);
    let is_by_text = || words.iter().any(|word| [&b"alpha"[..], b"nosort"].contains(&&word.to_ascii_lowercase()[..]));
    if is(&["SORT", "SORT_RO"]) && !is_by_text() {
        return true;
    }
    if is(&["PFADD"]) && words.len() > 3 {
        return true;
    }
    // Wrong words count even where there is no key since 7.2.
    is(&["BITCOUNT", "BITPOS"])
        || (is(&["SRANDMEMBER", "HRANDFIELD", "ZRANDMEMBER", "SETBIT", "BITFIELD"]) && has_large())
}

/// Whether a command may wait for ever, is one that Redis 7.2 has changed, or is about the sorted sets for ranges of names
/// and for places: what they give is specified only while all members have the same score, or scores that are places.
fn is_unspecified(words: &[Vec<u8>]) -> bool {
    let is = |word: &Vec<u8>, names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    // New entries have the time in their IDs.
    let has_time =
        is(&words[0], &["XADD", "XREAD", "XREADGROUP"]) && words.iter().any(|word| is(word, &["*", "BLOCK"]));
    has_time
        || is(&words[0], &["BZPOPMIN", "BZPOPMAX", "BZMPOP"])
        || (is(&words[0], &["ZRANK", "ZREVRANK"]) && words.len() > 3)
        || words.iter().any(|word| is(word, &["names", "places"]))
}

/// Breaks a command: the error has to be the same too.
fn mutate(words: &mut Vec<Vec<u8>>, random: &mut Random) {
    let at = random.below(words.len());
    match random.below(5) {
        0 if words.len() > 1 => {
            words.remove(at.max(1));
        }
        1 => words.push(value(random)),
        2 if words.len() > 1 => words[at.max(1)] = edge(random),
        3 => {
            let copy = words[at].clone();
            words.push(copy);
        }
        _ if words.len() > 2 => {
            let other = 1 + random.below(words.len() - 1);
            words.swap(at.max(1), other);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_commands() {
        let commands = |seed| {
            let mut generator = Generator::new(seed);
            (0..2000).map(|_| generator.step().words).collect::<Vec<_>>()
        };
        assert_eq!(commands(7), commands(7));
        assert_ne!(commands(7), commands(8));
    }

    #[test]
    fn every_rule_is_reached() {
        let mut generator = Generator::new(1);
        let mut heads: Vec<String> =
            (0..20_000).map(|_| String::from_utf8_lossy(&generator.step().words[0]).to_ascii_uppercase()).collect();
        heads.sort();
        heads.dedup();
        for line in GRAMMAR.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let head = line.split_whitespace().nth(2).unwrap();
            let alternatives = || head.trim_matches(['(', ')']).split('|');
            let is_reached = alternatives().any(|one| one == "word" || heads.iter().any(|reached| reached == one));
            assert!(is_reached, "{line}");
        }
    }
}
