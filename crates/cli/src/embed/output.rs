//! Vectors in a file or on standard output: lines of JSON, NumPy's format, or bare numbers.
//!
//! Invariants:
//! - Rows are in the order of the texts, each once. After a run has ended, in whatever way, a file has whole rows and perhaps the beginning
//!   of one more, which the next run cuts off.
//! - The number of vectors in the header of NumPy's format is written at the end of a run: until then, it is that of the run before.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alight_pages::Input;
use anyhow::{Context, anyhow, ensure};
use serde_json::Value;

use crate::batch::lines::InputLines;
use crate::batch::{output as appended, resume};
use crate::outcome::Outcome;
use crate::output as stdout;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum VectorFormat {
    /// A line of JSON for each vector.
    Jsonl,
    /// NumPy's `.npy`, of float32.
    Npy,
    /// The numbers, 4 bytes each, least significant first.
    Raw,
}

impl VectorFormat {
    /// The format that was requested, or that the name of the file shows.
    pub fn of(requested: Option<VectorFormat>, path: Option<&Path>) -> VectorFormat {
        let by_name = || match path?.extension()?.to_str()? {
            "npy" => Some(VectorFormat::Npy),
            "f32" | "bin" | "raw" => Some(VectorFormat::Raw),
            _ => None,
        };
        requested.or_else(by_name).unwrap_or(VectorFormat::Jsonl)
    }
}

/// A vector, and what is known of its text.
pub struct Row<'a> {
    /// From 0.
    pub index: u64,
    pub id: Option<Value>,
    pub vector: &'a [f32],
    pub tokens: usize,
    pub truncated: bool,
}

/// The destination of vectors.
pub struct VectorOutput {
    format: VectorFormat,
    width: usize,
    file: Option<(appended::Output, PathBuf)>,
    /// Rows of a file.
    rows: u64,
    /// The last of them, as it is written.
    last: Vec<u8>,
    /// Rows that are not written yet.
    buffer: Vec<u8>,
    flushed: Instant,
}

/// Bytes of a header of NumPy's.
const HEADER: usize = 128;
/// Rows are written together up to this many bytes, or for this time.
const BUFFER: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum bytes of a line of a file that is continued.
const MAX_LINE: usize = 256 << 20;

impl VectorOutput {
    /// Writes to standard output.
    pub fn stdout(format: VectorFormat, width: usize) -> VectorOutput {
        VectorOutput::new(format, width, None, 0, Vec::new())
    }

    fn new(
        format: VectorFormat,
        width: usize,
        file: Option<(appended::Output, PathBuf)>,
        rows: u64,
        last: Vec<u8>,
    ) -> VectorOutput {
        let (buffer, flushed) = (Vec::new(), Instant::now());
        VectorOutput { format, width, file, rows, last, buffer, flushed }
    }

    /// Continues the file at `path`, or begins it: always with `force`. `inputs`: the files that vectors are made of.
    pub fn file(
        path: &Path,
        force: bool,
        inputs: &[Input],
        format: VectorFormat,
        width: usize,
    ) -> anyhow::Result<VectorOutput> {
        let mut file = resume::open_locked(path, force, inputs)?;
        let named = || format!("'{}'", path.display());
        let found = Existing::find(&mut file, format, width).with_context(named)?;
        if found.whole < file.metadata().with_context(named)?.len() {
            file.set_len(found.whole).with_context(named)?;
        }
        let is_empty = found.whole == 0;
        let file = (appended::Output::new(file, path)?, path.to_owned());
        let mut output = VectorOutput::new(format, width, Some(file), found.rows, found.last);
        if is_empty && format == VectorFormat::Npy {
            output.buffer.extend(header(0, width));
        }
        Ok(output)
    }

    /// The number of vectors.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Checks that the last row of an earlier run is this one.
    pub fn check(&self, row: &Row<'_>) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        encode(self.format, row, &mut bytes);
        let path = self.file.as_ref().map(|(_, path)| path.display().to_string());
        ensure!(
            bytes == self.last,
            "'{}' has vectors of another model, of other texts or of other options (see its row {}): give another file, or --force to \
             replace this one",
            path.unwrap_or_default(),
            row.index + 1
        );
        Ok(())
    }

    /// Takes the next row.
    pub fn put(&mut self, row: &Row<'_>) -> Outcome {
        encode(self.format, row, &mut self.buffer);
        self.rows += 1;
        if self.buffer.len() >= BUFFER || self.flushed.elapsed() >= PATIENCE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Outcome {
        match &mut self.file {
            None => stdout::report(&self.buffer)?,
            Some((file, _)) => file.write(&self.buffer)?,
        }
        self.buffer.clear();
        self.flushed = Instant::now();
        Ok(())
    }

    /// Writes what is not written yet, to the disk.
    pub fn finish(&mut self) -> Outcome {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        let Some((file, path)) = &self.file else { return Ok(()) };
        if self.format == VectorFormat::Npy {
            let named = || format!("'{}'", path.display());
            let file = OpenOptions::new().write(true).open(path).with_context(named)?;
            file.write_all_at(&header(self.rows, self.width), 0).with_context(named)?;
        }
        Ok(file.finish()?)
    }
}

/// Appends a row.
fn encode(format: VectorFormat, row: &Row<'_>, out: &mut Vec<u8>) {
    if format != VectorFormat::Jsonl {
        return out.extend(row.vector.iter().flat_map(|x| x.to_le_bytes()));
    }
    let mut line = format!("{{\"index\":{}", row.index);
    if let Some(id) = &row.id {
        // Writing to a string does not fail.
        let _ = write!(line, ",\"id\":{id}");
    }
    let _ = write!(line, ",\"tokens\":{}", row.tokens);
    if row.truncated {
        line.push_str(",\"truncated\":true");
    }
    line.push_str(",\"embedding\":[");
    for (i, x) in row.vector.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        // The shortest text that is this number again.
        let _ = write!(line, "{comma}{x:?}");
    }
    line.push_str("]}\n");
    out.extend(line.as_bytes());
}

/// The header of a file of NumPy's with `rows` vectors.
fn header(rows: u64, width: usize) -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((HEADER - 10) as u16).to_le_bytes());
    let shape = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    header.extend(shape.as_bytes());
    header.resize(HEADER - 1, b' ');
    header.push(b'\n');
    header
}

/// The rows of a file.
#[derive(Debug, PartialEq)]
struct Existing {
    rows: u64,
    /// Its length up to the last whole row, in bytes.
    whole: u64,
    /// The last whole row.
    last: Vec<u8>,
}

impl Existing {
    fn find(file: &mut File, format: VectorFormat, width: usize) -> anyhow::Result<Existing> {
        let len = file.metadata()?.len();
        if len == 0 {
            return Ok(Existing { rows: 0, whole: 0, last: Vec::new() });
        }
        let start = match format {
            VectorFormat::Jsonl => return Existing::lines(file),
            VectorFormat::Raw => 0,
            VectorFormat::Npy => HEADER as u64,
        };
        if len < start {
            // Killed before the header was whole.
            return Ok(Existing { rows: 0, whole: 0, last: Vec::new() });
        }
        let mut found = vec![0; start as usize];
        file.seek(SeekFrom::Start(0))?;
        file.read_exact(&mut found)?;
        // The number of rows may be that of an earlier run.
        let end = format!(", {width}), }}");
        let is_ours = found.starts_with(b"\x93NUMPY\x01\x00")
            && String::from_utf8_lossy(&found).trim_end().ends_with(&end);
        ensure!(
            start == 0 || is_ours,
            "it is no file of vectors of {width} numbers that `alight embed` has written: give another file, or --force to replace it"
        );
        let row = 4 * width as u64;
        let rows = (len - start) / row.max(1);
        let whole = start + rows * row;
        let mut last = vec![0; if rows > 0 { row as usize } else { 0 }];
        file.seek(SeekFrom::Start(whole - last.len() as u64))?;
        file.read_exact(&mut last)?;
        Ok(Existing { rows, whole, last })
    }

    fn lines(file: &mut File) -> anyhow::Result<Existing> {
        file.seek(SeekFrom::Start(0))?;
        let reader = BufReader::with_capacity(1 << 20, file.by_ref());
        let mut lines = InputLines::new(reader, MAX_LINE);
        let mut found = Existing { rows: 0, whole: 0, last: Vec::new() };
        while let Some(line) = lines.next_even_blank()? {
            let mut bytes = line.bytes.unwrap_or_default();
            let begun = format!("{{\"index\":{},", found.rows);
            let shared = if line.is_whole { begun.len() } else { bytes.len().min(begun.len()) };
            if bytes.get(..shared) != begun.as_bytes().get(..shared) {
                return Err(anyhow!(
                    "line {} is no vector of `alight embed`: give another file, or --force to replace this one",
                    line.number
                ));
            }
            if line.is_whole {
                bytes.push(b'\n');
                found = Existing { rows: found.rows + 1, whole: line.end, last: bytes };
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn row(index: u64, vector: &[f32]) -> Row<'_> {
        Row { index, id: None, vector, tokens: 3, truncated: false }
    }

    #[test]
    fn a_file_that_was_cut_has_its_whole_rows() {
        let vectors = [[0.5, -1.25e-9], [1.0, 3.0], [f32::MIN_POSITIVE, 1e30]];
        for format in [VectorFormat::Jsonl, VectorFormat::Npy, VectorFormat::Raw] {
            let mut all = if format == VectorFormat::Npy { header(0, 2) } else { Vec::new() };
            let mut ends = vec![(all.len(), Vec::new())];
            for (i, vector) in vectors.iter().enumerate() {
                let mut bytes = Vec::new();
                encode(format, &row(i as u64, vector), &mut bytes);
                all.extend(&bytes);
                ends.push((all.len(), bytes));
            }
            for cut in 0..=all.len() {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&all[..cut]).unwrap();
                let found = Existing::find(&mut file, format, 2).unwrap();
                let rows = ends.iter().filter(|(end, _)| *end <= cut).count().saturating_sub(1);
                let whole = if cut < ends[0].0 { 0 } else { ends[rows].0 as u64 };
                let expected = Existing { rows: rows as u64, whole, last: ends[rows].1.clone() };
                assert_eq!(found, expected, "{format:?} {cut}");
            }
        }
    }

    #[test]
    fn numbers_are_the_same_again() {
        for x in [0.0, -0.0, 1.0, 0.1, f32::MIN_POSITIVE, -3.402_823_5e38, 1e-45, 16_777_217.0] {
            let mut bytes = Vec::new();
            encode(VectorFormat::Jsonl, &row(0, &[x]), &mut bytes);
            let line: Value = serde_json::from_slice(&bytes).unwrap();
            let read = line["embedding"][0].as_f64().unwrap() as f32;
            assert_eq!(read.to_bits(), x.to_bits(), "{x}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for (format, bytes) in [
            (VectorFormat::Jsonl, &b"{\"id\":\"x\"}\n"[..]),
            (VectorFormat::Jsonl, b"text"),
            (VectorFormat::Npy, &[b'x'; 200]),
            (VectorFormat::Npy, &header(7, 3)),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert!(Existing::find(&mut file, format, 2).is_err(), "{format:?}");
        }
    }
}
