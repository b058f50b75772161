//! Items in order, that know their ranks: a B+tree whose branches count what is below them.
//!
//! ```text
//! branch = child …   child = node | items below | key of the first item
//! leaf   = item …
//! ```
//!
//! Finding, inserting, removing, and counting what lies before a place take logarithmic time. Full nodes are split on the
//! way down, so that an insertion that finds no memory leaves a good tree behind; removal needs no memory.

use crate::OutOfMemory;
use alloc::vec::Vec;
use core::{cmp::Ordering, ops::ControlFlow};

const LEAF_LIMIT: usize = 64;
const BRANCH_LIMIT: usize = 32;
/// A node that has fewer than this part of its limit is merged with a neighbour, if both fit one node.
const SPARSE_PART: usize = 4;

/// What a tree is made of. Its order is the caller's, who compares keys.
pub trait Item {
    /// What the order depends on.
    type Key: Copy;

    /// This one's.
    fn key(&self) -> Self::Key;
}

/// Which end comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    #[allow(missing_docs)]
    Forward,
    #[allow(missing_docs)]
    Backward,
}

/// The tree.
pub struct Tree<T: Item> {
    root: Node<T>,
}

enum Node<T: Item> {
    Leaf(Vec<T>),
    Branch(Vec<Child<T>>),
}

struct Child<T: Item> {
    node: Node<T>,
    /// References to records have 32 bits, so there are no more items.
    count: u32,
    first: T::Key,
}

impl<T: Item> Default for Tree<T> {
    fn default() -> Tree<T> {
        Tree::new()
    }
}

impl<T: Item> Tree<T> {
    pub const fn new() -> Tree<T> {
        Tree { root: Node::Leaf(Vec::new()) }
    }

    pub fn len(&self) -> usize {
        self.root.count()
    }

    /// Adds an item that is not there yet. `compare` tells how a key compares to it.
    pub fn insert(&mut self, item: T, compare: impl Fn(T::Key) -> Ordering) -> Result<(), OutOfMemory> {
        if self.root.is_full() {
            let mut children = Vec::new();
            children.try_reserve_exact(4)?;
            let right = self.root.split(&compare)?;
            let left = core::mem::replace(&mut self.root, Node::Leaf(Vec::new()));
            children.extend([Child::of(left), Child::of(right)]);
            self.root = Node::Branch(children);
        }
        self.root.insert(item, &compare)
    }

    /// Adds an item behind all others.
    pub fn push_back(&mut self, item: T) -> Result<(), OutOfMemory> {
        self.insert(item, |_| Ordering::Less)
    }

    /// Takes out the item whose key compares as equal.
    pub fn remove(&mut self, compare: impl Fn(T::Key) -> Ordering) -> Option<T> {
        let item = self.root.remove(&compare)?;
        while let Node::Branch(children) = &mut self.root
            && children.len() <= 1
        {
            self.root = children.pop().map_or(Node::Leaf(Vec::new()), |child| child.node);
        }
        Some(item)
    }

    /// The item whose key compares as equal.
    pub fn find(&self, compare: impl Fn(T::Key) -> Ordering) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    return items.binary_search_by(|item| compare(item.key())).ok().map(|at| &items[at]);
                }
                Node::Branch(children) => node = &children[child_of(children, &compare)].node,
            }
        }
    }

    /// The same to change, but for its key.
    pub fn find_mut(&mut self, compare: impl Fn(T::Key) -> Ordering) -> Option<&mut T> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(items) => {
                    return items.binary_search_by(|item| compare(item.key())).ok().map(|at| &mut items[at]);
                }
                Node::Branch(children) => {
                    let at = child_of(children, &compare);
                    node = &mut children[at].node;
                }
            }
        }
    }

    /// The item that has `rank` others before it.
    pub fn get(&self, rank: usize) -> Option<&T> {
        let mut found = None;
        self.visit(rank, Direction::Forward, |item| {
            found = Some(item);
            ControlFlow::Break(())
        });
        found
    }

    /// The same to change, but for its key.
    pub fn get_mut(&mut self, mut rank: usize) -> Option<&mut T> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.get_mut(rank),
                Node::Branch(children) => {
                    let holds = |child: &&mut Child<T>| match rank.checked_sub(child.count as usize) {
                        Some(rest) => {
                            rank = rest;
                            false
                        }
                        None => true,
                    };
                    node = &mut children.iter_mut().find(holds)?.node;
                }
            }
        }
    }

    /// Number of items whose keys lie before a place: `is_before` holds for them, and for no other behind them.
    pub fn rank(&self, is_before: impl Fn(T::Key) -> bool) -> usize {
        let mut node = &self.root;
        let mut rank = 0;
        loop {
            match node {
                Node::Leaf(items) => return rank + items.partition_point(|item| is_before(item.key())),
                Node::Branch(children) => {
                    let at = children.partition_point(|child| is_before(child.first));
                    let Some(last) = at.checked_sub(1) else { return rank };
                    rank += children[..last].iter().map(|child| child.count as usize).sum::<usize>();
                    node = &children[last].node;
                }
            }
        }
    }

    /// Shows items in a row, but for the first `skipped` ones from that end, until `visit` breaks.
    pub fn visit<'a>(&'a self, skipped: usize, direction: Direction, mut visit: impl FnMut(&'a T) -> ControlFlow<()>) {
        _ = match direction {
            Direction::Forward => {
                self.root.visit_leaves(skipped, direction, &mut |items| items.iter().try_for_each(&mut visit))
            }
            Direction::Backward => {
                self.root.visit_leaves(skipped, direction, &mut |items| items.iter().rev().try_for_each(&mut visit))
            }
        };
    }

    /// All items in order.
    pub fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a T)) {
        self.visit(0, Direction::Forward, |item| {
            visit(item);
            ControlFlow::Continue(())
        });
    }

    /// Bytes allocated, without what the items refer to.
    pub fn bytes(&self) -> usize {
        self.root.bytes()
    }

    /// Gives away about `limit` items from the end on. Returns what is left of that number, if no item is left. A tree
    /// that has lost some this way is good for nothing else.
    pub fn drain(&mut self, limit: usize, mut take: impl FnMut(T)) -> Option<usize> {
        let mut budget = limit;
        while budget > 0 {
            let Some(items) = self.root.pop_leaf() else { return Some(budget) };
            budget = budget.saturating_sub(items.len() + 1);
            items.into_iter().for_each(&mut take);
        }
        None
    }
}

/// The child where a key belongs.
fn child_of<T: Item>(children: &[Child<T>], compare: &impl Fn(T::Key) -> Ordering) -> usize {
    children[1..].partition_point(|child| compare(child.first) != Ordering::Greater)
}

/// Makes room for one more.
fn make_room<E>(elements: &mut Vec<E>, limit: usize) -> Result<(), OutOfMemory> {
    const LEAST: usize = 4;
    let len = elements.len();
    if len == elements.capacity() {
        // Growth by half: what is filled in order ends up full, and what is not has little to spare.
        elements.try_reserve_exact((len / 2).max(LEAST).min(limit.saturating_sub(len)).max(1))?;
    }
    Ok(())
}

fn split_off<E>(elements: &mut Vec<E>, at: usize) -> Result<Vec<E>, OutOfMemory> {
    let mut right = Vec::new();
    right.try_reserve_exact(elements.len() - at + 1)?;
    right.extend(elements.drain(at..));
    Ok(right)
}

impl<T: Item> Child<T> {
    /// A child of a node that is not empty.
    fn of(node: Node<T>) -> Child<T> {
        let (count, first) = (node.count() as u32, node.first());
        Child { node, count, first }
    }

    fn update(&mut self) {
        (self.count, self.first) = (self.node.count() as u32, self.node.first());
    }
}

impl<T: Item> Node<T> {
    fn count(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Branch(children) => children.iter().map(|child| child.count as usize).sum(),
        }
    }

    fn first(&self) -> T::Key {
        match self {
            Node::Leaf(items) => items[0].key(),
            Node::Branch(children) => children[0].first,
        }
    }

    fn is_full(&self) -> bool {
        match self {
            Node::Leaf(items) => items.len() >= LEAF_LIMIT,
            Node::Branch(children) => children.len() >= BRANCH_LIMIT,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(items) => items.is_empty(),
            Node::Branch(children) => children.is_empty(),
        }
    }

    fn is_sparse(&self) -> bool {
        match self {
            Node::Leaf(items) => items.len() < LEAF_LIMIT / SPARSE_PART,
            Node::Branch(children) => children.len() < BRANCH_LIMIT / SPARSE_PART,
        }
    }

    /// Splits a full node before an insertion: in the middle, or at the end if that is where the new item goes, so that
    /// what comes in order fills its nodes.
    fn split(&mut self, compare: &impl Fn(T::Key) -> Ordering) -> Result<Node<T>, OutOfMemory> {
        let place = |is_at_end: bool, len: usize| if is_at_end { len - 1 } else { len / 2 };
        Ok(match self {
            Node::Leaf(items) => {
                let last = items[items.len() - 1].key();
                let at = place(compare(last) == Ordering::Less, items.len());
                Node::Leaf(split_off(items, at)?)
            }
            Node::Branch(children) => {
                let last = children[children.len() - 1].first;
                let at = place(compare(last) != Ordering::Greater, children.len());
                Node::Branch(split_off(children, at)?)
            }
        })
    }

    fn insert(&mut self, item: T, compare: &impl Fn(T::Key) -> Ordering) -> Result<(), OutOfMemory> {
        match self {
            Node::Leaf(items) => {
                make_room(items, LEAF_LIMIT)?;
                let at = items.partition_point(|item| compare(item.key()) == Ordering::Less);
                items.insert(at, item);
                Ok(())
            }
            Node::Branch(children) => {
                let mut at = child_of(children, compare);
                if children[at].node.is_full() {
                    make_room(children, BRANCH_LIMIT)?;
                    let right = Child::of(children[at].node.split(compare)?);
                    children[at].update();
                    let goes_right = compare(right.first) != Ordering::Greater;
                    children.insert(at + 1, right);
                    at += usize::from(goes_right);
                }
                let child = &mut children[at];
                child.node.insert(item, compare)?;
                (child.count, child.first) = (child.count + 1, child.node.first());
                Ok(())
            }
        }
    }

    fn remove(&mut self, compare: &impl Fn(T::Key) -> Ordering) -> Option<T> {
        match self {
            Node::Leaf(items) => {
                let at = items.binary_search_by(|item| compare(item.key())).ok()?;
                Some(items.remove(at))
            }
            Node::Branch(children) => {
                let at = child_of(children, compare);
                let child = &mut children[at];
                let item = child.node.remove(compare)?;
                if child.node.is_empty() {
                    children.remove(at);
                } else {
                    (child.count, child.first) = (child.count - 1, child.node.first());
                    if child.node.is_sparse() {
                        merge(children, at);
                    }
                }
                Some(item)
            }
        }
    }

    /// Shows leaves in a row, but for so many of their items. The way through the tree is the same for all that look.
    fn visit_leaves<'a>(
        &'a self,
        mut skipped: usize,
        direction: Direction,
        visit: &mut dyn FnMut(&'a [T]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Node::Leaf(items) => {
                let left = items.len().saturating_sub(skipped);
                visit(match direction {
                    Direction::Forward => &items[items.len() - left..],
                    Direction::Backward => &items[..left],
                })
            }
            Node::Branch(children) => {
                let show = |child: &'a Child<T>| {
                    if let Some(rest) = skipped.checked_sub(child.count as usize) {
                        skipped = rest;
                        return ControlFlow::Continue(());
                    }
                    child.node.visit_leaves(core::mem::take(&mut skipped), direction, visit)
                };
                match direction {
                    Direction::Forward => children.iter().try_for_each(show),
                    Direction::Backward => children.iter().rev().try_for_each(show),
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Node::Leaf(items) => items.capacity() * size_of::<T>(),
            Node::Branch(children) => {
                let below: usize = children.iter().map(|child| child.node.bytes()).sum();
                children.capacity() * size_of::<Child<T>>() + below
            }
        }
    }

    /// Takes the last leaf, if anything is left.
    fn pop_leaf(&mut self) -> Option<Vec<T>> {
        match self {
            Node::Leaf(items) => Some(core::mem::take(items)).filter(|items| !items.is_empty()),
            Node::Branch(children) => loop {
                if let Some(items) = children.last_mut()?.node.pop_leaf() {
                    return Some(items);
                }
                children.pop();
            },
        }
    }
}

/// Merges a child with a neighbour, if both fit one node and there is memory for that.
fn merge<T: Item>(children: &mut Vec<Child<T>>, at: usize) {
    fn append<E>(left: &mut Vec<E>, right: &mut Vec<E>, limit: usize) -> bool {
        let len = left.len() + right.len();
        // A quarter stays free, so that the next insertion does not split it again.
        if len > limit - limit / SPARSE_PART || left.try_reserve_exact(right.len()).is_err() {
            return false;
        }
        left.append(right);
        true
    }
    let left = if at + 1 < children.len() { at } else { at.saturating_sub(1) };
    let Some([left_child, right_child]) = children.get_mut(left..left + 2) else { return };
    let is_merged = match (&mut left_child.node, &mut right_child.node) {
        (Node::Leaf(left), Node::Leaf(right)) => append(left, right, LEAF_LIMIT),
        (Node::Branch(left), Node::Branch(right)) => append(left, right, BRANCH_LIMIT),
        _ => unreachable!("all leaves are equally deep"),
    };
    if is_merged {
        left_child.count += right_child.count;
        children.remove(left + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Item for u32 {
        type Key = u32;
        fn key(&self) -> u32 {
            *self
        }
    }

    fn depth_and_check(node: &Node<u32>) -> usize {
        match node {
            Node::Leaf(items) => {
                assert!(items.len() <= LEAF_LIMIT && items.is_sorted());
                0
            }
            Node::Branch(children) => {
                assert!((1..=BRANCH_LIMIT).contains(&children.len()));
                let depths: Vec<usize> = children
                    .iter()
                    .map(|child| {
                        assert!(!child.node.is_empty());
                        assert_eq!((child.count as usize, child.first), (child.node.count(), child.node.first()));
                        depth_and_check(&child.node)
                    })
                    .collect();
                assert!(depths.iter().all(|&depth| depth == depths[0]), "all leaves are equally deep");
                depths[0] + 1
            }
        }
    }

    #[test]
    fn behaves_like_a_sorted_vector() {
        for seed in 0..30 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut tree: Tree<u32> = Tree::new();
            let mut model: Vec<u32> = Vec::new();
            let range = rng.u32(10..20_000);
            for step in 0..8000 {
                let context = (seed, step);
                let growing = (step / 1000) % 2 == 0;
                let number = if seed % 3 == 0 && growing { step } else { rng.u32(..range) };
                match model.binary_search(&number) {
                    Ok(at) if !growing || rng.u8(..4) == 0 => {
                        assert_eq!(tree.remove(|key| key.cmp(&number)), Some(number), "{context:?}");
                        model.remove(at);
                    }
                    Ok(_) => assert_eq!(tree.find(|key| key.cmp(&number)), Some(&number), "{context:?}"),
                    Err(at) if growing => {
                        tree.insert(number, |key| key.cmp(&number)).unwrap();
                        model.insert(at, number);
                    }
                    Err(_) => {
                        assert_eq!(tree.remove(|key| key.cmp(&number)), None, "{context:?}");
                        if !model.is_empty() {
                            let gone = model.remove(rng.usize(..model.len()));
                            assert_eq!(tree.remove(|key| key.cmp(&gone)), Some(gone), "{context:?}");
                        }
                    }
                }
                assert_eq!(tree.len(), model.len(), "{context:?}");
                let place = rng.u32(..range + 10);
                let rank = model.partition_point(|&key| key < place);
                assert_eq!(tree.rank(|key| key < place), rank, "{context:?}");
                assert_eq!(tree.get(rank), model.get(rank), "{context:?}");
                assert_eq!(tree.get_mut(rank).copied(), model.get(rank).copied(), "{context:?}");
                if step % 500 == 0 {
                    depth_and_check(&tree.root);
                    let skipped = rng.usize(..=model.len());
                    for direction in [Direction::Forward, Direction::Backward] {
                        let mut seen = Vec::new();
                        tree.visit(skipped, direction, |&item| {
                            seen.push(item);
                            ControlFlow::Continue(())
                        });
                        let expected: Vec<u32> = match direction {
                            Direction::Forward => model.iter().skip(skipped).copied().collect(),
                            Direction::Backward => model.iter().rev().skip(skipped).copied().collect(),
                        };
                        assert_eq!(seen, expected, "{context:?}");
                    }
                }
            }
            let mut left = model.len();
            while tree.drain(100, |_| left -= 1).is_none() {}
            assert_eq!(left, 0);
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_nodes() {
        let mut tree: Tree<u32> = Tree::new();
        for number in 0..100_000 {
            tree.push_back(number).unwrap();
        }
        assert!(tree.bytes() < 100_000 * 4 * 3 / 2, "{}", tree.bytes());
        let mut rng = fastrand::Rng::with_seed(1);
        let mut tree: Tree<u32> = Tree::new();
        for _ in 0..100_000 {
            let number = rng.u32(..);
            if tree.find(|key| key.cmp(&number)).is_none() {
                tree.insert(number, |key| key.cmp(&number)).unwrap();
            }
        }
        assert!(tree.bytes() < 100_000 * 4 * 2, "{}", tree.bytes());
    }
}
