//! Ranges of a file, read around the page cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::around::is_plain_disk;
use crate::copy::sys;
use crate::residency::{self, ExactProbe};
use crate::transfer::direct::{self, Direct};
use crate::{Region, page_size};

/// A file of which ranges are read, by any number of threads.
///
/// Cached parts are read from the page cache; the rest is read around it, or through it and dropped
/// again. The kernel may read ahead there, which a caller that found the file cold can
/// [give up](crate::give_up) in the end.
pub struct Reader<'f> {
    file: &'f File,
    len: u64,
    direct: Option<Direct>,
    /// The filesystem has refused a direct read after all.
    refused: AtomicBool,
    exact_probe: Option<ExactProbe>,
}

/// Memory that ranges are read into, as large as the largest range so far.
#[derive(Default)]
pub struct Buffer {
    region: Option<Region>,
}

impl<'f> Reader<'f> {
    /// For `file`, which was opened by the name `path`.
    ///
    /// # Errors
    /// The system does not tell its length.
    pub fn new(file: &'f File, path: &Path) -> io::Result<Reader<'f>> {
        let len = file.metadata()?.len();
        let direct = if is_plain_disk(file) { direct::open(file, path).ok() } else { None };
        let refused = AtomicBool::new(false);
        Ok(Reader { file, len, direct, refused, exact_probe: residency::exact_probe(file) })
    }

    /// The bytes of `range`.
    ///
    /// # Errors
    /// The file ends before, it cannot be read, or there is no memory.
    pub fn read<'b>(&self, range: Range<u64>, buffer: &'b mut Buffer) -> io::Result<&'b [u8]> {
        if range.is_empty() {
            return Ok(&[]);
        }
        if range.end > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let page = page_size() as u64;
        let pages = range.start / page * page..range.end.next_multiple_of(page).min(self.len);
        let ours = self.exact_probe.and_then(|exact_probe| {
            residency::not_cached(self.file, pages.clone(), exact_probe).ok()
        });
        let cached = ours.as_ref().is_some_and(Vec::is_empty);
        if let Some(direct) = self.direct.as_ref().filter(|_| !cached)
            && !self.refused.load(Relaxed)
        {
            match around(direct, &range, buffer) {
                Ok(from) => return Ok(buffer.bytes(from)),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.refused.store(true, Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let len = length(&range)?;
        let out = &mut buffer.at_least(len)?[..len];
        let got = fill(self.file, range.start, out, len)?;
        for part in ours.into_iter().flatten() {
            // If it cannot be done, that costs memory, and the bytes are right.
            let _ = sys::give_up(self.file, &part);
        }
        if got < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(buffer.bytes(0..len)) }
    }
}

/// Reads the blocks around `range`; returns where in the buffer it is.
fn around(direct: &Direct, range: &Range<u64>, buffer: &mut Buffer) -> io::Result<Range<usize>> {
    let unit = direct.align.offset as u64;
    let blocks = range.start / unit * unit..range.end.next_multiple_of(unit);
    let room = length(&blocks)?;
    let out = &mut buffer.at_least(room)?[..room];
    direct.prepare(out.as_mut_ptr(), room);
    let from = (range.start - blocks.start) as usize;
    let needed = from + length(range)?;
    // The file may end within the last block.
    match fill(&direct.file, blocks.start, out, needed)? {
        got if got < needed => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(from..needed),
    }
}

/// Reads into `out` until `needed` bytes are there, or the file ends. Returns how many there are.
fn fill(file: &File, at: u64, out: &mut [u8], needed: usize) -> io::Result<usize> {
    let mut got = 0;
    while got < needed {
        match sys::read(file, &mut out[got..], at + got as u64, false)? {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

fn length(range: &Range<u64>) -> io::Result<usize> {
    (range.end - range.start).try_into().map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl Buffer {
    /// At least `len` bytes, with anything in them.
    fn at_least(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.region.as_ref().is_none_or(|region| region.len() < len) {
            self.region = None;
            let no_memory = |error| io::Error::new(io::ErrorKind::OutOfMemory, error);
            self.region = Some(Region::new(len.next_power_of_two()).map_err(no_memory)?);
        }
        Ok(self.region.as_mut().map_or(&mut [], Region::bytes_mut))
    }

    fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.region.as_ref().and_then(|region| region.bytes().get(range)).unwrap_or_default()
    }
}
