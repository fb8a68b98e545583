//! The rows that are computed together: tokens of sequences, each with its position and its role.
//!
//! Invariant: the result for a row depends only on its token, its position, its role, and the earlier state of its sequence.
//! Other rows of the batch do not affect it.

use std::ops::Range;

use alight_kernels::attention::Ahead;
use alight_kernels::matmul::{Precision, RowCounts};

/// The purpose for which a row is computed. It decides how the row is computed, which its sequence must be able to rely on: other
/// rows of the batch do not affect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A generated token: activations of 16 bits, and attention that is split along the positions.
    Decode,
    /// A token of a prompt: activations of the batch's precision for prompts, and attention in tiles of tokens.
    Prompt,
}

/// The rows of a span whose logits will be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitRows {
    Nothing,
    First,
    Last,
    All,
}

/// The initial value of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowInput<'a> {
    /// The embedding of a token.
    Token(u32),
    /// `[hidden]`: a vector in place of an embedding, such as a patch of a picture.
    Vector(&'a [f32]),
}

/// The sequence of some rows, and how they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceRows {
    /// The index of the sequence in the cache.
    pub(crate) sequence: usize,
    pub(crate) role: Role,
    /// True if the sequence is long, for a model that rotates long sequences differently.
    pub(crate) long: bool,
    /// The position at which its second segment begins, if it has one.
    pub(crate) second_segment: Option<usize>,
}

/// Rows of one sequence that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The index of the sequence in the cache.
    pub(crate) sequence: usize,
    pub(crate) role: Role,
    /// The position of its first row.
    pub(crate) position: usize,
    /// Its rows in the batch.
    pub(crate) rows: Range<usize>,
    /// The position after its last row, including rows that are not wanted.
    pub(crate) end: usize,
    /// Its row in a draft, if states of recurrent layers are kept after it.
    pub(crate) draft_row: Option<usize>,
    pub(crate) want: LogitRows,
}

/// The place of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    sequence: usize,
    position: usize,
    long: bool,
    /// 0, or 1 in the second segment.
    segment: u8,
}

/// The rows of a call. Nothing is allocated after it is created.
pub(crate) struct Batch {
    /// The precision of activations of prompts.
    prompt: Precision,
    tokens: Vec<u32>,
    /// Rows that begin with a vector, in order, and the vectors `[rows, hidden]`.
    vector_rows: Vec<usize>,
    vectors: Vec<f32>,
    /// By row.
    places: Vec<Place>,
    /// By row: the position after the last one that it sees with causal attention: its own, or the last of a group of rows that see each
    /// other.
    ends: Vec<usize>,
    /// True if there is such a group.
    has_groups: bool,
    /// Decode spans come first.
    spans: Vec<Span>,
    counts: RowCounts,
}

impl Default for Batch {
    /// Creates a batch without capacity.
    fn default() -> Batch {
        Batch::new(0, Precision::Bits8)
    }
}

impl Batch {
    /// Creates an empty batch with capacity for `most` rows.
    pub(crate) fn new(most: usize, prompt: Precision) -> Batch {
        Batch {
            prompt,
            tokens: Vec::with_capacity(most),
            vector_rows: Vec::new(),
            vectors: Vec::new(),
            places: Vec::with_capacity(most),
            ends: Vec::with_capacity(most),
            has_groups: false,
            spans: Vec::with_capacity(most),
            counts: RowCounts::default(),
        }
    }

    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.vector_rows.clear();
        self.vectors.clear();
        self.places.clear();
        self.ends.clear();
        self.has_groups = false;
        self.spans.clear();
        self.counts = RowCounts::default();
    }

    /// Adds tokens that follow the first `position` ones of a sequence. With `states`, each token of a draft is its own span, so that
    /// states of recurrent layers can be kept after it.
    ///
    /// # Panics
    /// Panics if tokens to decode follow those of a prompt.
    pub(crate) fn push(
        &mut self,
        of: SequenceRows,
        position: usize,
        tokens: &[u32],
        want: LogitRows,
        states: bool,
    ) {
        if !(states && of.role == Role::Decode) {
            return self.push_span(of, position, tokens, want, None);
        }
        for (row, token) in tokens.iter().enumerate() {
            let draft_row = (row + 1 < tokens.len()).then_some(row);
            self.push_span(of, position + row, &[*token], want, draft_row);
        }
    }

    fn push_span(
        &mut self,
        SequenceRows { sequence, role, long, second_segment }: SequenceRows,
        position: usize,
        tokens: &[u32],
        want: LogitRows,
        draft_row: Option<usize>,
    ) {
        let first = self.tokens.len();
        let after = self.spans.last().is_none_or(|last| last.role == role || role == Role::Prompt);
        assert!(after, "rows that decode come first");
        self.tokens.extend_from_slice(tokens);
        let end = position + tokens.len();
        let second = second_segment.unwrap_or(usize::MAX);
        let place = |position| {
            let segment = u8::from(position >= second);
            Place { sequence, position, long, segment }
        };
        self.places.extend((position..end).map(place));
        self.ends.extend((position..end).map(|position| position + 1));
        self.count(role, tokens.len());
        let rows = first..first + tokens.len();
        self.spans.push(Span { sequence, role, position, rows, end, draft_row, want });
    }

    fn count(&mut self, role: Role, rows: usize) {
        let mut counts = self.counts;
        *self.counted(&mut counts, role) += rows;
        self.counts = counts;
    }

    /// Replaces the embeddings of the last rows added, from row `first` on, by `vectors` `[rows, hidden]`.
    pub(crate) fn set_vectors(&mut self, first: usize, vectors: &[f32], hidden: usize) {
        debug_assert!(self.vector_rows.last().is_none_or(|last| *last < first), "in order");
        self.vector_rows.extend(first..first + vectors.len() / hidden);
        self.vectors.extend_from_slice(vectors);
    }

    /// Returns the initial value of a row.
    pub(crate) fn input(&self, row: usize) -> RowInput<'_> {
        match self.vector_rows.binary_search(&row) {
            Ok(i) => {
                let hidden = self.vectors.len() / self.vector_rows.len();
                RowInput::Vector(&self.vectors[i * hidden..][..hidden])
            }
            Err(_) => RowInput::Token(self.tokens[row]),
        }
    }

    /// Makes rows of a prompt see each other, as those of a picture do, and not only the rows before them.
    ///
    /// # Panics
    /// Panics if they are not all of one span.
    pub(crate) fn group(&mut self, rows: Range<usize>) {
        let whole = |span: &Span| span.rows.start <= rows.start && rows.end <= span.rows.end;
        assert!(self.spans(Role::Prompt).any(whole), "rows of one prompt");
        let end = self.places[rows.end - 1].position + 1;
        self.ends[rows].fill(end);
        self.has_groups = true;
    }

    /// Returns the positions after their own that the rows of a prompt's span see, in a layer that is `bidirectional` or not.
    pub(crate) fn ahead(&self, span: &Span, bidirectional: bool) -> Ahead<'_> {
        match bidirectional {
            true => Ahead::To(span.end),
            false if self.has_groups => Ahead::Each(&self.ends[span.rows.clone()]),
            false => Ahead::Nothing,
        }
    }

    /// Returns the tokens of all rows.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the sequence of a row, and its position.
    pub(crate) fn place(&self, row: usize) -> (usize, usize) {
        let Place { sequence, position, .. } = self.places[row];
        (sequence, position)
    }

    /// Returns the segment of a row: 0, or 1 in the second segment of its sequence.
    pub(crate) fn segment(&self, row: usize) -> usize {
        self.places[row].segment.into()
    }

    /// Returns true if the sequence of a row is long.
    pub(crate) fn is_long(&self, row: usize) -> bool {
        self.places[row].long
    }

    /// Returns the spans of a role.
    pub(crate) fn spans(&self, role: Role) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.role == role)
    }

    /// Returns all spans.
    pub(crate) fn all_spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the first position, if all rows follow one another in one sequence.
    pub(crate) fn following(&self) -> Option<usize> {
        let [span] = &self.spans[..] else { return None };
        Some(span.position)
    }

    /// Returns the number of rows of each precision.
    pub(crate) fn counts(&self) -> RowCounts {
        self.counts
    }

    /// Returns the number of rows of each precision among the first `n`.
    ///
    /// # Panics
    /// Panics if `n` divides a span.
    pub(crate) fn counts_of_first(&self, n: usize) -> RowCounts {
        let mut counts = RowCounts::default();
        for span in self.spans.iter().filter(|span| span.rows.start < n) {
            assert!(span.rows.end <= n, "whole spans");
            *self.counted(&mut counts, span.role) += span.rows.len();
        }
        counts
    }

    /// Returns the counter for rows of a role.
    fn counted<'c>(&self, counts: &'c mut RowCounts, role: Role) -> &'c mut usize {
        match role {
            Role::Prompt if self.prompt == Precision::Bits8 => &mut counts.bits8,
            Role::Prompt | Role::Decode => &mut counts.bits16,
        }
    }

    /// Keeps only the wanted rows: `keep(from, to)` is called for each row that moves, in order.
    pub(crate) fn keep_wanted(&mut self, mut keep: impl FnMut(usize, usize)) {
        self.counts = RowCounts::default();
        let mut next = 0;
        for i in 0..self.spans.len() {
            let span = &mut self.spans[i];
            let end = span.rows.end;
            let wanted = match span.want {
                LogitRows::Nothing => end..end,
                LogitRows::First => span.rows.start..span.rows.start + 1,
                LogitRows::Last => end - 1..end,
                LogitRows::All => span.rows.clone(),
            };
            span.position += wanted.start - span.rows.start;
            span.rows = next..next + wanted.len();
            let role = span.role;
            for from in wanted.clone() {
                if from != next {
                    self.places[next] = self.places[from];
                    self.ends[next] = self.ends[from];
                    keep(from, next);
                }
                next += 1;
            }
            self.count(role, wanted.len());
        }
        self.places.truncate(next);
        self.ends.truncate(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sequence: usize, role: Role) -> SequenceRows {
        SequenceRows { sequence, role, long: false, second_segment: None }
    }

    #[test]
    fn rows_keep_their_positions_when_others_are_left_out() {
        let mut batch = Batch::new(16, Precision::Bits8);
        batch.push(of(4, Role::Decode), 7, &[1], LogitRows::Last, false);
        batch.push(of(2, Role::Decode), 90, &[2], LogitRows::Last, false);
        batch.push(of(0, Role::Prompt), 3, &[3, 4, 5], LogitRows::Nothing, false);
        batch.push(of(1, Role::Prompt), 0, &[6, 7], LogitRows::Last, false);
        batch.push(of(3, Role::Prompt), 5, &[8, 9], LogitRows::All, false);
        assert_eq!(batch.tokens(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let positions = |batch: &Batch| batch.places.iter().map(|p| p.position).collect::<Vec<_>>();
        assert_eq!(positions(&batch), [7, 90, 3, 4, 5, 0, 1, 5, 6]);
        assert_eq!(batch.counts(), RowCounts { bits16: 2, bits8: 7 });
        let mut moved = Vec::new();
        batch.keep_wanted(|from, to| moved.push((from, to)));
        assert_eq!(moved, [(6, 2), (7, 3), (8, 4)]);
        assert_eq!(positions(&batch), [7, 90, 1, 5, 6]);
        assert_eq!(batch.place(4), (3, 6));
        assert_eq!(batch.counts(), RowCounts { bits16: 2, bits8: 3 });
        assert_eq!(batch.counts_of_first(3), RowCounts { bits16: 2, bits8: 1 });
        let rows: Vec<_> =
            batch.spans(Role::Prompt).map(|s| (s.position, s.rows.clone())).collect();
        assert_eq!(rows, [(6, 2..2), (1, 2..3), (5, 3..5)]);
        batch.clear();
        assert!(batch.tokens().is_empty() && batch.all_spans().is_empty());
    }

    #[test]
    fn rows_begin_with_tokens_or_vectors() {
        let mut batch = Batch::new(16, Precision::Bits8);
        batch.push(of(0, Role::Prompt), 0, &[7; 5], LogitRows::All, false);
        batch.set_vectors(1, &[1.0, 2.0, 3.0, 4.0], 2);
        batch.set_vectors(4, &[5.0, 6.0], 2);
        let inputs: Vec<_> = (0..5).map(|row| batch.input(row)).collect();
        let [a, b, c] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        let token = RowInput::Token(7);
        let vector = |row| RowInput::Vector(row);
        assert_eq!(inputs, [token, vector(&a), vector(&b), token, vector(&c)]);
        batch.clear();
        batch.push(of(0, Role::Prompt), 0, &[7; 5], LogitRows::All, false);
        assert_eq!(batch.input(1), token);
    }

    #[test]
    fn rows_of_a_group_see_each_other() {
        let mut batch = Batch::new(16, Precision::Bits8);
        batch.push(of(0, Role::Prompt), 3, &[1; 6], LogitRows::Nothing, false);
        batch.push(of(1, Role::Prompt), 0, &[2; 5], LogitRows::All, false);
        let ahead = |batch: &Batch, span: usize, both: bool| {
            format!("{:?}", batch.ahead(&batch.all_spans()[span], both))
        };
        assert_eq!([0, 1].map(|span| ahead(&batch, span, false)), ["Nothing"; 2]);
        assert_eq!([0, 1].map(|span| ahead(&batch, span, true)), ["To(9)", "To(5)"]);
        batch.group(7..10);
        assert_eq!(ahead(&batch, 0, false), "Each([4, 5, 6, 7, 8, 9])");
        assert_eq!(ahead(&batch, 1, false), "Each([1, 4, 4, 4, 5])");
        batch.keep_wanted(|_, _| {});
        assert_eq!(ahead(&batch, 1, false), "Each([1, 4, 4, 4, 5])");
        assert_eq!(ahead(&batch, 1, true), "To(5)");
        batch.clear();
        batch.push(of(1, Role::Prompt), 0, &[2; 5], LogitRows::All, false);
        assert_eq!(ahead(&batch, 0, false), "Nothing");
    }

    #[test]
    fn prompts_of_16_bits_are_counted_with_what_decodes() {
        let mut batch = Batch::new(4, Precision::Bits16);
        batch.push(of(0, Role::Decode), 1, &[1], LogitRows::Last, false);
        batch.push(of(1, Role::Prompt), 0, &[1, 2], LogitRows::Last, false);
        assert_eq!(batch.counts(), RowCounts { bits16: 3, bits8: 0 });
        batch.keep_wanted(|_, _| {});
        assert_eq!(batch.counts(), RowCounts { bits16: 2, bits8: 0 });
    }

    #[test]
    fn rows_of_a_draft_are_spans_where_states_are_kept() {
        let mut batch = Batch::new(16, Precision::Bits8);
        batch.push(of(3, Role::Decode), 7, &[1, 2, 3], LogitRows::All, true);
        batch.push(of(1, Role::Decode), 9, &[4], LogitRows::All, true);
        batch.push(of(0, Role::Prompt), 0, &[5, 6], LogitRows::Last, true);
        let spans: Vec<_> =
            batch.all_spans().iter().map(|s| (s.position, s.rows.clone(), s.draft_row)).collect();
        let expected = [
            (7, 0..1, Some(0)),
            (8, 1..2, Some(1)),
            (9, 2..3, None),
            (9, 3..4, None),
            (0, 4..6, None),
        ];
        assert_eq!(spans, expected);
        batch.keep_wanted(|_, _| {});
        assert_eq!(batch.counts(), RowCounts { bits16: 4, bits8: 1 });
    }
}
