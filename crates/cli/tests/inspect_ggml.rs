//! `alight inspect` on llama.cpp's files before GGUF, made here: parts are found by each other, and what
//! is missing is said.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::alight;
use crate::support::legacy::{File, KINDS};

fn write(path: &Path, file: &File) -> String {
    fs::write(path, file.bytes()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn as_json(path: &str) -> Value {
    let out = alight(&["inspect", path, "--json"]).succeeds();
    assert_eq!((&*out.stderr, out.stdout.lines().count()), ("", 1));
    serde_json::from_str(&out.stdout).unwrap()
}

fn value<'v>(listing: &'v Value, key: &str) -> &'v Value {
    let all = listing["metadata"].as_array().unwrap();
    &all.iter().find(|m| m["key"] == key).unwrap_or_else(|| panic!("no {key}: {all:?}"))["value"]
}

fn notes(listing: &Value) -> String {
    listing["notes"].to_string()
}

#[test]
fn every_kind_of_file_is_shown() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (magic, version) in KINDS {
        let file = File::model(magic, version, 1);
        let path = write(&dir.path().join("old.bin"), &file);
        let shown = as_json(&path);
        assert_eq!(shown["format"], "ggml");
        assert_eq!(shown["tensors"].as_array().unwrap().len(), 12);
        assert_eq!(shown["tensors"][0]["shape"], json!([64, 6]));
        assert_eq!((value(&shown, "n_ff"), value(&shown, "n_head_kv")), (&json!(192), &json!(2)));
        assert_eq!(value(&shown, "tokens").as_array().unwrap().len(), 6);
        assert_eq!(notes(&shown).contains("no scores"), magic == b"lmgg");

        let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
        let kind: String = magic.iter().rev().map(|byte| char::from(*byte)).collect();
        let kind = version.map_or(kind.clone(), |version| format!("{kind} version {version}"));
        for word in [&kind[..], "tok_embeddings.weight", "64 × 6", "n_head_kv", "F16"] {
            assert!(text.contains(word), "no {word}: {text}");
        }
    }
}

#[test]
fn any_part_shows_all_and_a_missing_one_is_said() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let part = File::model(b"fmgg", Some(1), 2);
    let first = write(&dir.path().join("m.bin"), &part);
    let shown = as_json(&first);
    assert!(notes(&shown).contains("1 of 2 parts") && notes(&shown).contains("m.bin.1"));
    assert_eq!(shown["files"].as_array().unwrap().len(), 1);

    let second = write(&dir.path().join("m.bin.1"), &part);
    for path in [&first, &second, dir.path().to_str().unwrap()] {
        let shown = as_json(path);
        assert_eq!(shown["files"].as_array().unwrap().len(), 2, "{path}");
        assert_eq!(shown["tensors"].as_array().unwrap().len(), 24);
        assert_eq!(value(&shown, "n_ff"), 192);
        assert!(notes(&shown).contains("vectors are in every part"));
    }

    // Parts of two models, which their headers tell.
    let mut other = part.clone();
    other.hparams[6] = 1;
    write(&dir.path().join("m.bin.1"), &other);
    assert!(notes(&as_json(&first)).contains("part 1 has ftype 1"));

    // Cut between two tensors, and cut inside one.
    let mut cut = File::model(b"tjgg", Some(1), 1);
    cut.tensors.pop();
    let path = write(&dir.path().join("m.bin"), &cut);
    assert!(notes(&as_json(&path)).contains("norm.weight"));
    fs::write(&path, &cut.bytes()[..2000]).unwrap();
    alight(&["inspect", &path]).fails(1, &["m.bin'", "cut short"]);

    write(&dir.path().join("a.bin"), &cut);
    write(&dir.path().join("m.bin"), &cut);
    let folder = dir.path().to_str().unwrap();
    alight(&["inspect", folder]).fails(1, &["2 legacy GGML models", "a.bin"]);
}

#[test]
fn what_is_no_model_is_refused_by_name() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("x.bin");
    for (magic, word) in [(b"algg", "LoRA"), (b"nsgg", "session"), (b"ggml", "big-endian")] {
        fs::write(&path, [magic, &[1, 0, 0, 0][..], &[0; 99]].concat()).unwrap();
        alight(&["inspect", path.to_str().unwrap()]).fails(1, &[word, "x.bin"]);
    }
}
