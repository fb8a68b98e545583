//! Tokenizes JSON lines, for comparing with other tokenizers (`python -m evidence agree tokens`).
//!
//! `tokenize MODEL.gguf` reads lines `{"text": …, "parse_special": bool, "add_bos": bool | null}`
//! on stdin (only `text` is needed) and writes one JSON array of ids per line. With `--decode` the
//! lines are arrays of ids and the answers are strings. With `--infill` they are gaps, `{"before": …, "line": …, "after": …, "files":
//! [[name, text], …], "around": N, "all": N}`, and the answers `{"tokens": N, "text": …}`, with special tokens spelled. With `--describe` nothing is read, and one
//! JSON object tells the special ids and the bytes of every token in hexadecimal. With `--time` it
//! builds the tokenizer repeatedly and writes milliseconds to stderr.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use alight_formats::gguf;
use alight_text::infill::{Gap, GapLimits};
use alight_text::{EncodeOptions, Encoder, Style, Tokenizer, Vocabulary};

#[derive(serde::Deserialize)]
struct Line {
    text: String,
    #[serde(default)]
    parse_special: bool,
    #[serde(default)]
    add_bos: Option<bool>,
}

#[derive(serde::Deserialize)]
struct Infill {
    before: String,
    line: String,
    after: String,
    files: Vec<(String, String)>,
    around: usize,
    all: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut decode = false;
    let mut time = false;
    let mut describe = false;
    let mut infill = false;
    let mut path = None;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--decode" => decode = true,
            "--time" => time = true,
            "--describe" => describe = true,
            "--infill" => infill = true,
            _ => path = Some(arg),
        }
    }
    let path = path
        .ok_or("usage: tokenize [--decode | --describe | --infill] [--time] MODEL.gguf < LINES")?;
    let bytes = std::fs::read(path)?;
    let header = gguf::parse(&bytes)?;
    let tokenizer = Tokenizer::from_gguf(&header)?;
    if time {
        let mut times: Vec<f64> = (0..15)
            .map(|_| {
                let start = Instant::now();
                let built = Tokenizer::from_gguf(&header);
                let ms = start.elapsed().as_secs_f64() * 1e3;
                drop(built);
                ms
            })
            .collect();
        times.sort_by(f64::total_cmp);
        eprintln!("build: best {:.2} ms, median {:.2} ms", times[0], times[times.len() / 2]);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if describe {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let mut buffer = Vec::new();
        let mut pieces = |special: bool| -> Vec<String> {
            let ids = 0..tokenizer.vocab_size() as u32;
            ids.map(|id| {
                buffer.clear();
                if special {
                    tokenizer.decode_special(id, &mut buffer);
                } else {
                    tokenizer.decode_bytes(id, &mut buffer);
                }
                hex(&buffer)
            })
            .collect()
        };
        let description = serde_json::json!({
            "bos": tokenizer.bos(),
            "eos": tokenizer.eos(),
            "ends": tokenizer.ends(),
            "adds_bos": tokenizer.adds_bos(),
            "adds_eos": tokenizer.adds_eos(),
            "cut": tokenizer.cut_tokens(),
            "pieces": pieces(false),
            "pieces_special": pieces(true),
        });
        serde_json::to_writer(&mut out, &description)?;
        writeln!(out)?;
        return Ok(());
    }
    let vocabulary = infill.then(|| Vocabulary::from_gguf(&header)).transpose()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if let Some(vocabulary) = &vocabulary {
            let Infill { before, line, after, files, around, all } = serde_json::from_str(&line)?;
            let gap = Gap { before, line, after, files };
            let encoder = Encoder::new(vocabulary, Style::Raw, false);
            let ids = encoder.infill(&gap, GapLimits { around, total: all })?;
            let mut text = Vec::new();
            ids.iter().for_each(|id| tokenizer.decode_special(*id, &mut text));
            let text = String::from_utf8_lossy(&text);
            let answer = serde_json::json!({"tokens": ids.len(), "text": text});
            serde_json::to_writer(&mut out, &answer)?;
        } else if decode {
            let ids: Vec<u32> = serde_json::from_str(&line)?;
            serde_json::to_writer(&mut out, &tokenizer.decode(&ids))?;
        } else {
            let Line { text, parse_special, add_bos } = serde_json::from_str(&line)?;
            let options = EncodeOptions { add_bos, parse_special };
            let start = Instant::now();
            let ids = tokenizer.encode(&text, options)?;
            if time {
                let ms = start.elapsed().as_secs_f64() * 1e3;
                eprintln!("{} bytes, {} tokens: {ms:.2} ms", text.len(), ids.len());
            }
            serde_json::to_writer(&mut out, &ids)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
