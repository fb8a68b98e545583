//! How much of a model is in the page cache now, as numbers and as bars.
//!
//! Asked before anything else is read, so that the answer is about the files as they were found, but
//! for the header, which had to be read to know where the tensors lie, and what the system read
//! along with it.

use std::ops::Range;

use alight_pages::{CacheProbe, Map, residency};

/// Parts of a file that are shown apart at most.
const PARTS: u64 = 64;

/// What is cached of a model.
#[derive(Debug)]
pub struct Cached {
    /// Of each file; `None` where the system does not say.
    pub files: Vec<Option<FileCached>>,
    /// Bytes of each tensor. The pages at its ends count as far as they are its own, which is known
    /// for sure if all of them are cached. `None`: the system does not count them for this user.
    pub tensors: Vec<Option<u64>>,
}

/// What is cached of a file.
#[derive(Debug)]
pub struct FileCached {
    /// Bytes.
    pub bytes: u64,
    /// `cachestat`, `mincore`, or `sampled` where the system does not count them for this user.
    pub source: &'static str,
    /// The cached share of each of equal parts of the file.
    pub parts: Vec<f64>,
}

impl Cached {
    /// Asks the system about files, and about tensors of which each is a range of bytes in a file.
    pub fn of<'a>(
        maps: impl IntoIterator<Item = &'a Map>,
        tensors: impl Iterator<Item = (usize, Range<u64>)>,
    ) -> Cached {
        let maps: Vec<&Map> = maps.into_iter().collect();
        let files: Vec<_> = maps.iter().map(|map| file(map)).collect();
        let tensor = |(file, range): (usize, Range<u64>)| {
            // Samples of each tensor would be many reads.
            if files[file].as_ref()?.source == CacheProbe::Sampled.name() {
                return None;
            }
            bytes(maps[file], range)
        };
        let tensors = tensors.map(tensor).collect();
        Cached { files, tensors }
    }
}

fn file(map: &Map) -> Option<FileCached> {
    let len = map.len() as u64;
    let whole = residency(map.file(), 0..len).ok()?;
    let count = PARTS.min(whole.pages);
    let part = |i: u64| {
        let range = len * i / count..len * (i + 1) / count;
        residency(map.file(), range).map_or(0.0, |r| r.share())
    };
    let parts = if whole.probe == CacheProbe::Sampled {
        vec![whole.share(); count as usize]
    } else {
        (0..count).map(part).collect()
    };
    let bytes = page_bytes(whole.cached, whole.pages, len);
    Some(FileCached { bytes, source: whole.probe.name(), parts })
}

/// Bytes of a range of a file that are cached; `None`: the system does not count them for this user.
pub fn bytes(map: &Map, range: Range<u64>) -> Option<u64> {
    let len = range.end - range.start;
    let found =
        residency(map.file(), range).ok().filter(|found| found.probe != CacheProbe::Sampled)?;
    Some(page_bytes(found.cached, found.pages, len))
}

/// Bytes in `cached` of the `pages` pages that `len` bytes touch.
fn page_bytes(cached: u64, pages: u64, len: u64) -> u64 {
    if cached == pages {
        return len;
    }
    (u128::from(cached) * u128::from(len) / u128::from(pages.max(1))) as u64
}

/// A bar of `width` characters: eighths of a character are told apart, something is never nothing,
/// and only all of it is full.
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

/// A picture of a file from its beginning to its end in `width` characters, the darker the more of a
/// part is cached.
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

/// What may be drawn on standard output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Canvas {
    /// Characters per line; `None`: not a terminal, so nothing is drawn.
    pub width: Option<usize>,
    /// Colours may be used.
    pub colour: bool,
}

impl Canvas {
    /// Of standard output.
    pub fn stdout() -> Canvas {
        use std::io::IsTerminal;
        if !std::io::stdout().is_terminal() {
            return Canvas::default();
        }
        let size = terminal_size::terminal_size_of(std::io::stdout());
        // A terminal that says it has no width (some pseudo-terminals) has an ordinary one.
        let width = size.map_or(80, |(width, _)| usize::from(width.0));
        Canvas {
            width: Some(if width == 0 { 80 } else { width }),
            colour: crate::say::colours_allowed(),
        }
    }

    /// `text` in the colour of the share: green all, yellow some, dim nothing.
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
