//! Files that somebody else writes to while their headers are read: whatever the parsers have found, it
//! stays as they found it, because it is a copy.
//!
//! Under Miri this shows that no parser looks at the shared bytes but through its copies (`make sanitize`):
//! there the bytes are atomics, so a plain read of one that another thread writes would be a data race,
//! and text that is not UTF-8 any more undefined behaviour.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::thread;

use alight_formats::gguf::write::Builder;
use alight_formats::{Header, Source, ggml, gguf, safetensors, torch};

use crate::legacy;
use crate::support::{raw, torch_files};

/// How often each file is parsed while it changes.
const TIMES: usize = if cfg!(miri) { 4 } else { 3000 };

/// A file that can be written to while it is read.
struct Shared(Vec<AtomicU8>);

impl Shared {
    fn new(bytes: &[u8]) -> Shared {
        Shared(bytes.iter().map(|&byte| AtomicU8::new(byte)).collect())
    }

    fn header(&self) -> Header<'_> {
        Header::new(self.0.len() as u64, |to, at| {
            let from = &self.0[at as usize..][..to.len()];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Relaxed));
            true
        })
    }

    /// Writes something into the first bytes and puts them back, until `stop`.
    fn scribble(&self, good: &[u8], stop: &AtomicBool) {
        let mut random = 88_172_645_463_325_252_u64;
        while !stop.load(Relaxed) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % good.len();
            self.0[at].store((random >> 32) as u8, Relaxed);
            let back = (random >> 40) as usize % good.len();
            self.0[back].store(good[back], Relaxed);
            if random.is_multiple_of(64) {
                self.0.iter().zip(good).for_each(|(to, from)| to.store(*from, Relaxed));
            }
        }
    }
}

/// Parses `bytes` by `read` again and again, while another thread writes to them. `read` says whether
/// the file was in order.
fn while_it_changes(bytes: &[u8], read: impl Fn(&Header<'_>) -> bool) {
    let shared = Shared::new(bytes);
    assert!(read(&shared.header()), "the file is in order");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| shared.scribble(bytes, &stop));
        for _ in 0..TIMES {
            black_box(read(&shared.header()));
        }
        stop.store(true, Relaxed);
    });
}

/// All that a catalog of GGUF can be asked for.
fn walk_gguf(file: &gguf::Gguf<'_>) {
    for (key, value) in &file.metadata {
        assert!(std::str::from_utf8(key.as_bytes()).is_ok());
        black_box((value.to_string(), file.get_str(key).is_ok()));
        if let gguf::Value::Array(array) = value {
            let strings = array.iter_str().map(|strings| {
                let len = strings.len();
                // The walk ends where the parser's did.
                assert_eq!(strings.inspect(|text| drop(black_box(text.to_vec()))).count(), len);
            });
            black_box((strings, array.iter_f32().map(|v| v.sum::<f32>())));
        }
    }
    for tensor in &file.tensors {
        assert!(std::str::from_utf8(tensor.name.as_bytes()).is_ok());
        assert_eq!(file.tensor(tensor.name), Some(tensor));
    }
}

#[test]
fn gguf_stays_as_it_was_read() {
    let mut out = Builder::new();
    out.str("general.architecture", "llama").str("tokenizer.chat_template", "ein Zettel – ü");
    out.strs("tokenizer.ggml.tokens", &["ä", "<|end|>", "", "日本", "a token of some length"]);
    out.f32s("tokenizer.ggml.scores", &[0.5; 5]).bools("flags", &[true, false]);
    for name in ["blk.0.größe", "blk.1.weight"] {
        out.tensor(name, alight_formats::GgmlType::F32, &[8, 2]).unwrap();
    }
    let bytes = out.file(|_, _| ());
    while_it_changes(&bytes, |copy| gguf::parse(copy).inspect(walk_gguf).is_ok());
    while_it_changes(&raw::small(), |copy| gguf::parse(copy).inspect(walk_gguf).is_ok());
}

#[test]
fn safetensors_stay_as_they_were_read() {
    let json = r#"{"__metadata__":{"format":"pt – ü"},"größe\n":{"dtype":"F16","shape":[2,2],
        "data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend([0; 12]);
    while_it_changes(&bytes, |copy| {
        let parsed = safetensors::parse(copy);
        for tensor in parsed.iter().flat_map(|file| &file.tensors) {
            assert!(std::str::from_utf8(tensor.name.as_bytes()).is_ok());
            assert!(parsed.as_ref().is_ok_and(|file| file.tensor(&tensor.name).is_some()));
        }
        parsed.is_ok()
    });
    let index = r#"{"weight_map": {"größe": "a-00001-of-00001.safetensors"}}"#;
    while_it_changes(index.as_bytes(), |copy| {
        let parsed = safetensors::parse_index(copy);
        for name in parsed.iter().flat_map(|index| &index.files) {
            assert!(std::str::from_utf8(name.as_bytes()).is_ok());
        }
        parsed.is_ok()
    });
}

#[test]
fn torch_stays_as_it_was_read() {
    while_it_changes(&torch_files::model(), |copy| {
        let parsed = torch::parse(copy);
        if let Ok(file) = &parsed {
            assert!(std::str::from_utf8(file.root.as_bytes()).is_ok());
            assert!(file.tensors.iter().all(|t| file.tensor(&t.name).is_some()));
            for (_, scalar) in &file.scalars {
                if let torch::Scalar::Str(text) = scalar {
                    assert!(std::str::from_utf8(text.as_bytes()).is_ok());
                }
            }
        }
        parsed.is_ok()
    });
}

#[test]
fn old_files_stay_as_they_were_read() {
    let mut file = legacy::File::model(b"tjgg", Some(3), 1);
    if cfg!(miri) {
        // A small tensor has everything that a large one has.
        file.tensors = vec![legacy::Tensor::new("gr\u{f6}\u{df}e", 0, &[4], 16)];
    }
    while_it_changes(&file.bytes(), |copy| {
        let parsed = ggml::parse(copy);
        if let Ok(file) = &parsed {
            black_box(file.vocabulary.to_gguf().is_ok());
            for tensor in &file.tensors {
                assert!(std::str::from_utf8(tensor.name.as_bytes()).is_ok());
                assert_eq!(file.tensor(tensor.name), Some(tensor));
            }
        }
        parsed.is_ok()
    });
}

#[test]
#[cfg_attr(miri, ignore = "megabytes")]
fn a_large_header_is_read_in_pieces_and_is_the_same() {
    let words: Vec<String> = (0..90_000).map(|i| format!("{i:x}{}", "y".repeat(i % 23))).collect();
    let numbers: Vec<f32> = (0..90_000).map(|i| i as f32).collect();
    for version in 2..=3 {
        let mut out = Builder::new();
        if version == 2 {
            out.version_2();
        }
        // Strings that are not like those before them, and long ones.
        out.strs("a", &words).f32s("b", &numbers).strs("c", &["z".repeat(3_000_000)]);
        out.strs("d", &words).str("e", "end");
        for i in 0..500 {
            out.tensor(&format!("t{i}"), alight_formats::GgmlType::F32, &[8]).unwrap();
        }
        let bytes = out.file(|_, _| ());
        let shared = Header::new(bytes.len() as u64, |to, at| (&bytes).read(at, to));
        let (whole, pieces) = (gguf::parse(&bytes).unwrap(), gguf::parse(&shared).unwrap());
        assert_eq!(whole.metadata, pieces.metadata);
        assert_eq!(whole.tensors, pieces.tensors);
        assert_eq!((whole.header_len, whole.data_end), (pieces.header_len, pieces.data_end));
        let limit = 5 * whole.header_len / 2;
        assert!(shared.copied() < limit, "{} of {}", shared.copied(), whole.header_len);
        // Cut anywhere: the same error, and no more memory.
        for len in (0..whole.header_len as usize).step_by(77_777) {
            let cut = &bytes[..len];
            let copy = Header::new(len as u64, |to, at| cut.read(at, to));
            assert_eq!(gguf::parse(cut).unwrap_err(), gguf::parse(&copy).unwrap_err());
            assert!(copy.copied() < limit);
        }
    }
}
