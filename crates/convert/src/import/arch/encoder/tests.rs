use std::fs;

use serde_json::{Value, json};

use super::super::huggingface;
use crate::import::side::{SideFiles, SmallFiles};
use crate::import::tensor::{Described, Entry, Network, Place, Rule};

/// A configuration, tensors, and further files.
struct Case {
    config: Value,
    tensors: Vec<(String, Vec<u64>)>,
    files: Vec<(&'static str, Value)>,
}

impl Case {
    fn read(&self) -> Result<Network, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        for (name, contents) in &self.files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents.to_string()).unwrap();
        }
        let side = SideFiles::new(folder.path(), None, &SmallFiles::default());
        let described: Vec<_> =
            self.tensors.iter().map(|(name, shape)| Described { name, shape }).collect();
        huggingface(&side, &described).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn fails(&self, part: &str) {
        let error = self.read().expect_err(part);
        assert!(error.contains(part), "{error}");
    }

    /// GGUF name and place of each tensor that is taken.
    fn taken(&self) -> Vec<(String, Place)> {
        let rules = self.read().unwrap().rules.into_iter();
        let taken = rules.filter_map(|rule| match rule {
            Rule::Take { name, place, .. } => Some((name, place)),
            _ => None,
        });
        taken.collect()
    }

    fn add(&mut self, name: &str, shape: &[u64]) -> &mut Case {
        self.tensors.push((name.into(), shape.to_vec()));
        self
    }
}

fn key<'n>(network: &'n Network, key: &str) -> Option<&'n Entry> {
    network.keys.iter().find(|(known, _)| known == key).map(|(_, entry)| entry)
}

/// A BERT of one layer, whose names begin with `prefix`.
fn bert(class: &str, prefix: &str) -> Case {
    let mut case = Case {
        config: json!({
            "architectures": [class], "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 12, "max_position_embeddings": 20, "vocab_size": 30, "type_vocab_size": 2,
        }),
        tensors: Vec::new(),
        files: Vec::new(),
    };
    let layer = "encoder.layer.0.";
    for (name, shape) in [
        ("embeddings.word_embeddings.weight".to_owned(), vec![30, 8]),
        ("embeddings.position_embeddings.weight".into(), vec![20, 8]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, 8]),
        ("embeddings.LayerNorm.gamma".into(), vec![8]),
        ("embeddings.LayerNorm.beta".into(), vec![8]),
    ] {
        case.add(&format!("{prefix}{name}"), &shape);
    }
    for (name, rows, columns) in [
        ("attention.self.query", 8, 8),
        ("attention.self.key", 8, 8),
        ("attention.self.value", 8, 8),
        ("attention.output.dense", 8, 8),
        ("intermediate.dense", 12, 8),
        ("output.dense", 8, 12),
    ] {
        case.add(&format!("{prefix}{layer}{name}.weight"), &[rows, columns]);
        case.add(&format!("{prefix}{layer}{name}.bias"), &[rows]);
    }
    for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
        case.add(&format!("{prefix}{layer}{name}.weight"), &[8]);
        case.add(&format!("{prefix}{layer}{name}.bias"), &[8]);
    }
    case
}

fn sentence(case: &mut Case, kinds: &[(&str, &str)], pooling: Value) {
    let module = |(kind, path): &(&str, &str)| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    let modules: Vec<Value> = kinds.iter().map(module).collect();
    case.files.push(("modules.json", modules.into()));
    case.files.push(("1_Pooling/config.json", pooling));
}

const USUAL: &[(&str, &str)] =
    &[("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")];

#[test]
fn an_encoder_of_sentence_transformers_keeps_everything() {
    let mut case = bert("BertModel", "");
    case.add("pooler.dense.weight", &[8, 8]).add("embeddings.position_ids", &[1, 20]);
    sentence(
        &mut case,
        USUAL,
        json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}),
    );
    case.files.push(("sentence_bert_config.json", json!({"max_seq_length": 12})));
    let prompts =
        json!({"prompts": {"query": "query: "}, "default_prompt_name": "query", "truncate_dim": 4});
    case.files.push(("config_sentence_transformers.json", prompts));
    let network = case.read().unwrap();
    assert_eq!((network.architecture, network.vocab), ("bert", 30));
    for (name, expected) in [
        ("bert.context_length", Entry::U32(20)),
        ("bert.attention.causal", Entry::Bool(false)),
        ("bert.pooling_type", Entry::U32(2)),
        ("tokenizer.ggml.token_type_count", Entry::U32(2)),
        ("sentence_transformers.max_seq_length", Entry::U32(12)),
        ("sentence_transformers.normalize", Entry::Bool(true)),
        ("sentence_transformers.prompt_names", Entry::Strs(vec!["query".into()])),
        ("sentence_transformers.prompts", Entry::Strs(vec!["query: ".into()])),
        ("sentence_transformers.default_prompt_name", Entry::Str("query".into())),
        ("sentence_transformers.truncate_dim", Entry::U32(4)),
    ] {
        assert_eq!(key(&network, name), Some(&expected), "{name}");
    }
    let taken = case.taken();
    // 5 of the embeddings, 16 of the layer; the pooler and the numbers of positions are left out.
    assert_eq!(taken.len(), 21);
    for name in ["token_embd_norm.bias", "blk.0.attn_output_norm.weight", "blk.0.ffn_down.bias"] {
        assert!(taken.contains(&(name.into(), Place::Whole)), "{name}");
    }
}

#[test]
fn a_cross_encoder_keeps_its_pooler() {
    let mut case = bert("BertForSequenceClassification", "bert.");
    case.add("bert.pooler.dense.weight", &[8, 8]).add("bert.pooler.dense.bias", &[8]);
    case.add("classifier.weight", &[1, 8]).add("classifier.bias", &[1]);
    let network = case.read().unwrap();
    assert_eq!(key(&network, "bert.pooling_type"), Some(&Entry::U32(4)));
    let labels = Entry::Strs(vec!["LABEL_0".into()]);
    assert_eq!(key(&network, "bert.classifier.output_labels"), Some(&labels));
    let taken: Vec<String> = case.taken().into_iter().map(|(name, _)| name).collect();
    assert_eq!(taken[21..], ["cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"]);
    case.tensors.retain(|(name, _)| !name.starts_with("bert.pooler"));
    case.fails("no tensor \"pooler.dense.weight\"");
}

#[test]
fn positions_of_roberta_begin_after_the_padding() {
    let mut case = bert("XLMRobertaForSequenceClassification", "roberta.");
    case.config["pad_token_id"] = 1.into();
    case.add("classifier.dense.weight", &[8, 8]).add("classifier.dense.bias", &[8]);
    case.add("classifier.out_proj.weight", &[2, 8]).add("classifier.out_proj.bias", &[2]);
    case.config["id2label"] = json!({"0": "no", "1": "yes"});
    let network = case.read().unwrap();
    assert_eq!(key(&network, "bert.context_length"), Some(&Entry::U32(18)));
    let labels = Entry::Strs(vec!["no".into(), "yes".into()]);
    assert_eq!(key(&network, "bert.classifier.output_labels"), Some(&labels));
    let rows = Place::Rows(vec![(2, 18)]);
    assert!(case.taken().contains(&("position_embd.weight".into(), rows)));
    case.config["pad_token_id"] = 19.into();
    case.fails("max_position_embeddings");
}

#[test]
fn settings_without_a_place_are_errors() {
    let with = |name: &str, value: Value| {
        let mut case = bert("BertModel", "");
        case.config[name] = value;
        case
    };
    with("hidden_act", "relu".into()).fails("hidden_act");
    with("position_embedding_type", "relative_key".into()).fails("position_embedding_type");
    with("is_decoder", true.into()).fails("is_decoder");
    with("vocab_size", 31.into()).fails("vocab_size");
    with("num_attention_heads", 3.into()).fails("num_attention_heads");
    with("num_hidden_layers", 2.into()).fails("encoder.layer.1.attention.self.query.weight");
    with("intermediate_size", 13.into()).fails("intermediate.dense.weight");
    with("quantization_config", json!({"quant_method": "gptq"})).fails("quantization_config");
    bert("BertModel", "")
        .add("strange.weight", &[8])
        .fails("\"strange.weight\" of the weights has no place");
    bert("BertModel", "").add("embeddings.LayerNorm.weight", &[8]).fails("two tensors");
    bert("MPNetModel", "").fails("MPNetModel");
}

#[test]
fn modules_without_a_place_are_errors() {
    let mean = || json!({"pooling_mode": "mean"});
    let with = |kinds: &[(&str, &str)], pooling: Value| {
        let mut case = bert("BertModel", "");
        sentence(&mut case, kinds, pooling);
        case
    };
    assert!(with(USUAL, mean()).read().is_ok());
    with(&[("Transformer", ""), ("Dense", "2_Dense")], mean()).fails("\"Dense\"");
    let order = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", ""), ("Dense", "2")];
    with(&order, mean()).fails("in a place");
    with(&[("Transformer", ""), ("LSTM", "2_LSTM")], mean()).fails("\"LSTM\"");
    with(&[("Transformer", "0_Transformer")], mean()).fails("0_Transformer");
    for path in ["../1_Pooling", "/etc", "", "."] {
        with(&[("Pooling", path)], mean()).fails("folder");
    }
    with(&[("Pooling", "9_Pooling")], mean()).fails("9_Pooling");
    with(USUAL, json!({"pooling_mode_max_tokens": true})).fails("max_tokens");
    with(USUAL, json!({"pooling_mode": "weightedmean"})).fails("weightedmean");
    with(USUAL, json!({})).fails("pools by none");
    let two = json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true});
    with(USUAL, two).fails("and");
    let without = json!({"pooling_mode_mean_tokens": true, "include_prompt": false});
    with(USUAL, without).fails("include_prompt");
    let mut case = with(USUAL, mean());
    let output = json!({"modality_config": {"text": {"method_output_name": "pooler_output"}}});
    case.files.push(("sentence_bert_config.json", output));
    case.fails("pooler_output");
    for (file, contents, part) in [
        ("config_sentence_transformers.json", json!({"prompts": {"a": 1}}), "prompt \"a\""),
        ("config_sentence_transformers.json", json!({"default_prompt_name": "x"}), "\"x\""),
        ("sentence_bert_config.json", json!({"max_seq_length": -1}), "max_seq_length"),
    ] {
        let mut case = with(USUAL, mean());
        case.files.push((file, contents));
        case.fails(part);
    }
}

#[test]
fn the_longest_text_may_be_the_tokenizers() {
    let longest = |limit: Value| {
        let mut case = bert("BertModel", "");
        sentence(&mut case, USUAL, json!({"pooling_mode": "mean"}));
        case.files.push(("tokenizer_config.json", json!({"model_max_length": limit})));
        key(&case.read().unwrap(), "sentence_transformers.max_seq_length").cloned()
    };
    assert_eq!(longest(32.into()), Some(Entry::U32(32)));
    assert_eq!(longest(1e30.into()), None);
}

#[test]
fn a_classifier_of_distilbert_says_its_activation() {
    let mut case = Case {
        config: json!({
            "architectures": ["DistilBertForSequenceClassification"], "model_type": "distilbert", "dim": 8, "n_layers": 1, "n_heads": 2,
            "hidden_dim": 12, "max_position_embeddings": 20, "vocab_size": 30,
        }),
        tensors: Vec::new(),
        files: Vec::new(),
    };
    case.add("distilbert.embeddings.word_embeddings.weight", &[30, 8]);
    case.add("distilbert.embeddings.position_embeddings.weight", &[20, 8]);
    let layer = "distilbert.transformer.layer.0.";
    let (norms, e, f) = (["sa_layer_norm", "output_layer_norm"], 8, 12);
    for (name, rows, columns) in [
        (format!("{layer}attention.q_lin"), e, e),
        (format!("{layer}attention.k_lin"), e, e),
        (format!("{layer}attention.v_lin"), e, e),
        (format!("{layer}attention.out_lin"), e, e),
        (format!("{layer}ffn.lin1"), f, e),
        (format!("{layer}ffn.lin2"), e, f),
        ("pre_classifier".into(), e, e),
        ("classifier".into(), 2, e),
    ] {
        case.add(&format!("{name}.weight"), &[rows, columns]).add(&format!("{name}.bias"), &[rows]);
    }
    let norms = norms.map(|norm| format!("{layer}{norm}"));
    for norm in norms.iter().map(String::as_str).chain(["distilbert.embeddings.LayerNorm"]) {
        case.add(&format!("{norm}.weight"), &[8]).add(&format!("{norm}.bias"), &[8]);
    }
    let network = case.read().unwrap();
    let relu = Entry::Str("relu".into());
    assert_eq!(key(&network, "bert.classifier.activation"), Some(&relu));
    assert_eq!(key(&network, "bert.pooling_type"), Some(&Entry::U32(4)));
    let taken: Vec<String> = case.taken().into_iter().map(|(name, _)| name).collect();
    for name in ["cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias"] {
        assert!(taken.iter().any(|taken| taken == name), "{name}");
    }
}

#[test]
fn experts_of_nomic_are_in_every_second_layer() {
    let mut case = Case {
        config: json!({
            "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": 8, "n_inner": 12, "n_layer": 2, "n_head": 2,
            "activation_function": "gelu", "qkv_proj_bias": true, "mlp_fc1_bias": true, "mlp_fc2_bias": true, "n_positions": 2048,
            "moe_every_n_layers": 2, "num_experts": 3, "moe_top_k": 2, "vocab_size": 30,
        }),
        tensors: Vec::new(),
        files: Vec::new(),
    };
    for (name, shape) in [
        ("embeddings.word_embeddings.weight", &[30, 8][..]),
        ("embeddings.token_type_embeddings.weight", &[1, 8]),
        ("emb_ln.weight", &[8]),
        ("emb_ln.bias", &[8]),
        ("encoder.layers.0.mlp.fc1.weight", &[12, 8]),
        ("encoder.layers.0.mlp.fc1.bias", &[12]),
        ("encoder.layers.0.mlp.fc2.weight", &[8, 12]),
        ("encoder.layers.0.mlp.fc2.bias", &[8]),
        ("encoder.layers.1.mlp.router.layer.weight", &[3, 8]),
        ("encoder.layers.1.mlp.experts.mlp.w1", &[36, 8]),
        ("encoder.layers.1.mlp.experts.mlp.w2", &[36, 8]),
        ("encoder.layers.1.mlp.experts.bias", &[8]),
    ] {
        case.add(&format!("bert.{name}"), shape);
    }
    for layer in 0..2 {
        for (name, shape) in [
            ("attn.Wqkv.weight", &[24, 8][..]),
            ("attn.Wqkv.bias", &[24]),
            ("attn.out_proj.weight", &[8, 8]),
            ("attn.out_proj.bias", &[8]),
            ("norm1.weight", &[8]),
            ("norm1.bias", &[8]),
            ("norm2.weight", &[8]),
            ("norm2.bias", &[8]),
        ] {
            case.add(&format!("bert.encoder.layers.{layer}.{name}"), shape);
        }
    }
    let network = case.read().unwrap();
    assert_eq!(network.architecture, "nomic-bert-moe");
    for (name, expected) in [
        ("moe_every_n_layers", 2),
        ("expert_count", 3),
        ("expert_used_count", 2),
        ("context_length", 512),
    ] {
        let name = format!("nomic-bert-moe.{name}");
        assert_eq!(key(&network, &name), Some(&Entry::U32(expected)), "{name}");
    }
    let taken = case.taken();
    let up = Place::Heads(vec![(0, 12), (12, 12), (24, 12)]);
    for known in [
        ("blk.0.ffn_up.weight", Place::Whole),
        ("blk.1.ffn_up_exps.weight", up),
        ("blk.1.ffn_down_exps.weight", Place::Transposed { rows: 12, of: 12 }),
        ("blk.1.ffn_moe_out.bias", Place::Whole),
    ] {
        assert!(taken.contains(&(known.0.into(), known.1.clone())), "{known:?}");
    }
    case.config["moe_normalize_expert_weights"] = true.into();
    case.fails("moe_normalize_expert_weights");
    case.config["moe_normalize_expert_weights"] = false.into();
    case.config["num_shared_experts"] = 1.into();
    case.fails("num_shared_experts");
    case.config["num_shared_experts"] = 0.into();
    case.config["moe_every_n_layers"] = 0.into();
    case.fails("moe_every_n_layers");
}

/// A jina-embeddings-v3 of one layer, as `transformers` has it.
fn jina_v3() -> Case {
    let mut case = Case {
        config: json!({
            "architectures": ["JinaEmbeddingsV3Model"], "model_type": "jina_embeddings_v3", "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 20, "vocab_size": 30, "type_vocab_size": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 30000.0},
        }),
        tensors: Vec::new(),
        files: Vec::new(),
    };
    case.add("embeddings.word_embeddings.weight", &[30, 8]);
    case.add("embeddings.token_type_embeddings.weight", &[1, 8]);
    for (name, rows, columns) in [
        ("layers.0.self_attn.q_proj", 8, 8),
        ("layers.0.self_attn.k_proj", 8, 8),
        ("layers.0.self_attn.v_proj", 8, 8),
        ("layers.0.self_attn.o_proj", 8, 8),
        ("layers.0.mlp.fc1", 12, 8),
        ("layers.0.mlp.fc2", 8, 12),
        ("pooler.dense", 8, 8),
    ] {
        case.add(&format!("{name}.weight"), &[rows, columns]);
        case.add(&format!("{name}.bias"), &[rows]);
    }
    let norms = ["layers.0.post_attention_layernorm", "layers.0.post_mlp_layernorm"];
    for name in ["embeddings.LayerNorm"].iter().chain(&norms) {
        case.add(&format!("{name}.weight"), &[8]);
        case.add(&format!("{name}.bias"), &[8]);
    }
    case
}

#[test]
fn jina_embeddings_v3_rotates_queries_and_keys() {
    let mut case = jina_v3();
    let network = case.read().unwrap();
    assert_eq!(network.architecture, "jina-bert-v3");
    assert_eq!(key(&network, "jina-bert-v3.rope.freq_base"), Some(&Entry::F32(30000.0)));
    assert_eq!(key(&network, "jina-bert-v3.context_length"), Some(&Entry::U32(20)));
    let names: Vec<String> = case.taken().into_iter().map(|(name, _)| name).collect();
    for name in ["blk.0.attn_q.bias", "blk.0.ffn_down.weight", "blk.0.layer_output_norm.bias"] {
        assert!(names.iter().any(|found| found == name), "{name} of {names:?}");
    }
    assert!(!names.iter().any(|name| name.contains("position")), "{names:?}");
    case.config["rope_parameters"]["rope_type"] = "yarn".into();
    case.fails("rope_type");
    // The first form of the model has the adapters among the weights.
    let mut first = bert("XLMRobertaModel", "roberta.");
    first.config["lora_adaptations"] = json!(["retrieval.query"]);
    first.fails("jina-embeddings-v3-hf");
}

#[test]
fn adapters_of_encoders_are_for_the_tensors_of_their_bases() {
    for (case, names) in [
        (
            bert("BertModel", ""),
            [
                ("encoder.layer.0.attention.self.query.weight", Some("blk.0.attn_q.weight")),
                ("bert.embeddings.token_type_embeddings.weight", Some("token_types.weight")),
                ("encoder.layer.1.attention.self.query.weight", None),
            ],
        ),
        (
            jina_v3(),
            [
                ("layers.0.mlp.fc1.weight", Some("blk.0.ffn_up.weight")),
                ("roberta.embeddings.word_embeddings.weight", Some("token_embd.weight")),
                ("layers.0.mlp.fc3.weight", None),
            ],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), case.config.to_string()).unwrap();
        let side = SideFiles::new(folder.path(), None, &SmallFiles::default());
        let mut wanted: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        wanted.push("pooler.dense.weight");
        let base = super::super::base(&side, &wanted).unwrap();
        for ((name, expected), found) in names.iter().zip(&base.places) {
            let found = found.as_ref().map(|place| match &place.rules[..] {
                [Rule::Take { name, .. }] => name.as_str(),
                other => panic!("{name}: {} rules", other.len()),
            });
            assert_eq!(found, *expected, "{name}");
        }
        let pooler = base.places[names.len()].as_ref().unwrap();
        assert!(matches!(pooler.rules[..], [Rule::Skip(_)]), "it is left out");
    }
}
