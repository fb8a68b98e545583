//! Adapters: PEFT folders into GGUF, what is refused, and models with adapters merged into them. Beside PEFT itself: `python -m evidence agree adapters`.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use alight_convert::{Conversion, Options, QuantizationMix, Request, ScaledAdapter, merge};
use alight_formats::GgmlType::{self, F32};
use alight_formats::adapter::{AdapterFile, TensorChange};
use alight_formats::gguf::{self, write::Builder};
use serde_json::{Map, Value, json};

use crate::folders::temporary;

const HIDDEN: usize = 8;
const VOCAB: usize = 32;

type Tensors = Vec<(String, Vec<usize>)>;

/// The numbers of a tensor: small, whole, different.
fn some(name: &str, n: usize) -> Vec<f32> {
    let seed = name.bytes().fold(7usize, |sum, byte| (sum * 31 + usize::from(byte)) % 1009);
    (0..n).map(|i| ((i * 7 + seed) % 17) as f32 - 8.0).collect()
}

fn write_safetensors(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape) in tensors {
        let begin = data.len();
        let values = some(name, shape.iter().product());
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let offsets = json!([begin, data.len()]);
        header
            .insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}));
    }
    let header = Value::Object(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat())
        .unwrap();
}

/// A base of which there is only the configuration, and an adapter of it.
struct Made {
    folder: tempfile::TempDir,
    base: Value,
    config: Value,
    tensors: Tensors,
}

impl Made {
    /// Llama with two heads of four rows, and an adapter of its queries and its output.
    fn new() -> Made {
        let base = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": VOCAB,
            "intermediate_size": 12, "max_position_embeddings": 64, "tie_word_embeddings": false
        });
        let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "someone/base"});
        let mut made = Made { folder: temporary(), base, config, tensors: Vec::new() };
        made.add("model.layers.1.self_attn.q_proj.lora_A.weight", &[2, HIDDEN]);
        made.add("model.layers.1.self_attn.q_proj.lora_B.weight", &[HIDDEN, 2]);
        made
    }

    fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push((format!("base_model.model.{name}"), shape.to_vec()));
    }

    fn converted_to(&self, mix: Option<QuantizationMix>) -> Result<Vec<u8>, String> {
        let (base, lora) = (self.folder.path().join("base"), self.folder.path().join("lora"));
        fs::create_dir_all(&base).unwrap();
        fs::create_dir_all(&lora).unwrap();
        fs::write(base.join("config.json"), self.base.to_string()).unwrap();
        fs::write(lora.join("adapter_config.json"), self.config.to_string()).unwrap();
        write_safetensors(&lora.join("adapter_model.safetensors"), &self.tensors);
        let out = self.folder.path().join("lora.gguf");
        let request = Request { base: Some(&base), mix, ..Request::default() };
        let planned = Conversion::plan(&lora, request).map_err(|error| error.to_string())?;
        let options = Options { force: true, ..Options::default() };
        planned
            .write(&out, 2, options, &mut |_| ControlFlow::Continue(()))
            .map_err(|error| error.to_string())?;
        Ok(fs::read(out).unwrap())
    }

    fn converted(&self) -> Vec<u8> {
        self.converted_to(None).unwrap()
    }

    /// The error with these values of the configuration.
    fn refused(&self, values: &[(&str, Value)]) -> String {
        let mut config = self.config.clone();
        values.iter().for_each(|(key, value)| config[*key] = value.clone());
        let Made { base, tensors, .. } = self;
        let made =
            Made { folder: temporary(), base: base.clone(), config, tensors: tensors.clone() };
        made.converted_to(None).unwrap_err()
    }
}

fn numbers(file: &[u8], name: &str) -> (Vec<u64>, Vec<f32>) {
    let parsed = gguf::parse(file).unwrap();
    let info = parsed.tensor(name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(info.ty, F32, "{name}");
    let values =
        file[info.range()].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    (info.shape().to_vec(), values.collect())
}

#[test]
fn rows_of_queries_are_in_the_order_of_gguf_and_scales_are_in_the_second_factor() {
    let name =
        |half| format!("base_model.model.model.layers.1.self_attn.q_proj.lora_{half}.weight");
    let (a, b) = (some(&name("A"), 16), some(&name("B"), 16));
    let permuted: Vec<f32> =
        [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|row| b[row * 2..][..2].to_vec()).collect();
    let mut made = Made::new();
    for (values, factor) in [
        (vec![], 1.0),
        (vec![("alpha_pattern", json!({"self_attn.q_proj": 8}))], 2.0),
        (vec![("alpha_pattern", json!({r"layers\.1\..*": 8, "q_proj": 2}))], 2.0),
        (vec![("alpha_pattern", json!({"k_proj": 8, "layers.0.self_attn.q_proj": 8}))], 1.0),
        (
            vec![
                ("use_rslora", json!(true)),
                ("r", json!(7)),
                ("rank_pattern", json!({"q_proj": 2})),
            ],
            2f64.sqrt(),
        ),
    ] {
        made.config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "someone/base"});
        values.into_iter().for_each(|(key, value)| made.config[key] = value);
        let file = made.converted();
        let parsed = gguf::parse(&file[..]).unwrap();
        let adapter = AdapterFile::read(&parsed).unwrap();
        assert_eq!((adapter.architecture, adapter.alpha, adapter.changes.len()), ("llama", 4.0, 1));
        assert!(matches!(adapter.changes["blk.1.attn_q.weight"], TensorChange::LowRank(_)));
        assert_eq!(parsed.get_str("general.base_model.0.name").unwrap(), Some("base"));
        assert_eq!(numbers(&file, "blk.1.attn_q.weight.lora_a"), (vec![8, 2], a.clone()));
        let scaled = permuted.iter().map(|value| (f64::from(*value) * factor) as f32).collect();
        assert_eq!(numbers(&file, "blk.1.attn_q.weight.lora_b"), (vec![2, 8], scaled));
    }
    let half = made.converted_to(Some(QuantizationMix::BF16)).unwrap();
    assert_eq!(
        gguf::parse(&half[..]).unwrap().tensor("blk.1.attn_q.weight.lora_a").unwrap().ty,
        GgmlType::BF16
    );
    assert!(made.converted_to(Some(QuantizationMix::Q8_0)).unwrap_err().contains("cannot be q8_0"));
}

#[test]
fn what_an_adapter_cannot_be_is_an_error_with_its_name() {
    let made = Made::new();
    for (key, value, expected) in [
        ("peft_type", json!("LOHA"), "peft_type is \"LOHA\", expected \"LORA\""),
        ("init_lora_weights", json!("pissa_niter_4"), "init_lora_weights is \"pissa_niter_4\""),
        ("layer_replication", json!([[0, 2], [1, 2]]), "layer_replication is an array of 2"),
        ("trainable_token_indices", json!([1]), "trainable_token_indices"),
        ("new_kind_of_lora", json!(0.5), "new_kind_of_lora is 0.5: this field is not known"),
        ("use_dora", json!(true), "use_dora is true"),
        ("r", json!(3), "of rank 2, expected 3"),
        ("r", json!(1e9), "r is 1000000000"),
        ("lora_alpha", json!("four"), "lora_alpha is \"four\""),
        ("alpha_pattern", json!({"(": 1}), "\"(\" is no pattern"),
        ("alpha_pattern", json!({"(a{1000}){1000}": 1}), "is no pattern"),
        ("alora_invocation_tokens", json!([-1]), "alora_invocation_tokens"),
    ] {
        let found = made.refused(&[(key, value)]);
        assert!(found.contains(expected), "{found}\n  without {expected}");
    }
    // Values that change nothing.
    let mut quiet = Made::new();
    quiet.config["new_kind_of_lora"] = Value::Null;
    quiet.config["use_qalora"] = json!(false);
    quiet.config["init_lora_weights"] = json!("gaussian");
    quiet.converted();
    let with = |tensors: &[(&str, &[usize])]| {
        let mut made = Made::new();
        tensors.iter().for_each(|(name, shape)| made.add(name, shape));
        made.converted_to(None).unwrap_err()
    };
    let half = "model.layers.0.mlp.up_proj.lora_A.weight";
    for (found, expected) in [
        (with(&[(half, &[2, 8])]), "without the other half"),
        (with(&[("model.layers.0.mlp.up_proj.lora_E", &[2])]), "no meaning that is known"),
        (
            with(&[
                ("model.layers.2.mlp.up_proj.lora_A.weight", &[2, 8]),
                ("model.layers.2.mlp.up_proj.lora_B.weight", &[12, 2]),
            ]),
            "which the base does not have",
        ),
        (
            with(&[
                ("model.layers.0.mlp.other.lora_A.weight", &[2, 8]),
                ("model.layers.0.mlp.other.lora_B.weight", &[12, 2]),
            ]),
            "which the base does not have",
        ),
        (
            with(&[(half, &[2, 8]), ("model.layers.0.mlp.up_proj.lora_B.weight", &[13, 2])]),
            "does not fit the base's [12, 8]",
        ),
        (
            with(&[(half, &[2, 8]), ("model.layers.0.mlp.up_proj.lora_B.weight", &[12, 3])]),
            "does not fit",
        ),
        (with(&[("score.weight", &[2, 8])]), "\"base_model.model.score.weight\" is of no tensor"),
        (with(&[("lm_head.weight", &[VOCAB + 1, HIDDEN])]), "expected [32, 8]"),
        (
            with(&[("model.embed_tokens.base_layer.weight", &[VOCAB + 1, HIDDEN])]),
            "a vocabulary that has grown",
        ),
        (
            with(&[("model.embed_tokens.token_adapter.trainable_tokens_delta", &[1, 8])]),
            "trainable_token_indices",
        ),
        (
            with(&[("model.layers.1.self_attn.q_proj.lora_A.default.weight", &[2, 8])]),
            "are for the same",
        ),
    ] {
        assert!(found.contains(expected), "{found}\n  without {expected}");
    }
    // A pickle, and a folder without the adapter.
    let folder = temporary();
    fs::write(folder.path().join("adapter_config.json"), "{}").unwrap();
    let error = |path: &Path| Conversion::plan(path, Request::default()).err().unwrap().to_string();
    assert!(error(folder.path()).contains("adapter_model.safetensors' does not exist"));
    fs::write(folder.path().join("adapter_model.bin"), b"PK\x03\x04").unwrap();
    assert!(error(folder.path()).contains("pickle"));
    let lone = Made::new();
    lone.converted();
    let found = error(&lone.folder.path().join("lora"));
    assert!(found.contains("--base") && found.contains("someone/base"), "{found}");
}

/// A model of one layer, in F32.
fn model(folder: &Path, tied: bool) -> std::path::PathBuf {
    let mut builder = Builder::new();
    builder.str("general.architecture", "llama").str("general.name", "base");
    let (hidden, vocab) = (HIDDEN as u64, VOCAB as u64);
    builder.tensor("token_embd.weight", F32, &[hidden, vocab]).unwrap();
    if !tied {
        builder.tensor("output.weight", F32, &[hidden, vocab]).unwrap();
    }
    builder.tensor("blk.0.attn_norm.weight", F32, &[hidden]).unwrap();
    builder.tensor("blk.0.attn_qkv.weight", F32, &[hidden, 16]).unwrap();
    builder.tensor("blk.0.ffn_up.weight", F32, &[hidden, 12]).unwrap();
    let names: Vec<String> = builder.layout().iter().map(|tensor| tensor.name.clone()).collect();
    let bytes = builder.file(|tensor, out| {
        let values = some(&names[tensor], out.len() / 4);
        out.copy_from_slice(
            &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
        );
    });
    let path = folder.join("model.gguf");
    fs::write(&path, bytes).unwrap();
    path
}

/// An adapter of alpha 2 with these tensors.
fn adapter(folder: &Path, name: &str, tensors: &[(&str, &[u64])]) -> std::path::PathBuf {
    let mut builder = Builder::new();
    builder
        .str("general.architecture", "llama")
        .str("general.type", "adapter")
        .str("adapter.type", "lora");
    builder.f32("adapter.lora.alpha", 2.0);
    for (name, shape) in tensors {
        builder.tensor(name, F32, shape).unwrap();
    }
    let bytes = builder.file(|tensor, out| {
        let values = some(tensors[tensor].0, out.len() / 4);
        out.copy_from_slice(
            &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>(),
        );
    });
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn merged(
    model: &Path,
    adapters: &[(&Path, f32)],
    mix: Option<QuantizationMix>,
) -> Result<Vec<u8>, String> {
    let out = model.with_extension("out");
    let adapters: Vec<_> =
        adapters.iter().map(|(path, scale)| ScaledAdapter { path, scale: *scale }).collect();
    let options = Options { force: true, ..Options::default() };
    let done = merge(model, &adapters, mix, &out, 2, options, &mut |_| ControlFlow::Continue(()));
    done.map_err(|error| error.to_string())?;
    Ok(fs::read(out).unwrap())
}

#[test]
fn a_merged_model_has_the_sum_and_all_else_as_it_was() {
    let folder = temporary();
    let path = model(folder.path(), true);
    let before = fs::read(&path).unwrap();
    let up = "blk.0.ffn_up.weight";
    let one = adapter(
        folder.path(),
        "one",
        &[("blk.0.ffn_up.weight.lora_a", &[8, 2]), ("blk.0.ffn_up.weight.lora_b", &[2, 12])],
    );
    let two = adapter(
        folder.path(),
        "two",
        &[
            ("blk.0.ffn_up.weight.lora_a", &[8, 1]),
            ("blk.0.ffn_up.weight.lora_b", &[1, 12]),
            ("blk.0.attn_norm.weight.lora_delta", &[8]),
            ("blk.0.attn_v.weight.lora_a", &[8, 1]),
            ("blk.0.attn_v.weight.lora_b", &[1, 4]),
            ("token_embd.weight.lora_a", &[2, 32]),
            ("token_embd.weight.lora_b", &[2, 8]),
        ],
    );
    let file = merged(&path, &[(&one, 1.0), (&two, -0.5)], None).unwrap();
    let product = |name: &str, rank: usize, row: usize, column: usize| -> f32 {
        let rows = some(&format!("{name}.lora_b"), 64 * rank);
        let columns = some(&format!("{name}.lora_a"), 8 * rank);
        (0..rank).map(|k| rows[row * rank + k] * columns[k * 8 + column]).sum()
    };
    let base = |name: &str| numbers(&before, name).1;
    let expected = (0..12 * 8).map(|i| {
        let (row, column) = (i / 8, i % 8);
        // Alpha / rank is 1 and 2.
        base(up)[i] + product(up, 2, row, column) - product(up, 1, row, column)
    });
    assert_eq!(numbers(&file, up).1, expected.collect::<Vec<_>>());
    let qkv = "blk.0.attn_qkv.weight";
    let expected = (0..16 * 8).map(|i| {
        let (row, column) = (i / 8, i % 8);
        // Values are the last four rows.
        base(qkv)[i]
            - if row >= 12 { product("blk.0.attn_v.weight", 1, row - 12, column) } else { 0.0 }
    });
    assert_eq!(numbers(&file, qkv).1, expected.collect::<Vec<_>>());
    let (a, b) = (some("token_embd.weight.lora_a", 64), some("token_embd.weight.lora_b", 16));
    let embedding = base("token_embd.weight");
    let expected = (0..32 * 8).map(|i| {
        let (token, column) = (i / 8, i % 8);
        embedding[i] - 0.5 * (a[token * 2] * b[column * 2] + a[token * 2 + 1] * b[column * 2 + 1])
    });
    assert_eq!(numbers(&file, "token_embd.weight").1, expected.collect::<Vec<_>>());
    // The output was the embedding, and stays.
    assert_eq!(numbers(&file, "output.weight").1, embedding);
    let delta = some("blk.0.attn_norm.weight.lora_delta", 8);
    let expected = base("blk.0.attn_norm.weight")
        .iter()
        .zip(delta)
        .map(|(w, d)| w - 0.5 * d)
        .collect::<Vec<_>>();
    assert_eq!(numbers(&file, "blk.0.attn_norm.weight").1, expected);
    assert_eq!(gguf::parse(&file[..]).unwrap().get_str("general.name").unwrap(), Some("base"));
    // At the scale 0, and without what the second adds.
    let same = merged(&path, &[(&one, 0.0)], None).unwrap();
    for name in [up, qkv, "token_embd.weight", "blk.0.attn_norm.weight"] {
        assert_eq!(numbers(&same, name), numbers(&before, name), "{name}");
    }
    let half = merged(&path, &[(&one, 1.0)], Some(QuantizationMix::F16)).unwrap();
    assert_eq!(gguf::parse(&half[..]).unwrap().tensor(up).unwrap().ty, GgmlType::F16);
}

#[test]
fn full_tensors_replace_those_of_the_model_and_biases_are_added() {
    let folder = temporary();
    let path = model(folder.path(), false);
    let one = adapter(
        folder.path(),
        "one",
        &[
            ("output.weight.lora_override", &[8, 32]),
            ("blk.0.ffn_up.weight.lora_a", &[8, 4]),
            ("blk.0.ffn_up.weight.lora_b", &[4, 12]),
            ("blk.0.ffn_up.weight.lora_bias", &[12]),
        ],
    );
    let file = merged(&path, &[(&one, 1.0)], None).unwrap();
    assert_eq!(numbers(&file, "output.weight").1, some("output.weight.lora_override", 256));
    let bias: Vec<f32> =
        some("blk.0.ffn_up.weight.lora_bias", 12).iter().map(|value| value * 0.5).collect();
    assert_eq!(numbers(&file, "blk.0.ffn_up.bias"), (vec![12], bias));
    assert!(merged(&path, &[(&one, 0.5)], None).unwrap_err().contains("at the scale 0.5"));
    assert!(
        merged(&path, &[(&one, 1.0), (&one, 1.0)], None)
            .unwrap_err()
            .contains("another adapter replaces too")
    );
}

#[test]
fn an_adapter_of_another_model_is_not_merged() {
    let folder = temporary();
    let path = model(folder.path(), false);
    let refused = |tensors: &[(&str, &[u64])]| {
        let other = adapter(folder.path(), "other", tensors);
        merged(&path, &[(&other, 1.0)], None).unwrap_err()
    };
    for (found, expected) in [
        (
            refused(&[
                ("blk.1.ffn_up.weight.lora_a", &[8, 2]),
                ("blk.1.ffn_up.weight.lora_b", &[2, 12]),
            ]),
            "no tensor \"blk.1.ffn_up.weight\"",
        ),
        (
            refused(&[
                ("blk.0.ffn_up.weight.lora_a", &[8, 2]),
                ("blk.0.ffn_up.weight.lora_b", &[2, 13]),
            ]),
            "is [8, 12], expected [8, 13]",
        ),
        (
            refused(&[
                ("blk.0.ffn_up.weight.lora_a", &[8, 2, 3]),
                ("blk.0.ffn_up.weight.lora_b", &[2, 12, 3]),
            ]),
            "expected [8, 12, 3]",
        ),
        (
            refused(&[
                ("blk.0.attn_v.weight.lora_a", &[8, 2]),
                ("blk.0.attn_v.weight.lora_b", &[2, 17]),
            ]),
            "no tensor \"blk.0.attn_v.weight\"",
        ),
        (refused(&[("blk.0.ffn_up.weight", &[8, 12])]), "none of the suffixes"),
    ] {
        assert!(found.contains(expected), "{found}\n  without {expected}");
    }
    assert!(merged(&path, &[(&path, 1.0)], None).unwrap_err().contains("not an adapter"));
    let one = adapter(
        folder.path(),
        "one",
        &[("blk.0.ffn_up.weight.lora_a", &[8, 2]), ("blk.0.ffn_up.weight.lora_b", &[2, 12])],
    );
    // The new file is neither of its sources.
    let options = Options { force: true, ..Options::default() };
    let adapters = [ScaledAdapter { path: &one, scale: 1.0 }];
    let done = merge(&path, &adapters, None, &one, 1, options, &mut |_| ControlFlow::Continue(()));
    assert!(done.is_err());
    let kept = fs::read(&one).unwrap();
    assert!(AdapterFile::read(&gguf::parse(&kept[..]).unwrap()).is_ok());
}
