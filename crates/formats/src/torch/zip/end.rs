//! The end of a zip, from which the rest is located.
//!
//! ```text
//! … directory | [ZIP64 end, 56 bytes | its locator, 20] | end, 22 bytes | comment
//! ```

use super::super::error::ZipError;
use super::{IN_ZIP64, MAX_DIRECTORY, u16_at, u32_at, u64_at};
use crate::Source;

const END: usize = 22;
const LOCATOR: usize = 20;
const END64: usize = 56;
/// Maximum length of the comment after the end record.
const COMMENT: usize = u16::MAX as usize;

/// The location of the central directory, and the number of entries it announces.
pub(super) struct Directory {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) entries: u64,
}

pub(super) fn find(file: &dyn Source<'_>) -> Result<Directory, ZipError> {
    let base = file.len().saturating_sub((END64 + LOCATOR + END + COMMENT) as u64);
    let mut bytes = vec![0; (file.len() - base) as usize];
    if !file.read(base, &mut bytes) {
        return Err(ZipError::NoEnd);
    }
    let bytes = bytes.as_slice();
    let at = find_end(bytes).ok_or(ZipError::NoEnd)?;
    let end = &bytes[at..at + END];
    for disk in [u16_at(end, 4), u16_at(end, 6)] {
        if disk != 0 && disk != u16::MAX {
            return Err(ZipError::Volumes { found: disk.into() });
        }
    }
    let counts = [u16_at(end, 8), u16_at(end, 10)];
    let places = [u32_at(end, 12), u32_at(end, 16)];
    let (mut entries, mut size, mut start) =
        (u64::from(counts[1]), u64::from(places[0]), u64::from(places[1]));
    let mut here = u64::from(counts[0]);
    let mut directory_end = base + at as u64;
    match locator(bytes, base, at)? {
        Some((at64, end64)) => {
            directory_end = base + at64 as u64;
            let wide = [24, 32, 40, 48].map(|at| u64_at(end64, at));
            // Both records must agree: readers differ in which one they believe.
            let narrow = [
                (here, u64::from(u16::MAX)),
                (entries, u64::from(u16::MAX)),
                (size, u64::from(IN_ZIP64)),
                (start, u64::from(IN_ZIP64)),
            ];
            if wide.iter().zip(narrow).any(|(wide, (field, asks))| field != asks && field != *wide)
            {
                return Err(ZipError::Zip64 { what: "its end record and the old one disagree" });
            }
            [here, entries, size, start] = wide;
        }
        None => {
            let asks = counts.contains(&u16::MAX) || places.contains(&IN_ZIP64);
            if asks || u16_at(end, 4) != 0 || u16_at(end, 6) != 0 {
                return Err(ZipError::Zip64 { what: "its end record is asked for and missing" });
            }
        }
    }
    if here != entries {
        let what = "the number of entries in this volume";
        return Err(ZipError::End { what, found: here, expected: entries });
    }
    if start.checked_add(size) != Some(directory_end) {
        return Err(ZipError::Directory { start, size, end: directory_end });
    }
    // It is read as a whole.
    if size > MAX_DIRECTORY {
        return Err(ZipError::DirectoryTooLarge { found: size, limit: MAX_DIRECTORY });
    }
    Ok(Directory { start, end: directory_end, entries })
}

/// The last offset of an end record whose comment extends exactly to the end of the file.
fn find_end(bytes: &[u8]) -> Option<usize> {
    let last = bytes.len().checked_sub(END)?;
    let first = last.saturating_sub(COMMENT);
    (first..=last).rev().find(|at| {
        bytes[*at..].starts_with(b"PK\x05\x06")
            && usize::from(u16_at(&bytes[*at..], 20)) == last - at
    })
}

/// Offset in `bytes`, which begin at `base`, and bytes of the ZIP64 end record, if the file has a locator for one.
fn locator(bytes: &[u8], base: u64, end: usize) -> Result<Option<(usize, &[u8])>, ZipError> {
    let lie = |what| Err(ZipError::Zip64 { what });
    let Some(at) = end.checked_sub(LOCATOR) else { return Ok(None) };
    let locator = &bytes[at..end];
    if !locator.starts_with(b"PK\x06\x07") {
        return Ok(None);
    }
    if u32_at(locator, 4) != 0 || u32_at(locator, 16) > 1 {
        return Err(ZipError::Volumes { found: u32_at(locator, 16) });
    }
    // Without the extensible part, which no writer uses, there is one possible offset.
    let place = u64_at(locator, 8);
    let Some(at64) = at.checked_sub(END64).filter(|at64| base + *at64 as u64 == place) else {
        return lie("its locator does not point at the record before it");
    };
    let end64 = &bytes[at64..at];
    if !end64.starts_with(b"PK\x06\x06") || u64_at(end64, 4) != (END64 - 12) as u64 {
        return lie("its end record is not one, or not of 56 bytes");
    }
    if u32_at(end64, 16) != 0 || u32_at(end64, 20) != 0 {
        return Err(ZipError::Volumes { found: u32_at(end64, 16).max(u32_at(end64, 20)) });
    }
    Ok(Some((at64, end64)))
}
