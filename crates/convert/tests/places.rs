//! Where rows, columns and matrices of Hugging Face's tensors are in GGUF's, of architectures that have another order, and matrices
//! of F8.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use alight_convert::{Conversion, Options, QuantizationMix, Request};
use alight_formats::{GgmlType, gguf};
use serde_json::{Map, Value, json};

use crate::folders::{STEP, Tensor, convert, spm, temporary, write_folder};

/// A folder of these tensors, of `config` and what all have.
fn made(folder: &Path, shapes: &[(&str, &[usize])], config: Value) -> (Vec<Tensor>, Vec<u8>) {
    let mut all = json!({
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 384,
        "intermediate_size": 12, "max_position_embeddings": 64, "tie_word_embeddings": true
    });
    let outside: [(&str, &[usize]); 2] =
        [("model.embed_tokens.weight", &[384, 8]), ("model.norm.weight", &[8])];
    let layer = ["input_layernorm.weight", "post_attention_layernorm.weight"];
    let layer = layer.map(|name| (format!("model.layers.0.{name}"), &[8usize][..]));
    let shapes = shapes.iter().map(|(name, shape)| (format!("model.layers.0.{name}"), *shape));
    let outside = outside.map(|(name, shape)| (name.to_owned(), shape));
    let tensors = outside.into_iter().chain(layer).chain(shapes).enumerate();
    let tensors: Vec<Tensor> = tensors
        .map(|(i, (name, shape))| {
            // These become powers of e.
            let first = if name.ends_with("A_log") { 0 } else { i * STEP };
            Tensor { name, shape: shape.to_vec(), first }
        })
        .collect();
    for (key, value) in config.as_object().unwrap() {
        all[key] = value.clone();
    }
    write_folder(folder, &tensors, &all);
    let (_, file) = convert(folder);
    (tensors, file)
}

/// A tensor of the file, in numbers.
fn numbers(file: &[u8], name: &str, shape: &[u64]) -> Vec<f32> {
    let parsed = gguf::parse(file).unwrap();
    let info = parsed.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let whole: Vec<u64> = shape.iter().copied().chain([1; 4]).take(4).collect();
    assert_eq!((info.ty, &info.ne[..]), (GgmlType::F32, &whole[..]), "{name}");
    let range = info.range();
    let bytes = &file[range.start as usize..range.end as usize];
    bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Where in the source the rows of the tensor are, in this order.
#[track_caller]
fn rows_are(file: &[u8], tensors: &[Tensor], source: &str, gguf: &str, rows: &[usize]) {
    let tensor = tensors.iter().find(|tensor| tensor.name.ends_with(source)).unwrap();
    let is_vector = tensor.shape.len() == 1;
    let columns = if is_vector { 1 } else { *tensor.shape.last().unwrap() };
    let shape = [columns as u64, rows.len() as u64];
    let found = numbers(file, gguf, if is_vector { &shape[1..] } else { &shape });
    let row = |row: usize| (0..columns).map(move |column| tensor.first + row * columns + column);
    let expected: Vec<f32> = rows.iter().copied().flat_map(row).map(|n| n as f32).collect();
    assert_eq!(found, expected, "{gguf}");
}

const DELTA_NET: [(&str, &[usize]); 4] = [
    ("linear_attn.conv1d.weight", &[32, 1, 4]),
    ("linear_attn.dt_bias", &[6]),
    ("linear_attn.norm.weight", &[2]),
    ("linear_attn.out_proj.weight", &[8, 12]),
];

/// Two key heads, six value heads, each of two numbers; a layer is a delta net.
fn delta_net(class: &str) -> Value {
    json!({
        "architectures": [class], "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_key_head_dim": 2, "linear_value_head_dim": 2, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention"], "num_key_value_heads": 1, "head_dim": 8,
        "num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": 2,
        "shared_expert_intermediate_size": 2
    })
}

#[test]
fn value_heads_of_qwen_3_5_change_places_wherever_they_are() {
    let place = temporary();
    let mut shapes = vec![
        ("linear_attn.in_proj_qkv.weight", &[20, 8][..]),
        ("linear_attn.in_proj_z.weight", &[12, 8]),
        ("linear_attn.in_proj_a.weight", &[6, 8]),
        ("linear_attn.in_proj_b.weight", &[6, 8]),
        ("linear_attn.A_log", &[6]),
        ("mlp.gate_proj.weight", &[12, 8]),
        ("mlp.up_proj.weight", &[12, 8]),
        ("mlp.down_proj.weight", &[8, 12]),
    ];
    shapes.extend(DELTA_NET);
    shapes.iter_mut().filter(|(name, _)| name.contains("conv1d")).for_each(|(_, shape)| {
        *shape = &[20, 1, 4];
    });
    let mut config = delta_net("Qwen3_5ForConditionalGeneration");
    for key in ["num_experts", "num_experts_per_tok"] {
        config.as_object_mut().unwrap().remove(key);
    }
    let (tensors, file) = made(&place.path().join("made"), &shapes, config);
    // The first value head of each key head, then the second, then the third.
    let heads = [0, 3, 1, 4, 2, 5];
    let whole: Vec<usize> = heads.iter().flat_map(|head| [2 * head, 2 * head + 1]).collect();
    let channels: Vec<usize> = (0..8).chain(whole.iter().map(|row| 8 + row)).collect();
    for (source, gguf, rows) in [
        ("in_proj_qkv.weight", "blk.0.attn_qkv.weight", &channels[..]),
        ("in_proj_z.weight", "blk.0.attn_gate.weight", &whole),
        ("in_proj_a.weight", "blk.0.ssm_alpha.weight", &heads),
        ("in_proj_b.weight", "blk.0.ssm_beta.weight", &heads),
        ("conv1d.weight", "blk.0.ssm_conv1d.weight", &channels),
        ("dt_bias", "blk.0.ssm_dt.bias", &heads),
        ("linear_attn.norm.weight", "blk.0.ssm_norm.weight", &[0, 1]),
    ] {
        rows_are(&file, &tensors, source, gguf, rows);
    }
    let out = tensors.iter().find(|tensor| tensor.name.ends_with("out_proj.weight")).unwrap();
    let expected: Vec<f32> = (0..8)
        .flat_map(|row| whole.iter().map(move |column| (out.first + row * 12 + column) as f32))
        .collect();
    assert_eq!(numbers(&file, "blk.0.ssm_out.weight", &[12, 8]), expected);
    let expected = heads.map(|head| -(head as f64).exp() as f32);
    assert_eq!(numbers(&file, "blk.0.ssm_a", &[6]), expected);
}

#[test]
fn what_a_delta_net_of_qwen3_next_takes_is_sorted_by_what_it_is() {
    let place = temporary();
    let mut shapes = vec![
        ("linear_attn.in_proj_qkvz.weight", &[32, 8][..]),
        ("linear_attn.in_proj_ba.weight", &[12, 8]),
        ("linear_attn.A_log", &[6]),
        ("mlp.gate.weight", &[1, 8]),
        ("mlp.experts.gate_up_proj", &[1, 4, 8]),
        ("mlp.experts.down_proj", &[1, 8, 2]),
        ("mlp.shared_expert.gate_proj.weight", &[2, 8]),
        ("mlp.shared_expert.up_proj.weight", &[2, 8]),
        ("mlp.shared_expert.down_proj.weight", &[8, 2]),
        ("mlp.shared_expert_gate.weight", &[1, 8]),
    ];
    shapes.extend(DELTA_NET);
    shapes.iter_mut().filter(|(name, _)| name.contains("conv1d")).for_each(|(_, shape)| {
        *shape = &[20, 1, 4];
    });
    let config = delta_net("Qwen3NextForCausalLM");
    let (tensors, file) = made(&place.path().join("made"), &shapes, config);
    // Of each of two key heads: a query of 2, a key of 2, values of 6, gates of 6.
    let both = |from, to| [from..to, 16 + from..16 + to].into_iter().flatten();
    let all: Vec<usize> = both(0, 2).chain(both(2, 4)).chain(both(4, 10)).collect();
    rows_are(&file, &tensors, "in_proj_qkvz.weight", "blk.0.attn_qkv.weight", &all);
    let gates: Vec<usize> = both(10, 16).collect();
    rows_are(&file, &tensors, "in_proj_qkvz.weight", "blk.0.attn_gate.weight", &gates);
    let rows: Vec<usize> = (0..12).collect();
    rows_are(&file, &tensors, "in_proj_ba.weight", "blk.0.ssm_ba.weight", &rows);
    let find = |name| tensors.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
    let experts = find("gate_up_proj").first;
    for (gguf, first) in [("ffn_gate_exps", experts), ("ffn_up_exps", experts + 16)] {
        let expected: Vec<f32> = (first..first + 16).map(|n| n as f32).collect();
        assert_eq!(numbers(&file, &format!("blk.0.{gguf}.weight"), &[8, 2, 1]), expected);
    }
    let norm = find("input_layernorm.weight").first;
    let expected: Vec<f32> = (norm + 1..norm + 9).map(|n| n as f32).collect();
    assert_eq!(numbers(&file, "blk.0.attn_norm.weight", &[8]), expected);
}

/// Attention with a latent vector of 6 for two heads, each of 3 and 2 numbers of a key, 5 of a value.
const LATENT: [(&str, &[usize]); 7] = [
    ("self_attn.q_proj.weight", &[10, 8]),
    ("self_attn.kv_a_proj_with_mqa.weight", &[8, 8]),
    ("self_attn.kv_a_layernorm.weight", &[6]),
    ("self_attn.kv_b_proj.weight", &[16, 6]),
    ("self_attn.o_proj.weight", &[8, 10]),
    ("mlp.gate_proj.weight", &[12, 8]),
    ("mlp.up_proj.weight", &[12, 8]),
];

fn latent() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": null, "kv_lora_rank": 6,
        "qk_nope_head_dim": 3, "qk_rope_head_dim": 2, "v_head_dim": 5, "first_k_dense_replace": 1,
        "n_routed_experts": 4, "num_experts_per_tok": 1, "num_nextn_predict_layers": 1
    })
}

#[test]
fn keys_and_values_of_deepseek_are_taken_apart_and_keys_transposed() {
    let place = temporary();
    let mut shapes = LATENT.to_vec();
    shapes.push(("mlp.down_proj.weight", &[8, 12]));
    let (tensors, file) = made(&place.path().join("made"), &shapes, latent());
    let first = tensors.iter().find(|tensor| tensor.name.contains("kv_b")).unwrap().first;
    let at =
        |head: usize, row: usize, column: usize| (first + (head * 8 + row) * 6 + column) as f32;
    let mut expected = Vec::new();
    for head in 0..2 {
        for column in 0..6 {
            expected.extend((0..3).map(|row| at(head, row, column)));
        }
    }
    assert_eq!(numbers(&file, "blk.0.attn_k_b.weight", &[3, 6, 2]), expected);
    let mut expected = Vec::new();
    for head in 0..2 {
        for row in 3..8 {
            expected.extend((0..6).map(|column| at(head, row, column)));
        }
    }
    assert_eq!(numbers(&file, "blk.0.attn_v_b.weight", &[6, 5, 2]), expected);
}

/// The same with matrices of F8 and a scale for each tile of 4 rows and 3 columns, beside the same in F32, which have to become
/// BF16 alike.
#[test]
fn tiles_of_f8_are_multiplied_by_their_scales() {
    let place = temporary();
    let mut shapes = LATENT.to_vec();
    shapes.push(("mlp.down_proj.weight", &[8, 12]));
    let (tensors, _) = made(&place.path().join("f8"), &shapes, latent());
    let mut config: Value =
        serde_json::from_slice(&fs::read(place.path().join("f8/config.json")).unwrap()).unwrap();
    // Written again, with other numbers: F8 with a sign, an exponent and a mantissa of each kind.
    let value = |byte: u8| {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
        let size = match exponent {
            0 => mantissa * 2f32.powi(-6),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
        };
        if byte >> 7 == 0 { size } else { -size }
    };
    let byte = |i: usize| match (i * 37 % 256) as u8 {
        0x7f | 0xff => 0,
        byte => byte,
    };
    let scale = |row: usize, column: usize| 0.25 + (row * 7 + column) as f32;
    for is_f8 in [true, false] {
        let folder = place.path().join(if is_f8 { "f8" } else { "f32" });
        fs::create_dir_all(&folder).unwrap();
        let (mut header, mut data) = (Map::new(), Vec::new());
        let mut add = |name: String, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
            let offsets = json!([data.len(), data.len() + bytes.len()]);
            header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend(bytes);
        };
        for Tensor { name, shape, .. } in &tensors {
            let count: usize = shape.iter().product();
            let in_f8 = shape.len() == 2 && name.contains("layers");
            let columns = *shape.last().unwrap();
            let number = |i: usize| match in_f8 {
                true => value(byte(i)) * scale(i / columns / 4, i % columns / 3),
                false => i as f32,
            };
            if in_f8 && is_f8 {
                let tiles = [shape[0].div_ceil(4), columns.div_ceil(3)];
                let scales = (0..tiles[0] * tiles[1]).map(|i| scale(i / tiles[1], i % tiles[1]));
                let scales = scales.flat_map(f32::to_le_bytes).collect();
                add(format!("{name}_scale_inv"), "F32", &tiles, scales);
                add(name.clone(), "F8_E4M3", shape, (0..count).map(byte).collect());
            } else {
                let bytes = (0..count).flat_map(|i| number(i).to_le_bytes()).collect();
                add(name.clone(), "F32", shape, bytes);
            }
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        fs::write(folder.join("model.safetensors"), file).unwrap();
        if is_f8 {
            config["quantization_config"] =
                json!({"quant_method": "fp8", "weight_block_size": [4, 3]});
        } else {
            config.as_object_mut().unwrap().remove("quantization_config");
        }
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        fs::write(folder.join("tokenizer.model"), spm(384)).unwrap();
    }
    let (_, f8) = convert(&place.path().join("f8"));
    let request = Request { mix: Some(QuantizationMix::BF16), ..Request::default() };
    let conversion = Conversion::plan(&place.path().join("f32"), request).unwrap();
    let out = place.path().join("bf16.gguf");
    let mut go_on = |_| ControlFlow::Continue(());
    conversion.write(&out, 2, Options { force: true, ..Options::default() }, &mut go_on).unwrap();
    let plain = fs::read(out).unwrap();
    let (f8_parsed, parsed) = (gguf::parse(&f8).unwrap(), gguf::parse(&plain).unwrap());
    let mut compared = 0;
    for info in parsed.tensors.iter().filter(|info| info.name.starts_with("blk")) {
        let other = f8_parsed.tensor(info.name).unwrap();
        assert_eq!((info.ty, info.ne), (other.ty, other.ne), "{}", info.name);
        let bytes = |file: &[u8], range: std::ops::Range<usize>| file[range].to_vec();
        assert_eq!(bytes(&f8, other.range()), bytes(&plain, info.range()), "{}", info.name);
        compared += usize::from(info.ty == GgmlType::BF16);
    }
    assert_eq!(compared, 8);
}
