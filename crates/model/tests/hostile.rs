//! Class 9 of the malformed inputs: headers that parse and mean nothing. Every one is a typed error
//! that names the key or tensor, what was found and what was expected.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_model::{Model, ModelError, OpenOptions};

use alight_testing::models::{self, Spec};

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
    for bad in [f32::NAN, -4.0, f32::INFINITY] {
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
        &["llama.expert_used_count", "missing"],
    );
    refused(
        &with(&spec, "general.architecture", |b| b.str("general.architecture", "grok")),
        &["\"grok\"", "llama, qwen2, qwen3, gemma2, gemma3"],
    );
    refused(&with(&spec, "general.architecture", |b| b), &["general.architecture", "missing"]);
}

#[test]
fn what_the_gemmas_add() {
    for spec in [Spec::gemma2(), Spec::gemma3()] {
        // Without what the file would say itself.
        let bare = Spec { window: Some((12, 6)), attn_cap: 0.0, logit_cap: 0.0, ..spec.clone() };
        let bare = if spec.arch == "gemma2" { Spec { window: None, ..bare } } else { bare };
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            let name = format!("{}.{key}", spec.arch);
            for bad in [-1.0, f32::NAN, f32::INFINITY, 1e9] {
                refused(&with(&bare, "", |b| b.f32(&name, bad)), &[&name, "not negative"]);
            }
            refused(&with(&bare, "", |b| b.u32(&name, 50)), &[&name, "u32"]);
        }
        let pattern = format!("{}.attention.sliding_window_pattern", spec.arch);
        let wanted = format!("{}, one per layer", spec.layers);
        let windowed =
            Spec { window: Some((12, if spec.arch == "gemma2" { 2 } else { 6 })), ..bare };
        refused(
            &with(&windowed, "", |b| b.bools(&pattern, &[true, false])),
            &[&pattern, "2 flags", &wanted],
        );
        refused(&with(&windowed, "", |b| b.strs(&pattern, &["local"])), &[&pattern, "0 flags"]);
        refused(&with(&windowed, "", |b| b.i32(&pattern, -2)), &[&pattern, "-2"]);
        refused(&with(&windowed, "", |b| b.str(&pattern, "2")), &[&pattern, "str"]);
        let base = format!("{}.rope.freq_base_swa", spec.arch);
        for bad in [0.0, f32::NAN, 1e30] {
            refused(&with(&windowed, "", |b| b.f32(&base, bad)), &[&base, "expected from 1"]);
        }
        let window = format!("{}.attention.sliding_window", spec.arch);
        let free = Spec { window: None, ..windowed };
        refused(&with(&free, "", |b| b.i32(&window, -1)), &[&window, "-1"]);
        refused(&with(&free, "", |b| b.f32(&window, 4.0)), &[&window, "f32"]);
    }
}

#[test]
fn every_architecture_has_keys_of_its_own() {
    for spec in Spec::every() {
        let key = |name: &str| format!("{}.{name}", spec.arch);
        for name in ["block_count", "attention.head_count", "attention.layer_norm_rms_epsilon"] {
            refused(&with(&spec, name, |b| b), &[&key(name), "missing"]);
        }
        // A head that is not a share of the width has to be said.
        let long = Spec { key_dim: 24, ..spec.clone() };
        refused(
            &with(&long, "attention.key_length", |b| b),
            &["blk.0.attn_q.weight", "[64, 96]", "expected [64, 64]"],
        );
        let odd = Spec { key_dim: 15, ..spec.clone() };
        refused(&with(&odd, "", |b| b), &[&key("attention.key_length"), "15", "even"]);
        if spec.arch != "llama" && spec.moe.is_none() {
            refused(
                &with(&spec, "", |b| b.u32(&key("expert_count"), 8)),
                &[&key("expert_count"), "mixture of experts"],
            );
        }
    }
    refused(
        &with(&Spec::llama(), "general.architecture", |b| b.str("general.architecture", "qwen2")),
        &["qwen2.feed_forward_length", "missing"],
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

/// The name of a tensor without the number of its layer.
fn in_its_layer(name: &str) -> &str {
    name.strip_prefix("blk.").and_then(|name| name.split_once('.')).map_or(name, |(_, name)| name)
}

#[test]
fn every_tensor_missing_misshapen_or_of_an_unusable_type() {
    let llama = Spec { biases: true, tied: false, factors: true, ..Spec::llama() };
    let [qwen2, qwen3, qwen2moe] = [Spec::qwen2(), Spec::qwen3(), Spec::qwen2moe()];
    for spec in [
        llama,
        qwen2,
        qwen3,
        Spec::gemma2(),
        Spec::gemma3(),
        qwen2moe,
        Spec::gpt_oss(),
        Spec::lfm2(),
        Spec::nemotron_h_moe(),
        Spec::gemma3n(),
    ] {
        let all = spec.tensors();
        for (i, (name, shape)) in all.iter().enumerate() {
            // The first and the last of those that have one name in several layers, or all.
            let same =
                |(other, _): &(String, Vec<usize>)| in_its_layer(other) == in_its_layer(name);
            if all[..i].iter().any(same) && all[i + 1..].iter().any(same) && !models::everything() {
                continue;
            }
            let optional = name.ends_with(".bias")
                || ["output.weight", "rope_freqs.weight"].contains(&name.as_str());
            if !optional {
                refused(&tensors(&spec, |n, _, _| n != name), &[name, "missing"]);
            }
            let last = shape.len() - 1;
            let longer = tensors(&spec, |n, shape, _| {
                if n == name {
                    shape[last] += 32;
                }
                true
            });
            let needle = format!("{}", shape[last]);
            refused(&longer, &[name, &needle, "expected"]);
            let deeper = tensors(&spec, |n, shape, _| {
                if n == name {
                    shape.resize(3, 1);
                    shape[2] = 2;
                }
                true
            });
            refused(&deeper, &[name, "shape", "expected"]);
            let typed = tensors(&spec, |n, _, ty| {
                if n == name {
                    *ty = if shape.len() == 1 { GgmlType::I8 } else { GgmlType::I16 };
                }
                true
            });
            refused(&typed, &[name, "type I", "F16"]);
        }
    }
}

#[test]
fn short_convolutions() {
    let spec = Spec::lfm2();
    let taps = "lfm2.shortconv.l_cache";
    for (bad, expected) in [(0, "is 0, expected 1 to 8"), (9, "is 9"), (1 << 31, "2147483648")] {
        refused(&with(&spec, "shortconv.l_cache", |b| b.u32(taps, bad)), &[taps, expected]);
    }
    refused(&with(&spec, "shortconv.l_cache", |b| b), &[taps, "missing"]);
    refused(
        &with(&spec, "shortconv.l_cache", |b| b.u32(taps, 3)),
        &["blk.0.shortconv.conv.weight", "[4, 64]", "expected [3, 64]"],
    );
    let kv = "attention.head_count_kv";
    let key = format!("lfm2.{kv}");
    refused(&with(&spec, kv, |b| b), &[&key, "missing"]);
    for (bad, expected) in [
        (&[0, 0, 2][..], "3 integers"),
        (&[0, 0, 3, 0, 0], "divisor of the 4"),
        (&[0, 0, 1 << 30, 0, 0], "expected 0 to"),
    ] {
        refused(&with(&spec, kv, |b| b.u32s(&key, bad)), &[&key, expected]);
    }
    // Attention where the file has a convolution.
    refused(
        &with(&spec, kv, |b| b.u32s(&key, &[2, 0, 2, 0, 0])),
        &["blk.0.attn_q.weight", "missing"],
    );
}

#[test]
fn mamba_2() {
    let spec = Spec::granitehybrid();
    for (name, bad, expected) in [
        ("ssm.conv_kernel", 9, "expected 1 to 8"),
        ("ssm.state_size", 18, "not a multiple of 4"),
        ("ssm.state_size", 1 << 20, "expected 1 to 4096"),
        ("ssm.group_count", 3, "divisor of the 4"),
        ("ssm.time_step_rank", 0, "is 0"),
        ("ssm.inner_size", 96, "not a multiple of 16"),
        ("ssm.inner_size", 0, "is 0"),
    ] {
        let key = format!("granitehybrid.{name}");
        refused(&with(&spec, name, |b| b.u32(&key, bad)), &[&key, expected]);
        refused(&with(&spec, name, |b| b), &[&key, "missing"]);
    }
    // Heads that do not divide the width.
    refused(
        &with(&spec, "ssm.time_step_rank", |b| b.u32("granitehybrid.ssm.time_step_rank", 6)),
        &["granitehybrid.ssm.inner_size", "is 128", "multiple of the 6 heads"],
    );
    refused(
        &with(&spec, "ssm.state_size", |b| b.u32("granitehybrid.ssm.state_size", 24)),
        &["blk.0.ssm_in.weight", "[64, 340]", "expected [64, 356]"],
    );
}

#[test]
fn several_streams() {
    let spec = Spec::gemma3n();
    let key = |name: &str| format!("gemma3n.{name}");
    let one_more = |name: &str, value| with(&spec, "", |b| b.u32(&key(name), value));
    refused(&one_more("altup.num_inputs", 3), &[&key("altup.num_inputs"), "3", "streams"]);
    refused(&one_more("altup.active_idx", 1), &[&key("altup.active_idx"), "1", "streams"]);
    let scales = "activation_sparsity_scale";
    let few = with(&spec, "", |b| b.f32s(&key(scales), &[1.6; 6]));
    refused(&few, &[&key(scales), "6 numbers", "7, one per layer"]);
    let not_a_number = with(&spec, "", |b| b.f32s(&key(scales), &[f32::NAN; 7]));
    refused(&not_a_number, &[&key(scales)]);
    let shared = "attention.shared_kv_layers";
    for bad in [1, 3, 7, u32::MAX] {
        refused(&with(&spec, shared, |b| b.u32(&key(shared), bad)), &[&key(shared), "so few"]);
    }
    let width = "embedding_length_per_layer_input";
    refused(&with(&spec, width, |b| b.u32(&key(width), 1 << 20)), &[&key(width), "at most"]);
}

#[test]
fn layers_of_one_part() {
    let spec = Spec::nemotron_h();
    let (widths, kv) = ("nemotron_h.feed_forward_length", "nemotron_h.attention.head_count_kv");
    let with_widths = |all: &[u32]| with(&spec, "feed_forward_length", |b| b.u32s(widths, all));
    refused(&with(&spec, "feed_forward_length", |b| b), &[widths, "missing"]);
    refused(&with(&spec, "attention.head_count_kv", |b| b), &[kv, "missing"]);
    refused(&with_widths(&[0, 96, 0, 0]), &[widths, "4 integers", "5, one per layer"]);
    refused(&with_widths(&[0, 1 << 30, 0, 0, 96]), &[widths, "expected 0 to"]);
    refused(&with_widths(&[96; 5]), &[widths, "not 0 for any layer", "no token sees another"]);
    // A mixer where the file has a feed-forward part, and the other way round.
    refused(&with_widths(&[0, 0, 0, 0, 96]), &["blk.1.ssm_in.weight", "missing"]);
    refused(&with_widths(&[96, 96, 0, 0, 96]), &["blk.0.ffn_up.weight", "missing"]);

    let spec = Spec::nemotron_h_moe();
    let key = |name: &str| format!("nemotron_h_moe.{name}");
    for (name, bad, expected) in [
        ("moe_latent_size", 65, "is 65, expected 1 to 64"),
        ("expert_used_count", 0, "at least one"),
        ("expert_used_count", 7, "expected 0 to 6"),
        ("expert_feed_forward_length", 0, "a width"),
        ("expert_feed_forward_length", 1 << 20, "at most 1048576 for all experts"),
    ] {
        let found = match name {
            "expert_feed_forward_length" if bad > 1 => key("expert_used_count"),
            _ => key(name),
        };
        refused(&with(&spec, name, |b| b.u32(&key(name), bad)), &[&found, expected]);
    }
    refused(&with(&spec, "expert_used_count", |b| b), &[&key("expert_used_count"), "missing"]);
    refused(
        &with(&spec, "moe_latent_size", |b| b),
        &["blk.1.ffn_up_exps.weight", "expected [64, 32, 6]"],
    );
}

#[test]
fn mixtures_of_experts() {
    let spec = Spec::qwen3moe();
    let moe = spec.moe.unwrap();
    let key = |name: &str| format!("qwen3moe.{name}");
    for (name, bad, expected) in [
        ("expert_count", 0, "is 0"),
        ("expert_count", 1 << 20, "expected 1 to 16384"),
        ("expert_used_count", 8, "is 8, expected 1 to 7"),
        ("expert_used_count", 0, "is 0"),
        ("expert_feed_forward_length", 0, "is 0"),
    ] {
        refused(&with(&spec, name, |b| b.u32(&key(name), bad)), &[&key(name), expected]);
        if name != "expert_feed_forward_length" {
            refused(&with(&spec, name, |b| b), &[&key(name), "missing"]);
        }
    }
    let width = "expert_feed_forward_length";
    refused(
        &with(&spec, width, |b| b.u32(&key(width), 64)),
        &["blk.0.ffn_gate_exps.weight", "[64, 48, 7]", "expected [64, 64, 7]"],
    );
    refused(
        &with(&spec, "", |b| b.u32(&key("expert_gating_func"), 5)),
        &[&key("expert_gating_func"), "is 5", "not supported"],
    );
    refused(
        &with(&spec, "", |b| b.u32(&key("expert_group_count"), 2)),
        &[&key("expert_group_count"), "divisor of the 7"],
    );
    let twelve = Spec { moe: Some(models::Moe { experts: 12, ..moe }), ..spec.clone() };
    for (groups, used) in [(4, 5), (6, 1), (12, 0)] {
        let file = with(&twelve, "", |b| {
            b.u32(&key("expert_group_count"), groups).u32(&key("expert_group_used_count"), used)
        });
        refused(&file, &[&key("expert_group_used_count"), "enough for 3 experts"]);
    }
    // A tensor for each expert, as in files of before April 2024.
    let mut b = spec.metadata("");
    for (name, shape) in spec.tensors() {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        if !name.contains("_exps") {
            b.tensor(&name, GgmlType::F32, &shape).unwrap();
        } else if let Some(part) = name.strip_suffix("_exps.weight") {
            for expert in 0..moe.experts {
                b.tensor(&format!("{part}.{expert}.weight"), GgmlType::F32, &shape[..2]).unwrap();
            }
        }
    }
    refused(&b.file(|_, _| {}), &["blk.0.ffn_gate.0.weight", "before April 2024", "convert"]);
}

/// Layers that draft tokens are left out, and others after the last are not.
#[test]
fn layers_that_draft_tokens() {
    let spec = Spec::llama();
    let file = |drafts: u32, stray: &str| {
        let mut b = spec.metadata("block_count");
        b.u32("llama.block_count", 4).u32("llama.nextn_predict_layers", drafts);
        for (name, shape) in spec.tensors() {
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            b.tensor(&name, GgmlType::F32, &shape).unwrap();
        }
        b.tensor(stray, GgmlType::F32, &[7]).unwrap();
        b.file(|_, _| {})
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drafts.gguf");
    std::fs::write(&path, file(1, "blk.3.nextn.eh_proj.weight")).unwrap();
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    assert_eq!((model.spec().layers.len(), model.spec().draft_layers), (3, 1));
    refused(&file(1, "blk.4.nextn.eh_proj.weight"), &["blk.4.nextn", "no place in"]);
    refused(&file(1, "blk.2.nextn.eh_proj.weight"), &["blk.2.nextn", "no place in"]);
    refused(&file(4, "blk.3.x"), &["llama.nextn_predict_layers", "is 4", "fewer than the 4"]);
    refused(&file(u32::MAX, "blk.3.x"), &["llama.nextn_predict_layers", "fewer than the 4"]);
}

#[test]
fn tensors_that_nothing_is_computed_with() {
    // What the network is trained to have and we would leave out: fluent nonsense.
    for spec in Spec::every() {
        for stray in ["blk.1.attn_sub_norm.weight", "blk.0.ffn_up.offset", "rope_fr\u{1b}qs.weight"]
        {
            let mut b = spec.metadata("");
            let mut names = spec.tensors();
            names.insert(3, (stray.to_owned(), vec![64]));
            for (name, shape) in names {
                let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
                b.tensor(&name, GgmlType::F32, &shape).unwrap();
            }
            let shown = stray.escape_debug().to_string();
            refused(&b.file(|_, _| {}), &[&shown, "no place in", spec.arch]);
        }
    }
    // What multiplies a matrix's products is one number.
    let spec = Spec::llama();
    let mut b = spec.metadata("");
    let mut names = spec.tensors();
    names.insert(3, ("blk.0.ffn_up.scale".into(), vec![64]));
    for (name, shape) in names {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(&name, GgmlType::F32, &shape).unwrap();
    }
    refused(&b.file(|_, _| {}), &["blk.0.ffn_up.scale", "[64], expected [1]"]);
    let mut qwen = Spec::qwen3();
    qwen.arch = "qwen2";
    let mut b = qwen.metadata("");
    for (name, shape) in Spec::qwen3().tensors() {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(&name, GgmlType::F32, &shape).unwrap();
    }
    refused(&b.file(|_, _| {}), &["attn_q_norm.weight", "no place in", "qwen2"]);
}

#[test]
fn what_llama4_adds() {
    let spec = Spec::llama4();
    let step = "llama4.interleave_moe_layer_step";
    refused(&with(&spec, "interleave_moe_layer_step", |b| b), &[step, "missing"]);
    let zero = with(&spec, "interleave_moe_layer_step", |b| b.u32(step, 0));
    refused(&zero, &[step, "is 0", "expected 1 to"]);
    let whole = Spec { window: None, ..spec };
    let chunk = "llama4.attention.sliding_window";
    refused(&with(&whole, "", |b| b.u32(chunk, 0)), &[chunk, "without chunks"]);
}

#[test]
fn latent_attention() {
    let spec = Spec::deepseek2();
    for key in ["attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla"]
    {
        let name = format!("deepseek2.{key}");
        refused(&with(&spec, key, |b| b.u32(&name, 0)), &[&name, "is 0", "expected 1 to"]);
        refused(&with(&spec, key, |b| b.u32(&name, 1 << 20)), &[&name, "1048576", "for 5 heads"]);
        refused(&with(&spec, key, |b| b.u64(&name, u64::MAX)), &[&name]);
    }
    let name = "deepseek2.attention.kv_lora_rank";
    refused(&with(&spec, "attention.kv_lora_rank", |b| b), &[name, "missing"]);
    // Nothing is left that is not rotated.
    let name = "deepseek2.attention.key_length_mla";
    refused(
        &with(&spec, "attention.key_length_mla", |b| b.u32(name, 8)),
        &[name, "is 8", "more than the 8"],
    );
    let whole = Spec { rope_dims: Some(9), ..spec.clone() };
    refused(&with(&whole, "", |b| b), &["deepseek2.rope.dimension_count", "is 9", "even"]);
    let name = "deepseek2.rope.scaling.yarn_log_multiplier";
    let multiplier = |value| {
        let latent = spec.latent.map(|latent| models::Latent { multiplier: value, ..latent });
        with(&Spec { latent, ..spec.clone() }, "", |b| b)
    };
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        refused(&multiplier(bad), &[name, "not negative"]);
    }
    let scale = "deepseek2.attention.temperature_scale";
    refused(&with(&spec, "", |b| b.f32(scale, f32::NAN)), &[scale]);
    let length = "deepseek2.attention.temperature_length";
    let zero = with(&spec, "", |b| b.f32(scale, 0.1).u32(length, 0));
    refused(&zero, &[length, "is 0", "expected 1 to"]);
    let shared = "deepseek2.expert_shared_count";
    let many = with(&spec, "expert_shared_count", |b| b.u32(shared, 1 << 19));
    refused(&many, &[shared, "524288", "at most 32768 experts of 32"]);
}

#[test]
fn tensors_of_latent_attention() {
    let spec = Spec::deepseek2();
    let file = |spec: &Spec, change: &dyn Fn(&str, &mut Vec<u64>) -> bool| {
        let mut b = spec.metadata("");
        for (name, shape) in spec.tensors() {
            let mut shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            if change(&name, &mut shape) {
                b.tensor(&name, GgmlType::F32, &shape).unwrap();
            }
        }
        b.file(|_, _| {})
    };
    let without = |what: &str| file(&spec, &|name, _| name != what);
    for what in ["attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm"] {
        let name = format!("blk.1.{what}.weight");
        refused(&without(&name), &[&name, "missing"]);
    }
    for (what, wanted) in [("attn_k_b", "[24, 48, 5]"), ("attn_v_b", "[48, 20, 5]")] {
        let name = format!("blk.2.{what}.weight");
        refused(&without(&name), &[&name, "missing", wanted]);
        let swapped = file(&spec, &|found, shape| {
            if found == name {
                shape.swap(0, 1);
            }
            true
        });
        refused(&swapped, &[&name, "shape", wanted]);
    }
    let old = Spec::deepseek2_before_2025();
    let name = "blk.0.attn_kv_b.weight";
    let shorter = file(&old, &|found, shape| {
        if found == name {
            shape[1] -= 1;
        }
        true
    });
    refused(&shorter, &[name, "[64, 167]", "[64, 168]"]);
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
        (Spec::gemma2(), GgmlType::Q4_0),
        (Spec::qwen2(), GgmlType::Q8_0),
        (Spec::qwen3(), GgmlType::F32),
        (Spec::llama(), GgmlType::F32),
        (Spec::deepseek2(), GgmlType::F32),
        (Spec::deepseek2_before_2025(), GgmlType::Q8_0),
    ] {
        let spec = Spec { ty, ..arch };
        let (bytes, _) = spec.build();
        for pattern in [0xffu8, 0x7c, 0x01] {
            let mut bytes = bytes.clone();
            let from = bytes.len() / 2;
            let mut random = models::Random(9);
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
            for tokens in [models::tokens(30, spec.vocab, 1), vec![5]] {
                match session.feed(&tokens).map(|_| ()) {
                    // Weights that are infinite make logits that are no numbers, which is said.
                    Ok(()) | Err(ModelError::NotNumbers { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}
