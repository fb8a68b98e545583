//! The rules for tensors, and settings that configurations can state in more than one way.

use std::fs;

use serde_json::{Value, json};

use super::{Case, taken};
use crate::import::tensor::{Entry, Network, Place, Rule};
use crate::write::Change;

fn f32(network: &Network, key: &str) -> Option<f32> {
    match network.key(key) {
        Some(Entry::F32(value)) => Some(*value),
        None => None,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn queries_and_keys_of_llama_turn_by_heads_and_others_do_not() {
    let case = Case::named("llama-biases");
    let network = case.network();
    let layer = "model.layers.1.self_attn";
    for (name, expected) in [
        ("q_proj.weight", taken("blk.1.attn_q.weight", Some(4), 0.0)),
        ("k_proj.weight", taken("blk.1.attn_k.weight", Some(2), 0.0)),
        ("q_proj.bias", taken("blk.1.attn_q.bias", Some(4), 0.0)),
        ("k_proj.bias", taken("blk.1.attn_k.bias", Some(2), 0.0)),
        ("v_proj.weight", taken("blk.1.attn_v.weight", None, 0.0)),
        ("v_proj.bias", taken("blk.1.attn_v.bias", None, 0.0)),
        ("o_proj.weight", taken("blk.1.attn_output.weight", None, 0.0)),
    ] {
        assert_eq!(*network.rule(&case, &format!("{layer}.{name}")), expected);
    }
    let case = Case::named("mistral");
    let expected = taken("blk.0.attn_k.weight", Some(2), 0.0);
    assert_eq!(*case.network().rule(&case, "model.layers.0.self_attn.k_proj.weight"), expected);
    for name in ["qwen2", "qwen3", "gemma2", "gemma3", "seed_oss"] {
        let turns = |rule: &Rule| matches!(rule, Rule::Take { heads: Some(_), .. });
        assert!(!Case::named(name).network().rules.iter().any(turns), "{name}");
    }
}

#[test]
fn norms_of_gemma_have_one_added_and_nothing_else_has() {
    let case = Case::named("gemma3");
    let network = case.network();
    for ((name, _), rule) in case.tensors.iter().zip(&network.rules) {
        let is_norm = name.ends_with("norm.weight");
        let expected = if is_norm { Change::Add(1.0) } else { Change::None };
        assert!(
            matches!(rule, Rule::Take { change, .. } if *change == expected),
            "{name}: {rule:?}"
        );
    }
    let norm = network.rule(&case, "model.layers.3.post_attention_layernorm.weight");
    assert_eq!(*norm, taken("blk.3.post_attention_norm.weight", None, 1.0));
    let norm = network.rule(&case, "model.layers.3.pre_feedforward_layernorm.weight");
    assert_eq!(*norm, taken("blk.3.ffn_norm.weight", None, 1.0));
    for name in ["qwen3", "llama"] {
        let adds =
            |rule: &Rule| matches!(rule, Rule::Take { change, .. } if *change != Change::None);
        assert!(!Case::named(name).network().rules.iter().any(adds), "{name}");
    }
}

/// The result of llama.cpp's converter for the same folder, by its source and the `gguf` package's table of names.
#[test]
fn seed_oss_has_its_second_norm_under_another_name() {
    let case = Case::named("seed_oss");
    let network = case.network();
    let norm = network.rule(&case, "model.layers.1.post_attention_layernorm.weight");
    assert_eq!(*norm, taken("blk.1.post_attention_norm.weight", None, 0.0));
    let bias = network.rule(&case, "model.layers.1.self_attn.k_proj.bias");
    assert_eq!(*bias, taken("blk.1.attn_k.bias", None, 0.0));
    let keys: Vec<_> =
        network.keys.iter().filter_map(|(key, _)| key.strip_prefix("seed_oss.")).collect();
    let expected = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "rope.freq_base",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
    ];
    assert_eq!(keys, expected);
    assert_eq!(network.key("seed_oss.attention.key_length"), Some(&Entry::U32(32)));
    assert_eq!(f32(&network, "seed_oss.rope.freq_base"), Some(1e7));
}

/// The values that llama.cpp's converter writes for them, by its source.
#[test]
fn mixtures_have_their_numbers_and_experts_their_places() {
    let expert = |name: &str, index, count| Rule::Take {
        name: name.into(),
        heads: None,
        change: Change::None,
        place: Place::Expert { index, count },
    };
    let number = |network: &Network, key: &str| match network.key(key) {
        Some(Entry::U32(value)) => Some(*value),
        other => panic!("{key}: {other:?}"),
    };
    for (name, gguf, numbers) in [
        ("mixtral", "llama", &[("expert_count", 4), ("expert_used_count", 2)][..]),
        (
            "gpt_oss",
            "gpt-oss",
            &[("expert_count", 5), ("expert_used_count", 2), ("expert_feed_forward_length", 64)],
        ),
        (
            "qwen2moe",
            "qwen2moe",
            &[
                ("expert_count", 5),
                ("expert_used_count", 2),
                ("expert_feed_forward_length", 32),
                ("expert_shared_feed_forward_length", 80),
            ],
        ),
        (
            "qwen3moe",
            "qwen3moe",
            &[("expert_count", 7), ("expert_used_count", 3), ("expert_feed_forward_length", 32)],
        ),
    ] {
        let case = Case::named(name);
        let network = case.network();
        assert_eq!(network.architecture, gguf);
        for (key, value) in numbers {
            assert_eq!(number(&network, &format!("{gguf}.{key}")), Some(*value), "{name}: {key}");
        }
        let found = network.keys.iter().filter(|(key, _)| key.contains("expert")).count();
        assert_eq!(found, numbers.len(), "{name}");
    }
    let case = Case::named("qwen3moe");
    let rule =
        |name: &str| case.network().rule(&case, &format!("model.layers.1.mlp.{name}")).clone();
    assert_eq!(rule("gate.weight"), taken("blk.1.ffn_gate_inp.weight", None, 0.0));
    assert_eq!(rule("experts.5.down_proj.weight"), expert("blk.1.ffn_down_exps.weight", 5, 7));
    let network = Case::named("gpt_oss").network();
    assert_eq!(number(&network, "gpt-oss.attention.sliding_window"), Some(64));
    assert_eq!(network.key("gpt-oss.attention.sliding_window_pattern"), None);
    assert_eq!(number(&network, "gpt-oss.attention.key_length"), Some(16));
    assert_eq!(number(&network, "gpt-oss.rope.scaling.original_context_length"), Some(64));
    for (name, gguf) in [("granitemoe", None), ("granitemoe-shared", Some(80))] {
        let network = Case::named(name).network();
        assert_eq!(number(&network, "granitemoe.expert_count"), Some(5));
        let shared = network.key("granitemoe.expert_shared_feed_forward_length");
        assert_eq!(shared, gguf.map(Entry::U32).as_ref(), "{name}");
        assert!(network.key("granitemoe.logit_scale").is_some());
    }
    // The configuration as of `transformers` 4.
    let mut case = Case::named("qwen3moe");
    case.unset("num_local_experts").set("num_experts", 7);
    assert_eq!(number(&case.network(), "qwen3moe.expert_count"), Some(7));
    let case = Case::named("mixtral");
    let rule = |name: &str| {
        case.network().rule(&case, &format!("model.layers.0.block_sparse_moe.{name}")).clone()
    };
    assert_eq!(rule("experts.3.w3.weight"), expert("blk.0.ffn_up_exps.weight", 3, 4));
}

#[test]
fn olmo_and_smollm3_say_what_their_readers_take_for_granted() {
    let network = Case::named("olmo3").network();
    assert_eq!(network.key("olmo2.attention.sliding_window"), Some(&Entry::U32(64)));
    assert_eq!(network.key("olmo2.attention.sliding_window_pattern"), None);
    assert_eq!(Case::named("olmo2").network().key("olmo2.attention.sliding_window"), None);
    let case = Case::named("olmo2");
    let rule = |name: &str| case.network().rule(&case, &format!("model.layers.1.{name}")).clone();
    for (source, gguf) in [
        ("post_attention_layernorm.weight", "blk.1.post_attention_norm.weight"),
        ("post_feedforward_layernorm.weight", "blk.1.post_ffw_norm.weight"),
        ("self_attn.k_norm.weight", "blk.1.attn_k_norm.weight"),
    ] {
        assert_eq!(rule(source), taken(gguf, None, 0.0));
    }
    let mut case = Case::named("phi3");
    let rule = case.network().rule(&case, "model.layers.1.self_attn.qkv_proj.weight").clone();
    assert_eq!(rule, taken("blk.1.attn_qkv.weight", None, 0.0));
    for (key, value) in [
        ("rope.dimension_count", 16),
        ("rope.scaling.original_context_length", 512),
        ("attention.sliding_window", 64),
    ] {
        assert_eq!(case.network().key(&format!("phi3.{key}")), Some(&Entry::U32(value)), "{key}");
    }
    case.set("sliding_window", Value::Null);
    assert_eq!(case.network().key("phi3.attention.sliding_window"), Some(&Entry::U32(0)));
    let long = json!({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]});
    assert!(
        case.set("rope_scaling", long).error().contains("long_factor has 1 factors, expected 8")
    );
    let factors = |from: f64| (0..8).map(|i| from + f64::from(i)).collect::<Vec<f64>>();
    let long =
        json!({"rope_type": "longrope", "short_factor": factors(1.0), "long_factor": factors(2.0)});
    case.set("rope_scaling", long).set("original_max_position_embeddings", 128);
    let network = case.network();
    let names: Vec<_> = network.extra.iter().map(|(name, values)| (&name[..], values[0])).collect();
    assert_eq!(names, [("rope_factors_long.weight", 2.0), ("rope_factors_short.weight", 1.0)]);
    // 512 positions by 128: the root of 1 + ln 4 / ln 128.
    let magnitude = f32(&network, "phi3.rope.scaling.attn_factor").unwrap();
    assert!((magnitude - 1.133_893_4).abs() < 1e-6, "{magnitude}");
    let mut case = Case::named("smollm3");
    assert_eq!(case.network().key("smollm3.rope.dimension_count"), Some(&Entry::U32(16)));
    let rule = case.network().rule(&case, "model.layers.3.self_attn.k_proj.weight").clone();
    assert_eq!(rule, taken("blk.3.attn_k.weight", Some(2), 0.0));
    assert!(case.set("no_rope_layers", json!([1, 1, 0, 1])).error().contains("1, 1, 1, 0"));
    case.unset("no_rope_layers").set("no_rope_layer_interval", 3);
    assert!(case.error().contains("expected 4"));
}

#[test]
fn what_is_not_needed_is_left_out_with_its_reason() {
    let skipped = |case: &Case, name: &str| match case.network().rule(case, name) {
        Rule::Skip(reason) => *reason,
        taken => panic!("{taken:?}"),
    };
    let case = Case::named("llama");
    let reason = skipped(&case, "model.layers.0.self_attn.rotary_emb.inv_freq");
    assert!(reason.contains("configuration"));
    // A tensor that is left out may have any shape.
    let mut case = Case::named("gemma3-pictures");
    case.add("vision_tower.x", &[]);
    assert!(skipped(&case, "vision_tower.x").contains("pictures"));
}

#[test]
fn an_output_that_should_be_the_embedding_is_looked_at() {
    let copy = |of: &str, name| Rule::Copy { of: of.into(), name };
    let mut case = Case::named("smollm2");
    case.add("lm_head.weight", &[384, 64]);
    let expected = copy("model.embed_tokens.weight", Some("output.weight"));
    assert_eq!(*case.network().rule(&case, "lm_head.weight"), expected);
    let mut case = Case::named("gemma3-pictures");
    let name = "language_model.lm_head.weight";
    case.add(name, &[384, 64]);
    let of = "language_model.model.embed_tokens.weight";
    assert_eq!(*case.network().rule(&case, name), copy(of, Some("output.weight")));
    assert!(case.reshape(name, &[383, 64]).error().contains("[384, 64]"));
    // GGUF's gemma2 has no separate output matrix.
    let case = Case::named("gemma2");
    let expected = copy("model.embed_tokens.weight", None);
    assert_eq!(*case.network().rule(&case, "lm_head.weight"), expected);
}

#[test]
fn configurations_may_leave_out_what_goes_without_saying() {
    // The values of the tiny model are not the defaults, so a model is used that has them.
    let mut case = Case::named("qwen2");
    for key in ["rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling"] {
        case.unset(key);
    }
    case.unset("vocab_size").unset("hidden_act").unset("model_type").unset("tie_word_embeddings");
    let network = case.network();
    assert_eq!(f32(&network, "qwen2.rope.freq_base"), Some(10_000.0));
    assert_eq!(f32(&network, "qwen2.attention.layer_norm_rms_epsilon"), Some(1e-6));
    assert_eq!(network.key("qwen2.context_length"), Some(&Entry::U32(32768)));
    assert_eq!(network.vocab, 384);

    // As many key heads as query heads; the type alone determines the architecture.
    let mut case = Case::named("llama");
    case.unset("num_key_value_heads").unset("architectures");
    assert_eq!(case.network().key("llama.attention.head_count_kv"), Some(&Entry::U32(4)));
    case.set("num_key_value_heads", Value::Null).set("head_dim", Value::Null);
    assert_eq!(case.network().key("llama.attention.head_count_kv"), Some(&Entry::U32(4)));

    // The default of a missing key differs from the meaning of `null`.
    let mut case = Case::named("mistral");
    let error = case.set("num_key_value_heads", Value::Null).error();
    assert!(error.contains("expected [64, 64] (num_key_value_heads"), "{error}");

    // The text part states no class, so that of the whole model counts.
    let mut case = Case::named("gemma3-pictures");
    case.config["text_config"]["architectures"] = Value::Null;
    case.config["text_config"]["model_type"] = "x".into();
    assert_eq!(case.network().architecture, "gemma3");
}

#[test]
fn both_forms_of_rotary_parameters_say_the_same() {
    let mut case = Case::named("gemma3-linear");
    let old = case.network();
    for key in ["rope_theta", "rope_scaling", "rope_local_base_freq"] {
        case.unset(key);
    }
    let full = json!({"rope_type": "linear", "factor": 8, "rope_theta": 1e6});
    let local = json!({"rope_type": "default", "rope_theta": 10000});
    case.set("rope_parameters", json!({"full_attention": full, "sliding_attention": local}));
    assert_eq!(case.network(), old);
    case.set("rope_parameters", json!({"full_attention": full, "sliding_attention": null}));
    assert_eq!(case.network(), old, "by default");
    let local = json!({"rope_type": "default", "rope_theta": 5000});
    case.set("rope_parameters", json!({"full_attention": full, "sliding_attention": local}));
    assert_eq!(f32(&case.network(), "gemma3.rope.freq_base_swa"), Some(5000.0));

    let mut case = Case::named("llama-3.1");
    case.set("max_position_embeddings", 8192);
    let found = case.network();
    let scaling = case.config["rope_scaling"].as_object_mut().unwrap();
    scaling.remove("original_max_position_embeddings");
    assert_eq!(case.network(), found, "what the model was made for, if nothing else is said");

    let mut case = Case::named("llama-yarn");
    let new = case.network();
    let mut yarn = case.config["rope_parameters"].clone();
    case.unset("rope_parameters").set("rope_theta", yarn["rope_theta"].clone());
    // The older name of the key; the original context length may be outside the object.
    yarn["type"] = yarn["rope_type"].take();
    case.set("original_max_position_embeddings", yarn["original_max_position_embeddings"].take());
    case.set("rope_scaling", yarn);
    assert_eq!(case.network(), new);
}

#[test]
fn what_gguf_cannot_say_is_noted() {
    let notes = |case: &Case| case.network().notes.join("\n");
    let mut case = Case::named("mistral");
    assert!(notes(&case).contains("128 tokens"), "{}", notes(&case));
    for none in [json!(null), json!(512)] {
        case.set("sliding_window", none);
        assert_eq!(notes(&case), "", "no window, or one that is never reached");
    }
    case.unset("sliding_window").set("max_position_embeddings", 8192);
    assert!(notes(&case).contains("4096 tokens"), "by default");
    let mut case = Case::named("qwen2");
    case.set("sliding_window", 100);
    assert_eq!(notes(&case), "", "switched off");
    case.set("use_sliding_window", true);
    assert!(notes(&case).contains("qwen2 has none"), "{}", notes(&case));
    assert!(notes(&Case::named("llama-dynamic")).contains("dynamic"));
    assert_eq!(notes(&Case::named("llama-3.1")), "");
    // Invalid settings do not prevent the use of the model.
    let case = Case::named("llama");
    fs::write(case.folder.join("generation_config.json"), "{").unwrap();
    assert!(notes(&case).contains("generation_config.json"));
    assert_eq!(case.network().key("general.sampling.top_k"), None);
}

#[test]
fn soft_caps_are_written_where_there_are_any() {
    let (attention, output) = ("gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping");
    let mut case = Case::named("gemma2");
    case.unset("attn_logit_softcapping").set("final_logit_softcapping", 25);
    let network = case.network();
    assert_eq!((f32(&network, attention), f32(&network, output)), (Some(50.0), Some(25.0)));
    let mut case = Case::named("gemma3");
    for (value, cap) in [(json!(null), None), (json!(0.0), None), (json!(30.0), Some(30.0))] {
        case.set("final_logit_softcapping", value).set("attn_logit_softcapping", 0);
        assert_eq!(f32(&case.network(), "gemma3.final_logit_softcapping"), cap);
    }
}

#[test]
fn local_layers_are_written_if_readers_would_not_guess_them() {
    let pattern = "gemma3.attention.sliding_window_pattern";
    let window = "gemma3.attention.sliding_window";
    let flags = |text: &str| Entry::Bools(text.chars().map(|c| c == 'l').collect());
    let case = Case::named("gemma3-pattern");
    assert_eq!(case.network().key(pattern), Some(&flags("lllglllg")));
    let mut case = Case::named("gemma3");
    assert_eq!(case.network().key(pattern), None);
    case.set("sliding_window_pattern", 3);
    assert_eq!(case.network().key(pattern), Some(&flags("llgllgl")));
    let mut other = Case::named("gemma3");
    other.unset("sliding_window_pattern").set("_sliding_window_pattern", 3);
    assert_eq!(other.network(), case.network(), "as some versions spell it");
    let types = ["full_attention"; 7];
    case.set("layer_types", json!(types));
    assert_eq!(case.network().key(window), None, "a list goes before a period");
    case.set("layer_types", Value::Null).set("sliding_window_pattern", 1);
    assert_eq!(case.network().key(window), None);
    case.set("sliding_window_pattern", 6).set("sliding_window", Value::Null);
    assert_eq!(case.network().key(window), None);
    let mut case = Case::named("gemma2");
    case.set(
        "layer_types",
        json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]),
    );
    assert_eq!(case.network().key("gemma2.attention.sliding_window_pattern"), Some(&flags("gglg")));
}

#[test]
fn a_model_is_called_as_its_makers_call_it() {
    let name = |case: &Case| case.network().key("general.name").cloned();
    let text = |name: &str| Some(Entry::Str(name.into()));
    let mut case = Case::named("llama");
    assert_eq!(name(&case), text("Llama"));
    case.set("_name_or_path", "some-org/Tiny-7B-Chat");
    assert_eq!(name(&case), text("Tiny 7B Chat"));
    assert_eq!(case.network().key("general.organization"), text("Some Org").as_ref());
    for path in ["/home/me/models/x", "", &"x".repeat(1 << 20)] {
        case.set("_name_or_path", path);
        assert_eq!(name(&case), text("Llama"));
    }
    // The path in Hugging Face's cache.
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let cached = case.parent.path().join("models--google--gemma-3-270m/snapshots").join(commit);
    fs::create_dir_all(&cached).unwrap();
    case.folder = cached;
    assert_eq!(name(&case), text("Gemma 3 270m"));
    assert_eq!(case.network().key("general.organization"), text("Google").as_ref());
    let card =
        "---\nlanguage:\n- en\nlicense: other\nlicense_name: \"gemma\"\n---\nlicense_link: no\n";
    fs::write(case.folder.join("README.md"), card).unwrap();
    assert_eq!(case.network().key("general.license"), text("other").as_ref());
    assert_eq!(case.network().key("general.license.name"), text("gemma").as_ref());
    assert_eq!(case.network().key("general.license.link"), None);
}
