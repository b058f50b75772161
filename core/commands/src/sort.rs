//! `SORT`: lists, sets and sorted sets in another order, which other keys may give.

use crate::{
    Context, Error, EventClass, Origin, Outcome, args, double, lists,
    strings::{reply_with, with_text},
    table::{Categories, Command, Flags, Group, KeyAt, KeyFlags, Keys},
};
use alloc::{vec, vec::Vec};
use core::{cmp::Ordering, ops::Range};
use kayvee_keyspace::{Direction, Expiry, Found, Kind, List, ListEnd, OutOfMemory, SortedSet, Value};
use kayvee_resp::Request;

#[cfg(test)]
mod tests;

const ACCESS: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);
const OVERWRITES: KeyFlags = KeyFlags::OW.union(KeyFlags::UPDATE);

/// What both rows share.
const ROW: Command = Command {
    arity: -2,
    categories: Categories::SET.union(Categories::SORTED_SET).union(Categories::LIST).union(Categories::DANGEROUS),
    group: Group::Generic,
    ..Command::ROW
};

pub static COMMANDS: &[Command] = &[
    Command {
        name: "sort",
        flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::MOVABLEKEYS),
        keys: &[Keys::one(1, ACCESS), Keys::unknown(ACCESS), Keys::unknown(OVERWRITES)],
        find_keys: Some(keys),
        handler: Some(sort),
        ..ROW
    },
    Command {
        name: "sort_ro",
        flags: Flags::READONLY.union(Flags::MOVABLEKEYS),
        keys: &[Keys::one(1, ACCESS), Keys::unknown(ACCESS)],
        find_keys: Some(read_keys),
        handler: Some(sort_ro),
        ..ROW
    },
];

/// The keys that the request names. Those that follow from elements are not among them.
fn keys(request: Request<'_>) -> Option<Vec<KeyAt>> {
    let mut store = None;
    let mut at = 2;
    while at < request.len() {
        let (word, left) = (&request[at], request.len() - at - 1);
        at += match () {
            () if args::is(word, "limit") => 3,
            () if args::is(word, "get") || args::is(word, "by") => 2,
            () if args::is(word, "store") && left >= 1 => {
                store = Some(at + 1);
                2
            }
            () => 1,
        };
    }
    let mut found = vec![(1, ACCESS)];
    found.extend(store.map(|at| (at, OVERWRITES)));
    Some(found)
}

fn read_keys(_: Request<'_>) -> Option<Vec<KeyAt>> {
    Some(vec![(1, ACCESS)])
}

/// How elements are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Numbers,
    Texts,
    /// They stay as they are.
    None,
}

struct Sorting<'a> {
    order: Order,
    direction: Direction,
    /// First element that is wanted, and how many; all, if negative.
    start: i64,
    count: i64,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    store: Option<&'a [u8]>,
}

impl<'a> Sorting<'a> {
    fn parse(request: Request<'a>, may_store: MayStore) -> Result<Sorting<'a>, Error> {
        let mut sorting = Sorting {
            order: Order::Numbers,
            direction: Direction::Forward,
            start: 0,
            count: -1,
            by: None,
            get: Vec::new(),
            store: None,
        };
        let mut is_alpha = false;
        let mut is_constant = false;
        let mut words = request.from(2);
        while let Some(word) = words.next() {
            let left = words.clone().count();
            match () {
                () if args::is(word, "asc") => sorting.direction = Direction::Forward,
                () if args::is(word, "desc") => sorting.direction = Direction::Backward,
                () if args::is(word, "alpha") => is_alpha = true,
                () if args::is(word, "limit") && left >= 2 => {
                    sorting.start = args::integer(words.next().unwrap_or_default())?;
                    sorting.count = args::integer(words.next().unwrap_or_default())?;
                }
                () if args::is(word, "store") && left >= 1 && may_store == MayStore::Yes => {
                    sorting.store = words.next()
                }
                () if args::is(word, "by") && left >= 1 => {
                    sorting.by = words.next();
                    // What is the same for all elements orders nothing.
                    is_constant = sorting.by.is_some_and(|pattern| !pattern.contains(&b'*'));
                }
                () if args::is(word, "get") && left >= 1 => {
                    sorting.get.try_reserve(1).map_err(|_| OutOfMemory)?;
                    sorting.get.extend(words.next());
                }
                () => return Err(Error::SYNTAX),
            }
        }
        sorting.order = match () {
            () if is_constant => Order::None,
            () if is_alpha => Order::Texts,
            () => Order::Numbers,
        };
        Ok(sorting)
    }

    /// Which elements of so many are wanted.
    fn range(&self, len: usize) -> Range<usize> {
        let start = self.start.clamp(0, len as i64) as usize;
        match usize::try_from(self.count) {
            Ok(count) => start..start.saturating_add(count).min(len),
            Err(_) => start..len,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MayStore {
    Yes,
    No,
}

/// An element, by its place among the texts, and what it is compared by.
struct Item {
    element: Range<usize>,
    number: f64,
    text: Option<Range<usize>>,
}

/// Elements and what they are compared by, one text behind the other.
#[derive(Default)]
struct Items {
    items: Vec<Item>,
    texts: Vec<u8>,
}

impl Items {
    fn add_text(&mut self, text: &[u8]) -> Result<Range<usize>, OutOfMemory> {
        self.texts.try_reserve(text.len())?;
        let start = self.texts.len();
        self.texts.extend_from_slice(text);
        Ok(start..self.texts.len())
    }

    fn add(&mut self, element: &[u8]) -> Result<(), OutOfMemory> {
        self.items.try_reserve(1)?;
        let element = self.add_text(element)?;
        self.items.push(Item { element, number: 0.0, text: None });
        Ok(())
    }

    fn element(&self, at: usize) -> &[u8] {
        &self.texts[self.items[at].element.clone()]
    }

    fn sort(&mut self, sorting: &Sorting<'_>) {
        let texts = &self.texts;
        let element = |item: &Item| &texts[item.element.clone()];
        let by = |item: &Item| item.text.clone().map(|range| &texts[range]);
        let compare = |a: &Item, b: &Item| match sorting.order {
            Order::Numbers => {
                a.number.partial_cmp(&b.number).unwrap_or(Ordering::Equal).then_with(|| element(a).cmp(element(b)))
            }
            // Whoever repeats the command must get the same order.
            Order::Texts if sorting.by.is_some() => by(a).cmp(&by(b)).then_with(|| element(a).cmp(element(b))),
            Order::Texts => element(a).cmp(element(b)),
            Order::None => Ordering::Equal,
        };
        // Elements that compare as equal may come in any order: a sort in place needs no memory.
        self.items.sort_unstable_by(|a, b| match sorting.direction {
            Direction::Forward => compare(a, b),
            Direction::Backward => compare(b, a),
        });
    }
}

fn sort(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    sort_with(context, request, MayStore::Yes)
}

fn sort_ro(context: &mut Context<'_>, request: Request<'_>) -> Outcome {
    sort_with(context, request, MayStore::No)
}

fn sort_with(context: &mut Context<'_>, request: Request<'_>, may_store: MayStore) -> Outcome {
    let mut sorting = Sorting::parse(request, may_store)?;
    check_patterns(context, request, &sorting)?;
    let found = find(context, &request[1])?;
    let is_set = found.is_some_and(|found| context.db().kind(found) == Kind::Set);
    // The order of a set must be the same for all who repeat the command.
    if sorting.order == Order::None && is_set && (sorting.store.is_some() || context.origin == Origin::Script) {
        (sorting.order, sorting.by) = (Order::Texts, None);
    }
    let mut items = match found {
        Some(found) => elements(context, found, &sorting)?,
        None => Items::default(),
    };
    if sorting.order != Order::None {
        weigh(context, &mut items, &sorting)?;
        items.sort(&sorting);
    }
    let range = sorting.range(items.items.len());
    match sorting.store {
        Some(target) => store(context, target, &items, range, &sorting),
        None => reply(context, &items, range, &sorting),
    }
}

/// Patterns may name any key, so who uses them has to be allowed to read all.
fn check_patterns(context: &mut Context<'_>, request: Request<'_>, sorting: &Sorting<'_>) -> Outcome {
    let reads_others = sorting.by.is_some_and(|pattern| pattern.contains(&b'*'));
    let uses_patterns = reads_others || !sorting.get.is_empty();
    if uses_patterns && context.store.cluster.is_some() {
        return Err(Error::text("ERR BY and GET options of SORT denied in cluster mode"));
    }
    if !uses_patterns || context.may_read_all_keys(request) {
        return Ok(());
    }
    Err(Error::text(if reads_others {
        "ERR BY option of SORT denied due to insufficient ACL permissions."
    } else {
        "ERR GET option of SORT denied due to insufficient ACL permissions."
    }))
}

/// Finds what is to be sorted.
fn find(context: &mut Context<'_>, key: &[u8]) -> Result<Option<Found>, Error> {
    let Some(found) = context.read_any(key) else { return Ok(None) };
    match context.db().kind(found) {
        Kind::List | Kind::Set => Ok(Some(found)),
        Kind::SortedSet => {
            // As in Redis, a sorted set loses its compact form by this.
            context.edit(key, Some(found), |set: &mut SortedSet, records| set.make_large(records))?;
            Ok(context.find(key))
        }
        _ => Err(Error::WRONG_TYPE),
    }
}

/// All elements, in their order where they are not sorted.
fn elements(context: &mut Context<'_>, found: Found, sorting: &Sorting<'_>) -> Result<Items, Error> {
    let mut items = Items::default();
    let mut result = Ok(());
    let mut add = |element: &[u8]| {
        if result.is_ok() {
            result = items.add(element);
        }
    };
    let direction = if sorting.order == Order::None { sorting.direction } else { Direction::Forward };
    let db = context.db();
    match db.kind(found) {
        Kind::List => {
            let list = db.list(found);
            match direction {
                Direction::Forward => list.iter().for_each(&mut add),
                Direction::Backward => {
                    list.iter_from(list.len() - 1, ListEnd::Back).for_each(&mut add);
                }
            }
        }
        Kind::Set => db.set_at(found).for_each(|member| with_text(member, &mut add)),
        _ => {
            let set = db.sorted_set(found);
            set.for_each(0..set.len(), direction, |member, _| add(member));
        }
    }
    result?;
    Ok(items)
}

/// Finds out what the elements are compared by.
fn weigh(context: &mut Context<'_>, items: &mut Items, sorting: &Sorting<'_>) -> Outcome {
    const NOT_NUMBERS: Error = Error::text("ERR One or more scores can't be converted into double");
    let mut name = Vec::new();
    for at in 0..items.items.len() {
        let Some(pattern) = sorting.by else {
            if sorting.order == Order::Numbers {
                items.items[at].number = number(items.element(at)).ok_or(NOT_NUMBERS)?;
            }
            continue;
        };
        let found = look_up(context, pattern, items.element(at), &mut name)?;
        let (index, now_ms) = (context.db_index(), context.now_ms());
        let element = items.items[at].element.clone();
        let value = match found {
            Looked::Element => None,
            Looked::String(found) => Some(context.store.dbs[index].value(found)),
            Looked::Field(found, field) => context.store.dbs[index].hash(found, now_ms).get(field),
            Looked::Nothing => continue,
        };
        let Some(value) = value.or(matches!(found, Looked::Element).then_some(Value::Bytes(&[]))) else { continue };
        match (sorting.order, matches!(found, Looked::Element)) {
            (Order::Numbers, true) => {
                items.items[at].number = number(&items.texts[element]).ok_or(NOT_NUMBERS)?;
            }
            (Order::Numbers, false) => items.items[at].number = with_text(value, number).ok_or(NOT_NUMBERS)?,
            (_, true) => items.items[at].text = Some(element),
            (_, false) => items.items[at].text = Some(with_text(value, |text| items.add_text(text))?),
        }
    }
    Ok(())
}

/// A number as C's `strtod` reads it, where nothing is zero.
fn number(text: &[u8]) -> Option<f64> {
    if text.is_empty() {
        return Some(0.0);
    }
    let spaces = text.iter().take_while(|b| matches!(b, b' ' | b'\t'..=b'\r')).count();
    double::parse(&text[spaces..])
}

/// What a pattern leads to, for an element.
enum Looked<'a> {
    /// The element itself.
    Element,
    String(Found),
    Field(Found, &'a [u8]),
    Nothing,
}

/// Looks up what a pattern names when the element takes the place of its star: `#`, `weight_*`, `object_*->field`.
fn look_up<'a>(
    context: &mut Context<'_>,
    pattern: &'a [u8],
    element: &[u8],
    name: &mut Vec<u8>,
) -> Result<Looked<'a>, Error> {
    if pattern == b"#" {
        return Ok(Looked::Element);
    }
    let Some(star) = pattern.iter().position(|&b| b == b'*') else { return Ok(Looked::Nothing) };
    let (prefix, behind) = (&pattern[..star], &pattern[star + 1..]);
    let arrow = behind.windows(2).position(|pair| pair == b"->").filter(|at| at + 2 < behind.len());
    let (suffix, field) = match arrow {
        Some(at) => (&behind[..at], Some(&behind[at + 2..])),
        None => (behind, None),
    };
    name.clear();
    name.try_reserve(prefix.len() + element.len() + suffix.len()).map_err(|_| OutOfMemory)?;
    [prefix, element, suffix].iter().for_each(|part| name.extend_from_slice(part));
    let Some(found) = context.read_any(name) else { return Ok(Looked::Nothing) };
    Ok(match (context.db().kind(found), field) {
        (Kind::String, None) => Looked::String(found),
        (Kind::Hash, Some(field)) => Looked::Field(found, field),
        _ => Looked::Nothing,
    })
}

fn reply(context: &mut Context<'_>, items: &Items, range: Range<usize>, sorting: &Sorting<'_>) -> Outcome {
    context.reply.array(range.len() * sorting.get.len().max(1));
    let mut name = Vec::new();
    for at in range {
        let element = items.element(at);
        if sorting.get.is_empty() {
            context.reply.bulk(element);
        }
        for pattern in &sorting.get {
            match look_up(context, pattern, element, &mut name)? {
                Looked::Element => context.reply.bulk(element),
                Looked::String(found) => reply_with(context, found),
                Looked::Field(found, field) => {
                    let (index, now_ms) = (context.db_index(), context.now_ms());
                    let Context { store, reply, .. } = context;
                    match store.dbs[index].hash(found, now_ms).get(field) {
                        Some(value) => with_text(value, |text| reply.bulk(text)),
                        None => reply.null(),
                    }
                }
                Looked::Nothing => context.reply.null(),
            }
        }
        if context.reply.failed() {
            return Err(Error::OUT_OF_MEMORY);
        }
    }
    Ok(())
}

/// Tells that a list has become what it is now.
fn tell_stored(context: &mut Context<'_>, target: &[u8]) {
    /// Elements that are named in one command.
    const BATCH: usize = 1024;
    if !context.effects_are_wanted() {
        return;
    }
    let Some(found) = context.find(target) else { return };
    let elements: Vec<Vec<u8>> = context.db().list(found).iter().map(<[u8]>::to_vec).collect();
    context.effect(&[b"DEL", target]);
    for batch in elements.chunks(BATCH) {
        let words: Vec<&[u8]> = [&b"RPUSH"[..], target].into_iter().chain(batch.iter().map(Vec::as_slice)).collect();
        context.effect(&words);
    }
}

fn store(
    context: &mut Context<'_>,
    target: &[u8],
    items: &Items,
    range: Range<usize>,
    sorting: &Sorting<'_>,
) -> Outcome {
    let (limit, index, now_ms) = (lists::limit(&context.store.options), context.db_index(), context.now_ms());
    let mut list = List::default();
    let mut name = Vec::new();
    let len = range.len() * sorting.get.len().max(1);
    for at in range {
        let element = items.element(at);
        let mut push = |text: &[u8]| list.push(ListEnd::Back, core::iter::once(text), limit);
        if sorting.get.is_empty() {
            push(element)?;
        }
        for pattern in &sorting.get {
            // What is missing is empty in a list.
            match look_up(context, pattern, element, &mut name)? {
                Looked::Element => push(element)?,
                Looked::String(found) => with_text(context.store.dbs[index].value(found), &mut push)?,
                Looked::Field(found, field) => {
                    let value = context.store.dbs[index].hash(found, now_ms).get(field);
                    with_text(value.unwrap_or(Value::Bytes(&[])), &mut push)?;
                }
                Looked::Nothing => push(&[])?,
            }
        }
    }
    if len > 0 {
        context.db().put(target, list, Expiry::Never, now_ms)?;
        // Whoever runs it again may not have what patterns name.
        let uses_patterns = !sorting.get.is_empty() || sorting.by.is_some_and(|pattern| pattern.contains(&b'*'));
        if uses_patterns {
            tell_stored(context, target);
        }
        context.changed(EventClass::LIST, "sortstore", target);
    } else if let Some(found) = context.find(target) {
        context.remove(target, found);
    }
    context.reply.integer(len as i64);
    Ok(())
}
