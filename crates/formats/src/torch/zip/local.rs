//! An entry's local header, which must agree with the central directory, and from which the offset of the data follows.

use super::super::error::ZipError;
use super::{Central, DESCRIPTOR, IN_ZIP64, u16_at, u32_at, u64_at, zip64};
use crate::Source;

/// Bytes of a local header, before name and extra field.
const LOCAL: usize = 30;

/// The start of an entry's data, and the end of everything that belongs to it.
pub(super) struct DataSpan {
    pub(super) data: u64,
    pub(super) end: u64,
}

/// Checks the local header of `central`; `directory` is the offset of the central directory. `buffer` holds the
/// variable part of the header temporarily.
pub(super) fn check(
    file: &dyn Source<'_>,
    central: &Central<'_>,
    directory: u64,
    buffer: &mut Vec<u8>,
) -> Result<DataSpan, ZipError> {
    let name = || Box::from(central.name);
    let none = || ZipError::NoLocal { name: name(), at: central.at };
    let disagree = |what| Err(ZipError::Disagree { name: name(), what });
    // No part of an entry extends into the directory.
    let left = directory.checked_sub(central.at).filter(|left| *left >= LOCAL as u64);
    let mut header = [0; LOCAL];
    if left.is_none() || !file.read(central.at, &mut header) {
        return Err(none());
    }
    let after = central.at + LOCAL as u64;
    if !header.starts_with(b"PK\x03\x04") {
        return Err(none());
    }
    if u16_at(&header, 6) != central.flags {
        return disagree("set of flags");
    }
    if u16_at(&header, 8) != central.method {
        return disagree("method of compression");
    }
    let name_len = usize::from(u16_at(&header, 26));
    let extra_len = usize::from(u16_at(&header, 28));
    if name_len != central.name.len() {
        return disagree("name");
    }
    // Nothing overflows: the directory is in the file, and the lengths have 16 bits.
    let data = after + (name_len + extra_len) as u64;
    if data > directory {
        return Err(none());
    }
    buffer.resize(name_len + extra_len, 0);
    if !file.read(after, buffer) {
        return Err(none());
    }
    let (name_here, extra) = buffer.split_at(name_len);
    if name_here != central.name.as_bytes() {
        return disagree("name");
    }
    let zip64 = zip64(extra).map_err(|what| ZipError::Extra { name: name(), what })?;

    let described = central.flags & DESCRIPTOR != 0;
    let crc = u32_at(&header, 14);
    if crc != central.crc && !(described && crc == 0) {
        return disagree("checksum");
    }
    let sizes = [u32_at(&header, 22), u32_at(&header, 18)];
    check_sizes(sizes, zip64.unwrap_or_default(), described, central)?;

    let limit = directory;
    let past = || ZipError::PastEnd { name: name(), start: data, size: central.size, end: limit };
    let mut end = data.checked_add(central.size).filter(|end| *end <= limit).ok_or_else(past)?;
    if described {
        let mut after = [0; 24];
        let after = &mut after[..(limit - end).min(24) as usize];
        end += descriptor(if file.read(end, after) { after } else { &[] }, central)
            .ok_or(ZipError::Disagree { name: name(), what: "descriptor after its data" })?;
    }
    Ok(DataSpan { data, end })
}

/// Checks the two sizes of a local header; `wide` is its ZIP64 field.
fn check_sizes(
    sizes: [u32; 2],
    mut wide: &[u8],
    described: bool,
    central: &Central<'_>,
) -> Result<(), ZipError> {
    // Beyond 4 GiB, miniz writes an unneeded ZIP64 field that contains the offset of the header; so the field
    // is used only if the 32-bit value requires it.
    for size in sizes {
        let found = match size {
            IN_ZIP64 => {
                let Some((value, rest)) = wide.split_at_checked(8) else {
                    let what = "a size is in a ZIP64 field that is not there";
                    return Err(ZipError::Extra { name: central.name.into(), what });
                };
                wide = rest;
                u64_at(value, 0)
            }
            narrow => narrow.into(),
        };
        if found != central.size && !(described && found == 0) {
            return Err(ZipError::Disagree { name: central.name.into(), what: "size" });
        }
    }
    Ok(())
}

/// Returns the length of the descriptor after the data, if there is one that agrees with the directory. Its
/// sizes have 4 or 8 bytes, depending on what the writer expected.
fn descriptor(after: &[u8], central: &Central<'_>) -> Option<u64> {
    let head = after.first_chunk::<16>()?;
    if !head.starts_with(b"PK\x07\x08") || u32_at(head, 4) != central.crc {
        return None;
    }
    let narrow = [8, 12].map(|at| u64::from(u32_at(head, at)));
    if narrow == [central.size; 2] {
        return Some(16);
    }
    let head = after.first_chunk::<24>()?;
    ([8, 16].map(|at| u64_at(head, at)) == [central.size; 2]).then_some(24)
}
