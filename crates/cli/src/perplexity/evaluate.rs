//! Runs a model on one chunk at a time, and yields the logits of the chunk's second half.

use std::num::NonZero;
use std::thread;

use alight_model::Session;
use anyhow::anyhow;

use super::base::Shape;

/// Positions are passed on in groups: enough for all threads, few enough for large vocabularies.
const GROUP: usize = 32;

/// A position to score.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    /// Counted from the first scored position of the chunk.
    pub index: usize,
    /// `[vocab]`.
    pub logits: &'a [f32],
    /// The token that follows in the text.
    pub next: u32,
}

/// A model that evaluates chunks of one shape.
pub struct Evaluation<'m> {
    session: Session<'m>,
    shape: Shape,
    /// Number of tokens that are computed at once, like those of a prompt; `None`: one by one, like those of an answer.
    batch: Option<usize>,
    bos: Option<u32>,
    /// `[GROUP][vocab]`.
    logits: Vec<f32>,
}

impl<'m> Evaluation<'m> {
    /// Creates an evaluation. `session` has capacity for at least one chunk.
    pub fn new(session: Session<'m>, shape: Shape, batch: Option<usize>) -> Evaluation<'m> {
        let tokenizer = session.model().tokenizer();
        let bos = if tokenizer.adds_bos() { tokenizer.bos() } else { None };
        let logits = Vec::with_capacity(GROUP * shape.n_vocab);
        Evaluation { session, shape, batch, bos, logits }
    }

    /// Computes the chunk `tokens`, and passes its scored positions to `each`, in order.
    pub fn chunk(
        &mut self,
        tokens: &[u32],
        each: &mut dyn FnMut(&[Position<'_>]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Shape { n_ctx, n_vocab, .. } = self.shape;
        let first = self.shape.first();
        let mut fed = tokens.to_vec();
        if let Some(bos) = self.bos {
            fed[0] = bos;
        }
        self.session.truncate(0);
        for piece in fed[..first].chunks(self.batch.unwrap_or(1)) {
            match self.batch {
                Some(_) => self.session.prefill(piece),
                None => self.session.decode(piece[0]).map(|_| ()),
            }
            .map_err(|e| anyhow!(e))?;
        }

        let mut index = 0;
        let mut failed = None;
        let buffer = &mut self.logits;
        buffer.clear();
        for piece in fed[first..n_ctx - 1].chunks(self.batch.unwrap_or(1)) {
            let mut take = |_: usize, logits: &[f32]| {
                if failed.is_some() {
                    return;
                }
                buffer.extend_from_slice(&logits[..n_vocab]);
                index += 1;
                let rows = buffer.len() / n_vocab;
                if rows == GROUP || index == n_ctx - 1 - first {
                    let positions: Vec<Position<'_>> = buffer
                        .chunks_exact(n_vocab)
                        .zip(index - rows..)
                        .map(|(logits, index)| Position {
                            index,
                            logits,
                            next: tokens[first + index + 1],
                        })
                        .collect();
                    failed = each(&positions).err();
                    buffer.clear();
                }
            };
            match self.batch {
                Some(_) => self.session.feed_each(piece, &mut take),
                None => self.session.decode(piece[0]).map(|logits| take(0, logits)),
            }
            .map_err(|e| anyhow!(e))?;
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Returns `f` of every position (with its number in the group), computed on all cores, in order.
pub fn in_parallel<T: Send>(
    positions: &[Position<'_>],
    f: impl Fn(usize, &Position<'_>) -> T + Sync,
) -> Vec<T> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = positions.len().div_ceil(threads).max(1);
    let f = &f;
    let of_part = |part: usize| {
        let own = positions.chunks(share).nth(part).unwrap_or_default();
        own.iter().enumerate().map(|(i, p)| f(part * share + i, p)).collect::<Vec<T>>()
    };
    let of_part = &of_part;
    thread::scope(|scope| {
        // Parts for which no thread can be created are computed here.
        let start = |part| {
            thread::Builder::new().spawn_scoped(scope, move || of_part(part)).map_err(|_| part)
        };
        let parts: Vec<_> = (0..positions.len().div_ceil(share)).map(start).collect();
        // A panic there has already ended the process through the hook.
        let done = |part| match part {
            Ok(there) => thread::ScopedJoinHandle::join(there).unwrap_or_default(),
            Err(here) => of_part(here),
        };
        parts.into_iter().flat_map(done).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        let logits = [0.0; 4];
        let positions: Vec<Position<'_>> =
            (0..7).map(|index| Position { index, logits: &logits, next: 0 }).collect();
        let got = in_parallel(&positions, |i, p| (i, p.index));
        assert_eq!(got, (0..7).map(|i| (i, i)).collect::<Vec<_>>());
    }
}
