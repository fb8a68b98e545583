//! Folders of Hugging Face's, of every architecture and form of configuration: where each weight ends
//! up, told by its value, and an output that should be the embedding.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use alight_convert::{Conversion, ConvertError, Options, Request};
use alight_formats::GgmlType;
use alight_formats::gguf;
use alight_pages::ReplaceError;
use serde_json::{Map, Value, json};

use crate::folders::{STEP, Tensor, byte, convert, is_packed, temporary, write_folder};

/// The tensors of a case of `python -m evidence make hf-models`, and its configuration.
fn case(name: &str) -> (Vec<Tensor>, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs");
    let lines = fs::read_to_string(folder.join(format!("{name}.tensors"))).unwrap();
    let tensor = |(i, line): (usize, &str)| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        Tensor { name, shape: words.map(|n| n.parse().unwrap()).collect(), first: i * STEP }
    };
    let tensors: Vec<Tensor> = lines.lines().enumerate().map(tensor).collect();
    assert!(tensors.len() * STEP < 1 << 24);
    let config = fs::read(folder.join(format!("{name}.json"))).unwrap();
    (tensors, serde_json::from_slice(&config).unwrap())
}

/// By our own hand: what a tensor of the case is called in GGUF, `None` if it is not there.
fn renamed(case: &str, name: &str) -> Option<String> {
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let name = name.strip_prefix("model.").unwrap_or(name);
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    if let Some((start, rest)) = name.split_once("mlp.experts.") {
        let (_, part) = rest.split_once('.').unwrap();
        let part = part.replace("_proj", "_exps");
        return Some(format!("{}ffn_{part}", start.replace("layers.", "blk.")));
    }
    if let Some((start, rest)) = name.split_once("block_sparse_moe.experts.") {
        let (_, part) = rest.split_once('.').unwrap();
        let part = part.replace("w1", "gate").replace("w3", "up").replace("w2", "down");
        let part = part.replace(".weight", "_exps.weight");
        return Some(format!("{}ffn_{part}", start.replace("layers.", "blk.")));
    }
    if name.contains("inv_freq") || name.contains("vision") || name.contains("multi_modal") {
        return None;
    }
    let mut out = name.replace("layers.", "blk.");
    let norms = match case {
        _ if case.starts_with("gemma") => {
            ("post_attention_norm", "pre_feedforward_layernorm", "ffn_norm")
        }
        "seed_oss" | "gpt_oss" | "olmo2" | "olmo3" => ("post_attention_norm", "-", "-"),
        _ => ("ffn_norm", "-", "-"),
    };
    for (from, to) in [
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("mlp.router.", "ffn_gate_inp."),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("block_sparse_moe.router.layer.", "ffn_gate_inp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", norms.0),
        (norms.1, norms.2),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
    ] {
        out = out.replace(from, to);
    }
    Some(if out == "norm.weight" { "output_norm.weight".into() } else { out })
}

#[test]
fn every_weight_of_every_architecture_is_where_it_belongs() {
    let place = temporary();
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs");
    let files = fs::read_dir(configs).unwrap().map(|entry| entry.unwrap().path());
    let is_case = |path: &PathBuf| path.extension().is_some_and(|end| end == "tensors");
    let mut checked = 0;
    for path in files.filter(is_case) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let (tensors, config) = case(name);
        let folder = place.path().join(name);
        write_folder(&folder, &tensors, &config);
        let (_, file) = convert(&folder);
        let parsed = gguf::parse(&file).unwrap();
        let arch = parsed.value::<&str>("general.architecture").unwrap().unwrap();
        let is_llama = ["llama", "smollm3", "granitemoe"].contains(&arch);
        let mut expected = usize::from(parsed.tensor("rope_freqs.weight").is_some());
        for tensor in &tensors {
            if tensor.name.contains("put_linear") {
                // See the last test but one.
                expected += if tensor.name.contains("input") { 2 } else { 1 };
                continue;
            }
            if name == "gpt_oss" && tensor.name.contains(".experts.") {
                // See the test below.
                let counted = !is_packed(&tensor.name) || tensor.name.ends_with("_blocks");
                let gate_and_up = tensor.name.contains("gate_up");
                expected += usize::from(counted) * (1 + usize::from(gate_and_up));
                continue;
            }
            let Some(new) = renamed(name, &tensor.name) else { continue };
            // The one that should be the embedding, is not, and has no place.
            if name == "gemma2" && new == "output.weight" {
                continue;
            }
            // The experts of a layer are one tensor, contiguous in their order.
            let expert = tensor.name.split_once("experts.");
            let expert = expert.map(|(_, rest)| rest.split('.').next().unwrap().parse().unwrap());
            let expert: Option<usize> = expert;
            expected += usize::from(expert.unwrap_or(0) == 0);
            let info = parsed.tensor(&new).unwrap_or_else(|| panic!("{name}: {new}"));
            assert_eq!(info.ty, GgmlType::F32);
            let range = info.range();
            let mut found: Vec<f32> = file[range.start as usize..range.end as usize]
                .chunks(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            let columns = tensor.shape.get(1).copied().unwrap_or(1);
            let rows = tensor.shape[0];
            let mut shape = [columns as u64, rows as u64, 1, 1];
            if tensor.shape.len() == 1 {
                shape = [rows as u64, 1, 1, 1];
            }
            if let Some(expert) = expert {
                let elements = rows * columns;
                shape[2] = (found.len() / elements) as u64;
                assert!(shape[2] > 3, "{name}: {new}");
                found = found[expert * elements..][..elements].to_vec();
            }
            assert_eq!(info.ne, shape, "{name}: {new}");
            let of = |key: &str| config[key].as_u64().unwrap_or(4) as usize;
            let heads = match new.rsplit('.').nth(1) {
                Some("attn_q") if is_llama => of("num_attention_heads"),
                Some("attn_k") if is_llama => of("num_key_value_heads"),
                _ => 0,
            };
            let add = if name.starts_with("gemma") && new.ends_with("norm.weight") { 1 } else { 0 };
            for (i, found) in found.iter().enumerate() {
                let (row, column) = (i / columns, i % columns);
                let source = match heads {
                    0 => row,
                    heads => {
                        let d = rows / heads;
                        let (head, row) = (row / d, row % d);
                        head * d + row % 2 * (d / 2) + row / 2
                    }
                };
                let value = tensor.first + source * columns + column + add;
                assert_eq!(*found, value as f32, "{name}: {new}, row {row}, column {column}");
            }
        }
        assert_eq!(parsed.tensors.len(), expected, "{name}");
        checked += 1;
    }
    assert!(checked > 20);
}

#[test]
fn gate_and_up_of_granite_are_halves_of_one_tensor() {
    let place = temporary();
    let (tensors, config) = case("granitemoe-shared");
    let folder = place.path().join("granitemoe-shared");
    write_folder(&folder, &tensors, &config);
    let (_, file) = convert(&folder);
    let parsed = gguf::parse(&file).unwrap();
    for (new, source, half) in [
        ("ffn_gate_exps", "block_sparse_moe.input_linear", Some(0)),
        ("ffn_up_exps", "block_sparse_moe.input_linear", Some(1)),
        ("ffn_down_exps", "block_sparse_moe.output_linear", None),
        ("ffn_gate_shexp", "shared_mlp.input_linear", Some(0)),
        ("ffn_up_shexp", "shared_mlp.input_linear", Some(1)),
        ("ffn_down_shexp", "shared_mlp.output_linear", None),
    ] {
        let source = format!("model.layers.1.{source}.weight");
        let source = tensors.iter().find(|tensor| tensor.name == source).unwrap();
        let (experts, rows, columns) = match source.shape[..] {
            [experts, rows, columns] => (experts, rows, columns),
            _ => (1, source.shape[0], source.shape[1]),
        };
        let taken = if half.is_some() { rows / 2 } else { rows };
        let info = parsed.tensor(&format!("blk.1.{new}.weight")).unwrap();
        assert_eq!(info.ne, [columns, taken, experts, 1].map(|n| n as u64), "{new}");
        let range = info.range();
        let bytes = &file[range.start as usize..range.end as usize];
        for (i, bytes) in bytes.chunks(4).enumerate() {
            let (expert, at) = (i / (taken * columns), i % (taken * columns));
            let row = half.unwrap_or(0) * taken + at / columns;
            let value = source.first + (expert * rows + row) * columns + at % columns;
            let found = f32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(found, value as f32, "{new}, {i}");
        }
    }
}

#[test]
fn experts_of_gpt_oss_keep_every_bit_and_gate_and_up_are_taken_apart() {
    let place = temporary();
    let (tensors, config) = case("gpt_oss");
    let folder = place.path().join("gpt_oss");
    write_folder(&folder, &tensors, &config);
    let (_, file) = convert(&folder);
    let parsed = gguf::parse(&file).unwrap();
    let find = |name: &str| tensors.iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
    for (new, source, first, step) in [
        ("ffn_gate_exps", "0.mlp.experts.gate_up_proj", 0, 2),
        ("ffn_up_exps", "0.mlp.experts.gate_up_proj", 1, 2),
        ("ffn_down_exps", "0.mlp.experts.down_proj", 0, 1),
    ] {
        let (blocks, scales) =
            (find(&format!("{source}_blocks")), find(&format!("{source}_scales")));
        let &[experts, rows, per_row, 16] = &blocks.shape[..] else { panic!("{:?}", blocks.shape) };
        let info = parsed.tensor(&format!("blk.0.{new}.weight")).unwrap();
        let shape = [per_row * 32, rows / step, experts, 1].map(|n| n as u64);
        assert_eq!((info.ty, info.ne), (GgmlType::MXFP4, shape), "{new}");
        let range = info.range();
        let mut found = file[range.start as usize..range.end as usize].chunks_exact(17);
        let rows_taken = (0..experts * rows).filter(|row| row % rows % step == first);
        for block in rows_taken.clone().flat_map(|row| row * per_row..(row + 1) * per_row) {
            // A scale, and 32 numbers of four bits: the elements j and j + 16 in byte j.
            let pairs: Vec<u8> = (0..16).map(|i| byte(blocks.first + block * 16 + i)).collect();
            let element =
                |i: usize| if i.is_multiple_of(2) { pairs[i / 2] & 15 } else { pairs[i / 2] >> 4 };
            let mut expected = vec![byte(scales.first + block)];
            expected.extend((0..16).map(|j| element(j) | element(j + 16) << 4));
            assert_eq!(found.next().unwrap(), expected, "{new}, block {block}");
        }
        assert!(found.next().is_none());
        let bias = find(&format!("{source}_bias"));
        let info = parsed.tensor(&format!("blk.0.{new}.bias")).unwrap();
        assert_eq!(info.ne, [(rows / step) as u64, experts as u64, 1, 1]);
        let range = info.range();
        let found: Vec<f32> = file[range.start as usize..range.end as usize]
            .chunks(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        let expected: Vec<f32> = rows_taken.map(|row| (bias.first + row) as f32).collect();
        assert_eq!(found, expected, "{new}");
    }
}

#[test]
fn an_output_is_kept_if_it_is_not_the_embedding_that_it_should_be() {
    let place = temporary();
    let (mut tensors, config) = case("smollm2");
    let embedding = tensors.iter().find(|t| t.name == "model.embed_tokens.weight").unwrap();
    let (shape, first) = (embedding.shape.clone(), embedding.first);
    tensors.push(Tensor { name: "lm_head.weight".into(), shape, first });
    let folder = place.path().join("copy");
    write_folder(&folder, &tensors, &config);
    let (conversion, file) = convert(&folder);
    assert!(gguf::parse(&file).unwrap().tensor("output.weight").is_none());
    let skipped = &conversion.about().skipped;
    assert!(
        matches!(&skipped[..], [(name, why)] if name == "lm_head.weight" && why.contains("embedding"))
    );

    tensors.last_mut().unwrap().first += 1;
    let folder = place.path().join("other");
    write_folder(&folder, &tensors, &config);
    let (conversion, file) = convert(&folder);
    assert!(gguf::parse(&file).unwrap().tensor("output.weight").is_some());
    let notes = conversion.about().notes.join("\n");
    assert!(notes.contains("lm_head.weight") && notes.contains("it is kept"), "{notes}");
    assert!(conversion.about().skipped.is_empty());
}

/// A `tokenizer.json` of so many byte-level tokens, the last of them `last`.
fn bpe(tokens: usize, last: &str) -> String {
    let alphabet = (0..=255u8).map(|byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from(byte),
        _ => char::from_u32(
            256 + (0..byte).filter(|b| !matches!(b, 33..=126 | 161..=172 | 174..=255)).count()
                as u32,
        )
        .unwrap(),
    });
    let mut texts: Vec<String> = alphabet.map(String::from).collect();
    texts.extend((texts.len()..tokens - 1).map(|i| format!("other{i}")));
    texts.push(last.into());
    let vocab: Map<String, Value> =
        texts.iter().enumerate().map(|(i, t)| (t.clone(), json!(i))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}
    })
    .to_string()
}

#[test]
fn a_folder_given_for_the_tokenizer_is_its_tokenizer_and_nothing_else() {
    let place = temporary();
    let (tensors, config) = case("smollm2");
    let folder = place.path().join("model");
    write_folder(&folder, &tensors, &config);
    let rows = config["vocab_size"].as_u64().unwrap() as usize;
    let given = place.path().join("given");
    fs::create_dir(&given).unwrap();
    // Another network's settings, which would run and be wrong, and another kind of tokenizer only.
    let mut other = config.clone();
    other["rope_theta"] = json!(123_456.0);
    other["rms_norm_eps"] = json!(0.25);
    other["bos_token_id"] = json!(5);
    fs::write(given.join("config.json"), other.to_string()).unwrap();
    fs::write(given.join("tokenizer.json"), bpe(rows, "of the folder")).unwrap();
    let plan = |tokenizer: &Path| {
        Conversion::plan(&folder, Request { tokenizer: Some(tokenizer), ..Request::default() })
    };
    let out = place.path().join("out.gguf");
    let mut go_on = |_| ControlFlow::Continue(());
    plan(&given)
        .unwrap()
        .write(&out, 2, Options { force: true, ..Options::default() }, &mut go_on)
        .unwrap();
    let file = fs::read(&out).unwrap();
    let (made, plain) = (gguf::parse(&file).unwrap(), convert(&folder).1);
    let plain = gguf::parse(&plain).unwrap();
    for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
        let value = made.get_f32(key).unwrap();
        assert!(value.is_some() && value == plain.get_f32(key).unwrap(), "{key}: {value:?}");
    }
    assert_eq!(made.get_str("tokenizer.ggml.model").unwrap(), Some("gpt2"));
    let tokens = made.get_strings("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.last(), Some(&b"of the folder"[..]));
    assert_eq!(made.get_u32("tokenizer.ggml.bos_token_id").unwrap(), Some(5));

    let empty = place.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let error = plan(&empty).err().unwrap().to_string();
    for part in ["empty", "tokenizer.json", "tokenizer.model", "--tokenizer"] {
        assert!(error.contains(part), "{error}");
    }
}

/// As a cache of the hub has them: links to files in another folder.
#[test]
fn small_files_are_sources_too_wherever_they_are() {
    let place = temporary();
    let (tensors, config) = case("smollm2");
    let folder = place.path().join("model");
    write_folder(&folder, &tensors, &config);
    let blobs = place.path().join("blobs");
    fs::create_dir(&blobs).unwrap();
    for name in ["config.json", "tokenizer.model"] {
        fs::rename(folder.join(name), blobs.join(name)).unwrap();
        symlink(blobs.join(name), folder.join(name)).unwrap();
    }
    let given = blobs.join("given");
    fs::copy(blobs.join("tokenizer.model"), &given).unwrap();
    let link = place.path().join("given");
    symlink(&given, &link).unwrap();
    let force = Options { force: true, ..Options::default() };
    let mut go_on = |_| ControlFlow::Continue(());
    for (tokenizer, dest) in [
        (None, folder.join("config.json")),
        (None, folder.join("tokenizer.model")),
        (None, blobs.join("tokenizer.model")),
        (Some(&*link), given.clone()),
    ] {
        let request = Request { tokenizer, ..Request::default() };
        let conversion = Conversion::plan(&folder, request).unwrap();
        let before = fs::read(&dest).unwrap();
        let error = conversion.write(&dest, 1, force, &mut go_on).unwrap_err();
        let refused = matches!(error, ConvertError::Replace(ReplaceError::Input { .. }));
        assert!(refused, "{}: {error}", dest.display());
        assert!(fs::read(&dest).unwrap() == before);
    }
    let mode = || {
        let (conversion, _) = convert(&folder);
        drop(conversion);
        fs::metadata(folder.with_extension("gguf")).unwrap().permissions().mode() & 0o077
    };
    assert_ne!(mode(), 0, "as the umask has it");
    fs::remove_file(folder.with_extension("gguf")).unwrap();
    fs::set_permissions(blobs.join("tokenizer.model"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(mode(), 0, "what is in the tokenizer is in the new file");
}
