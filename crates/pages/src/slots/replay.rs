//! Computes which pieces of a recorded run would have been in slots, under several eviction rules. Nothing is read.

use super::expected::{Uses, until};

/// A visit of a group, and the pieces of it that were wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// The group.
    pub group: usize,
    /// Its pieces, each once, in order.
    pub wanted: Vec<usize>,
}

/// The rule that selects the piece to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The piece whose next use is expected last, as in [`Slots`](super::Slots).
    Expected,
    /// The least recently used piece.
    LeastRecent,
    /// The piece whose next use is actually last: no rule can be better.
    Clairvoyant,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 3] = [Rule::Expected, Rule::LeastRecent, Rule::Clairvoyant];
}

/// The number of pieces that were wanted, and how many of them would have been resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of pieces that were wanted.
    pub wanted: u64,
    /// Number of those that would have been resident.
    pub hits: u64,
}

impl Replayed {
    /// The share of pieces that would have been resident.
    pub fn share(&self) -> f64 {
        self.hits as f64 / self.wanted.max(1) as f64
    }
}

/// Replays `visits` of groups of `groups` pieces with `capacity` slots, each of which takes any piece. Visits before visit `first`
/// determine which pieces are resident, but do not count in the result.
///
/// # Panics
/// If a visit is of a group or a piece that does not exist, or wants more pieces than there are slots.
pub fn replay(
    groups: &[usize],
    visits: &[Visited],
    capacity: usize,
    rule: Rule,
    first: usize,
) -> Replayed {
    let starts: Vec<usize> =
        groups.iter().scan(0, |end, len| Some(std::mem::replace(end, *end + len))).collect();
    let pieces = groups.iter().sum();
    let pieces_of = |visit: &Visited| {
        let start = starts[visit.group];
        assert!(visit.wanted.iter().all(|piece| *piece < groups[visit.group]), "a piece of it");
        visit.wanted.iter().map(move |piece| start + piece).collect::<Vec<usize>>()
    };
    // By piece: the visits that want it, in reverse order.
    let mut to_come: Vec<Vec<usize>> =
        vec![Vec::new(); if rule == Rule::Clairvoyant { pieces } else { 0 }];
    if rule == Rule::Clairvoyant {
        for (i, visit) in visits.iter().enumerate().rev() {
            pieces_of(visit).into_iter().for_each(|piece| to_come[piece].push(i));
        }
    }
    let group_of: Vec<usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, len)| std::iter::repeat_n(group, *len))
        .collect();
    let (mut slots, mut there) = (Vec::with_capacity(capacity), vec![false; pieces]);
    let (mut uses, mut last) = (vec![Uses::default(); pieces], vec![0; pieces]);
    let (mut cycle, mut before) = (1, 0);
    let mut result = Replayed::default();
    for (i, visit) in visits.iter().enumerate() {
        let wanted = pieces_of(visit);
        assert!(wanted.len() <= capacity, "{} pieces at once, and {capacity} slots", wanted.len());
        cycle += u64::from(i > 0 && visit.group <= before);
        before = visit.group;
        for piece in &wanted {
            uses[*piece].add(cycle, wanted.len(), groups[visit.group]);
            last[*piece] = i + 1;
            if let Some(uses) = to_come.get_mut(*piece) {
                uses.pop();
            }
            if i >= first {
                result.wanted += 1;
                result.hits += u64::from(there[*piece]);
            }
        }
        for piece in &wanted {
            if there[*piece] {
                continue;
            }
            let slot = if slots.len() < capacity {
                slots.push(*piece);
                slots.len() - 1
            } else {
                let key = |piece: usize| match rule {
                    Rule::Expected => {
                        let until = until(group_of[piece], visit.group, groups.len());
                        f64::from(uses[piece].expected(cycle, until, groups.len()))
                    }
                    Rule::LeastRecent => -(last[piece] as f64),
                    Rule::Clairvoyant => {
                        to_come[piece].last().map_or(f64::INFINITY, |next| *next as f64)
                    }
                };
                let mut worst: Option<(f64, usize)> = None;
                for (slot, piece) in slots.iter().enumerate() {
                    // Pieces that are wanted now stay.
                    if last[*piece] <= i {
                        let key = key(*piece);
                        if worst.is_none_or(|(most, _)| key > most) {
                            worst = Some((key, slot));
                        }
                    }
                }
                worst.expect("a piece that is not wanted now").1
            };
            let gone = std::mem::replace(&mut slots[slot], *piece);
            there[gone] = false;
            there[*piece] = true;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Visits of one group after another, each with the given pieces.
    fn visits(groups: usize, wanted: &[&[usize]]) -> Vec<Visited> {
        let visit = |(i, wanted): (usize, &&[usize])| Visited {
            group: i % groups,
            wanted: wanted.to_vec(),
        };
        wanted.iter().enumerate().map(visit).collect()
    }

    #[test]
    fn the_rules_on_small_traces() {
        #[rustfmt::skip]
        #[allow(clippy::type_complexity)]
        let table: [(&str, &[usize], &[&[usize]], usize, [u64; 3]); 5] = [
            ("all of it fits", &[3], &[&[0], &[1], &[2], &[0], &[1], &[2]], 3, [3, 3, 3]),
            // By the last use alone, each piece is evicted just before it is used.
            ("a cycle that does not fit", &[1, 1, 1], &[&[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0]], 2, [2, 0, 3]),
            ("one that always comes, beside others", &[5], &[&[0], &[0], &[1], &[0], &[2], &[0], &[3], &[0], &[4], &[0]], 2, [5, 5, 5]),
            ("several at once", &[4], &[&[0, 1], &[0, 2], &[0, 1], &[0, 3], &[0, 1]], 3, [6, 6, 6]),
            ("nothing twice", &[4], &[&[0], &[1], &[2], &[3]], 1, [0, 0, 0]),
        ];
        for (name, groups, wanted, capacity, hits) in table {
            let visits = visits(groups.len(), wanted);
            let found = Rule::ALL.map(|rule| replay(groups, &visits, capacity, rule, 0));
            assert_eq!(found.map(|replayed| replayed.hits), hits, "{name}");
            let all: usize = wanted.iter().map(|wanted| wanted.len()).sum();
            assert!(found.iter().all(|replayed| replayed.wanted == all as u64), "{name}");
        }
    }

    #[test]
    fn what_is_before_the_first_counts_for_what_is_there_alone() {
        let visits = visits(1, &[&[0], &[1], &[0], &[1]]);
        for rule in Rule::ALL {
            assert_eq!(replay(&[2], &visits, 2, rule, 2), Replayed { wanted: 2, hits: 2 });
        }
    }
}
