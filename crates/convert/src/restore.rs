//! A packed file's description of its source, from which the source can be restored bit for bit.
//!
//! | key | value |
//! |---|---|
//! | `alight.layout`, `alight.layout.version` | the layout of packed tensors |
//! | `alight.layout.experts` | u32 pairs, for each run of tensors with experts side by side: the first and the number; absent if there are none |
//! | `alight.source.version` | u32, the GGUF version of the source |
//! | `alight.source.alignment` | u32, its `general.alignment`; absent if it had none |
//! | `alight.source.order` | u32 for each of its tensors, in its order: the index of the tensor in this file |
//! | `alight.source.bytes` | u64, its length |
//! | `alight.source.filler` | u8 array, all bytes of it that are neither header nor tensor, up to the last that is not zero; absent if all are zero |
//! | `alight.source.header` | u8 array, its header; absent if it follows from the rest, as it nearly always does |
//! | `alight.source.sha256` | 64 hexadecimal digits, the checksum of the whole source |
//!
//! These follow all other metadata, which is the source's, unchanged and in its order, except for
//! `general.alignment`. The source of a split model is its merged form, in one file.

use std::borrow::Cow;
use std::ops::Range;

use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{
    Array, DEFAULT_ALIGNMENT, Gguf, GgufError, MAX_ALIGNMENT, MIN_ALIGNMENT, TensorInfo, Value,
};
use alight_formats::packed::{
    EXPERTS_KEY, EXPERTS_VERSION, LAYOUT, LAYOUT_KEY, LAYOUT_VERSION_KEY, PLANES_VERSION,
};
use alight_pages::Map;

use crate::ConvertError;

const VERSION: &str = "alight.source.version";
const ALIGNMENT: &str = "alight.source.alignment";
const ORDER: &str = "alight.source.order";
const BYTES: &str = "alight.source.bytes";
const FILLER: &str = "alight.source.filler";
const HEADER: &str = "alight.source.header";
const SHA256: &str = "alight.source.sha256";

/// Maximum number of metadata entries that packing adds.
pub(crate) const MAX_RESTORE_ENTRIES: u64 = 11;

/// True if a key occurs only in packed files.
pub(crate) fn is_reserved(key: &str) -> bool {
    [LAYOUT_KEY, LAYOUT_VERSION_KEY, EXPERTS_KEY].contains(&key)
        || key.starts_with("alight.source.")
}

/// The source of a packed file.
pub(crate) struct Original<'a> {
    /// Version of GGUF.
    pub(crate) version: u32,
    /// Its alignment, if it states one.
    pub(crate) alignment: Option<u32>,
    /// For each of its tensors, the index in the packed file.
    pub(crate) order: Vec<u32>,
    /// Its length.
    pub(crate) bytes: u64,
    /// Bytes between and after the tensors; zeros follow.
    pub(crate) filler: Cow<'a, [u8]>,
    /// Its header, unless [`header`] produces the same.
    pub(crate) header: Option<Cow<'a, [u8]>>,
    /// In hexadecimal.
    pub(crate) sha256: String,
}

impl Original<'_> {
    /// The alignment of its tensors.
    pub(crate) fn alignment(&self) -> u64 {
        self.alignment.map_or(DEFAULT_ALIGNMENT, u64::from)
    }

    /// Adds the keys. `experts` are the runs of tensors whose experts are side by side, and `planes` tells whether a matrix is in planes. A file without
    /// any gets the earlier version, which older releases can read.
    pub(crate) fn write(&self, to: &mut Builder, experts: &[Range<usize>], planes: bool) {
        let version = match (planes, experts.is_empty()) {
            (true, _) => PLANES_VERSION,
            (false, false) => EXPERTS_VERSION,
            (false, true) => EXPERTS_VERSION - 1,
        };
        to.str(LAYOUT_KEY, LAYOUT).u32(LAYOUT_VERSION_KEY, version as u32);
        if !experts.is_empty() {
            let pairs = experts.iter().flat_map(|run| [run.start as u32, run.len() as u32]);
            to.u32s(EXPERTS_KEY, &pairs.collect::<Vec<_>>());
        }
        to.u32(VERSION, self.version);
        if let Some(alignment) = self.alignment {
            to.u32(ALIGNMENT, alignment);
        }
        to.u32s(ORDER, &self.order).u64(BYTES, self.bytes);
        if !self.filler.is_empty() {
            to.u8s(FILLER, &self.filler);
        }
        if let Some(header) = &self.header {
            to.u8s(HEADER, header);
        }
        to.str(SHA256, &self.sha256);
    }
}

/// Reads the keys of a packed file and checks that they are possible.
pub(crate) fn read<'a>(map: &Map, gguf: &Gguf<'a>) -> Result<Original<'a>, ConvertError> {
    let wrong =
        |key, problem: String| ConvertError::Restore { path: map.path().into(), key, problem };
    let invalid = |source| ConvertError::Header { path: map.path().into(), source };
    let bytes = |key| -> Result<Option<&'a [u8]>, ConvertError> {
        let Some(array) = gguf.value::<Array<'a>>(key).map_err(invalid)? else { return Ok(None) };
        array.as_u8().map(Some).ok_or_else(|| wrong(key, "is not an array of bytes".into()))
    };

    let version = gguf.require::<u32>(VERSION).map_err(invalid)?;
    if !(1..=3).contains(&version) {
        return Err(wrong(VERSION, format!("is {version}, expected 1, 2 or 3")));
    }
    let alignment = gguf.value::<u32>(ALIGNMENT).map_err(invalid)?;
    if let Some(found) = alignment
        && !(found.is_power_of_two() && (MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&found))
    {
        return Err(wrong(ALIGNMENT, format!("is {found}, expected a power of two")));
    }
    // A packed file has at least the alignment of its source, so the source's padding is not much more than the file's own.
    if let Some(found) = alignment
        && u64::from(found) > gguf.alignment
    {
        let problem = format!("is {found}, expected at most the file's own {}", gguf.alignment);
        return Err(wrong(ALIGNMENT, problem));
    }
    let order = gguf.require::<Array<'a>>(ORDER).map_err(invalid)?;
    let order: Vec<u32> = match order.iter_u32() {
        Some(order) => order.collect(),
        None => return Err(wrong(ORDER, "is not an array of u32".into())),
    };
    let mut seen = vec![false; gguf.tensors.len()];
    for index in &order {
        match seen.get_mut(*index as usize) {
            Some(seen) if !*seen => *seen = true,
            _ => return Err(wrong(ORDER, format!("names tensor {index} twice or has too many"))),
        }
    }
    if order.len() != seen.len() {
        let problem = format!("has {} elements, expected {}", order.len(), seen.len());
        return Err(wrong(ORDER, problem));
    }
    let sha256 = gguf.require::<&str>(SHA256).map_err(invalid)?;
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong(SHA256, "is not 64 hexadecimal digits".into()));
    }
    Ok(Original {
        version,
        alignment,
        order,
        bytes: gguf.require::<u64>(BYTES).map_err(invalid)?,
        filler: bytes(FILLER)?.unwrap_or_default().into(),
        header: bytes(HEADER)?.map(Cow::Borrowed),
        sha256: sha256.to_ascii_lowercase(),
    })
}

/// Returns the header of a source with these contents, if it was written in the usual way.
///
/// # Errors
/// The tensors are too large for their offsets to be representable.
pub(crate) fn header<'a, 'g: 'a>(
    version: u32,
    alignment: Option<u32>,
    metadata: &'a [(&'g str, Value<'g>)],
    tensors: impl Iterator<Item = &'a TensorInfo<'g>>,
) -> Result<Builder, GgufError> {
    let mut out = Builder::new();
    if version == 2 {
        out.version_2();
    }
    for (key, value) in metadata.iter().filter(|(key, _)| !is_reserved(key)) {
        match (*key, alignment) {
            ("general.alignment", Some(alignment)) => out.alignment(alignment),
            ("general.alignment", None) => continue,
            _ => out.value(key, value),
        };
    }
    for tensor in tensors {
        out.tensor(tensor.name, tensor.ty, tensor.shape())?;
    }
    Ok(out)
}

/// Maximum number of bytes after the last tensor. No model has any; more is a file of another kind
/// in disguise, or a damaged number that would fill the disk with zeros.
pub(crate) const MAX_TAIL: u64 = 64 << 20;

/// Returns the number of bytes before each tensor and before the end.
pub(crate) fn gaps(
    header_len: u64,
    alignment: u64,
    tensors: impl Iterator<Item = u64>,
    file_len: u64,
) -> Option<Vec<u64>> {
    let mut at = header_len;
    let mut gaps = Vec::new();
    for nbytes in tensors {
        let start = at.checked_next_multiple_of(alignment)?;
        gaps.push(start - at);
        at = start.checked_add(nbytes)?;
    }
    gaps.push(file_len.checked_sub(at)?);
    Some(gaps)
}
