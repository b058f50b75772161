//! Scripts: `EVAL` and its relatives, and libraries of functions.
//!
//! A script runs in slices. One that takes longer than `busy-reply-threshold` is put aside between two slices, so that
//! others learn that the store is busy, and can end it; the engine goes on with it turn by turn. One that has changed data
//! comes to its end though its client leaves.

mod api;
mod convert;
mod eval;
mod functions;
mod library;
mod payload;
mod run;

pub use eval::{COMMANDS, name_of};
pub use run::run_transaction;

use crate::{Error, Store, table::Command};
use alloc::{boxed::Box, collections::BTreeMap};
use kayvee_lua::{Limits, Machine};
use kayvee_resp::Request;
use library::Libraries;
use run::Running;

/// Scripts that `EVAL` has brought, and that nobody has loaded, are kept up to this number.
const EVALUATED_LIMIT: usize = 500;
/// Bytes that the objects of scripts may take where the platform sets no limit.
const HEAP_LIMIT_BYTES: u64 = 1 << 30;

/// A script's name: the SHA-1 of its text in hexadecimal digits.
type Name = [u8; 40];

/// What a script says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ScriptFlags {
    /// It has a first line that tells its flags; without one, old scripts are treated as they always were.
    is_declared: bool,
    no_writes: bool,
    allow_oom: bool,
    allow_stale: bool,
    no_cluster: bool,
    allow_cross_slot_keys: bool,
}

/// A script that is known by its name.
struct Script {
    /// The compiled function, kept in the machine under this number.
    pin: usize,
    flags: ScriptFlags,
    bytes: usize,
    /// Whether `SCRIPT LOAD` has brought it: it stays then.
    is_loaded: bool,
    last_used: u64,
}

/// The scripts, the libraries, and what runs.
#[derive(Default)]
pub struct Scripting {
    evaluator: Option<Box<Machine>>,
    scripts: BTreeMap<Name, Script>,
    uses: u64,
    libraries: Libraries,
    /// Whether scripts may call what is not for them, by `DEBUG SET-DISABLE-DENY-SCRIPTS`.
    pub(crate) allows_all_commands: bool,
    /// A script that was put aside.
    suspended: Option<Box<Running>>,
}

impl Scripting {
    /// Whether a script was put aside, so that nearly nothing else may run.
    pub fn is_busy(&self) -> bool {
        self.suspended.is_some()
    }

    /// Whether the data may be as half of a script or transaction leaves them.
    pub(crate) fn is_halfway(&self) -> bool {
        self.suspended.as_deref().is_some_and(Running::is_halfway)
    }

    /// The error for commands that may not run meanwhile.
    pub(crate) fn busy_error(&self) -> Error {
        const SCRIPT: Error =
            Error::text("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.");
        const FUNCTION: Error =
            Error::text("BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.");
        match &self.suspended {
            Some(running) if running.is_function() => FUNCTION,
            _ => SCRIPT,
        }
    }

    /// Scripts that are known by name, and bytes of their texts.
    pub(crate) fn cached(&self) -> (usize, usize) {
        (self.scripts.len(), self.scripts.values().map(|script| script.bytes).sum())
    }

    /// Bytes that the machines of scripts and of functions take.
    pub(crate) fn machine_bytes(&self) -> [usize; 2] {
        let bytes = |machine: &Option<Box<Machine>>| machine.as_ref().map_or(0, |machine| machine.heap.used_bytes());
        [bytes(&self.evaluator), bytes(&self.libraries.machine)]
    }

    /// Takes another store's libraries for one's own.
    pub(crate) fn swap_libraries(&mut self, other: &mut Scripting) {
        core::mem::swap(&mut self.libraries, &mut other.libraries);
    }

    /// Forgets all libraries.
    pub(crate) fn forget_libraries(&mut self) {
        self.libraries.clear();
    }

    /// Libraries, and functions in them.
    pub(crate) fn library_counts(&self) -> (usize, usize) {
        self.libraries.counts()
    }

    /// The libraries' texts.
    pub(crate) fn library_texts(&self) -> impl Iterator<Item = &[u8]> {
        self.libraries.by_name.values().map(|library| &library.text[..])
    }

    /// Bytes of the libraries' texts.
    pub(crate) fn library_bytes(&self) -> usize {
        self.libraries.by_name.values().map(|library| library.text.len()).sum()
    }

    fn forget_scripts(&mut self) {
        self.evaluator = None;
        self.scripts = BTreeMap::new();
    }

    /// Drops scripts that were used least recently of those that only `EVAL` has brought, when one more has come: one where
    /// there are too many, and a second one where memory is full, so that they become fewer then.
    fn bound_cache(&mut self, is_full: bool) {
        let limit = if is_full { 1 } else { EVALUATED_LIMIT };
        for _ in 0..2 {
            let evaluated = self.scripts.iter().filter(|(_, script)| !script.is_loaded);
            let (count, oldest) = (evaluated.clone().count(), evaluated.min_by_key(|(_, script)| script.last_used));
            let Some(name) = oldest.map(|(name, _)| *name).filter(|_| count > limit) else { return };
            if let (Some(script), Some(machine)) = (self.scripts.remove(&name), &mut self.evaluator) {
                machine.unpin(script.pin);
            }
        }
    }
}

impl Store {
    /// Whether a script was put aside, so that nearly nothing else may run.
    pub fn scripting_is_busy(&self) -> bool {
        self.scripting.is_busy()
    }

    /// Bytes that the objects of scripts may take now.
    fn script_heap_bytes(&self) -> usize {
        let heap = self.environment.heap;
        let limit = heap.limit_bytes().map_or(u64::MAX, |limit| limit.saturating_sub(heap.used_bytes()) / 2);
        limit.min(HEAP_LIMIT_BYTES) as usize
    }

    fn new_machine(&mut self) -> Result<Box<Machine>, Error> {
        let limits = Limits { heap_bytes: self.script_heap_bytes() };
        let seed = [self.rng.u64(..), self.rng.u64(..)];
        Machine::new(limits, seed).map_err(|_| Error::OUT_OF_MEMORY)
    }
}

/// The text of a compile error behind what failed.
fn compile_error(before: &str, text: &[u8]) -> Error {
    [before.as_bytes(), text].concat().into()
}

impl Store {
    /// Whether a request runs a script that says that it changes nothing.
    pub(crate) fn runs_readonly_script(&self, command: &Command, request: Request<'_>) -> bool {
        let script = request.get(1).unwrap_or_default();
        let flags = match command.name {
            "eval" => eval::read_shebang(script).ok().map(|(flags, _)| flags),
            "evalsha" => Name::try_from(script.to_ascii_lowercase())
                .ok()
                .and_then(|name| Some(self.scripting.scripts.get(&name)?.flags)),
            "fcall" => self.scripting.libraries.find(script).map(|function| function.flags),
            _ => None,
        };
        flags.is_some_and(|flags| flags.no_writes)
    }
}
