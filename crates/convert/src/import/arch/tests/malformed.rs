//! Configurations and weights that do not fit: each is an error that names the mistake, the value
//! found, and the value expected or the remedy.

use serde_json::{Value, json};

use super::Case;

/// A change to a case.
type Edit = for<'a> fn(&'a mut Case) -> &'a mut Case;

/// Values of the configuration, and the texts that the error must contain in addition to the key.
#[test]
fn values_that_cannot_be_are_named_with_what_was_expected() {
    let table: [(&str, &str, Value, &[&str]); 54] = [
        ("llama", "num_hidden_layers", json!(0), &["is 0", "1 to 4096"]),
        ("llama", "num_hidden_layers", json!(1u64 << 31), &["2147483648", "1 to 4096"]),
        ("llama", "num_hidden_layers", json!(-1), &["is -1", "1 to 4096"]),
        ("llama", "num_hidden_layers", json!(u64::MAX), &["1 to 4096"]),
        ("llama", "num_hidden_layers", json!("2"), &["\"2\"", "1 to 4096"]),
        ("llama", "num_hidden_layers", json!([2]), &["an array", "1 to 4096"]),
        ("llama", "num_hidden_layers", json!(1.5), &["1.5"]),
        ("llama", "hidden_size", json!(0), &["1 to"]),
        ("llama", "hidden_size", json!(1e300), &["1e+300", "1 to"]),
        ("llama", "intermediate_size", json!(-96), &["-96"]),
        ("llama", "intermediate_size", json!(true), &["true"]),
        ("llama", "num_attention_heads", json!(0), &["1 to"]),
        (
            "llama",
            "hidden_size",
            json!(66),
            &["num_attention_heads is 4", "divisor of hidden_size, 66", "head_dim"],
        ),
        ("llama", "num_attention_heads", json!(64), &["head_dim", "is 1", "even"]),
        (
            "llama-new",
            "num_key_value_heads",
            json!(3),
            &["is 3", "divisor of num_attention_heads, 4"],
        ),
        ("llama-new", "num_key_value_heads", json!(8), &["is 8", "divisor"]),
        ("llama-new", "head_dim", json!(15), &["15", "even"]),
        ("llama-new", "head_dim", json!(1 << 20), &["1048576", "at most 262144 for 4 heads"]),
        ("qwen2", "head_dim", json!(32), &["is 32", "hidden_size / num_attention_heads"]),
        ("llama", "max_position_embeddings", json!(0), &["is 0"]),
        ("llama", "vocab_size", json!(383), &["is 383", "384, the rows of the embedding"]),
        ("llama", "vocab_size", json!(0), &["is 0"]),
        ("llama", "rms_norm_eps", json!("NaN"), &["\"NaN\"", "from 0 to below 1"]),
        ("llama", "rms_norm_eps", json!(-1e-5), &["-0.00001"]),
        ("llama", "rms_norm_eps", json!(1.0), &["is 1"]),
        ("llama", "rope_theta", json!(0.0), &["is 0", "1 to below"]),
        ("llama", "rope_theta", json!(-1e4), &["-10000"]),
        ("llama", "rope_theta", json!("1e4"), &["1e4"]),
        ("llama", "partial_rotary_factor", json!(0.5), &["0.5", "expected 1"]),
        ("llama", "rope_scaling", json!("linear"), &["\"linear\"", "an object"]),
        (
            "llama",
            "rope_scaling",
            json!({"type": "ntk"}),
            &["rope_type", "\"ntk\"", "yarn, llama3"],
        ),
        ("llama", "rope_scaling", json!({"rope_type": 3}), &["rope_type", "is 3", "a string"]),
        ("llama", "rope_scaling", json!({"type": "linear"}), &["factor", "is missing"]),
        ("llama", "rope_scaling", json!({"type": "linear", "factor": 0}), &["factor", "is 0"]),
        ("llama", "rope_scaling", json!({"type": "longrope", "factor": 4}), &["longrope"]),
        (
            "llama",
            "rope_scaling",
            json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 0}),
            &["original_max_position_embeddings", "is 0"],
        ),
        (
            "llama",
            "rope_scaling",
            json!({"type": "llama3", "factor": 4, "low_freq_factor": 4, "high_freq_factor": 3}),
            &["high_freq_factor", "at least low_freq_factor"],
        ),
        (
            "llama",
            "rope_parameters",
            json!({"full_attention": 1}),
            &["full_attention", "an object"],
        ),
        ("gemma3", "rope_parameters", json!({"sliding_attention": 1}), &["sliding_attention is 1"]),
        (
            "gemma3",
            "rope_parameters",
            json!({"sliding_attention": {"rope_type": "yarn"}}),
            &["sliding_attention.rope_type", "default"],
        ),
        ("gemma3", "rope_local_base_freq", json!(0), &["is 0"]),
        ("llama", "hidden_act", json!("gelu"), &["\"gelu\"", "\"silu\"", "llama"]),
        ("gemma2", "hidden_activation", json!("silu"), &["\"gelu_pytorch_tanh\"", "gemma2"]),
        ("llama", "tie_word_embeddings", json!(1), &["is 1", "true or false"]),
        ("gemma2", "tie_word_embeddings", json!(false), &["expected true", "gemma2"]),
        ("llama", "attention_bias", json!("no"), &["\"no\"", "true or false"]),
        ("qwen3", "attention_bias", json!(true), &["expected false", "qwen3"]),
        ("gemma3", "use_bidirectional_attention", json!(true), &["expected false"]),
        ("gemma3", "query_pre_attn_scalar", json!(256), &["256", "expected 32 (head_dim)"]),
        ("gemma2", "attn_logit_softcapping", json!(null), &["is null", "always"]),
        ("gemma2", "final_logit_softcapping", json!(0), &["is 0", "above 0"]),
        ("gemma3", "attn_logit_softcapping", json!(50.0), &["50.0", "expected null"]),
        ("gemma3", "sliding_window", json!(-5), &["is -5"]),
        ("gemma2", "sliding_window", json!(null), &["is null", "a number"]),
    ];
    for (name, key, value, parts) in table {
        let mut case = Case::named(name);
        let shown = format!("{name}, {key} = {value}");
        let error = case.set(key, value).error();
        // An error in a derived value names that value.
        let named = if parts[0] == "head_dim" { "head_dim" } else { key };
        assert!(error.contains(named), "{shown}: {error}");
        for part in parts {
            assert!(error.contains(part), "{shown}: {error:?} without {part:?}");
        }
    }
}

#[test]
fn layer_types_are_one_for_each_layer_and_known() {
    let mut case = Case::named("gemma3-pattern");
    let error = case.set("layer_types", json!(["full_attention"])).error();
    assert!(error.contains("an array of 1") && error.contains("8 types"), "{error}");
    let error = case.set("layer_types", vec!["linear_attention"; 8]).error();
    assert!(error.contains("\"linear_attention\""), "{error}");
}

#[test]
fn a_scale_of_attention_that_readers_would_not_guess_is_an_error() {
    // Readers recognise 27B by its number of layers.
    let mut case = Case::named("gemma3");
    let tensors = case.tensors.clone();
    for layer in 7..62 {
        for (name, shape) in &tensors {
            if let Some(rest) = name.strip_prefix("model.layers.0.") {
                case.add(&format!("model.layers.{layer}.{rest}"), shape);
            }
        }
    }
    case.set("num_hidden_layers", 62);
    let error = case.error();
    assert!(error.contains("is 32, expected 16 (hidden_size / num_attention_heads)"), "{error}");
    case.set("query_pre_attn_scalar", 16);
    case.network();
}

#[test]
fn tensors_that_do_not_fit_are_named_with_what_was_expected() {
    let edit = |name: &str, edit: Edit| {
        let mut case = Case::named(name);
        edit(&mut case);
        case.error()
    };
    let table: [(&str, Edit, &[&str]); 24] = [
        (
            "llama-new",
            |case| case.reshape("model.layers.1.self_attn.k_proj.weight", &[64, 64]),
            &[
                "model.layers.1.self_attn.k_proj.weight",
                "[64, 64]",
                "[32, 64]",
                "num_key_value_heads 2 × head_dim",
                "hidden_size 64",
            ],
        ),
        (
            "llama",
            |case| case.reshape("model.layers.0.mlp.down_proj.weight", &[96, 64]),
            &["down_proj", "[96, 64]", "[64, 96]", "intermediate_size 96"],
        ),
        (
            "llama",
            |case| case.unset("intermediate_size"),
            &[
                "down_proj",
                "[64, 96]",
                "[64, 11008]",
                "intermediate_size, which config.json leaves at 11008",
            ],
        ),
        ("llama", |case| case.reshape("model.norm.weight", &[64, 1]), &["[64, 1]", "[64]"]),
        ("llama", |case| case.reshape("model.norm.weight", &[]), &["[]", "[64]"]),
        ("llama", |case| case.reshape("lm_head.weight", &[383, 64]), &["[383, 64]", "[384, 64]"]),
        (
            "llama",
            |case| case.reshape("model.embed_tokens.weight", &[384, 65]),
            &["[384, 65]", "[384, 64]"],
        ),
        ("llama", |case| case.reshape("model.embed_tokens.weight", &[384]), &["[384]", "a matrix"]),
        (
            "llama",
            |case| case.unset("vocab_size").reshape("model.embed_tokens.weight", &[0, 64]),
            &["0 rows", "expected 1"],
        ),
        (
            "llama",
            |case| case.unset("vocab_size").reshape("model.embed_tokens.weight", &[u64::MAX, 64]),
            &["18446744073709551615 rows"],
        ),
        (
            "llama",
            |case| case.remove("model.layers.1.mlp.up_proj.weight"),
            &[
                "no tensor \"model.layers.1.mlp.up_proj.weight\"",
                "[96, 64]",
                "num_hidden_layers, 2",
            ],
        ),
        (
            "llama",
            |case| case.remove("model.norm.weight"),
            &["no tensor \"model.norm.weight\"", "[64]"],
        ),
        (
            "llama",
            |case| case.remove("lm_head.weight"),
            &["lm_head.weight", "tie_word_embeddings true"],
        ),
        (
            "llama",
            |case| case.remove("model.embed_tokens.weight"),
            &["no tensor \"model.embed_tokens.weight\"", "their first is \"lm_head.weight\""],
        ),
        ("llama", |case| case.clear(), &["embed_tokens", "no tensors at all"]),
        (
            "llama",
            |case| case.set("num_hidden_layers", 3),
            &["model.layers.2.", "num_hidden_layers, 3"],
        ),
        ("llama", |case| case.set("num_hidden_layers", 4096), &["model.layers.2."]),
        (
            "llama",
            |case| case.set("num_hidden_layers", 1),
            &[
                "model.layers.1.",
                "no place",
                "LlamaForCausalLM",
                "num_hidden_layers is 1",
                "8 others",
            ],
        ),
        (
            "llama",
            |case| case.add("model.layers.0.self_attn.q_proj.bias", &[64]),
            &["q_proj.bias", "no place", "attention_bias"],
        ),
        (
            "qwen2",
            |case| case.remove("model.layers.0.self_attn.q_proj.bias"),
            &["q_proj.bias", "[64]"],
        ),
        ("llama", |case| case.add("score.weight", &[2, 64]), &["score.weight", "no place"]),
        (
            "llama",
            |case| case.add("model.layers.01.mlp.up_proj.weight", &[96, 64]),
            &["layers.01", "no place"],
        ),
        ("llama", |case| case.add("embed_tokens.weight", &[384, 64]), &["two embeddings"]),
        (
            "llama",
            |case| case.add("model.norm.weight", &[64]),
            &["two tensors \"model.norm.weight\""],
        ),
    ];
    for (name, change, parts) in table {
        let error = edit(name, change);
        for part in parts {
            assert!(error.contains(part), "{error:?} without {part:?}");
        }
    }
    let error = edit("llama", |case| case.add("a\u{1b}[2J\n", &[1]));
    assert!(error.contains("a\\u{1b}[2J\\n"), "{error}");
}

#[test]
fn architectures_that_are_not_known_are_named() {
    let mut case = Case::named("llama");
    case.set("architectures", json!(["PhiForCausalLM"])).set("model_type", "phi");
    let error = case.error();
    for part in
        ["PhiForCausalLM", "\"phi\"", "qwen3,", "gemma3,", "import/arch", "model/src/spec/arch"]
    {
        assert!(error.contains(part), "{error}");
    }
    // A model with a classification head generates no text, whatever its layers are.
    case.set("architectures", json!(["LlamaForSequenceClassification"])).set("model_type", "llama");
    assert!(case.error().contains("LlamaForSequenceClassification"));
    case.set("architectures", json!([])).set("model_type", "x\ny");
    assert!(case.error().contains("model_type is \"x\\ny\""));
    case.unset("model_type");
    assert!(case.error().contains("neither architectures nor model_type"));
    case.set("architectures", "LlamaForCausalLM");
    assert!(case.error().contains("an array of one name"));
    case.set("architectures", json!([1]));
    assert!(case.error().contains("architectures[0] is 1"));
    case.set("architectures", json!(["LlamaForCausalLM"])).set("text_config", 1);
    assert!(case.error().contains("text_config is 1, expected an object"));
}

#[test]
fn mixtures_of_experts_and_quantised_checkpoints_are_refused_by_name() {
    for (class, key) in [
        ("DbrxMoeForCausalLM", "num_local_experts"),
        ("NewMoeForCausalLM", "x"),
        ("LlamaForCausalLM", "num_experts"),
    ] {
        let mut case = Case::named("llama");
        let error = case.set("architectures", json!([class])).set(key, 8).error();
        assert!(error.contains(class) && error.contains("mixture of experts"), "{error}");
    }
    let mut case = Case::named("qwen3moe");
    for (key, value, message) in [
        ("norm_topk_prob", json!(false), "expected true"),
        ("decoder_sparse_step", json!(2), "expected 1"),
        ("mlp_only_layers", json!([1]), "expected an empty array"),
        ("num_experts_per_tok", json!(8), "at most num_local_experts, 7"),
        ("num_local_experts", json!(1 << 20), "1 to 4096"),
    ] {
        let before = case.config[key].clone();
        let error = case.set(key, value).error();
        assert!(error.contains(key) && error.contains(message), "{error}");
        case.set(key, before);
    }
    let name = "model.layers.1.mlp.experts.6.up_proj.weight";
    let mut case = Case::named("qwen3moe");
    assert!(case.reshape(name, &[32, 63]).error().contains("experts of width 32"));
    assert!(case.remove(name).error().contains(name));
    for name in
        ["experts.7.up_proj.weight", "experts.06.up_proj.weight", "experts.x.up_proj.weight"]
    {
        let name = format!("model.layers.1.mlp.{name}");
        let error = Case::named("qwen3moe").add(&name, &[32, 64]).error();
        assert!(error.contains(&name) && error.contains("has no place"), "{error}");
    }
    let mut case = Case::named("gpt_oss");
    case.config["quantization_config"]["quant_method"] = "fp8".into();
    assert!(case.error().contains("quantised"));
    let mut case = Case::named("gpt_oss");
    assert!(case.set("swiglu_limit", 6.0).error().contains("expected 7"));
    let mut case = Case::named("gpt_oss");
    let name = "model.layers.0.mlp.experts.down_proj_blocks";
    assert!(case.reshape(name, &[5, 64, 3, 16]).error().contains("blocks of 32"));
    for method in ["gptq", "awq", "fp8", "bitsandbytes"] {
        let mut case = Case::named("llama");
        let error = case.set("quantization_config", json!({"quant_method": method})).error();
        for part in [method, "quantised", "original", "--type"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let mut case = Case::named("gemma3-pictures");
    case.config["text_config"]["quantization_config"] = json!({});
    assert!(case.error().contains("quantised"));
    // Some state it in another file, or nowhere.
    let mut case = Case::named("llama");
    case.remove("model.layers.0.mlp.up_proj.weight")
        .add("model.layers.0.mlp.up_proj.qweight", &[8, 96]);
    let error = case.error();
    assert!(error.contains("up_proj.qweight") && error.contains("original"), "{error}");
}

#[test]
fn a_folder_without_configuration_says_so() {
    let case = Case::named("llama");
    std::fs::remove_file(case.folder.join("config.json")).ok();
    let side = crate::import::side::SideFiles::new(
        &case.folder,
        None,
        &crate::import::side::SmallFiles::default(),
    );
    let error = super::huggingface(&side, &[]).unwrap_err().to_string();
    assert!(error.contains("config.json: is missing"), "{error}");
}
