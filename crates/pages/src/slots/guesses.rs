//! Decides which guesses are worth a read: those of classes that were right before.

/// Number of classes of guesses, by how sure the visit is that makes them. Any measure works, as long as guesses of a class are right about as
/// often as earlier ones of that class.
const CLASSES: usize = 32;

/// Maximum number of pieces that a visit may name: the others are neither read nor judged.
const CANDIDATES: usize = 32;
/// A class is trusted until this many of its candidates were judged.
const FEW: u32 = 16;
/// Once this many were judged, the older ones count half.
const MANY: u32 = 256;
/// The number of candidates of a class that must be right, out of ten. A read for a wrong one takes as long as one for a right one, but uses time
/// in which the disk would have been idle.
const RIGHT_IN_TEN: u32 = 9;

/// The pieces that a visit has named of the group that comes next, and how often each class was right.
pub(super) struct Guesses {
    candidates: [Candidate; CANDIDATES],
    count: usize,
    classes: [GuessRecord; CLASSES],
}

/// A piece that was not resident when it was named.
#[derive(Clone, Copy, Default)]
struct Candidate {
    piece: u32,
    class: u8,
    read: bool,
}

#[derive(Clone, Copy, Default)]
struct GuessRecord {
    judged: u32,
    right: u32,
}

impl Guesses {
    pub(super) fn new() -> Guesses {
        Guesses {
            candidates: [Candidate::default(); CANDIDATES],
            count: 0,
            classes: [GuessRecord::default(); CLASSES],
        }
    }

    /// Forgets the pieces that were named and not judged.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// True if guesses of a class were right often enough.
    pub(super) fn trusts(&self, class: u8) -> bool {
        let GuessRecord { judged, right } = self.classes[number(class)];
        judged < FEW || 10 * right >= RIGHT_IN_TEN * judged
    }

    /// Records a piece that was not resident, and whether it is read.
    pub(super) fn add(&mut self, piece: usize, class: u8, read: bool) {
        if let Some(free) = self.candidates.get_mut(self.count) {
            *free = Candidate { piece: piece as u32, class, read };
            self.count += 1;
        }
    }

    /// Judges the named pieces by those that are wanted now. Returns how many of those that were read are wanted.
    pub(super) fn judge(&mut self, is_wanted: impl Fn(usize) -> bool) -> u64 {
        let mut right_reads = 0;
        for Candidate { piece, class, read } in &self.candidates[..self.count] {
            let right = is_wanted(*piece as usize);
            let record = &mut self.classes[number(*class)];
            record.judged += 1;
            record.right += u32::from(right);
            if record.judged >= MANY {
                *record = GuessRecord { judged: record.judged / 2, right: record.right / 2 };
            }
            right_reads += u64::from(right && *read);
        }
        self.count = 0;
        right_reads
    }
}

/// The index of a class: classes above the last one are counted with it.
fn number(class: u8) -> usize {
    usize::from(class).min(CLASSES - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Judges one candidate of a class after another, some of which are right.
    fn judge(guesses: &mut Guesses, class: u8, count: u32, is_right: impl Fn(u32) -> bool) {
        for i in 0..count {
            guesses.add(7, class, false);
            assert_eq!(guesses.judge(|piece| piece == 7 && is_right(i)), 0);
        }
    }

    #[test]
    fn a_class_is_trusted_as_long_as_it_is_right_and_again_when_it_is() {
        let mut guesses = Guesses::new();
        judge(&mut guesses, 3, FEW - 1, |_| false);
        assert!(guesses.trusts(3));
        judge(&mut guesses, 3, 1, |_| false);
        assert!(!guesses.trusts(3) && guesses.trusts(2) && guesses.trusts(4));
        judge(&mut guesses, 4, 1000, |i| i % 20 > 0);
        assert!(guesses.trusts(4));
        judge(&mut guesses, 5, 1000, |i| i % 5 > 0);
        assert!(!guesses.trusts(5));
        judge(&mut guesses, 3, 20 * FEW, |_| true);
        assert!(guesses.trusts(3));
        // Older ones count less and less.
        judge(&mut guesses, 6, 100_000, |_| false);
        judge(&mut guesses, 6, 10 * MANY, |_| true);
        assert!(guesses.trusts(6));
    }

    #[test]
    fn only_what_was_read_counts_as_a_guess_and_no_class_or_number_is_too_large() {
        let mut guesses = Guesses::new();
        (0..2 * CANDIDATES).for_each(|piece| guesses.add(piece, u8::MAX, piece % 2 == 0));
        assert_eq!(guesses.judge(|piece| piece < 4), 2);
        assert_eq!(guesses.judge(|_| true), 0);
        guesses.add(1, 0, true);
        guesses.clear();
        assert_eq!(guesses.judge(|_| true), 0);
    }
}
