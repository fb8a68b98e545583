//! The drafts of one sequence: their proposer, and how much of the current draft was accepted.

use super::lookup::Lookup;
use super::proposer::Proposer;
use super::speculate::{Acceptance, MAX_DRAFT, Speculate, StepPlanner};

/// Proposes the next tokens of a sequence: those that followed an earlier occurrence of its last three tokens; if there is none, those of a
/// [`Proposer`], if the sequence has one.
pub(super) struct Drafter {
    speculate: Speculate,
    lookup: Lookup,
    acceptance: Acceptance,
    /// True if the draft comes from a [`Proposer`].
    computed: bool,
    /// The number of accepted tokens of the proposer's draft, and whether another token then came; until the proposer is notified.
    outcome: Option<(usize, bool)>,
    draft: [u32; MAX_DRAFT],
    len: usize,
    /// The number of accepted draft tokens.
    came: usize,
    /// True if the lookup has all tokens of the sequence.
    whole: bool,
}

impl Drafter {
    /// Creates a drafter for sequences of up to `most` tokens.
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

    /// Proposes up to `most` tokens to follow the last one, within the limits of `planner`; uses `proposer` where the text has no proposal.
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

    /// The draft; empty if there is none.
    pub(super) fn draft(&self) -> &[u32] {
        &self.draft[..self.len]
    }

    /// The number of accepted draft tokens.
    pub(super) fn accepted(&self) -> usize {
        self.came
    }

    /// Records a chosen token. Returns true if it is the next one of the draft, and so is already computed.
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

    /// Ends the draft. Returns the numbers of its accepted and rejected tokens.
    pub(super) fn end(&mut self) -> [usize; 2] {
        let ended = [self.came, self.len - self.came];
        (self.len, self.came) = (0, 0);
        ended
    }
}
