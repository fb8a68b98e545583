//! Sets of ranges, for the locked parts of a map.

use std::ops::Range;

/// Ranges that may overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<Range<usize>>);

impl Ranges {
    pub fn add(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.0.push(range);
        }
    }

    pub fn all(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Removes `range` from all ranges.
    pub fn remove(&mut self, range: &Range<usize>) {
        self.0 = self.0.drain(..).flat_map(|held| without(held, range)).collect();
    }

    /// The parts of `range` that remain after removing all ranges, each widened by `outward`.
    pub fn spare(
        &self,
        range: Range<usize>,
        outward: impl Fn(&Range<usize>) -> Range<usize>,
    ) -> Vec<Range<usize>> {
        let mut left = vec![range];
        for held in &self.0 {
            let held = outward(held);
            left = left.into_iter().flat_map(|part| without(part, &held)).collect();
        }
        left
    }
}

/// `a` minus `b`: up to two ranges, none of them empty.
fn without(a: Range<usize>, b: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let parts = [a.start..a.end.min(b.start), a.start.max(b.end)..a.end];
    let none = b.is_empty() || b.end <= a.start || a.end <= b.start;
    let parts = if none { [a, 0..0] } else { parts };
    parts.into_iter().filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_out_is_exactly_that() {
        // Every pair of ranges over ten positions, checked against a set of positions.
        let ranges: Vec<_> = (0..10).flat_map(|a| (0..10).map(move |b| a..b)).collect();
        for a in &ranges {
            for b in &ranges {
                let left: Vec<usize> = without(a.clone(), b).flatten().collect();
                let expected: Vec<usize> = a.clone().filter(|i| !b.contains(i)).collect();
                assert_eq!(left, expected, "{a:?} less {b:?}");
            }
        }
    }

    #[test]
    fn ranges_overlap_and_are_taken_out_of_all() {
        let mut held = Ranges::default();
        held.add(10..20);
        held.add(15..30);
        held.add(7..7);
        assert_eq!(held.spare(0..40, Range::clone), [0..10, 30..40]);
        assert_eq!(held.spare(0..40, |r| r.start - 1..r.end + 1), [0..9, 31..40]);
        held.remove(&(12..18));
        assert_eq!(held.spare(0..40, Range::clone), [0..10, 12..18, 30..40]);
    }
}
