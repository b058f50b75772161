use super::*;
use crate::harness::Harness;

fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn text_after(rules: &str) -> String {
    let user = defined(User::new(b"u", false), &words(rules), false).unwrap();
    String::from_utf8(user.text()).unwrap()
}

#[test]
fn rules_replace_those_that_they_make_void() {
    for (rules, text) in [
        ("on", "on resetchannels -@all"),
        ("on +get +GET -get", "on resetchannels -@all -get"),
        ("+memory|doctor +memory", "off resetchannels -@all +memory"),
        ("+@all -client +client|id", "off resetchannels +@all -client +client|id"),
        ("+@all -@string +set nocommands", "off resetchannels -@all"),
        ("+select|0 +select|1", "off resetchannels -@all +select|0 +select|1"),
        ("%R~a %W~a ~b %RW~*", "off ~* resetchannels -@all"),
        ("%R~a %W~b &c &d", "off %R~a %W~b resetchannels &c &d -@all"),
        ("(+get ~a) ( %R~b )", "off resetchannels -@all (~a resetchannels -@all +get) (%R~b resetchannels -@all)"),
        ("+@all ~* &* reset", "off sanitize-payload resetchannels -@all"),
    ] {
        assert_eq!(text_after(rules), text, "{rules}");
        // What is shown makes the same user again.
        assert_eq!(text_after(text), text, "{rules}");
    }
}

#[test]
fn wrong_rules_are_refused() {
    for rules in [
        "+nope",
        "-nope",
        "+@nope",
        "nope",
        "+config|nope",
        "+config|get|x",
        "+get|a|b",
        "%~a",
        "%X~a",
        "~* ~a",
        "&* &a",
        "<x",
        "!x",
        "#abc",
        ")",
        "(nope)",
        "(",
        "(+get",
        "+get|",
    ] {
        assert!(defined(User::new(b"u", false), &words(rules), false).is_err(), "{rules}");
    }
}

/// Everything that a user is refused is what its rules, read one by one, do not allow.
#[test]
fn users_do_what_they_may() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("ACL SETUSER u on >secret ~a* %R~r* &news.* +@read +set +publish +subscribe +psubscribe +multi +exec +acl|whoami +select|0", "+OK"),
        ("AUTH u wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH u secret", "+OK"),
        ("ACL WHOAMI", "$1 u"),
        ("SET a1 v", "+OK"),
        ("GET a1", "$1 v"),
        ("GET r1", "$-1"),
        ("SET r1 v", "-NOPERM this user has no permissions to access one of the keys used as arguments"),
        ("MGET a1 b", "-NOPERM this user has no permissions to access one of the keys used as arguments"),
        ("DEL a1", "-NOPERM this user has no permissions to run the 'del' command"),
        ("ACL LIST", "-NOPERM this user has no permissions to run the 'acl|list' command"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-NOPERM this user has no permissions to run the 'select' command"),
        ("PUBLISH news.x m", ":0"),
        ("PUBLISH other m", "-NOPERM this user has no permissions to access one of the channels used as arguments"),
        ("PSUBSCRIBE news.x", "-NOPERM this user has no permissions to access one of the channels used as arguments"),
        ("AUTH default any", "+OK"),
        ("ACL WHOAMI", "$7 default"),
        ("ACL LOG RESET", "+OK"),
    ]);
}

#[test]
fn changes_hold_for_what_is_queued() {
    let mut harness = Harness::new();
    harness.expect(&[
        ("ACL SETUSER u on nopass ~* +@all", "+OK"),
        ("AUTH u x", "+OK"),
        ("MULTI", "+OK"),
        ("INCR n", "+QUEUED"),
    ]);
    let rules = words("-incr");
    let user = defined(harness.store.acl.named(b"u").unwrap().clone(), &rules, false).unwrap();
    harness.store.acl.put(user);
    assert!(harness.run("EXEC").starts_with("*1 -NOPERM ACLs rules changed between"));
    harness.expect(&[("AUTH default x", "+OK"), ("GET n", "$-1")]);
    let log = harness.run("ACL LOG");
    assert!(log.contains("$6 reason $7 command $7 context $5 multi $6 object $4 incr $8 username $1 u"), "{log}");
}

#[test]
fn logs_group_what_is_the_same_and_stay_short() {
    let mut harness = Harness::new();
    harness.expect(&[("ACL SETUSER u on nopass", "+OK"), ("CONFIG SET acllog-max-len 3", "+OK"), ("AUTH u x", "+OK")]);
    for _ in 0..4 {
        harness.run("GET a");
    }
    for command in ["SET a b", "DEL a", "TTL a"] {
        harness.run(command);
    }
    harness.run("AUTH u x");
    harness.run("AUTH default x");
    let log = harness.run("ACL LOG");
    assert!(log.starts_with("*3 ") && log.contains("$6 object $3 ttl") && !log.contains("$6 object $3 get"), "{log}");
    harness.expect(&[("ACL LOG RESET", "+OK"), ("ACL LOG", "*0")]);
}

/// Whoever may ask for anything could otherwise keep the memory of many long names taken.
#[test]
fn logs_keep_the_beginnings_of_long_names() {
    let mut harness = Harness::new();
    let long = "n".repeat(100_000);
    harness.expect(&[("ACL SETUSER u on nopass -@all +get +client|setname +auth ~a", "+OK"), ("AUTH u x", "+OK")]);
    harness.run(&format!("CLIENT SETNAME {long}"));
    harness.run(&format!("GET {long}"));
    harness.run(&format!("AUTH {long} x"));
    harness.run("AUTH default x");
    let log = harness.run("ACL LOG");
    assert!(log.starts_with("*2 ") && log.len() < 20_000, "{}", log.len());
    assert!(log.contains(&format!("$6 object $4096 {} ", &long[..4096])), "{log}");
    assert!(log.contains(&format!("$8 username $4096 {} ", &long[..4096])), "{log}");
}

#[test]
fn files_are_taken_as_a_whole_or_not_at_all() {
    let text = b"# users\nuser a on nopass +@all ~*\n\nuser b off (+get ~x)\n";
    assert_eq!(read_users("f", text, false).unwrap().len(), 2);
    let wrong = read_users("f", b"user a on\nuser a off\nnobody\nuser b +nope", false).err().unwrap();
    for problem in
        ["f:2: Duplicate user 'a' found. ", "f:3: line should start with user keyword.", "f:4: Error in ACL SETUSER"]
    {
        assert!(wrong.contains(problem), "{wrong}");
    }
}

#[test]
fn passwords_are_random_and_as_long_as_wanted() {
    let mut harness = Harness::new();
    let (first, second) = (harness.run("ACL GENPASS"), harness.run("ACL GENPASS"));
    assert!(first != second && first.len() == "$64 ".len() + 64);
    assert!(harness.run("ACL GENPASS 5").starts_with("$2 "));
    assert!(harness.run("ACL GENPASS 4096").starts_with("$1024 "));
}
