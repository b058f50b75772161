use crate::{
    acl,
    blocking::Wait,
    output::Output,
    pubsub::Subscriptions,
    replication::{Announced, Replica},
    table::Command,
    tracking::Tracking,
    transactions::{Transaction, Watch},
};
use alloc::{borrow::Cow, boxed::Box, string::String, vec::Vec};
use kayvee_resp::Protocol;

/// Whether a client wants replies, as `CLIENT REPLY` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// Every reply.
    #[default]
    On,
    /// None.
    Off,
    /// None to this command and the next one.
    SkipNext,
    /// None to this command.
    Skip,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// When all replies are sent.
    AfterOutput,
    /// At once.
    Now,
}

/// What of a client's connection `CLIENT LIST` shows, kept up to date by the engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pending {
    /// Bytes of requests that are not executed yet.
    pub query_bytes: usize,
    /// Bytes allocated for them.
    pub query_capacity: usize,
    /// Bytes allocated for where the arguments lie in them.
    pub places_bytes: usize,
}

/// One client among all there ever are: the slot alone may be another one's by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientRef {
    #[allow(missing_docs)]
    pub slot: u32,
    #[allow(missing_docs)]
    pub id: u64,
}

/// What the store knows of one client.
pub struct Session {
    /// Its unique number, from 1 on.
    pub id: u64,
    /// Where it connected from.
    pub remote: String,
    /// Where it connected to.
    pub local: String,
    /// Its name, by `CLIENT SETNAME`.
    pub name: Vec<u8>,
    /// Its library's name and version, by `CLIENT SETINFO`.
    pub lib_name: Vec<u8>,
    #[allow(missing_docs)]
    pub lib_ver: Vec<u8>,
    /// The selected database.
    pub db: usize,
    /// The protocol that it speaks.
    pub protocol: Protocol,
    /// Who it is: the user's place in the list of users, and the name.
    pub user: u32,
    #[allow(missing_docs)]
    pub user_name: Cow<'static, [u8]>,
    /// Whether it has authenticated, or need not.
    pub authenticated: bool,
    /// Whether it wants replies.
    pub reply_mode: ReplyMode,
    /// Spared when clients are dropped for want of memory, by `CLIENT NO-EVICT`.
    pub no_evict: bool,
    /// Leaves the time of last use of keys alone, by `CLIENT NO-TOUCH`.
    pub no_touch: bool,
    /// When it connected, and when it last sent a request, in monotonic nanoseconds.
    pub connected_ns: u64,
    #[allow(missing_docs)]
    pub last_request_ns: u64,
    /// The last command that it sent, with its subcommand.
    pub last_command: Option<(&'static Command, Option<&'static Command>)>,
    /// Requests that it sent.
    pub requests: u64,
    /// Replies that are not sent yet.
    pub output: Output,
    /// Its unexecuted requests.
    pub pending: Pending,
    /// Whether it is in the list of clients that the engine has to look at.
    pub(crate) is_touched: bool,
    /// The commands since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
    /// The keys that it watches, and whether one of them has changed.
    pub watched: Vec<Watch>,
    #[allow(missing_docs)]
    pub watch_broken: bool,
    /// The channels that it listens to.
    pub subscriptions: Subscriptions,
    /// How it keeps copies of what it reads.
    pub tracking: Option<Box<Tracking>>,
    /// Set if it is a replica.
    pub replica: Option<Replica>,
    /// What it has told of itself by `REPLCONF`.
    pub(crate) announced: Option<Box<Announced>>,
    /// Whether it is the master that effects come from.
    pub is_master: bool,
    /// How many bytes of effects there were after its last one.
    pub(crate) written_offset: u64,
    /// What it waits for, while it is blocked.
    pub waits: Option<Box<Wait>>,
    /// Whether a script of its own was put aside and goes on between the requests of others.
    pub runs_script: bool,
    /// Whether its next request waits for the end of a pause.
    pub is_paused: bool,
    /// Whether it is shown every request, by `MONITOR`.
    pub is_monitor: bool,
    /// Set when the connection is to end.
    pub close: Option<Close>,
    /// Since when its output has been above the soft limit, in monotonic nanoseconds.
    pub over_soft_limit_since_ns: Option<u64>,
}

impl Session {
    /// Whether the client is on this machine: on the loopback interface or a Unix socket.
    pub fn is_local(&self) -> bool {
        self.remote.starts_with("127.") || self.remote.starts_with("[::1]") || self.remote.starts_with('/')
    }

    /// Whether its next request has to wait for the reply to the last one.
    pub fn is_waiting(&self) -> bool {
        self.waits.is_some() || self.runs_script
    }

    /// Whether it listens to channels, or carries messages.
    pub fn is_subscriber(&self) -> bool {
        self.subscriptions.count() > 0 || self.subscriptions.is_relay
    }

    /// A client that has just connected.
    pub fn new(id: u64, remote: String, local: String, authenticated: bool, now_ns: u64) -> Session {
        Session {
            id,
            remote,
            local,
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_ver: Vec::new(),
            db: 0,
            protocol: Protocol::default(),
            user: acl::DEFAULT,
            user_name: Cow::Borrowed(b"default"),
            authenticated,
            reply_mode: ReplyMode::default(),
            no_evict: false,
            no_touch: false,
            connected_ns: now_ns,
            last_request_ns: now_ns,
            last_command: None,
            requests: 0,
            output: Output::default(),
            pending: Pending::default(),
            is_touched: false,
            transaction: None,
            watched: Vec::new(),
            watch_broken: false,
            subscriptions: Subscriptions::default(),
            tracking: None,
            replica: None,
            announced: None,
            is_master: false,
            written_offset: 0,
            waits: None,
            runs_script: false,
            is_paused: false,
            is_monitor: false,
            close: None,
            over_soft_limit_since_ns: None,
        }
    }

    /// Lets the client be the master, whose next effect is about a database.
    pub(crate) fn become_master(&mut self, db: usize) {
        self.db = db;
        (self.is_master, self.authenticated) = (true, true);
        self.reply_mode = ReplyMode::Off;
    }

    /// Lets the client be this user.
    pub(crate) fn log_in(&mut self, user: u32, name: &[u8]) {
        self.user = user;
        self.user_name = if user == acl::DEFAULT { Cow::Borrowed(b"default") } else { Cow::Owned(name.into()) };
        self.authenticated = true;
    }

    /// Bytes of memory that the client takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Session>()
            + self.output.footprint_bytes()
            + self.pending.query_capacity
            + self.pending.places_bytes
            + self.transaction.as_ref().map_or(0, |transaction| transaction.requests.capacity())
            + self.waits.as_ref().map_or(0, |waits| waits.memory_bytes())
            + self.subscriptions.memory_bytes()
            + self.tracking.as_ref().map_or(0, |tracking| tracking.memory_bytes())
            + self.watched.iter().map(|watch| size_of::<Watch>() + watch.key.capacity()).sum::<usize>()
            + self.name.capacity()
            + self.lib_name.capacity()
            + self.lib_ver.capacity()
            + self.user_name.len()
            + self.remote.capacity()
            + self.local.capacity()
    }
}
