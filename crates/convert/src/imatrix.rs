//! Importance matrices: the importance of the columns of each matrix, as measured by `alight imatrix` or llama.cpp's `llama-imatrix`.
//!
//! The file is GGUF. For a matrix it has `NAME.in_sum2` `[matrices, columns]`, the sums of the squares of the inputs that the
//! columns were multiplied with, and `NAME.counts` `[matrices]`, the numbers of inputs: one matrix, or one for each expert. Both
//! are F32.
//!
//! Before August 2025 it was a format of its own (`imatrix.dat`), of little-endian numbers of 32 bits: the number of entries; for each
//! the length of its name, the name, the number of calls, the number of sums, the sums (F32), which are to be divided by the number
//! of calls; then, in most files, the number of chunks, the length of the data set's name, and the name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use alight_files::{copy, parse};
use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{Gguf, TensorInfo};
use alight_pages::Map;

use crate::write::Importance;
use crate::{ConvertError, source};

mod new;
mod old;

pub use self::new::{MeasuredTensor, imatrix_file};

const MAGIC: &[u8] = b"GGUF";
/// The tensors and keys of such a file.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const CHUNKS: &str = "imatrix.chunk_count";
const DATASETS: &str = "imatrix.datasets";
/// Prefix of the keys of a file that was quantised with an importance matrix.
pub(crate) const PREFIX: &str = "quantize.imatrix.";
/// Maximum number of matrices of one tensor, one for each expert.
const MAX_MATRICES: u64 = 1 << 16;

/// A file of importance matrices.
pub(crate) struct Imatrix {
    pub(crate) map: Map,
    /// By the name of the model's tensor.
    entries: HashMap<String, ImatrixEntry>,
    chunks: Option<u32>,
    dataset: Option<String>,
}

struct ImatrixEntry {
    /// Number of sums, of all matrices.
    sums: u64,
    /// Offset of the sums in the file, in bytes.
    offset: u64,
    counts: Counts,
}

/// Numbers of inputs.
enum Counts {
    /// Of each matrix.
    Each(Vec<f32>),
    /// Of every matrix; how many there are only the model tells.
    All(f32),
}

impl Imatrix {
    /// Reads everything except the sums.
    ///
    /// # Errors
    /// It is not such a file, or sums and counts do not match.
    pub(crate) fn open(path: &Path) -> Result<Imatrix, ConvertError> {
        let map = source::map(path)?;
        if map.head(MAGIC.len()) != MAGIC {
            return old::read(map);
        }
        let header = copy(&map);
        let gguf = parse(&map, &header)?;
        let mut entries = HashMap::new();
        for info in &gguf.tensors {
            if let Some(name) = info.name.strip_suffix(SUMS) {
                entries.insert(name.to_owned(), ImatrixEntry::read(&map, &gguf, info, name)?);
            }
        }
        if entries.is_empty() {
            let problem = format!(
                "has no tensors \"…{SUMS}\": expected an importance matrix, as llama-imatrix writes it"
            );
            return Err(ConvertError::Source { path: path.into(), problem });
        }
        let chunks = gguf.value(CHUNKS).ok().flatten();
        let dataset = gguf.get_strings(DATASETS).ok().flatten();
        let dataset = dataset.and_then(|mut names| names.next());
        let dataset = dataset.map(|name| String::from_utf8_lossy(name).into_owned());
        drop(gguf);
        drop(header);
        Ok(Imatrix { map, entries, chunks, dataset })
    }

    /// Returns the importance of a tensor's columns, if the file has it. `file` is the number of this file; `ne` is
    /// innermost first.
    ///
    /// # Errors
    /// Its extents differ.
    pub(crate) fn of(
        &self,
        file: usize,
        name: &str,
        ne: &[u64],
    ) -> Result<Option<Importance>, ConvertError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let matrices = ne.iter().skip(2).product::<u64>().max(1);
        let (columns, rows) = (ne.first().copied().unwrap_or(1), ne.get(1).copied().unwrap_or(1));
        // Matrices of heads, which all inputs pass, have one number of inputs.
        let found = match &entry.counts {
            Counts::Each(counts) if counts.len() > 1 => counts.len() as u64,
            Counts::Each(_) | Counts::All(_) => matrices,
        };
        if found == matrices && entry.sums == matrices.saturating_mul(columns) {
            let counts = match &entry.counts {
                Counts::Each(counts) if counts.len() > 1 => counts.clone(),
                Counts::Each(counts) => vec![counts[0]; matrices as usize],
                Counts::All(count) => vec![*count; matrices as usize],
            };
            return Ok(Some(Importance { file, offset: entry.offset, columns, rows, counts }));
        }
        Err(self.wrong(format!(
            "\"{name}\" is [{found}, {}], expected [{matrices}, {columns}], which the model's tensor is: it is of another model",
            entry.sums / found.max(1)
        )))
    }

    /// Writes the keys that name the importance matrix.
    pub(crate) fn keys(&self, used: usize, out: &mut Builder) {
        out.str(&format!("{PREFIX}file"), alight_files::file_name(self.map.path()));
        if let Some(dataset) = &self.dataset {
            out.str(&format!("{PREFIX}dataset"), dataset);
        }
        out.u32(&format!("{PREFIX}entries_count"), used as u32);
        if let Some(chunks) = self.chunks {
            out.u32(&format!("{PREFIX}chunks_count"), chunks);
        }
    }

    fn wrong(&self, problem: String) -> ConvertError {
        ConvertError::Source { path: PathBuf::from(self.map.path()), problem }
    }
}

impl ImatrixEntry {
    fn read(
        map: &Map,
        gguf: &Gguf<'_>,
        sums: &TensorInfo<'_>,
        name: &str,
    ) -> Result<ImatrixEntry, ConvertError> {
        let wrong = |problem: String| {
            Err(ConvertError::Source {
                path: map.path().into(),
                problem: format!("\"{name}\" {problem}"),
            })
        };
        let Some(counts) = gguf.tensor(&format!("{name}{COUNTS}")) else {
            return wrong(format!("has no \"{COUNTS}\" beside its \"{SUMS}\""));
        };
        if [sums.ty, counts.ty] != [GgmlType::F32; 2] {
            return wrong(format!(
                "is {} and {}, expected F32 sums and counts",
                sums.ty, counts.ty
            ));
        }
        let elements = |info: &TensorInfo<'_>| info.shape().iter().product::<u64>();
        let (all, matrices) = (elements(sums), elements(counts));
        if !(1..=MAX_MATRICES).contains(&matrices) || !all.is_multiple_of(matrices) || all == 0 {
            return wrong(format!(
                "has {all} sums and {matrices} counts, expected as many for each"
            ));
        }
        let mut bytes = vec![0; matrices as usize * 4];
        let read =
            |source| ConvertError::Read { path: map.path().into(), at: counts.offset, source };
        std::os::unix::fs::FileExt::read_exact_at(map.file(), &mut bytes, counts.offset)
            .map_err(read)?;
        let counts: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if counts.iter().any(|count| !count.is_finite()) {
            return wrong("has a count that is no number".into());
        }
        Ok(ImatrixEntry { sums: all, offset: sums.offset, counts: Counts::Each(counts) })
    }
}
