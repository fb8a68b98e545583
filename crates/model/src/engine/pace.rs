//! The number of prompt rows in a step in which sequences decode, based on the duration of recent steps.
//!
//! A step takes as many rows as fit into its time limit, so that tokens do not have to wait long. A model whose experts are read when they are chosen
//! is different. A few rows already choose most experts. Memory does not hold all of them, so every step reads the missing ones again, however few
//! rows it has. If reading them takes longer than the time limit of a step, short steps have no benefit, and a prompt is read in as few steps as
//! possible.

use std::time::Duration;

use alight_pages::slots::{SlotCounts, SlotSizes};

/// Minimum number of prompt rows in a step in which sequences decode, so that prompts make progress.
pub(super) const MIN_PROMPT_ROWS: usize = 16;

/// Recent durations, in seconds; 0: not known yet.
#[derive(Debug)]
pub(super) struct Pace {
    /// Time limit of a step.
    step: f64,
    /// Time to compute a prompt row.
    row: f64,
    /// Time of a step that only decodes.
    decode: f64,
    /// Time to read a byte of experts in steps with prompt rows, whether computation waits for it or overlaps it.
    byte: f64,
    /// The slot counters at the end of the last step.
    counts: SlotCounts,
}

impl Pace {
    /// Creates a pace with this time limit for a step.
    pub(super) fn new(step: Duration) -> Pace {
        let counts = SlotCounts::default();
        Pace { step: step.as_secs_f64(), row: 0.0, decode: 0.0, byte: 0.0, counts }
    }

    /// Returns the number of prompt rows for a step in which sequences decode, at most `limit`, for a model with these slots.
    pub(super) fn rows(&self, limit: usize, slots: Option<SlotSizes>) -> usize {
        if slots.is_some_and(|sizes| self.byte * missing(sizes) > self.step) {
            return limit;
        }
        let rows = match self.row {
            0.0 => MIN_PROMPT_ROWS,
            row => ((self.step - self.decode).max(0.0) / row) as usize,
        };
        rows.max(MIN_PROMPT_ROWS).min(limit)
    }

    /// Records the duration of a step with these numbers of decode rows and prompt rows, and the slot counters at its end.
    pub(super) fn took(
        &mut self,
        took: Duration,
        [decoding, prompts]: [usize; 2],
        counts: SlotCounts,
    ) {
        let mix =
            |before: f64, now: f64| if before == 0.0 { now } else { 0.7 * before + 0.3 * now };
        let took = took.as_secs_f64();
        let before = std::mem::replace(&mut self.counts, counts);
        if prompts == 0 {
            self.decode = mix(self.decode, took);
        } else if prompts >= MIN_PROMPT_ROWS {
            // Another engine of the model may have waited in the meantime.
            let waited = counts.waited.saturating_sub(before.waited).as_secs_f64().min(took);
            let read = counts.read_bytes.saturating_sub(before.read_bytes);
            if read > 0 {
                let idle = counts.idle.saturating_sub(before.idle).as_secs_f64();
                self.byte = mix(self.byte, (took - idle).max(0.0) / read as f64);
            }
            let computed = took - waited;
            let decode = if decoding > 0 { self.decode.min(computed / 2.0) } else { 0.0 };
            self.row = mix(self.row, (computed - decode) / prompts as f64);
        }
    }
}

/// Bytes of the experts that do not fit into slots.
fn missing(sizes: SlotSizes) -> f64 {
    sizes.pieces.saturating_sub(sizes.slots) as f64 * sizes.slot_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The sizes with `slots` slots for 2,048 experts of 3 MB.
    fn slots(slots: usize) -> SlotSizes {
        SlotSizes { pieces: 2048, slots, bytes: 3_000_000 * slots as u64, spans: 3 }
    }

    /// Rows of the steps that read a prompt of 512 tokens while a sequence decodes, on a machine that decodes a token in 60 ms, computes a row in 4
    /// ms and reads a GB of experts in 400 ms, of which the share `waits` is waited for; 16 rows choose half of the experts that do not fit into
    /// slots.
    fn steps(sizes: Option<SlotSizes>, step: Duration, waits: f64) -> Vec<usize> {
        let mut pace = Pace::new(step);
        let mut counts = SlotCounts::default();
        let (mut left, mut steps) = (512, Vec::new());
        pace.took(60 * MS, [1, 0], counts);
        while left > 0 {
            let rows = pace.rows(511, sizes).min(left);
            let read = sizes.map_or(0.0, missing) / if rows < 32 { 2.0 } else { 1.0 };
            let reads = Duration::from_secs_f64(0.4e-9 * read);
            let waited = reads.mul_f64(waits);
            let took = (60 + 4 * rows as u32) * MS + waited;
            counts.waited += waited;
            counts.idle += took.saturating_sub(reads);
            counts.read_bytes += read as u64;
            pace.took(took, [1, rows], counts);
            left -= rows;
            steps.push(rows);
        }
        steps
    }

    #[test]
    fn a_prompt_in_memory_is_read_in_steps_as_long_as_they_may_be() {
        assert_eq!(steps(None, 100 * MS, 0.0), [16; 32]);
        let longer = steps(None, 461 * MS, 0.0);
        assert!(longer[0] == 16 && longer[1..5].iter().all(|rows| *rows == 100), "{longer:?}");
        assert_eq!(steps(Some(slots(2048)), 461 * MS, 0.5), longer, "all experts have room");
    }

    #[test]
    fn experts_that_have_no_room_are_read_for_a_prompt_as_rarely_as_possible() {
        // 45 % of the experts fit into slots, and the first step shows the cost of the others, even if it computes for as long as they are read.
        for waits in [1.0, 0.4, 0.0] {
            assert_eq!(steps(Some(slots(920)), 100 * MS, waits), [16, 496], "{waits}");
        }
        // Reading the missing experts takes less than the time limit of a step.
        assert_eq!(steps(Some(slots(2000)), 100 * MS, 0.4), [16; 32]);
        assert!(steps(Some(slots(920)), 2000 * MS, 0.4).iter().all(|rows| *rows < 496));
    }
}
