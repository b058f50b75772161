//! Having replicas.

use super::{Backlog, SECOND_NS};
use crate::{
    Close, Context, Error, Origin, Outcome, Output, Session, Store,
    args::{self, is},
    dump,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use kayvee_rdb::{Checksum, Compression, Dialect};
use kayvee_resp::Request;

/// The form of a dump that a replica gets: one of Redis 7.0 reads it as well as newer ones.
pub(super) const DIALECT: Dialect = Dialect::Redis70;

/// Bytes that may wait in a replica's output before it is sent further effects.
const AHEAD_BYTES: usize = 256 << 10;

/// What a client that is going to be a replica has told of itself by `REPLCONF`.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    pub(super) port: u16,
    pub(super) address: String,
    /// It can do with a dump whose length is not told before.
    takes_open_end: bool,
    /// It can do with another name of the history when it goes on.
    takes_new_id: bool,
    /// It wants nothing but the dump, or of that nothing but functions.
    wants_dump_only: bool,
    wants_functions_only: bool,
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its dump has yet to begin.
    Waits,
    /// Its dump is being written.
    Copies,
    /// Its dump is written, and it has not said so far that it has taken it. What follows before could be taken for a part
    /// of the dump.
    Loads,
    /// It gets every effect.
    Online,
}

/// A client that gets every effect.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Bytes of the dump that are not sent yet. They count towards no limit of its output.
    pub dump_bytes: usize,
    pub(super) state: State,
    /// Whether it has sent `PSYNC`, and is told the name of the history.
    knows_histories: bool,
    /// How many bytes of effects it has been sent, or has in its dump, and how many more there are. Those lie in the backlog.
    fed: u64,
    behind: u64,
    /// Since when it waits for its dump, in monotonic nanoseconds.
    asked_ns: u64,
    /// How much of the effects it says that it has, and has on stable storage.
    pub(super) acknowledged: u64,
    pub(super) covered: u64,
    /// When it last made progress, in monotonic nanoseconds.
    pub(super) progress_ns: u64,
}

impl Replica {
    fn new(state: State, knows: Knows, acknowledged: u64, now_ns: u64) -> Replica {
        Replica {
            dump_bytes: 0,
            state,
            knows_histories: knows == Knows::Histories,
            fed: acknowledged,
            behind: 0,
            asked_ns: now_ns,
            acknowledged,
            covered: 0,
            progress_ns: now_ns,
        }
    }

    /// Whether it gets every effect.
    pub(super) fn is_online(&self) -> bool {
        self.state == State::Online
    }

    /// Whether it has so many bytes of effects, as far as it has said.
    pub(crate) fn has(&self, offset: u64) -> bool {
        self.is_online() && self.acknowledged >= offset
    }

    /// How many bytes of effects it has said that it has.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Notes that bytes were sent to it.
    pub fn sent(&mut self, len: usize, now_ns: u64) {
        // One that wants to know the dump's length gets every effect at once, though its dump is still on the way.
        if self.dump_bytes > 0 || self.state != State::Online {
            self.progress_ns = now_ns;
        }
        self.dump_bytes = self.dump_bytes.saturating_sub(len);
    }

    /// Notes that it has said something that is no request: Redis sends empty lines while it loads.
    pub fn heard(&mut self, now_ns: u64) {
        self.progress_ns = now_ns;
    }

    /// Bytes of effects that are not in its output yet.
    pub fn behind_bytes(&self) -> u64 {
        self.behind
    }

    /// Whether it gets effects, now or once it has its dump.
    fn is_fed(&self) -> bool {
        self.state != State::Waits
    }

    /// Whether there are effects that it can be sent.
    fn is_hungry(&self, output: &Output) -> bool {
        self.is_online() && self.behind > 0 && output.unsent().saturating_sub(self.dump_bytes) < AHEAD_BYTES
    }
}

pub(super) fn psync(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    let (id, offset) = (&request[1], args::integer(&request[2])?);
    if context.session().replica.is_some() {
        return Ok(());
    }
    if request.get(3).is_some_and(|word| is(word, "failover")) {
        context.take_over(id)?;
    }
    context.may_have_replicas()?;
    if context.continue_from(id, offset) {
        return Ok(());
    }
    if id != b"?" {
        context.store.stats.sync_partial_err += 1;
    }
    begin(context, Knows::Histories)
}

pub(super) fn sync(context: &mut Context<'_>, _: Request<'_>) -> Outcome {
    // One that is a replica already has asked twice.
    if context.session().replica.is_some() {
        return Ok(());
    }
    context.may_have_replicas()?;
    begin(context, Knows::Nothing)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Knows {
    /// It has sent `PSYNC`.
    Histories,
    /// It has sent `SYNC`.
    Nothing,
}

/// Makes the client a replica that needs all data.
fn begin(context: &mut Context<'_>, knows: Knows) -> Outcome {
    let slot = context.slot;
    let announced = context.session().announced.as_deref().cloned().unwrap_or_default();
    context.store.keep_backlog();
    context.store.stats.sync_full += 1;
    let now_ns = context.store.now.monotonic_ns;
    let mut replica = Replica::new(State::Waits, knows, 0, now_ns);
    if !announced.takes_open_end || announced.wants_functions_only {
        let len = context.whole_dump(&announced, knows)?;
        replica = Replica::new(State::Online, knows, context.store.effects.offset(), now_ns);
        replica.dump_bytes = context.session().output.unsent() + len;
    }
    let ends = announced.wants_dump_only && replica.state == State::Online;
    context.session().replica = Some(replica);
    if ends {
        context.session().close = Some(Close::AfterOutput);
    }
    context.store.replicas.push(slot);
    Ok(())
}

impl Context<'_> {
    /// Becomes the master, as the one asks for that this store is a replica of.
    fn take_over(&mut self, id: &[u8]) -> Outcome {
        log::info!("Failover request received for replid {}.", String::from_utf8_lossy(id));
        if !self.store.replication.has_master() {
            return Err(Error::text("ERR PSYNC FAILOVER can't be sent to a master."));
        }
        if !id.eq_ignore_ascii_case(self.store.replication.id.as_bytes()) {
            return Err(Error::text("ERR PSYNC FAILOVER replid must match my replid."));
        }
        self.store.stand_alone();
        log::info!("MASTER MODE enabled (failover request from client {})", self.session().id);
        Ok(())
    }

    fn may_have_replicas(&mut self) -> Outcome {
        if self.origin != Origin::Client {
            return Err(Error::text("ERR This Redis command is not allowed from script"));
        }
        match &self.store.replication.link {
            _ if self.store.fails_over() => Err(Error::text("NOMASTERLINK Can't SYNC while failing over")),
            Some(link) if !link.is_up() => {
                Err(Error::text("NOMASTERLINK Can't SYNC while not connected with my master"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the dump in one piece, since its length has to be told before. Returns how long all of it is.
    fn whole_dump(&mut self, announced: &Announced, knows: Knows) -> Result<usize, Error> {
        let mut file = Vec::new();
        let take = |bytes: &[u8]| -> Outcome {
            file.try_reserve(bytes.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
            file.extend_from_slice(bytes);
            Ok(())
        };
        // What has happened until now is in the file.
        let history = self.store.history();
        self.store.feed_replicas();
        self.store.effects.name_database();
        match announced.wants_functions_only {
            true => dump::write_functions(self.store, DIALECT, take)?,
            false => dump::write_file(self.store, DIALECT, Compression::Off, Checksum::On, history.as_ref(), take)?,
        }
        let start = self.reply.len();
        if knows == Knows::Histories {
            let offset = self.store.effects.offset();
            self.reply.raw(self.store.full_resync_line(offset).as_bytes());
        }
        self.reply.raw(format!("${}\r\n", file.len()).as_bytes());
        self.reply.raw(&file);
        if self.reply.failed() {
            return Err(Error::OUT_OF_MEMORY);
        }
        Ok(self.reply.len() - start)
    }

    /// Lets a replica go on after what it has, if that is known here.
    fn continue_from(&mut self, id: &[u8], offset: i64) -> bool {
        // A replica asks for the byte that follows what it has.
        let Some(has) = u64::try_from(offset).ok().and_then(|next| next.checked_sub(1)) else { return false };
        self.store.end_unit();
        self.store.feed_replicas();
        let replication = &self.store.replication;
        let is_former =
            id == replication.former_id.as_bytes() && replication.former_until.is_some_and(|until| has <= until);
        let is_known = id == replication.id.as_bytes() || is_former;
        if !is_known || replication.backlog.as_ref().is_none_or(|backlog| backlog.next(has).is_none()) {
            return false;
        }
        let announced =
            self.store.sessions[self.slot as usize].as_ref().and_then(|session| session.announced.as_deref());
        let line = match announced.is_some_and(|announced| announced.takes_new_id) {
            true => format!("+CONTINUE {}\r\n", replication.id),
            false => String::from("+CONTINUE\r\n"),
        };
        self.reply.raw(line.as_bytes());
        log::info!("Partial resynchronization request accepted: sending what came after offset {has}");
        self.store.stats.sync_partial_ok += 1;
        let progress_ns = self.store.now.monotonic_ns;
        let slot = self.slot;
        self.session().replica = Some(Replica::new(State::Online, Knows::Histories, has, progress_ns));
        self.store.replicas.push(slot);
        true
    }
}

pub(super) fn replconf(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    if request.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    for at in (1..request.len()).step_by(2) {
        let (option, value) = (&request[at], &request[at + 1]);
        let is_on = |value: &[u8]| args::integer(value).map(|number| number != 0);
        match () {
            () if is(option, "ack") => {
                // An acknowledgement gets no reply: it would look like an effect.
                return context.take_ack(request);
            }
            () if is(option, "getack") => {
                context.acknowledge();
                return Ok(());
            }
            () if is(option, "listening-port") => {
                let port = u16::try_from(args::integer(value)?).map_err(|_| Error::NOT_INTEGER)?;
                context.announced().port = port;
            }
            () if is(option, "ip-address") => {
                /// No address or name is longer.
                const LIMIT_BYTES: usize = 255;
                let address = core::str::from_utf8(value).ok().filter(|address| address.len() <= LIMIT_BYTES);
                const TOO_LONG: Error = Error::text("ERR REPLCONF ip-address provided by replica instance is too long");
                context.announced().address = address.ok_or(TOO_LONG)?.into();
            }
            () if is(option, "capa") && is(value, "eof") => context.announced().takes_open_end = true,
            () if is(option, "capa") && is(value, "psync2") => context.announced().takes_new_id = true,
            () if is(option, "capa") => {}
            () if is(option, "rdb-only") => context.announced().wants_dump_only = is_on(value)?,
            () if is(option, "rdb-filter-only") => {
                let words = kayvee_resp::split_words(value).map_err(|_| Error::SYNTAX)?;
                if let Some(other) = words.iter().find(|word| !is(word, "functions")) {
                    return Err(Error::showing("ERR Unsupported rdb-filter-only option: ", other, ""));
                }
                context.announced().wants_functions_only = !words.is_empty();
            }
            () => return Err(Error::showing("ERR Unrecognized REPLCONF option: ", option, "")),
        }
    }
    context.reply.ok();
    Ok(())
}

impl Context<'_> {
    fn announced(&mut self) -> &mut Announced {
        self.session().announced.get_or_insert_with(Box::default)
    }

    fn take_ack(&mut self, request: Request<'_>) -> Outcome {
        let number = |at: usize| args::integer(&request[at]).map(|number| u64::try_from(number).unwrap_or(0));
        let acknowledged = number(2)?;
        let says_covered = request.len() > 4 && is(&request[3], "fack");
        let covered = if says_covered { number(4)? } else { 0 };
        let now_ns = self.store.now.monotonic_ns;
        let Some(replica) = &mut self.session().replica else { return Ok(()) };
        replica.acknowledged = replica.acknowledged.max(acknowledged);
        replica.covered = replica.covered.max(covered);
        replica.progress_ns = now_ns;
        let was_loading = replica.state == State::Loads;
        if was_loading {
            replica.state = State::Online;
            log::info!("Synchronization with replica {} succeeded", self.session().remote);
        }
        self.store.replication.has_heard = true;
        Ok(())
    }
}

impl Store {
    fn full_resync_line(&self, offset: u64) -> String {
        format!("+FULLRESYNC {} {offset}\r\n", self.replication.id)
    }

    /// Begins to keep effects, if that is not being done. Nobody has counted them until now, so nobody can go on from what
    /// it had before.
    pub(super) fn keep_backlog(&mut self) {
        if self.replication.backlog.is_some() {
            return;
        }
        self.change_history();
        self.open_backlog();
    }

    #[inline(never)]
    pub(crate) fn open_backlog(&mut self) {
        let limit = self.backlog_limit_bytes();
        self.replication.backlog = Some(Backlog::new(limit, self.effects.offset()));
        self.replication.alone_since_ns = self.now.monotonic_ns;
        self.effects.add_listener();
    }

    pub(super) fn drop_backlog(&mut self) {
        if self.replication.backlog.take().is_some() {
            self.effects.remove_listener();
        }
    }

    /// Keeps the effects of whole units, and sends the replicas what they have not been sent. Those that would miss some
    /// have to begin anew.
    pub fn feed_replicas(&mut self) {
        if !self.effects.is_empty() {
            match self.effects.take() {
                Some(effects) => {
                    if let Some(backlog) = &mut self.replication.backlog {
                        backlog.push(&effects);
                    }
                }
                None => self.begin_history_anew(),
            }
        }
        let Some(mut backlog) = self.replication.backlog.take() else { return };
        let mut needed = backlog.end();
        for at in 0..self.replicas.len() {
            if let Some(fed) = self.feed(self.replicas[at], &backlog) {
                needed = needed.min(fed);
            }
        }
        backlog.trim(needed);
        self.replication.backlog = Some(backlog);
    }

    /// Sends a replica effects, as many as it may have ahead. Returns how many bytes it has been sent by then, if it needs what follows.
    fn feed(&mut self, slot: u32, backlog: &Backlog) -> Option<u64> {
        loop {
            let session = self.sessions[slot as usize].as_deref_mut()?;
            let is_open = session.close != Some(Close::Now);
            let replica = session.replica.as_mut().filter(|replica| is_open && replica.is_fed())?;
            let behind = backlog.end() - replica.fed;
            let has_grown = behind > core::mem::replace(&mut replica.behind, behind);
            let Some(effects) = backlog.next(replica.fed) else {
                self.disconnect(slot);
                return None;
            };
            if !session.replica.as_ref().is_some_and(|replica| replica.is_hungry(&session.output)) {
                if has_grown {
                    // It may be too much.
                    self.touch(slot);
                }
                return self.replica_mut(slot).map(|replica| replica.fed);
            }
            self.send(slot, |writer| writer.raw(effects));
            self.replica_mut(slot)?.fed += effects.len() as u64;
        }
    }

    /// Whether there are effects that a replica can be sent.
    pub(super) fn feeds_on(&self) -> bool {
        self.each_replica_session()
            .any(|session| session.replica.as_ref().is_some_and(|replica| replica.is_hungry(&session.output)))
    }

    /// Goes on without effects that were lost for want of memory.
    #[cold]
    fn begin_history_anew(&mut self) {
        self.drop_replicas();
        if self.replication.link.is_none() {
            // One that has all before could take it for everything.
            self.change_history();
        }
        let (offset, limit) = (self.effects.offset(), self.backlog_limit_bytes());
        self.replication.backlog = self.replication.backlog.take().map(|_| Backlog::new(limit, offset));
    }

    /// Ends the connections of all replicas.
    pub(super) fn drop_replicas(&mut self) {
        for at in 0..self.replicas.len() {
            self.disconnect(self.replicas[at]);
        }
        self.abandon_copy_for_nobody();
    }

    pub(crate) fn disconnect(&mut self, slot: u32) {
        if let Some(session) = self.sessions[slot as usize].as_deref_mut() {
            session.close = Some(Close::Now);
        }
        self.touch(slot);
    }

    /// Forgets a replica.
    pub(crate) fn drop_replica(&mut self, slot: u32) {
        if let Some(at) = self.replicas.iter().position(|&replica| replica == slot) {
            self.replicas.swap_remove(at);
            self.replication.alone_since_ns = self.now.monotonic_ns;
            self.replication.has_heard = true;
            self.abandon_copy_for_nobody();
        }
    }

    /// The sessions of all replicas.
    pub(crate) fn each_replica_session(&self) -> impl Iterator<Item = &Session> {
        self.replicas.iter().filter_map(|slot| self.sessions[*slot as usize].as_deref())
    }

    /// Bytes of memory of what replicas have not been sent yet.
    pub(crate) fn replica_buffers_bytes(&self) -> u64 {
        let outputs: usize = self.each_replica_session().map(|session| session.output.memory_bytes()).sum();
        outputs as u64 + self.replica_excess_bytes()
    }

    /// Bytes for which no key goes: buffers of replicas and of the log, whom each key that goes is told, and those of the network,
    /// which strangers fill. Where the kernel has a network, it has these as well.
    pub(crate) fn buffers_beside_data_bytes(&self) -> u64 {
        let replicas = if self.replication.backlog.is_none() { 0 } else { self.replica_buffers_bytes() };
        replicas + self.durable.buffers_bytes() + self.network_buffers_bytes
    }

    /// The replicas with what is known of each.
    pub(crate) fn each_replica(&self) -> impl Iterator<Item = (u32, &Replica)> {
        let replica = |slot: &u32| Some((*slot, self.sessions[*slot as usize].as_deref()?.replica.as_ref()?));
        self.replicas.iter().filter_map(replica)
    }

    fn replica_mut(&mut self, slot: u32) -> Option<&mut Replica> {
        self.sessions[slot as usize].as_deref_mut()?.replica.as_mut()
    }

    /// Begins the dump of a replica: tells it from which effect on it will get all.
    pub(super) fn greet(&mut self, slot: u32, head: &str, offset: u64) {
        let line = self.full_resync_line(offset);
        let Some(replica) = self.replica_mut(slot) else { return };
        replica.state = State::Copies;
        (replica.acknowledged, replica.fed) = (offset, offset);
        let line = if replica.knows_histories { line } else { String::new() };
        self.send_dump(slot, &[line.as_bytes(), head.as_bytes()].concat());
    }

    /// Sends a part of the dump to a replica.
    pub(super) fn send_dump(&mut self, slot: u32, bytes: &[u8]) {
        self.send(slot, |writer| writer.raw(bytes));
        if let Some(replica) = self.replica_mut(slot) {
            replica.dump_bytes += bytes.len();
        }
    }

    /// Ends the dump of a replica.
    pub(super) fn end_dump(&mut self, slot: u32) {
        let now_ns = self.now.monotonic_ns;
        let Some(session) = self.sessions[slot as usize].as_deref_mut() else { return };
        let ends = session.announced.as_ref().is_some_and(|announced| announced.wants_dump_only);
        if let Some(replica) = &mut session.replica {
            (replica.state, replica.progress_ns) = (State::Loads, now_ns);
        }
        if ends {
            session.close = Some(Close::AfterOutput);
        }
        self.touch(slot);
    }

    /// What time brings for replicas: they hear something, and those that say nothing for too long have to go.
    pub(super) fn tick_replicas(&mut self) {
        let now_ns = self.now.monotonic_ns;
        let limit = self.backlog_limit_bytes();
        if let Some(backlog) = &mut self.replication.backlog {
            backlog.set_limit(limit);
        }
        let is_master = self.replication.link.is_none();
        let ttl_ns = self.option_number("repl-backlog-ttl").saturating_mul(SECOND_NS);
        let alone_ns = now_ns.saturating_sub(self.replication.alone_since_ns);
        if self.replicas.is_empty() {
            if is_master && ttl_ns > 0 && alone_ns > ttl_ns {
                log::info!(
                    "Replication backlog freed after {} seconds without connected replicas.",
                    ttl_ns / SECOND_NS
                );
                self.drop_backlog();
                self.change_history();
            }
            return;
        }
        let period_ns = self.option_number("repl-ping-replica-period").saturating_mul(SECOND_NS);
        if is_master
            && now_ns.saturating_sub(self.replication.pinged_ns) >= period_ns
            && self.pause_in_force().is_none()
        {
            self.replication.pinged_ns = now_ns;
            self.tell_replicas(&[b"PING"]);
        }
        let timeout_ns = self.option_number("repl-timeout").saturating_mul(SECOND_NS);
        // One that has sent SYNC has nothing to say.
        let is_late =
            |replica: &Replica| replica.knows_histories && now_ns.saturating_sub(replica.progress_ns) > timeout_ns;
        let late: Vec<u32> =
            self.each_replica().filter(|(_, replica)| is_late(replica)).map(|(slot, _)| slot).collect();
        for slot in late {
            log::warn!("Disconnecting timedout replica");
            self.disconnect(slot);
        }
        // Those that wait for their dump hear that this has not died.
        for slot in self.slots_in(State::Waits) {
            self.send(slot, |writer| writer.raw(b"\n"));
        }
    }

    /// Whether the dump for those that wait for one is to begin: others may come that can have the same.
    pub(super) fn copy_is_due(&self) -> bool {
        let waiting = || self.each_replica().filter(|(_, replica)| replica.state == State::Waits);
        let Some(first_ns) = waiting().map(|(_, replica)| replica.asked_ns).min() else { return false };
        let delay_ns = self.option_number("repl-diskless-sync-delay").saturating_mul(SECOND_NS);
        let most = self.option_number("repl-diskless-sync-max-replicas");
        self.now.monotonic_ns.saturating_sub(first_ns) >= delay_ns
            || self.option("repl-diskless-sync") == "no"
            || (most > 0 && waiting().count() as u64 >= most)
    }

    /// Whether too few replicas have kept up for commands that write.
    pub fn lacks_replicas(&self) -> bool {
        let least = self.options.min_replicas_to_write as usize;
        if least == 0 || self.replication.link.is_some() {
            return false;
        }
        let lag_s = self.options.min_replicas_max_lag.into();
        lag_s > 0 && self.good_replicas(lag_s) < least
    }

    /// How many replicas have said something within so many seconds.
    pub(super) fn good_replicas(&self, lag_s: u64) -> usize {
        let now_ns = self.now.monotonic_ns;
        let lag = |replica: &Replica| now_ns.saturating_sub(replica.progress_ns) / SECOND_NS;
        self.each_replica().filter(|(_, replica)| replica.is_online() && lag(replica) <= lag_s).count()
    }
}
