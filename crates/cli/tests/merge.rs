//! `alight merge`, and what `alight inspect` shows of adapters. The weights themselves: `crates/convert/tests/adapters.rs`.

use std::fs;
use std::path::Path;

use alight_formats::GgmlType::F32;
use alight_formats::gguf::write::Builder;
use alight_testing::adapters::{AdapterSpec, adapter, matrices};

use crate::support::{alight, wild};

/// A model, and an adapter of some of its matrices.
fn made(dir: &Path, spec: &AdapterSpec) -> (String, String) {
    let model = wild::model(dir);
    let bytes = fs::read(&model).unwrap();
    let names: Vec<String> = matrices(&bytes)
        .into_iter()
        .filter(|name| name.contains("ffn_") || name.contains("attn_q."))
        .collect();
    let path = dir.join("lora.gguf");
    fs::write(&path, adapter(&bytes, spec, &names)).unwrap();
    (model, path.to_str().unwrap().to_owned())
}

#[test]
fn a_merged_model_answers_as_the_model_with_its_adapter() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (model, lora) =
        made(dir.path(), &AdapterSpec { rank: 4, size: 0.5, ..AdapterSpec::default() });
    let out = dir.path().join("merged.gguf").to_str().unwrap().to_owned();
    let done = alight(&["merge", &model, &lora, "-o", &out]).succeeds();
    assert_eq!(done.stdout, "");
    alight(&["merge", &model, &lora, "-o", &out]).fails(1, &["exists already", "--force"]);
    alight(&["merge", &model, "-o", "x"]).fails_as_usage("ADAPTER");
    alight(&["merge", &model, &format!("{lora}:nan"), "-o", "x"]).fails_as_usage("finite");
    alight(&["merge", &model, &model, "-o", "x"]).fails(1, &["not an adapter"]);
    alight(&["merge", &model, "no-such.gguf", "-o", "x"]).fails(1, &["no-such.gguf"]);
    let ask = |model: &str, more: &[&str]| {
        let prompt = [
            "run",
            model,
            "aaaa aaa",
            "--raw",
            "--temp",
            "0",
            "-n",
            "8",
            "--ignore-eos",
            "--prompt-precision",
            "16",
        ];
        alight(&[&prompt[..], more].concat()).succeeds().stdout
    };
    assert_eq!(ask(&out, &[]), ask(&model, &["--lora", &lora]));
    assert_ne!(ask(&out, &[]), ask(&model, &[]));
    // At the scale 0 nothing is another.
    let same = dir.path().join("same.gguf").to_str().unwrap().to_owned();
    alight(&["merge", &model, &format!("{lora}:0"), "-o", &same]).succeeds();
    assert_eq!(ask(&same, &[]), ask(&model, &[]));
}

#[test]
fn an_adapter_is_shown_and_compared_with_a_model() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (model, lora) = made(
        dir.path(),
        &AdapterSpec { rank: 3, alpha: 6.0, dora: true, ..AdapterSpec::default() },
    );
    let shown = alight(&["inspect", &lora, "--base", &model]).succeeds().stdout;
    for part in [
        "LoRA, for llama",
        "3 (",
        "scale 2 (alpha 6)",
        "matrices by low rank",
        "with magnitudes (DoRA)",
        "it fits",
    ] {
        assert!(shown.contains(part), "{shown}\n  without {part}");
    }
    let json = alight(&["inspect", &lora, "--base", &model, "--json"]).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["adapter"]["architecture"], "llama");
    assert_eq!(json["adapter"]["misfits"], serde_json::json!([]));
    alight(&["inspect", &model, "--base", &model]).fails(1, &["is no adapter"]);
    let mut builder = Builder::new();
    builder
        .str("general.architecture", "qwen2")
        .str("general.type", "adapter")
        .str("adapter.type", "lora");
    builder.tensor("blk.900.attn_q.weight.lora_a", F32, &[8, 2]).unwrap();
    builder.tensor("blk.900.attn_q.weight.lora_b", F32, &[2, 8]).unwrap();
    let other = dir.path().join("other.gguf");
    fs::write(&other, builder.file(|_, bytes| bytes.fill(0))).unwrap();
    let other = other.to_str().unwrap();
    let shown = alight(&["inspect", other, "--base", &model]);
    assert_eq!(shown.status, Some(1), "{}", shown.stderr);
    assert!(shown.stdout.contains("it does not fit") && shown.stdout.contains("qwen2"));
    alight(&["merge", &model, other, "-o", "x"]).fails(1, &["does not fit the model", "qwen2"]);
}
