//! Being a replica: the way to the master, up to the first effect.

use super::{History, SECOND_NS};
use crate::{
    Context, Error, Origin, Outcome, Store,
    args::{self, is},
    options::OptionSpec,
    persistence::{Expired, Loaded},
};
use alloc::{boxed::Box, format, string::String, string::ToString, vec::Vec};
use kayvee_rdb::{
    Checksum,
    file::{FileReader, Item, Step},
};
use kayvee_resp::{Request, encode};

/// How long after a failure it is tried again.
const AGAIN_AFTER_NS: u64 = SECOND_NS;
/// A longer line is no answer of a master.
const LINE_LIMIT_BYTES: usize = 1024;
/// What ends a dump whose length is not told.
const MARK_BYTES: usize = 40;
/// The name of a history.
pub(super) const ID_BYTES: usize = 40;
/// A history this long has room for as much again.
pub(super) const OFFSET_MAX: u64 = u64::MAX / 4;
/// A dump is believed to be no longer than this when room is made for its keys ahead.
const BELIEVED_BYTES: u64 = 16 << 20;

/// A connection that the store wants to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// A name or an address.
    pub host: String,
    #[allow(missing_docs)]
    pub port: u16,
    whom: Whom,
}

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    /// The master.
    Master,
    /// A store that keys go to.
    Target,
}

impl Dial {
    /// For keys that go to another store.
    pub(crate) fn for_migration(host: String, port: u16) -> Dial {
        Dial { host, port, whom: Whom::Target }
    }
}

/// What is asked of the master, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Ping,
    Auth,
    Port,
    Address,
    Abilities,
    History,
}

#[derive(Debug)]
enum State {
    /// It is to be called, not before this time.
    Waits { until_ns: u64 },
    /// It is being called.
    Connects,
    /// It has been asked something.
    Asks(Question),
    /// It is going to send a dump; what follows it has this offset.
    Expects { offset: u64, id: String },
    /// It sends it, and what has come is being loaded, if there is none.
    Loads(Option<Box<Transfer>>),
    /// It sends effects.
    Up,
}

/// A dump on its way.
struct Transfer {
    offset: u64,
    id: String,
    end: End,
    reader: FileReader,
    /// So many bytes have to be there before it pays to look at them.
    needs: u64,
    /// The database of the next key.
    db: usize,
    /// What it says of its history, of which the next effect's database counts.
    said: History,
    loaded: Loaded,
    is_read: bool,
}

impl core::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Transfer").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

/// Where a dump ends.
enum End {
    /// After so many bytes more.
    After(u64),
    /// With these.
    Mark([u8; MARK_BYTES]),
}

/// The connection to the master.
pub struct Link {
    pub(super) host: String,
    pub(super) port: u16,
    state: State,
    pub(super) slot: Option<u32>,
    /// What it has sent that is not understood yet.
    buffer: Vec<u8>,
    /// When it last sent something, and since when it has been away.
    pub(super) heard_ns: u64,
    pub(super) down_since_ns: u64,
    /// The database that the next effect is about, while there is no connection.
    pub(super) db: usize,
    /// The beginning of a transaction whose end has not come.
    pub(super) unit: Vec<u8>,
    /// How long that is, of which less is there where memory ran out.
    pub(super) unit_len: usize,
    /// How many bytes of effects were here when the master asked what is on stable storage, if these were not.
    pub(super) asked_for: Option<u64>,
}

impl Link {
    /// Whether effects come.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// Whether a dump comes, and whether it is being loaded.
    pub(super) fn is_syncing(&self) -> bool {
        matches!(self.state, State::Expects { .. } | State::Loads(_))
    }

    #[allow(missing_docs)]
    pub(super) fn is_loading(&self) -> bool {
        matches!(self.state, State::Loads(_))
    }

    /// What `ROLE` calls how far it is.
    pub(super) fn state_name(&self) -> &'static str {
        match self.state {
            State::Waits { .. } => "connect",
            State::Connects => "connecting",
            State::Asks(_) => "handshake",
            State::Expects { .. } | State::Loads(_) => "sync",
            State::Up => "connected",
        }
    }
}

pub(super) fn replicaof(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    // It would have all of its master's keys, and no others.
    context.store.refuse_in_cluster("REPLICAOF not allowed in cluster mode.")?;
    if context.store.fails_over() {
        return Err(Error::text("ERR REPLICAOF not allowed while failing over."));
    }
    let (host, port) = (&request[1], &request[2]);
    if is(host, "no") && is(port, "one") {
        if context.store.replication.link.is_some() {
            context.store.stand_alone();
            log::info!("MASTER MODE enabled (user request from client {})", context.session().id);
        }
        context.reply.ok();
        return Ok(());
    }
    if context.session().replica.is_some() {
        // It would be a loop.
        return Err(Error::text("ERR Command is not valid when client is a replica."));
    }
    const BAD_PORT: Error = Error::text("ERR Invalid master port");
    let port = args::integer(port).ok().and_then(|port| u16::try_from(port).ok()).ok_or(BAD_PORT)?;
    let host = core::str::from_utf8(host).map_err(|_| Error::SYNTAX)?.to_string();
    let is_same = |link: &Link| link.host == host && link.port == port;
    if context.store.replication.link.as_deref().is_some_and(is_same) {
        log::info!("REPLICAOF would result into synchronization with the master we are already connected with.");
        context.reply.simple("OK Already connected to specified master");
        return Ok(());
    }
    log::info!("REPLICAOF {host}:{port} enabled (user request from client {})", context.session().id);
    context.store.follow(host, port);
    context.reply.ok();
    Ok(())
}

impl Store {
    /// Follows the master of the options, if they name one: at the start.
    pub(crate) fn follow_options(&mut self) {
        let value = self.option("replicaof");
        if let Some((host, port)) = value.split_once(' ')
            && let Ok(port) = port.trim().parse()
        {
            self.follow(host.into(), port);
        }
    }

    /// Becomes a replica of another store.
    pub(super) fn follow(&mut self, host: String, port: u16) {
        const NO_WAITING: Error =
            Error::text("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)");
        let was_master = self.replication.link.is_none();
        if was_master {
            (0..self.sessions.len() as u32).for_each(|slot| _ = self.give_up_waiting(slot, Some(&NO_WAITING)));
        }
        self.hang_up();
        self.end_unit();
        self.feed_replicas();
        // What they get from now on comes from elsewhere.
        self.drop_replicas();
        self.set_master_option(&format!("{host} {port}"));
        let now_ns = self.now.monotonic_ns;
        let db = self.replication.link.as_ref().map_or(0, |link| link.db);
        self.replication.link = Some(Box::new(Link {
            host,
            port,
            state: State::Waits { until_ns: now_ns },
            slot: None,
            buffer: Vec::new(),
            heard_ns: now_ns,
            down_since_ns: now_ns,
            db,
            unit: Vec::new(),
            unit_len: 0,
            asked_for: None,
        }));
        self.replication.next_tick_ns = now_ns;
        self.effects.set_passes_on(true);
        self.apply_expiry_rule();
    }

    /// Is a replica no more: the history goes on under another name.
    pub(super) fn stand_alone(&mut self) {
        self.hang_up();
        self.replication.link = None;
        self.forget_own();
        self.set_master_option("");
        let id = self.new_id();
        self.replication.former_id = core::mem::replace(&mut self.replication.id, id);
        self.replication.former_until = Some(self.effects.offset());
        // They have to learn of the name, and the next effect names its database.
        self.drop_replicas();
        self.effects.name_database();
        self.effects.set_passes_on(false);
        self.replication.alone_since_ns = self.now.monotonic_ns;
        self.apply_expiry_rule();
    }

    fn set_master_option(&mut self, value: &str) {
        if let Some(spec) = OptionSpec::find(b"replicaof") {
            // What a connection is made to is checked when it is made.
            let _ = spec.set(&mut self.options, value.as_bytes());
        }
    }

    /// Ends the connection to the master.
    pub(super) fn hang_up(&mut self) {
        if let Some(slot) = self.replication.link.as_mut().and_then(|link| link.slot.take()) {
            self.lose_link(slot);
            self.disconnect(slot);
        }
    }

    /// The connection that is wanted now, if one is.
    pub fn next_dial(&mut self) -> Option<Dial> {
        if let Some(dial) = self.migration_dial() {
            return Some(dial);
        }
        let now_ns = self.now.monotonic_ns;
        let link = self.replication.link.as_mut()?;
        match link.state {
            State::Waits { until_ns } if until_ns <= now_ns => {
                log::info!("Connecting to MASTER {}:{}", link.host, link.port);
                link.state = State::Connects;
                link.heard_ns = now_ns;
                Some(Dial { host: link.host.clone(), port: link.port, whom: Whom::Master })
            }
            _ => None,
        }
    }

    /// Notes that a connection could not be had.
    #[inline(never)]
    pub fn dial_failed(&mut self, dial: &Dial, why: &str) {
        if dial.whom == Whom::Target {
            return self.fail_migration(crate::migrate::NOT_CONNECTED);
        }
        self.connecting_failed(why);
    }

    fn connecting_failed(&mut self, why: &str) {
        let until_ns = self.now.monotonic_ns + AGAIN_AFTER_NS;
        if let Some(link) = &mut self.replication.link {
            log::warn!("Unable to connect to MASTER: {why}");
            link.state = State::Waits { until_ns };
        }
    }

    /// Takes a connection that was asked for, which may yet have to be established. Returns whether it is still wanted.
    #[inline(never)]
    pub fn dialed(&mut self, dial: &Dial, slot: u32) -> bool {
        if dial.whom == Whom::Target {
            return self.migration_dialed(slot);
        }
        let Some(link) = &mut self.replication.link else { return false };
        if !matches!(link.state, State::Connects) {
            return false;
        }
        link.slot = Some(slot);
        link.buffer = Vec::new();
        log::info!("MASTER <-> REPLICA sync started");
        self.ask(Question::Ping);
        true
    }

    /// Whether a client is the master, as long as it does not send effects.
    #[inline]
    pub fn is_silent_link(&self, slot: u32) -> bool {
        self.replication.link.as_ref().is_some_and(|link| link.slot == Some(slot) && !link.is_up())
    }

    /// Notes that the connection to the master is gone.
    pub(crate) fn forget_link(&mut self, slot: u32) {
        if self.replication.link.as_ref().is_some_and(|link| link.slot == Some(slot)) {
            log::warn!("Connection with master lost.");
            self.lose_link(slot);
        }
    }

    fn lose_link(&mut self, slot: u32) {
        let now_ns = self.now.monotonic_ns;
        let db = self.sessions[slot as usize].as_ref().map(|session| session.db);
        let Some(link) = &mut self.replication.link else { return };
        link.slot = None;
        (link.unit, link.unit_len) = (Vec::new(), 0);
        link.buffer = Vec::new();
        if link.is_up() {
            link.down_since_ns = now_ns;
            link.db = db.unwrap_or(link.db);
        }
        let was_loading = link.is_loading();
        link.state = State::Waits { until_ns: now_ns + AGAIN_AFTER_NS };
        if was_loading {
            // Half of the data is worse than nothing.
            self.clear_data();
        }
    }

    /// Asks the master something.
    fn ask(&mut self, question: Question) {
        let port = match self.option_number("replica-announce-port") {
            0 => format!("{}", self.options.port),
            port => format!("{port}"),
        };
        let (user, password) = (self.option("masteruser"), self.option("masterauth"));
        let address = self.option("replica-announce-ip");
        let (id, next) = match &self.replication.backlog {
            Some(_) => (self.replication.id.clone(), format!("{}", self.effects.offset() + 1)),
            None => ("?".into(), "-1".into()),
        };
        let words: &[&str] = match question {
            Question::Ping => &["PING"],
            Question::Auth if password.is_empty() => return self.ask(Question::Port),
            Question::Auth if user.is_empty() => &["AUTH", &password],
            Question::Auth => &["AUTH", &user, &password],
            Question::Port => &["REPLCONF", "listening-port", &port],
            Question::Address if address.is_empty() => return self.ask(Question::Abilities),
            Question::Address => &["REPLCONF", "ip-address", &address],
            Question::Abilities => &["REPLCONF", "capa", "eof", "capa", "psync2"],
            Question::History if self.asks_to_take_over() => &["PSYNC", &id, &next, "FAILOVER"],
            Question::History => &["PSYNC", &id, &next],
        };
        if question == Question::History && id != "?" {
            log::info!("Trying a partial resynchronization (request {id}:{next}).");
        }
        let Some(link) = &mut self.replication.link else { return };
        link.state = State::Asks(question);
        let Some(slot) = link.slot else { return };
        let mut request = Vec::new();
        if encode(words.iter().map(|word| word.as_bytes()), &mut request).is_ok() {
            self.send(slot, |writer| writer.raw(&request));
        }
    }

    /// Takes bytes from a master that does not send effects yet. Returns those that are effects.
    #[inline(never)]
    pub fn hear_link(&mut self, slot: u32, bytes: &[u8]) -> Vec<u8> {
        let now_ns = self.now.monotonic_ns;
        let Some(link) = &mut self.replication.link else { return Vec::new() };
        link.heard_ns = now_ns;
        if link.buffer.try_reserve(bytes.len()).is_err() {
            self.give_up_link(slot, "there is no memory for what it sends");
            return Vec::new();
        }
        link.buffer.extend_from_slice(bytes);
        loop {
            let Some(link) = self.replication.link.as_mut().filter(|link| link.slot == Some(slot)) else {
                return Vec::new();
            };
            let went_on = match link.state {
                State::Up => return core::mem::take(&mut link.buffer),
                State::Loads(_) => self.load_on(),
                _ => self.hear_line(slot),
            };
            match went_on {
                Ok(true) => {}
                Ok(false) => return Vec::new(),
                Err(why) => {
                    self.give_up_link(slot, &why);
                    return Vec::new();
                }
            }
        }
    }

    fn give_up_link(&mut self, slot: u32, why: &str) {
        log::warn!("Aborting the replication from MASTER: {why}");
        self.lose_link(slot);
        self.disconnect(slot);
    }

    /// Takes the next line of what the master has sent. Returns whether there was one.
    fn hear_line(&mut self, slot: u32) -> Result<bool, String> {
        let Some(link) = &mut self.replication.link else { return Ok(false) };
        // Empty lines say that it is alive. They go together: each that went alone would move all behind it.
        let empty = link.buffer.len() - link.buffer.trim_ascii_start().len();
        link.buffer.drain(..empty);
        let Some(end) = link.buffer.iter().position(|byte| *byte == b'\n') else {
            return if link.buffer.len() > LINE_LIMIT_BYTES { Err("it sends no lines".into()) } else { Ok(false) };
        };
        let line: Vec<u8> = link.buffer.drain(..=end).collect();
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        let is_error = line.starts_with('-');
        match &link.state {
            State::Asks(Question::Ping) => {
                let needs_login = ["-NOAUTH", "-NOPERM", "-ERR operation not permitted"];
                if is_error && !needs_login.iter().any(|start| line.starts_with(start)) {
                    return Err(format!("Error reply to PING from master: '{line}'"));
                }
                log::info!("Master replied to PING, replication can continue...");
                self.ask(Question::Auth);
            }
            State::Asks(Question::Auth) if is_error => return Err(format!("Unable to AUTH to MASTER: {line}")),
            State::Asks(Question::Auth) => self.ask(Question::Port),
            State::Asks(Question::Port) => {
                note_refusal("REPLCONF listening-port", &line);
                self.ask(Question::Address);
            }
            State::Asks(Question::Address) => {
                note_refusal("REPLCONF ip-address", &line);
                self.ask(Question::Abilities);
            }
            State::Asks(Question::Abilities) => {
                note_refusal("REPLCONF capa", &line);
                self.ask(Question::History);
            }
            State::Asks(Question::History) => match self.hear_history(slot, &line) {
                Err(_) if self.asks_to_take_over() => {
                    log::warn!("The failover target answers {line}");
                    self.abort_failover("Failover target rejected psync request");
                }
                heard => {
                    self.end_failover();
                    heard?;
                }
            },
            State::Expects { .. } => self.begin_loading(&line)?,
            State::Waits { .. } | State::Connects | State::Loads(_) | State::Up => {}
        }
        Ok(true)
    }

    /// Takes the answer to `PSYNC`.
    fn hear_history(&mut self, slot: u32, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["+FULLRESYNC", id, offset] if id.len() == ID_BYTES => {
                let offset = offset.parse().ok().filter(|offset| *offset <= OFFSET_MAX);
                let offset = offset.ok_or_else(|| format!("it answers {line}"))?;
                log::info!("Full resync from master: {id}:{offset}");
                if let Some(link) = &mut self.replication.link {
                    link.state = State::Expects { offset, id: id.into() };
                }
                Ok(())
            }
            ["+CONTINUE"] => {
                self.begin_following(slot, None);
                Ok(())
            }
            ["+CONTINUE", id] if id.len() == ID_BYTES => {
                self.begin_following(slot, Some(id));
                Ok(())
            }
            _ => Err(format!("it answers {line}")),
        }
    }

    /// Takes the head of the dump, and makes room for what is in it.
    fn begin_loading(&mut self, line: &str) -> Result<(), String> {
        let wrong = || format!("Bad protocol from MASTER, it answers {line}");
        let end = match line.strip_prefix("$EOF:") {
            Some(mark) => End::Mark(mark.as_bytes().try_into().map_err(|_| wrong())?),
            None => End::After(line.strip_prefix('$').and_then(|len| len.parse().ok()).ok_or_else(wrong)?),
        };
        let Some(link) = &mut self.replication.link else { return Ok(()) };
        let State::Expects { offset, id } = &mut link.state else { return Ok(()) };
        let transfer = Transfer {
            offset: *offset,
            id: core::mem::take(id),
            end,
            reader: FileReader::new(Checksum::On),
            needs: 1,
            db: 0,
            said: History::default(),
            loaded: Loaded::default(),
            is_read: false,
        };
        link.state = State::Loads(Some(Box::new(transfer)));
        log::info!("MASTER <-> REPLICA sync: Flushing old data");
        // They have what is no more.
        self.drop_replicas();
        self.drop_backlog();
        self.clear_data();
        log::info!("MASTER <-> REPLICA sync: Loading DB in memory");
        Ok(())
    }

    /// Clears all data, and has the log begin anew once they are whole again: no effect tells it.
    fn clear_data(&mut self) {
        self.flush_all();
        self.scripting.forget_libraries();
        self.note_data_replaced();
    }

    /// Loads what has come of the dump. Returns whether that has ended it.
    fn load_on(&mut self) -> Result<bool, String> {
        let Some(link) = &mut self.replication.link else { return Ok(false) };
        let State::Loads(transfer) = &mut link.state else { return Ok(true) };
        let Some(mut transfer) = transfer.take() else { return Ok(false) };
        let mut buffer = core::mem::take(&mut link.buffer);
        let result = transfer.take(self, &mut buffer);
        let Some(link) = &mut self.replication.link else { return Ok(false) };
        link.buffer = buffer;
        let is_done = result?;
        let slot = link.slot;
        if !is_done {
            link.state = State::Loads(Some(transfer));
            return Ok(false);
        }
        let Transfer { offset, id, said, loaded, .. } = *transfer;
        link.db = said.db_of(self.dbs.len());
        log::info!("MASTER <-> REPLICA sync: Finished with success, {} keys", loaded.keys);
        self.replication.id = id;
        (self.replication.former_id, self.replication.former_until) = (String::new(), None);
        self.effects.set_offset(offset);
        if let Some(slot) = slot {
            self.begin_following(slot, None);
        }
        Ok(true)
    }

    /// Takes effects from now on.
    fn begin_following(&mut self, slot: u32, id: Option<&str>) {
        if let Some(id) = id.filter(|id| *id != self.replication.id) {
            log::info!("Master replication ID changed to {id}");
            self.replication.former_id = core::mem::replace(&mut self.replication.id, id.into());
            self.replication.former_until = Some(self.effects.offset());
            // They have to learn of the name.
            self.drop_replicas();
        }
        if self.replication.backlog.is_none() {
            self.open_backlog();
        }
        let Some(link) = &mut self.replication.link else { return };
        link.state = State::Up;
        let db = link.db;
        if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
            session.become_master(db);
        }
        self.send_ack();
    }

    /// What time brings for the connection to the master.
    pub(super) fn tick_link(&mut self) {
        let timeout_ns = self.option_number("repl-timeout").saturating_mul(SECOND_NS);
        let now_ns = self.now.monotonic_ns;
        let Some(link) = &self.replication.link else { return };
        let is_late = now_ns.saturating_sub(link.heard_ns) > timeout_ns;
        let why = match link.state {
            State::Waits { .. } => return,
            State::Up => "MASTER timeout: no data nor PING received...",
            State::Loads(_) => {
                "Timeout receiving bulk data from MASTER... If the problem persists try to set the 'repl-timeout' parameter in redis.conf to a larger value."
            }
            _ => "Timeout connecting to the MASTER...",
        };
        match (link.slot, is_late) {
            (Some(slot), true) => self.give_up_link(slot, why),
            (None, true) => self.connecting_failed(why),
            (Some(_), false) if link.is_up() => self.send_ack(),
            // The master hears that this is alive.
            (Some(slot), false) if link.is_loading() => self.send(slot, |writer| writer.raw(b"\n")),
            _ => {}
        }
    }
}

fn note_refusal(what: &str, line: &str) {
    if line.starts_with('-') {
        log::info!("(Non critical) Master does not understand {what}: {line}");
    }
}

impl Transfer {
    /// Takes what has come, and leaves what is not whole. Returns whether the dump has ended.
    fn take(&mut self, store: &mut Store, buffer: &mut Vec<u8>) -> Result<bool, String> {
        let (ours, is_whole, mark_len) = match &self.end {
            End::After(left) => {
                let ours = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                (ours, ours as u64 == *left, 0)
            }
            // Nothing follows before the dump is acknowledged.
            End::Mark(mark) => (buffer.len(), buffer.ends_with(mark), MARK_BYTES),
        };
        if !is_whole && (ours as u64) < self.needs {
            return Ok(false);
        }
        let mut used = 0;
        let result = self.take_items(store, &buffer[..ours], &mut used);
        if let End::After(left) = &mut self.end {
            *left -= used as u64;
        }
        result?;
        let is_done = self.is_read && is_whole && ours - used == mark_len;
        let is_too_long = self.is_read && ours - used > mark_len;
        if (is_whole && !is_done) || is_too_long {
            return Err("Short read or OOM loading DB: the dump ends too early or too late".into());
        }
        buffer.drain(..if is_done { ours } else { used });
        Ok(is_done)
    }

    fn take_items(&mut self, store: &mut Store, bytes: &[u8], used: &mut usize) -> Result<(), String> {
        // How many keys it promises is believed as far as its length goes, which is a promise as well.
        let of_bytes = match self.end {
            End::After(left) => self.reader.offset().saturating_add(left).min(BELIEVED_BYTES),
            End::Mark(_) => 0,
        };
        while !self.is_read {
            let at = self.reader.offset();
            let faulty = |why: &dyn core::fmt::Display| format!("Failed loading the dump at byte {at}: {why}");
            match self.reader.next(&bytes[*used..]).map_err(|fault| faulty(&fault))? {
                Step::Needs(needed) => {
                    // A long part is not looked at for each of its pieces.
                    let there = (bytes.len() - *used) as u64;
                    self.needs = needed.max(there.saturating_mul(2));
                    return Ok(());
                }
                Step::Item(item, len) => {
                    match &item {
                        Item::End => self.is_read = true,
                        Item::Aux(name, text) => self.said.note(name.as_bytes(), text.as_bytes()),
                        _ => {}
                    }
                    let loaded = store.load_item(item, of_bytes, &mut self.db, Expired::Keep, &mut self.loaded);
                    loaded.map_err(|why| faulty(&why))?;
                    *used += len;
                }
            }
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Tells the master how much of its effects is here.
    pub(super) fn acknowledge(&mut self) {
        if self.origin == Origin::Client && self.session().is_master {
            self.is_message = true;
            let offset = self.store.effects.offset();
            let is_behind = self.store.covered().is_some_and(|covered| covered < offset);
            if let Some(link) = &mut self.store.replication.link {
                link.asked_for = is_behind.then_some(offset);
            }
            let ack = self.store.ack();
            self.reply.raw(&ack);
        }
    }
}
