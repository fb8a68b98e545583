//! The folders on the path from the source down to the current one, on both sides, held open: reads
//! and writes go through them, whatever takes their names meanwhile. Of a deep tree only the last
//! few are open; one further up is opened again as the folder above, and must be the same folder as
//! before.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::vec::IntoIter;

use alight_pages::{Folder, Identity};
use rustix::fs::Dir;

/// The number of innermost levels that are held open; the first one is, too.
const HELD: usize = 4;

/// A folder being copied.
pub(crate) struct Level {
    /// Its name in the one above.
    pub name: OsString,
    /// Its metadata when its names were read.
    pub was: Metadata,
    /// The remaining names.
    pub names: IntoIter<OsString>,
    pair: Option<Pair>,
    source: Identity,
    dest: Identity,
}

/// The source and the destination of a level.
#[derive(Clone)]
pub(crate) struct Pair {
    pub source: Folder,
    pub dest: Folder,
}

impl Level {
    pub fn new(
        name: OsString,
        was: Metadata,
        names: Vec<OsString>,
        pair: Pair,
    ) -> std::io::Result<Level> {
        let (source, dest) = (pair.source.identity()?, pair.dest.identity()?);
        Ok(Level { name, was, names: names.into_iter(), pair: Some(pair), source, dest })
    }

    /// Returns its folders, unless they have been lost.
    pub fn pair(&self) -> Option<Pair> {
        self.pair.clone()
    }

    fn is(&self, pair: &Pair) -> bool {
        let same = |folder: &Folder, is| folder.identity().is_ok_and(|found| found == is);
        same(&pair.source, self.source) && same(&pair.dest, self.dest)
    }
}

/// Returns all names in a folder.
pub(crate) fn names(folder: &Folder) -> std::io::Result<Vec<OsString>> {
    use std::os::unix::ffi::OsStringExt;
    let mut names = Vec::new();
    for entry in Dir::read_from(folder.as_fd())? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    Ok(names)
}

/// Goes down a level.
pub(crate) fn down(stack: &mut Vec<Level>, level: Level) {
    stack.push(level);
    if let Some(far) = stack.len().checked_sub(HELD + 1).filter(|far| *far > 0) {
        stack[far].pair = None;
    }
}

/// Returns to the last level from the folders of the one below; true if that level's folders are open (again).
pub(crate) fn up(stack: &mut [Level], below: Option<Pair>) -> bool {
    let Some(last) = stack.last() else { return true };
    if last.pair.is_some() {
        return true;
    }
    let above = below.and_then(|pair| pair.inside("..".as_ref())).filter(|pair| last.is(pair));
    let found = above.or_else(|| from_the_top(stack)).filter(|pair| last.is(pair));
    let is_found = found.is_some();
    if let Some(last) = stack.last_mut() {
        last.pair = found;
    }
    is_found
}

/// Reopens the folders of the last level, by their names.
fn from_the_top(stack: &[Level]) -> Option<Pair> {
    let mut levels = stack.iter();
    let mut pair = levels.next()?.pair()?;
    for level in levels {
        pair = pair.inside(&level.name)?;
    }
    Some(pair)
}

impl Pair {
    fn inside(&self, name: &std::ffi::OsStr) -> Option<Pair> {
        let (source, dest) = (self.source.open_in(name).ok()?, self.dest.open_in(name).ok()?);
        Some(Pair { source, dest })
    }
}
