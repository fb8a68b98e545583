//! When a piece will be wanted again, as far as its past uses tell.
//!
//! Groups are visited in a cycle, and each visit wants some pieces of its group. For each piece it is known in how many visits its
//! group comes next, and how often it was wanted when its group came. If it is wanted with the same probability `p` each time, it is
//! wanted next after `1/p` visits of its group. A rule that knows the cycle has no cliff: by the time of last use alone, all pieces
//! of a cycle that does not fit would be given up just before they are wanted.
//!
//! A visit that wants most of its group, as those of a long prompt do, tells little about a single piece, and a recent use then
//! means nothing. So pieces that such visits bring are evicted before those that others wanted.

use std::sync::LazyLock;

/// Number of cycles after which a use counts half.
const HALF_LIFE: f32 = 16.0;
/// Weight of a use by a visit that wanted most pieces of the group.
const OF_MOST: f32 = 0.1;

/// The times at which a piece was wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Uses {
    /// The share of cycles in which it was wanted, with recent ones weighted more; as of `last`.
    share: f32,
    /// The last cycle in which it was wanted, and the last in which a visit wanted it that did not want most of its group; 0: never.
    last: u64,
    alone: u64,
}

impl Uses {
    /// Records that the piece is wanted in a cycle, by a visit that wants `wanted` of the `all` pieces of a group.
    pub(super) fn add(&mut self, cycle: u64, wanted: usize, all: usize) {
        let few = 2 * wanted <= all;
        let counts = if few { 1.0 } else { OF_MOST };
        if few {
            self.alone = cycle;
        }
        let kept = fading(cycle - self.last);
        // Two uses in one cycle count as one.
        if kept < 1.0 || self.share == 0.0 {
            self.share = self.share * kept + counts * (1.0 - fading(1));
            self.last = cycle;
        }
    }

    /// The probability that it is wanted when its group comes next, in `cycle` or later: half of it follows from how often it was
    /// wanted, half from how long ago that was.
    fn probability(&self, cycle: u64) -> f32 {
        let recent = match self.alone {
            0 => 0.0,
            alone => 1.0 / (1.5 + (cycle - alone) as f32),
        };
        0.5 * self.share * fading(cycle - self.last) + 0.5 * recent
    }

    /// Returns the number of visits after which it is expected to be wanted, if its group comes in `until` visits, and every
    /// `groups` visits from then on.
    pub(super) fn expected(&self, cycle: u64, until: usize, groups: usize) -> f32 {
        let comings = 1.0 / self.probability(cycle).max(1e-6) - 1.0;
        until as f32 + groups as f32 * comings
    }
}

/// Returns in how many visits the group `of` comes, after one of group `now`. The next visit of a group may want pieces that this
/// one does not.
pub(super) fn until(of: usize, now: usize, groups: usize) -> usize {
    match (of + groups - now) % groups {
        0 => groups,
        ahead => ahead,
    }
}

/// The weight of a use after this many cycles.
fn fading(cycles: u64) -> f32 {
    /// A table, since a victim is selected among thousands of pieces.
    static TABLE: LazyLock<[f32; 256]> = LazyLock::new(|| {
        std::array::from_fn(|cycles| (-std::f32::consts::LN_2 / HALF_LIFE * cycles as f32).exp())
    });
    TABLE.get(cycles as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(uses: impl IntoIterator<Item = u64>) -> Uses {
        let mut all = Uses::default();
        uses.into_iter().for_each(|cycle| all.add(cycle, 1, 8));
        all
    }

    #[test]
    fn what_is_wanted_often_and_lately_is_expected_sooner() {
        let expected = |uses: &Uses| uses.expected(100, 3, 48);
        let (always, lately, once) = (after(0..100), after([98, 99]), after([99]));
        let (long_ago, never) = (after([10]), Uses::default());
        let order = [always, lately, once, long_ago, never].map(|uses| expected(&uses));
        assert!(order.is_sorted() && order[0] < order[4], "{order:?}");
        assert!(expected(&always) < 3.0 + 48.0, "the next coming or the one after");
    }

    #[test]
    fn of_two_alike_the_one_whose_group_comes_sooner_is_wanted_sooner() {
        let uses = after([5, 7]);
        assert!(uses.expected(8, 1, 48) < uses.expected(8, 2, 48));
        // So most of a cycle that does not fit is kept: the piece that was just used is the one that is wanted last.
        assert!(uses.expected(8, 48, 48) > uses.expected(8, 47, 48));
    }

    #[test]
    fn what_is_wanted_with_most_others_goes_first() {
        let (mut before, mut streamed) = (after([90]), Uses::default());
        streamed.add(99, 8, 8);
        assert!(before.expected(100, 3, 48) < streamed.expected(100, 3, 48));
        // The use must not make it expected later than before.
        let expected = before.expected(100, 3, 48);
        before.add(99, 8, 8);
        assert!(before.expected(100, 3, 48) < expected);
        assert!(streamed.expected(100, 3, 48) < Uses::default().expected(100, 3, 48));
    }

    #[test]
    fn uses_of_one_cycle_count_once() {
        assert_eq!(after([4, 4, 4]), after([4]));
        assert!(after([4, 5]).share > after([4]).share);
    }
}
