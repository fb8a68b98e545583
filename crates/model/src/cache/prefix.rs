//! Reuse of computed prompts.
//!
//! The index stores the keys and values of prompts by their tokens: a tree whose nodes have a page each. Of layers with a window it has the pages that
//! are needed at some places: where a prompt ends, and where its owner asks for it ([`PrefixIndex::keep_windows`]). A prompt can be continued after
//! any token whose window is there. The index has only the results of prompt rows.
//! Those of generated tokens are excluded: their bits differ from those of a prompt row ([`Role`](crate::engine::Role)), and an answer must not
//! depend on whether its prompt was found.
//!
//! Invariants: tokens are compared in full. A page in the index is never written again: a sequence that continues in the middle of one gets a copy
//! ([`Cache::prepare`](super::Cache::prepare)). A page that a sequence uses stays in the index, and so does every page before it. Nothing is
//! allocated except for the first prompt of a salt and for states of recurrent layers.

use std::collections::HashMap;

use super::pages::{Pages, Pools};
use super::states::Kept;
use super::windows::WindowPages;
use crate::positions::{POSITIONS, Windows, common};

/// Returns the number of tokens at the beginning of `prompt` that a cache with the positions of `cached` already has. The last token of the prompt
/// never counts: it is always computed, because its logits are needed.
pub fn reusable(cached: &[u32], prompt: &[u32]) -> usize {
    common(cached, prompt).min(prompt.len().saturating_sub(1))
}

/// A node of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

/// At most a page of tokens that follow those of its parent.
struct Node {
    /// `None`: the node is free, or a root, which has no tokens and no page.
    parent: Option<NodeId>,
    /// The first of its children; each has a link to the next.
    first_child: Option<NodeId>,
    next: Option<NodeId>,
    /// Only the first `len` are valid. A node with less than a full page of them has no children.
    tokens: [u32; POSITIONS],
    len: usize,
    page: u32,
    /// The page of layers with a window, and when it was last used.
    window: Option<(u32, u64)>,
    /// When it was last used.
    used: u64,
    /// The states of recurrent layers after its tokens, and when they were last used.
    states: Option<(Kept, u64)>,
}

impl Node {
    const EMPTY: Node = Node {
        parent: None,
        first_child: None,
        next: None,
        tokens: [0; POSITIONS],
        len: 0,
        page: 0,
        window: None,
        used: 0,
        states: None,
    };

    fn tokens(&self) -> &[u32] {
        &self.tokens[..self.len]
    }
}

/// The part of a prompt that is in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The number of its tokens.
    pub(crate) positions: usize,
    /// The number of tokens if recurrent states and the pages of windows were available everywhere.
    pub(crate) attended: usize,
    /// The node of the last whole page of `positions`.
    pub(crate) node: Option<NodeId>,
    /// The node with the page of the remaining tokens.
    tail: Option<NodeId>,
}

/// The pages of prompts, by their tokens.
pub(crate) struct PrefixIndex {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    /// By salt.
    roots: HashMap<Box<str>, NodeId>,
    clock: u64,
    /// The limit on its memory in bytes, and the memory it uses.
    limit: usize,
    held: usize,
    /// The bytes of states among them.
    states: usize,
    /// True if there are recurrent layers: then a prefix is usable only where their states are kept.
    recurrent: bool,
    /// If there are any: a prefix is usable only where all pages are kept that a row after it sees.
    windows: Windows,
}

impl PrefixIndex {
    /// Creates an empty index of up to `limit` bytes, for this number of pages.
    pub(crate) fn new(
        limit: usize,
        pages: usize,
        recurrent: bool,
        windows: Windows,
    ) -> PrefixIndex {
        // More are allocated on demand.
        let most = if limit == 0 { 0 } else { pages.min(1 << 16) };
        PrefixIndex {
            nodes: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            roots: HashMap::with_capacity(if limit == 0 { 0 } else { 64 }),
            clock: 0,
            limit,
            held: 0,
            states: 0,
            recurrent,
            windows,
        }
    }

    /// Returns true if it may hold anything.
    pub(crate) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// The number of bytes it uses.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The bytes of states among them.
    pub(crate) fn held_states(&self) -> usize {
        self.states
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    fn children(&self, of: NodeId) -> impl Iterator<Item = NodeId> {
        let next = |id: &NodeId| self.node(*id).next;
        std::iter::successors(self.node(of).first_child, next)
    }

    /// Returns the child with the most tokens in common with `tokens`, and their number. Of several, one that has a page for layers with a window.
    fn best_child(&self, of: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let children = self.children(of).map(|id| (id, common(self.node(id).tokens(), tokens)));
        let key = |(id, common): &(NodeId, usize)| (*common, self.node(*id).window.is_some());
        children.max_by_key(key).filter(|(_, common)| *common > 0)
    }

    /// Finds the longest beginning of `tokens` that it has under `salt`.
    pub(crate) fn find(&mut self, salt: &str, tokens: &[u32]) -> Found {
        let mut found = Found { positions: 0, attended: 0, node: None, tail: None };
        let Some(&root) = self.roots.get(salt) else { return found };
        self.clock += 1;
        let clock = self.clock;
        let mut at = root;
        // The first position from which on no page of a window is missing.
        let mut from = 0;
        while let Some((child, common)) = self.best_child(at, &tokens[found.attended..]) {
            let (recurrent, windowed) = (self.recurrent, !self.windows.is_empty());
            let node = self.node_mut(child);
            node.used = clock;
            if windowed && node.window.is_none() {
                from = found.attended + POSITIONS;
            }
            let whole = common == POSITIONS;
            let has_states = !recurrent || whole && node.states.is_some();
            found.attended += common;
            if has_states && (!windowed || self.windows.first_seen(found.attended) >= from) {
                found.positions = found.attended;
                (found.node, found.tail) = match whole {
                    true => (Some(child), None),
                    false => (Some(at).filter(|at| *at != root), Some(child)),
                };
            }
            if !whole {
                break;
            }
            at = child;
        }
        found
    }

    /// The nodes of `found`, the last one first.
    fn nodes_of(&self, found: &Found) -> impl Iterator<Item = &Node> {
        let parent = |id: &NodeId| self.node(*id).parent;
        let ids = found.tail.into_iter().chain(std::iter::successors(found.node, parent));
        ids.map(|id| self.node(id)).filter(|node| node.parent.is_some())
    }

    /// Appends the pages of `found` to `table`, in the order of positions.
    pub(crate) fn pages_of(&self, found: &Found, table: &mut Vec<u32>) {
        let first = table.len();
        table.extend(self.nodes_of(found).map(|node| node.page));
        table[first..].reverse();
    }

    /// Appends to an empty table the pages of layers with a window that a sequence keeps after `found`, which count as used.
    pub(crate) fn windows_of(&mut self, found: &Found, table: &mut WindowPages) {
        let pages = found.positions.div_ceil(POSITIONS);
        let most = pages - self.windows.kept_from(found.positions).min(pages);
        let kept = self.nodes_of(found).take(most).map_while(|node| node.window);
        let kept: Vec<u32> = kept.map(|(page, _)| page).collect();
        table.begin_at(pages - kept.len());
        table.table_mut().extend(kept.iter().rev());
        let clock = self.clock;
        let mut at = found.tail.or(found.node);
        for _ in kept {
            let Some(id) = at else { break };
            let node = self.node_mut(id);
            node.window = node.window.map(|(page, _)| (page, clock));
            at = if found.tail == Some(id) { found.node } else { node.parent };
        }
    }

    /// Keeps the pages of layers with a window that a sequence needs to continue after the tokens of page `page`, which is that of a node at page `of`
    /// or one before it, as far as `window` still has them. The sequence has `len` tokens.
    pub(crate) fn keep_windows(
        &mut self,
        (id, of): (NodeId, usize),
        (mut page, len): (usize, usize),
        window: &WindowPages,
        pools: &mut Pools,
    ) {
        self.clock += 1;
        let clock = self.clock;
        let node = self.node(id);
        if page == of && of * POSITIONS + node.len > len && node.window.is_none() {
            // The node is that of a prompt with more tokens, which the page of this sequence does not have.
            page = page.saturating_sub(1);
        }
        // After each of these tokens.
        let first = self.windows.needed_from(page * POSITIONS + 1);
        let mut at = Some(id);
        for index in (first..=of).rev() {
            let Some(id) = at else { break };
            let node = self.node_mut(id);
            if node.parent.is_none() {
                break;
            }
            at = node.parent;
            if index > page || index * POSITIONS + node.len > len {
                continue;
            }
            if let Some((_, used)) = &mut node.window {
                *used = clock;
            } else if let Some(page) = window.page(index) {
                self.hold_window(id, page, pools);
            }
        }
    }

    /// The states after the last whole page of `found`.
    pub(crate) fn states_of(&mut self, found: &Found) -> Option<&Kept> {
        let clock = self.clock;
        let (kept, used) = self.node_mut(found.node?).states.as_mut()?;
        *used = clock;
        Some(kept)
    }

    /// Adds at most a page of tokens, which follow those of `parent`, or begin a prompt, with their page, and their page of layers with a window if
    /// that is still there. A page that is new to the index gets one more user. Returns their node and its page, which may be another one with the
    /// same contents.
    pub(crate) fn add(
        &mut self,
        salt: &str,
        parent: Option<NodeId>,
        tokens: &[u32],
        (page, window): (u32, Option<u32>),
        pools: &mut Pools,
    ) -> (NodeId, u32) {
        let parent = parent.unwrap_or_else(|| self.root(salt));
        self.clock += 1;
        let best = self.best_child(parent, tokens);
        if let Some((child, _)) = best.filter(|(_, common)| *common == tokens.len()) {
            return (child, self.node(child).page);
        }
        pools.full.share(page);
        self.held += pools.full.bytes(page);
        let id = self.fresh();
        let clock = self.clock;
        let next = self.node_mut(parent).first_child.replace(id);
        let node = self.node_mut(id);
        *node = Node { parent: Some(parent), next, page, used: clock, ..Node::EMPTY };
        node.tokens[..tokens.len()].copy_from_slice(tokens);
        node.len = tokens.len();
        // Removes a partial page that the new one contains. (Not earlier: a root is removed with its last child.)
        if let Some((child, _)) = best.filter(|(child, common)| *common == self.node(*child).len) {
            // A place that the prompt of that one ended at stays one.
            let window = window.filter(|_| self.node(child).window.is_some());
            self.remove(child, pools);
            if let Some(window) = window {
                self.hold_window(id, window, pools);
            }
        }
        (id, page)
    }

    /// Keeps the states of recurrent layers after the tokens of a node.
    pub(crate) fn keep_states(&mut self, id: NodeId, kept: Kept) {
        let clock = self.clock;
        self.drop_states(id);
        self.held += kept.bytes();
        self.states += kept.bytes();
        self.node_mut(id).states = Some((kept, clock));
    }

    /// Returns true if a node has states.
    pub(crate) fn has_states(&self, id: NodeId) -> bool {
        self.node(id).states.is_some()
    }

    /// Evicts the least recently used entries until it is within its limit.
    pub(crate) fn shrink(&mut self, pools: &mut Pools) {
        while self.held > self.limit && self.give_up(pools) {}
    }

    /// Evicts the least recently used entry that no sequence uses. Returns false if there is none.
    pub(crate) fn give_up(&mut self, pools: &mut Pools) -> bool {
        let ids = (0..self.nodes.len() as u32).map(NodeId);
        let oldest =
            ids.filter_map(|id| self.last_use(id, pools).map(|(used, whole)| (used, id, whole)));
        let Some((_, id, whole)) = oldest.min_by_key(|(used, ..)| *used) else { return false };
        if whole {
            self.remove(id, pools);
        } else {
            self.drop_states(id);
            self.drop_window(id, pools);
        }
        true
    }

    /// Returns true if the pages of a node are in the index only.
    fn is_unused(node: &Node, pools: &Pools) -> bool {
        pools.full.uses(node.page) == 1
            && Self::unused_window(node, &pools.window).is_none_or(|unused| unused)
    }

    /// Returns whether the page of a node for layers with a window is in the index only, if there is one.
    fn unused_window(node: &Node, pages: &Pages) -> Option<bool> {
        node.window.map(|(page, _)| pages.uses(page) == 1)
    }

    /// When the evictable part of a node was last used, and whether that is the whole node.
    fn last_use(&self, id: NodeId, pools: &Pools) -> Option<(u64, bool)> {
        let node = self.node(id);
        node.parent?;
        if node.first_child.is_none() && Self::is_unused(node, pools) {
            return Some((node.used, true));
        }
        let states = node.states.as_ref().map(|(_, used)| *used);
        let window = node.window.filter(|_| Self::unused_window(node, &pools.window) == Some(true));
        states.into_iter().chain(window.map(|(_, used)| used)).min().map(|used| (used, false))
    }

    /// Drops the beginning of `tokens`, except for pages that other prompts or a sequence use too. Returns the number of tokens in the dropped pages.
    pub(crate) fn forget(&mut self, salt: &str, tokens: &[u32], pools: &mut Pools) -> usize {
        let Some(&root) = self.roots.get(salt) else { return 0 };
        let (mut at, mut read, mut path) = (root, 0, Vec::new());
        while let Some((child, common)) = self.best_child(at, &tokens[read..]) {
            // A tail of this prompt, or a whole page of it; a page of which another prompt has more tokens stays.
            if common < self.node(child).len {
                break;
            }
            read += common;
            path.push(child);
            at = child;
        }
        let mut gone = 0;
        for id in path.into_iter().rev() {
            let node = self.node(id);
            if node.first_child.is_some() || !Self::is_unused(node, pools) {
                break;
            }
            gone += node.len;
            self.remove(id, pools);
        }
        gone
    }

    fn drop_states(&mut self, id: NodeId) {
        if let Some((kept, _)) = self.node_mut(id).states.take() {
            self.held -= kept.bytes();
            self.states -= kept.bytes();
        }
    }

    /// Gives a node without one a page of layers with a window.
    fn hold_window(&mut self, id: NodeId, page: u32, pools: &mut Pools) {
        let clock = self.clock;
        self.node_mut(id).window = Some((page, clock));
        pools.window.share(page);
        self.held += pools.window.bytes(page);
    }

    fn drop_window(&mut self, id: NodeId, pools: &mut Pools) {
        if let Some((page, _)) = self.node_mut(id).window.take() {
            self.held -= pools.window.bytes(page);
            pools.window.release(page);
        }
    }

    /// Removes a node without children.
    fn remove(&mut self, id: NodeId, pools: &mut Pools) {
        self.drop_states(id);
        self.drop_window(id, pools);
        let node = std::mem::replace(self.node_mut(id), Node::EMPTY);
        let parent = node.parent.expect("a node that is no root");
        let before = self.children(parent).take_while(|child| *child != id).last();
        match before {
            Some(before) => self.node_mut(before).next = node.next,
            None => self.node_mut(parent).first_child = node.next,
        }
        self.held -= pools.full.bytes(node.page);
        pools.full.release(node.page);
        self.free.push(id);
        let parent_node = self.node(parent);
        if parent_node.parent.is_none() && parent_node.first_child.is_none() {
            self.roots.retain(|_, root| *root != parent);
            self.free.push(parent);
        }
    }

    /// Returns the root of a salt.
    fn root(&mut self, salt: &str) -> NodeId {
        if let Some(root) = self.roots.get(salt) {
            return *root;
        }
        let root = self.fresh();
        self.roots.insert(salt.into(), root);
        root
    }

    /// Returns a free node.
    fn fresh(&mut self) -> NodeId {
        self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::EMPTY);
            NodeId(self.nodes.len() as u32 - 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::pages::NeededFor;
    use crate::cache::tests::SMALL;

    fn pools() -> Pools {
        let pages = |shape| Pages::new(8 * POSITIONS, 0, &[shape], NeededFor::Sequence).unwrap();
        Pools { full: pages(Some(SMALL)), window: pages(None) }
    }

    fn index(limit: usize) -> PrefixIndex {
        PrefixIndex::new(limit, 8, false, Windows::default())
    }

    /// Adds a prompt whose pages a sequence has computed and releases.
    fn add(index: &mut PrefixIndex, pools: &mut Pools, tokens: &[u32]) {
        let mut node = None;
        for tokens in tokens.chunks(POSITIONS) {
            let page = pools.full.take().unwrap();
            node = Some(index.add("", node, tokens, (page, None), pools).0);
            pools.full.release(page);
        }
    }

    fn found(index: &mut PrefixIndex, tokens: &[u32]) -> (usize, Vec<u32>) {
        let found = index.find("", tokens);
        let mut table = Vec::new();
        index.pages_of(&found, &mut table);
        (found.positions, table)
    }

    #[test]
    fn the_longest_beginning_is_found_to_the_token() {
        let (mut pools, all) = (pools(), (0..200).collect::<Vec<u32>>());
        let mut index = index(usize::MAX);
        add(&mut index, &mut pools, &all[..150]);
        assert_eq!(found(&mut index, &all), (150, vec![0, 1, 2]));
        assert_eq!(found(&mut index, &all[..128]), (128, vec![0, 1]));
        assert_eq!(found(&mut index, &all[..70]), (70, vec![0, 1]), "a part of a page");
        assert_eq!(found(&mut index, &[0, 1, 9]), (2, vec![0]));
        assert_eq!(found(&mut index, &[9]), (0, vec![]));
        assert_eq!(index.find("another", &all).positions, 0);
        // Adding the same prompt again changes nothing; a fuller page replaces one with fewer tokens.
        add(&mut index, &mut pools, &all[..150]);
        assert_eq!(index.held, 3 * pools.full.bytes(0));
        add(&mut index, &mut pools, &all[..180]);
        assert_eq!((index.held, found(&mut index, &all).0), (3 * pools.full.bytes(0), 180));
        add(&mut index, &mut pools, &all[..140]);
        assert_eq!((index.held, found(&mut index, &all).0), (3 * pools.full.bytes(0), 180));
    }

    #[test]
    fn what_was_of_no_use_for_longest_goes_first_and_leaves_nothing() {
        let (mut pools, all) = (pools(), (0..200).collect::<Vec<u32>>());
        let mut index = index(usize::MAX);
        let other = [&all[..64], &[7; 100]].concat();
        add(&mut index, &mut pools, &all);
        add(&mut index, &mut pools, &other);
        found(&mut index, &all);
        assert!(index.give_up(&mut pools) && index.give_up(&mut pools));
        assert_eq!((found(&mut index, &all).0, found(&mut index, &other).0), (200, 64));
        // A page that a sequence uses stays, and so do those before it.
        let (_, table) = found(&mut index, &all[..128]);
        pools.full.share(table[1]);
        while index.give_up(&mut pools) {}
        assert_eq!(found(&mut index, &all), (128, table.clone()));
        pools.full.release(table[1]);
        while index.give_up(&mut pools) {}
        assert_eq!((index.held, index.roots.len()), (0, 0));
        assert_eq!((0..8).filter(|_| pools.full.take().is_some()).count(), 8, "all are free");
    }

    #[test]
    fn the_longest_common_beginning_but_for_the_last_token() {
        assert_eq!(reusable(&[], &[1, 2]), 0);
        assert_eq!(reusable(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(reusable(&[9, 2, 3], &[1, 2, 3]), 0);
        assert_eq!(reusable(&[1, 2, 3], &[1, 2, 3]), 2, "its last token is computed");
        assert_eq!(reusable(&[1, 2, 3, 4], &[1, 2]), 1, "and that of a shorter one");
        assert_eq!(reusable(&[1], &[]), 0);
    }

    #[test]
    fn a_prompt_is_forgotten_and_others_keep_what_they_share() {
        let mut pools = pools();
        let mut index = index(1 << 30);
        let one: Vec<u32> = (0..2 * POSITIONS as u32 + 5).collect();
        let other: Vec<u32> = (0..POSITIONS as u32).chain(1000..1000 + POSITIONS as u32).collect();
        add(&mut index, &mut pools, &one);
        add(&mut index, &mut pools, &other);
        let has = |index: &mut PrefixIndex, tokens: &[u32]| index.find("", tokens).positions;
        assert_eq!((has(&mut index, &one), has(&mut index, &other)), (one.len(), other.len()));
        assert_eq!(index.forget("else", &one, &mut pools), 0);
        assert_eq!(index.forget("", &one, &mut pools), POSITIONS + 5);
        assert_eq!((has(&mut index, &one), has(&mut index, &other)), (POSITIONS, other.len()));
        assert_eq!(index.forget("", &one, &mut pools), 0);
        assert_eq!(index.forget("", &other, &mut pools), 2 * POSITIONS);
        assert_eq!((index.held(), has(&mut index, &other)), (0, 0));
    }
}
