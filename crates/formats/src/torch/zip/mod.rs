//! The zip around torch's records: located from its end, read by its central directory, and trusted only if
//! every entry's local header agrees.
//!
//! The offset of an entry's data follows only from its local header: names have the same length in both, but
//! torch pads the local extra field, so that data begins at multiples of 64 bytes.
//!
//! Two readers must not see two different files here. So nothing is guessed: the directory ends where its end
//! record begins, both headers agree in name, flags, method, sizes and checksum, names are unique and entries do not overlap.

mod end;
mod local;

use std::collections::HashMap;
use std::ops::Range;

use super::error::{Method, ZipError};
use crate::Source;

/// Maximum number of entries. A model has one per storage.
pub const MAX_ENTRIES: u64 = 1 << 20;
/// Maximum bytes of an entry's name.
pub const MAX_NAME: usize = 1024;

/// Maximum bytes of the central directory: that many entries, with names as torch writes them.
pub const MAX_DIRECTORY: u64 = 256 << 20;

/// Bytes of an entry in the central directory, before name, extra field and comment.
const CENTRAL: usize = 46;
/// In a 32-bit field: the value is in the ZIP64 extra field.
const IN_ZIP64: u32 = u32::MAX;
/// Flags: encrypted, a patch, strongly encrypted, headers masked.
const ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
const PATCH: u16 = 1 << 5;
/// Flag: sizes and checksum follow the data.
const DESCRIPTOR: u16 = 1 << 3;

/// A zip that has been checked. Borrows from the bytes it was read from.
#[derive(Clone, Debug)]
pub struct Zip<'a> {
    /// The folder that contains every entry, without the slash.
    pub root: &'a str,
    /// The entries, in the order of the directory.
    pub entries: Vec<Entry<'a>>,
    by_name: HashMap<&'a str, u32>,
}

/// One entry: a stored file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its name below the root.
    pub name: &'a str,
    /// The offset of its data, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of data; `offset + size` is at most the length of the file.
    pub size: u64,
}

impl Entry<'_> {
    /// The data, at most its first `most` bytes; empty if they cannot be read.
    pub fn begin<'a>(&self, file: &dyn Source<'a>, most: u64) -> &'a [u8] {
        file.get(self.offset..self.offset + self.size.min(most)).unwrap_or_default()
    }

    /// The range of the data in the file.
    pub fn range(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.size) as usize
    }
}

impl<'a> Zip<'a> {
    /// The entry called `name` below the root.
    pub fn get(&self, name: &str) -> Option<&Entry<'a>> {
        self.entries.get(*self.by_name.get(name)? as usize)
    }

    /// Reads the central directory of a file, and the local header of every entry.
    ///
    /// # Errors
    /// [`ZipError`] has a variant for each way in which a zip can be wrong, or cannot be used in place.
    pub fn parse(file: &dyn Source<'a>) -> Result<Zip<'a>, ZipError> {
        let directory = end::find(file)?;
        let mut rest = file.get(directory.start..directory.end).ok_or(ZipError::NoEnd)?;
        let limit = (rest.len() / CENTRAL) as u64;
        let limit = limit.min(MAX_ENTRIES);
        if directory.entries > limit {
            return Err(ZipError::Count { found: directory.entries, limit });
        }
        // At most as many as fit into the available bytes.
        let count = directory.entries as usize;
        let mut zip = Zip {
            root: "",
            entries: Vec::with_capacity(count),
            by_name: HashMap::with_capacity(count),
        };
        let mut extents: Vec<(Range<u64>, u32)> = Vec::with_capacity(count);
        let mut buffer = Vec::new();
        for index in 0..directory.entries {
            let at = directory.end - rest.len() as u64;
            let central = Central::read(&mut rest, index, at)?;
            let (root, name) = split_name(central.name)?;
            if index == 0 {
                zip.root = root;
            } else if root != zip.root {
                return Err(ZipError::TwoRoots { first: zip.root.into(), second: root.into() });
            }
            if zip.by_name.insert(name, index as u32).is_some() {
                return Err(ZipError::Duplicate { name: central.name.into() });
            }
            let place = local::check(file, &central, directory.start, &mut buffer)?;
            extents.push((central.at..place.end, index as u32));
            zip.entries.push(Entry { name, offset: place.data, size: central.size });
        }
        if !rest.is_empty() {
            return Err(ZipError::MoreDirectory { entries: directory.entries });
        }
        if zip.entries.is_empty() {
            return Err(ZipError::Empty);
        }
        extents.sort_unstable_by_key(|(extent, _)| extent.start);
        if let Some(pair) = extents.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            let name = |index: u32| zip.entries[index as usize].name.into();
            return Err(ZipError::Overlap { first: name(pair[0].1), second: name(pair[1].1) });
        }
        Ok(zip)
    }
}

/// The root and the rest of an entry's name.
fn split_name(name: &str) -> Result<(&str, &str), ZipError> {
    let wrong = |what| Err(ZipError::Name { name: name.as_bytes().into(), what });
    if name.len() > MAX_NAME {
        return wrong("the name is longer than 1024 bytes");
    }
    if name.contains(['\\', '\0']) {
        return wrong("a backslash or zero byte in the name");
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return wrong(
            "the name leads elsewhere, expected root/name without \"..\", \".\" or \"//\"",
        );
    }
    match name.split_once('/') {
        Some(parts) => Ok(parts),
        None => wrong("it stands under no root, expected root/name"),
    }
}

/// One entry of the central directory.
struct Central<'a> {
    name: &'a str,
    flags: u16,
    method: u16,
    crc: u32,
    size: u64,
    /// The offset of its local header.
    at: u64,
}

impl<'a> Central<'a> {
    /// Removes entry `index`, which is at byte `at` of the file, from the front of the directory.
    fn read(rest: &mut &'a [u8], index: u64, at: u64) -> Result<Central<'a>, ZipError> {
        let cut = || ZipError::Entry { index, at };
        let fixed: &[u8; CENTRAL] = rest.first_chunk().ok_or_else(cut)?;
        if !fixed.starts_with(b"PK\x01\x02") {
            return Err(cut());
        }
        let lens = [28, 30, 32].map(|at| usize::from(u16_at(fixed, at)));
        let len = CENTRAL + lens.iter().sum::<usize>();
        let (entry, after) = rest.split_at_checked(len).ok_or_else(cut)?;
        *rest = after;
        let (name, extra) = entry[CENTRAL..].split_at(lens[0]);
        let name = std::str::from_utf8(name)
            .map_err(|_| ZipError::Name { name: name.into(), what: "the name is not UTF-8" })?;
        let flags = u16_at(fixed, 8);
        let method = u16_at(fixed, 10);
        if flags & ENCRYPTED != 0 {
            return Err(ZipError::Encrypted { name: name.into() });
        }
        if flags & PATCH != 0 {
            let what = "it is a patch of another file";
            return Err(ZipError::Name { name: name.as_bytes().into(), what });
        }
        if method != 0 {
            return Err(ZipError::Compressed { name: name.into(), method: Method(method) });
        }
        let fields = [u32_at(fixed, 24), u32_at(fixed, 20), u32_at(fixed, 42)];
        let disk = u16_at(fixed, 34);
        let [size, stored, at] = wide(fields, disk, &extra[..lens[1]])
            .map_err(|what| ZipError::Extra { name: name.into(), what })?;
        if stored != size {
            return Err(ZipError::Sizes { name: name.into(), stored, size });
        }
        Ok(Central { name, flags, method, crc: u32_at(fixed, 16), size, at })
    }
}

/// Size, stored size and offset, each from ZIP64 if its 32 bits require it; the ZIP64 field must hold exactly
/// the required values.
fn wide(fields: [u32; 3], disk: u16, extra: &[u8]) -> Result<[u64; 3], &'static str> {
    let zip64 = zip64(extra)?;
    let asked = fields.iter().filter(|field| **field == IN_ZIP64).count();
    let with_disk = disk == u16::MAX;
    let Some(mut values) = zip64 else {
        return match (asked, disk) {
            (0, 0) => Ok(fields.map(u64::from)),
            (0, _) if !with_disk => Err("it is on another volume"),
            _ => Err("a size or place is in a ZIP64 field that is not there"),
        };
    };
    if values.len() != 8 * asked + 4 * usize::from(with_disk) {
        return Err("its ZIP64 field does not have the length that its header asks for");
    }
    let mut out = fields.map(u64::from);
    for field in &mut out {
        if *field == u64::from(IN_ZIP64) {
            *field = u64_at(values, 0);
            values = &values[8..];
        }
    }
    let disk = if with_disk { u32_at(values, 0) } else { u32::from(disk) };
    if disk != 0 {
        return Err("it is on another volume");
    }
    Ok(out)
}

/// The ZIP64 part of an extra field. The parts must fill the field exactly.
fn zip64(mut extra: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let mut found = None;
    while !extra.is_empty() {
        let head: &[u8; 4] = extra.first_chunk().ok_or("its extra field is cut short")?;
        let len = usize::from(u16_at(head, 2));
        let (part, rest) =
            extra[4..].split_at_checked(len).ok_or("a part of its extra field is cut short")?;
        if u16_at(head, 0) == 1 && found.replace(part).is_some() {
            return Err("it has two ZIP64 fields");
        }
        extra = rest;
    }
    Ok(found)
}

/// The numbers at fixed offsets of slices that are known to be long enough.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
