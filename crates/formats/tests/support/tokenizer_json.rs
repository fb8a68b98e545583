//! Small files in the form of Hugging Face's `tokenizer.json` that are in order.

/// BPE over bytes; GPT-2's way to cut.
pub const OVER_BYTES: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
        {"id": 0, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
        {"id": 8, "content": "<think>", "special": false},
        {"id": 9, "content": "<|odd|>", "special": false},
        {"id": 12, "content": "a\u2581b", "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "fuse_unk": false,
        "vocab": {"<|end|>": 0, "a": 1, "b": 2, "\u0120": 3, "ab": 4, "\u0120ab": 5, "\ud83d\ude00": 6},
        "merges": ["a b", "\u0120 ab"]}}"#;

/// BPE that was SentencePiece's.
pub const REWRITTEN: &str = r#"{
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
        {"id": 11, "content": "\u2581\u2581", "special": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": []},
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
        "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "a": 3, "b": 4, "c": 5, "\u2581": 6, "bc": 7, "ab": 8, "abc": 9, "\u2581ab": 10},
        "merges": [["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"], ["\u2581", "ab"]]}}"#;

/// Unigram.
pub const UNIGRAM: &str = r#"{"added_tokens": [{"id": 0, "content": "<pad>", "special": true}, {"id": 1, "content": "<unk>", "special": true}],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": true},
        "model": {"type": "Unigram", "unk_id": 1, "byte_fallback": false, "vocab": [["<pad>", 0.0], ["<unk>", 0], ["\u2581a", -1.5], ["b", -2]]}}"#;
