//! Model files that are nearly in order, of every architecture: a tiny model (`python -m evidence make fuzz-models fuzz/models`)
//! with a few bytes of its header changed, keys left out or tensors renamed. Opening it is an error, or it runs: nothing
//! panics, and no size that the file announces is believed before it is checked.
#![no_main]

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use alight_formats::gguf;
use alight_model::{Model, OpenOptions, Repack, Session, SessionOptions};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    seed: u8,
    repack: bool,
    edits: Vec<Edit>,
    tokens: [u8; 4],
}

#[derive(Arbitrary, Debug)]
enum Edit {
    /// A byte behind a key of the architecture, which is a part of its type or of its value.
    Value { key: u8, at: u8, byte: u8 },
    /// The four bytes that are a number of 32 bits.
    Number { key: u8, value: i32 },
    /// A key under another name, so that it is missing.
    Missing { key: u8 },
    /// A byte of the description of a tensor: its name, shape, type or place.
    Tensor { tensor: u8, at: u8, byte: u8 },
    /// Any byte of the header.
    Any { at: u32, byte: u8 },
}

/// A tiny model, and where the names of its own keys and of its tensors are.
struct Seed {
    bytes: Vec<u8>,
    header: usize,
    keys: Vec<(usize, usize)>,
    tensors: Vec<usize>,
}

fn seeds() -> &'static [Seed] {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models");
        let files = std::fs::read_dir(folder).expect("models: `make fuzz` writes them");
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| seed(std::fs::read(path).unwrap())).collect()
    })
}

fn seed(bytes: Vec<u8>) -> Seed {
    let parsed = gguf::parse(&bytes).expect("a seed that is in order");
    let header = parsed.header_len as usize;
    let find = |name: &str| {
        let found = bytes[..header].windows(name.len()).position(|part| part == name.as_bytes());
        found.expect("a name of the header")
    };
    // Not the vocabulary, of which there is a lot.
    let own = parsed.metadata.iter().filter(|(key, _)| !key.starts_with("tokenizer."));
    let keys = own.map(|(key, _)| (find(key), key.len())).collect();
    let tensors = parsed.tensors.iter().map(|tensor| find(tensor.name)).collect();
    Seed { header, keys, tensors, bytes }
}

impl Edit {
    fn apply(&self, seed: &Seed, bytes: &mut [u8]) {
        let key = |n: u8| seed.keys[usize::from(n) % seed.keys.len()];
        let mut put = |at: usize, values: &[u8]| {
            if at + values.len() <= seed.header {
                bytes[at..at + values.len()].copy_from_slice(values);
            }
        };
        match *self {
            Edit::Value { key: n, at, byte } => {
                let (start, len) = key(n);
                put(start + len + usize::from(at % 16), &[byte]);
            }
            Edit::Number { key: n, value } => {
                let (start, len) = key(n);
                put(start + len + 4, &value.to_le_bytes());
            }
            Edit::Missing { key: n } => {
                let (start, len) = key(n);
                put(start + len - 1, b"?");
            }
            Edit::Tensor { tensor, at, byte } => {
                put(seed.tensors[usize::from(tensor) % seed.tensors.len()] + usize::from(at % 80), &[byte]);
            }
            Edit::Any { at, byte } => put(at as usize % seed.header, &[byte]),
        }
    }
}

fuzz_target!(|input: Input| {
    let seeds = seeds();
    let seed = &seeds[usize::from(input.seed) % seeds.len()];
    let mut bytes = seed.bytes.clone();
    input.edits.iter().take(8).for_each(|edit| edit.apply(seed, &mut bytes));
    let mut file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.write_all(&bytes).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let repack = if input.repack { Repack::On } else { Repack::Off };
    let options = OpenOptions { threads: Some(1), repack, ..OpenOptions::default() };
    let Ok(model) = Model::open(path.as_ref(), &options) else { return };
    let vocab = model.spec().vocab;
    let options = SessionOptions { context: Some(16), batch: 4, ..Default::default() };
    let Ok(mut session) = Session::new(&model, &options) else { return };
    let tokens = input.tokens.map(|token| u32::from(token) % vocab as u32);
    // Weights may be what they want: then logits are no numbers, which is an error.
    let _ = session.feed(&tokens[..3]).map(|_| ());
    let _ = session.feed(&tokens[3..]).map(|_| ());
    session.truncate(2);
    let _ = session.feed(&tokens).map(|_| ());
});
