//! The places of pieces in their files, and of slots in memory.

use std::ops::Range;

use super::state::SlotRead;
use super::{BLOCK, Groups, SlotsError, Span};

/// The places of everything: which pieces have slots of one size, and where those are in memory that begins at 0. It never changes.
pub struct Layout {
    /// By group: the range of its pieces.
    pub(super) groups: Vec<Range<usize>>,
    pub(super) pieces: Vec<SlotPiece>,
    pub(super) spans: Vec<Place>,
    pub(super) classes: Vec<Class>,
    /// The alignment of reads.
    align: usize,
}

pub(super) struct SlotPiece {
    pub(super) group: usize,
    pub(super) class: usize,
    pub(super) spans: Range<usize>,
    pub(super) bytes: u64,
}

/// A span, and its place in a slot of its piece.
pub(super) struct Place {
    pub(super) span: Span,
    /// Offset in the slot of the disk block in which it begins.
    at: usize,
}

/// Slots of one size.
pub(super) struct Class {
    slot_bytes: usize,
    /// Start of the slots in the region.
    start: usize,
    /// The range of these slots among all slots.
    pub(super) slots: Range<usize>,
}

impl Layout {
    /// Creates a layout with slots for each size of pieces, which waste nothing; or, failing that, with slots that take any piece. Fewer
    /// of those may be enough, since pieces of one group are never wanted together with those of another.
    ///
    /// # Errors
    /// `budget` bytes do not hold all pieces of a group.
    pub(super) fn fitting(
        groups: &Groups,
        align: usize,
        budget: u64,
    ) -> Result<Layout, SlotsError> {
        let mut layout = Layout::new(groups, align);
        let Err(error) = layout.share(budget) else { return Ok(layout) };
        let largest = layout.classes.iter().map(|class| class.slot_bytes).max().unwrap_or(0);
        layout.classes = vec![Class { slot_bytes: largest, start: 0, slots: 0..0 }];
        layout.pieces.iter_mut().for_each(|piece| piece.class = 0);
        match (layout.share(budget), error) {
            (Ok(()), _) => Ok(layout),
            (Err(SlotsError::TooFew { least: one, .. }), SlotsError::TooFew { least, .. }) => {
                Err(SlotsError::TooFew { budget, least: one.min(least) })
            }
            (Err(error), _) => Err(error),
        }
    }

    fn new(groups: &Groups, align: usize) -> Layout {
        let mut layout = Layout {
            groups: Vec::new(),
            pieces: Vec::new(),
            spans: Vec::new(),
            classes: Vec::new(),
            align,
        };
        for (group, pieces) in groups.iter().enumerate() {
            let first = layout.pieces.len();
            for spans in pieces {
                let (mut at, first) = (0, layout.spans.len());
                for span in spans {
                    layout.spans.push(Place { span: span.clone(), at });
                    at += layout.aligned(&span.range).end - layout.aligned(&span.range).start;
                }
                let class = layout.classes.iter().position(|class| class.slot_bytes == at);
                let class = class.unwrap_or_else(|| {
                    layout.classes.push(Class { slot_bytes: at, start: 0, slots: 0..0 });
                    layout.classes.len() - 1
                });
                let bytes = spans.iter().map(|span| span.range.end - span.range.start).sum();
                let spans = first..layout.spans.len();
                layout.pieces.push(SlotPiece { group, class, spans, bytes });
            }
            layout.groups.push(first..layout.pieces.len());
        }
        layout
    }

    /// Returns the whole disk blocks that a range is in.
    pub(super) fn aligned(&self, range: &Range<u64>) -> Range<usize> {
        let align = self.align as u64;
        (range.start / align * align) as usize..range.end.next_multiple_of(align) as usize
    }

    /// Returns the number of reads of a span.
    pub(super) fn blocks(&self, span: usize) -> usize {
        self.aligned(&self.spans[span].span.range).len().div_ceil(BLOCK)
    }

    /// Returns the number of pieces of a class, and the maximum number in one group.
    fn counts(&self, class: usize) -> [usize; 2] {
        let of = |pieces: &[SlotPiece]| pieces.iter().filter(|piece| piece.class == class).count();
        let most = self.groups.iter().map(|group| of(&self.pieces[group.clone()])).max();
        [of(&self.pieces), most.unwrap_or(0)]
    }

    /// Shares `budget` bytes among the classes, in proportion to what their pieces need, but at least as much as a group needs at once.
    fn share(&mut self, budget: u64) -> Result<(), SlotsError> {
        let share = self.share_in(budget)?;
        let (mut start, mut first) = (0, 0);
        for class in 0..self.classes.len() {
            let slots = self.slots_of(class, share);
            let class = &mut self.classes[class];
            class.start = start;
            class.slots = first..first + slots;
            (start, first) = (start + slots * class.slot_bytes, first + slots);
        }
        Ok(())
    }

    /// Returns the share that fits into `budget` bytes, of the pieces beyond those that a group needs at once.
    ///
    /// # Errors
    /// `budget` bytes do not hold all pieces of a group.
    pub(super) fn share_in(&self, budget: u64) -> Result<f64, SlotsError> {
        let bytes = |class: usize, slots: usize| (slots * self.classes[class].slot_bytes) as u64;
        let (mut least, mut beyond) = (0, 0);
        for class in 0..self.classes.len() {
            let [pieces, most] = self.counts(class);
            least += bytes(class, most);
            beyond += bytes(class, pieces - most);
        }
        if least > budget {
            return Err(SlotsError::TooFew { budget, least });
        }
        Ok(((budget - least) as f64 / beyond.max(1) as f64).min(1.0))
    }

    /// Returns the number of slots of a class, with `share` of the pieces beyond those that a group needs at once. A share of 1 is all
    /// of them.
    pub(super) fn slots_of(&self, class: usize, share: f64) -> usize {
        let [pieces, most] = self.counts(class);
        most + ((pieces - most) as f64 * share) as usize
    }

    /// Returns the layout of the same pieces elsewhere, in `budget` bytes, where each span begins at a multiple of `align`.
    ///
    /// # Errors
    /// See [`Slots::new`](super::Slots::new).
    pub fn elsewhere(&self, align: usize, budget: u64) -> Result<Layout, SlotsError> {
        let span = |place: &Place| {
            let len = place.span.range.end - place.span.range.start;
            Span { file: place.span.file, range: 0..len }
        };
        let piece = |piece: &SlotPiece| self.spans[piece.spans.clone()].iter().map(span).collect();
        let group = |group: &Range<usize>| self.pieces[group.clone()].iter().map(piece).collect();
        Layout::fitting(&self.groups.iter().map(group).collect(), align, budget)
    }

    /// Returns the range of a group's pieces among all pieces.
    pub fn pieces_of(&self, group: usize) -> Range<usize> {
        self.groups[group].clone()
    }

    /// Returns the number of groups.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the number of spans of a piece.
    pub fn spans_of(&self, piece: usize) -> usize {
        self.pieces[piece].spans.len()
    }

    /// Returns the slots of the piece's size: their range among all slots, the start of the first, and the bytes of each.
    pub fn slots_for(&self, piece: usize) -> (Range<usize>, usize, usize) {
        let class = &self.classes[self.pieces[piece].class];
        (class.slots.clone(), class.start, class.slot_bytes)
    }

    /// Returns where the bytes of a span of a piece are, if the piece is in that slot.
    pub fn place_of(&self, slot: usize, piece: usize, span: usize) -> Range<usize> {
        let piece = &self.pieces[piece];
        self.place(slot, piece.spans.start + span, piece.class)
    }

    /// Returns the bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.classes.last().map_or(0, |class| class.start + class.slots.len() * class.slot_bytes)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.classes.last().map_or(0, |class| class.slots.end)
    }

    /// Returns where the bytes of a span of a piece are in the region, if the piece is in that slot.
    pub(super) fn place(&self, slot: usize, span: usize, class: usize) -> Range<usize> {
        let class = &self.classes[class];
        let place = &self.spans[span];
        let range = &place.span.range;
        let skipped = range.start as usize - self.aligned(range).start;
        let slot = class.start + (slot - class.slots.start) * class.slot_bytes;
        let start = slot + place.at + skipped;
        start..start + (range.end - range.start) as usize
    }

    /// Returns the file that a span is in, and its bytes in that file.
    pub(super) fn range_of(&self, span: usize) -> (usize, Range<usize>) {
        let Span { file, range } = &self.spans[span].span;
        (*file, range.start as usize..range.end as usize)
    }

    /// Returns the files that the spans of a piece are in, and their bytes in those files.
    pub(super) fn ranges(&self, piece: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.pieces[piece].spans.clone().map(|span| self.range_of(span))
    }

    /// Returns the memory of a slot, in the region.
    pub(super) fn memory_of(&self, slot: usize) -> Range<usize> {
        let class = self.classes.iter().find(|class| class.slots.contains(&slot));
        let class = class.expect("a slot of some class");
        let start = class.start + (slot - class.slots.start) * class.slot_bytes;
        start..start + class.slot_bytes
    }

    /// Returns the read of a job.
    pub(super) fn read(&self, job: SlotRead) -> Read {
        let place = &self.spans[job.span];
        let blocks = self.aligned(&place.span.range);
        let from = blocks.start + job.block * BLOCK;
        let len = BLOCK.min(blocks.end - from);
        // The last block of a file may be shorter than a disk block.
        let need = len.min(place.span.range.end as usize - from);
        let slot = self.memory_of(job.slot);
        let to = slot.start + place.at + job.block * BLOCK;
        assert!(to + len <= slot.end && slot.end <= self.bytes());
        Read { offset: from as u64, len, need, to }
    }
}

/// One read.
pub(super) struct Read {
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Number of bytes that must arrive.
    pub(super) need: usize,
    /// Target in the region: within the job's slot.
    pub(super) to: usize,
}
