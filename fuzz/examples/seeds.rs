//! Writes the seeds of the fuzz targets to `fuzz/corpus`: small files that are in order, of every
//! version, with every type of value and of tensor, so that the fuzzer starts behind the first
//! checks.
//!
//!     cargo +nightly run --manifest-path fuzz/Cargo.toml --example seeds

#[allow(dead_code)]
#[path = "../../crates/formats/tests/legacy/mod.rs"]
mod legacy;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_formats::ggml::{Era, LegacyType};
use alight_formats::gguf::write::{Builder, New};
use alight_formats::packed::{
    EXPERTS_KEY, LAYOUT, LAYOUT_KEY, LAYOUT_VERSION_KEY, Packing, has_tiles,
};
use alight_formats::safetensors::Dtype;

#[allow(dead_code)]
#[path = "../../crates/formats/tests/support/torch_files.rs"]
mod torch_support;

#[allow(dead_code)]
#[path = "../../crates/formats/tests/support/sentencepiece.rs"]
mod sentencepiece;

#[path = "../../crates/formats/tests/support/tokenizer_json.rs"]
mod tokenizer_json;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Builder::new().header()),
        ("values".into(), values().header()),
        ("arrays".into(), arrays().header()),
        ("vocabulary".into(), vocabulary().header()),
        ("version-1".into(), version_1()),
    ];
    let mut version_2 = values().header();
    version_2[4] = 2;
    files.push(("version-2".into(), version_2));
    for ty in GgmlType::ALL {
        let mut builder = Builder::new();
        let added = builder.tensor("blk.0.attn_q.weight", *ty, &[ty.block_len(), 2]);
        added.map_err(io::Error::other)?;
        files.push((format!("type-{ty}"), builder.file(|_, out| out.fill(0x11))));
    }
    for shift in 3..13 {
        let mut builder = Builder::with_alignment(1 << shift);
        builder.str("general.architecture", "llama");
        builder.tensor("a", GgmlType::F32, &[3]).map_err(io::Error::other)?;
        builder.tensor("b", GgmlType::Q8_0, &[32, 1, 2, 1]).map_err(io::Error::other)?;
        files.push((format!("alignment-{shift}"), builder.file(|_, out| out.fill(0x22))));
    }
    for ty in GgmlType::ALL.iter().filter(|ty| has_tiles(**ty)) {
        let mut builder = Builder::with_alignment(4096);
        builder.str(LAYOUT_KEY, LAYOUT).u32(LAYOUT_VERSION_KEY, 1);
        builder.tensor("a", GgmlType::F32, &[3]).map_err(io::Error::other)?;
        let added = builder.packed_tensor("b", *ty, &[ty.block_len(), 16]);
        added.map_err(io::Error::other)?;
        files.push((format!("packed-{ty}"), builder.file(|_, out| out.fill(0x44))));
    }
    let mut builder = Builder::with_alignment(4096);
    builder.str(LAYOUT_KEY, LAYOUT).u32(LAYOUT_VERSION_KEY, 2).u32s(EXPERTS_KEY, &[1, 2]);
    builder.tensor("a", GgmlType::F32, &[3]).map_err(io::Error::other)?;
    let both = ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"];
    let both = both.map(|name| New { name, ty: GgmlType::Q4_0, packed: Some(Packing::Tiles), shape: &[32, 16, 2] });
    builder.side_by_side(&both).map_err(io::Error::other)?;
    files.push(("side-by-side".into(), builder.file(|_, out| out.fill(0x55))));
    write(corpus.join("gguf"), &files)?;
    write(corpus.join("adapter"), &adapters()?)?;
    write(corpus.join("safetensors"), &safetensors())?;
    write(corpus.join("ggml"), &ggml())?;
    write(corpus.join("torch"), &torch())?;
    write(corpus.join("sentencepiece"), &models_of_sentencepiece())?;
    let json = [
        ("over-bytes".to_owned(), tokenizer_json::OVER_BYTES.into()),
        ("rewritten".to_owned(), tokenizer_json::REWRITTEN.into()),
        ("unigram".to_owned(), tokenizer_json::UNIGRAM.into()),
    ];
    write(corpus.join("tokenizer_json"), &json)?;
    // What follows the ranks of all bytes.
    let ranks = [
        ("merges".to_owned(), b"YWI= 256\nYWJj 257\nYmM= 258\n".to_vec()),
        ("windows".to_owned(), b"IHQ= 256\r\n\r\n".to_vec()),
        ("none".to_owned(), Vec::new()),
    ];
    write(corpus.join("tiktoken"), &ranks)?;
    write(corpus.join("template"), &templates()?)?;

    let requests = requests();
    write(corpus.join("request"), &requests)?;
    let posts = requests.into_iter().filter(|(_, bytes)| bytes.starts_with(b"POST /") && !bytes.ends_with(b"\n"));
    let posts = posts.filter(|(name, _)| name.starts_with("body-"));
    write(corpus.join("body"), &posts.chain(bodies()).chain((0..24).map(noise)).collect::<Vec<_>>())?;
    write(corpus.join("tokenizer"), &(0..24).map(noise).collect::<Vec<_>>())?;

    let shards = |name: &str, files: &[Vec<u8>]| {
        let mut out = (name.len() as u16).to_le_bytes().to_vec();
        out.extend(name.as_bytes());
        for file in files {
            out.extend((file.len() as u16).to_le_bytes());
            out.extend(file);
        }
        out
    };
    let three: Vec<Vec<u8>> = (0..3).map(shard).collect::<io::Result<_>>()?;
    write(
        corpus.join("split"),
        &[
            ("three".into(), shards("model-00001-of-00003.gguf", &three)),
            ("last-first".into(), shards("model-00003-of-00003.gguf", &[three[2].clone()])),
            ("one".into(), shards("model.gguf", &[files[1].1.clone()])),
        ],
    )
}

/// LoRA adapters, of every notation.
fn adapters() -> io::Result<Vec<(String, Vec<u8>)>> {
    let q = "blk.0.attn_q.weight";
    let matrix = [(format!("{q}.lora_a"), vec![8, 2]), (format!("{q}.lora_b"), vec![2, 4])];
    let more = ["lora_magnitude", "lora_bias"].map(|suffix| (format!("{q}.{suffix}"), vec![4]));
    let of = |name: &str, a: [u64; 3], b: [u64; 3]| {
        [(format!("{name}.lora_a"), a.to_vec()), (format!("{name}.lora_b"), b.to_vec())]
    };
    let whole = [
        ("output.weight.lora_override".to_owned(), vec![8, 4]),
        ("blk.0.attn_q.bias.lora_delta".to_owned(), vec![4]),
    ];
    let kinds: [(&str, Vec<(String, Vec<u64>)>); 5] = [
        ("matrix", matrix.to_vec()),
        ("dora", [matrix, more].concat()),
        ("experts", of("blk.0.ffn_up_exps.weight", [8, 2, 3], [2, 4, 3]).to_vec()),
        ("embedding", of("token_embd.weight", [2, 16, 1], [2, 8, 1]).to_vec()),
        ("replaced", whole.to_vec()),
    ];
    let mut files = Vec::new();
    for (name, tensors) in kinds {
        for ty in [GgmlType::F32, GgmlType::F16] {
            let mut file = Builder::new();
            file.str("general.type", "adapter").str("general.architecture", "llama");
            file.str("adapter.type", "lora").f32("adapter.lora.alpha", 4.0);
            if name == "matrix" {
                file.str("adapter.lora.task_name", "t").u32s("adapter.alora.invocation_tokens", &[1, 2]);
            }
            for (name, shape) in &tensors {
                let ty = if shape.len() == 1 { GgmlType::F32 } else { ty };
                file.tensor(name, ty, shape).map_err(io::Error::other)?;
            }
            files.push((format!("{name}-{ty}"), file.file(|_, out| out.fill(0x11))));
        }
    }
    Ok(files)
}

/// The committed chat templates, and those of the recorded answers of jinja2.
fn templates() -> io::Result<Vec<(String, Vec<u8>)>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let mut files = Vec::new();
    for entry in fs::read_dir(data.join("chat"))? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    let recorded: serde_json::Value =
        serde_json::from_slice(&fs::read(data.join("template_cases.json"))?)?;
    let cases = recorded["cases"].as_array().ok_or(io::ErrorKind::InvalidData)?;
    for (i, case) in cases.iter().enumerate() {
        let template = case["template"].as_str().unwrap_or_default();
        files.push((format!("case-{i}"), template.as_bytes().to_vec()));
    }
    Ok(files)
}

/// A method and a path in a line, and a body after it; and what else comes through a connection.
fn requests() -> Vec<(String, Vec<u8>)> {
    let tools = r#""tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}}]"#;
    let chat = r#""messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"}]}]"#;
    let bodies = [
        ("GET /health", String::new()),
        ("GET /", String::new()),
        ("GET /alight/memory", String::new()),
        ("GET /v1/models", String::new()),
        ("GET /props?model=tiny", String::new()),
        ("GET /slots?fail_on_no_slot=1", String::new()),
        ("GET /metrics", String::new()),
        ("GET /api/version", String::new()),
        ("GET /api/tags", String::new()),
        ("GET /api/ps", String::new()),
        ("POST /slots/0?action=save", r#"{"filename":"a"}"#.into()),
        ("POST /slots/1?action=restore", r#"{"filename":"a"}"#.into()),
        ("POST /slots/0?action=erase", "{}".into()),
        ("POST /v1/chat/completions", format!("{{{chat},\"max_tokens\":4}}")),
        (
            "POST /v1/chat/completions",
            format!(
                "{{{chat},{tools},\"tool_choice\":\"required\",\"stream\":true,\"return_progress\":true,\"stream_options\":{{\"include_usage\":true}}}}"
            ),
        ),
        (
            "POST /v1/chat/completions",
            format!(
                "{{{chat},\"response_format\":{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"n\",\"strict\":true,\"schema\":{{\"type\":\"object\",\"properties\":{{\"a\":{{\"type\":\"integer\",\"minimum\":1}}}},\"required\":[\"a\"],\"additionalProperties\":false}}}}}},\"n\":2,\"logprobs\":true,\"top_logprobs\":2,\"seed\":1,\"stop\":[\"x\"]}}"
            ),
        ),
        (
            "POST /v1/chat/completions",
            r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}],"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,"repeat_penalty":1.1,"presence_penalty":1,"frequency_penalty":-1,"logit_bias":{"5":-100},"chat_template_kwargs":{"enable_thinking":false},"reasoning_effort":"low"}"#.into(),
        ),
        ("POST /v1/completions", r#"{"prompt":["a",[4,5]],"echo":true,"logprobs":2,"max_tokens":2,"stream":true}"#.into()),
        ("POST /v1/responses", r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"r"}],"instructions":"i","stream":true,"max_output_tokens":3}"#.into()),
        ("POST /v1/embeddings", r#"{"input":["a","b"],"encoding_format":"base64","pooling":"last"}"#.into()),
        ("POST /v1/messages", format!(r#"{{"max_tokens":3,"system":[{{"type":"text","text":"s"}}],{chat},"stream":true,"thinking":{{"type":"disabled"}}}}"#)),
        ("POST /v1/messages", r#"{"max_tokens":3,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}}"#.into()),
        ("POST /v1/messages/count_tokens", r#"{"messages":[{"role":"user","content":"a"}]}"#.into()),
        ("POST /api/show", r#"{"model":"tiny"}"#.into()),
        ("POST /api/chat", r#"{"messages":[{"role":"user","content":"a"}],"format":"json","options":{"num_predict":3,"seed":2}}"#.into()),
        ("POST /api/generate", r#"{"prompt":"a","system":"s","raw":false,"stream":false,"options":{"num_predict":3}}"#.into()),
        ("POST /api/embed", r#"{"input":"a"}"#.into()),
        ("POST /completion", r#"{"prompt":"a","n_predict":3,"grammar":"root ::= [a-z]+ (\"x\" | \"y\")?","stream":true}"#.into()),
        ("POST /tokenize", r#"{"content":"a","add_special":true,"with_pieces":true}"#.into()),
        ("POST /detokenize", r#"{"tokens":[4,5]}"#.into()),
        ("POST /apply-template", r#"{"messages":[{"role":"user","content":"a"}]}"#.into()),
    ];
    let mut all: Vec<(String, Vec<u8>)> = bodies
        .into_iter()
        .enumerate()
        .map(|(i, (line, body))| (format!("body-{i}"), format!("{line}\n{body}").into_bytes()))
        .collect();
    let connections = [
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /tokenize HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n{}",
    ];
    let connections = connections.iter().enumerate();
    all.extend(connections.map(|(i, text)| (format!("connection-{i}"), text.as_bytes().to_vec())));
    all
}

/// Bodies with JSON in texts, calls in each interface, and schemas and grammars that are compiled.
fn bodies() -> impl Iterator<Item = (String, Vec<u8>)> {
    let schema = r##"{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]{1,3}$"},"b":{"anyOf":[{"type":"integer","minimum":-3},{"$ref":"#/$defs/c~1d"}]},"e":{"type":"array","items":{"enum":["x",1,null]},"minItems":1,"maxItems":3}},"required":["a"],"additionalProperties":false,"$defs":{"c/d":{"const":true}}}"##;
    let tool = format!(r#"{{"type":"function","function":{{"name":"f","strict":true,"parameters":{schema}}}}}"#);
    let called = r#"{"role":"user","content":"a"},{"role":"assistant","content":null,"reasoning_content":"t","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":[{\"b\":[[1,2.5e3,\"\\u00e9\"]]}]}"}}]},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"r"}]}"#;
    let deep = format!("{}1{}", "[".repeat(90), "]".repeat(90));
    let bodies = [
        ("chat/completions", format!(r#"{{"model":"mistral","messages":[{called}],"tools":[{tool}]}}"#)),
        ("chat/completions", format!(r#"{{"model":"llama","messages":[{called}],"tools":[{tool}],"tool_choice":"required","parallel_tool_calls":false}}"#)),
        ("chat/completions", format!(r#"{{"model":"harmony","messages":[{called}],"tools":[{tool}],"tool_choice":{{"type":"function","function":{{"name":"f"}}}}}}"#)),
        ("chat/completions", format!(r#"{{"model":"glm","messages":[{called}],"tools":[{tool}],"response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{schema}}}}}}}"#)),
        ("chat/completions", format!(r#"{{"model":"kimi","messages":[{{"role":"user","content":"a"}}],"tools":[{tool}],"tool_choice":{{"type":"allowed_tools","mode":"required","tools":[{{"type":"function","name":"f"}}]}}}}"#)),
        ("chat/completions", format!(r#"{{"messages":[{{"role":"user","content":"a"}},{{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{deep}"}}}}]}}],"regex":"(a|b){{2,4}}"}}"#)),
        ("responses", format!(r#"{{"input":[{{"type":"reasoning","summary":[{{"type":"summary_text","text":"t"}}]}},{{"type":"function_call","call_id":"c","name":"f","arguments":"{{\"a\":{{\"b\":{deep}}}}}"}},{{"type":"function_call_output","call_id":"c","output":"r"}}],"text":{{"format":{{"type":"json_schema","name":"n","strict":true,"schema":{schema}}}}}}}"#)),
        ("responses/input_tokens", format!(r#"{{"model":"deepseek","input":[{called}]}}"#)),
        ("messages", format!(r#"{{"model":"minimax","max_tokens":3,"messages":[{{"role":"assistant","content":[{{"type":"thinking","thinking":"t","signature":""}},{{"type":"tool_use","id":"c","name":"f","input":{{"a":{deep}}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c","content":[{{"type":"text","text":"r"}}]}}]}}],"tools":[{{"name":"f","strict":true,"input_schema":{schema}}}],"tool_choice":{{"type":"tool","name":"f"}}}}"#)),
        ("messages/count_tokens", format!(r#"{{"messages":[{{"role":"user","content":"a"}}],"tools":[{{"name":"f","input_schema":{schema}}}]}}"#)),
        ("chat/completions/input_tokens", format!(r#"{{"messages":[{called}]}}"#)),
        ("completions", format!(r#"{{"prompt":"a","json_schema":{schema},"max_tokens":4}}"#)),
        ("/api/chat", format!(r#"{{"messages":[{{"role":"assistant","content":"","tool_calls":[{{"function":{{"name":"f","arguments":{{"a":1}}}}}}]}},{{"role":"user","content":"a"}}],"format":{schema},"think":true}}"#)),
        ("/api/generate", format!(r#"{{"prompt":"a","format":{schema},"options":{{"num_predict":3}}}}"#)),
        ("/completion", r#"{"prompt":[1,"a",{"prompt_string":"b"}],"grammar":"root ::= x{1,3} [^\\n]? # c\nx ::= \"a\" | \"\\x41\" root\n"}"#.into()),
        ("/completion", r#"{"prompt":"a","grammar":"%llguidance {}\nstart: A b?\nA: /[a-z]+/\nb: %json {\"type\":\"object\"}\n"}"#.into()),
        ("/infill", r#"{"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":"f","text":"t"}],"n_predict":2}"#.into()),
        ("/apply-template", format!(r#"{{"messages":[{called}],"tools":[{tool}],"add_generation_prompt":false,"chat_template_kwargs":{{"enable_thinking":true}}}}"#)),
    ];
    bodies.into_iter().enumerate().map(|(i, (path, body))| {
        let path = if path.starts_with('/') { path.into() } else { format!("/v1/{path}") };
        (format!("nested-{i}"), format!("POST {path}\n{body}").into_bytes())
    })
}

/// Bytes of no meaning, of which a target makes a vocabulary and texts, or a body; more of them make more.
fn noise(number: u64) -> (String, Vec<u8>) {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (format!("noise-{number}"), (0..100 + 80 * number).map(|_| byte()).collect())
}

fn write(folder: PathBuf, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    fs::create_dir_all(&folder)?;
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes)?;
    }
    println!("{}: {} seeds", folder.display(), files.len());
    Ok(())
}

fn values() -> Builder {
    let mut builder = Builder::new();
    builder.str("general.architecture", "llama").bool("flag", true);
    builder.u8("u8", 1).i8("i8", -1).u16("u16", 2).i16("i16", -2).u32("u32", 3).i32("i32", -3);
    builder.u64("u64", 4).i64("i64", -4).f32("f32", 0.5).f64("f64", -0.5);
    builder
}

fn arrays() -> Builder {
    let mut builder = Builder::new();
    builder.u8s("u8", &[1, 2]).i8s("i8", &[-1]).u16s("u16", &[2]).i16s("i16", &[-2]);
    builder.u32s("u32", &[3]).i32s("i32", &[-3, 3]).u64s("u64", &[4]).i64s("i64", &[-4]);
    builder.f32s("f32", &[0.5, f32::NAN]).f64s("f64", &[]).bools("bool", &[true, false]);
    builder.strs("str", &["", "a", "bc"]);
    builder
}

fn vocabulary() -> Builder {
    let mut builder = Builder::new();
    builder.strs("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "a", "\u{2581}b"]);
    builder.f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0]);
    builder.i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1]);
    builder.strs("tokenizer.ggml.merges", &["a b"]);
    builder
}

fn shard(no: u16) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new();
    if no == 0 {
        builder.str("general.architecture", "llama");
    }
    builder.u16("split.no", no).u16("split.count", 3).i32("split.tensors.count", 2);
    if no > 0 {
        let name = format!("t{no}");
        builder.tensor(&name, GgmlType::F16, &[2, 2]).map_err(io::Error::other)?;
    }
    Ok(builder.file(|_, out| out.fill(0x33)))
}

/// Version 1 has lengths and counts of 32 bits, and no writer here.
fn version_1() -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(text.as_bytes());
    };
    out.extend([1_u32, 1, 2].map(u32::to_le_bytes).as_flattened());
    string(&mut out, "general.architecture");
    out.extend(8_u32.to_le_bytes());
    string(&mut out, "llama");
    string(&mut out, "tokens");
    out.extend([9_u32, 8, 2].map(u32::to_le_bytes).as_flattened());
    string(&mut out, "a");
    string(&mut out, "");
    string(&mut out, "t");
    out.extend([2_u32, 2, 2, 0].map(u32::to_le_bytes).as_flattened());
    out.extend(0_u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32) + 16, 0x44);
    out
}

/// A file of each dtype, one with metadata, escapes, an empty and a 0-rank tensor, and an index behind
/// eight bytes.
fn safetensors() -> Vec<(String, Vec<u8>)> {
    let file = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0x33);
        bytes
    };
    let mut files = vec![
        ("empty".to_owned(), file("{}", 0)),
        (
            "shapes".to_owned(),
            file(
                r#"{"__metadata__":{"format":"pt"},"a\u0041":{"dtype":"U8","shape":[],"data_offsets":[0,1]},
                "none":{"dtype":"F64","shape":[0,7],"data_offsets":[1,1]},
                "b":{"shape":[2,3],"data_offsets":[1,13],"dtype":"F16"}}   "#,
                13,
            ),
        ),
        (
            "index".to_owned(),
            file(
                r#"{"metadata":{"total_size":3},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}"#,
                0,
            ),
        ),
    ];
    for dtype in Dtype::ALL {
        let n = dtype.bytes() as usize;
        let entry = format!(r#"{{"t":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,{n}]}}}}"#);
        files.push((format!("dtype-{dtype}"), file(&entry, n)));
    }
    files
}

/// Files as torch writes them and without ZIP64, and pickles alone: of each class of storage, and with
/// each function that rebuilds a tensor.
fn torch() -> Vec<(String, Vec<u8>)> {
    use torch_support::{Archive, PLAIN, Pickle, Tensor, dict_of, file, model};
    let plain = dict_of(&PLAIN);
    let mut old = Archive::torch(&plain, &[("0", &[7; 24])]);
    old.zip64 = false;
    let rebuilt = |module: &str, name: &str, args: &dyn Fn(&mut Pickle)| {
        let mut pickle = Pickle::new();
        pickle.put(b"}").text("t").global(module, name).put(b"(");
        args(&mut pickle);
        pickle.put(b"tRs").done()
    };
    let mut files = vec![
        ("model".to_owned(), model()),
        ("zip64".to_owned(), file(&plain)),
        ("zip32".to_owned(), old.bytes()),
        ("plain".to_owned(), plain.clone()),
        (
            "parameter".to_owned(),
            rebuilt("torch._utils", "_rebuild_parameter", &|p| {
                p.tensor(&PLAIN).put(b"\x88").hooks();
            }),
        ),
        (
            "typed".to_owned(),
            rebuilt("torch._tensor", "_rebuild_from_type_v2", &|p| {
                p.global("torch._utils", "_rebuild_tensor_v2").global("torch", "Tensor").put(b"(");
                p.storage("FloatStorage", "0", 6).args(0, &[6], &[1]).put(b"t}");
            }),
        ),
        (
            "v3".to_owned(),
            rebuilt("torch._utils", "_rebuild_tensor_v3", &|p| {
                p.storage("UntypedStorage", "0", 24).args(0, &[6], &[1]).global("torch", "uint16");
            }),
        ),
    ];
    for (class, numel) in [("HalfStorage", 12), ("LongStorage", 3), ("BoolStorage", 24)] {
        let tensor = Tensor { class, numel, size: &[2], stride: &[1], ..PLAIN };
        files.push((class.to_owned(), dict_of(&tensor)));
    }
    files
}

/// Legacy files: a small model of each kind, in one part and the first of two, without the last token
/// (GPT4All), and a tensor of each type of each era.
fn ggml() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for (index, (magic, version)) in legacy::KINDS.into_iter().enumerate() {
        for parts in 1..3 {
            // Of width 2 with one head, so that the fuzzer is quick.
            let mut file = legacy::File::model(magic, version, parts);
            file.hparams = [6, 2, 4, 1, 1, 2, 1];
            for tensor in &mut file.tensors {
                tensor.ne.iter_mut().filter(|n| **n > 6).for_each(|n| *n = (*n / 32).max(1));
                let elements: i32 = tensor.ne.iter().product();
                tensor.data = vec![0x11; elements as usize * if tensor.ty == 0 { 4 } else { 2 }];
            }
            files.push((format!("model-{index}-{parts}"), file.bytes()));
            file.tokens.pop();
            files.push((format!("gpt4all-{index}-{parts}"), file.bytes()));
        }
        let era = [Era::Pairs, Era::Pairs, Era::Pairs, Era::Halves, Era::Current][index];
        for ty in LegacyType::ALL {
            let Some((block, bytes)) = era.block(ty) else { continue };
            let mut file = legacy::File::new(magic, version);
            let ne = [block as i32, 2];
            file.tensors.push(legacy::Tensor::new("t", ty.id() as i32, &ne, 2 * bytes as usize));
            files.push((format!("type-{index}-{ty}"), file.bytes()));
        }
    }
    files
}

/// The least model, one with everything, and one of unigram with fields to pass over.
fn models_of_sentencepiece() -> Vec<(String, Vec<u8>)> {
    use sentencepiece::{bytes, double, least, normalizer, number, piece, small, trainer};
    let unigram = [
        piece("<unk>", 0.0, 2),
        bytes(1, bytes(1, "a")),
        trainer(&[number(3, 1), double(10, 0.9), bytes(46, "a")]),
        normalizer(&[bytes(1, "nmt_nfkc"), bytes(2, "xyz"), number(3, 0), number(4, 1)]),
        bytes(4, "self test"),
    ];
    vec![
        ("least".to_owned(), least(&[])),
        ("small".to_owned(), small()),
        ("unigram".to_owned(), unigram.concat()),
    ]
}
