//! The search for spellings of special tokens in a text.
//!
//! Longer spellings are found before shorter ones, wherever they are; among spellings of one length the leftmost
//! first. (llama.cpp tries the tokens one by one, in the same order of lengths.)
//!
//! One pass over the text from its end, by an Aho-Corasick automaton over the reversed spellings, finds the
//! longest spelling that begins at each offset; shorter ones there are its prefixes, in a chain. Then the
//! spellings are taken by length. A spelling that no longer fits, because a longer one has taken a part of it, is
//! replaced by the longest of its prefixes that does fit. The distance to the blocking spelling at least halves
//! each time: a blocking spelling is longer than the one it blocks, and lies in the range left by the previous
//! blocking one. So an offset is examined at most a logarithmic number of times in the length of the text, and
//! the whole takes O(n log² n) for a text of n bytes, whatever the vocabulary. Memory is proportional to the
//! spellings, which are bounded ([`super::vocab::MAX_SPELLINGS`]), and to the text.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use super::vocab::{TokenBits, Vocab};

/// No node, or no spelling.
const NONE: u32 = u32::MAX;

/// A fragment of a text: plain text, or a token found by its spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Start and end, in bytes.
    Text(u32, u32),
    Token(u32),
}

/// The spellings that count, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Search<'p> {
    /// The spellings of user-defined tokens.
    User,
    /// The spellings of control and unknown tokens, without the white space that some of them absorb.
    Control,
    /// Both; but a control or unknown token whose spelling reaches into one of these ranges
    /// (ascending, disjoint) does not count.
    Around(&'p [Range<usize>]),
}

/// Finds the spellings of special tokens.
pub(crate) struct Finder {
    spellings: Vec<Spelling>,
    /// For each spelling, the longest other one that it begins with and that belongs to a user-defined token.
    user: Chain,
    /// The same for control and unknown tokens.
    control: Chain,
    automaton: Automaton,
}

/// The spelling of one token.
struct Spelling {
    id: u32,
    /// In bytes.
    len: u32,
    /// True for a user-defined token, which is found in any text.
    user: bool,
    strip_left: bool,
    strip_right: bool,
}

impl Finder {
    /// Creates a search for these special tokens of `vocab`, with their texts: user-defined, control and unknown ones.
    pub(crate) fn new<'v>(vocab: &Vocab, special: impl Iterator<Item = (u32, &'v [u8])>) -> Finder {
        // A spelling that is not UTF-8 could match inside a character.
        let possible = |text: &[u8]| !text.is_empty() && std::str::from_utf8(text).is_ok();
        let mut found: Vec<(u32, &[u8])> = special.filter(|(_, text)| possible(text)).collect();
        found.sort_unstable_by_key(|&(id, text)| (text.len(), text, id));
        // If two tokens share a spelling, the first one counts.
        found.dedup_by_key(|(_, text)| *text);
        let spelling = |&(id, text): &(u32, &[u8])| Spelling {
            id,
            len: text.len() as u32,
            user: !vocab.kind(id).has(TokenBits::CONTROL.or(TokenBits::UNKNOWN)),
            strip_left: vocab.kind(id).has(TokenBits::STRIP_LEFT),
            strip_right: vocab.kind(id).has(TokenBits::STRIP_RIGHT),
        };
        let spellings: Vec<Spelling> = found.iter().map(spelling).collect();
        let texts: Vec<&[u8]> = found.iter().map(|(_, text)| *text).collect();
        let (automaton, parents) = Automaton::new(&texts);
        let chain = |user: bool| {
            let mut chain = Chain::default();
            for &parent in &parents {
                chain.push(chain.first(parent, |parent| spellings[parent as usize].user == user));
            }
            chain
        };
        Finder { user: chain(true), control: chain(false), spellings, automaton }
    }

    /// The longest spelling of at most `limit` bytes that is `longest` or a prefix of it, and that counts at `at`.
    fn that_fits(&self, longest: u32, at: usize, limit: usize, search: Search<'_>) -> Option<u32> {
        let (control, user) = match search {
            Search::User => (0, limit),
            Search::Control => (limit, 0),
            Search::Around(plain) => (limit.min(up_to(plain, at)), limit),
        };
        let len = |spelling: u32| self.spellings[spelling as usize].len as usize;
        let of = |chain: &Chain, user: bool, limit: usize| {
            let first = chain.first(longest, |s| self.spellings[s as usize].user == user);
            chain.at_most(first, limit, len)
        };
        let best = [of(&self.control, false, control), of(&self.user, true, user)];
        best.into_iter().flatten().max_by_key(|&found| len(found))
    }

    /// Cuts `text` into fragments; they are in order, and no text fragment is empty.
    pub(crate) fn partition(&self, text: &str, search: Search<'_>) -> Vec<Fragment> {
        let found = self.find(text.as_bytes(), search);
        let mut fragments = Vec::with_capacity(2 * found.len() + 1);
        let mut from = 0;
        for FoundToken { taken, id, .. } in found {
            if taken.start > from {
                fragments.push(Fragment::Text(from, taken.start));
            }
            fragments.push(Fragment::Token(id));
            from = taken.end;
        }
        if from < text.len() as u32 {
            fragments.push(Fragment::Text(from, text.len() as u32));
        }
        fragments
    }

    /// The ranges of `text` that spell control and unknown tokens, in order. The text between them
    /// spells no other.
    pub(crate) fn control(&self, text: &str) -> impl Iterator<Item = Range<usize>> + use<> {
        let found = self.find(text.as_bytes(), Search::Control).into_iter();
        found.map(|FoundToken { taken, .. }| taken.start as usize..taken.end as usize)
    }

    fn find(&self, text: &[u8], search: Search<'_>) -> Vec<FoundToken> {
        let mut queue = Vec::new();
        self.automaton.longest(text, |at, longest| {
            let best = self.that_fits(longest, at, text.len() - at, search);
            queue.extend(best.map(|best| self.entry(best, at as u32)));
        });
        let mut queue = BinaryHeap::from(queue);
        // Ranges that are still text, by their start.
        let mut free = BTreeMap::from([(0, text.len() as u32)]);
        let mut found = Vec::new();
        while let Some((len, Reverse(at), spelling)) = queue.pop() {
            let Some((&from, &to)) = free.range(..=at).next_back() else { continue };
            if at >= to {
                continue;
            }
            if to - at < len {
                let best = self.that_fits(spelling, at as usize, (to - at) as usize, search);
                queue.extend(best.map(|best| self.entry(best, at)));
                continue;
            }
            let taken = match search {
                Search::Control => at..at + len,
                _ => self.stripped(text, from..to, at..at + len, spelling),
            };
            free.remove(&from);
            if from < taken.start {
                free.insert(from, taken.start);
            }
            if taken.end < to {
                free.insert(taken.end, to);
            }
            found.push(FoundToken { taken, id: self.spellings[spelling as usize].id });
        }
        found.sort_unstable_by_key(|found| found.taken.start);
        found
    }

    /// The order of the queue: the longest first, and among equally long ones the leftmost.
    fn entry(&self, spelling: u32, at: u32) -> (u32, Reverse<u32>, u32) {
        (self.spellings[spelling as usize].len, Reverse(at), spelling)
    }

    /// `taken` extended by the adjacent white space that the token absorbs, within `free`.
    fn stripped(
        &self,
        text: &[u8],
        free: Range<u32>,
        mut taken: Range<u32>,
        spelling: u32,
    ) -> Range<u32> {
        let is_space = |at: u32| matches!(text[at as usize], b' ' | 0x09..=0x0d);
        let spelling = &self.spellings[spelling as usize];
        while spelling.strip_left && taken.start > free.start && is_space(taken.start - 1) {
            taken.start -= 1;
        }
        while spelling.strip_right && taken.end < free.end && is_space(taken.end) {
            taken.end += 1;
        }
        taken
    }
}

/// A token and the bytes of the text that it covers.
struct FoundToken {
    taken: Range<u32>,
    id: u32,
}

/// The number of bytes from `at` to the next of the ranges; 0 if it is in one.
fn up_to(plain: &[Range<usize>], at: usize) -> usize {
    let next = plain.partition_point(|range| range.end <= at);
    plain.get(next).map_or(usize::MAX, |range| range.start.saturating_sub(at))
}

/// Elements that each point to an earlier one, or to none, and are found along those pointers in
/// logarithmic time: each has a second pointer that leads further.
#[derive(Default)]
struct Chain {
    parents: Vec<u32>,
    jumps: Vec<u32>,
    depths: Vec<u32>,
}

impl Chain {
    /// Returns `element` if it counts, else its parent.
    fn first(&self, element: u32, counts: impl Fn(u32) -> bool) -> u32 {
        match element {
            NONE => NONE,
            _ if counts(element) => element,
            _ => self.parents[element as usize],
        }
    }

    fn push(&mut self, parent: u32) {
        let (mut jump, mut depth) = (parent, 0);
        if parent != NONE {
            depth = self.depths[parent as usize] + 1;
            // If the parent's jump and the next are equally long, jump over both.
            let next = self.jumps[parent as usize];
            if next != NONE && self.jumps[next as usize] != NONE {
                let far = self.jumps[next as usize];
                let depth = |of: u32| self.depths[of as usize];
                if depth(parent) - depth(next) == depth(next) - depth(far) {
                    jump = far;
                }
            }
        }
        self.parents.push(parent);
        self.jumps.push(jump);
        self.depths.push(depth);
    }

    /// The first of `from` and its ancestors whose `len`, which decreases along the way, is at most `most`.
    fn at_most(&self, from: u32, most: usize, len: impl Fn(u32) -> usize) -> Option<u32> {
        let mut at = from;
        while at != NONE && len(at) > most {
            let jump = self.jumps[at as usize];
            let far = jump != NONE && len(jump) > most;
            at = if far { jump } else { self.parents[at as usize] };
        }
        Some(at).filter(|&at| at != NONE)
    }
}

/// An Aho-Corasick automaton over reversed spellings. Nodes are numbered by depth, so the children of a
/// node are contiguous, in the order of their bytes, and a node's fallback precedes it. Node 0 is the
/// root.
struct Automaton {
    /// The byte that leads to a node from its parent.
    bytes: Vec<u8>,
    /// The first child of each node; the children of the next node follow. One element more than there are nodes.
    children: Vec<u32>,
    /// The node for the longest shorter beginning of a spelling that ends here.
    fails: Vec<u32>,
    /// The longest spelling that ends here.
    longest: Vec<u32>,
    /// The children of the root, by their bytes.
    first: [u32; 256],
}

impl Automaton {
    /// Builds the automaton of `spellings`, all different and none empty; returns it and, for each of
    /// them, the longest other one that it begins with.
    fn new(spellings: &[&[u8]]) -> (Automaton, Vec<u32>) {
        // Reversed once, and sorted by the first eight bytes as one number where these differ.
        let (mut backwards, mut starts) = (Vec::new(), vec![0]);
        for spelling in spellings {
            backwards.extend(spelling.iter().rev());
            starts.push(backwards.len());
        }
        let text = |spelling: u32| {
            let spelling = spelling as usize;
            &backwards[starts[spelling]..starts[spelling + 1]]
        };
        let mut keyed: Vec<(u64, u32)> = (0..spellings.len() as u32)
            .map(|spelling| (leading(text(spelling)), spelling))
            .collect();
        keyed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| text(a.1).cmp(text(b.1))));
        let order: Vec<u32> = keyed.into_iter().map(|(_, spelling)| spelling).collect();
        // The byte of a spelling at this distance from its end.
        let byte = |spelling: u32, depth: usize| text(spelling).get(depth).copied();
        let mut automaton = Automaton {
            bytes: vec![0],
            children: Vec::new(),
            fails: vec![0],
            longest: vec![NONE],
            first: [0; 256],
        };
        let mut parents = vec![NONE; spellings.len()];
        // The spellings that end in the text of each node, as ranges of `order`.
        let mut level: Vec<Range<usize>> = std::iter::once(0..order.len()).collect();
        let mut depth = 0;
        while !level.is_empty() {
            let begin = automaton.children.len();
            let mut below = Vec::new();
            for (node, range) in (begin..).zip(&level) {
                automaton.children.push(automaton.bytes.len() as u32);
                // The fallback node is less deep, and complete.
                automaton.longest[node] = automaton.longest[automaton.fails[node] as usize];
                let mut rest = range.clone();
                // A spelling that ends here comes first, and has no more bytes.
                if let Some(&spelling) = order[rest.clone()].first()
                    && byte(spelling, depth).is_none()
                {
                    parents[spelling as usize] = automaton.longest[node];
                    automaton.longest[node] = spelling;
                    rest.start += 1;
                }
                while let Some(&spelling) = order[rest.clone()].first() {
                    let here = byte(spelling, depth);
                    let len = order[rest.clone()].partition_point(|&s| byte(s, depth) <= here);
                    below.push(rest.start..rest.start + len);
                    rest.start += len;
                    automaton.add(node as u32, here.unwrap_or(0));
                }
            }
            (level, depth) = (below, depth + 1);
        }
        automaton.children.push(automaton.bytes.len() as u32);
        (automaton, parents)
    }

    /// Adds a new child of `parent`. All nodes that are less deep than the child are complete.
    fn add(&mut self, parent: u32, byte: u8) {
        let child = self.bytes.len() as u32;
        let fail = match parent {
            0 => {
                self.first[usize::from(byte)] = child;
                0
            }
            _ => self.step(self.fails[parent as usize], byte),
        };
        self.bytes.push(byte);
        self.fails.push(fail);
        self.longest.push(NONE);
    }

    /// The node that `byte` leads to from `node`.
    #[inline]
    fn step(&self, mut node: u32, byte: u8) -> u32 {
        while node != 0 {
            let children = self.children[node as usize]..self.children[node as usize + 1];
            let start = children.start as usize;
            let children = &self.bytes[start..children.end as usize];
            if let Ok(at) = children.binary_search(&byte) {
                return (start + at) as u32;
            }
            node = self.fails[node as usize];
        }
        self.first[usize::from(byte)]
    }

    /// Calls `found` with each offset of `text` where a spelling begins and the longest such spelling, from the end.
    fn longest(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (at, &byte) in text.iter().enumerate().rev() {
            node = self.step(node, byte);
            let longest = self.longest[node as usize];
            if longest != NONE {
                found(at, longest);
            }
        }
    }
}

/// The first eight bytes as one number that orders texts by those bytes.
fn leading(text: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = text.len().min(first.len());
    first[..len].copy_from_slice(&text[..len]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::super::vocab::SPECIAL;
    use super::*;

    /// Creates a finder of these spellings.
    fn finder(spellings: &[(&str, TokenBits)]) -> (Finder, Vocab) {
        let texts: Vec<&str> = spellings.iter().map(|(text, _)| *text).collect();
        let mut vocab = Vocab::of(&texts, &[]).unwrap();
        for (id, &(_, kind)) in (0..).zip(spellings) {
            vocab.set_kind(id, kind);
        }
        let texts = (0..).zip(vocab.texts().iter());
        let special = texts.filter(|(id, _)| vocab.kind(*id).has(SPECIAL));
        (Finder::new(&vocab, special), vocab)
    }

    /// The rule itself: length by length, each from the left.
    fn by_the_rule(text: &str, vocab: &Vocab, search: Search<'_>) -> Vec<Fragment> {
        let control = TokenBits::CONTROL.or(TokenBits::UNKNOWN);
        let bytes = text.as_bytes();
        let is_space = |at: usize| matches!(bytes[at], b' ' | 0x09..=0x0d);
        let mut out = vec![Fragment::Text(0, bytes.len() as u32)];
        out.retain(|_| !bytes.is_empty());
        for len in (1..=bytes.len()).rev() {
            let mut next = Vec::new();
            for fragment in out {
                let Fragment::Text(from, to) = fragment else {
                    next.push(fragment);
                    continue;
                };
                let (mut from, to) = (from as usize, to as usize);
                let mut at = from;
                while at + len <= to {
                    let id = vocab.id(&bytes[at..at + len]).filter(|&id| {
                        let kind = vocab.kind(id);
                        let plain = match search {
                            Search::User => true,
                            Search::Control => false,
                            Search::Around(plain) => {
                                plain.iter().any(|p| p.start < at + len && p.end > at)
                            }
                        };
                        match kind.has(control) {
                            true => !plain,
                            false => {
                                kind.has(TokenBits::USER) && !matches!(search, Search::Control)
                            }
                        }
                    });
                    let Some(id) = id else {
                        at += 1;
                        continue;
                    };
                    let strips =
                        |kind| vocab.kind(id).has(kind) && !matches!(search, Search::Control);
                    let mut left = at;
                    while strips(TokenBits::STRIP_LEFT) && left > from && is_space(left - 1) {
                        left -= 1;
                    }
                    if left > from {
                        next.push(Fragment::Text(from as u32, left as u32));
                    }
                    next.push(Fragment::Token(id));
                    from = at + len;
                    while strips(TokenBits::STRIP_RIGHT) && from < to && is_space(from) {
                        from += 1;
                    }
                    at = from;
                }
                if from < to {
                    next.push(Fragment::Text(from as u32, to as u32));
                }
            }
            out = next;
        }
        out
    }

    #[test]
    fn spellings_are_found_as_the_rule_says() {
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let kinds = [TokenBits::USER, TokenBits::CONTROL, TokenBits::UNKNOWN, TokenBits::NORMAL]
            .map(|kind| [kind, kind.or(TokenBits::STRIP_LEFT), kind.or(TokenBits::STRIP_RIGHT)]);
        for round in 0..3000 {
            // Few letters, so that spellings overlap in every way.
            let alphabet = &["a", "b", " ", "é"][..2 + round % 3];
            let mut word = |most: u64| -> String {
                let len = 1 + random(most);
                (0..len).map(|_| alphabet[random(alphabet.len() as u64) as usize]).collect()
            };
            let mut words: Vec<String> = (0..1 + round % 12).map(|_| word(6)).collect();
            let text = word(60);
            words.sort();
            words.dedup();
            let mut kind = || kinds[random(4) as usize][random(6).min(2) as usize];
            let spellings: Vec<(&str, TokenBits)> = words.iter().map(|w| (&**w, kind())).collect();
            let (finder, vocab) = finder(&spellings);
            let cut = random(text.len() as u64) as usize;
            let plain = [cut / 2..cut, cut + 1..cut + 3];
            for search in
                [Search::User, Search::Control, Search::Around(&[]), Search::Around(&plain)]
            {
                let found = finder.partition(&text, search);
                let expected = by_the_rule(&text, &vocab, search);
                assert_eq!(found, expected, "{text:?} {spellings:?} {search:?}");
            }
        }
    }

    #[test]
    fn every_length_of_one_letter_in_a_long_text_of_it() {
        // As many spellings as there are lengths, each of which fits nearly everywhere: applying the
        // rule literally is the text times all lengths, 10^13 bytes compared.
        const LENGTHS: usize = 4000;
        let words: Vec<String> = (1..=LENGTHS).map(|n| "a".repeat(n)).collect();
        let spellings: Vec<(&str, TokenBits)> =
            words.iter().map(|w| (&**w, TokenBits::CONTROL)).collect();
        let (finder, _) = finder(&spellings);
        let text = "a".repeat(1_000_000);
        let found = finder.partition(&text, Search::Around(&[]));
        assert_eq!(found.len(), 250);
        // The same where only ever shorter ones fit, and in the end none.
        let plain: Vec<Range<usize>> = (0..1000).map(|i| i * 1000 + 990..i * 1000 + 1000).collect();
        let found = finder.partition(&text, Search::Around(&plain));
        assert_eq!(found.iter().filter(|f| matches!(f, Fragment::Token(989))).count(), 1000);
        assert_eq!(finder.partition(&text, Search::User), [Fragment::Text(0, 1_000_000)]);
    }
}
