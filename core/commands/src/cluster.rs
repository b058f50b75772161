//! A cluster whose shards share nothing: each has a range of the 16,384 slots that keys hash to, and sends clients who ask for
//! other keys to the shard that has them. Which shards there are is given at the start ([`Options::cluster_shards`]), so there
//! is nothing to agree on, and no shard speaks to another one. What is published is carried between them by a client
//! (`CLUSTER RELAY`, `CLUSTER DELIVER`).

mod commands;

pub use commands::COMMANDS;

use crate::{Context, Error, Origin, Outcome, Store, options::Options, table::Command};
use alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};
use core::ops::Range;
use crc::{CRC_16_XMODEM, Crc, Table};
use kayvee_resp::Request;

/// Number of slots.
pub const SLOTS: usize = 16_384;

/// This part of a shard's keys may be of others' slots, at the most.
const STRAY_PART: u64 = 4;

static CRC: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_XMODEM);

pub(crate) const CROSS_SLOT: Error = Error::text("CROSSSLOT Keys in request don't hash to the same slot");

/// The slot that a key hashes to: by what stands between its first braces, where there is something, so that names can be
/// chosen which belong together.
pub fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&b| b == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let end = rest.iter().position(|&b| b == b'}')?;
        (end > 0).then(|| &rest[..end])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS as u16
}

/// The slots of a request's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeySlot {
    /// There are no keys.
    #[default]
    None,
    /// They are all in this one.
    One(u16),
    /// They are in several.
    Several,
}

impl KeySlot {
    /// Those of two requests taken together.
    pub(crate) fn and(self, other: KeySlot) -> KeySlot {
        match (self, other) {
            (KeySlot::None, slot) | (slot, KeySlot::None) => slot,
            (one, other) if one == other => one,
            _ => KeySlot::Several,
        }
    }

    /// Those of a request; of one that is malformed there are none, and it will say so itself.
    pub(crate) fn of(command: &Command, request: Request<'_>) -> KeySlot {
        let mut slot = KeySlot::None;
        command.for_each_key(request, |at, _| slot = slot.and(KeySlot::One(slot_of(&request[at]))));
        slot
    }
}

/// One of the shards.
struct Shard {
    host: String,
    port: u16,
    /// The 40 hexadecimal digits that clients know it by: they follow from its address, so that all shards say the same.
    id: String,
}

/// The cluster, as one of its shards knows it.
pub struct Cluster {
    /// In the order of their slots.
    shards: Vec<Shard>,
    own: usize,
    /// The slots of this shard.
    own_slots: Range<usize>,
    /// The clients that carry what is published here to other shards.
    relays: BTreeSet<u32>,
}

/// A shard's address: what stands before the last colon, and the port behind it.
pub fn parse_address(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let port = port.parse().ok().filter(|&port| port > 0)?;
    (!host.is_empty() && host.chars().all(is_plain)).then_some((host, port))
}

impl Cluster {
    /// The cluster that the options describe, if they do, or what is wrong with them.
    pub(crate) fn new(options: &Options) -> Result<Option<Box<Cluster>>, String> {
        let own = usize::from(options.cluster_shard);
        let shards: Vec<Shard> = (options.cluster_shards.iter())
            .filter_map(|address| {
                let (host, port) = parse_address(address)?;
                let id = crate::scripting::name_of(address.as_bytes()).map(char::from).iter().collect();
                Some(Shard { host: host.into(), port, id })
            })
            .collect();
        let count = shards.len();
        if count == 0 && options.cluster_enabled {
            return Err("cluster-enabled needs cluster-shards, the addresses of all shards".into());
        }
        if count == 0 {
            return Ok(None);
        }
        if own >= count {
            return Err(format!(
                "cluster-shard is {own}, but cluster-shards names {count}, and they are counted from 0"
            ));
        }
        if shards.iter().map(|shard| &shard.id).collect::<BTreeSet<_>>().len() < count {
            return Err("cluster-shards names a shard twice".into());
        }
        let own_slots = slots_of(own, count);
        Ok(Some(Box::new(Cluster { shards, own, own_slots, relays: BTreeSet::new() })))
    }

    fn has(&self, slot: u16) -> bool {
        self.own_slots.contains(&usize::from(slot))
    }

    /// The slots of a shard.
    fn slots_of(&self, shard: usize) -> Range<usize> {
        slots_of(shard, self.shards.len())
    }

    /// Why a client's request is not for this shard.
    fn refusal(&self, command: &Command, request: Request<'_>) -> Option<Error> {
        match KeySlot::of(command, request) {
            KeySlot::Several => Some(CROSS_SLOT),
            KeySlot::One(slot) if !self.has(slot) => Some(self.moved(slot)),
            _ => None,
        }
    }

    /// Where clients find a slot that is not here.
    #[cold]
    fn moved(&self, slot: u16) -> Error {
        let has_it = |shard: &usize| self.slots_of(*shard).contains(&usize::from(slot));
        let shard = (0..self.shards.len()).find(has_it).unwrap_or(self.own);
        let Shard { host, port, .. } = &self.shards[shard];
        format!("MOVED {slot} {host}:{port}").into()
    }
}

/// The slots of one of so many shards: as equal shares as there are.
fn slots_of(shard: usize, count: usize) -> Range<usize> {
    shard * SLOTS / count..(shard + 1) * SLOTS / count
}

impl Context<'_> {
    /// Why a request may not run on this shard of a cluster.
    #[inline(always)]
    pub(crate) fn redirection(&self, command: &'static Command, request: Request<'_>) -> Option<Error> {
        if self.store.cluster.is_some() { self.redirection_in_cluster(command, request) } else { None }
    }

    #[inline(never)]
    fn redirection_in_cluster(&self, command: &'static Command, request: Request<'_>) -> Option<Error> {
        let cluster = self.store.cluster.as_deref()?;
        // Of all others it was asked when a client sent them.
        if self.origin == Origin::Client { cluster.refusal(command, request) } else { None }
    }
}

impl Store {
    /// Whether a plain request is for this store, as it mostly is.
    #[inline]
    pub(crate) fn has_keys_of(&self, command: &Command, request: Request<'_>) -> bool {
        self.cluster.as_deref().is_none_or(|cluster| cluster.refusal(command, request).is_none())
    }

    /// Why a script may not call a command on this shard of a cluster. `keys` are the slots that it has asked for, if all have
    /// to be the same.
    pub(crate) fn refusal_in_script(
        &self,
        command: &Command,
        request: Request<'_>,
        keys: &mut Option<KeySlot>,
    ) -> Option<Error> {
        const CROSS_SLOT: Error = Error::text("ERR Script attempted to access keys that do not hash to the same slot");
        const ELSEWHERE: Error = Error::text("ERR Script attempted to access a non local key in a cluster node");
        let cluster = self.cluster.as_deref()?;
        let slot = KeySlot::of(command, request);
        match slot {
            KeySlot::Several => return Some(CROSS_SLOT),
            KeySlot::One(slot) if !cluster.has(slot) => return Some(ELSEWHERE),
            _ => {}
        }
        let keys = keys.as_mut()?;
        *keys = keys.and(slot);
        (*keys == KeySlot::Several).then_some(CROSS_SLOT)
    }

    /// Says why a command that is about more than one shard's keys may not run, where this is one.
    pub(crate) fn refuse_in_cluster(&self, why: &str) -> Outcome {
        if self.cluster.is_some() { Err(format!("ERR {why}").into()) } else { Ok(()) }
    }

    /// The slots of a request's keys, in a cluster.
    pub(crate) fn key_slot(&self, request: Request<'_>) -> KeySlot {
        if self.cluster.is_none() {
            return KeySlot::None;
        }
        self.command_of(request).map_or(KeySlot::None, |command| KeySlot::of(command, request))
    }

    /// Makes sure that the data can be this shard's. A few keys of others' slots are left where they are, out of clients' reach.
    pub(crate) fn check_slots(&mut self) -> Result<(), String> {
        let Some(cluster) = self.cluster.as_deref() else { return Ok(()) };
        let mut misplaced = 0_u64;
        let now_ms = self.now.unix_ms();
        for db in &mut self.dbs {
            let mut cursor = 0;
            loop {
                cursor = db.scan(cursor, now_ms, |key, _| misplaced += u64::from(!cluster.has(slot_of(key))));
                if cursor == 0 {
                    break;
                }
            }
        }
        let (own, count) = (cluster.own, cluster.shards.len());
        if misplaced == 0 {
            return Ok(());
        }
        let text = format!(
            "{misplaced} keys here belong to other shards than number {own} of {count}: start it as the shard whose data these \
             are, or without cluster-shards, and have `redis-cli --cluster import` copy them, or delete them"
        );
        // So many mean another shard's disk, or another number of shards.
        if misplaced > self.all_keys() as u64 / STRAY_PART {
            return Err(text);
        }
        log::warn!("{text}");
        Ok(())
    }

    /// Tells those who carry messages to other shards what was published.
    pub(crate) fn tell_relays(&mut self, channel: &[u8], text: &[u8]) {
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        // Telling them changes nothing of this.
        let relays = core::mem::take(&mut cluster.relays);
        for slot in &relays {
            self.send(*slot, |writer| {
                crate::pubsub::message(writer, 3);
                [b"message", channel, text].iter().for_each(|part| writer.bulk(part));
            });
        }
        if let Some(cluster) = self.cluster.as_deref_mut() {
            cluster.relays = relays;
        }
    }

    /// Forgets a client that may have carried messages.
    pub(crate) fn forget_relay(&mut self, slot: u32) {
        if let Some(cluster) = self.cluster.as_deref_mut() {
            cluster.relays.remove(&slot);
        }
    }
}

/// What a cluster calls itself: `mode` of `HELLO` and `redis_mode` of `INFO`.
pub(crate) fn mode(store: &Store) -> &'static str {
    if store.cluster.is_some() { "cluster" } else { "standalone" }
}

const _: () = assert!(SLOTS.is_power_of_two(), "a share of them is one of the hash");
