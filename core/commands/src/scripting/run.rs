//! Running a script: slice by slice, with what it calls in between.

use super::{Name, ScriptFlags, api, convert};
use crate::{
    Context, Error, Origin, Outcome, Store, cluster::KeySlot, effects::Untold, error::c_text,
    transactions::for_each_request,
};
use alloc::{boxed::Box, format, vec::Vec};
use kayvee_lua::{Event, Failure, Machine, Raise, Value};
use kayvee_platform::Now;
use kayvee_resp::{Parser, Protocol, Request};

/// Turns of loops and calls between two looks at the clock.
const SLICE_TURNS: u64 = 20_000;
/// Commands that a script may call between two looks at the clock.
const SLICE_COMMANDS: u32 = 64;
/// How long a script that was put aside runs in one turn of the engine.
const SLICE_NS: u64 = 2_000_000;
/// How long a function library may take to load, as in Redis.
pub(super) const LOAD_LIMIT_NS: u64 = 500_000_000;

pub(super) const NO_REPLICAS: Error = Error::text("NOREPLICAS Not enough good replicas to write.");

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Script(Name),
    Function(Vec<u8>),
}

/// A script that runs.
pub struct Running {
    pub(super) machine: Box<Machine>,
    pub(super) kind: Kind,
    /// Who has called it, and from where.
    pub(super) slot: u32,
    origin: Origin,
    pub(super) is_readonly: bool,
    /// Commands that need memory are refused: there was none to spare when the script began.
    pub(super) refuses_memory: bool,
    /// Whether it has changed data, so that it cannot be ended any more.
    pub(super) has_written: bool,
    /// The protocol of the replies that it gets.
    pub(super) protocol: Protocol,
    /// Its database, which `SELECT` changes for the script only.
    pub(super) db: usize,
    /// The slot of a cluster that all its keys are in so far, if they have to be in one.
    pub(super) keys: Option<KeySlot>,
    /// Who is not told of its effects.
    pub(super) untold: Untold,
    started_ns: u64,
    /// The time that the script sees: it stands still.
    now: Now,
    request: Vec<u8>,
    is_killed: bool,
    /// Whether it was said that it is slow.
    is_told: bool,
    /// Requests of the same transaction that follow.
    rest: Vec<u8>,
    /// For the commands that it calls: their requests, and their replies.
    pub(super) parser: Parser,
    pub(super) words: Vec<u8>,
    pub(super) replies: Vec<u8>,
}

impl Running {
    /// Whether it is a function of a library.
    pub fn is_function(&self) -> bool {
        matches!(self.kind, Kind::Function(_))
    }

    /// Whether what was done so far may be half of what it or its transaction does.
    pub(super) fn is_halfway(&self) -> bool {
        self.has_written || self.origin == Origin::Transaction
    }

    fn name(&self) -> &[u8] {
        match &self.kind {
            Kind::Script(name) => name,
            Kind::Function(name) => name,
        }
    }
}

/// Who runs what, how.
pub(super) struct Call<'a> {
    pub kind: Kind,
    pub machine: Box<Machine>,
    pub function: Value,
    pub arguments: &'a [Value],
    pub flags: ScriptFlags,
    pub is_readonly: bool,
}

/// Refuses a script that its flags, or the way it is called, do not allow to run now.
pub(super) fn check_flags(context: &Context<'_>, flags: ScriptFlags, is_readonly: bool) -> Outcome {
    let stale_data = || match context.store.refusal_of_stale_data() {
        Some(error) if !flags.allow_stale => Err(error),
        _ => Ok(()),
    };
    if !flags.is_declared {
        return stale_data();
    }
    if flags.no_cluster && context.store.cluster.is_some() {
        return Err(Error::text("ERR Can not run script on cluster, 'no-cluster' flag is set."));
    }
    if is_readonly && !flags.no_writes {
        return Err(Error::text("ERR Can not execute a script with write flag using *_ro command."));
    }
    if !flags.no_writes
        && let Some(error) = context.store.durable.refusal(&context.store.options, 0, "", true)
    {
        return Err(error);
    }
    if !flags.no_writes && context.store.lacks_replicas() {
        return Err(NO_REPLICAS);
    }
    if !flags.no_writes
        && !context.is_from_master()
        && let Some(error) = context.store.refusal_of_write()
    {
        return Err(error);
    }
    stale_data()?;
    if context.store.is_full() && !flags.allow_oom && !flags.no_writes {
        return Err(Error::text(
            "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'",
        ));
    }
    Ok(())
}

/// Runs a script until it ends, or until it has taken so long that others have to be told.
pub(super) fn start(context: &mut Context<'_>, request: Request<'_>, call: Call<'_>) -> Outcome {
    let Call { kind, mut machine, function, arguments, flags, is_readonly } = call;
    machine.heap.set_limit_bytes(machine.heap.used_bytes().saturating_add(context.store.script_heap_bytes()));
    let started = machine.start(function, arguments);
    let mut words = Vec::new();
    let encoded = request.encode(&mut words);
    let store = &mut *context.store;
    let running = Running {
        machine,
        kind,
        slot: context.slot,
        origin: context.origin,
        is_readonly: is_readonly || flags.no_writes,
        refuses_memory: store.is_full() && !(flags.is_declared && flags.allow_oom),
        has_written: false,
        protocol: Protocol::Resp2,
        db: store.sessions[context.slot as usize].as_ref().map_or(0, |session| session.db),
        keys: (flags.is_declared && !flags.allow_cross_slot_keys).then(|| store.key_slot(request)),
        untold: Untold::default(),
        started_ns: store.environment.clock.monotonic_ns(),
        now: store.now,
        request: words,
        is_killed: false,
        is_told: false,
        rest: Vec::new(),
        parser: Parser::new(),
        words: Vec::new(),
        replies: Vec::new(),
    };
    if started.is_err() || encoded.is_err() {
        put_back(context.store, running);
        return Err(Error::OUT_OF_MEMORY);
    }
    let now_ns = running.started_ns;
    drive(context, Box::new(running), now_ns)
}

/// Gives a machine back to whom it belongs.
fn put_back(store: &mut Store, running: Running) {
    let mut machine = running.machine;
    machine.reset();
    let scripting = &mut store.scripting;
    let place = match running.kind {
        Kind::Script(_) => &mut scripting.evaluator,
        // A master's libraries have taken the place of those that it was made for.
        Kind::Function(_) if scripting.libraries.machine.is_some() || scripting.libraries.by_name.is_empty() => return,
        Kind::Function(_) => &mut scripting.libraries.machine,
    };
    *place = Some(machine);
}

/// Goes on with a script, from this time on.
fn drive(context: &mut Context<'_>, mut running: Box<Running>, slice_began_ns: u64) -> Outcome {
    let clock = context.store.environment.clock;
    let outer_now = core::mem::replace(&mut context.store.now, running.now);
    let mut commands = 0;
    let event = loop {
        let event = if running.is_killed { killed(&mut running) } else { running.machine.run(SLICE_TURNS) };
        match event {
            Event::Host(number) => {
                api::call(context, &mut running, number);
                commands += 1;
                if commands < SLICE_COMMANDS {
                    continue;
                }
                commands = 0;
            }
            Event::Preempted => {}
            event => break event,
        }
        let now_ns = clock.monotonic_ns();
        let threshold_ns = context.store.options.busy_reply_threshold.saturating_mul(1_000_000);
        let is_busy = threshold_ns > 0 && now_ns - running.started_ns > threshold_ns;
        if is_busy && now_ns - slice_began_ns > SLICE_NS {
            context.store.now = outer_now;
            suspend(context, running);
            return Ok(());
        }
    };
    context.store.now = outer_now;
    let outcome = match event {
        Event::Failed(failure) => failed(context, &mut running, failure),
        _ => {
            let result = running.machine.results().first().copied().unwrap_or_default();
            let errors = convert::reply(&mut running.machine, result, &mut context.reply, running.protocol);
            errors.uncounted.iter().for_each(|error| context.store.count_error(error));
            context.has_failed = errors.is_any;
            Ok(())
        }
    };
    put_back(context.store, *running);
    outcome
}

/// The end of a script that was killed.
fn killed(running: &mut Running) -> Event {
    let text = if running.is_function() {
        &b"ERR Script killed by user with FUNCTION KILL."[..]
    } else {
        b"ERR Script killed by user with SCRIPT KILL."
    };
    let place = running.machine.place();
    running.machine.reset();
    let value = api::error_table(&mut running.machine, text).unwrap_or_default();
    Event::Failed(Failure { value, place })
}

fn suspend(context: &mut Context<'_>, mut running: Box<Running>) {
    if !core::mem::replace(&mut running.is_told, true) {
        log::warn!("a script is slow: it has been running for {} ms", elapsed_ms(context.store, &running));
    }
    context.session().runs_script = true;
    context.is_blocked = true;
    context.store.scripting.suspended = Some(running);
}

fn elapsed_ms(store: &Store, running: &Running) -> u64 {
    store.environment.clock.monotonic_ns().saturating_sub(running.started_ns) / 1_000_000
}

/// Replies with the error that a script has ended with.
fn failed(context: &mut Context<'_>, running: &mut Running, failure: Failure) -> Outcome {
    let (mut text, is_counted) = error_text(&mut running.machine, failure.value);
    // As C would show it: up to a zero byte.
    text.truncate(c_text(&text, usize::MAX).len());
    if let Some((source, line)) = failure.place {
        text.extend_from_slice(b" script: ");
        text.extend_from_slice(running.name());
        text.extend_from_slice(b", on ");
        text.extend_from_slice(&source);
        text.extend_from_slice(format!(":{line}.").as_bytes());
    }
    if is_counted {
        context.reply.error(&text);
        context.has_failed = true;
        return Ok(());
    }
    Err(text.into())
}

/// An error value's text with its code, and whether the error was counted already.
pub(super) fn error_text(machine: &mut Machine, value: Value) -> (Vec<u8>, bool) {
    let mut text = Vec::new();
    match value {
        Value::Table(table) => {
            let err = machine.heap.get_str(table, "err");
            let is_counted = machine.heap.get_str(table, "ignore_error_stats_update").is_truthy();
            return match machine.append_text(err, &mut text) {
                Ok(true) => (text, is_counted),
                _ => (b"ERR unknown error".to_vec(), false),
            };
        }
        Value::Nil => text.extend_from_slice(b"ERR nil"),
        Value::Boolean(boolean) => text.extend_from_slice(format!("ERR {boolean}").as_bytes()),
        value => {
            text.extend_from_slice(b"ERR ");
            if !matches!(machine.append_text(value, &mut text), Ok(true)) {
                text.extend_from_slice(value.type_name().as_bytes());
            }
        }
    }
    (text, false)
}

/// Runs a library's text, which registers its functions. `on_call` serves what it calls.
pub(super) fn load(
    store: &mut Store,
    machine: &mut Machine,
    function: Value,
    mut on_call: impl FnMut(&mut Machine, u32),
) -> Result<(), Vec<u8>> {
    let clock = store.environment.clock;
    let started_ns = clock.monotonic_ns();
    if let Err(raise) = machine.start(function, &[]) {
        return Err([b"ERR ", &machine.error_text(raise)[..]].concat());
    }
    loop {
        match machine.run(SLICE_TURNS) {
            Event::Done => return Ok(()),
            Event::Failed(failure) => return Err(error_text(machine, failure.value).0),
            Event::Host(number) => on_call(machine, number),
            Event::Preempted if clock.monotonic_ns() - started_ns > LOAD_LIMIT_NS => {
                return Err(b"ERR FUNCTION LOAD timeout".to_vec());
            }
            Event::Preempted => {}
        }
    }
}

/// What `FUNCTION STATS` shows of a function that runs: name, request, milliseconds.
pub(super) fn describe(store: &Store) -> Option<(&[u8], &[u8], u64)> {
    let running = store.scripting.suspended.as_deref()?;
    Some((running.name(), &running.request, elapsed_ms(store, running)))
}

/// Ends the script that was put aside, if it may be.
pub(super) fn kill(store: &mut Store, is_function: bool) -> Outcome {
    let busy = store.scripting.busy_error();
    let Some(running) = store.scripting.suspended.as_deref_mut() else {
        return Err(Error::text("NOTBUSY No scripts in execution right now."));
    };
    if running.is_function() != is_function {
        return Err(busy);
    }
    if running.has_written {
        return Err(Error::text(
            "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
        ));
    }
    running.is_killed = true;
    Ok(())
}

impl Store {
    /// Goes on with a script that was put aside, for a while. Returns whose it is.
    #[inline(never)]
    pub fn continue_script(&mut self) -> Option<u32> {
        let running = self.scripting.suspended.take()?;
        let (slot, origin) = (running.slot, running.origin);
        let offset = self.effects.offset();
        let still_runs = self.run_as(slot, origin, |context| {
            let mut rest = Vec::new();
            let mut running = running;
            core::mem::swap(&mut rest, &mut running.rest);
            let start = context.reply.len();
            let now_ns = context.store.environment.clock.monotonic_ns();
            if let Err(error) = drive(context, running, now_ns) {
                context.fail(start, &error);
            }
            run_rest(context, rest);
        });
        if still_runs {
            return Some(slot);
        }
        if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
            session.runs_script = false;
        }
        self.touch(slot);
        self.end_unit();
        self.note_written(slot, offset);
        self.serve_waiting();
        Some(slot)
    }

    /// Ends the script of a client that goes, unless half of what it does would be left. Returns whether it goes on.
    pub(crate) fn forget_script(&mut self, slot: u32) -> bool {
        let is_its = |running: &&mut Box<Running>| running.slot == slot;
        let Some(running) = self.scripting.suspended.as_mut().filter(is_its) else { return false };
        if running.is_halfway() {
            return true;
        }
        running.is_killed = true;
        self.continue_script();
        false
    }
}

/// Goes on with a transaction behind a script, which may be put aside in its turn.
fn run_rest(context: &mut Context<'_>, rest: Vec<u8>) {
    run_transaction(context, &rest);
}

/// Runs requests of a transaction, up to a script that is put aside: it keeps what follows.
pub fn run_transaction(context: &mut Context<'_>, requests: &[u8]) {
    let mut rest = Vec::new();
    for_each_request(requests, |request| {
        if context.store.scripting.is_busy() {
            // It was there in one piece before, so there is memory for it.
            let _ = request.encode(&mut rest);
        } else {
            context.process(request);
        }
    });
    if let Some(running) = context.store.scripting.suspended.as_deref_mut() {
        running.rest.extend_from_slice(&rest);
    }
}

/// An error for a script: a table as `redis.error_reply` makes it.
pub(super) fn raised(machine: &mut Machine, text: &[u8]) -> Raise {
    match api::error_table(machine, text) {
        Ok(value) => Raise::Value(value),
        Err(raise) => raise,
    }
}
