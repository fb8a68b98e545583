//! The drafts of one sequence: what proposes them, and how much of the present one has come.

use super::lookup::Lookup;
use super::proposer::Proposer;
use super::speculate::{Acceptance, MAX_DRAFT, Speculate, StepPlanner};

/// Proposes what may come next in a sequence: what followed its last three tokens where they stood before; where nothing followed, what
/// is computed to be likely, if something computes that.
pub(super) struct Drafter {
    speculate: Speculate,
    lookup: Lookup,
    acceptance: Acceptance,
    /// True if the draft was computed.
    computed: bool,
    /// How many tokens of a draft that was computed have come, and whether another came then; while what computes drafts has not heard.
    outcome: Option<(usize, bool)>,
    draft: [u32; MAX_DRAFT],
    len: usize,
    /// How many of its tokens have come.
    came: usize,
    /// True if all that has come is known.
    whole: bool,
}

impl Drafter {
    /// For sequences of up to `most` tokens.
    pub(super) fn new(speculate: Speculate, most: usize) -> Drafter {
        let most = if speculate == Speculate::Off { 0 } else { most };
        Drafter {
            speculate,
            lookup: Lookup::new(most),
            acceptance: Acceptance::new(),
            computed: false,
            outcome: None,
            draft: [0; MAX_DRAFT],
            len: 0,
            came: 0,
            whole: true,
        }
    }

    /// Adds tokens of the prompt.
    pub(super) fn read(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.whole &= self.lookup.push(*token);
        }
    }

    /// Proposes up to `most` tokens that may follow the last one that has come, as far as `planner` has room for them; by `proposer`, where
    /// the text has no proposal.
    pub(super) fn propose(
        &mut self,
        planner: &mut StepPlanner,
        most: usize,
        mut proposer: Option<&mut Proposer<'_>>,
    ) -> &[u32] {
        if let (Some(proposer), Some((came, other))) = (&mut proposer, self.outcome.take()) {
            proposer.learn(came, other);
        }
        (self.len, self.came, self.computed) = (0, 0, false);
        let accepted = self.acceptance.expected();
        let length = planner.length(self.speculate, accepted, Some(0.0));
        let found = self.lookup.propose(length.min(most));
        self.len = found.len();
        self.draft[..found.len()].copy_from_slice(found);
        planner.add(self.len, accepted, 0.0);
        if let (0, true, Some(proposer)) = (self.len, self.whole, proposer) {
            let (tokens, draft) = (self.lookup.tokens(), &mut self.draft);
            self.len = proposer.propose(self.speculate, planner, tokens, most, draft);
            self.computed = self.len > 0;
        }
        self.draft()
    }

    /// The draft; empty, if none is computed.
    pub(super) fn draft(&self) -> &[u32] {
        &self.draft[..self.len]
    }

    /// How many tokens of the draft have come.
    pub(super) fn accepted(&self) -> usize {
        self.came
    }

    /// A token was chosen. Returns whether it is the next one of the draft, and so was computed.
    pub(super) fn came(&mut self, token: u32) -> bool {
        let proposed = self.lookup.propose(1).first().map(|proposed| *proposed == token);
        self.acceptance.proposed(proposed);
        self.whole &= self.lookup.push(token);
        let Some(next) = self.draft().get(self.came) else { return false };
        let as_proposed = *next == token;
        if self.computed {
            self.outcome = Some((self.came + usize::from(as_proposed), !as_proposed));
        }
        self.came += usize::from(as_proposed);
        as_proposed
    }

    /// Ends the draft. Returns how many of its tokens have come, and how many have not.
    pub(super) fn end(&mut self) -> [usize; 2] {
        let ended = [self.came, self.len - self.came];
        (self.len, self.came) = (0, 0);
        ended
    }
}
