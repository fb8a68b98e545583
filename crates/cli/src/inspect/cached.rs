//! How much of a model is in the page cache, as numbers and as bars.
//!
//! Files are queried before any part of them is read, so that the result describes the files as they were found. If a file was
//! partly cached, its tensors are queried after its header was read, together with whatever the system read ahead.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use alight_pages::{CacheProbe, Identity, Map, give_up, open_file, residency};
use tempfile::TempDir;

/// Maximum number of files queried beforehand.
const MAX_FILES: usize = 4096;

/// Maximum number of parts of a file that are shown separately.
const PARTS: u64 = 64;

/// The cached part of a model.
#[derive(Debug)]
pub struct Cached {
    /// For each file; `None` if the system does not report it.
    pub files: Vec<Option<FileCached>>,
    /// Cached bytes of each tensor. The pages at its ends count as far as they are its own, which
    /// is certain only if all of them are cached. `None`: the system does not count them for this
    /// user.
    pub tensors: Vec<Option<u64>>,
}

/// The cached parts of the files that may belong to a model, before any of them was read.
#[derive(Debug, Default)]
pub struct AsFound {
    cached: HashMap<Identity, FileCached>,
    /// A model of the hub of which only the headers are on this machine, so that nothing of it can be cached.
    hub: Option<Headers>,
}

/// The headers of a model of the hub.
#[derive(Debug)]
struct Headers {
    /// `USER/REPO`.
    repo: String,
    /// The folder that they are in until they are open.
    folder: RefCell<Option<TempDir>>,
}

impl AsFound {
    /// Queries the file at `path`, with the other shards of a split model; or the files in the folder at `path`.
    pub fn of(path: &Path) -> AsFound {
        let mut found = AsFound::default();
        for path in candidates(path).into_iter().take(MAX_FILES) {
            // A file that cannot be opened is reported when it is read.
            let Ok((file, metadata)) = open_file(&path) else { continue };
            if let Some(cached) = of_file(&file, metadata.len()) {
                found.cached.insert(Identity::from(&metadata), cached);
            }
        }
        found
    }

    /// The files of a model of the hub, of which only the headers are on this machine, in this folder.
    pub fn of_hub(repo: String, folder: TempDir) -> AsFound {
        let folder = RefCell::new(Some(folder));
        AsFound { hub: Some(Headers { repo, folder }), ..AsFound::default() }
    }

    /// Called when all files are open: those that only hold headers, and look as long as the model, have no name from then on.
    pub fn opened(&self) {
        if let Some(hub) = &self.hub {
            hub.folder.take();
        }
    }

    /// Returns the name of a file for people: its path, or its name on the hub.
    pub fn shown(&self, path: &Path) -> PathBuf {
        match &self.hub {
            Some(Headers { repo, .. }) => {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                format!("hf.co/{repo}:{file}").into()
            }
            None => path.to_owned(),
        }
    }

    fn file(&self, map: &Map) -> Option<&FileCached> {
        self.cached.get(&Identity::from(&map.file().metadata().ok()?))
    }

    /// Returns true if certainly no part of it was cached.
    fn was_cold(&self, map: &Map) -> bool {
        let counted = |found: &&FileCached| found.source != CacheProbe::Sampled.name();
        self.file(map).filter(counted).is_some_and(|found| found.bytes == 0)
    }

    /// Returns the bytes of a range of a file that were cached; `None`: the system does not count them for this user.
    pub fn bytes(&self, map: &Map, range: Range<u64>) -> Option<u64> {
        match self.hub {
            Some(_) => None,
            None if self.was_cold(map) => Some(0),
            None => bytes(map, range),
        }
    }

    /// Evicts a file from the page cache again if no part of it was cached before.
    pub fn leave(&self, map: &Map) {
        if !self.was_cold(map) {
            return;
        }
        // Pages that the system still reads ahead sometimes arrive after the first pass.
        for pause in [0, 1, 5, 20] {
            thread::sleep(Duration::from_millis(pause));
            map.give_back(0..map.len());
            // Where the system has no such call the pages stay, with no other effect.
            let _ = give_up(map.file());
            if residency(map.file(), 0..map.len() as u64).is_ok_and(|left| left.cached == 0) {
                return;
            }
        }
    }
}

/// Returns the file at `path` and its shards, or the files in the folder at `path`.
fn candidates(path: &Path) -> Vec<PathBuf> {
    let files = |folder: &Path, wanted: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let wanted = entries.filter(|entry| wanted(&entry.file_name().to_string_lossy()));
        wanted.map(|entry| entry.path()).collect()
    };
    if path.is_dir() {
        return files(path, &|_| true);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Indexes name their shards; the shards of one model have `-of-` in their names.
    let is_index = name.ends_with(".json");
    match name.split_once("-0") {
        Some((stem, rest)) if rest.contains("-of-") => {
            files(folder, &|other| other.starts_with(stem))
        }
        _ if is_index => files(folder, &|_| true),
        _ => vec![path.to_owned()],
    }
}

/// The cached part of a file.
#[derive(Clone, Debug)]
pub struct FileCached {
    /// Bytes.
    pub bytes: u64,
    /// `cachestat`, `mincore`, or `sampled` if the system does not count them for this user.
    pub source: &'static str,
    /// The cached share of each of equal parts of the file.
    pub parts: Vec<f64>,
}

impl Cached {
    /// Queries the system about files, and about tensors, each given as ranges of bytes in a file.
    pub fn of<'a, R: IntoIterator<Item = Range<u64>>>(
        maps: impl IntoIterator<Item = &'a Map>,
        tensors: impl Iterator<Item = (usize, R)>,
        found: &AsFound,
    ) -> Cached {
        let maps: Vec<&Map> = maps.into_iter().collect();
        let now = |map: &Map| match found.hub {
            Some(_) => None,
            None => of_file(map.file(), map.len() as u64),
        };
        let files = maps.iter().map(|map| found.file(map).cloned().or_else(|| now(map)));
        let files: Vec<_> = files.collect();
        let tensor = |(file, ranges): (usize, R)| {
            // Sampling each tensor would need many reads.
            if files[file].as_ref()?.source == CacheProbe::Sampled.name() {
                return None;
            }
            ranges.into_iter().try_fold(0, |sum, range| Some(sum + found.bytes(maps[file], range)?))
        };
        let tensors = tensors.map(tensor).collect();
        Cached { files, tensors }
    }
}

fn of_file(file: &File, len: u64) -> Option<FileCached> {
    let whole = residency(file, 0..len).ok()?;
    let count = PARTS.min(whole.pages);
    let part = |i: u64| {
        let range = len * i / count..len * (i + 1) / count;
        residency(file, range).map_or(0.0, |r| r.share())
    };
    let parts = if whole.probe == CacheProbe::Sampled {
        vec![whole.share(); count as usize]
    } else {
        (0..count).map(part).collect()
    };
    let bytes = page_bytes(whole.cached, whole.pages, len);
    Some(FileCached { bytes, source: whole.probe.name(), parts })
}

/// Returns the bytes of a range of a file that are cached; `None`: the system does not count them for this user.
fn bytes(map: &Map, range: Range<u64>) -> Option<u64> {
    let len = range.end - range.start;
    let found =
        residency(map.file(), range).ok().filter(|found| found.probe != CacheProbe::Sampled)?;
    Some(page_bytes(found.cached, found.pages, len))
}

/// Returns the cached bytes if `cached` of the `pages` pages that `len` bytes touch are cached.
pub fn page_bytes(cached: u64, pages: u64, len: u64) -> u64 {
    if cached == pages {
        return len;
    }
    (u128::from(cached) * u128::from(len) / u128::from(pages.max(1))) as u64
}

/// Returns a bar of `width` characters, in eighths of a character: a small share is never shown as
/// empty, and only the whole is shown as full.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let all = 8 * width;
    let filled = match (share.clamp(0.0, 1.0) * all as f64).round() as usize {
        0 if share > 0.0 => 1,
        n if n == all && share < 1.0 => all - 1,
        n => n,
    };
    let mut text = "█".repeat(filled / 8);
    if filled < all {
        text.push(EIGHTHS[filled % 8]);
    }
    let gap = width.saturating_sub(text.chars().count());
    text + &" ".repeat(gap)
}

/// Returns a picture of a file from beginning to end in `width` characters; the more of a part is
/// cached, the darker it is.
pub fn picture(parts: &[f64], width: usize) -> String {
    let width = width.clamp(1, parts.len().max(1));
    let mean = |i: usize| {
        let part = &parts[parts.len() * i / width..parts.len() * (i + 1) / width];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    (0..width)
        .map(|i| match mean(i) {
            m if m >= 1.0 => '█',
            m if m > 2.0 / 3.0 => '▓',
            m if m > 1.0 / 3.0 => '▒',
            m if m > 0.0 => '░',
            _ => '·',
        })
        .collect()
}

/// The drawing capabilities of standard output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Canvas {
    /// Characters per line; `None`: not a terminal, so nothing is drawn.
    pub width: Option<usize>,
    /// True if colours may be used.
    pub colour: bool,
}

impl Canvas {
    /// Returns those of standard output.
    pub fn stdout() -> Canvas {
        match crate::layout::size(std::io::stdout()) {
            None => Canvas::default(),
            Some((width, _)) => Canvas {
                // The last column stays free, as everywhere.
                width: Some(width.saturating_sub(1).max(1)),
                colour: crate::say::colours_allowed(),
            },
        }
    }

    /// Returns `text` in the colour of the share: green for all, yellow for some, dim for none.
    pub fn paint(self, text: &str, share: f64) -> String {
        let code = match share {
            s if s >= 1.0 => "32",
            s if s > 0.0 => "33",
            _ => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_say_nothing_and_everything_only_when_true() {
        assert_eq!(bar(0.0, 4), "    ");
        assert_eq!(bar(1.0, 4), "████");
        assert_eq!(bar(0.5, 4), "██  ");
        assert_eq!(bar(0.0001, 4), "▏   ");
        assert_eq!(bar(0.9999, 4), "███▉");
        assert_eq!(bar(f64::NAN, 2).chars().count(), 2);
        for i in 0..=100 {
            assert_eq!(bar(f64::from(i) / 100.0, 9).chars().count(), 9);
        }
        assert_eq!(picture(&[1.0, 0.9, 0.5, 0.1, 0.0], 5), "█▓▒░·");
        assert_eq!(picture(&[1.0, 1.0, 0.0, 0.0], 2), "█·");
        assert_eq!(picture(&[0.0; 3], 99), "···");
    }

    #[test]
    fn colours_are_used_only_where_they_may_be() {
        let plain = Canvas { width: Some(80), colour: false };
        assert_eq!(plain.paint("x", 1.0), "x");
        let coloured = Canvas { width: Some(80), colour: true };
        assert_eq!(coloured.paint("x", 0.5), "\x1b[33mx\x1b[0m");
    }

    #[test]
    fn pages_are_bytes_of_what_touches_them() {
        assert_eq!(page_bytes(2, 2, 100), 100);
        assert_eq!(page_bytes(1, 2, 100), 50);
        assert_eq!(page_bytes(0, 0, 0), 0);
    }
}
