//! The heap: arenas of objects that refer to each other by index, swept by mark and sweep.
//!
//! Nothing here is freed but by [`Heap::collect`], which the machine calls between two instructions only. So neither a
//! library function nor the host has to protect what it is building.

use crate::{
    op::Proto,
    table::{Hasher, Table},
    thread::Thread,
    value::{BoundRef, ClosureRef, NativeRef, StringRef, TableRef, ThreadRef, UpvalueRef, Value},
};
use alloc::{boxed::Box, rc::Rc, vec::Vec};
use core::{cell::Cell, hash::Hasher as _, ops};

/// The heap's limit is reached, or the system has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Free,
    White,
    Black,
}

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    items: Vec<T>,
    marks: Vec<Mark>,
    free: Vec<u32>,
}

impl<T: Default> Arena<T> {
    fn new() -> Arena<T> {
        Arena { items: Vec::new(), marks: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, item: T) -> Result<u32, OutOfMemory> {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = item;
            self.marks[index as usize] = Mark::White;
            return Ok(index);
        }
        let full = self.items.try_reserve(1).is_err() || self.marks.try_reserve(1).is_err();
        // References keep the highest bit for themselves.
        if full || self.items.len() >= (1 << 31) - 1 {
            return Err(OutOfMemory);
        }
        self.items.push(item);
        self.marks.push(Mark::White);
        Ok(self.items.len() as u32 - 1)
    }

    /// Marks an object; tells whether it was not marked before.
    fn mark(&mut self, index: u32) -> bool {
        let mark = &mut self.marks[index as usize];
        let is_new = *mark == Mark::White;
        if is_new {
            *mark = Mark::Black;
        }
        is_new
    }

    fn is_marked(&self, index: u32) -> bool {
        self.marks[index as usize] == Mark::Black
    }

    /// Frees what is not marked and returns the bytes that the rest takes.
    fn sweep(&mut self, bytes: impl Fn(&T) -> usize) -> usize {
        let mut live_bytes = 0;
        let len = self.marks.iter().rposition(|mark| *mark == Mark::Black).map_or(0, |last| last + 1);
        self.items.truncate(len);
        self.marks.truncate(len);
        if self.items.capacity() > len * 4 {
            self.items.shrink_to(len * 2);
            self.marks.shrink_to(len * 2);
            self.free = Vec::new();
        }
        self.free.clear();
        // The lowest free slots are used first, so that the arena can shrink again.
        for (index, mark) in self.marks.iter_mut().enumerate().rev() {
            match *mark {
                Mark::Black => {
                    *mark = Mark::White;
                    live_bytes += size_of::<T>() + bytes(&self.items[index]);
                    continue;
                }
                Mark::White => {
                    self.items[index] = T::default();
                    *mark = Mark::Free;
                }
                Mark::Free => {}
            }
            // Without room for its number a slot stays unused until the next collection.
            if self.free.try_reserve(1).is_ok() {
                self.free.push(index as u32);
            }
        }
        live_bytes
    }
}

impl<T> ops::Index<u32> for Arena<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.items[index as usize]
    }
}

impl<T> ops::IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.items[index as usize]
    }
}

/// A string's bytes.
#[derive(Debug, Default)]
pub(crate) struct LuaString {
    bytes: Box<[u8]>,
    /// Of a long string: 0 until it is first asked for.
    hash: Cell<u32>,
    /// The next string in the bucket of the intern table.
    next: u32,
}

/// A variable that closures share: a register of a running function, or on its own when that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upvalue {
    Open { thread: ThreadRef, slot: u32 },
    Closed(Value),
}

impl Default for Upvalue {
    fn default() -> Upvalue {
        Upvalue::Closed(Value::Nil)
    }
}

/// A function written in Lua, with its variables.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    pub proto: Rc<Proto>,
    pub upvalues: Box<[UpvalueRef]>,
    pub env: TableRef,
}

/// A library function with values of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    pub native: NativeRef,
    pub values: [Value; 3],
}

/// Strings up to this length are interned.
const SHORT_LIMIT_BYTES: usize = 40;
const NO_STRING: u32 = u32::MAX;
/// A power of two, like all numbers of buckets.
const BUCKETS_MIN: usize = 256;
/// Bytes that are allocated between two collections at least: about what the libraries take.
const COLLECTION_BYTES: usize = 32 << 10;

/// Where all objects of a machine are.
#[derive(Debug)]
pub struct Heap {
    pub(crate) strings: Arena<LuaString>,
    pub(crate) tables: Arena<Table>,
    pub(crate) closures: Arena<Closure>,
    pub(crate) upvalues: Arena<Upvalue>,
    pub(crate) bounds: Arena<Bound>,
    pub(crate) threads: Arena<Thread>,
    buckets: Vec<u32>,
    strings_interned: usize,
    key: [u64; 2],
    pub(crate) hasher: Hasher,
    used_bytes: usize,
    limit_bytes: usize,
    /// A collection is due when this many bytes are in use.
    collect_at_bytes: usize,
    /// A value greater than any constant's mark of an earlier collection.
    epoch: u32,
    gray: Vec<Value>,
    weak: Vec<TableRef>,
}

impl Heap {
    pub(crate) fn new(limit_bytes: usize, seed: [u64; 2]) -> Heap {
        Heap {
            strings: Arena::new(),
            tables: Arena::new(),
            closures: Arena::new(),
            upvalues: Arena::new(),
            bounds: Arena::new(),
            threads: Arena::new(),
            buckets: Vec::new(),
            strings_interned: 0,
            key: seed,
            hasher: Hasher::new(seed[0] ^ seed[1].rotate_left(32)),
            used_bytes: 0,
            limit_bytes,
            collect_at_bytes: COLLECTION_BYTES,
            epoch: 0,
            gray: Vec::new(),
            weak: Vec::new(),
        }
    }

    /// Bytes that all objects take.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Changes the most bytes that objects may take.
    pub fn set_limit_bytes(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    #[inline]
    pub(crate) fn is_collection_due(&self) -> bool {
        self.used_bytes >= self.collect_at_bytes
    }

    /// Accounts for bytes that are about to be allocated.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let used_bytes = self.used_bytes.saturating_add(bytes);
        if used_bytes > self.limit_bytes {
            // What is garbage may go before the next allocation.
            self.collect_at_bytes = 0;
            return Err(OutOfMemory);
        }
        self.used_bytes = used_bytes;
        Ok(())
    }

    /// Refuses what could never fit, before it is built piece by piece.
    pub(crate) fn check_room(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        self.charge(bytes)?;
        self.used_bytes -= bytes;
        Ok(())
    }

    /// Accounts for bytes that are allocated already.
    pub(crate) fn account(&mut self, bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_add(bytes);
    }

    pub(crate) fn discharge(&mut self, bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
    }

    fn hash_of(&self, bytes: &[u8]) -> u32 {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(self.key[0], self.key[1]);
        hasher.write(bytes);
        hasher.finish() as u32
    }

    /// The string of these bytes.
    pub fn string(&mut self, bytes: &[u8]) -> Result<StringRef, OutOfMemory> {
        if bytes.len() > SHORT_LIMIT_BYTES {
            return self.add_string(boxed(bytes)?, 0, true);
        }
        let hash = self.hash_of(bytes);
        if let Some(found) = self.find_interned(bytes, hash) {
            return Ok(found);
        }
        let string = boxed(bytes)?;
        self.add_string(string, hash, false)
    }

    /// The string of these bytes, which are not copied if they are many.
    pub fn string_from(&mut self, bytes: Vec<u8>) -> Result<StringRef, OutOfMemory> {
        if bytes.len() > SHORT_LIMIT_BYTES {
            return self.add_string(bytes.into_boxed_slice(), 0, true);
        }
        self.string(&bytes)
    }

    /// The interned string of these bytes, if there is one.
    pub(crate) fn interned(&self, bytes: &[u8]) -> Option<StringRef> {
        if bytes.len() > SHORT_LIMIT_BYTES { None } else { self.find_interned(bytes, self.hash_of(bytes)) }
    }

    fn find_interned(&self, bytes: &[u8], hash: u32) -> Option<StringRef> {
        let bucket = hash as usize & self.buckets.len().wrapping_sub(1);
        let mut at = *self.buckets.get(bucket)?;
        while at != NO_STRING {
            let string = &self.strings[at];
            if string.hash.get() == hash && *string.bytes == *bytes {
                return Some(StringRef::new(at, false));
            }
            at = string.next;
        }
        None
    }

    fn add_string(&mut self, bytes: Box<[u8]>, hash: u32, is_long: bool) -> Result<StringRef, OutOfMemory> {
        self.charge(size_of::<LuaString>() + bytes.len())?;
        if !is_long && self.strings_interned >= self.buckets.len() {
            self.grow_buckets()?;
        }
        let index = self.strings.insert(LuaString { bytes, hash: Cell::new(hash), next: NO_STRING })?;
        if !is_long {
            let bucket = hash as usize & (self.buckets.len() - 1);
            self.strings[index].next = core::mem::replace(&mut self.buckets[bucket], index);
            self.strings_interned += 1;
        }
        Ok(StringRef::new(index, is_long))
    }

    fn grow_buckets(&mut self) -> Result<(), OutOfMemory> {
        let len = (self.buckets.len() * 2).max(BUCKETS_MIN);
        let mut buckets = Vec::new();
        buckets.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
        buckets.resize(len, NO_STRING);
        for bucket in core::mem::take(&mut self.buckets) {
            let mut at = bucket;
            while at != NO_STRING {
                let string = &mut self.strings[at];
                let next = string.next;
                string.next = core::mem::replace(&mut buckets[string.hash.get() as usize & (len - 1)], at);
                at = next;
            }
        }
        self.buckets = buckets;
        Ok(())
    }

    /// The bytes of a string.
    #[inline]
    pub fn bytes(&self, string: StringRef) -> &[u8] {
        &self.strings[string.index()].bytes
    }

    /// A string's hash as a key of a table.
    #[inline]
    pub(crate) fn string_hash(&self, string: StringRef) -> u32 {
        if !string.is_long() {
            return string.0;
        }
        let found = &self.strings[string.index()];
        if found.hash.get() == 0 {
            found.hash.set(self.hash_of(&found.bytes));
        }
        found.hash.get()
    }

    /// Equality without metamethods.
    #[inline]
    pub fn raw_equal(&self, a: Value, b: Value) -> bool {
        match (a, b) {
            (Value::Nil, Value::Nil) => true,
            (Value::Boolean(a), Value::Boolean(b)) => a == b,
            (Value::Number(a), Value::Number(b)) => a == b,
            (Value::String(a), Value::String(b)) => self.strings_equal(a, b),
            (Value::Table(a), Value::Table(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Native(a), Value::Native(b)) => a == b,
            (Value::Bound(a), Value::Bound(b)) => a == b,
            (Value::Thread(a), Value::Thread(b)) => a == b,
            (Value::Light(a), Value::Light(b)) => a == b,
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn strings_equal(&self, a: StringRef, b: StringRef) -> bool {
        a == b || (a.is_long() && b.is_long() && self.bytes(a) == self.bytes(b))
    }

    /// A new table with room for so many elements and fields.
    pub fn table(&mut self, elements: usize, fields: usize) -> Result<TableRef, OutOfMemory> {
        self.charge(size_of::<Table>() + Table::room_bytes(elements, fields))?;
        let table = Table::with_room(elements, fields)?;
        Ok(TableRef(self.tables.insert(table)?))
    }

    /// Gives a table a metatable.
    pub fn set_metatable(&mut self, table: TableRef, meta: TableRef) {
        self.tables[table.0].meta = Some(meta);
    }

    pub(crate) fn closure(&mut self, closure: Closure) -> Result<ClosureRef, OutOfMemory> {
        self.charge(size_of::<Closure>() + size_of_val(&*closure.upvalues))?;
        Ok(ClosureRef(self.closures.insert(closure)?))
    }

    pub(crate) fn upvalue(&mut self, upvalue: Upvalue) -> Result<UpvalueRef, OutOfMemory> {
        self.charge(size_of::<Upvalue>())?;
        Ok(UpvalueRef(self.upvalues.insert(upvalue)?))
    }

    pub(crate) fn bound(&mut self, native: NativeRef, values: [Value; 3]) -> Result<BoundRef, OutOfMemory> {
        self.charge(size_of::<Bound>())?;
        Ok(BoundRef(self.bounds.insert(Bound { native, values })?))
    }

    pub(crate) fn thread(&mut self, thread: Thread) -> Result<ThreadRef, OutOfMemory> {
        self.charge(size_of::<Thread>() + thread.bytes())?;
        Ok(ThreadRef(self.threads.insert(thread)?))
    }

    /// Starts a collection. What is in use is then named by [`mark`](Self::mark), and [`sweep`](Self::sweep) frees the
    /// rest.
    pub(crate) fn begin_collection(&mut self) {
        self.epoch = self.epoch.wrapping_add(1).max(1);
        self.gray.clear();
        self.weak.clear();
        self.used_bytes = 0;
    }

    #[inline]
    pub(crate) fn mark(&mut self, value: Value) {
        let is_new = match value {
            Value::String(string) => {
                self.strings.mark(string.index());
                false
            }
            Value::Table(table) => self.tables.mark(table.0),
            Value::Function(closure) => self.closures.mark(closure.0),
            Value::Bound(bound) => self.bounds.mark(bound.0),
            Value::Thread(thread) => self.threads.mark(thread.0),
            Value::Nil | Value::Boolean(_) | Value::Number(_) | Value::Native(_) | Value::Light(_) => false,
        };
        if is_new {
            self.gray.push(value);
        }
    }

    pub(crate) fn mark_upvalue(&mut self, upvalue: UpvalueRef) {
        if self.upvalues.mark(upvalue.0) {
            match self.upvalues[upvalue.0] {
                Upvalue::Closed(value) => self.mark(value),
                Upvalue::Open { thread, .. } => self.mark(Value::Thread(thread)),
            }
        }
    }

    /// Marks all that the marked objects refer to.
    pub(crate) fn propagate(&mut self, mode_key: StringRef) {
        while let Some(value) = self.gray.pop() {
            match value {
                Value::Table(table) => self.mark_table(table, mode_key),
                Value::Function(closure) => {
                    let Closure { proto, upvalues, env } = core::mem::take(&mut self.closures[closure.0]);
                    self.mark(Value::Table(env));
                    upvalues.iter().for_each(|upvalue| self.mark_upvalue(*upvalue));
                    self.mark_proto(&proto);
                    self.closures[closure.0] = Closure { proto, upvalues, env };
                }
                Value::Bound(bound) => self.bounds[bound.0].values.into_iter().for_each(|value| self.mark(value)),
                Value::Thread(thread) => {
                    let mut taken = core::mem::take(&mut self.threads[thread.0]);
                    taken.mark(self);
                    self.threads[thread.0] = taken;
                }
                _ => {}
            }
        }
    }

    fn mark_proto(&mut self, proto: &Proto) {
        // Functions nest no deeper than the parser allows.
        if proto.epoch.replace(self.epoch) != self.epoch {
            self.used_bytes += proto.bytes();
            proto.constants.iter().for_each(|value| self.mark(*value));
            proto.names().for_each(|name| self.mark(Value::String(name)));
            proto.protos.iter().for_each(|inner| self.mark_proto(inner));
        }
    }

    fn mark_table(&mut self, at: TableRef, mode_key: StringRef) {
        let table = core::mem::take(&mut self.tables[at.0]);
        let (mut weak_keys, mut weak_values) = (false, false);
        if let Some(meta) = table.meta {
            self.mark(Value::Table(meta));
            if let Value::String(mode) = self.tables[meta.0].get_short(self.hasher, mode_key) {
                let mode = self.bytes(mode);
                (weak_keys, weak_values) = (mode.contains(&b'k'), mode.contains(&b'v'));
            }
        }
        if weak_keys || weak_values {
            self.weak.push(at);
        }
        if !weak_values {
            table.array.iter().for_each(|value| self.mark(*value));
        }
        for node in table.nodes.iter().filter(|node| !node.value.is_nil()) {
            if !weak_keys || matches!(node.key, Value::String(_)) {
                self.mark(node.key);
            }
            if !weak_values || matches!(node.value, Value::String(_)) {
                self.mark(node.value);
            }
        }
        self.tables[at.0] = table;
    }

    fn is_dead(&self, value: Value) -> bool {
        match value {
            Value::String(string) => !self.strings.is_marked(string.index()),
            Value::Table(table) => !self.tables.is_marked(table.0),
            Value::Function(closure) => !self.closures.is_marked(closure.0),
            Value::Bound(bound) => !self.bounds.is_marked(bound.0),
            Value::Thread(thread) => !self.threads.is_marked(thread.0),
            Value::Nil | Value::Boolean(_) | Value::Number(_) | Value::Native(_) | Value::Light(_) => false,
        }
    }

    fn clear_weak(&mut self) {
        for at in core::mem::take(&mut self.weak) {
            let mut table = core::mem::take(&mut self.tables[at.0]);
            for value in &mut table.array {
                match *value {
                    // Strings are values, not objects: they never go from a weak table.
                    Value::String(string) => _ = self.strings.mark(string.index()),
                    other if self.is_dead(other) => *value = Value::Nil,
                    _ => {}
                }
            }
            for node in &mut table.nodes {
                if self.is_dead(node.key) || self.is_dead(node.value) {
                    node.value = Value::Nil;
                }
            }
            self.tables[at.0] = table;
        }
    }

    /// Frees what is not marked.
    pub(crate) fn sweep(&mut self) {
        self.clear_weak();
        let buckets = &mut self.buckets;
        if buckets.len() > BUCKETS_MIN && self.strings_interned < buckets.len() / 8 {
            buckets.truncate(buckets.len() / 4);
            buckets.shrink_to_fit();
        }
        // Buckets are rebuilt of what is left: to unlink single strings would need their predecessors.
        buckets.fill(NO_STRING);
        let mut interned = 0;
        for index in 0..self.strings.items.len() {
            let string = &mut self.strings.items[index];
            if self.strings.marks[index] == Mark::Black && string.bytes.len() <= SHORT_LIMIT_BYTES {
                let bucket = string.hash.get() as usize & (buckets.len() - 1);
                string.next = core::mem::replace(&mut buckets[bucket], index as u32);
                interned += 1;
            }
        }
        self.strings_interned = interned;
        let mut bytes = self.strings.sweep(|string| string.bytes.len());
        bytes += self.tables.sweep(Table::extra_bytes);
        bytes += self.closures.sweep(|closure| size_of_val(&*closure.upvalues));
        bytes += self.upvalues.sweep(|_| 0);
        bytes += self.bounds.sweep(|_| 0);
        bytes += self.threads.sweep(Thread::bytes);
        self.used_bytes += bytes;
        // A collection looks at free slots as well: they have to be worth it.
        let slots = self.strings.items.len() + self.tables.items.len() + self.closures.items.len();
        let slots_bytes = slots * size_of::<Value>();
        // Twice what is in use, but where the limit is near half of the room: garbage must not make a script fail.
        let doubled = self.used_bytes + self.used_bytes.max(slots_bytes).max(COLLECTION_BYTES);
        let halfway = self.used_bytes + self.limit_bytes.saturating_sub(self.used_bytes) / 2;
        self.collect_at_bytes = doubled.min(halfway.max(self.used_bytes + 1));
    }
}

fn boxed(bytes: &[u8]) -> Result<Box<[u8]>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| OutOfMemory)?;
    copy.extend_from_slice(bytes);
    Ok(copy.into_boxed_slice())
}
