//! The library `coroutine`.

use super::{Functions, add_library};
use crate::{
    error::Raise,
    machine::{Args, Flow, Machine, Native, NativeResult},
    thread::{Status, Thread},
    value::{ThreadRef, Value},
};

const FUNCTIONS: &Functions = &[
    ("create", create),
    ("resume", resume),
    ("running", running),
    ("status", status),
    ("wrap", wrap),
    ("yield", |_, _| Ok(Flow::Yield)),
];

pub(super) fn open(machine: &mut Machine) -> Result<(), Raise> {
    if let Value::Native(native) = machine.add_native(Native::Library(resume_wrapped)) {
        machine.library.wrapped = native;
    }
    add_library(machine, "coroutine", FUNCTIONS).map(|_| ())
}

fn make(machine: &mut Machine, args: Args) -> Result<ThreadRef, Raise> {
    let function = machine.arg(args, 0);
    if !matches!(function, Value::Function(_)) {
        return Err(Raise::argument(0, "Lua function expected"));
    }
    let mut thread = Thread::default();
    thread.stack.try_reserve_exact(1).map_err(|_| Raise::OutOfMemory)?;
    thread.stack.push(function);
    thread.top = 1;
    Ok(machine.heap.thread(thread)?)
}

fn create(machine: &mut Machine, args: Args) -> NativeResult {
    Ok(Flow::One(Value::Thread(make(machine, args)?)))
}

fn wrap(machine: &mut Machine, args: Args) -> NativeResult {
    let thread = make(machine, args)?;
    let values = [Value::Thread(thread), Value::Nil, Value::Nil];
    Ok(Flow::One(Value::Bound(machine.heap.bound(machine.library.wrapped, values)?)))
}

fn status_of(machine: &Machine, thread: ThreadRef) -> Status {
    if thread == machine.current { machine.thread.status } else { machine.heap.threads[thread.0].status }
}

fn check_thread(machine: &Machine, args: Args) -> Result<ThreadRef, Raise> {
    match machine.arg(args, 0) {
        Value::Thread(thread) => Ok(thread),
        _ => Err(Raise::argument(0, "coroutine expected")),
    }
}

/// Why a coroutine cannot be resumed.
fn refusal(machine: &Machine, thread: ThreadRef) -> Option<&'static str> {
    match status_of(machine, thread) {
        Status::Suspended => None,
        Status::Running => Some("cannot resume running coroutine"),
        Status::Normal => Some("cannot resume normal coroutine"),
        Status::Dead => Some("cannot resume dead coroutine"),
    }
}

fn resume(machine: &mut Machine, args: Args) -> NativeResult {
    let thread = check_thread(machine, args)?;
    if let Some(refusal) = refusal(machine, thread) {
        let message = machine.heap.string(refusal.as_bytes())?;
        machine.push(Value::Boolean(false))?;
        machine.push(Value::String(message))?;
        return Ok(Flow::Many(2));
    }
    Ok(Flow::Resume { thread, count: args.len - 1, is_wrapped: false })
}

fn resume_wrapped(machine: &mut Machine, args: Args) -> NativeResult {
    let Value::Bound(bound) = machine.thread.stack[args.base - 1] else { return Ok(Flow::None) };
    let Value::Thread(thread) = machine.heap.bounds[bound.0].values[0] else { return Ok(Flow::None) };
    match refusal(machine, thread) {
        Some(refusal) => Err(Raise::positioned(refusal)),
        None => Ok(Flow::Resume { thread, count: args.len, is_wrapped: true }),
    }
}

fn running(machine: &mut Machine, _: Args) -> NativeResult {
    let is_main = machine.current == machine.main;
    Ok(Flow::One(if is_main { Value::Nil } else { Value::Thread(machine.current) }))
}

fn status(machine: &mut Machine, args: Args) -> NativeResult {
    let name = match status_of(machine, check_thread(machine, args)?) {
        Status::Suspended => "suspended",
        Status::Running => "running",
        Status::Normal => "normal",
        Status::Dead => "dead",
    };
    Ok(Flow::One(Value::String(machine.heap.string(name.as_bytes())?)))
}
