//! A neighbour that writes into a model's file while it is opened and run: the outcome is an error or an
//! answer, whatever the neighbour does and whenever, but never a signal and never a panic.
//!
//! The victim is a process of its own (this test again), so that its end can be looked at; this process
//! is the neighbour. The test opens a model as every caller does: only the file is made for the test.

use std::fs::{File, OpenOptions as Files};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use alight_formats::gguf;
use alight_model::{Load, Model, OpenOptions, Repack, Session, SessionOptions};

use alight_testing::models::{Random, Spec};

/// Tells a process that it is the victim, and of which file.
const FILE: &str = "ALIGHT_TEST_CHANGING_FILE";
/// How often a victim opens the model.
const TIMES: usize = 400;

/// The victim's part. Not a test by itself: without the variable it has nothing to do.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else { return };
    let (mut answers, mut errors) = (0, 0);
    for round in 0..TIMES {
        let load = [Load::Auto, Load::Mmap, Load::Read][round % 3];
        let repack = [Repack::Auto, Repack::Off, Repack::On][round / 3 % 3];
        let options = OpenOptions { threads: Some(2), load, repack, ..OpenOptions::default() };
        match answer(&path, &options) {
            Ok(()) => answers += 1,
            Err(_) => errors += 1,
        }
    }
    println!("{answers} answers, {errors} errors");
}

/// Opens the model and computes a few tokens. What they are does not matter.
fn answer(path: &Path, options: &OpenOptions) -> Result<(), String> {
    let said = |error: alight_model::ModelError| error.to_string();
    let model = Model::open(path, options).map_err(said)?;
    let words = model.tokenizer().encode("w259 ü w260", Default::default());
    let mut tokens = words.map_err(|error| error.to_string())?;
    let _ = (
        model.name().len(),
        model.tokenizer().decode(&tokens),
        model.vocabulary().template().is_some(),
    );
    let mut session = Session::new(&model, &SessionOptions::default()).map_err(said)?;
    for _ in 0..3 {
        let logits = session.feed(&tokens).map_err(said)?;
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        tokens = vec![best.map_or(0, |(id, _)| id as u32)];
    }
    Ok(())
}

/// A model with much text in its header, of more than one byte for a character; where that text is, and
/// where the header ends.
fn model(folder: &Path) -> (PathBuf, std::ops::Range<usize>, usize) {
    let spec = Spec { vocab: 2000, ..Spec::llama() };
    let text = format!("{{#{}#}}{{{{ messages[0].content }}}}", "ü–日".repeat(7000));
    let mut b = spec.metadata("");
    b.str("tokenizer.chat_template", &text).str("general.name", "ü–日".repeat(3000));
    let weights = spec.build().1;
    let tensors = spec.tensors();
    for (name, shape) in &tensors {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(name, alight_formats::GgmlType::F32, &shape).unwrap();
    }
    let bytes = b.file(|i, out| {
        for (chunk, value) in out.chunks_exact_mut(4).zip(&weights[&tensors[i].0]) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
    });
    let header = gguf::parse(&bytes).unwrap().header_len as usize;
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    let path = folder.join("changing.gguf");
    std::fs::write(&path, &bytes).unwrap();
    (path, at..at + text.len(), header)
}

/// Runs the victim while `write` is called again and again with a number that counts.
fn beside(path: &Path, mut write: impl FnMut(&File, u64)) {
    let file = Files::new().write(true).open(path).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["changing::victim", "--exact", "--nocapture"])
        .env(FILE, path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut count = 0;
    while victim.try_wait().unwrap().is_none() {
        for _ in 0..50 {
            write(&file, count);
            count += 1;
        }
    }
    let output = victim.wait_with_output().unwrap();
    let (said, cried) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success() && said.contains(" answers, "),
        "after {count} writes: {}\n{said}{}",
        output.status,
        &cried[..cried.floor_char_boundary(2000)]
    );
    let counts = said.lines().find(|line| line.contains(" answers, ")).unwrap_or_default();
    eprintln!("{counts}, {count} writes");
}

#[test]
fn text_that_stops_being_text() {
    let folder = tempfile::tempdir().unwrap();
    let (path, text, _) = model(folder.path());
    let good = std::fs::read(&path).unwrap()[text.clone()].to_vec();
    // The first byte of a character of four, as often as it fits.
    let mut bad = good.clone();
    bad[2..].fill(0xf4);
    beside(&path, |file, count| {
        let now = if count.is_multiple_of(2) { &bad } else { &good };
        file.write_all_at(now, text.start as u64).unwrap();
    });
}

#[test]
fn any_byte_of_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _, header) = model(folder.path());
    let good = std::fs::read(&path).unwrap();
    let mut random = Random(7);
    beside(&path, |file, count| {
        // Mostly in order, so that there are answers too.
        match count % 4 {
            0 => file.write_all_at(&[random.bits() as u8], random.below(header) as u64).unwrap(),
            _ => file.write_all_at(&good[..header], 0).unwrap(),
        }
    });
}

#[test]
fn any_byte_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _, header) = model(folder.path());
    let len = std::fs::metadata(&path).unwrap().len() as usize;
    let mut random = Random(8);
    let mut junk = vec![0; 4096];
    beside(&path, |file, count| {
        // All bits set is no number; zeros are one.
        let byte = if count.is_multiple_of(2) { random.bits() as u8 } else { 0xff };
        junk.fill(byte);
        let at = header + random.below(len - header - junk.len());
        file.write_all_at(&junk, at as u64).unwrap();
    });
}
