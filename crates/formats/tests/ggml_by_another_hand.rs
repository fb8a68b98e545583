//! Models that `python -m evidence make legacy` writes, every magic, era and number of parts: what is
//! read, put together and converted here is what that script, which knows none of this code, says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use alight_formats::Format;
use alight_formats::ggml::blocks::{BlockUpgrade, Losses, convert};
use alight_formats::ggml::parts::{
    self, MergedModel, MergedTensor, Split, check_replicas, gguf_name, part_name,
};
use alight_formats::ggml::{Era, Ggml, LegacyType, parse};
use alight_formats::recognise::recognise;
use serde_json::Value;

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The files, or the reason why there are none: they are made by a Python with numpy, which `make` has installed in .venv.
fn made() -> Result<(Folder, Value), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let installed = root.join(".venv/bin/python");
    let python = if installed.is_file() { installed } else { PathBuf::from("python3") };
    let name = format!("legacy-{}", std::process::id());
    let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    let status = Command::new(&python)
        .args(["-m", "evidence", "make", "legacy"])
        .arg(&folder.0)
        .current_dir(root)
        .status();
    match status {
        Err(error) => return Err(format!("{}: {error}", python.display())),
        // `evidence` says which library is missing.
        Ok(status) if status.code() == Some(3) => return Err("see above".to_owned()),
        Ok(status) => assert!(status.success(), "the command failed: {status}"),
    }
    let expected = fs::read(folder.0.join("expected.json")).unwrap();
    Ok((folder, serde_json::from_slice(&expected).unwrap()))
}

fn era(name: &str) -> Era {
    match name {
        "rows" => Era::Rows,
        "pairs" => Era::Pairs,
        "halves" => Era::Halves,
        "current" => Era::Current,
        other => panic!("{other}"),
    }
}

/// Converts as a converter would: piece by piece, row by row.
fn converted(
    era: Era,
    tensor: &MergedTensor<'_>,
    files: &[Vec<u8>],
    losses: &mut Losses,
) -> Vec<u8> {
    let mut out = vec![0xcc; tensor.current_bytes().1 as usize];
    for piece in &tensor.pieces {
        let source = &files[piece.part as usize][piece.range().start as usize..];
        let (start, bytes, stride) = tensor.destination(piece);
        for row in 0..piece.rows {
            let from = &source[(row * piece.row_bytes) as usize..][..piece.row_bytes as usize];
            let to = &mut out[(start + row * stride) as usize..][..bytes as usize];
            convert(era, tensor.ty, from, to, losses).unwrap();
        }
    }
    if tensor.is_sequence() && era.upgrade(tensor.ty) == Some(BlockUpgrade::Copy) {
        let joined: Vec<u8> = tensor
            .pieces
            .iter()
            .flat_map(|piece| {
                let range = piece.range();
                files[piece.part as usize][range.start as usize..range.end as usize].to_vec()
            })
            .collect();
        assert!(joined == out, "{} is not the pieces one after the other", tensor.name);
    }
    out
}

/// What blocks of GGUF decode to, by their definition.
fn decoded(id: u32, bytes: &[u8]) -> Option<Vec<f64>> {
    let half = |b: &[u8]| {
        let bits = u16::from_le_bytes([b[0], b[1]]);
        let fraction = f64::from(bits & 0x3ff);
        let size = match bits >> 10 & 31 {
            0 => fraction * 2_f64.powi(-24),
            31 => panic!("not finite"),
            exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
        };
        if bits & 0x8000 == 0 { size } else { -size }
    };
    let block = match id {
        0 => 4,
        1 => 2,
        2 => 18,
        3 => 20,
        6 => 22,
        7 => 24,
        8 => 34,
        _ => return None,
    };
    let values = bytes.chunks_exact(block).flat_map(|b| {
        let nibble = |i: usize| b[block - 16 + i % 16] >> (i / 16 * 4) & 15;
        let fifth = |at: usize, i: usize| (b[at + i / 8] >> (i % 8) & 1) << 4;
        match id {
            0 => vec![f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))],
            1 => vec![half(b)],
            8 => (0..32).map(|i| f64::from(b[2 + i] as i8) * half(b)).collect(),
            _ => (0..32)
                .map(|i| match id {
                    2 => (f64::from(nibble(i)) - 8.0) * half(b),
                    3 => f64::from(nibble(i)) * half(b) + half(&b[2..]),
                    6 => (f64::from(nibble(i) | fifth(2, i)) - 16.0) * half(b),
                    _ => f64::from(nibble(i) | fifth(4, i)) * half(b) + half(&b[2..]),
                })
                .collect(),
        }
    });
    Some(values.collect())
}

#[test]
fn what_another_hand_wrote_comes_out_as_it_says() {
    let (folder, sets) = match made() {
        Ok(made) => made,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let sets = sets.as_array().unwrap();
    assert!(sets.len() >= 17);
    for set in sets {
        let name = set["name"].as_str().unwrap();
        let read = |file: &str| fs::read(folder.0.join(file)).unwrap();
        let names: Vec<&str> =
            set["files"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let files: Vec<Vec<u8>> = names.iter().map(|name| read(name)).collect();
        let era = era(set["era"].as_str().unwrap());
        let catalogs: Vec<Ggml<'_>> = files
            .iter()
            .map(|file| {
                assert_eq!(recognise(file), Some(Format::LegacyGgml));
                let file = parse(file).unwrap_or_else(|error| panic!("{name}: {error}"));
                file.assume_era(era).unwrap()
            })
            .collect();
        catalogs.iter().for_each(|file| check_file(file, set));

        assert_eq!(parts::count(&catalogs[0]), Ok(files.len() as u32), "{name}");
        for (part, file) in names.iter().enumerate() {
            assert_eq!(part_name(names[0], part as u32), *file);
        }
        let model = parts::merge(&catalogs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let slices: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        check_replicas(&model, &slices).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_model(
            &model,
            set,
            &files,
            &read(&format!("{name}.blocks")),
            &read(&format!("{name}.values")),
        );
    }
}

fn check_file(file: &Ggml<'_>, set: &Value) {
    let name = &set["name"];
    assert_eq!(Value::from(file.magic.to_string()), set["magic"], "{name}");
    assert_eq!(Value::from(file.version), set["version"], "{name}");
    let h = &file.hparams;
    let numbers = [h.n_vocab, h.n_embd, h.n_mult, h.n_head, h.n_layer, h.n_rot, h.ftype];
    let keys = ["n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype"];
    for (key, number) in keys.into_iter().zip(numbers) {
        assert_eq!(set["hparams"][key], number, "{name} {key}");
    }
    assert_eq!(set["formula_n_ff"], h.formula_n_ff(), "{name}");

    let vocabulary = &file.vocabulary;
    assert_eq!(set["scored"], vocabulary.scored, "{name}");
    assert_eq!(set["gpt4all"], vocabulary.lacks_padding(), "{name}");
    let hex = |text: &[u8]| text.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let texts: Vec<Value> = vocabulary.tokens.iter().map(|token| hex(token.text).into()).collect();
    assert_eq!(Value::from(texts), set["vocabulary"], "{name}");
    let tokens = vocabulary.to_gguf().unwrap();
    let gguf: Vec<Value> = tokens
        .iter()
        .map(|token| vec![Value::from(&*token.text), Value::from(token.ty as i32)].into())
        .collect();
    assert_eq!(Value::from(gguf), set["gguf"], "{name}");
    // As f32: reading a number of JSON is off by a bit of f64 at times.
    let scores: Vec<f32> = tokens.iter().map(|token| token.score).collect();
    let expected = set["scores"].as_array().unwrap().iter();
    let expected: Vec<f32> = expected.map(|score| score.as_f64().unwrap() as f32).collect();
    assert_eq!(scores, expected, "{name}");
}

fn check_model(
    model: &MergedModel<'_>,
    set: &Value,
    files: &[Vec<u8>],
    blocks: &[u8],
    values: &[u8],
) {
    let name = &set["name"];
    assert_eq!(set["n_ff"], model.n_ff, "{name}");
    assert_eq!(set["n_head_kv"], model.n_head_kv, "{name}");
    assert_eq!(model.skipped.len(), usize::from(set["rope"] == true), "{name}");
    let expected = set["tensors"].as_array().unwrap();
    assert_eq!(model.tensors.len(), expected.len(), "{name}");
    for (tensor, expected) in model.tensors.iter().zip(expected) {
        assert_eq!(expected["name"], tensor.name, "{name}");
        let name = format!("{name} {} ({})", tensor.name, tensor.ty);
        assert_eq!(Value::from(gguf_name(tensor.name)), expected["gguf"], "{name}");
        let split = match tensor.split {
            Split::Replicated => "replicated",
            Split::Columns => "columns",
            Split::Rows => "rows",
            Split::Skipped => "skipped",
        };
        assert_eq!(expected["split"], split, "{name}");
        assert_eq!(expected["type"], tensor.ty.id(), "{name}");
        assert_eq!(expected["current"], tensor.ty.current().id(), "{name}");
        assert_eq!(Value::from(&tensor.ne[..tensor.n_dims as usize]), expected["ne"], "{name}");

        let mut losses = Losses::default();
        let got = converted(model.era, tensor, files, &mut losses);
        let range = |key: &str| {
            let number = |i: usize| expected[key][i].as_u64().unwrap() as usize;
            (number(0), number(1))
        };
        let (at, len) = range("blocks");
        assert!(got == blocks[at..at + len], "{name}: other bytes than expected");

        // What it decodes to now is what it did then, up to the rounding of scales.
        let (at, len) = range("values");
        let Some(now) = decoded(tensor.ty.current().id(), &got) else { continue };
        assert_eq!(now.len(), len, "{name}");
        let then = values[at * 8..].as_chunks::<8>().0.iter().take(len);
        for (index, (now, then)) in now.iter().zip(then).enumerate() {
            let then = f64::from_le_bytes(*then);
            // A scale is rounded by one in 2048, and so is a minimum, which is at most 0.5 here; what
            // is below 2^-14 by half of the least f16. The value then was rounded to f32.
            let mut allowed = 1e-7 * (then.abs() + 1.0);
            if losses.numbers > 0 {
                let minimum = if tensor.ty == LegacyType::Q4_1 { 1.0 } else { 0.0 };
                allowed += (then.abs() + minimum) / 2048.0 + 128.0 * 2_f64.powi(-25);
            }
            assert!((now - then).abs() <= allowed, "{name} element {index}: {now} was {then}");
        }
    }
}
