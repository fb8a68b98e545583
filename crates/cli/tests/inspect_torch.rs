//! `alight inspect` of torch's files: one, a folder of several with what lies beside models, and those
//! that are refused.

use serde_json::json;

use crate::support::torch_files::{PLAIN, Pickle, dict_of, file, model};
use crate::support::{alight, inspect_json, write};

#[test]
fn a_file_under_any_name_is_listed_whole() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = model();
    let path = write(dir.path(), "weights.dat", &bytes);
    let got = inspect_json(&path);
    assert_eq!((&got["format"], &got["shape_order"]), (&json!("torch"), &json!("outermost first")));
    let tensors = got["tensors"].as_array().unwrap();
    let names: Vec<&str> = tensors.iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "model.embed.weight",
            "model.tied.weight",
            "model.param",
            "many.0",
            "model.last",
            "model.scalar"
        ]
    );
    assert_eq!(tensors[0]["shape"], json!([2, 3]));
    assert_eq!((&tensors[5]["type"], &tensors[5]["shape"]), (&json!("int64"), &json!([])));
    let offset = tensors[0]["offset"].as_u64().unwrap() as usize;
    assert_eq!(bytes[offset..offset + 24], (0..24).collect::<Vec<u8>>());
    assert_eq!(got["files"][0]["header_bytes"], bytes.len() - 24 - 8);
    let note = got["notes"][0].as_str().unwrap();
    assert!(note.contains("share 76 bytes"), "{note}");
    let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    for word in ["PyTorch (zip)", "container version 3", "model.embed.weight", "2 × 3", "epoch"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

#[test]
fn in_a_folder_only_what_holds_no_tensors_is_left_out() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let plain = file(&dict_of(&PLAIN));
    write(dir.path(), "a.pth", &plain);
    write(dir.path(), "b.pth", &plain);
    let arguments = Pickle::new().global("transformers.training_args", "TrainingArguments").done();
    let beside = write(dir.path(), "training_args.bin", file(&arguments));
    let folder = dir.path().to_str().unwrap();
    let got = inspect_json(folder);
    assert_eq!(got["files"].as_array().unwrap().len(), 2);
    let notes = got["notes"].to_string();
    for word in ["training_args.bin is left out", "TrainingArguments", "1 names occur in more"] {
        assert!(notes.contains(word), "no {word:?} in {notes}");
    }
    // Asked for by name, it is refused; and damage is never left out.
    alight(&["inspect", &beside]).fails(1, &["training_args.bin", "nothing was executed"]);
    write(dir.path(), "b.pth", &plain[..plain.len() - 1]);
    alight(&["inspect", folder]).fails(1, &["b.pth", "cut short"]);
}

#[test]
fn the_format_before_is_refused_with_advice() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    let path = write(dir.path(), "old.pth", old);
    alight(&["inspect", &path])
        .fails(1, &["old.pth", "before 1.6", "current torch", "safetensors"]);
}
