//! The table of commands: name, arity, flags, keys, categories and function of each. What they are for is in
//! `documentation.txt`.

use crate::{Context, Outcome};
use alloc::{boxed::Box, string::String, vec::Vec};
use kayvee_keyspace::parse_integer;
use kayvee_resp::Request;

/// Runs a command.
pub type Handler = fn(&mut Context<'_>, Request<'_>) -> Outcome;

/// A command's properties, as `COMMAND INFO` names them. They combine with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(pub u32);

/// ACL categories. They combine with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Categories(pub u32);

macro_rules! bits {
    ($type:ident: $($(#[$doc:meta])* $name:ident = $bit:literal $text:literal),+ $(,)?) => {
        impl $type {
            $($(#[$doc])* pub const $name: $type = $type(1 << $bit);)+
            /// The empty set.
            pub const NONE: $type = $type(0);
            const NAMES: &'static [($type, &'static str)] = &[$(($type::$name, $text)),+];

            /// Whether all of `other` is in it.
            pub const fn contains(self, other: $type) -> bool {
                self.0 & other.0 == other.0
            }

            /// Both together, where `|` cannot be used.
            pub const fn union(self, other: $type) -> $type {
                $type(self.0 | other.0)
            }

            /// Its member of this name, in any case.
            #[allow(dead_code)]
            pub fn named(name: &[u8]) -> Option<$type> {
                let is_it = |(_, known): &&($type, &str)| known.as_bytes().eq_ignore_ascii_case(name);
                $type::NAMES.iter().find(is_it).map(|(bit, _)| *bit)
            }

            /// The names of all members that there are.
            #[allow(dead_code)]
            pub fn all_names() -> impl Iterator<Item = &'static str> + Clone {
                $type::NAMES.iter().map(|(_, name)| *name)
            }

            /// The names of its members.
            pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
                $type::NAMES.iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| *name)
            }
        }

        impl core::ops::BitOr for $type {
            type Output = $type;
            fn bitor(self, other: $type) -> $type {
                self.union(other)
            }
        }
    };
}

pub(crate) use bits;

bits! { Flags:
    /// May change data.
    WRITE = 0 "write",
    /// Reads data and changes none.
    READONLY = 1 "readonly",
    /// May use more memory, so it is refused when there is none.
    DENYOOM = 2 "denyoom",
    /// For administrators.
    ADMIN = 3 "admin",
    /// Belongs to publish and subscribe.
    PUBSUB = 4 "pubsub",
    /// Not for scripts.
    NOSCRIPT = 5 "noscript",
    /// May block its client.
    BLOCKING = 6 "blocking",
    /// Allowed while data is being loaded.
    LOADING = 7 "loading",
    /// Allowed on a replica with stale data.
    STALE = 8 "stale",
    /// Not shown to `MONITOR`.
    SKIP_MONITOR = 9 "skip_monitor",
    /// Not kept in the slow log.
    SKIP_SLOWLOG = 10 "skip_slowlog",
    /// Takes constant or logarithmic time.
    FAST = 11 "fast",
    /// Allowed before authentication.
    NO_AUTH = 12 "no_auth",
    /// May be replicated although it writes nothing.
    MAY_REPLICATE = 13 "may_replicate",
    /// Not for transactions.
    NO_MULTI = 14 "no_multi",
    /// Its keys stand where only it knows.
    MOVABLEKEYS = 15 "movablekeys",
    /// Runs even while data is being loaded asynchronously.
    NO_ASYNC_LOADING = 16 "no_async_loading",
    /// Allowed while another script or command takes too long.
    ALLOW_BUSY = 17 "allow_busy",
    /// Its keys may be none at all.
    NO_MANDATORY_KEYS = 18 "no_mandatory_keys",
}

bits! { Categories:
    /// Any key.
    KEYSPACE = 0 "@keyspace",
    /// Reads.
    READ = 1 "@read",
    /// Writes.
    WRITE = 2 "@write",
    /// Sets.
    SET = 3 "@set",
    /// Sorted sets.
    SORTED_SET = 4 "@sortedset",
    /// Lists.
    LIST = 5 "@list",
    /// Hashes.
    HASH = 6 "@hash",
    /// Strings.
    STRING = 7 "@string",
    /// Bitmaps.
    BITMAP = 8 "@bitmap",
    /// HyperLogLogs.
    HYPERLOGLOG = 9 "@hyperloglog",
    /// Geospatial indexes.
    GEO = 10 "@geo",
    /// Streams.
    STREAM = 11 "@stream",
    /// Publish and subscribe.
    PUBSUB = 12 "@pubsub",
    /// For administrators.
    ADMIN = 13 "@admin",
    /// Quick.
    FAST = 14 "@fast",
    /// Not quick.
    SLOW = 15 "@slow",
    /// May block.
    BLOCKING = 16 "@blocking",
    /// Could do harm in the wrong hands.
    DANGEROUS = 17 "@dangerous",
    /// About the connection.
    CONNECTION = 18 "@connection",
    /// Transactions.
    TRANSACTION = 19 "@transaction",
    /// Scripts.
    SCRIPTING = 20 "@scripting",
}

/// Hints for clients and proxies, as `COMMAND INFO` gives them. They combine with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tips(pub u32);

bits! { Tips:
    /// The reply may differ from time to time.
    NONDETERMINISTIC_OUTPUT = 0 "nondeterministic_output",
    /// The order of the reply may.
    NONDETERMINISTIC_OUTPUT_ORDER = 1 "nondeterministic_output_order",
    /// For all nodes of a cluster, replicas too.
    ALL_NODES = 2 "request_policy:all_nodes",
    /// For all its shards.
    ALL_SHARDS = 3 "request_policy:all_shards",
    /// May be divided by the shards of its keys.
    MULTI_SHARD = 4 "request_policy:multi_shard",
    /// It has succeeded where all have.
    ALL_SUCCEEDED = 5 "response_policy:all_succeeded",
    /// It has succeeded where one has.
    ONE_SUCCEEDED = 6 "response_policy:one_succeeded",
    /// The numbers are to be added.
    AGG_SUM = 7 "response_policy:agg_sum",
    /// The least number counts.
    AGG_MIN = 8 "response_policy:agg_min",
    /// All have to be true.
    AGG_LOGICAL_AND = 9 "response_policy:agg_logical_and",
    /// Put together as only the command knows.
    SPECIAL_RESPONSE = 10 "response_policy:special",
    /// Where it goes only the command knows.
    SPECIAL_REQUEST = 11 "request_policy:special",
}

/// A command's group in the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    Bitmap,
    Cluster,
    Connection,
    Generic,
    Geo,
    Hash,
    Hyperloglog,
    List,
    Pubsub,
    Scripting,
    Server,
    Set,
    SortedSet,
    Stream,
    String,
    Transactions,
}

impl Group {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Group::Bitmap => "bitmap",
            Group::Cluster => "cluster",
            Group::Connection => "connection",
            Group::Generic => "generic",
            Group::Geo => "geo",
            Group::Hash => "hash",
            Group::Hyperloglog => "hyperloglog",
            Group::List => "list",
            Group::Pubsub => "pubsub",
            Group::Scripting => "scripting",
            Group::Server => "server",
            Group::Set => "set",
            Group::SortedSet => "sorted-set",
            Group::Stream => "stream",
            Group::String => "string",
            Group::Transactions => "transactions",
        }
    }
}

/// What a command does with the keys of one [`Keys`] row, as `COMMAND INFO` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFlags(pub u32);

bits! { KeyFlags:
    /// Reads and writes.
    RW = 0 "RW",
    /// Only reads.
    RO = 1 "RO",
    /// Overwrites.
    OW = 2 "OW",
    /// Removes.
    RM = 3 "RM",
    /// Returns or copies the value.
    ACCESS = 4 "access",
    /// Changes the value, depending on what it was.
    UPDATE = 5 "update",
    /// Adds to the value without changing what is there.
    INSERT = 6 "insert",
    /// Removes part of the value.
    DELETE = 7 "delete",
    /// Not really a key.
    NOT_KEY = 8 "not_key",
    /// More keys may be there than this tells.
    INCOMPLETE = 9 "incomplete",
    /// The flags depend on the arguments.
    VARIABLE_FLAGS = 10 "variable_flags",
}

/// Where some of a command's keys stand among its arguments, as `COMMAND INFO` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where to begin.
    pub begin: Begin,
    /// Where they are from there.
    pub find: Find,
    /// What happens to them.
    pub flags: KeyFlags,
}

/// Where the arguments begin that tell where the keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At this argument; 0 is the command's name.
    Index(i16),
    /// Behind this word, which is looked for from this argument on; from the end backwards, if negative.
    Keyword(&'static str, i16),
    /// Only the command knows.
    Unknown,
}

/// Where the keys are, from where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Find {
    /// Every `step`-th argument up to `last`, which counts from the first one or, if negative, from the end; with a
    /// `limit` of 2 or more, only up to that part of what is left.
    Range { last: i16, step: i16, limit: i16 },
    /// The argument `at` is their number, and they begin at `first`.
    Counted { at: i16, first: i16, step: i16 },
    /// Only the command knows.
    Unknown,
}

impl Keys {
    /// Keys from the argument `first` to the argument `last` (negative: from the end), every `step`.
    pub const fn range(first: i16, last: i16, step: i16, flags: KeyFlags) -> Keys {
        let last = if last < 0 { last } else { last - first };
        Keys { begin: Begin::Index(first), find: Find::Range { last, step, limit: 0 }, flags }
    }

    /// One key.
    pub const fn one(at: i16, flags: KeyFlags) -> Keys {
        Keys::range(at, at, 1, flags)
    }

    /// Keys behind their number, which is the argument `at`.
    pub const fn counted(at: i16, flags: KeyFlags) -> Keys {
        Keys { begin: Begin::Index(at), find: Find::Counted { at: 0, first: 1, step: 1 }, flags }
    }

    /// Keys that only the command's own function finds.
    pub const fn unknown(flags: KeyFlags) -> Keys {
        Keys { begin: Begin::Unknown, find: Find::Unknown, flags }
    }

    /// The positions of the keys in a request, or `None` where it is malformed.
    fn positions(self, request: Request<'_>) -> Option<(core::ops::Range<usize>, usize)> {
        let len = request.len() as i64;
        let begin = match self.begin {
            Begin::Index(at) => i64::from(at),
            Begin::Keyword(word, from) => {
                let is_it = |at: &i64| request[*at as usize].eq_ignore_ascii_case(word.as_bytes());
                let found = match from {
                    0.. => (i64::from(from)..len).find(is_it),
                    _ => (1..=len + i64::from(from)).rev().find(is_it),
                };
                // Without the word there are none of these keys.
                let Some(at) = found else { return Some((0..0, 1)) };
                at + 1
            }
            Begin::Unknown => return Some((0..0, 1)),
        };
        let (first, end, step) = match self.find {
            Find::Range { last, step, limit } => {
                let last = match last {
                    0.. => begin + i64::from(last),
                    _ if limit <= 1 => len + i64::from(last),
                    _ => begin + (len - begin) / i64::from(limit) + i64::from(last),
                };
                (begin, last + 1, step)
            }
            Find::Counted { at, first, step } => {
                let count = request.get(usize::try_from(begin + i64::from(at)).ok()?)?;
                let count = parse_integer(count).filter(|&count| count >= 0)?;
                let first = begin + i64::from(first);
                (first, first.checked_add(count.checked_mul(i64::from(step))?)?, step)
            }
            Find::Unknown => return Some((0..0, 1)),
        };
        if first < 1 || end > len || (end < first && matches!(self.find, Find::Counted { .. })) {
            return None;
        }
        Some((first as usize..end.max(first) as usize, step.max(1) as usize))
    }
}

/// The place of a key in a request, and what happens to it.
pub type KeyAt = (usize, KeyFlags);

/// Finds the keys in a request, or tells that it is malformed.
pub type FindKeys = fn(Request<'_>) -> Option<Vec<KeyAt>>;

/// One command, or one subcommand.
pub struct Command {
    /// Its name in lower case; a subcommand's is its own part only.
    pub name: &'static str,
    /// Number of arguments with the name (and the container's); negative: at least that many.
    pub arity: i16,
    /// Its properties.
    pub flags: Flags,
    /// Where its keys are; several rows where one cannot tell.
    pub keys: &'static [Keys],
    /// Finds the keys where `keys` cannot tell, or tells more closely what happens to them.
    pub find_keys: Option<FindKeys>,
    /// ACL categories beyond those that follow from the flags.
    pub categories: Categories,
    /// Group in the documentation.
    pub group: Group,
    /// Hints for clients and proxies, as `COMMAND INFO` gives them.
    pub tips: Tips,
    /// Its function; containers have none, only subcommands.
    pub handler: Option<Handler>,
    /// Its subcommands, if it is a container.
    pub subcommands: &'static [Command],
}

impl Command {
    /// All ACL categories, with those that follow from the flags.
    pub fn all_categories(&self) -> Categories {
        let implied = [
            (Flags::WRITE, Categories::WRITE),
            (Flags::READONLY, Categories::READ),
            (Flags::ADMIN, Categories::ADMIN | Categories::DANGEROUS),
            (Flags::PUBSUB, Categories::PUBSUB),
            (Flags::FAST, Categories::FAST),
            (Flags::BLOCKING, Categories::BLOCKING),
        ];
        // What a script reads does not follow from the command that runs it.
        let follows = |(flag, _): &&(Flags, Categories)| {
            self.flags.contains(*flag) && !(*flag == Flags::READONLY && self.categories.contains(Categories::SCRIPTING))
        };
        let implied = implied.iter().filter(follows).map(|(_, category)| *category);
        let all = implied.fold(self.categories, Categories::union);
        if all.contains(Categories::FAST) { all } else { all | Categories::SLOW }
    }

    /// The keys in a request that names this command, or `None` where it is malformed.
    pub fn keys_in(&self, request: Request<'_>) -> Option<Vec<KeyAt>> {
        let mut found = Vec::new();
        let mut is_complete = true;
        self.for_each_key(request, |at, flags| is_complete &= crate::args::push(&mut found, (at, flags)).is_ok())?;
        is_complete.then_some(found)
    }

    /// Calls `take` with the place of each key in a request that names this command, and with what happens to it. `None`
    /// where the request is malformed.
    #[inline]
    pub fn for_each_key(&self, request: Request<'_>, mut take: impl FnMut(usize, KeyFlags)) -> Option<()> {
        if let Some(find_keys) = self.find_keys {
            find_keys(request)?.into_iter().for_each(|(at, flags)| take(at, flags));
            return Some(());
        }
        for keys in self.keys {
            let (range, step) = keys.positions(request)?;
            range.step_by(step).for_each(|at| take(at, keys.flags));
        }
        Some(())
    }

    /// Whether it may change data, or would be replicated though it writes nothing.
    pub fn may_change_data(&self) -> bool {
        self.flags.contains(Flags::WRITE) || self.flags.contains(Flags::MAY_REPLICATE)
    }

    /// Whether a request of `len` arguments has as many as the command takes.
    pub fn accepts(&self, len: usize) -> bool {
        if self.arity < 0 { len >= self.arity.unsigned_abs() as usize } else { len == self.arity as usize }
    }
}

impl Command {
    /// A row without what most commands lack, to be filled in with `..Command::ROW`.
    pub const ROW: Command = Command {
        name: "",
        arity: 0,
        flags: Flags::NONE,
        keys: &[],
        find_keys: None,
        categories: Categories::NONE,
        group: Group::Generic,
        tips: Tips::NONE,
        handler: None,
        subcommands: &[],
    };

    /// The command, or the subcommand, that a request to it names.
    pub fn named_in(&'static self, request: Request<'_>) -> Option<&'static Command> {
        match request.get(1) {
            Some(name) if !self.subcommands.is_empty() => {
                self.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
            }
            _ => Some(self),
        }
    }

    /// The row of `HELP` beside others that are like `self`.
    pub const fn help(self, handler: Handler) -> Command {
        Command { name: "help", arity: 2, flags: Flags::LOADING.union(Flags::STALE), handler: Some(handler), ..self }
    }
}

/// Every command, in alphabetical order within its family.
pub static FAMILIES: &[&[Command]] = &[
    crate::acl::COMMANDS,
    crate::strings::COMMANDS,
    crate::lists::COMMANDS,
    crate::zset::COMMANDS,
    crate::geo::COMMANDS,
    crate::streams::COMMANDS,
    crate::hashes::COMMANDS,
    crate::sets::COMMANDS,
    crate::bitmaps::COMMANDS,
    crate::hyperloglog::COMMANDS,
    crate::sort::COMMANDS,
    crate::dump::COMMANDS,
    crate::generic::COMMANDS,
    crate::migrate::COMMANDS,
    crate::connection::COMMANDS,
    crate::server::COMMANDS,
    crate::transactions::COMMANDS,
    crate::pubsub::COMMANDS,
    crate::blocking::COMMANDS,
    crate::cluster::COMMANDS,
    crate::modules::COMMANDS,
    crate::replication::COMMANDS,
    crate::durable::COMMANDS,
    crate::scripting::COMMANDS,
    crate::persistence::COMMANDS,
];

/// All commands.
pub fn all() -> impl Iterator<Item = &'static Command> {
    FAMILIES.iter().copied().flatten()
}

/// Buckets of the name index: a power of two, sparse enough that a look-up rarely goes on.
const BUCKETS: usize = 1024;
/// Longest name.
const NAME_LIMIT: usize = 32;

/// Finds commands by name, in any case.
pub struct ByName {
    buckets: Box<[Option<&'static Command>; BUCKETS]>,
    /// Names given and taken by `rename-command`. There are hardly ever any.
    renamed: Vec<(String, Option<&'static Command>)>,
}

impl Default for ByName {
    fn default() -> ByName {
        let mut buckets = Box::new([None; BUCKETS]);
        for command in all() {
            assert!(command.name.len() <= NAME_LIMIT);
            let mut at = Self::bucket_of(command.name.as_bytes());
            while buckets[at].is_some() {
                at = (at + 1) % BUCKETS;
            }
            buckets[at] = Some(command);
        }
        ByName { buckets, renamed: Vec::new() }
    }
}

impl ByName {
    /// The command, or the subcommand, that a request names.
    pub fn command_of(&self, request: Request<'_>) -> Option<&'static Command> {
        self.find(request.get(0)?)?.named_in(request)
    }

    /// The command of this name.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&'static Command> {
        if !self.renamed.is_empty()
            && let Some((_, command)) =
                self.renamed.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name))
        {
            return *command;
        }
        self.find_own(name)
    }

    /// The command whose own name this is, whatever clients have to call it.
    #[inline]
    pub fn find_own(&self, name: &[u8]) -> Option<&'static Command> {
        if name.len() > NAME_LIMIT {
            return None;
        }
        let mut at = Self::bucket_of(name);
        while let Some(command) = self.buckets[at] {
            if is_name_of(command, name) {
                return Some(command);
            }
            at = (at + 1) % BUCKETS;
        }
        None
    }

    /// The command of this name, which may well be `guess`: the one that was found for another request.
    #[inline]
    pub(crate) fn find_again(&self, name: &[u8], guess: Option<&'static Command>) -> Option<&'static Command> {
        match guess {
            Some(command) if is_name_of(command, name) && self.renamed.is_empty() => Some(command),
            _ => self.find(name),
        }
    }

    /// Gives a command another name, or takes it away if that is empty.
    pub fn rename(&mut self, old: &str, new: &str) -> Result<(), &'static str> {
        let command = self.find(old.as_bytes()).ok_or("No such command in rename-command")?;
        if old != new && self.find(new.as_bytes()).is_some() {
            return Err("Target command name already exists");
        }
        self.renamed.retain(|(name, _)| name != old && name != new);
        self.renamed.push((old.into(), None));
        if !new.is_empty() {
            self.renamed.retain(|(name, _)| name != new);
            self.renamed.push((new.into(), Some(command)));
        }
        Ok(())
    }

    #[inline(always)]
    fn bucket_of(name: &[u8]) -> usize {
        // Three letters, in lower case, and the length tell most names apart; the names are ours, so nobody can choose
        // collisions.
        let letter = |at: usize| u32::from(name.get(at).copied().unwrap_or_default() | 0x20);
        let (first, middle, last) = (letter(0), letter(name.len() / 2), letter(name.len().wrapping_sub(1)));
        let mixed = (first << 24 | middle << 16 | last << 8 | name.len() as u32).wrapping_mul(0x1656_67b1);
        (mixed >> (u32::BITS - BUCKETS.ilog2())) as usize
    }
}

/// Whether a request that begins with `name` is for `command`, whose own name is in lower case.
#[inline(always)]
pub(crate) fn is_name_of(command: &Command, name: &[u8]) -> bool {
    let known = command.name.as_bytes();
    known.len() == name.len() && (0..known.len()).all(|at| known[at] == name[at].to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_and_well_formed() {
        let by_name = ByName::default();
        for command in all() {
            let upper = command.name.to_ascii_uppercase();
            assert!(core::ptr::eq(by_name.find(upper.as_bytes()).unwrap(), command), "{}", command.name);
            assert!(command.handler.is_some() || !command.subcommands.is_empty(), "{}", command.name);
            assert!(command.arity != 0, "{}", command.name);
            for sub in command.subcommands {
                assert!(sub.handler.is_some() && sub.subcommands.is_empty(), "{} {}", command.name, sub.name);
            }
        }
        assert!(by_name.find(b"nonsense").is_none());
    }

    #[test]
    fn commands_are_renamed_and_taken_away() {
        let mut by_name = ByName::default();
        by_name.rename("get", "fetch").unwrap();
        by_name.rename("set", "").unwrap();
        assert_eq!(by_name.find(b"FETCH").unwrap().name, "get");
        assert!(by_name.find(b"get").is_none() && by_name.find(b"set").is_none());
        let own_names =
            ["get", "set", "fetch"].map(|name| by_name.find_own(name.as_bytes()).map(|command| command.name));
        assert_eq!(own_names, [Some("get"), Some("set"), None]);
        assert!(by_name.rename("get", "x").is_err() && by_name.rename("ping", "fetch").is_err());
        by_name.rename("fetch", "get").unwrap();
        assert_eq!(by_name.find(b"get").unwrap().name, "get");
    }

    #[test]
    fn families_are_sorted() {
        for family in FAMILIES {
            assert!(family.windows(2).all(|pair| pair[0].name < pair[1].name));
        }
    }
}
