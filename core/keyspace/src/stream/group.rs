//! Groups of consumers that share a stream's entries.

use super::StreamId;
use crate::{
    Direction, OutOfMemory,
    ordered::{Item, Tree},
    record::copied,
};
use alloc::vec::Vec;
use core::ops::ControlFlow;

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The entry, which may be removed by now.
    pub id: StreamId,
    /// The place of the consumer that has it.
    pub consumer: u32,
    /// When it was delivered last, in milliseconds since 1970.
    pub delivered_ms: u64,
    /// How often it was delivered.
    pub deliveries: u64,
}

impl Item for Pending {
    type Key = StreamId;
    fn key(&self) -> StreamId {
        self.id
    }
}

/// A consumer of a group.
pub struct Consumer {
    name: Vec<u8>,
    /// When it last asked for something, in milliseconds since 1970.
    pub seen_ms: u64,
    /// When it last got something.
    pub active_ms: Option<u64>,
    /// What is pending for it.
    pending: Tree<StreamId>,
}

/// A group.
pub struct Group {
    name: Vec<u8>,
    /// The last entry that was delivered.
    pub last_id: StreamId,
    /// How many entries were ever added up to that one, if that is known.
    pub entries_read: Option<u64>,
    pending: Tree<Pending>,
    /// Consumers stay at their place.
    consumers: Vec<Option<Consumer>>,
    /// The places of the consumers, by name.
    by_name: Vec<u32>,
}

/// Shows items from a key on until `visit` breaks.
fn visit_from<T: Item<Key = StreamId>>(tree: &Tree<T>, start: StreamId, visit: impl FnMut(&T) -> ControlFlow<()>) {
    tree.visit(tree.rank(|id| id < start), Direction::Forward, visit);
}

fn copy_tree<T: Item<Key = StreamId> + Copy>(tree: &Tree<T>) -> Result<Tree<T>, OutOfMemory> {
    let mut copy = Tree::new();
    let mut result = Ok(());
    tree.visit(0, Direction::Forward, |&item| {
        result = copy.push_back(item);
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result.map(|()| copy)
}

impl Consumer {
    #[allow(missing_docs)]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Number of entries that are pending for it.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Shows the entries that are pending for it, from an ID on, until `visit` breaks.
    pub fn visit_pending(&self, start: StreamId, mut visit: impl FnMut(StreamId) -> ControlFlow<()>) {
        visit_from(&self.pending, start, |&id| visit(id));
    }
}

impl Group {
    pub(super) fn new(name: &[u8], last_id: StreamId, entries_read: Option<u64>) -> Result<Group, OutOfMemory> {
        Ok(Group {
            name: copied(name)?,
            last_id,
            entries_read,
            pending: Tree::new(),
            consumers: Vec::new(),
            by_name: Vec::new(),
        })
    }

    #[allow(missing_docs)]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Number of entries that are pending.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// What is known of an entry that is pending.
    pub fn pending(&self, id: StreamId) -> Option<Pending> {
        self.pending.find(|key| key.cmp(&id)).copied()
    }

    /// The first or last one that is pending.
    pub fn pending_end(&self, direction: Direction) -> Option<Pending> {
        let mut found = None;
        self.pending.visit(0, direction, |&pending| {
            found = Some(pending);
            ControlFlow::Break(())
        });
        found
    }

    /// The first one that is pending from an ID on.
    pub fn next_pending(&self, start: StreamId) -> Option<Pending> {
        self.pending.get(self.pending.rank(|id| id < start)).copied()
    }

    /// Shows the entries that are pending from an ID on, until `visit` breaks.
    pub fn visit_pending(&self, start: StreamId, mut visit: impl FnMut(Pending) -> ControlFlow<()>) {
        visit_from(&self.pending, start, |&pending| visit(pending));
    }

    /// The consumers, by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> + DoubleEndedIterator {
        self.by_name.iter().map(|&place| self.consumer(place))
    }

    /// The consumer at a place.
    pub fn consumer(&self, place: u32) -> &Consumer {
        self.consumers[place as usize].as_ref().expect("only places of consumers are kept")
    }

    /// The consumer at a place, to change.
    pub fn consumer_mut(&mut self, place: u32) -> &mut Consumer {
        self.consumers[place as usize].as_mut().expect("only places of consumers are kept")
    }

    fn rank_of(&self, name: &[u8]) -> Result<usize, usize> {
        self.by_name.binary_search_by(|&place| self.consumer(place).name().cmp(name))
    }

    /// The place of the consumer of this name.
    pub fn find_consumer(&self, name: &[u8]) -> Option<u32> {
        self.rank_of(name).ok().map(|rank| self.by_name[rank])
    }

    /// Makes a consumer where there is none of this name. Returns its place, and whether it is new.
    pub fn add_consumer(&mut self, name: &[u8], now_ms: u64) -> Result<(u32, bool), OutOfMemory> {
        let rank = match self.rank_of(name) {
            Ok(rank) => return Ok((self.by_name[rank], false)),
            Err(rank) => rank,
        };
        let consumer = Consumer { name: copied(name)?, seen_ms: now_ms, active_ms: None, pending: Tree::new() };
        self.by_name.try_reserve(1)?;
        let is_full = self.by_name.len() == self.consumers.len();
        let vacant = if is_full { None } else { self.consumers.iter().position(Option::is_none) };
        if vacant.is_none() {
            self.consumers.try_reserve(1)?;
            self.consumers.push(None);
        }
        let place = vacant.unwrap_or(self.consumers.len() - 1);
        self.consumers[place] = Some(consumer);
        self.by_name.insert(rank, place as u32);
        Ok((place as u32, true))
    }

    /// Removes a consumer with what is pending for it. Returns how much that was, if there was one.
    pub fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let place = self.by_name.remove(self.rank_of(name).ok()?);
        let consumer = self.consumers[place as usize].take().expect("only places of consumers are kept");
        consumer.pending.for_each(|&id| _ = self.pending.remove(|key| key.cmp(&id)));
        Some(consumer.pending.len())
    }

    /// Notes that an entry was delivered to a consumer, whoever had it before.
    pub fn deliver(&mut self, new: Pending) -> Result<(), OutOfMemory> {
        let id = new.id;
        let compare = |key: StreamId| key.cmp(&id);
        let old = self.pending(id);
        if old.is_none_or(|old| old.consumer != new.consumer) {
            self.consumer_mut(new.consumer).pending.insert(id, compare)?;
        }
        match old {
            Some(old) => {
                if old.consumer != new.consumer {
                    self.consumer_mut(old.consumer).pending.remove(compare);
                }
                *self.pending.find_mut(compare).expect("it was found") = new;
                Ok(())
            }
            None => self.pending.insert(new, compare).inspect_err(|_| {
                self.consumers[new.consumer as usize].as_mut().and_then(|consumer| consumer.pending.remove(compare));
            }),
        }
    }

    /// Takes over what is pending in another group, for the consumers of the same names.
    #[cold]
    pub(super) fn take_pending_of(&mut self, other: &Group) -> Result<(), OutOfMemory> {
        let mut result = Ok(());
        other.visit_pending(StreamId::MIN, |pending| {
            let consumer = other.consumer(pending.consumer);
            result = self.add_consumer(consumer.name(), consumer.seen_ms).and_then(|(place, is_new)| {
                if is_new {
                    self.consumer_mut(place).active_ms = consumer.active_ms;
                }
                self.deliver(Pending { consumer: place, ..pending })
            });
            if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        result
    }

    /// Forgets an entry. Returns whether it was pending.
    pub fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(|key| key.cmp(&id)) else { return false };
        self.consumer_mut(pending.consumer).pending.remove(|key| key.cmp(&id));
        true
    }

    /// Bytes of all of it.
    pub(super) fn bytes(&self) -> usize {
        let consumers =
            self.consumers.iter().flatten().map(|consumer| consumer.name.capacity() + consumer.pending.bytes());
        self.name.capacity()
            + self.pending.bytes()
            + self.consumers.capacity() * size_of::<Option<Consumer>>()
            + self.by_name.capacity() * size_of::<u32>()
            + consumers.sum::<usize>()
    }

    /// Frees about `limit` pending entries, as [`super::Stream::free`] does.
    pub(super) fn free(&mut self, limit: usize) -> Option<usize> {
        let mut budget = self.pending.drain(limit, |_| ())?;
        while let Some(consumer) = self.consumers.last_mut() {
            if let Some(consumer) = consumer {
                budget = consumer.pending.drain(budget, |_| ())?;
            }
            self.consumers.pop();
        }
        Some(budget)
    }

    pub(super) fn copy(&self) -> Result<Group, OutOfMemory> {
        let mut copy = Group::new(&self.name, self.last_id, self.entries_read)?;
        copy.pending = copy_tree(&self.pending)?;
        copy.by_name.try_reserve_exact(self.by_name.len())?;
        copy.by_name.extend_from_slice(&self.by_name);
        copy.consumers.try_reserve_exact(self.consumers.len())?;
        for consumer in &self.consumers {
            copy.consumers.push(match consumer {
                Some(consumer) => {
                    let (name, pending) = (copied(&consumer.name)?, copy_tree(&consumer.pending)?);
                    Some(Consumer { name, pending, ..*consumer })
                }
                None => None,
            });
        }
        Ok(copy)
    }
}
