//! Torch's files (`.pth`, `.pt`, `pytorch_model.bin`), as written by `torch.save` since 1.6.
//!
//! ```text
//! zip, every entry stored, ZIP64 where needed:
//!   <root>/data.pkl      a pickle: nested dictionaries, tensors in them
//!   <root>/version       "3"
//!   <root>/byteorder     "little"                       since torch 2.1
//!   <root>/data/<key>    the bytes of one storage; a tensor is a stretch of one
//!   <root>/.data/…, <root>/.format_version, …           nothing that matters here
//! ```
//!
//! [`parse`] reads the zip's directory and local headers and the pickle, and does not touch tensors. The pickle is a
//! program for a stack machine whose only dangerous instructions are "find this name" and "call what you
//! found"; here names are looked up in a table of about thirty ([`pickle`]), and the only callable functions
//! are five that are written below. Nothing is executed, nothing is imported, and there is no other, more
//! permissive path to fall back to.
//!
//! It guarantees: entries are stored uncompressed under one root, follow one another without overlap, and both
//! of their headers agree; names of tensors are unique; every tensor is contiguous and inside its storage, and
//! the storage is exactly as long as its record. Several tensors may share bytes, as tied weights do. Time is
//! linear in the lengths of directory and pickle, both of which have limits; memory is proportional to them.
//!
//! Not checked: the CRC-32 of records, which torch itself can be configured not to compute
//! (`torch.serialization.set_crc32_options`).
//!
//! Sources: torch/serialization.py, torch/_utils.py, torch/_tensor.py, caffe2/serialize/inline_container.cc and
//! its miniz; APPNOTE.TXT for zip; Python's pickletools for opcodes.

mod error;
mod globals;
mod names;
mod opcodes;
pub mod pickle;
mod rebuild;
mod values;
pub mod zip;

use std::ops::Range;

use crate::Source;

pub use error::{PickleError, TorchError, ZipError};
pub use globals::TorchDtype;
pub use zip::Zip;

/// Maximum bytes of `data.pkl`. A model of 100,000 tensors has one of 15 MB.
pub const MAX_PICKLE: u64 = 32 << 20;
/// Maximum number of dimensions of a tensor, as in torch.
pub const MAX_DIMS: usize = 64;
/// Newest supported version of the container: torch's own limit.
pub const MAX_VERSION: u64 = 10;

/// The contents of a file. Borrows from the bytes it was read from.
#[derive(Clone, Debug)]
pub struct Torch<'a> {
    /// The folder in the zip that contains everything.
    pub root: &'a str,
    /// Version of the container, 1 to [`MAX_VERSION`].
    pub version: u64,
    /// The tensors, in the order of the dictionaries.
    pub tensors: Vec<TorchTensor>,
    /// Names and values that are not tensors: numbers, text, booleans, None. Those in lists and tuples are left out.
    pub scalars: Vec<(Box<str>, Scalar<'a>)>,
    /// The number of storages that the tensors use; see [`TorchTensor::storage`].
    pub storages: usize,
    /// Indices into the tensors, sorted by name.
    by_name: Vec<u32>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchTensor {
    /// Its keys from the outermost dictionary inward, joined by dots; list indices are numbers. Unique in the file.
    pub name: Box<str>,
    /// Type of the elements, little-endian.
    pub dtype: TorchDtype,
    /// Extents, outermost first. Empty for a scalar; an extent may be 0.
    pub shape: Box<[u64]>,
    /// The offset of its data, in bytes from the start of the file. Usually a multiple of 64, but not always.
    pub offset: u64,
    /// Bytes of data; `offset + nbytes` is at most the length of the file.
    pub nbytes: u64,
    /// The number of its storage, below [`Torch::storages`]: equal for tensors that may share bytes.
    pub storage: u32,
}

/// A value that is not a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the variants explain themselves
pub enum Scalar<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
}

impl TorchTensor {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The parser has checked that this does not overflow.
        self.shape.iter().product()
    }

    /// The range of the data in the file.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.nbytes) as usize
    }

    /// The data, as a slice of the bytes of the file; `None` if these are not the bytes that were parsed.
    pub fn data<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        file.get(self.range())
    }
}

impl Torch<'_> {
    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TorchTensor> {
        let named = |index: &u32| self.tensors[*index as usize].name.as_ref().cmp(name);
        let place = self.by_name.binary_search_by(named).ok()?;
        self.tensors.get(self.by_name[place] as usize)
    }
}

/// The number of first bytes that identify files of older formats.
const HEAD: usize = 512;
/// Maximum bytes of records that hold one word.
const SHORT: u64 = 32;

/// The first bytes of torch's files before 1.6: a pickled magic number.
const OLD_MAGIC: [u8; 11] = [10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// Reads directory and pickle of a file.
///
/// # Errors
/// [`TorchError`] has a variant for each way in which such a file can be wrong.
pub fn parse<'a>(file: impl Source<'a>) -> Result<Torch<'a>, TorchError> {
    read(&file)
}

fn read<'a>(file: &dyn Source<'a>) -> Result<Torch<'a>, TorchError> {
    let mut head = [0; HEAD];
    let head = &mut head[..file.len().min(HEAD as u64) as usize];
    if !file.read(0, head) {
        return Err(TorchError::NotTorch { found: Box::default() });
    }
    refuse_old(head)?;
    if !head.starts_with(b"PK\x03\x04") {
        return Err(TorchError::NotTorch { found: head[..head.len().min(8)].into() });
    }
    let zip = Zip::parse(file)?;
    let version = version(&zip, file)?;
    if zip.get("constants.pkl").is_some() {
        return Err(TorchError::TorchScript);
    }
    if let Some(order) = zip.get("byteorder") {
        let found = order.begin(file, SHORT);
        if found != b"little" || order.size > SHORT {
            return Err(TorchError::ByteOrder { found: found.into() });
        }
    }
    let record = zip.get("data.pkl").ok_or(TorchError::NoPickle)?;
    if record.size > MAX_PICKLE {
        return Err(TorchError::PickleTooLarge { found: record.size, limit: MAX_PICKLE });
    }
    let read = pickle::load(record.begin(file, MAX_PICKLE), &zip)?;
    let found = names::walk(&read, record.size)?;
    Ok(Torch {
        root: zip.root,
        version,
        tensors: found.tensors,
        scalars: found.scalars,
        storages: read.storages.len(),
        by_name: found.by_name,
    })
}

fn version(zip: &Zip<'_>, file: &dyn Source<'_>) -> Result<u64, TorchError> {
    // torch has always written one; `.data/version` is the name that TorchScript used first.
    let record = zip.get("version").or_else(|| zip.get(".data/version"));
    let record = record.ok_or(TorchError::NoVersion)?;
    let text = record.begin(file, SHORT);
    let wrong = || TorchError::Version { found: text.into() };
    if record.size > SHORT {
        return Err(wrong());
    }
    let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    number.filter(|n| (1..=MAX_VERSION).contains(n)).ok_or_else(wrong)
}

/// Refuses files of older formats that contain tensors, but not in a form that can be mapped.
fn refuse_old(bytes: &[u8]) -> Result<(), TorchError> {
    let head = &bytes[..bytes.len().min(64)];
    if head.first() == Some(&0x80) && head.get(1).is_some_and(|protocol| *protocol <= 5) {
        return Err(match head.windows(OLD_MAGIC.len()).any(|at| at == OLD_MAGIC) {
            true => TorchError::BeforeZip,
            false => TorchError::BarePickle,
        });
    }
    // torch 0.1.0 to 0.1.9 wrote a tar.
    if bytes.get(257..262) == Some(b"ustar") && head.starts_with(b"sys_info\0") {
        return Err(TorchError::BeforeZip);
    }
    Ok(())
}
