//! Small copies of folders as published: the result for every file, and the refusals.

use std::fs;
use std::path::Path;

use alight_formats::gguf::{self, write::Builder};
use alight_text::Tokenizer;
use alight_text::template::MAX_SOURCE;
use alight_text::tokenizer::MAX_END_IDS;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::side::{SideFiles, SmallFiles};
use super::super::tensor::Entry;
use super::config::TokenizerConfig;
use super::{Tokens, read, template};

#[path = "../../../../formats/tests/support/sentencepiece.rs"]
#[allow(dead_code)] // some of it is for the tests of formats alone
mod model;

/// A folder with these files.
fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn text(value: Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn convert(folder: &Path, architecture: &str, rows: u64) -> Tokens {
    read(&SideFiles::new(folder, None, &SmallFiles::default()), architecture, rows, &[])
        .unwrap()
        .unwrap()
}

#[track_caller]
fn fails(files: &[(&str, Vec<u8>)], rows: u64, words: &[&str]) {
    let folder = folder(files);
    let side = SideFiles::new(folder.path(), None, &SmallFiles::default());
    let error = read(&side, "llama", rows, &[]).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

fn names(tokens: &Tokens) -> Vec<&str> {
    tokens.keys.iter().map(|(name, _)| name.trim_start_matches("tokenizer.")).collect()
}

fn get<'t>(tokens: &'t Tokens, name: &str) -> Option<&'t Entry> {
    tokens.keys.iter().find(|(key, _)| key.trim_start_matches("tokenizer.") == name).map(|(_, e)| e)
}

fn token(tokens: &Tokens, id: usize) -> (String, Option<f32>, i32) {
    let Some(Entry::Strs(texts)) = get(tokens, "ggml.tokens") else { panic!("no tokens") };
    let Some(Entry::I32s(types)) = get(tokens, "ggml.token_type") else { panic!("no types") };
    let score = match get(tokens, "ggml.scores") {
        Some(Entry::F32s(scores)) => Some(scores[id]),
        _ => None,
    };
    (texts[id].clone(), score, types[id])
}

fn id(tokens: &Tokens, name: &str) -> Option<u32> {
    match get(tokens, &format!("ggml.{name}_token_id")) {
        Some(Entry::U32(id)) => Some(*id),
        _ => None,
    }
}

/// The list of tokens that end an answer, if it is written.
fn ends(tokens: &Tokens) -> &[u32] {
    match get(tokens, "ggml.eos_token_ids") {
        Some(Entry::U32s(ids)) => ids,
        None => &[],
        Some(other) => panic!("{other:?}"),
    }
}

fn flag(tokens: &Tokens, name: &str) -> Option<bool> {
    match get(tokens, &format!("ggml.{name}")) {
        Some(Entry::Bool(flag)) => Some(*flag),
        _ => None,
    }
}

/// BPE over bytes, with this post-processor.
fn over_bytes(post: Value) -> Value {
    json!({
        "added_tokens": [
            {"id": 4, "content": "<|begin|>", "special": true},
            {"id": 5, "content": "<|end|>", "special": true},
            {"id": 6, "content": "<tool>", "special": false},
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "post_processor": post,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "pad": 3}, "merges": ["a b"]},
    })
}

fn special(text: &str) -> Value {
    json!({"SpecialToken": {"id": text, "type_id": 0}})
}

fn sequence(text: &str) -> Value {
    json!({"Sequence": {"id": text, "type_id": 0}})
}

#[test]
fn sentencepiece_with_what_goes_beside_it() {
    let config = json!({
        "add_bos_token": true, "add_eos_token": false, "bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "chat_template": "{{ messages }}",
        "added_tokens_decoder": {
            "0": {"content": "<unk>", "special": true},
            "268": {"content": "▁<deep>", "special": false},
            "269": {"content": "<|odd|>", "special": false},
            "900": {"content": "<far>", "special": true},
        },
    });
    let folder = folder(&[
        ("tokenizer.model", model::small()),
        ("added_tokens.json", text(json!({"<more>": 267, "<deep>": 268}))),
        ("tokenizer_config.json", text(config)),
        (
            "config.json",
            text(json!({"bos_token_id": 1, "eos_token_id": [2, 269], "pad_token_id": -1})),
        ),
    ]);
    let tokens = convert(folder.path(), "llama", 272);
    let expected = [
        "ggml.model",
        "ggml.pre",
        "ggml.tokens",
        "ggml.scores",
        "ggml.token_type",
        "ggml.bos_token_id",
        "ggml.eos_token_id",
        "ggml.unknown_token_id",
        "ggml.eot_token_id",
        "ggml.eos_token_ids",
        "ggml.add_bos_token",
        "ggml.add_eos_token",
        "chat_template",
    ];
    assert_eq!(names(&tokens), expected);
    assert_eq!(get(&tokens, "ggml.model"), Some(&Entry::Str("llama".into())));
    assert_eq!(token(&tokens, 0), ("<unk>".into(), Some(-1000.0), 3), "as in llama.cpp");
    assert_eq!(token(&tokens, 13), ("<0x0A>".into(), Some(0.0), 6));
    assert_eq!(token(&tokens, 260), ("ab".into(), Some(-1.0), 1));
    assert_eq!(token(&tokens, 265), ("  ".into(), Some(0.0), 4));
    assert_eq!(token(&tokens, 267), ("<more>".into(), Some(-1000.0), 4));
    assert_eq!(token(&tokens, 268), (" <deep>".into(), Some(-1000.0), 4), "goes before");
    assert_eq!(token(&tokens, 269), ("<|odd|>".into(), Some(-1000.0), 3));
    assert_eq!(token(&tokens, 271), ("[PAD271]".into(), Some(-10_000.0), 5));
    assert_eq!((id(&tokens, "bos"), id(&tokens, "eos")), (Some(1), Some(2)));
    assert_eq!(id(&tokens, "eot"), Some(269), "another end of an answer");
    assert_eq!(ends(&tokens), [2, 269]);
    assert_eq!(
        (flag(&tokens, "add_bos_token"), flag(&tokens, "add_eos_token")),
        (Some(true), Some(false))
    );
    assert!(tokens.notes.iter().any(|note| note.contains("<far>")), "{:?}", tokens.notes);
    assert!(
        tokens.notes.iter().any(|note| note.contains("pad_token_id is -1")),
        "{:?}",
        tokens.notes
    );
}

#[test]
fn bpe_over_bytes_with_a_template() {
    let post = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing", "single": [special("<|begin|>"), sequence("A")],
            "pair": [special("<|begin|>"), sequence("A"), special("<|begin|>"), sequence("B")]},
    ]});
    let config = json!({"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "pad", "add_bos_token": false});
    let folder = folder(&[
        ("tokenizer.json", text(over_bytes(post))),
        ("tokenizer_config.json", text(config)),
        ("generation_config.json", text(json!({"eos_token_id": [5, 6], "top_k": 7}))),
        ("chat_template.jinja", b"jinja".to_vec()),
        ("additional_chat_templates/tool use.jinja", b"tools".to_vec()),
    ]);
    let tokens = convert(folder.path(), "qwen3", 8);
    let expected = [
        "ggml.model",
        "ggml.pre",
        "ggml.tokens",
        "ggml.token_type",
        "ggml.merges",
        "ggml.bos_token_id",
        "ggml.eos_token_id",
        "ggml.padding_token_id",
        "ggml.eot_token_id",
        "ggml.eos_token_ids",
        "ggml.add_bos_token",
        "ggml.add_eos_token",
        "ggml.add_sep_token",
        "chat_template.tool_use",
        "chat_templates",
        "chat_template",
    ];
    assert_eq!(names(&tokens), expected);
    assert_eq!(get(&tokens, "ggml.pre"), Some(&Entry::Str("gpt-2".into())));
    assert_eq!(token(&tokens, 3), ("pad".into(), None, 3), "special by name");
    assert_eq!(token(&tokens, 4), ("<|begin|>".into(), None, 3));
    assert_eq!(token(&tokens, 6), ("<tool>".into(), None, 4));
    assert_eq!(token(&tokens, 7), ("[PAD7]".into(), None, 5));
    assert_eq!(id(&tokens, "eot"), Some(6));
    assert_eq!(flag(&tokens, "add_bos_token"), Some(true), "the template goes before the flag");
    assert_eq!(flag(&tokens, "add_sep_token"), Some(false));
    assert_eq!(get(&tokens, "chat_templates"), Some(&Entry::Strs(vec!["tool_use".into()])));
    assert_eq!(get(&tokens, "chat_template"), Some(&Entry::Str("jinja".into())));
}

#[test]
fn templates_tell_what_goes_around_a_text() {
    let with = |single: Value, pair: Value, config: Value| {
        let post = json!({"type": "TemplateProcessing", "single": single, "pair": pair});
        let folder = folder(&[
            ("tokenizer.json", text(over_bytes(post))),
            ("tokenizer_config.json", text(config)),
        ]);
        convert(folder.path(), "llama", 7)
    };
    let both = json!({"bos_token": "<|begin|>", "eos_token": "<|end|>"});
    // On both sides.
    let single = json!([special("<|begin|>"), sequence("A"), special("<|end|>")]);
    let pair = json!([
        special("<|begin|>"),
        sequence("A"),
        special("<|end|>"),
        sequence("B"),
        special("<|end|>")
    ]);
    let found = with(single, pair, both.clone());
    let flags = |tokens: &Tokens| {
        ["add_bos_token", "add_eos_token", "add_sep_token"].map(|name| flag(tokens, name))
    };
    assert_eq!(flags(&found), [Some(true), Some(true), Some(false)]);
    // Between two texts only.
    let pair = json!([sequence("A"), special("<|end|>"), sequence("B")]);
    let found = with(json!([sequence("A")]), pair, both.clone());
    assert_eq!(flags(&found), [None, None, Some(true)]);
    assert_eq!(id(&found, "seperator"), Some(5), "spelled so in GGUF");
    // Two tokens between them.
    let pair = json!([sequence("A"), special("<tool>"), special("<|end|>"), sequence("B")]);
    let found = with(json!([sequence("A")]), pair, both.clone());
    assert_eq!(flags(&found), [None, None, Some(true)]);
    // Texts begin with a token that is not the begin of text.
    let found = with(json!([special("<tool>"), sequence("A")]), json!([]), both.clone());
    assert_eq!(flags(&found)[0], Some(false));
    assert!(found.notes.iter().any(|note| note.contains("<tool>")), "{:?}", found.notes);
    // The begin of text is not configured.
    let found = with(json!([special("<|begin|>"), sequence("A")]), json!([]), json!({}));
    assert_eq!((id(&found, "bos"), flags(&found)[0]), (Some(4), Some(true)));
    // Texts end with a different token from answers.
    let found = with(json!([sequence("A"), special("<tool>")]), json!([]), both);
    assert_eq!((id(&found, "eos"), id(&found, "eot")), (Some(6), Some(5)));
}

#[test]
fn a_byte_level_post_processor_leaves_it_to_the_settings() {
    let flags = |config: Value| {
        let folder = folder(&[
            ("tokenizer.json", text(over_bytes(json!({"type": "ByteLevel"})))),
            ("tokenizer_config.json", text(config)),
        ]);
        let tokens = convert(folder.path(), "llama", 7);
        (flag(&tokens, "add_bos_token"), flag(&tokens, "add_eos_token"))
    };
    assert_eq!(flags(json!({})), (Some(false), Some(false)));
    assert_eq!(flags(json!({"add_bos_token": true})), (Some(true), Some(false)));
}

#[test]
fn the_file_is_chosen_by_architecture_and_content() {
    let spm = ("tokenizer.model", model::small());
    let json = ("tokenizer.json", text(over_bytes(json!(null))));
    let both = folder(&[spm.clone(), json.clone()]);
    let model = |tokens: Tokens| get(&tokens, "ggml.model").cloned();
    let (llama, gpt2) = (Some(Entry::Str("llama".into())), Some(Entry::Str("gpt2".into())));
    assert_eq!(model(convert(both.path(), "llama", 300)), llama);
    assert_eq!(model(convert(both.path(), "gemma3", 300)), llama);
    assert_eq!(model(convert(both.path(), "qwen2", 300)), gpt2);
    assert_eq!(model(convert(folder(&[spm]).path(), "qwen2", 300)), llama);
    // tiktoken's `tokenizer.model` has no special tokens; `tokenizer.json` has.
    let ranks = ("tokenizer.model", b"IQ== 0\nIg== 1\n".to_vec());
    assert_eq!(model(convert(folder(&[ranks, json]).path(), "llama", 300)), gpt2);
    let none = folder(&[("config.json", b"{}".to_vec())]);
    assert_eq!(
        read(&SideFiles::new(none.path(), None, &SmallFiles::default()), "llama", 7, &[]).unwrap(),
        None
    );
    // A file given by the user takes precedence, whatever its name.
    let given = folder(&[("spm.bin", model::small())]);
    let side =
        SideFiles::new(both.path(), Some(&given.path().join("spm.bin")), &SmallFiles::default());
    assert_eq!(model(read(&side, "qwen2", 300, &[]).unwrap().unwrap()), llama);
    let side =
        SideFiles::new(both.path(), Some(&given.path().join("missing")), &SmallFiles::default());
    assert!(
        read(&side, "qwen2", 300, &[]).unwrap_err().to_string().contains("missing: there is no")
    );
}

#[test]
fn a_space_before_every_text() {
    let key = |files: &[(&str, Vec<u8>)], architecture| {
        let folder = folder(files);
        let tokens = convert(folder.path(), architecture, 300);
        let last = names(&tokens).last() == Some(&"ggml.add_space_prefix");
        flag(&tokens, "add_space_prefix").map(|flag| (flag, last))
    };
    let spm = || ("tokenizer.model", model::small());
    let none = model::least(&[model::normalizer(&[model::number(3, 0), model::number(4, 0)])]);
    let none = || ("tokenizer.model", none.clone());
    let config = |add: bool| ("tokenizer_config.json", text(json!({"add_prefix_space": add})));
    assert_eq!(key(&[spm()], "llama"), None, "it is what readers take for granted");
    assert_eq!(key(&[none()], "llama"), Some((false, false)));
    assert_eq!(key(&[none()], "gemma3"), Some((false, true)));
    assert_eq!(key(&[spm(), config(false)], "llama"), Some((false, false)));
    assert_eq!(key(&[spm(), config(true)], "llama"), Some((true, false)));
    let json = || ("tokenizer.json", text(over_bytes(json!(null))));
    assert_eq!(key(&[json(), config(false)], "qwen2"), None);
}

#[test]
fn unigram_has_keys_of_its_own() {
    let spec = model::normalizer(&[model::bytes(2, "xyz"), model::number(4, 1)]);
    let file = model::least(&[model::trainer(&[model::number(3, 1)]), spec]);
    let tokens = convert(folder(&[("tokenizer.model", file)]).path(), "llama", 2);
    let expected = [
        "ggml.model",
        "ggml.pre",
        "ggml.tokens",
        "ggml.scores",
        "ggml.token_type",
        "ggml.add_space_prefix",
        "ggml.remove_extra_whitespaces",
        "ggml.precompiled_charsmap",
        "ggml.unknown_token_id",
    ];
    assert_eq!(names(&tokens), expected);
    assert_eq!(get(&tokens, "ggml.model"), Some(&Entry::Str("t5".into())));
    assert_eq!(flag(&tokens, "add_space_prefix"), Some(true));
    assert_eq!(get(&tokens, "ggml.precompiled_charsmap"), Some(&Entry::U8s(b"xyz".to_vec())));
    assert!(tokens.notes.is_empty(), "{:?}", tokens.notes);
}

/// Templates that are never rendered are omitted, with a note; one of the maximum length is kept.
#[test]
fn a_template_longer_than_any_that_is_rendered_is_left_out() {
    let (longest, longer) = ("t".repeat(MAX_SOURCE), "t".repeat(MAX_SOURCE + 1));
    let list =
        json!([{"name": "default", "template": longer}, {"name": "rag", "template": longest}]);
    let named = [
        ("chat_template.jinja", longer.clone().into_bytes()),
        ("additional_chat_templates/rag.jinja", longest.clone().into_bytes()),
    ];
    let configured = |name, template: &Value| (name, text(json!({ "chat_template": template })));
    for (files, kept) in [
        (vec![configured("tokenizer_config.json", &json!(longer))], None),
        (vec![configured("tokenizer_config.json", &list)], Some("chat_template.rag")),
        (vec![configured("chat_template.json", &json!(longer))], None),
        (named.to_vec(), Some("chat_template.rag")),
        (vec![("chat_template.jinja", longest.clone().into_bytes())], Some("chat_template")),
    ] {
        let whole = files.len() == 1 && files[0].1.len() == MAX_SOURCE;
        let folder = folder(&files);
        let side = SideFiles::new(folder.path(), None, &SmallFiles::default());
        let mut notes = Vec::new();
        let found =
            template::read(&side, &TokenizerConfig::read(&side).unwrap(), &[], &mut notes).unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| &name["tokenizer.".len()..]).collect();
        let expected: Vec<&str> = match kept {
            Some("chat_template.rag") => vec!["chat_template.rag", "chat_templates"],
            other => other.into_iter().collect(),
        };
        assert_eq!(names, expected, "{}", files[0].0);
        match whole {
            true => assert!(notes.is_empty(), "{notes:?}"),
            false => {
                assert_eq!(notes.len(), 1, "{notes:?}");
                for part in [files[0].0, "\"default\"", "1048577 bytes", "1048576", "left out"] {
                    assert!(notes[0].contains(part), "{part}: {notes:?}");
                }
            }
        }
    }
}

#[test]
fn templates_by_name_in_the_configuration() {
    let keys = |template: Value| {
        let folder = folder(&[
            ("tokenizer.model", model::small()),
            ("tokenizer_config.json", text(json!({ "chat_template": template }))),
            ("chat_template.json", text(json!({"chat_template": "other"}))),
        ]);
        let tokens = convert(folder.path(), "llama", 300);
        let keys = tokens.keys.into_iter().filter(|(key, _)| key.starts_with("tokenizer.chat"));
        (keys.collect::<Vec<_>>(), tokens.notes)
    };
    let (found, _) = keys(json!([
        {"name": "rag", "template": "R"}, {"name": "default", "template": "D"}, {"name": "x-y", "template": "X"},
    ]));
    let text = |name: &str, text: &str| {
        (format!("tokenizer.chat_template{name}"), Entry::Str(text.into()))
    };
    let list =
        ("tokenizer.chat_templates".to_owned(), Entry::Strs(vec!["rag".into(), "x_y".into()]));
    assert_eq!(found, [text(".rag", "R"), text(".x_y", "X"), list, text("", "D")]);
    assert_eq!(keys(json!(null)).0, [text("", "other")]);
    let (found, notes) = keys(json!(7));
    assert!(found.is_empty() && notes[0].contains("chat_template"), "{notes:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let spm = || ("tokenizer.model", model::small());
    fails(&[spm()], 266, &["tokenizer.model", "token 266 has no row", "267 tokens"]);
    fails(&[spm()], 1 << 40, &["1099511627776 rows"]);
    fails(&[("tokenizer.model", b"GGUF".to_vec())], 9, &["not the file of a tokenizer"]);
    fails(
        &[("tokenizer.model", model::least(&[vec![0x80]]))],
        9,
        &["tokenizer.model", "cut short"],
    );
    let pointer = b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n".to_vec();
    fails(&[("tokenizer.model", pointer)], 9, &["tokenizer.model", "Git LFS", "git lfs pull"]);
    fails(&[("tokenizer.json", b"{\"model\":7}".to_vec())], 9, &["tokenizer.json", "line 1"]);
    fails(
        &[spm(), ("added_tokens.json", text(json!({"x": "y"})))],
        300,
        &["added_tokens.json", "\"x\""],
    );
    let decoder = |decoder: Value| {
        ("tokenizer_config.json", text(json!({ "added_tokens_decoder": decoder })))
    };
    fails(
        &[spm(), decoder(json!({"x": {"content": "y"}}))],
        300,
        &["tokenizer_config.json", "\"x\""],
    );
    fails(&[spm(), decoder(json!({"270": {}}))], 300, &["token 270 has no content"]);
    fails(&[spm(), decoder(json!({"270": {"content": "ab"}}))], 300, &["260 and 270", "\"ab\""]);
    fails(&[spm(), ("tokenizer_config.json", b"{".to_vec())], 300, &["tokenizer_config.json"]);
    fails(&[spm(), ("tokenizer.json", b"{\"x\"".to_vec())], 300, &["tokenizer.json"]);
}

#[test]
fn what_the_tokens_own_file_knows_better_stays() {
    let mut file = over_bytes(json!(null));
    file["added_tokens"][1]["content"] = json!("<|eom_id|>");
    let folder = folder(&[
        ("tokenizer.json", text(file)),
        ("added_tokens.json", text(json!({"<|begin|>": 4, "<tool>": 6, "<new>": 7}))),
        (
            "special_tokens_map.json",
            text(json!({"eos_token": {"content": "ab"}, "pad_token": "b"})),
        ),
        ("tokenizer_config.json", text(json!({"pad_token": null}))),
        ("generation_config.json", text(json!({"eos_token_id": [2, 5, 6]}))),
    ]);
    let tokens = convert(folder.path(), "llama", 8);
    assert_eq!(token(&tokens, 4), ("<|begin|>".into(), None, 3), "a control token stays one");
    assert_eq!(token(&tokens, 7), ("<new>".into(), None, 4));
    assert_eq!(token(&tokens, 2), ("ab".into(), None, 3), "special by name in the other file");
    assert_eq!(token(&tokens, 1).2, 1, "what is null in the one is none in the other");
    assert_eq!((id(&tokens, "eos"), id(&tokens, "padding")), (Some(2), None));
    assert_eq!((id(&tokens, "eom"), id(&tokens, "eot")), (Some(5), Some(6)), "by their spelling");
    assert_eq!(ends(&tokens), [2, 5, 6]);
}

#[test]
fn all_ends_of_an_answer_are_kept() {
    let with = |config: Value, settings: Value| {
        let folder = folder(&[
            ("tokenizer.json", text(over_bytes(json!(null)))),
            ("tokenizer_config.json", text(json!({"eos_token": "<|end|>"}))),
            ("config.json", text(json!({ "eos_token_id": config }))),
            ("generation_config.json", text(json!({ "eos_token_id": settings }))),
        ]);
        convert(folder.path(), "llama", 8)
    };
    // The named one first, the second has llama.cpp's key, and the rest would be lost without the list.
    let tokens = with(json!([6, 3]), json!([1, 5, 1, 2]));
    assert_eq!((id(&tokens, "eos"), id(&tokens, "eot")), (Some(5), Some(1)));
    assert_eq!(ends(&tokens), [5, 1, 2, 6, 3]);
    assert_eq!(tokens.notes, Vec::<String>::new());
    // The tokenizer that is made of these keys ends answers there.
    let mut file = Builder::new();
    for (key, entry) in &tokens.keys {
        entry.write(key, &mut file);
    }
    let bytes = file.header();
    let tokenizer = Tokenizer::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap();
    assert_eq!(tokenizer.ends(), [1, 2, 3, 5, 6]);
    // One end needs no list, however it is written.
    for (config, settings) in
        [(json!(5), json!(null)), (json!([5]), json!(5)), (json!([5, 5]), json!([]))]
    {
        assert_eq!(ends(&with(config, settings)), [0; 0]);
    }
    // Without a name, the first of the list is the end of text.
    let folder = folder(&[
        ("tokenizer.json", text(over_bytes(json!(null)))),
        ("generation_config.json", text(json!({"eos_token_id": [6, 5, 2]}))),
    ]);
    let tokens = convert(folder.path(), "llama", 8);
    assert_eq!((id(&tokens, "eos"), id(&tokens, "eot")), (Some(6), Some(5)));
    assert_eq!(ends(&tokens), [6, 5, 2]);
}

#[test]
fn lists_of_ends_that_no_model_has_are_cut() {
    let with = |config: Value, settings: Value| {
        let folder = folder(&[
            ("tokenizer.json", text(over_bytes(json!(null)))),
            ("tokenizer_config.json", text(json!({"eos_token": "<|end|>"}))),
            ("config.json", text(json!({ "eos_token_id": config }))),
            ("generation_config.json", text(json!({ "eos_token_id": settings }))),
        ]);
        convert(folder.path(), "llama", 400)
    };
    let tokens = with(json!(99_999), json!([-1, 1, 400, 1_u64 << 40, "x", 1.5, null, 399]));
    assert_eq!(ends(&tokens), [5, 1, 399]);
    let [config, generation] = &tokens.notes[..] else { panic!("{:?}", tokens.notes) };
    assert!(config.starts_with("config.json") && config.contains("99999"), "{config}");
    assert!(generation.starts_with("generation_config.json: 3 ids"), "{generation}");
    // No more than are read, with the end of text.
    let tokens = with(json!(null), json!((10..310).collect::<Vec<u32>>()));
    assert_eq!((ends(&tokens).len(), ends(&tokens)[0]), (MAX_END_IDS, 5));
    assert!(tokens.notes.iter().any(|note| note.contains("45 ids")), "{:?}", tokens.notes);
}

#[test]
fn ids_that_are_no_tokens_are_left_out() {
    let folder = folder(&[
        ("tokenizer.json", text(over_bytes(json!(null)))),
        ("config.json", text(json!({"bos_token_id": 99, "text_config": {"eos_token_id": 5}}))),
        ("generation_config.json", b"not JSON".to_vec()),
    ]);
    let tokens = convert(folder.path(), "llama", 7);
    assert_eq!((id(&tokens, "bos"), id(&tokens, "eos")), (None, Some(5)));
    assert!(tokens.notes.iter().any(|note| note.contains("99")), "{:?}", tokens.notes);
}

#[test]
fn tokens_without_a_row_are_said_once() {
    let notes = |rows| {
        let folder = folder(&[
            ("tokenizer.json", text(over_bytes(json!(null)))),
            ("added_tokens.json", text(json!({"<tool>": 6, "<new>": 7}))),
        ]);
        let notes = convert(folder.path(), "llama", rows).notes;
        notes.into_iter().filter(|note| note.contains("have no row")).collect::<Vec<_>>()
    };
    assert_eq!(notes(8), Vec::<String>::new());
    let [added] = &notes(7)[..] else { panic!("{:?}", notes(7)) };
    assert!(added.starts_with("1 added tokens") && added.ends_with("\"<new>\""), "{added}");
    let [special] = &notes(6)[..] else { panic!("{:?}", notes(6)) };
    assert!(
        special.starts_with("1 special tokens") && special.ends_with("\"<tool>\""),
        "{special}"
    );
}

#[test]
fn a_list_of_words_alone_is_a_tokenizer_of_bert() {
    let words = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n".to_vec();
    let config = |class: &str| text(json!({"tokenizer_class": class, "do_lower_case": false}));
    let files =
        |class: &str| vec![("vocab.txt", words.clone()), ("tokenizer_config.json", config(class))];
    let tokens = convert(folder(&files("BertTokenizerFast")).path(), "bert", 7);
    for (name, expected) in [
        ("ggml.model", Entry::Str("bert".into())),
        ("ggml.normalizer.lowercase", Entry::Bool(false)),
        ("ggml.normalizer.strip_accents", Entry::Bool(false)),
        ("ggml.bos_token_id", Entry::U32(2)),
        ("ggml.eos_token_id", Entry::U32(3)),
        ("ggml.add_bos_token", Entry::Bool(true)),
        ("ggml.add_eos_token", Entry::Bool(true)),
    ] {
        assert_eq!(get(&tokens, name), Some(&expected), "{name}");
    }
    assert_eq!(token(&tokens, 5).0, "▁a");
    assert_eq!(token(&tokens, 6).0, "b");
    assert_eq!(token(&tokens, 2).2, 3, "control");
    fails(&files("MPNetTokenizer"), 7, &["vocab.txt", "MPNetTokenizer", "tokenizer.json"]);
    // Without a class it is BERT's.
    assert_eq!(
        token(&convert(folder(&[("vocab.txt", words.clone())]).path(), "bert", 7), 5).0,
        "▁a"
    );
}
