//! The tokens and merges of BPE: every name checked, and the order in which the merges create tokens.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::super::count_cuts;
use super::text::{Entries, Merge, Text};
use super::{File, TokenizerError as E};

/// The tokens of a model, including added ones.
pub(super) struct Table<'f, 'a> {
    /// Id and text, ascending by id.
    pub entries: Vec<(u32, &'f Text<'a>)>,
    /// Index in `entries` by text.
    index: HashMap<&'f str, u32>,
}

impl<'f, 'a> Table<'f, 'a> {
    /// Sorts the tokens and builds the index.
    pub fn of(file: &'f File<'a>, ids: &'f [(Text<'a>, u32)]) -> Result<Table<'f, 'a>, E> {
        let own = ids.iter().map(|(text, id)| (*id, text));
        let added = file.added_tokens.iter().map(|added| (added.id, &added.content));
        let mut entries: Vec<_> = own.chain(added).collect();
        // Stable, so that of two equal ids the model's comes first.
        entries.sort_by_key(|(id, _)| *id);
        entries.dedup();
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (first, second) = (pair[0].1.as_str().into(), pair[1].1.as_str().into());
            return Err(E::DuplicateId { id: pair[0].0, first, second });
        }
        if entries.is_empty() {
            return Err(E::Empty);
        }
        let mut index = HashMap::with_capacity(entries.len());
        // There are fewer than the file has bytes, which is less than 2^32.
        for (at, (id, text)) in (0_u32..).zip(&entries) {
            if let Some(first) = index.insert(text.as_str(), at) {
                let (first, second) = (entries[first as usize].0.into(), (*id).into());
                return Err(E::DuplicateToken { first, second, text: text.as_str().into() });
            }
        }
        Ok(Table { entries, index })
    }

    /// The index of the entry with exactly this text.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.index.get(text).copied()
    }

    /// The id of the token with exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        self.find(text).map(|at| self.entries[at as usize].0)
    }
}

/// A merge, by indices into the table.
pub(super) struct Ranked {
    pub left: u32,
    pub right: u32,
    pub joint: u32,
}

/// The merges of a file by rank.
pub(super) fn merges(file: &File<'_>, table: &Table<'_, '_>) -> Result<Vec<Ranked>, E> {
    let given = file.model.merges.as_deref().unwrap_or_default();
    let mut found = Vec::with_capacity(given.len());
    let mut seen = HashSet::with_capacity(given.len());
    let mut joint = String::new();
    for (merge, text) in given.iter().enumerate() {
        let (left, right) = match text {
            Merge::Pair(left, right) => (left.as_str(), right.as_str()),
            Merge::Joined(text) => {
                let text = text.as_str();
                let two = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                two.ok_or_else(|| E::MergeText { merge, text: text.into() })?
            }
        };
        let token = |text: &str| {
            let (l, r) = (left.into(), right.into());
            let unknown = || E::MergeOfUnknown { merge, left: l, right: r, missing: text.into() };
            table.find(text).ok_or_else(unknown)
        };
        joint.clear();
        joint.push_str(left);
        joint.push_str(right);
        let ranked = Ranked { left: token(left)?, right: token(right)?, joint: token(&joint)? };
        if !seen.insert((ranked.left, ranked.right)) {
            let same = |other: &Ranked| (other.left, other.right) == (ranked.left, ranked.right);
            let first = found.iter().position(same).unwrap_or_default();
            let (left, right) = (left.into(), right.into());
            return Err(E::DuplicateMerge { first, second: merge, left, right });
        }
        found.push(ranked);
    }
    Ok(found)
}

/// Merges as GGUF has them, `left right`. Spaces within tokens become the character that represents them in the
/// alphabet of bytes, as in llama.cpp's converter.
pub(super) fn written<'a>(file: &File<'a>) -> Vec<Cow<'a, str>> {
    let given = file.model.merges.as_deref().unwrap_or_default();
    let written = given.iter().map(|merge| match merge {
        Merge::Joined(text) => text.0.clone(),
        Merge::Pair(left, right) => {
            let spelled = |text: &Text<'_>| text.as_str().replace(' ', "Ġ");
            format!("{} {}", spelled(left), spelled(right)).into()
        }
    });
    written.collect()
}

/// For every token, the rank of the first merge that creates it; `None` if no merge does.
pub(super) fn made_first(table: &Table<'_, '_>, merges: &[Ranked]) -> Vec<Option<u32>> {
    let mut first = vec![None; table.entries.len()];
    for (rank, merge) in (0_u32..).zip(merges) {
        first[merge.joint as usize].get_or_insert(rank);
    }
    first
}

/// Counts the tokens at `normal` whose merging a score cannot express: SentencePiece would create such a token
/// from any two tokens, but the merges only from some; or its merges have others between them.
///
/// # Errors
/// Tokens are longer than any model's.
pub(super) fn not_by_score(
    table: &Table<'_, '_>,
    merges: &[Ranked],
    normal: &[usize],
) -> Result<usize, E> {
    let mut ways = vec![0_u32; table.entries.len()];
    let mut apart = vec![false; table.entries.len()];
    let mut before = None;
    for merge in merges {
        let joint = merge.joint as usize;
        apart[joint] |= ways[joint] > 0 && before != Some(joint);
        ways[joint] += 1;
        before = Some(joint);
    }
    let all = |text: &str| {
        let cuts = text.char_indices().skip(1);
        let able = |cut: &(usize, char)| {
            let (left, right) = text.split_at(cut.0);
            table.find(left).is_some() && table.find(right).is_some()
        };
        cuts.filter(able).count()
    };
    let (mut otherwise, mut cuts) = (0, 0);
    for &at in normal.iter().filter(|at| ways[**at] > 0) {
        let text = table.entries[at].1.as_str();
        count_cuts(&mut cuts, text.len())?;
        otherwise += usize::from(apart[at] || all(text) != ways[at] as usize);
    }
    Ok(otherwise)
}

/// The ids of a vocabulary, which BPE requires.
pub(super) fn ids<'f, 'a>(file: &'f File<'a>) -> Result<&'f [(Text<'a>, u32)], E> {
    match &file.model.vocab {
        Entries::Ids(ids) => Ok(ids),
        Entries::Scores(_) => Err(E::Inconsistent {
            problem: "model: its vocabulary has scores, expected ids for BPE",
        }),
    }
}
