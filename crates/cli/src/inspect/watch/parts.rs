//! The parts of a model being watched: its header, its embedding, each of its layers, and the rest.

use std::collections::BTreeMap;
use std::ops::Range;

use alight_pages::{CacheProbe, Map, residency};
use anyhow::{Context, anyhow};

/// Maximum bytes between two tensors that do not count as a gap: padding to the start of the next.
const PADDING: u64 = 4096;

/// A tensor, and its location.
#[derive(Debug)]
pub struct Placed {
    pub name: String,
    /// Index of its file.
    pub file: usize,
    /// Its range in that file, in bytes.
    pub range: Range<u64>,
}

/// The kind of a part; parts are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartKind {
    /// Everything before the first tensor.
    Header,
    /// The embedding of tokens.
    Embedding,
    /// A layer, of the only stack of layers, or of one of several.
    Layer(u64),
    /// Tensors with any other name.
    Other,
    /// The last norm and the output matrix.
    Output,
}

impl PartKind {
    /// Returns its name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            PartKind::Header => "header",
            PartKind::Embedding => "embedding",
            PartKind::Layer(_) => "layer",
            PartKind::Other => "other",
            PartKind::Output => "output",
        }
    }
}

/// A range of bytes of the file with this index.
type FileRange = (usize, Range<u64>);

/// A part, and its location.
#[derive(Debug)]
pub struct Part {
    pub kind: PartKind,
    /// `layer 7`, or `v.blk.7` of another stack of layers.
    pub label: String,
    pub bytes: u64,
    /// In order, with gaps between them.
    ranges: Vec<FileRange>,
}

impl Part {
    /// Returns the share of the part that `cached` bytes are.
    pub fn share(&self, cached: u64) -> f64 {
        if self.bytes == 0 { 1.0 } else { cached as f64 / self.bytes as f64 }
    }
}

/// A model and its parts.
#[derive(Debug)]
pub struct Watched {
    pub maps: Vec<Map>,
    pub parts: Vec<Part>,
}

impl Watched {
    /// Sorts tensors into parts.
    ///
    /// # Errors
    /// The system does not count the cached pages of these files.
    pub fn of(maps: Vec<Map>, tensors: Vec<Placed>) -> anyhow::Result<Watched> {
        let mut parts: BTreeMap<(PartKind, String), Vec<FileRange>> = BTreeMap::new();
        let mut begins: Vec<u64> = maps.iter().map(|map| map.len() as u64).collect();
        for Placed { name, file, range } in tensors {
            begins[file] = begins[file].min(range.start);
            let (stack, kind) = kind_of(&name);
            let label = match kind {
                // The usual names of the only stack of layers.
                PartKind::Layer(n) if ["blk", "layers", "model.layers"].contains(&stack) => {
                    format!("layer {n}")
                }
                PartKind::Layer(n) => format!("{stack}.{n}"),
                kind => kind.name().to_owned(),
            };
            parts.entry((kind, label)).or_default().push((file, range));
        }
        let headers = begins.iter().enumerate().map(|(file, begin)| (file, 0..*begin)).collect();
        parts.insert((PartKind::Header, PartKind::Header.name().to_owned()), headers);
        let part = |((kind, label), ranges): ((PartKind, String), Vec<_>)| {
            let ranges = joined(ranges);
            let bytes = ranges.iter().map(|(_, range)| range.end - range.start).sum();
            Part { kind, label, bytes, ranges }
        };
        let watched = Watched { maps, parts: parts.into_iter().map(part).collect() };
        watched.whole()?;
        Ok(watched)
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.maps.iter().map(|map| map.len() as u64).sum()
    }

    /// Returns the bytes of all files, how many of them are cached, and the source of that number.
    pub fn whole(&self) -> anyhow::Result<(u64, u64, &'static str)> {
        let (mut all, mut cached, mut how) = (0, 0, "");
        for (file, map) in self.maps.iter().enumerate() {
            // In a truncated file, ranges would be reported that do not exist.
            map.check().map_err(|e| anyhow!(e))?;
            let (bytes, source) = self.ask(file, 0..map.len() as u64)?;
            (all, cached, how) = (all + map.len() as u64, cached + bytes, source);
        }
        Ok((all, cached, how))
    }

    /// Returns the cached bytes of a part.
    pub fn cached(&self, part: &Part) -> anyhow::Result<u64> {
        part.ranges.iter().map(|(file, range)| Ok(self.ask(*file, range.clone())?.0)).sum()
    }

    fn ask(&self, file: usize, range: Range<u64>) -> anyhow::Result<(u64, &'static str)> {
        let map = &self.maps[file];
        let path = || map.path().display();
        let len = range.end - range.start;
        let found = residency(map.file(), range).with_context(|| {
            format!("'{}': the system does not report how much of it is cached", path())
        })?;
        if found.probe == CacheProbe::Sampled {
            return Err(anyhow!(
                "'{}': the system counts what of it is cached only for its owner and for those who may write it; \
                 others can only read samples, and watching must not read (`alight inspect` without --watch does)",
                path()
            ));
        }
        Ok((super::super::cached::page_bytes(found.cached, found.pages, len), found.probe.name()))
    }
}

/// Returns the part that a tensor belongs to, by its name; for a layer also the text before its number.
fn kind_of(name: &str) -> (&str, PartKind) {
    let mut at = 0;
    for word in name.split('.') {
        if let Ok(n) = word.parse::<u64>()
            && word.bytes().all(|b| b.is_ascii_digit())
            && at > 0
        {
            return (&name[..at - 1], PartKind::Layer(n));
        }
        at += word.len() + 1;
    }
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let kind = if has(&["embd", "embed", "embeddings", "wte"]) {
        PartKind::Embedding
    } else if has(&["output", "lm_head", "norm"]) {
        PartKind::Output
    } else {
        PartKind::Other
    };
    ("", kind)
}

/// Returns the same bytes in fewer ranges, so that there are fewer queries and pages at the ends count once.
fn joined(mut ranges: Vec<FileRange>) -> Vec<FileRange> {
    ranges.sort_by_key(|(file, range)| (*file, range.start));
    let mut all: Vec<FileRange> = Vec::new();
    for (file, range) in ranges {
        match all.last_mut() {
            Some((same, last))
                if *same == file && range.start <= last.end.saturating_add(PADDING) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => all.push((file, range)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_tensor_is_part_of() {
        for (name, kind) in [
            ("token_embd.weight", ("", PartKind::Embedding)),
            ("model.embed_tokens.weight", ("", PartKind::Embedding)),
            ("blk.0.attn_q.weight", ("blk", PartKind::Layer(0))),
            ("model.layers.31.mlp.up_proj.weight", ("model.layers", PartKind::Layer(31))),
            ("v.blk.2.ln1.bias", ("v.blk", PartKind::Layer(2))),
            ("h.7.attn.weight", ("h", PartKind::Layer(7))),
            ("output_norm.weight", ("", PartKind::Output)),
            ("lm_head.weight", ("", PartKind::Output)),
            ("rope_freqs.weight", ("", PartKind::Other)),
            ("4.weight", ("", PartKind::Other)),
            ("blk.+4.weight", ("", PartKind::Other)),
            ("", ("", PartKind::Other)),
        ] {
            assert_eq!(kind_of(name), kind, "{name}");
        }
    }

    #[test]
    fn ranges_that_follow_one_another_are_one() {
        let ranges = vec![(0, 9000..9100), (0, 0..100), (0, 128..200), (1, 128..200)];
        assert_eq!(joined(ranges), [(0, 0..200), (0, 9000..9100), (1, 128..200)]);
    }
}
