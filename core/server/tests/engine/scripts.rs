//! Scripts that take long, as a target and other clients see them.

use crate::{
    bench::Bench,
    lines,
    made_log::{Folder, State},
};
use kayvee_server::{ClientId, Fate, ShutdownOn};
use std::{rc::Rc, sync::atomic::Ordering};

const BUSY: &str = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";
const ENDLESS: &str = "EVAL \"while true do end\" 0\r\n";
/// Changes data all the time until it ends.
const COUNTING: &str = "EVAL \"for i = 1, 6000 do redis.call('INCR', 'n') end\" 0\r\n";
/// Ends when another client's turns have brought it this far.
const LONG: &str = "EVAL \"redis.call('SET', 'k', 'v') for i = 1, 3e6 do end return redis.call('GET', 'k')\" 0\r\n";

fn bench() -> (Bench, [ClientId; 2]) {
    let mut bench = Bench::new(&["busy-reply-threshold", "5"]);
    bench.let_time_pass();
    let clients = [bench.connect(), bench.connect()];
    (bench, clients)
}

#[test]
fn others_learn_of_a_slow_script_and_can_end_it() {
    let (mut bench, [slow, other]) = bench();
    assert_eq!(bench.ask(slow, &[ENDLESS, "PING\r\n"].concat()), "");
    assert_eq!(bench.engine.fate(slow), Fate::Open, "its end has to be seen");
    assert_eq!(bench.engine.next_deadline_ns(), Some(bench.now.monotonic_ns), "the script goes on at once");
    assert_eq!(bench.ask(other, "PING\r\n"), BUSY);
    assert_eq!(bench.ask(other, "FUNCTION KILL\r\n"), BUSY);
    assert_eq!(bench.ask(other, "SCRIPT KILL\r\n"), "+OK\r\n");
    let reply = bench.take_text(slow);
    assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL. script: "), "{reply}");
    assert!(reply.ends_with(", on @user_script:1.\r\n+PONG\r\n"), "{reply}");
    assert_eq!(bench.ask(other, "PING\r\n"), "+PONG\r\n");
    assert_eq!(bench.ask(other, "SCRIPT KILL\r\n"), "-NOTBUSY No scripts in execution right now.\r\n");
}

#[test]
fn a_script_that_has_written_comes_to_its_end() {
    let (mut bench, [slow, other]) = bench();
    assert_eq!(bench.ask(slow, LONG), "");
    assert!(bench.ask(other, "SCRIPT KILL\r\n").starts_with("-UNKILLABLE "));
    assert_eq!(bench.ask(other, "GET k\r\n"), BUSY);
    let mut turns = 0;
    let reply = loop {
        bench.advance_ms(1);
        turns += 1;
        let reply = bench.take_text(slow);
        if !reply.is_empty() || turns > 10_000 {
            break reply;
        }
    };
    assert_eq!(reply, "$1\r\nv\r\n");
    assert_eq!(bench.ask(other, "GET k\r\n"), "$1\r\nv\r\n");
}

#[test]
fn a_transaction_goes_on_behind_a_slow_script() {
    let (mut bench, [slow, other]) = bench();
    bench.ask(slow, &["MULTI\r\nINCR n\r\n", ENDLESS, "INCR n\r\nEXEC\r\n"].concat());
    assert_eq!(bench.ask(other, "GET n\r\n"), BUSY);
    assert_eq!(bench.ask(other, "SCRIPT KILL\r\n"), "+OK\r\n");
    let reply = bench.take_text(slow);
    assert!(reply.ends_with(", on @user_script:1.\r\n:2\r\n"), "{reply}");
    assert_eq!(bench.ask(other, "GET n\r\n"), "$1\r\n2\r\n");
}

#[test]
fn who_waits_is_served_when_a_slow_script_has_ended() {
    let (mut bench, [slow, other]) = bench();
    let waiter = bench.connect();
    assert_eq!(bench.ask(waiter, "BLPOP l 0\r\n"), "");
    let script = "EVAL \"redis.call('RPUSH', 'l', 'a') for i = 1, 3e6 do end redis.call('LPUSH', 'l', 'b')\" 0\r\n";
    assert_eq!(bench.ask(slow, script), "");
    assert_eq!(bench.ask(other, "PING\r\n"), BUSY);
    let served = (0..10_000).find_map(|_| {
        bench.advance_ms(1);
        Some(bench.take_text(waiter)).filter(|reply| !reply.is_empty())
    });
    assert_eq!(served.as_deref(), Some("*2\r\n$1\r\nl\r\n$1\r\nb\r\n"));
    assert_eq!(bench.take_text(slow), "$-1\r\n");
}

#[test]
fn a_slow_script_ends_with_its_client() {
    let (mut bench, [slow, other]) = bench();
    bench.ask(slow, ENDLESS);
    assert_eq!(bench.ask(other, "PING\r\n"), BUSY);
    bench.engine.disconnect(slow);
    assert_eq!(bench.ask(other, "PING\r\n"), "+PONG\r\n");
    // The machine is whole.
    assert_eq!(bench.ask(other, "EVAL \"return 1\" 0\r\n"), ":1\r\n");
}

#[test]
fn functions_are_ended_by_their_own_command() {
    let (mut bench, [slow, other]) = bench();
    let library = "#!lua name=l\\nredis.register_function('f', function() while true do end end)";
    assert_eq!(bench.ask(slow, &format!("FUNCTION LOAD \"{library}\"\r\n")), "$1\r\nl\r\n");
    bench.ask(slow, "FCALL f 0\r\n");
    let busy = BUSY.replace("SCRIPT KILL", "FUNCTION KILL");
    assert_eq!(bench.ask(other, "PING\r\n"), busy);
    assert_eq!(bench.ask(other, "SCRIPT KILL\r\n"), busy);
    let stats = bench.ask(other, "FUNCTION STATS\r\n");
    assert!(
        stats.contains("running_script\r\n*6\r\n$4\r\nname\r\n$1\r\nf\r\n$7\r\ncommand\r\n*3\r\n$5\r\nFCALL"),
        "{stats}"
    );
    assert_eq!(bench.ask(other, "FUNCTION KILL\r\n"), "+OK\r\n");
    assert!(bench.take_text(slow).starts_with("-ERR Script killed by user with FUNCTION KILL."));
}

#[test]
fn endless_libraries_are_refused() {
    let (mut bench, [client, _]) = bench();
    let reply = bench.ask(client, "FUNCTION LOAD \"#!lua name=l\\nwhile true do end\"\r\n");
    assert_eq!(reply, "-ERR Error registering functions: ERR FUNCTION LOAD timeout\r\n");
}

/// Takes turns until a script is over, as another client sees it: then it has this reply to `request`.
fn until_over(bench: &mut Bench, other: ClientId, request: &str) -> String {
    let mut replies = (0..10_000).map(|_| {
        bench.advance_ms(1);
        bench.ask(other, request)
    });
    replies.find(|reply| reply != BUSY).expect("it ends")
}

#[test]
fn a_script_that_has_changed_data_outlives_its_client() {
    for request in [COUNTING, "MULTI\r\nSET n 5999\r\nEVAL \"for i = 1, 3e6 do end\" 0\r\nINCR n\r\nEXEC\r\n"] {
        let (mut bench, [slow, other]) = bench();
        bench.ask(slow, request);
        bench.engine.disconnect(slow);
        assert_eq!(bench.ask(other, "GET n\r\n"), BUSY, "{request}");
        assert!(bench.connect() != slow, "its place is taken");
        assert_eq!(until_over(&mut bench, other, "GET n\r\n"), "$4\r\n6000\r\n", "{request}");
        assert!(bench.connect() == slow, "its place is free");
        assert_eq!(bench.ask(other, "EVAL \"return 1\" 0\r\n"), ":1\r\n");
    }
}

#[test]
fn a_slow_script_is_reported_once() {
    lines::begin();
    let (mut bench, [slow, other]) = bench();
    bench.ask(slow, COUNTING);
    assert_eq!(until_over(&mut bench, other, "GET n\r\n"), "$4\r\n6000\r\n");
    let said = lines::take().iter().filter(|line| line.starts_with("a script is slow")).count();
    assert_eq!(said, 1);
}

#[test]
fn a_threshold_of_zero_lets_others_wait() {
    let (mut bench, [slow, _]) = bench();
    bench.ask(slow, "CONFIG SET busy-reply-threshold 0\r\n");
    assert_eq!(bench.ask(slow, LONG), "$1\r\nv\r\n");
}

#[test]
fn nothing_is_evicted_while_a_script_is_slow() {
    /// Keys that a command evicts before it looks at the clock.
    const KEYS_PER_LOOK: u64 = 16;
    for is_full_before in [false, true] {
        let (mut bench, [slow, other]) = bench();
        bench.ask(slow, "CONFIG SET maxmemory 1mb maxmemory-policy allkeys-random\r\n");
        (0..200).for_each(|key| _ = bench.ask(slow, &format!("SET key:{key} v\r\n")));
        let full = 1 << 30;
        bench.heap.used.store(if is_full_before { full } else { 0 }, Ordering::Relaxed);
        assert_eq!(bench.ask(slow, ENDLESS), "");
        bench.heap.used.store(full, Ordering::Relaxed);
        for _ in 0..5 {
            bench.advance_ms(1);
            assert_eq!(bench.ask(other, "GET key:1\r\n"), BUSY);
        }
        assert_eq!(bench.ask(other, "SCRIPT KILL\r\n"), "+OK\r\n");
        bench.heap.used.store(0, Ordering::Relaxed);
        let left = 200 - if is_full_before { KEYS_PER_LOOK } else { 0 };
        assert_eq!(bench.ask(other, "DBSIZE\r\n"), format!(":{left}\r\n"));
    }
}

/// What is saved at the end is a script as a whole, and who saves nothing waits for none.
#[test]
fn the_end_waits_for_a_slow_script() {
    let options = ["--busy-reply-threshold", "5", "--save", "1000 1000000"];
    let folder = Rc::<State>::default();
    let host = || Box::leak(Box::new(Folder(Rc::clone(&folder))));
    let mut bench = Bench::with(&options, 1, host());
    bench.let_time_pass();
    let slow = bench.connect();
    bench.ask(slow, COUNTING);
    bench.engine.request_shutdown(ShutdownOn::default());
    assert!(bench.engine.shutdown().is_none() && bench.engine.is_ending());
    for _ in 0..10_000 {
        if bench.engine.shutdown().is_some() {
            break;
        }
        bench.advance_ms(1);
        bench.take(slow);
    }
    assert!(bench.engine.shutdown().is_some());
    let mut next = Bench::with(&options, 2, host());
    next.engine.load_at_start().expect("it was saved");
    let client = next.connect();
    assert_eq!(next.ask(client, "GET n\r\n"), "$4\r\n6000\r\n");
    // One that never ends.
    let mut bench = Bench::with(&options, 1, host());
    bench.let_time_pass();
    let clients = [bench.connect(), bench.connect()];
    bench.ask(clients[0], "EVAL \"while true do redis.call('INCR', 'n') end\" 0\r\n");
    bench.engine.request_shutdown(ShutdownOn::default());
    assert_eq!(bench.ask(clients[1], "SHUTDOWN\r\n"), BUSY);
    assert!(bench.engine.shutdown().is_none());
    bench.ask(clients[1], "SHUTDOWN NOSAVE\r\n");
    assert!(bench.engine.shutdown().is_some());
}
