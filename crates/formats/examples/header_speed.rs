//! How long a large header takes: 128,256 tokens, 280,147 merges and 128,256 token types (the sizes of
//! Llama 3), 291 tensors; or the header of the file that is named.
//!
//!     cargo run --release -p alight-formats --example header_speed [FILE]
//!
//! Prints medians over many runs: of the parse, of the parse and a walk over all strings, and of the parse of a
//! copy that is read from a file piece by piece, as models are opened.

#[path = "../../kernels/examples/support/sample.rs"]
mod sample;

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;

use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{Gguf, Value, parse};
use alight_formats::{GgmlType, Header};
use sample::Sample;

const RUNS: usize = 201;

fn main() -> Result<(), Box<dyn Error>> {
    let bytes = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => llama_3()?,
    };
    let file = parse(&bytes)?;
    let elements: usize = file.metadata.iter().map(|(_, value)| len(value)).sum();
    println!(
        "header of {:.2} MB: {} entries with {} array elements, {} tensors",
        file.header_len as f64 / 1e6,
        file.metadata.len(),
        elements,
        file.tensors.len()
    );
    report("parse", || parse(&bytes).map(|file| file.tensors.len()));
    report("parse and walk all strings", || parse(&bytes).map(|file| walk(&file)));
    let path = std::env::temp_dir().join(format!("header-speed-{}", std::process::id()));
    std::fs::write(&path, &bytes)?;
    let header = File::open(&path)?;
    std::fs::remove_file(&path)?;
    let copy = Header::new(bytes.len() as u64, |to, at| header.read_exact_at(to, at).is_ok());
    parse(&copy)?;
    println!("copied piece by piece: {:.2} MB", copy.copied() as f64 / 1e6);
    report("copy from the file and parse", || {
        let copy = Header::new(bytes.len() as u64, |to, at| header.read_exact_at(to, at).is_ok());
        parse(&copy).map(|file| file.tensors.len())
    });
    Ok(())
}

fn len(value: &Value<'_>) -> usize {
    if let Value::Array(array) = value { array.len() } else { 0 }
}

fn walk(file: &Gguf<'_>) -> usize {
    let arrays = file.metadata.iter().filter_map(|(_, value)| match value {
        Value::Array(array) => array.iter_str(),
        _ => None,
    });
    arrays.flatten().map(<[u8]>::len).sum()
}

fn report<T>(what: &str, run: impl FnMut() -> T) {
    let times = Sample::of_runs(RUNS, run);
    println!(
        "{what}: median {:.3} ms, fastest {:.3}, 90 % below {:.3} ({RUNS} runs)",
        times.median() * 1e3,
        times.least() * 1e3,
        times.quantile(0.9) * 1e3
    );
}

/// A header like that of Llama 3 8B; the data is left to zeros of the smallest tensors.
fn llama_3() -> Result<Vec<u8>, Box<dyn Error>> {
    let token = |i: usize| format!("t{i:x}{}", &"abcdefgh"[..i % 9]);
    let tokens: Vec<String> = (0..128_256).map(token).collect();
    let merges: Vec<String> =
        (0..280_147).map(|i| format!("{} {}", token(i % 9000), token(i % 7919))).collect();
    let mut out = Builder::new();
    out.str("general.architecture", "llama").str("tokenizer.ggml.model", "gpt2");
    for i in 0..20 {
        out.u32(&format!("llama.number_{i}"), i);
    }
    out.strs("tokenizer.ggml.tokens", &tokens);
    out.i32s("tokenizer.ggml.token_type", &vec![1; tokens.len()]);
    out.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    out.strs("tokenizer.ggml.merges", &merges);
    for i in 0..291 {
        out.tensor(&format!("blk.{}.part_{}.weight", i / 9, i % 9), GgmlType::Q4_K, &[256, 4])?;
    }
    Ok(out.file(|_, _| ()))
}
