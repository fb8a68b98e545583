//! `alight inspect` of safetensors: a file under any name, a folder, an index; and what other commands
//! say of them.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{alight, inspect_json, write};

/// A file of F16 matrices of 2 rows and 3 columns with these names, and metadata.
fn file(names: &[&str]) -> Vec<u8> {
    let entry = |(i, name): (usize, &&str)| {
        let (begin, end) = (12 * i, 12 * (i + 1));
        format!(r#""{name}":{{"dtype":"F16","shape":[2,3],"data_offsets":[{begin},{end}]}}"#)
    };
    let mut entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    entries
        .insert(0, r#""__metadata__":{"format":"pt","note":"a \u001b[31mred\nline"}"#.to_owned());
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + 12 * names.len(), 0);
    bytes
}

#[test]
fn a_file_is_known_by_its_content_and_shown_in_full() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = file(&["a.weight", r"b\u0007\nc"]);
    // The name says something else.
    let path = write(dir.path(), "weights.gguf", &bytes);
    let start = bytes.len() as u64 - 24;
    let got = inspect_json(&path);
    let expected = json!({
        "format": "safetensors", "shape_order": "outermost first", "parameters": 12,
        "tensor_bytes": 24, "bits_per_weight": 16.0,
        "types": [{"type": "F16", "tensors": 2, "parameters": 12, "bytes": 24, "bits_per_weight": 16.0}],
        "notes": [],
        "files": [{"path": path, "about": "", "bytes": bytes.len(), "header_bytes": start,
                   "data_start": start, "data_end": bytes.len(), "tensors": 2,
                   "cached_bytes": bytes.len(), "cached_source": got["files"][0]["cached_source"]}],
        "metadata": [{"key": "format", "value": "pt"}, {"key": "note", "value": "a \u{1b}[31mred\nline"}],
        "tensors": [
            {"name": "a.weight", "type": "F16", "shape": [2, 3], "elements": 6, "bytes": 12, "file": 0,
             "offset": start, "alignment": start & start.wrapping_neg(), "cached_bytes": 12},
            {"name": "b\u{7}\nc", "type": "F16", "shape": [2, 3], "elements": 6, "bytes": 12, "file": 0,
             "offset": start + 12, "alignment": (start + 12) & (start + 12).wrapping_neg(),
             "cached_bytes": 12},
        ],
    });
    assert_eq!(got, expected);

    let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    assert!(
        text.starts_with("format        safetensors\nparameters    12 in 2 tensors, 16.00 bits"),
        "{text}"
    );
    assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
    assert!(text.contains(r#"  note    "a \u{1b}[31mred\nline""#), "{text}");
    let line = text.lines().find(|l| l.contains("a.weight")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..7], ["a.weight", "F16", "2", "×", "3", "12", "B"]);
    assert!(text.contains(r"  b\u{7}\nc"), "{text}");

    let cut = write(dir.path(), "cut.safetensors", &bytes[..bytes.len() - 1]);
    alight(&["inspect", &cut]).fails(1, &["cut.safetensors", "tensor", "cut short"]);
    for args in [vec!["run", &path, "hello"], vec!["pack", &path, "-o", "out"]] {
        let parts = ["weights.gguf", "is a safetensors file", "alight convert", "no config.json"];
        let done = alight(&args);
        done.fails(1, &parts);
        assert!(
            !done.stderr.contains("magic") && !done.stderr.contains("begins with"),
            "{}",
            done.stderr
        );
    }
}

/// A model in two files with an index.
fn sharded(folder: &Path) -> String {
    write(folder, "m-00001-of-00002.safetensors", file(&["a", "b"]));
    write(folder, "m-00002-of-00002.safetensors", file(&["c"]));
    let index = r#"{"metadata": {"total_size": 36}, "weight_map": {
        "a": "m-00001-of-00002.safetensors", "b": "m-00001-of-00002.safetensors",
        "c": "m-00002-of-00002.safetensors"}}"#;
    write(folder, "model.safetensors.index.json", index)
}

#[test]
fn shards_are_one_model_by_index_folder_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let index = sharded(dir.path());
    write(dir.path(), "config.json", r#"{"architectures": []}"#);
    write(dir.path(), "optimizer.pt", "PK\x03\x04");
    let folder = dir.path().to_str().unwrap();
    let got = inspect_json(&index);
    assert_eq!(got, inspect_json(folder));
    let placed: Vec<_> = got["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["name"].as_str().unwrap(), t["file"].as_u64().unwrap()))
        .collect();
    assert_eq!(placed, [("a", 0), ("b", 0), ("c", 1)]);
    assert_eq!(got["files"].as_array().unwrap().len(), 2);
    // Both files say the same, which is said once.
    assert_eq!(got["metadata"].as_array().unwrap().len(), 2);
    assert_eq!(got["notes"], json!([]));
    let text = alight(&["inspect", folder, "--tensors"]).succeeds().stdout;
    assert!(text.starts_with("format        safetensors, 2 files by their index\n"), "{text}");
    assert!(text.lines().any(|l| l.contains("  c ") && l.ends_with("     2")), "{text}");

    // One of them alone.
    let alone = dir.path().join("m-00002-of-00002.safetensors");
    let alone = inspect_json(alone.to_str().unwrap());
    assert_eq!(alone["tensors"].as_array().unwrap().len(), 1);
    assert!(alone["notes"][0].as_str().unwrap().contains("one of the 2 files"), "{alone}");

    // Without an index, by their names.
    fs::remove_file(&index).unwrap();
    let text = alight(&["inspect", folder, "--tensors"]).succeeds().stdout;
    assert!(text.starts_with("format        safetensors, 2 files, without an index\n"), "{text}");
    write(dir.path(), "adapter.safetensors", file(&["z"]));
    alight(&["inspect", folder]).fails(1, &["no index", "adapter.safetensors", "one model"]);
    alight(&["run", folder, "hello"]).fails(1, &["is a folder", "safetensors", "alight convert"]);
}

#[test]
fn an_index_that_lies_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let index = sharded(dir.path());
    let text = fs::read_to_string(&index).unwrap();
    let fails = |from: &str, to: &str, parts: &[&str]| {
        assert!(text.contains(from));
        fs::write(&index, text.replacen(from, to, 1)).unwrap();
        alight(&["inspect", &index]).fails(1, parts);
    };
    fails(r#""c": "m-"#, r#""c": "../m-"#, &["index.json", "\"c\"", "plain name"]);
    fails(
        r#""c": "m-00002"#,
        r#""c": "m-00003"#,
        &["m-00003-of-00002.safetensors", "does not exist", "one of 2 files"],
    );
    fails(r#""c": "m-00002"#, r#""c": "m-00001"#, &["index.json", "\"c\" is not in \"m-00001"]);
    fails(r#""b""#, r#""d""#, &["index.json", "\"d\" is not in"]);
    fails(r#""weight_map": {"#, r#""weight_map": ["#, &["index.json", "weight_map"]);
    fails(r#""b": "m-00001-of-00002.safetensors","#, "", &["\"b\"", "does not name it"]);
    // A total that is wrong is told, and no error: writers disagree on it.
    fs::write(&index, text.replace("36", "35")).unwrap();
    let shown = alight(&["inspect", &index, "--tensors"]).succeeds().stdout;
    assert!(
        shown.contains(
            "note          the index says that all tensors together have 35 bytes; they have 36"
        ),
        "{shown}"
    );
    // A shard that is a folder, or a pipe, or the index itself under another name.
    fs::write(&index, &text).unwrap();
    let second = dir.path().join("m-00002-of-00002.safetensors");
    fs::remove_file(&second).unwrap();
    fs::create_dir(&second).unwrap();
    alight(&["inspect", &index]).fails(1, &["m-00002", "is a folder"]);
    fs::remove_dir(&second).unwrap();
    fs::write(&second, &text).unwrap();
    alight(&["inspect", &index]).fails(1, &["m-00002", "header"]);
}

#[test]
fn folders_are_searched_by_content() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    alight(&["inspect", folder]).fails(1, &["without a model"]);
    write(dir.path(), "model.gguf", "not one");
    alight(&["inspect", folder]).fails(1, &["without a model"]);
    write(dir.path(), "anything", file(&["a"]));
    assert_eq!(inspect_json(folder)["tensors"][0]["name"], "a");
    fs::remove_file(dir.path().join("anything")).unwrap();

    use alight_formats::GgmlType;
    use alight_formats::gguf::write::Builder;
    let mut gguf = Builder::new();
    gguf.tensor("g", GgmlType::F32, &[1]).unwrap();
    write(dir.path(), "x", gguf.file(|_, _| ()));
    let got = inspect_json(folder);
    assert_eq!((&got["format"], &got["tensors"][0]["name"]), (&json!("gguf"), &json!("g")));
    write(dir.path(), "y", gguf.file(|_, _| ()));
    alight(&["inspect", folder]).fails(1, &["several models", "such as"]);
    // Of two formats one is shown, which is said.
    write(dir.path(), "z", file(&["a"]));
    let shown = alight(&["inspect", folder, "--json"]).succeeds();
    assert!(
        shown.stdout.contains("\"safetensors\"") && shown.stderr.contains("GGUF files"),
        "{}",
        shown.stderr
    );
}
