//! The destination of results: stdout or a file, in the order of the lines or as they arrive.
//!
//! Invariants:
//! - A result is written with one call when it is due, and nothing of it is buffered after that.
//! - Results that wait for an earlier one use bounded memory: when [`Results::is_full`] is true, no further line may begin.
//! - After a run has ended, in whatever way, a file has whole lines, and perhaps the beginning of one more.
//! - A file that another program has removed, replaced or changed is an error, at the next result or at the end ([`Output`]).

use std::collections::BTreeMap;

use super::output::Output;
use super::result::{self, LineId};
use crate::outcome::Outcome;
use crate::output;

/// Maximum bytes of results that wait for an earlier one, except those being computed when it is reached.
const WAITING: usize = 64 << 20;

/// Receives results.
pub struct Results {
    to: To,
    /// `None`: as they arrive.
    order: Option<ResultOrder>,
    /// Results written that are answers.
    pub answered: u64,
    /// Results written that are not answers.
    pub failed: u64,
}

/// A result that is finished.
struct Finished {
    text: String,
    is_answer: bool,
}

enum To {
    Stdout,
    File(Output),
}

impl Results {
    /// Writes results to a file or to stdout.
    pub fn new(file: Option<Output>, unordered: bool) -> Results {
        let to = file.map_or(To::Stdout, To::File);
        let order = (!unordered).then(|| ResultOrder::new(WAITING));
        Results { to, order, answered: 0, failed: 0 }
    }

    /// Returns true if too many results wait for an earlier one.
    pub fn is_full(&self) -> bool {
        self.order.as_ref().is_some_and(ResultOrder::is_full)
    }

    /// Returns the number of finished results that wait for an earlier one.
    pub fn waiting(&self) -> usize {
        self.order.as_ref().map_or(0, |order| order.waiting.len())
    }

    /// Takes the result of the line that began as number `index`.
    pub fn put(&mut self, index: u64, line: &LineId, outcome: result::LineOutcome) -> Outcome {
        let is_answer = matches!(outcome, result::LineOutcome::Answered(..));
        let finished = Finished { text: result::line(line, outcome), is_answer };
        let Results { to, order, answered, failed } = self;
        let mut write = |finished: Finished| {
            to.write(&finished.text)?;
            *(if finished.is_answer { &mut *answered } else { &mut *failed }) += 1;
            Ok(())
        };
        match order {
            None => write(finished),
            Some(order) => order.put(index, finished, &mut write),
        }
    }

    /// Flushes all results to the disk.
    pub fn finish(&mut self) -> Outcome {
        match &self.to {
            To::Stdout => Ok(()),
            To::File(file) => Ok(file.finish()?),
        }
    }
}

impl To {
    fn write(&mut self, text: &str) -> Outcome {
        match self {
            To::Stdout => output::report(text),
            To::File(file) => Ok(file.write(text.as_bytes())?),
        }
    }
}

/// Puts results into the order of their lines.
struct ResultOrder {
    /// The next one to be written.
    next: u64,
    waiting: BTreeMap<u64, Finished>,
    bytes: usize,
    limit: usize,
}

impl ResultOrder {
    fn new(limit: usize) -> ResultOrder {
        ResultOrder { next: 0, waiting: BTreeMap::new(), bytes: 0, limit }
    }

    fn is_full(&self) -> bool {
        self.bytes > self.limit
    }

    fn put(
        &mut self,
        index: u64,
        finished: Finished,
        write: &mut dyn FnMut(Finished) -> Outcome,
    ) -> Outcome {
        self.bytes += finished.text.len();
        self.waiting.insert(index, finished);
        while let Some(finished) = self.waiting.remove(&self.next) {
            self.bytes -= finished.text.len();
            self.next += 1;
            write(finished)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_written_in_order_and_too_many_that_wait_are_told_of() {
        let mut order = ResultOrder::new(4);
        let mut written = String::new();
        for (index, text, so_far, full) in [
            (1, "bbb", "", false),
            (3, "dd", "", true),
            (0, "a", "abbb", false),
            (4, "e", "abbb", false),
            (2, "c", "abbbcdde", false),
        ] {
            let mut write = |finished: Finished| {
                written.push_str(&finished.text);
                Ok(())
            };
            let finished = Finished { text: text.to_owned(), is_answer: true };
            order.put(index, finished, &mut write).unwrap();
            assert_eq!((&*written, order.is_full()), (so_far, full), "{index}");
        }
        assert_eq!((order.bytes, order.waiting.len()), (0, 0));
    }
}
