//! Class 9 of the malformed inputs: headers that parse and mean nothing. Every one is a typed error
//! that names the key or tensor, what was found and what was expected.

mod common;

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_model::{Model, OpenOptions};
use common::Spec;

/// Opening must fail with a message that has all of these parts, and the file's name.
fn refused(bytes: &[u8], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.gguf");
    std::fs::write(&path, bytes).unwrap();
    let options = OpenOptions { threads: Some(1), ..OpenOptions::default() };
    let Err(error) = Model::open(&path, &options) else { panic!("opened, expected {parts:?}") };
    let text = error.to_string();
    for part in parts.iter().chain(&["hostile.gguf"]) {
        assert!(text.contains(part), "`{text}` lacks `{part}`");
    }
}

/// The small model with some metadata left out and other metadata added.
fn with(spec: &Spec, skip: &str, add: impl Fn(&mut Builder) -> &mut Builder) -> Vec<u8> {
    let mut b = spec.metadata(skip);
    add(&mut b);
    for (name, shape) in spec.tensors() {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(&name, GgmlType::F32, &shape).unwrap();
    }
    b.file(|_, _| {})
}

#[test]
fn hyper_parameters() {
    let spec = Spec::llama();
    let dims = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
    ];
    for key in dims {
        let name = format!("llama.{key}");
        refused(&with(&spec, key, |b| b), &[&name, "missing"]);
        refused(&with(&spec, key, |b| b.u32(&name, 0)), &[&name, "is 0", "expected 1 to"]);
        refused(&with(&spec, key, |b| b.u32(&name, 1 << 31)), &[&name, "2147483648"]);
        refused(&with(&spec, key, |b| b.i32(&name, -1)), &[&name, "-1", "expected 1 to"]);
        refused(&with(&spec, key, |b| b.f32(&name, 2.0)), &[&name, "f32"]);
        refused(&with(&spec, key, |b| b.u64(&name, u64::MAX)), &[&name]);
        refused(&with(&spec, key, |b| b.u32s(&name, &[])), &[&name, "expected 1 to"]);
        refused(&with(&spec, key, |b| b.u32s(&name, &[2, 3])), &[&name, "layers"]);
    }
    let heads = "attention.head_count";
    refused(
        &with(&spec, heads, |b| b.u32("llama.attention.head_count", 5)),
        &["llama.attention.head_count", "expected a divisor of the 5"],
    );
    refused(
        &with(&Spec { kv_heads: 1, ..spec.clone() }, heads, |b| {
            b.u32("llama.attention.head_count", 5)
        }),
        &["llama.attention.head_count", "is 5", "divisor of the embedding length 64"],
    );
    let kv = "attention.head_count_kv";
    refused(
        &with(&spec, kv, |b| b.u32("llama.attention.head_count_kv", 3)),
        &["llama.attention.head_count_kv", "is 3", "divisor of the 4"],
    );
    refused(
        &with(&spec, kv, |b| b.u32("llama.attention.head_count_kv", 0)),
        &["llama.attention.head_count_kv", "is 0"],
    );
    let eps = "attention.layer_norm_rms_epsilon";
    let name = "llama.attention.layer_norm_rms_epsilon";
    refused(&with(&spec, eps, |b| b), &[name, "missing"]);
    for bad in [f32::NAN, f32::INFINITY, -1e-5, 1.0] {
        refused(&with(&spec, eps, |b| b.f32(name, bad)), &[name, "expected from 0 to"]);
    }
    for (dims, found) in [(18, "18"), (7, "7"), (0, "0")] {
        refused(
            &with(&spec, "", |b| b.u32("llama.rope.dimension_count", dims)),
            &["llama.rope.dimension_count", found, "expected"],
        );
    }
}

#[test]
fn rope_and_features() {
    let spec = Spec::llama();
    for bad in [f32::NAN, 0.0, -4.0, f32::INFINITY] {
        refused(
            &with(&spec, "", |b| b.f32("llama.rope.scaling.factor", bad)),
            &["llama.rope.scaling.factor", "positive"],
        );
        let base = Spec { rope_base: bad, ..spec.clone() };
        refused(&with(&base, "", |b| b), &["llama.rope.freq_base", "expected from 1"]);
    }
    refused(
        &with(&spec, "", |b| b.str("llama.rope.scaling.type", "spiral\u{1b}[31m")),
        &["llama.rope.scaling.type", "spiral\\u{1b}", "not supported"],
    );
    refused(
        &with(&spec, "", |b| b.u32("llama.expert_count", 8)),
        &["llama.expert_count", "mixture of experts"],
    );
    refused(
        &with(&spec, "general.architecture", |b| b.str("general.architecture", "mamba")),
        &["\"mamba\"", "llama, gemma3"],
    );
    refused(&with(&spec, "general.architecture", |b| b), &["general.architecture", "missing"]);
    let gemma = Spec::gemma3();
    refused(
        &with(&gemma, "", |b| b.f32("gemma3.final_logit_softcapping", -1.0)),
        &["gemma3.final_logit_softcapping", "-1"],
    );
    refused(
        &with(&gemma, "", |b| b.bools("gemma3.attention.sliding_window_pattern", &[true, false])),
        &["gemma3.attention.sliding_window_pattern", "2 flags", "7, one per layer"],
    );
}

/// The small model's file with one tensor left out, or of another shape or type.
fn tensors(spec: &Spec, change: impl Fn(&str, &mut Vec<u64>, &mut GgmlType) -> bool) -> Vec<u8> {
    let mut b = spec.metadata("");
    for (name, shape) in spec.tensors() {
        let mut shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        let mut ty = GgmlType::F32;
        if change(&name, &mut shape, &mut ty) {
            b.tensor(&name, ty, &shape).unwrap();
        }
    }
    b.file(|_, _| {})
}

#[test]
fn every_tensor_missing_misshapen_or_of_an_unusable_type() {
    let llama = Spec { biases: true, tied: false, factors: true, ..Spec::llama() };
    for spec in [llama, Spec::gemma3()] {
        for (name, shape) in spec.tensors() {
            let optional = name.ends_with(".bias")
                || ["output.weight", "rope_freqs.weight"].contains(&name.as_str());
            if !optional {
                refused(&tensors(&spec, |n, _, _| n != name), &[&name, "missing"]);
            }
            let last = shape.len() - 1;
            let longer = tensors(&spec, |n, shape, _| {
                if n == name {
                    shape[last] += 32;
                }
                true
            });
            let needle = format!("{}", shape[last]);
            refused(&longer, &[&name, &needle, "expected"]);
            let deeper = tensors(&spec, |n, shape, _| {
                if n == name {
                    shape.resize(3, 1);
                    shape[2] = 2;
                }
                true
            });
            refused(&deeper, &[&name, "shape", "expected"]);
            let typed = tensors(&spec, |n, _, ty| {
                if n == name {
                    *ty = if shape.len() == 1 { GgmlType::I8 } else { GgmlType::I16 };
                }
                true
            });
            refused(&typed, &[&name, "type I", "F16"]);
        }
    }
}

#[test]
fn vocabulary_and_embedding_disagree() {
    let spec = Spec::llama();
    let other = Spec { vocab: 299, ..spec.clone() };
    let mut b = other.metadata("");
    for (name, shape) in spec.tensors() {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(&name, GgmlType::F32, &shape).unwrap();
    }
    refused(&b.file(|_, _| {}), &["token_embd.weight", "300", "299", "tokenizer.ggml.tokens"]);
    refused(&with(&spec, "tokenizer", |b| b), &["tokenizer.ggml.tokens"]);
}

#[test]
fn norms_that_are_no_numbers() {
    let spec = Spec { factors: true, ..Spec::llama() };
    for (wanted, value) in [
        ("output_norm.weight", f32::NAN),
        ("blk.1.attn_norm.weight", f32::INFINITY),
        ("rope_freqs.weight", 0.0),
    ] {
        let b = {
            let mut b = spec.metadata("");
            for (name, shape) in spec.tensors() {
                let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
                b.tensor(&name, GgmlType::F32, &shape).unwrap();
            }
            b
        };
        let names: Vec<String> = spec.tensors().into_iter().map(|(name, _)| name).collect();
        let bytes = b.file(|i, out| {
            for (j, chunk) in out.chunks_exact_mut(4).enumerate() {
                let bad = names[i] == wanted && j == 3;
                chunk.copy_from_slice(&(if bad { value } else { 1.0 }).to_le_bytes());
            }
        });
        refused(&bytes, &[wanted, "index 3", "expected"]);
    }
}

#[test]
fn weights_of_nonsense_do_not_crash() {
    // Class 10: scales that are NaN, infinite or subnormal, blocks of all ones. The logits may be
    // nonsense; nothing may panic, and nothing may be touched outside of the buffers.
    for (arch, ty) in [
        (Spec::llama(), GgmlType::Q8_0),
        (Spec::gemma3(), GgmlType::Q4_0),
        (Spec::llama(), GgmlType::F32),
    ] {
        let spec = Spec { ty, ..arch };
        let (bytes, _) = spec.build();
        for pattern in [0xffu8, 0x7c, 0x01] {
            let mut bytes = bytes.clone();
            let from = bytes.len() / 2;
            let mut random = common::Random(9);
            for _ in 0..400 {
                let at = from + random.below(bytes.len() - from);
                bytes[at] = pattern;
            }
            let folder = tempfile::tempdir().unwrap();
            let path: &Path = &folder.path().join("nonsense.gguf");
            std::fs::write(path, &bytes).unwrap();
            let options = OpenOptions { threads: Some(2), ..OpenOptions::default() };
            // A norm may have been hit: then opening says so.
            let Ok(model) = Model::open(path, &options) else { continue };
            let mut session = alight_model::Session::new(&model, &Default::default()).unwrap();
            session.feed(&common::tokens(30, spec.vocab, 1)).unwrap();
            session.feed(&[5]).unwrap();
        }
    }
}
