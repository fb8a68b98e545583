//! `alight inspect` on files made here: complete, escaped, and not dependent on what alight can
//! compute.

mod support;

use std::fs;
use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use serde_json::{Value, json};
use support::{alight, smollm2};

fn write(path: &Path, builder: &Builder) -> String {
    fs::write(path, builder.file(|_, _| ())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn strange() -> Builder {
    let mut b = Builder::with_alignment(4096);
    b.str("general.architecture", "transmogrifier")
        .str("general.name", "a \u{1b}[31mred\u{1b}[0m name\n")
        .str("general.bytes", b"ok \xff bad")
        .u64("x.big", u64::MAX)
        .i8("x.small", -7)
        .f32("x.eps", 1e-5)
        .f32("x.nan", f32::NAN)
        .bool("x.flag", true)
        .strs("x.words", &["a", "b\tc"])
        .i32s("x.ints", &(0..1000).collect::<Vec<_>>())
        .bools("x.flags", &[true, false]);
    b.tensor("first\u{7}.weight", GgmlType::IQ2_XXS, &[256, 3]).unwrap();
    b.tensor("second", GgmlType::F32, &[5]).unwrap();
    b
}

#[test]
fn everything_is_in_the_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir.path().join("m.gguf"), &strange());
    let out = alight(&["inspect", &path, "--json"]).succeeds();
    assert_eq!(out.stderr, "");
    assert_eq!(out.stdout.lines().count(), 1);
    let got: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(got["architecture"], "transmogrifier");
    assert_eq!(got["parameters"], 256 * 3 + 5);
    assert_eq!(got["tensor_bytes"], 3 * 66 + 20);
    let bits = got["bits_per_weight"].as_f64().unwrap();
    assert!((bits - 8.0 * 218.0 / 773.0).abs() < 1e-12);
    assert_eq!(got["files"][0]["alignment"], 4096);
    assert_eq!(got["files"][0]["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(got["files"][0]["tensors"], 2);
    let value = |key: &str| {
        let all = got["metadata"].as_array().unwrap();
        all.iter().find(|m| m["key"] == key).unwrap().clone()
    };
    assert_eq!(value("x.big")["value"], u64::MAX);
    assert_eq!(value("x.small"), json!({"key": "x.small", "type": "i8", "value": -7}));
    // As text: through an f64 it would have seventeen digits.
    assert!(
        out.stdout.contains(r#""type":"f32","value":0.00001}"#)
            || out.stdout.contains(r#""value":1e-5}"#)
    );
    assert_eq!(value("x.nan")["value"], Value::Null);
    assert_eq!(value("x.flag")["value"], true);
    assert_eq!(value("general.bytes")["value"], "ok \u{fffd} bad");
    assert_eq!(value("general.name")["value"], "a \u{1b}[31mred\u{1b}[0m name\n");
    assert_eq!(
        value("x.words"),
        json!({"key": "x.words", "type": "array", "elem_type": "str", "len": 2,
               "value": ["a", "b\tc"]})
    );
    assert_eq!(value("x.ints")["value"].as_array().unwrap().len(), 1000);
    assert_eq!(value("x.flags")["value"], json!([true, false]));
    let start = got["files"][0]["data_start"].as_u64().unwrap();
    assert_eq!(start % 4096, 0);
    assert_eq!(
        got["tensors"],
        json!([
            {"name": "first\u{7}.weight", "type": "IQ2_XXS", "shape": [256, 3], "elements": 768,
             "bytes": 198, "file": 0, "offset": start, "alignment": lowest_bit(start)},
            {"name": "second", "type": "F32", "shape": [5], "elements": 5, "bytes": 20, "file": 0,
             "offset": start + 4096, "alignment": lowest_bit(start + 4096)},
        ])
    );
    assert_eq!(got["types"][0]["type"], "IQ2_XXS");
    assert_eq!(got["types"][0]["tensors"], 1);
}

fn lowest_bit(n: u64) -> u64 {
    n & n.wrapping_neg()
}

#[test]
fn the_text_is_escaped_and_summarises_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir.path().join("m.gguf"), &strange());
    let text = alight(&["inspect", &path]).succeeds().stdout;
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text}");
    assert!(text.contains("architecture  transmogrifier\n"));
    assert!(text.contains("i32[1000]     0, 1, 2, 3, "), "{text}");
    assert!(!text.contains("999"), "{text}");
    assert!(text.contains(r"a \u{1b}[31mred"), "{text}");
    let line = text.lines().find(|l| l.contains("second")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..5], ["second", "F32", "5", "20", "B"]);
    assert!(text.lines().all(|l| l.chars().count() < 200), "{text}");
}

fn shard(no: u16, count: u16, total: i32, names: &[&str]) -> Builder {
    let mut b = Builder::new();
    if no == 0 {
        b.str("general.architecture", "llama");
    }
    b.u16("split.no", no).u16("split.count", count).i32("split.tensors.count", total);
    for name in names {
        b.tensor(name, GgmlType::Q8_0, &[64, 2]).unwrap();
    }
    b
}

#[test]
fn shards_are_shown_as_one_model_from_any_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |no: u32| dir.path().join(format!("big-{no:05}-of-00002.gguf"));
    let first = write(&at(1), &shard(0, 2, 3, &["a", "b"]));
    let second = write(&at(2), &shard(1, 2, 3, &["c"]));
    let json = |path: &str| -> Value {
        serde_json::from_str(&alight(&["inspect", path, "--json"]).succeeds().stdout).unwrap()
    };
    let got = json(&first);
    assert_eq!(got, json(&second));
    assert_eq!(got["files"].as_array().unwrap().len(), 2);
    let placed: Vec<_> = got["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["name"].as_str().unwrap(), t["file"].as_u64().unwrap()))
        .collect();
    assert_eq!(placed, [("a", 0), ("b", 0), ("c", 1)]);
    assert_eq!(got["architecture"], "llama");
    assert!(alight(&["inspect", &first]).succeeds().stdout.contains("  file\n"));

    fs::remove_file(&second).unwrap();
    alight(&["inspect", &first]).fails(1, &["00002-of-00002", "does not exist", "one of 2 shards"]);
    write(&at(2), &shard(1, 2, 3, &["b"]));
    alight(&["inspect", &first]).fails(1, &["in two shards"]);
}

#[test]
fn a_real_model_is_shown_in_full() {
    let Some(path) = smollm2() else { return };
    let text = alight(&["inspect", &path]).succeeds().stdout;
    assert!(text.contains("parameters    135 M in 272 tensors, 5.74 bits per weight\n"), "{text}");
    assert!(text.contains("str[49152]"));
    let got: Value =
        serde_json::from_str(&alight(&["inspect", &path, "--json"]).succeeds().stdout).unwrap();
    assert_eq!(got["parameters"], 134_515_008);
    assert_eq!(got["tensors"].as_array().unwrap().len(), 272);
    let last = got["tensors"].as_array().unwrap().last().unwrap().clone();
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!(got["files"][0]["data_end"], end);
}
