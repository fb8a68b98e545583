//! Files of reference log-probabilities, in the format that llama.cpp's `llama-perplexity` writes
//! with `--save-all-logits` and reads with `--kl-divergence-base`. Little-endian:
//!
//! ```text
//! "_logits_" | u32 n_ctx | i32 n_vocab | i32 n_chunk | i32 tokens[n_chunk][n_ctx]
//! then for each chunk, for each of its n_ctx − 1 − n_ctx/2 scored positions, one row:
//!   f32 scale | f32 min | u16 q[n_vocab rounded up to even]      ln p(i) = scale · q[i] + min
//! ```
//!
//! The tokens are those of the text; a chunk's first one is replaced by the begin-of-text token
//! when it is evaluated, if the model requires one. A reader trusts nothing: the sizes that the
//! header states are compared with the size of the file before anything is allocated for them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use alight_pages::open_file;
use anyhow::{Context, anyhow, bail, ensure};

const MAGIC: &[u8; 8] = b"_logits_";
const HEADER: u64 = 8 + 3 * 4;
/// Log-probabilities further than this below the best are stored as the smallest.
const RANGE: f32 = 16.0;

/// The shape of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Number of chunks.
    pub n_chunk: usize,
}

impl Shape {
    /// Returns the first scored position of a chunk; each position predicts the token after it.
    pub fn first(self) -> usize {
        self.n_ctx / 2
    }

    /// Returns the number of scored positions per chunk.
    pub fn scored(self) -> usize {
        (self.n_ctx - 1).saturating_sub(self.first())
    }

    /// Returns the bytes of one position's row.
    pub fn row_bytes(self) -> usize {
        2 * (self.n_vocab.next_multiple_of(2) + 4)
    }

    /// Returns the bytes of the file; `None` if no file can be that large.
    pub fn file_bytes(self) -> Option<u64> {
        let tokens = (self.n_chunk as u64).checked_mul(self.n_ctx as u64)?.checked_mul(4)?;
        let rows = (self.n_chunk as u64).checked_mul(self.scored() as u64)?;
        HEADER.checked_add(tokens)?.checked_add(rows.checked_mul(self.row_bytes() as u64)?)
    }
}

/// An open file of reference log-probabilities.
#[derive(Debug)]
pub struct Base {
    file: File,
    path: PathBuf,
    shape: Shape,
}

impl Base {
    /// Opens a file and checks its header against its size.
    pub fn open(path: &Path) -> anyhow::Result<Base> {
        let named = || format!("'{}'", path.display());
        let (file, meta) = open_file(path).map_err(|e| anyhow!(e))?;
        let mut header = [0; HEADER as usize];
        let magic_fits = meta.len() >= HEADER && {
            file.read_exact_at(&mut header, 0).with_context(named)?;
            header.starts_with(MAGIC)
        };
        ensure!(
            magic_fits,
            "{} is not a file of log-probabilities: expected one written by `alight perplexity \
             --save-logits` or by `llama-perplexity --save-all-logits`",
            named()
        );
        let word = |i: usize| {
            let at = MAGIC.len() + 4 * i;
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let shape =
            Shape { n_ctx: word(0) as usize, n_vocab: word(1) as usize, n_chunk: word(2) as usize };
        ensure!(
            (4..=1 << 24).contains(&word(0))
                && (1..=1 << 24).contains(&word(1))
                && (1..1 << 31).contains(&word(2)),
            "{}: its header is not plausible: {} tokens per chunk, a vocabulary of {}, {} chunks",
            named(),
            word(0),
            word(1),
            word(2)
        );
        let expected = shape.file_bytes();
        if expected != Some(meta.len()) {
            bail!(
                "{} holds {} bytes, but {} chunks of {} tokens with a vocabulary of {} take {}: \
                 the file is not complete or not what it says",
                named(),
                meta.len(),
                shape.n_chunk,
                shape.n_ctx,
                shape.n_vocab,
                expected.map_or("more than a file can hold".to_owned(), |n| n.to_string()),
            );
        }
        Ok(Base { file, path: path.to_owned(), shape })
    }

    /// Returns the shape of the file.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the tokens of chunk `chunk`, as in the text. `chunk` is less than `n_chunk`.
    pub fn tokens(&self, chunk: usize) -> anyhow::Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * self.shape.n_ctx];
        let at = HEADER + (chunk * bytes.len()) as u64;
        self.read(&mut bytes, at)?;
        let tokens: Vec<u32> =
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(i) = tokens.iter().position(|&t| t as usize >= self.shape.n_vocab) {
            bail!(
                "'{}': token {i} of chunk {chunk} is {}, outside the vocabulary of {}",
                self.path.display(),
                tokens[i] as i32,
                self.shape.n_vocab
            );
        }
        Ok(tokens)
    }

    /// Reads the rows of `count` scored positions of chunk `chunk` from position `from` (counted
    /// from the first scored one) into `out`, which is resized to fit.
    pub fn rows(
        &self,
        chunk: usize,
        from: usize,
        count: usize,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let (shape, row) = (self.shape, self.shape.row_bytes());
        debug_assert!(chunk < shape.n_chunk && from + count <= shape.scored());
        let rows = HEADER
            + (shape.n_chunk as u64 * shape.n_ctx as u64 * 4)
            + (chunk as u64 * shape.scored() as u64 + from as u64) * row as u64;
        out.resize(count * row, 0);
        self.read(out, rows)?;
        for (i, bytes) in out.chunks_exact(row).enumerate() {
            let view = LogprobRow::new(bytes, shape.n_vocab);
            ensure!(
                view.scale.is_finite() && view.scale >= 0.0 && view.min.is_finite(),
                "'{}': position {} of chunk {chunk} has scale {} and minimum {}",
                self.path.display(),
                from + i,
                view.scale,
                view.min
            );
        }
        Ok(())
    }

    fn read(&self, out: &mut [u8], at: u64) -> anyhow::Result<()> {
        self.file.read_exact_at(out, at).with_context(|| format!("'{}'", self.path.display()))
    }
}

/// One position's log-probabilities.
#[derive(Clone, Copy, Debug)]
pub struct LogprobRow<'a> {
    /// Step between two values.
    pub scale: f32,
    /// The log-probability of value 0.
    pub min: f32,
    /// Values, little-endian, `n_vocab` of them.
    values: &'a [u8],
}

impl<'a> LogprobRow<'a> {
    /// Views `bytes`, which are [`Shape::row_bytes`] long.
    pub fn new(bytes: &'a [u8], n_vocab: usize) -> LogprobRow<'a> {
        let float = |at: usize| {
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        LogprobRow { scale: float(0), min: float(4), values: &bytes[8..8 + 2 * n_vocab] }
    }

    /// Returns ln p of token `i`.
    pub fn get(self, i: usize) -> f32 {
        let q = u16::from_le_bytes([self.values[2 * i], self.values[2 * i + 1]]);
        self.scale * f32::from(q) + self.min
    }

    /// Returns ln p of every token in order.
    pub fn iter(self) -> impl Iterator<Item = f32> + 'a {
        let (scale, min) = (self.scale, self.min);
        self.values
            .chunks_exact(2)
            .map(move |b| scale * f32::from(u16::from_le_bytes([b[0], b[1]])) + min)
    }
}

/// Writes the header of a file of shape `shape`, with the tokens of its text
/// (`n_chunk · n_ctx` of them).
pub fn write_header(out: &mut dyn Write, shape: Shape, tokens: &[u32]) -> io::Result<()> {
    out.write_all(MAGIC)?;
    for n in [shape.n_ctx, shape.n_vocab, shape.n_chunk] {
        out.write_all(&(n as u32).to_le_bytes())?;
    }
    for t in &tokens[..shape.n_chunk * shape.n_ctx] {
        out.write_all(&t.to_le_bytes())?;
    }
    Ok(())
}

/// Appends the row of one position to `out`: 16 bits per token over the range from the best
/// log-probability down to 16 below it.
pub fn push_row(logits: &[f32], out: &mut Vec<u8>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lowest = logits.iter().copied().fold(f32::INFINITY, f32::min);
    let low = lowest.max(max - RANGE);
    let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
    let log_sum = sum.ln() as f32;
    let scale = (max - low) / 65535.0;
    out.extend(scale.to_le_bytes());
    out.extend((low - max - log_sum).to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for &x in logits {
        let q = if x > low { (inverse * (x - low)).round_ties_even() } else { 0.0 };
        out.extend((q as u16).to_le_bytes());
    }
    if logits.len() % 2 == 1 {
        out.extend([0, 0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { n_ctx: 8, n_vocab: 5, n_chunk: 2 };

    fn file_of(shape: Shape) -> Vec<u8> {
        let mut bytes = Vec::new();
        let tokens: Vec<u32> = (0..16).map(|t| t % 5).collect();
        write_header(&mut bytes, shape, &tokens).unwrap();
        for position in 0..shape.n_chunk * shape.scored() {
            let logits: Vec<f32> = (0..5).map(|i| (i * position) as f32 * 0.7 - 3.0).collect();
            push_row(&logits, &mut bytes);
        }
        bytes
    }

    fn open(bytes: &[u8]) -> anyhow::Result<Base> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Base::open(file.path())
    }

    #[test]
    fn what_is_written_is_read() {
        let base = open(&file_of(SHAPE)).unwrap();
        assert_eq!(base.shape(), SHAPE);
        assert_eq!(base.tokens(1).unwrap(), [3, 4, 0, 1, 2, 3, 4, 0]);
        let mut rows = Vec::new();
        // Scored: positions 4, 5, 6 of a chunk of 8. Position 1 of chunk 1 is the fifth row.
        base.rows(1, 1, 2, &mut rows).unwrap();
        let row = LogprobRow::new(&rows[..SHAPE.row_bytes()], 5);
        let logits: Vec<f64> = (0..5).map(|i| f64::from(i) * 4.0 * 0.7 - 3.0).collect();
        let log_sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
        for (i, (got, logit)) in row.iter().zip(&logits).enumerate() {
            assert!((f64::from(got) - (logit - log_sum)).abs() < 2e-4, "{i}: {got}");
            assert_eq!(got, row.get(i));
        }
    }

    #[test]
    fn values_far_below_the_best_are_clamped() {
        let mut row = Vec::new();
        push_row(&[0.0, -100.0, -15.0], &mut row);
        assert_eq!(row.len(), Shape { n_ctx: 4, n_vocab: 3, n_chunk: 1 }.row_bytes());
        let row = LogprobRow::new(&row, 3);
        assert!((row.get(1) + 16.0).abs() < 1e-3);
        assert!((row.get(2) + 15.0).abs() < 1e-3);
        // All equal: the scale is 0 and everything is at the minimum.
        let mut flat = Vec::new();
        push_row(&[2.0; 4], &mut flat);
        assert!((LogprobRow::new(&flat, 4).get(3) + 4f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn lies_in_the_header_are_errors() {
        let good = file_of(SHAPE);
        let with = |at: usize, word: u32| {
            let mut b = good.clone();
            b[at..at + 4].copy_from_slice(&word.to_le_bytes());
            open(&b).unwrap_err().to_string()
        };
        assert!(open(&good[..good.len() - 1]).unwrap_err().to_string().contains("not complete"));
        assert!(open(b"").unwrap_err().to_string().contains("not a file of log-prob"));
        assert!(with(0, 7).contains("not a file of log-prob"));
        for (at, word) in [(8, 0), (8, u32::MAX), (12, 0), (12, u32::MAX), (16, 0), (16, u32::MAX)]
        {
            assert!(with(at, word).contains("not plausible"), "{at} {word}");
        }
        for (at, word) in [(8, 9), (12, 1 << 24), (16, 3), (16, i32::MAX as u32)] {
            assert!(with(at, word).contains("not complete"), "{at} {word}");
        }
    }

    #[test]
    fn lies_in_the_rows_are_errors() {
        let good = file_of(SHAPE);
        let mut bad = good.clone();
        bad[20..24].copy_from_slice(&5u32.to_le_bytes());
        assert!(open(&bad).unwrap().tokens(0).unwrap_err().to_string().contains("outside"));
        let mut bad = good;
        let row = 20 + 4 * 16;
        bad[row..row + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        let error = open(&bad).unwrap().rows(0, 0, 1, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("scale NaN"));
    }
}
