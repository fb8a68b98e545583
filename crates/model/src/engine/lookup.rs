//! The tokens that followed an earlier occurrence of the last tokens, in the prompt or in the answer: drafts that cost nothing to find.

/// Number of tokens by which an earlier occurrence is found.
const GRAM: usize = 3;

/// Proposes the next tokens, based on the previous ones.
pub(super) struct Lookup {
    tokens: Vec<u32>,
    /// Indexed by a hash of [`GRAM`] tokens: the number of tokens up to the end of their latest occurrence; 0: none. Hash collisions overwrite
    /// earlier entries, and an entry of another gram is detected.
    places: Vec<u32>,
    /// The position at which the last tokens were found before.
    found: usize,
}

impl Lookup {
    /// Creates a lookup for up to `most` tokens. Memory is used only as it fills.
    pub(super) fn new(most: usize) -> Lookup {
        let places = vec![0; (2 * most).next_power_of_two().max(64)];
        Lookup { tokens: Vec::with_capacity(most), places, found: 0 }
    }

    fn place(&self, end: usize) -> usize {
        let gram = &self.tokens[end - GRAM..end];
        let hash = gram.iter().fold(0u64, |hash, token| {
            (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        (hash >> 20) as usize & (self.places.len() - 1)
    }

    /// Adds a token. Returns true if there was capacity for it.
    pub(super) fn push(&mut self, token: u32) -> bool {
        self.found = 0;
        if self.tokens.len() == self.tokens.capacity() {
            // Nothing allocates in the loop; later tokens get no drafts.
            return false;
        }
        self.tokens.push(token);
        let end = self.tokens.len();
        if end < GRAM {
            return true;
        }
        let place = self.place(end);
        let before = std::mem::replace(&mut self.places[place], end as u32) as usize;
        if before >= GRAM && self.tokens[before - GRAM..before] == self.tokens[end - GRAM..] {
            self.found = before;
        }
        true
    }

    /// All tokens added.
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns at most `most` tokens that followed the earlier occurrence of the last tokens; possibly none.
    pub(super) fn propose(&self, most: usize) -> &[u32] {
        match self.found {
            0 => &[],
            found => &self.tokens[found..(found + most).min(self.tokens.len())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(tokens: &[u32], most: usize) -> Lookup {
        let mut lookup = Lookup::new(most);
        tokens.iter().for_each(|token| {
            lookup.push(*token);
        });
        lookup
    }

    #[test]
    fn what_followed_the_latest_place_is_proposed() {
        assert_eq!(lookup(&[1, 2, 3], 100).propose(5), [0; 0]);
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 1, 2, 3], 100).propose(3), [4, 5, 1]);
        assert_eq!(lookup(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 100).propose(9), [5, 1, 2, 3]);
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 9, 2, 3], 100).propose(3), [0; 0], "two are not enough");
        assert_eq!(lookup(&[7; 6], 100).propose(7), [7], "what overlaps its place");
        assert_eq!(lookup(&[1, 2, 3, 4, 1, 2, 3], 6).propose(3), [0; 0], "no room");
    }

    #[test]
    fn every_gram_is_compared_and_not_only_its_hash() {
        // A small table, in which most grams have been overwritten by others.
        let tokens: Vec<u32> = (0..5000u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).collect();
        let mut lookup = Lookup::new(5000);
        lookup.places.truncate(64);
        for (i, &token) in tokens.iter().enumerate() {
            assert!(lookup.push(token));
            if let Some(next) = lookup.propose(1).first() {
                let at = tokens[..i].windows(4).filter(|w| w[..3] == tokens[i - 2..=i]);
                assert!(at.into_iter().any(|w| w[3] == *next));
            }
        }
    }
}
