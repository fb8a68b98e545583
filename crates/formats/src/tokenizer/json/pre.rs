//! GGUF's name for a way of splitting text before it is merged, recognised by the rules themselves. The names
//! and the rules are those of llama.cpp (`src/llama-vocab.cpp`, which quotes the expressions of the files it
//! was made for), except for those that this project does not support.
//!
//! An unknown rule is an error: text that is split differently yields fluent nonsense.

use super::parts::{Component, Pattern, steps};
use super::{File, TokenizerError};

/// The expression that `ByteLevel` itself splits by.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The characters that `Punctuation` splits off, in runs.
const PUNCTUATION: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const DIGIT: &str = r"\p{N}";
const DIGITS: &str = r"\p{N}+";
const UP_TO_THREE: &str = r"\p{N}{1,3}";
const TRIPLES: &str = "[0-9][0-9][0-9]";
const LINES: &str = r"[^\n]+|[\n]+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const NO_CONTRACTIONS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const CL100K: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const HAN_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"##,
    "\r\n",
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[",
    "\r\n",
    r"]*|\s*[",
    "\r\n",
    r"]+|\s+(?!\S)|\s+"
);
const HAN_AND_HANGUL: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

/// Name, the required `ignore_merges` (`None` for either), rules in order.
type Known = (&'static str, Option<bool>, &'static [&'static str]);

const KNOWN: &[Known] = &[
    ("llama-bpe", Some(true), &[LLAMA3]),
    ("dbrx", Some(false), &[LLAMA3]),
    ("qwen2", Some(false), &[QWEN2]),
    ("qwen35", Some(false), &[QWEN35]),
    ("ufakzeka", Some(false), &[NO_CONTRACTIONS]),
    ("seed-coder", Some(false), &[SEED_CODER]),
    ("minicpm5", Some(true), &[UP_TO_THREE, MINICPM5]),
    ("bailingmoe", Some(false), &[BAILING]),
    ("laguna", Some(false), &[LINES, QWEN2]),
    ("tekken", None, &[TEKKEN]),
    ("gpt-4o", Some(false), &[GPT4O]),
    ("gpt-2", Some(false), &[GPT2]),
    ("smollm", Some(false), &[DIGIT, GPT2]),
    ("falcon", Some(false), &[PUNCTUATION, GPT2, TRIPLES]),
    ("falcon", Some(false), &[PUNCTUATION, GPT2, DIGITS, TRIPLES]),
    ("deepseek-coder", Some(false), &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, DIGIT]),
    ("deepseek-v3", Some(false), &[UP_TO_THREE, HAN_AND_KANA, DEEPSEEK3]),
];

/// Returns the name of the rules by which the file splits text, and true if a space is put before every text.
pub(super) fn name(file: &File<'_>) -> Result<(&'static str, bool), TokenizerError> {
    let mut rules: Vec<String> = Vec::new();
    let mut prefix = false;
    for step in steps(&file.pre_tokenizer) {
        rule(step, &mut rules);
        prefix |= step.kind.as_str() == "ByteLevel" && step.add_prefix_space.unwrap_or(true);
    }
    let whole = file.model.ignore_merges.unwrap_or(false);
    let known = KNOWN.iter().find(|(_, ignore_merges, known)| {
        ignore_merges.is_none_or(|expected| expected == whole) && rules == *known
    });
    match known {
        Some((name, _, _)) => Ok((name, prefix)),
        None => {
            let mut shown = String::new();
            for rule in &rules {
                let separator = if shown.is_empty() { "" } else { ", then " };
                shown.push_str(separator);
                shown.extend(rule.chars().take(400).flat_map(char::escape_debug));
                if shown.len() > 600 {
                    shown.push('…');
                    break;
                }
            }
            let rules = if shown.is_empty() { "no rules".into() } else { shown.into() };
            Err(TokenizerError::UnknownPre { rules, ignore_merges: whole })
        }
    }
}

/// Appends the expression that a step splits by, if it splits.
fn rule(step: &Component<'_>, rules: &mut Vec<String>) {
    let behavior = step.behavior.as_ref().map_or("Isolated", |behavior| behavior.as_str());
    let found = match step.kind.as_str() {
        "ByteLevel" if step.use_regex == Some(false) => return,
        "ByteLevel" => GPT2.into(),
        "Digits" if step.individual_digits == Some(true) => DIGIT.into(),
        "Digits" => DIGITS.into(),
        "Punctuation" if behavior == "Contiguous" => PUNCTUATION.into(),
        "Split" => match (&step.pattern, behavior, step.invert.unwrap_or(false)) {
            // Both the matches and the text between them are pieces; or there is no text between them.
            (Some(Pattern::Regex(regex)), "Isolated", _)
            | (Some(Pattern::Regex(regex)), "Removed", true) => plain(regex.as_str()),
            (pattern, behavior, invert) => {
                format!("Split {pattern:?} {behavior}, invert: {invert}")
            }
        },
        other => format!("{other} {behavior}"),
    };
    rules.push(found);
}

/// The known equivalent of this expression, or itself: newlines may be spelled as escapes, and OpenAI's
/// expression differs from Llama 3's only by possessive quantifiers.
fn plain(regex: &str) -> String {
    let spelled = |regex: &str| regex.replace('\r', r"\r").replace('\n', r"\n");
    if regex == CL100K {
        return LLAMA3.into();
    }
    let regex = spelled(regex);
    let mut all = KNOWN.iter().flat_map(|(_, _, rules)| rules.iter());
    all.find(|known| spelled(known) == regex).map_or(regex, |known| (*known).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::json;

    fn name_of(pre: &str, ignore_merges: bool) -> Result<&'static str, TokenizerError> {
        let model = r#""model": {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges":"#;
        let file = format!("{{\"pre_tokenizer\": {pre}, {model} {ignore_merges}}}}}");
        name(&json::parse(file.as_bytes())?).map(|(name, _)| name)
    }

    const BYTES: &str = r#"{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}"#;

    fn split(regex: &str) -> String {
        let regex = serde_json::to_string(regex).unwrap();
        format!(
            r#"{{"type": "Split", "pattern": {{"Regex": {regex}}}, "behavior": "Isolated", "invert": false}}"#
        )
    }

    fn sequence(parts: &[&str]) -> String {
        format!(r#"{{"type": "Sequence", "pretokenizers": [{}]}}"#, parts.join(","))
    }

    #[test]
    fn every_known_way_has_its_name() {
        for (expected, whole, rules) in KNOWN {
            let mut parts: Vec<String> = rules.iter().map(|rule| split(rule)).collect();
            parts.push(BYTES.into());
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let found = name_of(&sequence(&parts), whole.unwrap_or(true));
            assert_eq!(found.as_deref(), Ok(*expected));
        }
    }

    #[test]
    fn steps_that_are_no_expressions() {
        let plain = r#"{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true}"#;
        assert_eq!(name_of(plain, false), Ok("gpt-2"));
        let digits = r#"{"type": "Digits", "individual_digits": true}"#;
        assert_eq!(name_of(&sequence(&[digits, plain]), false), Ok("smollm"));
        let punctuation = r#"{"type": "Punctuation", "behavior": "Contiguous"}"#;
        let together = r#"{"type": "Digits", "individual_digits": false}"#;
        let falcon = sequence(&[punctuation, plain, together, &split(TRIPLES)]);
        assert_eq!(name_of(&falcon, false), Ok("falcon"));
        let inverted = split(GPT4O).replace("Isolated", "Removed").replace("false", "true");
        assert_eq!(name_of(&sequence(&[&inverted, BYTES]), false), Ok("gpt-4o"));
        assert_eq!(name_of(&sequence(&[&split(CL100K), BYTES]), true), Ok("llama-bpe"));
        // A sequence within a sequence.
        let nested = sequence(&[&sequence(&[&split(QWEN2)]), BYTES]);
        assert_eq!(name_of(&nested, false), Ok("qwen2"));
    }

    #[test]
    fn an_unknown_way_is_shown() {
        let says = |pre: &str, whole, words: &[&str]| {
            let error = name_of(pre, whole).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        says(&sequence(&[&split(r"\p{Han}+"), BYTES]), false, &[r"\\p{Han}+", "fluent nonsense"]);
        says(&sequence(&[&split(QWEN2), BYTES]), true, &["ignore_merges: true"]);
        let removed = split(r"\s+").replace("Isolated", "Removed");
        says(&sequence(&[&removed, BYTES]), false, &["Removed", "invert: false"]);
        says(r#"{"type": "Whitespace"}"#, false, &["Whitespace"]);
        says(BYTES, false, &["no rules"]);
        says(&sequence(&[&split(&"x".repeat(5000)), BYTES]), false, &["xxx"]);
    }
}
