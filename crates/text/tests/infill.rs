//! Prompts that ask for what belongs between two texts.

use alight_formats::gguf::{self, write::Builder};
use alight_text::infill::{Gap, GapLimits};
use alight_text::{Encoder, PromptError, Style, Vocabulary};

/// The first token after `<PRE>`, `<SUF>` and `<MID>`, which are 256 to 258.
const FIRST_OTHER: u32 = 259;
const LOTS: GapLimits = GapLimits { around: 4096, total: 8192 };

/// A vocabulary of bytes, the three tokens around a gap, and others.
fn vocabulary(others: &[&str], keys: &[(&str, u32)]) -> Vocabulary {
    let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    tokens.extend(["<PRE>", "<SUF>", "<MID>"].iter().chain(others).map(ToString::to_string));
    let types: Vec<i32> = [6; 256].into_iter().chain(vec![3; tokens.len() - 256]).collect();
    let mut metadata = Builder::new();
    metadata.str("tokenizer.ggml.model", "llama");
    metadata.strs("tokenizer.ggml.tokens", &tokens);
    metadata.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    metadata.i32s("tokenizer.ggml.token_type", &types);
    metadata.bool("tokenizer.ggml.add_space_prefix", false);
    metadata.bool("tokenizer.ggml.add_bos_token", keys.iter().any(|(key, _)| *key == "bos"));
    for (key, id) in keys {
        metadata.u32(&format!("tokenizer.ggml.{key}_token_id"), *id);
    }
    Vocabulary::from_gguf(&gguf::parse(&metadata.header()).unwrap()).unwrap()
}

/// The prompt as a text in which tokens that are no bytes stand as `[id]`, and spaces as such again.
fn shown(vocabulary: &Vocabulary, gap: &Gap, limits: GapLimits) -> String {
    let prompt = Encoder::new(vocabulary, Style::Raw, false).infill(gap, limits).unwrap();
    let one = |id: u32| match u8::try_from(id) {
        Ok(byte) => vec![byte],
        Err(_) => format!("[{id}]").into_bytes(),
    };
    String::from_utf8_lossy(&prompt.into_iter().flat_map(one).collect::<Vec<_>>()).replace('▁', " ")
}

fn gap(before: &str, line: &str, after: &str) -> Gap {
    Gap { before: before.into(), line: line.into(), after: after.into(), files: Vec::new() }
}

#[test]
fn a_gap_stands_between_the_texts_around_it() {
    let plain = vocabulary(&[], &[]);
    assert_eq!(shown(&plain, &gap("ab", "c", "d"), LOTS), "[256]abc[257]d[258]");
    // Names of special tokens in a text are text.
    assert_eq!(shown(&plain, &gap("<MID>", "", ""), LOTS), "[256]<MID>[257][258]");
    let bos = vocabulary(&["<s>"], &[("bos", FIRST_OTHER)]);
    assert_eq!(shown(&bos, &gap("a", "", "b"), LOTS), "[259][256]a[257]b[258]");
    // What the file says comes before what tokens are called.
    let told = vocabulary(&["<x>"], &[("fim_pre", FIRST_OTHER)]);
    assert_eq!(shown(&told, &gap("a", "", "b"), LOTS), "[259]a[257]b[258]");
}

#[test]
fn other_files_stand_before_it_by_name_where_the_model_knows_names() {
    let files = vec![("x.c".to_owned(), "X".to_owned()), ("y.c".to_owned(), "Y".to_owned())];
    let gap = Gap { files, ..gap("a", "", "b") };
    let named = vocabulary(&["<|repo_name|>", "<|file_sep|>"], &[]);
    assert_eq!(
        shown(&named, &gap, LOTS),
        "[259]myproject\n[260]x.c\nX[260]y.c\nY[260]filename\n[256]a[257]b[258]"
    );
    let unnamed = vocabulary(&[], &[]);
    let between = "\n\n--- snippet ---\n\n";
    let expected = format!("{between}X{between}Y[256]a[257]b[258]");
    assert_eq!(shown(&unnamed, &gap, LOTS), expected);
    // What is nearest to the gap is kept.
    let limits = GapLimits { total: 15 + 5, ..LOTS };
    assert_eq!(shown(&named, &gap, limits), "y.c\nY[260]filename\n[256]a[257]b[258]");
}

#[test]
fn what_is_far_from_the_gap_is_left_out() {
    let plain = vocabulary(&[], &[]);
    let limits = GapLimits { around: 16, total: 16 };
    // Three quarters before, and a quarter after without the line and the two marks.
    let digits = "0123456789abcdefghij";
    let expected = "[256]89abcdefghij[257]01[258]";
    assert_eq!(shown(&plain, &gap(digits, "", digits), limits), expected);
    let expected = "[256]89abcdefghij.[257]0[258]";
    assert_eq!(shown(&plain, &gap(digits, ".", digits), limits), expected);
    // The line is kept whole.
    let expected = format!("[256]89abcdefghij{digits}[257][258]");
    assert_eq!(shown(&plain, &gap(digits, digits, digits), limits), expected);
    // Of a text as long as memory, no more is read than that.
    let long = "é".repeat(1 << 20);
    let expected = "[256]".to_owned() + &"é".repeat(6) + "[257]é[258]";
    let files = vec![(String::new(), long.clone()); 20];
    let gap = Gap { files, ..gap(&long, "", &long) };
    assert_eq!(shown(&plain, &gap, limits), expected);
    let limits = GapLimits { total: 21, ..limits };
    assert_eq!(shown(&plain, &gap, limits), "éé".to_owned() + &expected);
}

#[test]
fn a_model_that_cannot_is_told_so() {
    let mut metadata = Builder::new();
    metadata.str("tokenizer.ggml.model", "llama");
    metadata.strs("tokenizer.ggml.tokens", &["<unk>", "<s>", "<PRE>", "<SUF>"]);
    metadata.f32s("tokenizer.ggml.scores", &[0.0; 4]);
    metadata.i32s("tokenizer.ggml.token_type", &[2, 3, 3, 3]);
    let header = metadata.header();
    let vocabulary = Vocabulary::from_gguf(&gguf::parse(&header).unwrap()).unwrap();
    let encoder = Encoder::new(&vocabulary, Style::Raw, false);
    assert_eq!(encoder.infill(&gap("a", "", "b"), LOTS), Err(PromptError::NoInfill));
}
