//! The tokens that were accepted last.

/// A ring of at most a fixed number of tokens.
#[derive(Debug)]
pub(super) struct History {
    tokens: Vec<u32>,
    capacity: usize,
    /// The index of the oldest token in a full ring.
    oldest: usize,
}

impl History {
    pub(super) fn new(capacity: usize) -> History {
        History { tokens: Vec::with_capacity(capacity), capacity, oldest: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn push(&mut self, id: u32) {
        if self.tokens.len() < self.capacity {
            self.tokens.push(id);
        } else if let Some(slot) = self.tokens.get_mut(self.oldest) {
            *slot = id;
            self.oldest = (self.oldest + 1) % self.tokens.len();
        }
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.oldest = 0;
    }

    /// The token accepted `i` tokens before the last one.
    pub(super) fn back(&self, i: usize) -> u32 {
        let at = self.oldest + self.tokens.len() - 1 - i;
        self.tokens[if at < self.tokens.len() { at } else { at - self.tokens.len() }]
    }

    /// The last `n` tokens, or all that there are, from the last one backwards.
    pub(super) fn last(&self, n: usize) -> impl Iterator<Item = u32> {
        (0..n.min(self.len())).map(|i| self.back(i))
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.tokens.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tokens_are_kept_in_their_order() {
        let mut history = History::new(3);
        for id in 0..10 {
            let n = history.len();
            assert_eq!(n, (id as usize).min(3));
            let wanted: Vec<u32> = (0..id).rev().take(3).collect();
            assert_eq!(history.last(9).collect::<Vec<_>>(), wanted);
            assert_eq!(history.last(1).collect::<Vec<_>>(), wanted[..n.min(1)]);
            history.push(id);
        }
        history.clear();
        history.push(7);
        assert_eq!((history.len(), history.back(0)), (1, 7));
        let mut none = History::new(0);
        none.push(1);
        assert_eq!(none.len(), 0);
    }
}
