//! A server of tiny models, for the fuzz targets `request` and `body`: requests as lines and bodies, and the promises of an answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_model::{EngineOptions, Model, OpenOptions, SamplerOptions};
use alight_server::fuzzing::Fuzzed;
use alight_server::{Options, Served};

/// The template of a model that takes what it gets.
pub const LENIENT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}\
    {% endif %}<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}<|im_start|>assistant\n";

/// A model to serve: its name, its template, and the marks that are tokens besides bytes and those of a conversation.
pub struct Tiny {
    pub name: String,
    pub template: String,
    pub marks: Vec<&'static str>,
}

/// A model of random weights, whose tokens are bytes and marks.
fn model(tiny: &Tiny) -> &'static Model {
    let (hidden, intermediate) = (32, 64);
    let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["<|im_start|>".into(), "<|im_end|>".into()]);
    for mark in &tiny.marks {
        if !tokens.iter().any(|token| token == mark) {
            tokens.push(mark.to_string());
        }
    }
    let mut types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).chain([3, 3]).collect();
    types.resize(tokens.len(), 4);
    let mut file = Builder::new();
    file.str("general.architecture", "llama").str("tokenizer.chat_template", &tiny.template);
    file.u32("llama.block_count", 1).u32("llama.context_length", 4096);
    file.u32("llama.embedding_length", hidden as u32);
    file.u32("llama.feed_forward_length", intermediate as u32);
    file.u32("llama.attention.head_count", 2);
    file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    file.str("tokenizer.ggml.model", "llama");
    file.strs("tokenizer.ggml.tokens", &tokens);
    file.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    file.i32s("tokenizer.ggml.token_type", &types);
    file.tensor("token_embd.weight", GgmlType::F32, &[hidden, tokens.len() as u64]).unwrap();
    file.tensor("output_norm.weight", GgmlType::F32, &[hidden]).unwrap();
    for name in ["attn_norm", "ffn_norm"] {
        file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden]).unwrap();
    }
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden, hidden]).unwrap();
    }
    for name in ["ffn_gate", "ffn_up"] {
        file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden, intermediate])
            .unwrap();
    }
    file.tensor("blk.0.ffn_down.weight", GgmlType::F32, &[intermediate, hidden]).unwrap();
    let weights = file.file(|tensor, bytes| {
        for (i, weight) in bytes.chunks_exact_mut(4).enumerate() {
            weight.copy_from_slice(&((i * 7 + tensor) as f32).sin().to_le_bytes());
        }
    });
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, weights).unwrap();
    let options = OpenOptions { threads: Some(1), ..OpenOptions::default() };
    Box::leak(Box::new(Model::open(&path, &options).unwrap()))
}

/// The server of this process, which is started with these models on the first call.
pub fn server(models: impl FnOnce() -> Vec<Tiny>) -> &'static Fuzzed {
    static SERVER: OnceLock<Fuzzed> = OnceLock::new();
    SERVER.get_or_init(|| {
        let slots = tempfile::tempdir_in("/dev/shm").unwrap().keep();
        let options = Options {
            host: "127.0.0.1".into(),
            port: 0,
            engine: EngineOptions {
                sequences: 2,
                prompt_cache: 1 << 20,
                ..EngineOptions::default()
            },
            sampling: SamplerOptions::greedy(),
            dry_sequence_breakers: None,
            fixed_seed: true,
            max_tokens: 8,
            queue: 200,
            keys: Vec::new(),
            origins: Vec::new(),
            metrics: true,
            vllm_metrics: true,
            drain: Duration::from_secs(5),
            slots: true,
            slot_files: Some(slots),
            rest: None,
            page: true,
            template_variables: Default::default(),
            allow_load: false,
        };
        // A context of a few answers: none takes long, whatever is asked.
        let served = |tiny: Tiny| Served {
            model: model(&tiny),
            name: tiny.name,
            aliases: Vec::new(),
            draft: None,
            context: 192,
            adapters: Default::default(),
            quantization: Box::new(|| None),
        };
        let log = |said: &str| {
            if said.contains("engine") && !said.contains(" has no field ") {
                eprintln!("{said}");
                std::process::abort();
            }
        };
        Fuzzed::new(models().into_iter().map(served).collect(), options, Arc::new(log)).unwrap()
    })
}

/// The first line, if it is a method and a path, and what follows it.
pub fn line_and_body(data: &[u8]) -> Option<(&str, &[u8])> {
    let at = data.iter().take(160).position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&data[..at]).ok()?;
    let (method, path) = line.split_once(' ')?;
    let fits = ["GET", "POST", "OPTIONS"].contains(&method)
        && path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>^`{|}".contains(&byte));
    fits.then_some((line, &data[at + 1..]))
}

/// The bytes of a request with this body.
pub fn request(line: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Checks the status of an answer, which says that the server has not failed. Interim responses may precede it.
pub fn check_status(mut answer: &[u8]) {
    while let Some(rest) = answer.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        answer = rest;
    }
    if answer.is_empty() {
        return;
    }
    assert!(answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(answer));
    let status: u16 = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
    assert!(
        [200, 204, 400, 403, 404, 405, 408, 413, 414, 415, 431, 501].contains(&status),
        "{}",
        String::from_utf8_lossy(answer)
    );
}

/// Checks that an answer which says that it is JSON, or events of JSON, is.
pub fn check_body(answer: &[u8]) {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let (head, body) =
        (String::from_utf8_lossy(&answer[..head]).to_lowercase(), &answer[head + 4..]);
    if head.contains("application/json") && head.contains("content-length") {
        serde_json::from_slice::<serde_json::Value>(body).expect("JSON");
    }
}
