//! One error for each way in which a torch file can be wrong, or be something else. Every message names the entry,
//! opcode, global or tensor, and gives the value found and the expected one; none contains the file's name.

use thiserror::Error;

use super::globals::TorchDtype;
use crate::text::shown;

/// Advice for a file that cannot be read as it is.
const RESAVE: &str = "load it once with a current torch, where you trust it, and save its state_dict() \
    again with torch.save, or take the safetensors version of the model";

/// The reason why bytes are not a valid torch file.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum TorchError {
    #[error("not a file of torch's: it begins with {}, expected a zip, \"PK\\x03\\x04\"", shown(.found))]
    NotTorch { found: Box<[u8]> },

    #[error(
        "the file was written by torch before 1.6, or in that old format, which is not a zip and \
         whose tensors cannot be used from the file; {}",
        RESAVE
    )]
    BeforeZip,

    #[error("the file is a bare Python pickle and not one of torch's zip files; {}", RESAVE)]
    BarePickle,

    #[error(
        "the file is a TorchScript program (it has constants.pkl), not a dictionary of tensors; save \
         the state_dict() of the loaded module with torch.save"
    )]
    TorchScript,

    #[error("zip: {0}")]
    Zip(#[from] ZipError),

    #[error("data.pkl: {0}")]
    Pickle(#[from] PickleError),

    #[error("the zip has no data.pkl, so it is not a file of torch's")]
    NoPickle,

    #[error("the zip has no entry \"version\", which every file of torch's has")]
    NoVersion,

    #[error("version of the file is {}, expected 1 to {}", shown(.found), super::MAX_VERSION)]
    Version { found: Box<[u8]> },

    #[error(
        "the file's byteorder is {}, expected \"little\": its weights would have to be byte-swapped, \
         which is not supported; save it again on a little-endian machine",
        shown(.found)
    )]
    ByteOrder { found: Box<[u8]> },

    #[error("data.pkl has {found} bytes, expected at most {limit}")]
    PickleTooLarge { found: u64, limit: u64 },

    #[error("the file holds {found}, expected a dictionary of tensors: save a state_dict()")]
    NotADict { found: &'static str },

    #[error("{}: nested deeper than {limit} dictionaries and lists", shown(.name.as_bytes()))]
    TooDeep { name: Box<str>, limit: usize },

    #[error("{}: contains itself", shown(.name.as_bytes()))]
    Recursive { name: Box<str> },

    #[error(
        "its {pickle} bytes of pickle use the same dictionaries again and again: spelled out, their \
         names and shapes would take more than {limit} bytes"
    )]
    TooManyNames { pickle: u64, limit: u64 },

    #[error("{}: has a name of more than {limit} bytes in it", shown(.name.as_bytes()))]
    NameLength { name: Box<str>, limit: usize },

    #[error("{}: has a key that is {found}, expected text or a number", shown(.name.as_bytes()))]
    Key { name: Box<str>, found: &'static str },

    #[error("two values have the name {}", shown(.name.as_bytes()))]
    DuplicateName { name: Box<str> },

    #[error(
        "tensor {}: strides {} of shape {} are not those of contiguous rows (transposed, expanded or \
         a view); save it again after .contiguous()",
        shown(.name.as_bytes()), list(.strides), list(.shape)
    )]
    Strides { name: Box<str>, shape: Box<[u64]>, strides: Box<[u64]> },

    #[error(
        "tensor {}: shape {} has more elements or bytes than 63 bits can count",
        shown(.name.as_bytes()), list(.shape)
    )]
    ShapeOverflow { name: Box<str>, shape: Box<[u64]> },

    #[error(
        "tensor {}: {nbytes} bytes from byte {start} on end past its storage {}, which has {storage}",
        shown(.name.as_bytes()), shown(.key.as_bytes())
    )]
    PastStorage { name: Box<str>, key: Box<str>, start: u64, nbytes: u64, storage: u64 },
}

/// The reason why bytes are not a valid zip, or not one whose entries can be used in place.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum ZipError {
    #[error("no end of the central directory in the file's last 64 KiB; the file is cut short")]
    NoEnd,

    #[error("it is one of several volumes (disk {found}), expected one file")]
    Volumes { found: u32 },

    #[error("{what} is {found}, expected {expected}")]
    End { what: &'static str, found: u64, expected: u64 },

    #[error("ZIP64: {what}")]
    Zip64 { what: &'static str },

    #[error(
        "the central directory of {size} bytes at byte {start} does not end where its end record begins, at byte {end}"
    )]
    Directory { start: u64, size: u64, end: u64 },

    #[error("the central directory has {found} bytes, expected at most {limit}")]
    DirectoryTooLarge { found: u64, limit: u64 },

    #[error("it announces {found} entries, but its directory could hold at most {limit}")]
    Count { found: u64, limit: u64 },

    #[error("entry {index} of the central directory, at byte {at}, is cut short or not one")]
    Entry { index: u64, at: u64 },

    #[error("the central directory continues after its {entries} entries")]
    MoreDirectory { entries: u64 },

    #[error("entry {}: {what}", shown(.name))]
    Name { name: Box<[u8]>, what: &'static str },

    #[error("entry {} occurs twice", shown(.name.as_bytes()))]
    Duplicate { name: Box<str> },

    #[error("entries stand under two roots, {} and {}", shown(.first.as_bytes()), shown(.second.as_bytes()))]
    TwoRoots { first: Box<str>, second: Box<str> },

    #[error("it has no entries")]
    Empty,

    #[error("entry {} is encrypted", shown(.name.as_bytes()))]
    Encrypted { name: Box<str> },

    #[error(
        "entry {} is compressed ({method}), expected it stored: torch stores; repack with zip -0",
        shown(.name.as_bytes())
    )]
    Compressed { name: Box<str>, method: Method },

    #[error("entry {}: {stored} bytes are stored for a size of {size}", shown(.name.as_bytes()))]
    Sizes { name: Box<str>, stored: u64, size: u64 },

    #[error("entry {}: {what}", shown(.name.as_bytes()))]
    Extra { name: Box<str>, what: &'static str },

    #[error("entry {}: no local header at byte {at}", shown(.name.as_bytes()))]
    NoLocal { name: Box<str>, at: u64 },

    #[error("entry {}: its local header has another {what} than the central directory", shown(.name.as_bytes()))]
    Disagree { name: Box<str>, what: &'static str },

    #[error("entry {}: {size} bytes at byte {start} end past byte {end}, where the directory begins", shown(.name.as_bytes()))]
    PastEnd { name: Box<str>, start: u64, size: u64, end: u64 },

    #[error("entries {} and {} overlap", shown(.first.as_bytes()), shown(.second.as_bytes()))]
    Overlap { first: Box<str>, second: Box<str> },
}

/// The number of a compression method, displayed with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub u16);

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            8 => "deflate",
            9 => "deflate64",
            12 => "bzip2",
            14 => "LZMA",
            93 => "zstd",
            95 => "xz",
            _ => return write!(f, "method {}", self.0),
        };
        write!(f, "{name}, method {}", self.0)
    }
}

/// The reason why a pickle is not a dictionary of tensors. `at` is the offset of the opcode in `data.pkl`.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum PickleError {
    #[error(
        "opcode {name} (0x{code:02x}) at byte {at} is not one that a state_dict() saved with torch's \
         defaults needs: refused"
    )]
    Opcode { code: u8, name: &'static str, at: usize },

    #[error(
        "the global {} at byte {at} is not one that tensors need: refused, and nothing was executed; \
         if the file holds a whole module, save its state_dict() instead",
        shown(.name.as_bytes())
    )]
    Global { name: Box<str>, at: usize },

    #[error("it ends in the middle of {what} at byte {at}")]
    Truncated { what: &'static str, at: usize },

    #[error("it ends without STOP")]
    NoStop,

    #[error("{left} bytes follow STOP")]
    AfterStop { left: usize },

    #[error("STOP at byte {at} leaves {found} values on the stack, expected 1")]
    StackAtStop { at: usize, found: usize },

    #[error("{what} at byte {at} needs more values than the stack has")]
    Underflow { what: &'static str, at: usize },

    #[error("more than {limit} {what} at byte {at}")]
    Limit { what: &'static str, limit: usize, at: usize },

    #[error("protocol {found}, expected 2 to 5")]
    Protocol { found: u8 },

    #[error("text at byte {at} is not UTF-8: {text}")]
    NotUtf8 { at: usize, text: Box<str> },

    #[error("an integer of {bytes} bytes at byte {at}, expected at most {limit}")]
    LongInteger { at: usize, bytes: usize, limit: usize },

    #[error("memo entry {index}, asked for at byte {at}, was never put there")]
    NoMemo { index: u32, at: usize },

    #[error("{what} at byte {at}: found {found}, expected {expected}")]
    Operand { what: &'static str, at: usize, found: &'static str, expected: &'static str },

    #[error("{what} at byte {at}: {number} for {field}")]
    Number { what: &'static str, at: usize, field: &'static str, number: i64 },

    #[error("a shape of {found} dimensions at byte {at}, expected at most {limit}")]
    Dimensions { found: usize, at: usize, limit: usize },

    #[error("a shape of {shape} dimensions with {strides} strides at byte {at}")]
    StridesCount { shape: usize, strides: usize, at: usize },

    #[error(
        "a tensor at byte {at} has hooks or is a conjugate or negative view, which other programs \
         would read as other numbers; save it again after .resolve_conj().resolve_neg()"
    )]
    Meaning { at: usize },

    #[error("storage {} has no record data/… in the zip", shown(.key.as_bytes()))]
    NoRecord { key: Box<str> },

    #[error(
        "storage {}: {numel} elements of {dtype} announced, but its record has {record} bytes",
        shown(.key.as_bytes())
    )]
    RecordSize { key: Box<str>, numel: u64, dtype: TorchDtype, record: u64 },

    #[error("storage {} is announced twice, in two ways", shown(.key.as_bytes()))]
    StorageTwice { key: Box<str> },
}

/// `[a, b, …]`, truncated if it is long.
fn list(numbers: &[u64]) -> String {
    match numbers.get(..8) {
        Some(first) if numbers.len() > 8 => format!("{first:?} and {} more", numbers.len() - 8),
        _ => format!("{numbers:?}"),
    }
}
