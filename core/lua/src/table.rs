//! Tables: an array of the elements 1 to n, and a hash of all else.
//!
//! The hash is a chained scatter table: collisions are chained through the free nodes of the same array, and a key that
//! is not in its main position gives way to one whose main position that is (Brent's variation).

use crate::{
    heap::{Heap, OutOfMemory},
    value::{StringRef, TableRef, Value},
};
use alloc::vec::Vec;

/// The table's position of a key: multiplication by a secret odd number, which is universal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher(u64);

impl Hasher {
    pub fn new(seed: u64) -> Hasher {
        // Any seed is to give many bits on both sides (the finalizer of SplitMix64).
        let mixed = (seed ^ seed >> 30).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Hasher((mixed ^ mixed >> 31) | 1)
    }

    #[inline]
    fn position(self, key: u64, nodes: usize) -> usize {
        (key.wrapping_mul(self.0) >> 32) as usize & nodes.wrapping_sub(1)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub key: Value,
    pub value: Value,
    next: u32,
}

const NO_NODE: u32 = u32::MAX;
const EMPTY: Node = Node { key: Value::Nil, value: Value::Nil, next: NO_NODE };
/// Arrays that are not filled in order have at most two to this power elements.
const ARRAY_LIMIT_BITS: usize = 26;
/// From this length on an array that grows is checked for being mostly empty.
const SPARSE_CHECK_LEN: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub array: Vec<Value>,
    /// None, or a power of two.
    pub nodes: Vec<Node>,
    /// All nodes from here on have been used.
    free_below: u32,
    pub meta: Option<TableRef>,
    /// Bits of metamethods that this table, as a metatable, is known to lack.
    pub lacks: u32,
    pub is_readonly: bool,
}

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetError {
    NilKey,
    NanKey,
    OutOfMemory,
}

impl From<OutOfMemory> for SetError {
    fn from(_: OutOfMemory) -> SetError {
        SetError::OutOfMemory
    }
}

/// The position in an array that a key names, counted from 0.
#[inline]
fn array_position(number: f64) -> Option<usize> {
    let index = number as i64;
    (index as f64 == number && index > 0).then(|| (index - 1) as usize)
}

impl Table {
    pub fn with_room(elements: usize, fields: usize) -> Result<Table, OutOfMemory> {
        let mut table = Table::default();
        table.array.try_reserve_exact(elements).map_err(|_| OutOfMemory)?;
        if fields > 0 {
            table.nodes = empty_nodes(fields.next_power_of_two())?;
            table.free_below = table.nodes.len() as u32;
        }
        Ok(table)
    }

    pub fn room_bytes(elements: usize, fields: usize) -> usize {
        let nodes = if fields > 0 { fields.next_power_of_two() } else { 0 };
        elements.saturating_mul(size_of::<Value>()).saturating_add(nodes.saturating_mul(size_of::<Node>()))
    }

    pub fn extra_bytes(&self) -> usize {
        self.array.capacity() * size_of::<Value>() + self.nodes.capacity() * size_of::<Node>()
    }

    /// The value at an interned string.
    #[inline]
    pub fn get_short(&self, hasher: Hasher, key: StringRef) -> Value {
        let mut at = hasher.position(key.0.into(), self.nodes.len());
        while let Some(node) = self.nodes.get(at) {
            if matches!(node.key, Value::String(string) if string == key) {
                return node.value;
            }
            at = node.next as usize;
        }
        Value::Nil
    }

    /// The place of the value at an interned string.
    #[inline]
    pub fn short_mut(&mut self, hasher: Hasher, key: StringRef) -> Option<&mut Value> {
        let mut at = hasher.position(key.0.into(), self.nodes.len());
        loop {
            let node = self.nodes.get(at)?;
            if matches!(node.key, Value::String(string) if string == key) {
                return Some(&mut self.nodes[at].value);
            }
            at = node.next as usize;
        }
    }

    /// The place of the element that a number names, if it is in the array.
    #[inline]
    pub fn element_mut(&mut self, number: f64) -> Option<&mut Value> {
        self.array.get_mut(array_position(number)?)
    }

    /// A border: a number n with t\[n\] not nil and t\[n+1\] nil. The array never ends right before an element of the
    /// hash.
    pub fn len(&self) -> usize {
        match self.array.last() {
            Some(Value::Nil) => {
                let (mut low, mut high) = (0, self.array.len());
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if self.array[middle - 1].is_nil() { high = middle } else { low = middle }
                }
                low
            }
            _ => self.array.len(),
        }
    }
}

fn empty_nodes(len: usize) -> Result<Vec<Node>, OutOfMemory> {
    let mut nodes = Vec::new();
    nodes.try_reserve_exact(len).map_err(|_| OutOfMemory)?;
    nodes.resize(len, EMPTY);
    Ok(nodes)
}

impl Heap {
    fn position(&self, key: Value, nodes: usize) -> usize {
        let bits = match key {
            Value::String(string) => self.string_hash(string).into(),
            Value::Number(number) => {
                // -0 equals 0. The upper half is folded in since multiplication carries upwards only.
                let bits = (number + 0.0).to_bits();
                bits ^ (bits >> 32)
            }
            Value::Boolean(boolean) => boolean.into(),
            Value::Table(TableRef(index)) => 1 << 32 | u64::from(index),
            Value::Function(closure) => 2 << 32 | u64::from(closure.0),
            Value::Native(native) => 3 << 32 | u64::from(native.0),
            Value::Bound(bound) => 4 << 32 | u64::from(bound.0),
            Value::Thread(thread) => 5 << 32 | u64::from(thread.0),
            Value::Light(number) => 6 << 32 | u64::from(number),
            Value::Nil => 0,
        };
        self.hasher.position(bits, nodes)
    }

    fn find_node(&self, table: &Table, key: Value) -> Option<usize> {
        let mut at = self.position(key, table.nodes.len());
        loop {
            let node = table.nodes.get(at)?;
            if self.raw_equal(node.key, key) {
                return Some(at);
            }
            at = node.next as usize;
        }
    }

    /// `table[key]` without metamethods.
    #[inline]
    pub fn get(&self, table: TableRef, key: Value) -> Value {
        let table = &self.tables[table.0];
        match key {
            Value::String(string) if !string.is_long() => table.get_short(self.hasher, string),
            Value::Number(number) => {
                if let Some(value) = array_position(number).and_then(|at| table.array.get(at)) {
                    return *value;
                }
                if table.nodes.is_empty() {
                    return Value::Nil;
                }
                self.find_node(table, key).map_or(Value::Nil, |at| table.nodes[at].value)
            }
            Value::Nil => Value::Nil,
            _ => self.find_node(table, key).map_or(Value::Nil, |at| table.nodes[at].value),
        }
    }

    /// The value at a string key, without metamethods.
    pub fn get_str(&self, table: TableRef, key: &str) -> Value {
        // A key that is nowhere interned, and short, is in no table.
        match self.interned(key.as_bytes()) {
            Some(key) => self.get(table, Value::String(key)),
            None => Value::Nil,
        }
    }

    /// The element at an index, without metamethods.
    #[inline]
    pub fn get_index(&self, table: TableRef, index: usize) -> Value {
        match index.checked_sub(1).and_then(|at| self.tables[table.0].array.get(at)) {
            Some(value) => *value,
            None => self.get(table, Value::Number(index as f64)),
        }
    }

    /// The length by `#`, without metamethods.
    pub fn len_of(&self, table: TableRef) -> usize {
        self.tables[table.0].len()
    }

    /// `table[key] = value` without metamethods.
    pub(crate) fn set(&mut self, at: TableRef, key: Value, value: Value) -> Result<(), SetError> {
        let table = &mut self.tables[at.0];
        if let Value::Number(number) = key {
            match array_position(number) {
                Some(position) if position < table.array.len() => {
                    table.array[position] = value;
                    return Ok(());
                }
                Some(position) if position == table.array.len() => {
                    return if value.is_nil() { Ok(()) } else { Ok(self.push(at, value)?) };
                }
                _ if number.is_nan() => return Err(SetError::NanKey),
                _ => {}
            }
        }
        if key.is_nil() {
            return Err(SetError::NilKey);
        }
        let table = &self.tables[at.0];
        match self.find_node(table, key) {
            Some(found) => {
                let table = &mut self.tables[at.0];
                // A field that comes to be may be a metamethod.
                table.lacks = 0;
                table.nodes[found].value = value;
            }
            None if value.is_nil() => {}
            None => self.add(at, key, value)?,
        }
        Ok(())
    }

    /// Sets a field.
    pub fn set_str(&mut self, table: TableRef, key: &str, value: Value) -> Result<(), OutOfMemory> {
        let key = self.string(key.as_bytes())?;
        self.set(table, Value::String(key), value).map_err(|_| OutOfMemory)
    }

    /// Sets a field whose key is neither `nil` nor NaN.
    pub fn set_field(&mut self, table: TableRef, key: Value, value: Value) -> Result<(), OutOfMemory> {
        self.set(table, key, value).map_err(|_| OutOfMemory)
    }

    /// Sets an element.
    pub fn set_index(&mut self, table: TableRef, index: usize, value: Value) -> Result<(), OutOfMemory> {
        self.set(table, Value::Number(index as f64), value).map_err(|_| OutOfMemory)
    }

    /// Appends to the array part, and moves over what followed in the hash.
    pub fn push(&mut self, at: TableRef, value: Value) -> Result<(), OutOfMemory> {
        self.push_one(at, value)?;
        self.take_following(at)
    }

    /// Moves what follows the end of the array from the hash to it.
    fn take_following(&mut self, at: TableRef) -> Result<(), OutOfMemory> {
        while !self.tables[at.0].nodes.is_empty() {
            let table = &self.tables[at.0];
            let Some(node) = self.find_node(table, Value::Number((table.array.len() + 1) as f64)) else { break };
            let next = core::mem::take(&mut self.tables[at.0].nodes[node].value);
            if next.is_nil() {
                break;
            }
            self.push_one(at, next)?;
        }
        Ok(())
    }

    #[inline]
    fn push_one(&mut self, at: TableRef, value: Value) -> Result<(), OutOfMemory> {
        let table = &mut self.tables[at.0];
        let len = table.array.len();
        if len == table.array.capacity() {
            if len >= SPARSE_CHECK_LEN && self.spill(at)? {
                return self.add(at, Value::Number((len + 1) as f64), value);
            }
            let more = len.max(4);
            self.charge(more * size_of::<Value>())?;
            self.tables[at.0].array.try_reserve_exact(more).map_err(|_| OutOfMemory)?;
        }
        self.tables[at.0].array.push(value);
        Ok(())
    }

    /// Moves an array that is mostly empty, as a queue's is after a while, to the hash. Tells whether it did.
    fn spill(&mut self, at: TableRef) -> Result<bool, OutOfMemory> {
        let table = &self.tables[at.0];
        let elements = table.array.iter().filter(|value| !value.is_nil()).count();
        // Element 1 could not stay in the hash: it would follow the end of the array, which is empty then.
        if elements > table.array.len() / 4 || !table.array[0].is_nil() {
            return Ok(false);
        }
        let array = core::mem::take(&mut self.tables[at.0].array);
        self.discharge(array.capacity() * size_of::<Value>());
        for (position, value) in array.iter().enumerate().filter(|(_, value)| !value.is_nil()) {
            self.add(at, Value::Number((position + 1) as f64), *value)?;
        }
        Ok(true)
    }

    /// Adds a key that the hash does not hold.
    fn add(&mut self, at: TableRef, key: Value, value: Value) -> Result<(), OutOfMemory> {
        self.tables[at.0].lacks = 0;
        if self.place(at, key, value) {
            return Ok(());
        }
        self.rehash(at, key)?;
        if let Value::Number(number) = key
            && let Some(place) = self.tables[at.0].element_mut(number)
        {
            *place = value;
            return self.take_following(at);
        }
        let placed = self.place(at, key, value);
        assert!(placed, "a hash has room after it has grown");
        Ok(())
    }

    /// Puts a new key into the hash if there is a free node.
    fn place(&mut self, at: TableRef, key: Value, value: Value) -> bool {
        let table = &self.tables[at.0];
        let len = table.nodes.len();
        if len == 0 {
            return false;
        }
        let main = self.position(key, len);
        if table.nodes[main].value.is_nil() {
            // Free, or dead: its place in another key's chain stays.
            let node = &mut self.tables[at.0].nodes[main];
            (node.key, node.value) = (key, value);
            return true;
        }
        let mut free = table.free_below as usize;
        loop {
            if free == 0 {
                self.tables[at.0].free_below = 0;
                return false;
            }
            free -= 1;
            if table.nodes[free].key.is_nil() {
                break;
            }
        }
        let resident = table.nodes[main];
        let resident_main = self.position(resident.key, len);
        let table = &mut self.tables[at.0];
        table.free_below = free as u32;
        if resident_main == main {
            table.nodes[free] = Node { key, value, next: resident.next };
            table.nodes[main].next = free as u32;
        } else {
            // The resident is not at home: it moves to the free node.
            let mut before = resident_main;
            while table.nodes[before].next as usize != main {
                before = table.nodes[before].next as usize;
            }
            table.nodes[before].next = free as u32;
            table.nodes[free] = resident;
            table.nodes[main] = Node { key, value, next: NO_NODE };
        }
        true
    }

    /// Makes room for one more key, and drops the dead ones. Elements move to the array if they fill half of it.
    fn rehash(&mut self, at: TableRef, extra: Value) -> Result<(), OutOfMemory> {
        let array_len = self.array_len_for(at, extra);
        if array_len > self.tables[at.0].array.len() {
            self.extend_array(at, array_len)?;
        }
        let table = &self.tables[at.0];
        let live = table.nodes.iter().filter(|node| !node.value.is_nil()).count();
        let goes_to_array = matches!(extra, Value::Number(number)
            if array_position(number).is_some_and(|position| position < table.array.len()));
        let len = match live + usize::from(!goes_to_array) {
            0 => 0,
            needed => needed.next_power_of_two(),
        };
        let old_bytes = table.nodes.capacity() * size_of::<Node>();
        self.charge(len * size_of::<Node>())?;
        let nodes = empty_nodes(len)?;
        let table = &mut self.tables[at.0];
        table.free_below = len as u32;
        let old = core::mem::replace(&mut table.nodes, nodes);
        for node in old.iter().filter(|node| !node.value.is_nil()) {
            let placed = self.place(at, node.key, node.value);
            assert!(placed, "a hash that has grown takes what it held");
        }
        self.discharge(old_bytes);
        Ok(())
    }

    /// The greatest power of two n such that more than half of the elements 1 to n would be used.
    fn array_len_for(&self, at: TableRef, extra: Value) -> usize {
        // Counts of elements by the power of two that is next.
        let mut counts = [0_usize; ARRAY_LIMIT_BITS + 1];
        let mut count = |number: f64| {
            if let Some(position) = array_position(number)
                && position < 1 << ARRAY_LIMIT_BITS
            {
                counts[(position + 1).next_power_of_two().ilog2() as usize] += 1;
            }
        };
        let table = &self.tables[at.0];
        for node in table.nodes.iter().filter(|node| !node.value.is_nil()) {
            if let Value::Number(number) = node.key {
                count(number);
            }
        }
        if let Value::Number(number) = extra {
            count(number);
        }
        if counts.iter().all(|count| *count == 0) {
            return 0;
        }
        for (position, value) in table.array.iter().enumerate() {
            if !value.is_nil() {
                counts[(position + 1).next_power_of_two().ilog2() as usize] += 1;
            }
        }
        let (mut used, mut best) = (0, 0);
        for (bits, count) in counts.iter().enumerate() {
            used += count;
            if used > (1 << bits) / 2 {
                best = 1 << bits;
            }
        }
        best
    }

    /// Makes the array longer and moves to it what the hash has for it.
    fn extend_array(&mut self, at: TableRef, len: usize) -> Result<(), OutOfMemory> {
        let old_len = self.tables[at.0].array.len();
        let more = len - self.tables[at.0].array.capacity().min(len);
        self.charge(more * size_of::<Value>())?;
        let table = &mut self.tables[at.0];
        table.array.try_reserve_exact(len - old_len).map_err(|_| OutOfMemory)?;
        table.array.resize(len, Value::Nil);
        let Table { array, nodes, .. } = table;
        for node in nodes.iter_mut().filter(|node| !node.value.is_nil()) {
            if let Value::Number(number) = node.key
                && let Some(place) = array_position(number).and_then(|position| array.get_mut(position))
            {
                *place = core::mem::take(&mut node.value);
            }
        }
        self.take_following(at)
    }

    /// The entry after `key`, in the order of [`next`](Self::next). `Err` if the table has no such key.
    #[allow(clippy::result_unit_err)]
    pub fn next(&self, at: TableRef, key: Value) -> Result<Option<(Value, Value)>, ()> {
        let table = &self.tables[at.0];
        let position = match key {
            Value::Nil => None,
            Value::Number(number) => array_position(number).filter(|position| *position < table.array.len()),
            _ => None,
        };
        let from = match (key, position) {
            (Value::Nil, _) => 0,
            (_, Some(position)) => position + 1,
            _ => table.array.len() + self.find_node(table, key).ok_or(())? + 1,
        };
        Ok(self.entry_from(table, from))
    }

    /// The first entry at or after a place: the array's places come first, the hash's then.
    fn entry_from(&self, table: &Table, from: usize) -> Option<(Value, Value)> {
        let array_len = table.array.len();
        if let Some(rest) = table.array.get(from..)
            && let Some(offset) = rest.iter().position(|value| !value.is_nil())
        {
            let at = from + offset;
            return Some((Value::Number((at + 1) as f64), table.array[at]));
        }
        let rest = table.nodes.get(from.saturating_sub(array_len)..)?;
        rest.iter().find(|node| !node.value.is_nil()).map(|node| (node.key, node.value))
    }
}
