//! Hashes of logits, for proving that a change of the code changes no bit of an answer:
//! `cargo run --release -p alight-model --example logit_hashes -- [--quick] MODEL…`
//!
//! One line for each model, SIMD level and prompt: the hash of the bits of all logits when the prompt is computed
//! in batches, and when it is computed token by token. Prompts are token ids that follow from a counter, so that no
//! tokenizer takes part; each runs on one to four threads, which must not change a bit either.
//! `python -m evidence check same-bits` runs this at two commits and compares what they print.

use std::path::Path;

use alight_kernels::Isa;
use alight_model::{Model, ModelError, OpenOptions, Session, SessionOptions};

/// Tokens of the prompts. The batch is 48, so the longer ones are computed in several parts.
const LENGTHS: [usize; 20] =
    [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 24, 31, 33, 48, 49, 64, 97, 130];
const BATCH: usize = 48;

fn main() -> Result<(), ModelError> {
    let mut paths: Vec<String> = std::env::args().skip(1).collect();
    let quick = paths.iter().position(|arg| arg == "--quick").map(|i| paths.remove(i)).is_some();
    for path in &paths {
        for isa in Isa::available() {
            // Portable code is slow on real models: every fourth prompt then.
            let step = if quick || (isa == Isa::SCALAR && is_large(path)) { 4 } else { 1 };
            for threads in 1..=4 {
                let options = OpenOptions {
                    threads: Some(threads),
                    isa: Some(isa),
                    ..OpenOptions::default()
                };
                let model = Model::open(Path::new(path), &options)?;
                hash_prompts(path, &model, threads, step)?;
            }
        }
    }
    Ok(())
}

fn is_large(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() > 50_000_000)
}

/// Large models run every prompt on one number of threads, small ones on all four.
fn hash_prompts(path: &str, model: &Model, threads: usize, step: usize) -> Result<(), ModelError> {
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    let options = SessionOptions { batch: BATCH, context: Some(256), ..SessionOptions::default() };
    let mut session = Session::new(model, &options)?;
    for (i, &length) in LENGTHS.iter().enumerate().step_by(step) {
        if is_large(path) && i / step % 4 + 1 != threads {
            continue;
        }
        let tokens = prompt(i, length, session.logits().len());
        let mut hash = Hash::new();
        session.truncate(0);
        session.feed_each(&tokens, &mut |_, logits| hash.add(logits))?;
        session.truncate(0);
        hash.add(session.feed(&tokens)?);
        let together = hash.0;
        let mut hash = Hash::new();
        session.truncate(0);
        for &token in tokens.iter().take(32) {
            hash.add(session.decode(token)?);
        }
        let isa = model.isa();
        println!("{name} {isa} threads={threads} tokens={length} {together:016x} {:016x}", hash.0);
    }
    Ok(())
}

/// Token ids that differ from prompt to prompt.
fn prompt(number: usize, length: usize, vocab: usize) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(number as u64 + 1);
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize % vocab) as u32
    };
    (0..length).map(|_| next()).collect()
}

/// FNV-1a over the bits of floats.
struct Hash(u64);

impl Hash {
    fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, values: &[f32]) {
        for value in values {
            for byte in value.to_bits().to_le_bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
}
