use crate::{
    ClientRef, Session,
    acl::Acl,
    blocking::Waiting,
    cluster::Cluster,
    durable::Durable,
    effects::Effects,
    eviction::Pool,
    handover::Handover,
    latency::{Histogram, Latencies},
    migrate::Migration,
    observe::Timed,
    options::{ClientsMemory, DATABASES_MAX, OptionError, Options},
    per_key::PerKey,
    persistence::Saves,
    pubsub::Listeners,
    replication::Replication,
    scripting::Scripting,
    shutdown::Ending,
    slowlog::SlowLog,
    table::{self, ByName, Command},
    tracking::Trackers,
};
use alloc::{
    boxed::Box,
    collections::{BTreeSet, VecDeque},
    string::String,
    vec::Vec,
};
use kayvee_keyspace::{Db, HashKey};
use kayvee_platform::{Clock, Heap, MonitorFigures, NetworkFigures, Now, ProcessorTime, ReadFile, WriteFile};
use kayvee_rdb::Checksum;

/// What the platform provides for a store.
#[derive(Clone)]
pub struct Environment {
    /// How the store runs, for `INFO server`: `linux`, `kvm`, `tcg` …
    pub target: &'static str,
    /// The operating system or hypervisor in words, for `INFO server`.
    pub os: String,
    /// How it waits for its clients, for `INFO server`: `epoll`, `polling` …
    pub multiplexing: &'static str,
    /// The process' number, or 0 where there are no processes.
    pub process_id: u32,
    /// For measuring how long commands take. The time that commands see is that of their turn.
    pub clock: &'static dyn Clock,
    /// Live memory figures.
    pub heap: &'static dyn Heap,
    /// Bytes of memory that the machine has.
    pub system_memory_bytes: u64,
    /// Processor time used so far.
    pub processor_time: fn() -> ProcessorTime,
    /// What the monitor of a guest tells of itself, if it does.
    pub monitor: fn() -> Option<MonitorFigures>,
    /// Files and sockets, where there are some.
    pub host: &'static dyn Host,
    /// A secret seed from the platform's entropy: it keys the hash table and the random generator.
    pub seed: [u8; 32],
}

impl Environment {
    fn seed_word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.seed[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// What surrounds the store where there is an operating system: files, and sockets that can be opened anew. What a host does not
/// say is as on a machine with nothing but the store.
pub trait Host {
    /// Puts new options into force as far as the platform has to, such as another port. It may complete them.
    fn apply(&self, old: &Options, new: &mut Options) -> Result<(), OptionError> {
        check_fixed(old, new)
    }

    /// The configuration file, if there is one.
    fn config_file(&self) -> Option<&str> {
        None
    }

    /// All bytes of a file, or what went wrong.
    fn read_file(&self, _path: &str) -> Result<Vec<u8>, String> {
        Err("there are no files here".into())
    }

    /// Replaces a file as a whole.
    fn write_file(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        let mut file = self.create_file(path)?;
        file.write(bytes)?;
        file.finish()
    }

    /// Whether there are files at all.
    fn has_files(&self) -> bool {
        false
    }

    /// Opens a file at its beginning; `None` if there is none.
    fn open_file(&self, _path: &str) -> Result<Option<Box<dyn ReadFile>>, String> {
        Ok(None)
    }

    /// Begins a file that takes the place of what is at the path, in one step, once it is finished.
    fn create_file(&self, _path: &str) -> Result<Box<dyn WriteFile>, String> {
        Err("there are no files here".into())
    }

    /// Makes a disk beside the one that a store has its log on in this folder without being told of a disk, has the store
    /// [make a log](Store::take_new_log) there, and lets the target drive the log with it from this turn on. A target with
    /// such a host also [settles](Store::settle_log) logs.
    fn create_log(&self, _: &mut Store, _dir: &str) -> Result<(), String> {
        Err("there is no disk for the log: start Kayvee with --disk".into())
    }
}

/// Refuses what cannot change on a machine with nothing but the store.
fn check_fixed(old: &Options, new: &Options) -> Result<(), OptionError> {
    let refused = |name: &str, reason: &str| Err(OptionError { name: name.into(), reason: reason.into() });
    if old.port != new.port {
        return refused("port", "Unable to listen on this port: it is fixed at the machine's start.");
    }
    if old.bind != new.bind {
        return refused("bind", "Failed to bind to specified addresses: the machine has one, fixed at its start.");
    }
    if old.dir != new.dir {
        return refused("dir", "there are no files here");
    }
    Ok(())
}

/// A machine with nothing but the store.
pub struct NoHost;

impl Host for NoHost {}

/// Counters for `INFO stats`, since start or `CONFIG RESETSTAT`.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub connections_received: u64,
    pub connections_rejected: u64,
    pub commands_processed: u64,
    pub net_input_bytes: u64,
    pub net_output_bytes: u64,
    /// Of these, from a master and to replicas; and what became of replicas' wishes.
    pub repl_input_bytes: u64,
    pub repl_output_bytes: u64,
    pub sync_full: u64,
    pub sync_partial_ok: u64,
    pub sync_partial_err: u64,
    pub expired_keys: u64,
    /// Fields of hashes whose time has come.
    pub expired_fields: u64,
    pub keyspace_hits: u64,
    pub keyspace_misses: u64,
    pub error_replies: u64,
    pub evicted_clients: u64,
    pub evicted_keys: u64,
    /// Time in which commands did not wait for enough keys to be evicted.
    pub eviction_exceeded_ns: u64,
    pub query_buffer_limit_disconnections: u64,
    pub output_buffer_limit_disconnections: u64,
    /// How many values had been freed in slices before all this was counted.
    pub freed_values_before: u64,
    /// Times that bytes were taken from a client, and given to one.
    pub reads: u64,
    pub writes: u64,
    /// Keys with an expiry that active expiry has looked at lately, and the expired ones among them. Both fade.
    pub expiry_examined: f64,
    pub expiry_found: f64,
    /// Rounds of active expiry that left work to the next one.
    pub expiry_rounds_cut: u64,
    /// Most bytes ever in use.
    pub peak_bytes: u64,
    /// Replies by error code, for `INFO errorstats`.
    pub errors: Vec<(String, u64)>,
}

/// A pause of clients, by `CLIENT PAUSE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends, in monotonic nanoseconds.
    pub until_ns: u64,
    /// Whether only commands that may write are held back.
    pub writes_only: bool,
}

/// Who changes the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    Clients,
    /// A log that is read, before clients come.
    Log,
}

/// The data, the options and the clients: all that commands work on.
pub struct Store {
    /// The databases, by number.
    pub dbs: Vec<Db>,
    /// The options in force.
    pub options: Options,
    /// Counters.
    pub stats: Stats,
    /// Changes of keys so far.
    pub changes: u64,
    /// The clients by slot; a free slot is `None`.
    pub sessions: Vec<Option<Box<Session>>>,
    /// Number of clients.
    pub clients: usize,
    /// The time of the current turn.
    pub now: Now,
    /// When the store started.
    pub started: Now,
    /// What was done until it was ready, and when by the monotonic clock it was done.
    pub boot_phases: Vec<(&'static str, u64)>,
    /// Who changes the data.
    pub(crate) writers: Writers,
    /// For sampling; not secret.
    pub rng: fastrand::Rng,
    /// What the platform provides.
    pub environment: Environment,
    /// What its network does, where it is one of our own.
    pub network: Option<NetworkFigures>,
    /// Bytes that the buffers of such a network take at this moment.
    pub network_buffers_bytes: u64,
    /// The most clients that it can serve, whatever `maxclients` says.
    pub most_clients: u32,
    /// The commands by name.
    pub commands: ByName,
    /// 40 hexadecimal digits that name this run, for `INFO server`.
    pub run_id: String,
    /// A pause that is in force.
    pub pause: Option<Pause>,
    /// Slots of clients that a command of another client has given output or ended.
    pub(crate) touched: Vec<u32>,
    /// The slot of the client whose command runs, and messages to it, which follow the reply.
    pub(crate) running: Option<u32>,
    pub(crate) messages_to_running: Vec<u8>,
    pub(crate) handover: Handover,
    /// The slots of the clients that watch a key.
    pub(crate) watchers: PerKey<Vec<u32>>,
    /// The clients that wait for a key, and keys that somebody waits for and that have changed.
    pub(crate) waiting: PerKey<Waiting>,
    pub(crate) changed_keys: VecDeque<(usize, Vec<u8>)>,
    /// When waits end, in monotonic nanoseconds, and whose.
    pub(crate) deadlines: BTreeSet<(u64, u32)>,
    /// Number of clients that wait.
    pub blocked_clients: usize,
    /// Who listens to which channels.
    pub listeners: Listeners,
    /// The cluster that the store is a shard of.
    pub(crate) cluster: Option<Box<Cluster>>,
    /// What has changed, for whoever keeps a copy.
    pub effects: Effects,
    /// The log, if there is one, and the names of new ones, which must tell nothing of what else is drawn.
    pub(crate) durable: Durable,
    pub(crate) log_ids: fastrand::Rng,
    /// The slots of the replicas, and what else is known of copies elsewhere.
    pub replicas: Vec<u32>,
    pub(crate) replication: Replication,
    /// Keys on their way to another store, and whether others have waited for that.
    pub(crate) migration: Option<Box<Migration>>,
    pub(crate) releases_held: bool,
    /// Which clients keep copies of which keys.
    pub(crate) tracking: Trackers,
    /// What has been saved and loaded.
    pub saves: Saves,
    /// Whether clients that write wait for the end of a failover, or for that of the store.
    pub(crate) holds_writes: bool,
    /// An end that waits for replicas.
    pub(crate) ending: Option<Ending>,
    /// Set when the store is to end, with the exit status.
    pub shutdown: Option<u8>,
    /// How often each command was called, by the address of its row.
    pub calls: Vec<(&'static Command, Calls)>,
    /// The command whose calls are being timed together.
    pub(crate) timed: Option<Timed>,
    /// Scripts, libraries of functions, and a script that takes long.
    pub(crate) scripting: Scripting,
    /// The calls that took long, what kept clients waiting, and the slots of clients that see every request.
    pub(crate) slow_log: SlowLog,
    pub(crate) latencies: Latencies,
    pub(crate) monitors: Vec<u32>,
    /// Recent readings of the counters, for the rates in `INFO stats`.
    pub(crate) samples: VecDeque<Sample>,
    /// Bytes in use when the store was made, or before it began to read a log.
    pub startup_bytes: u64,
    /// Whether expired keys are looked for in the background, by `DEBUG SET-ACTIVE-EXPIRE`.
    pub active_expiry: bool,
    /// Whether payloads of values are checked, by `DEBUG SET-SKIP-CHECKSUM-VALIDATION`.
    pub(crate) dump_checksum: Checksum,
    /// Users and what they may do.
    pub acl: Acl,
    /// Candidates for eviction, and since when there has been no time to evict enough keys.
    pub(crate) pool: Pool,
    pub(crate) eviction_since_ns: Option<u64>,
    /// Databases that were flushed and are being freed, and how many values of such ones were freed in slices.
    pub(crate) flushed: Vec<Db>,
    pub(crate) freed_in_flushed: u64,
    /// Whether nothing happens in the background, by `DEBUG PAUSE-CRON`.
    pub pauses_cron: bool,
    hash_key: HashKey,
}

/// How often a command was called, and how it ended.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Calls {
    pub calls: u64,
    /// Time that they took, in nanoseconds. Consecutive calls are timed together.
    pub total_ns: u64,
    pub rejected: u64,
    pub failed: u64,
    /// Their durations, with `latency-tracking`.
    pub histogram: Option<Box<Histogram>>,
}

impl Store {
    /// An empty store.
    pub fn new(options: Options, environment: Environment, now: Now) -> Store {
        // Slots tell where a key is, not which database it is in.
        if options.databases > DATABASES_MAX {
            log::warn!("there are {DATABASES_MAX} databases, not {}", options.databases);
        }
        let databases = if options.cluster_shards.is_empty() { options.database_count() } else { 1 };
        let hash_key = HashKey(environment.seed_word(0), environment.seed_word(8));
        let mut rng = fastrand::Rng::with_seed(environment.seed_word(16));
        let log_ids = fastrand::Rng::with_seed(environment.seed_word(24));
        let run_id = new_id(&mut rng);
        let mut replication_rng = rng.fork();
        let dbs = (0..databases).map(|_| Db::new(hash_key)).collect();
        let mut commands = ByName::default();
        for (old, new) in &options.renamed_commands {
            // The options were checked by trying this out.
            let _ = commands.rename(old, new);
        }
        let all_commands = table::all().map(|command| 1 + command.subcommands.len()).sum();
        let startup_bytes = environment.heap.used_bytes();
        let mut store = Store {
            dbs,
            options,
            stats: Stats::default(),
            changes: 0,
            sessions: Vec::new(),
            clients: 0,
            now,
            started: now,
            boot_phases: Vec::new(),
            writers: Writers::Clients,
            rng,
            environment,
            network: None,
            network_buffers_bytes: 0,
            most_clients: u32::MAX,
            commands,
            run_id,
            pause: None,
            touched: Vec::new(),
            running: None,
            messages_to_running: Vec::new(),
            handover: Handover::None,
            watchers: PerKey::default(),
            waiting: PerKey::default(),
            changed_keys: VecDeque::new(),
            deadlines: BTreeSet::new(),
            blocked_clients: 0,
            listeners: Listeners::default(),
            cluster: None,
            effects: Effects::default(),
            durable: Durable::default(),
            log_ids,
            replicas: Vec::new(),
            migration: None,
            releases_held: false,
            replication: Replication::new(new_id(&mut replication_rng)),
            tracking: Trackers::default(),
            saves: Saves::new(now),
            holds_writes: false,
            ending: None,
            shutdown: None,
            calls: Vec::with_capacity(all_commands),
            timed: None,
            scripting: Scripting::default(),
            slow_log: SlowLog::default(),
            latencies: Latencies::default(),
            monitors: Vec::new(),
            samples: VecDeque::new(),
            startup_bytes,
            active_expiry: true,
            dump_checksum: Checksum::On,
            acl: Acl::default(),
            pool: Pool::default(),
            eviction_since_ns: None,
            flushed: Vec::new(),
            freed_in_flushed: 0,
            pauses_cron: false,
            hash_key,
        };
        store.apply_use_policy();
        store.follow_options();
        match Cluster::new(&store.options) {
            Ok(Some(_)) if store.replication.has_master() => {
                log::error!("Aborting startup: replicaof directive not allowed in cluster mode");
                store.shutdown = Some(1);
            }
            Ok(cluster) => store.cluster = cluster,
            Err(why) => {
                log::error!("Aborting startup: {why}");
                store.shutdown = Some(1);
            }
        }
        if let Err(why) = store.load_users() {
            log::error!("Aborting startup because of ACL errors: {why}");
            store.shutdown = Some(1);
        }
        store
    }

    /// Makes sure that so many clients can be touched at a time.
    pub fn reserve_touched(&mut self, clients: usize) -> Result<(), alloc::collections::TryReserveError> {
        self.touched.try_reserve(clients.saturating_sub(self.touched.len()))
    }

    /// Empties a database.
    pub fn flush(&mut self, db: usize) {
        self.save_anew();
        self.db_changed(db, None);
        self.take_down(db);
        // Whoever waits for a stream's group has to learn that it is gone.
        self.wake_all_waiting(db);
    }

    /// Takes the keys of all databases away, and the copies of them that clients keep.
    pub fn flush_all(&mut self) {
        (0..self.dbs.len()).for_each(|db| self.flush(db));
        self.forget_own();
        self.invalidate_all();
    }

    /// Lets two databases change places.
    pub fn swap(&mut self, first: usize, second: usize) {
        if first == second {
            return;
        }
        self.db_changed(first, Some(second));
        self.db_changed(second, Some(first));
        self.dbs.swap(first, second);
        self.durable.note_swap(first, second);
        self.note_swap_for_copy(first, second);
        self.wake_all_waiting(first);
        self.wake_all_waiting(second);
    }

    /// Forgets a client: nobody waits, watches or listens in its name any more. Returns whether a script goes on in it, for which
    /// its session has to stay.
    #[inline(never)]
    pub fn forget(&mut self, slot: u32) -> bool {
        let goes_on = self.forget_script(slot);
        self.unblock(slot);
        self.unwatch(slot);
        self.stop_listening_at_all(slot);
        self.stop_tracking(slot);
        self.drop_replica(slot);
        self.forget_link(slot);
        self.forget_migration(slot);
        self.stop_monitoring(slot);
        if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
            session.output = Default::default();
        }
        goes_on
    }

    /// An empty database, to put in another one's place.
    pub fn empty_db(&self) -> Db {
        let mut db = Db::new(self.hash_key);
        // All have the same rule.
        let rule = self.dbs.first().map(|db| (db.keeps_expired, db.shows_expired));
        (db.keeps_expired, db.shows_expired) = rule.unwrap_or_default();
        db.set_use_policy(self.use_policy());
        db.begin_walk(self.durable.epoch());
        db
    }

    /// All clients.
    pub fn all_sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().flatten().map(Box::as_ref)
    }

    /// Bytes of memory that may be used for everything: the smaller one of `maxmemory` and the platform's limit, less
    /// what the platform needs to go on working.
    pub fn memory_limit_bytes(&self) -> Option<u64> {
        match (self.options.maxmemory, self.platform_limit_bytes()) {
            (0, platform) => platform,
            (maxmemory, platform) => Some(platform.map_or(maxmemory, |limit| limit.min(maxmemory))),
        }
    }

    /// The platform's limit, less what it needs to go on working.
    #[inline(always)]
    fn platform_limit_bytes(&self) -> Option<u64> {
        self.environment.heap.limit_bytes().map(|limit| limit - reserve_bytes(limit))
    }

    /// Bytes that one command may add to the data. `maxmemory` is no bound here: as in Redis, the command that reaches it
    /// still goes through. The platform's reserve is, since everything else lives from it. What has had its effect once had the
    /// room for it, so the log may take half of the reserve: the same data in another order can take more.
    #[inline(always)]
    pub fn data_room_bytes(&self) -> u64 {
        if self.writers == Writers::Log {
            return self.reply_room_bytes();
        }
        let charged_bytes = self.environment.heap.charged_bytes();
        self.platform_limit_bytes().map_or(u64::MAX, |limit| limit.saturating_sub(charged_bytes))
    }

    /// Bytes that one reply or request may take: all that there is but half of the reserve.
    pub fn reply_room_bytes(&self) -> u64 {
        self.room_beyond(2)
    }

    /// Bytes that the network's buffers may take: all but a quarter of the reserve, so that they still serve those who wait when
    /// replies have taken their part. Small allocations need that quarter, which cannot fail gracefully.
    pub fn network_room_bytes(&self) -> u64 {
        self.room_beyond(1)
    }

    /// Bytes that there are beside so many quarters of the reserve.
    fn room_beyond(&self, quarters: u64) -> u64 {
        let heap = self.environment.heap;
        let free_bytes = |limit: u64| limit.saturating_sub(heap.used_bytes());
        heap.limit_bytes()
            .map_or(u64::MAX, |limit| free_bytes(limit).saturating_sub(reserve_bytes(limit) / 4 * quarters))
    }

    /// Whether what is remembered of clients' copies takes more of the reserve than the quarter that it may.
    pub(crate) fn lacks_room_for_copies(&self) -> bool {
        self.environment.heap.limit_bytes().is_some_and(|limit| !self.has_room_for(reserve_bytes(limit) / 4 * 3))
    }

    /// Bytes that all clients' buffers may take together.
    pub fn clients_memory_limit_bytes(&self) -> Option<u64> {
        /// Redis' least limit. Below it nobody could stay connected for long enough to set another one.
        const LEAST_BYTES: u64 = 128 << 10;
        let limit = match self.options.maxmemory_clients {
            ClientsMemory::Bytes(bytes) => bytes,
            ClientsMemory::Percent(percent) if self.options.maxmemory > 0 => {
                self.options.maxmemory / 100 * u64::from(percent)
            }
            ClientsMemory::Percent(_) | ClientsMemory::Unlimited => return None,
        };
        Some(limit.max(LEAST_BYTES))
    }

    /// A client, if it is still there.
    pub fn client(&self, client: ClientRef) -> Option<&Session> {
        self.sessions[client.slot as usize].as_deref().filter(|session| session.id == client.id)
    }

    /// The slot of the client with this unique number.
    pub fn slot_of(&self, id: u64) -> Option<u32> {
        let is_it = |session: &Option<Box<Session>>| session.as_ref().is_some_and(|session| session.id == id);
        self.sessions.iter().position(is_it).map(|slot| slot as u32)
    }

    /// Whether the platform can surely give this much more memory. What is set aside for replies may be used up.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let heap = self.environment.heap;
        heap.limit_bytes().is_none_or(|limit| limit.saturating_sub(heap.used_bytes()) > bytes)
    }

    /// Bytes of room in pages of records that other records will take. They are no more in use than an allocator's own free
    /// blocks.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.dbs.iter().map(|db| db.free_bytes() as u64).sum()
    }

    /// How many keys there are in all databases.
    pub(crate) fn all_keys(&self) -> usize {
        self.dbs.iter().map(Db::len).sum()
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.environment.heap.used_bytes().saturating_sub(self.free_bytes())
    }

    /// Whether memory is full, by `maxmemory` or the platform's limit.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.excess_bytes() > 0
    }

    /// Bytes in use beyond `maxmemory` or the platform's limit.
    #[inline(always)]
    pub(crate) fn excess_bytes(&self) -> u64 {
        let above_maxmemory = match self.options.maxmemory {
            0 => 0,
            maxmemory => {
                let excess_bytes = self.used_bytes().checked_sub(maxmemory);
                excess_bytes.map_or(0, |excess| excess.saturating_sub(self.buffers_beside_data_bytes()))
            }
        };
        above_maxmemory.max(self.platform_excess_bytes())
    }

    /// Whether the platform's memory is full.
    pub fn is_platform_full(&self) -> bool {
        self.platform_excess_bytes() > 0
    }

    /// Here room in pages counts as used, since not every record can take it.
    #[inline(always)]
    fn platform_excess_bytes(&self) -> u64 {
        self.platform_limit_bytes().map_or(0, |limit| self.environment.heap.charged_bytes().saturating_sub(limit))
    }
}

fn new_id(rng: &mut fastrand::Rng) -> String {
    (0..40).map(|_| char::from(b"0123456789abcdef"[rng.usize(..16)])).collect()
}

impl Store {
    /// 40 hexadecimal digits that nobody else has.
    pub(crate) fn new_id(&mut self) -> String {
        new_id(&mut self.rng)
    }
}

/// Counters at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    monotonic_ns: u64,
    commands: u64,
    input_bytes: u64,
    output_bytes: u64,
}

/// What happens per second, over the last seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    #[allow(missing_docs)]
    pub commands: f64,
    #[allow(missing_docs)]
    pub input_bytes: f64,
    #[allow(missing_docs)]
    pub output_bytes: f64,
}

const SAMPLE_PERIOD_NS: u64 = 100_000_000;
/// As many as Redis averages over: 1.6 seconds.
const SAMPLES: usize = 16;

impl Store {
    fn sample(&self) -> Sample {
        Sample {
            monotonic_ns: self.now.monotonic_ns,
            commands: self.stats.commands_processed,
            input_bytes: self.stats.net_input_bytes,
            output_bytes: self.stats.net_output_bytes,
        }
    }

    /// Notes the counters for [`rates`](Self::rates), if the last note is old enough.
    pub fn take_sample(&mut self) {
        if self.samples.back().is_none_or(|last| self.now.monotonic_ns - last.monotonic_ns >= SAMPLE_PERIOD_NS) {
            if self.samples.len() == SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(self.sample());
        }
    }

    /// What has happened per second lately. Turns come only when something happens, so the last sample before a quiet
    /// time counts for all of it.
    pub fn rates(&self) -> Rates {
        let now = self.sample();
        let window_ns = SAMPLE_PERIOD_NS * SAMPLES as u64;
        let is_recent = |sample: &&Sample| now.monotonic_ns - sample.monotonic_ns <= window_ns;
        let Some(first) = self.samples.iter().find(is_recent).or(self.samples.back()) else { return Rates::default() };
        let seconds = (now.monotonic_ns - first.monotonic_ns).max(SAMPLE_PERIOD_NS) as f64 / 1e9;
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        Rates {
            commands: rate(now.commands, first.commands),
            input_bytes: rate(now.input_bytes, first.input_bytes),
            output_bytes: rate(now.output_bytes, first.output_bytes),
        }
    }
}

/// Memory that data may never take, so that sessions, replies and errors have room: a sixteenth, up to 16 MiB.
fn reserve_bytes(limit: u64) -> u64 {
    (limit / 16).min(16 << 20)
}
