//! Tokens with a meaning of their own: the beginning and end of a text, and the ends of an answer.
//!
//! The selection follows llama.cpp: the ids in the metadata if they are in range, else the defaults
//! of the tokenizer model, and then well-known spellings. The spelling decides which tokens end an
//! answer, because files seldom state it; those that `tokenizer.ggml.eos_token_ids` lists do as well.

use alight_formats::gguf::{Gguf, GgufError};

use super::error::TokenizerError;
use super::vocab::{SPECIAL, TokenBits, Vocab};
use crate::format::Format;

/// Lists tokens that end an answer, for models with more than llama.cpp has keys for. `alight convert` writes it.
pub const END_IDS: &str = "tokenizer.ggml.eos_token_ids";
/// The maximum length of that list. Every generated token is compared with the ends, and models have a handful.
pub const MAX_END_IDS: usize = 256;

/// Ids of the tokens with a meaning. All are in range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpecialIds {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) padding: Option<u32>,
    /// Between two texts.
    pub(crate) separator: Option<u32>,
    /// Tokens that end an answer, ascending.
    pub(crate) ends: Vec<u32>,
    /// The marks of a gap, if the model was trained to fill gaps.
    pub(crate) infill: Option<InfillIds>,
}

/// The tokens of a prompt that requests the text between two others ("fill in the middle").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfillIds {
    /// Precedes the text before the gap.
    pub prefix: u32,
    /// Precedes the text after the gap.
    pub suffix: u32,
    /// Precedes the text that is generated.
    pub middle: u32,
    /// Precedes the name of the project.
    pub repository: Option<u32>,
    /// Precedes the name of a file.
    pub separator: Option<u32>,
}

/// The ids of a tokenizer model if the file does not set them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) padding: Option<u32>,
    /// True for BERT's tokenizer, whose texts begin with the token of the class and end with the separator.
    pub(crate) of_encoder: bool,
}

/// End of turn.
const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
/// End of message.
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|plamo:fim_prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|plamo:fim_suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
    "<|plamo:fim_middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPOSITORY: &[&str] =
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR: &[&str] = &["<|file_sep|>", "<|plamo:file_separator|>"];
/// Spellings that end an answer wherever they occur.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|ifm|im_end|>",
];

/// Spellings that divide the output of gpt-oss.
const HARMONY: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
/// Spellings named in a rule for some families.
const OTHERS: &[&str] =
    &["<|plamo:eos|>", "<mask>", "[MASK]", "</s>", "<unk>", "<s>", "<|endoftext|>"];

/// All spellings that are looked up when a model is opened: here, and as marks of the output formats.
pub(crate) fn spellings() -> impl Iterator<Item = &'static str> {
    let own = [
        EOT,
        EOM,
        FIM_PREFIX,
        FIM_SUFFIX,
        FIM_MIDDLE,
        FIM_PAD,
        FIM_REPOSITORY,
        FIM_SEPARATOR,
        ENDS,
        HARMONY,
        OTHERS,
    ];
    own.into_iter().chain(Format::ALL.map(Format::marks)).flatten().copied()
}

/// The value of `tokenizer.ggml.<name>_token_id` if it is a token, else `default` if that is one.
fn id_of(
    gguf: &Gguf<'_>,
    vocab: &Vocab,
    name: &str,
    default: Option<u32>,
) -> Result<Option<u32>, GgufError> {
    let count = vocab.len();
    let default = default.filter(|&id| (id as usize) < count);
    match gguf.value::<i64>(&format!("tokenizer.ggml.{name}_token_id")) {
        Ok(Some(id)) => Ok(u32::try_from(id).ok().filter(|&id| (id as usize) < count).or(default)),
        Ok(None) | Err(GgufError::OutOfRange { .. }) => Ok(default),
        Err(error) => Err(error),
    }
}

/// The tokens that the file lists as ends of an answer. Ids out of range are skipped, as those of single keys are.
fn listed_ends(gguf: &Gguf<'_>, count: usize) -> Result<Vec<u32>, TokenizerError> {
    let Some(array) = gguf.get_array(END_IDS)? else { return Ok(Vec::new()) };
    if array.len() > MAX_END_IDS {
        return Err(TokenizerError::TooManyEnds { found: array.len(), limit: MAX_END_IDS });
    }
    let Some(ids) = array.iter_int() else {
        let (key, found) = (END_IDS.into(), array.elem_type());
        return Err(GgufError::WrongElementType { key, found, expected: "integers" }.into());
    };
    let in_range = |id: i128| u32::try_from(id).ok().filter(|id| (*id as usize) < count);
    Ok(ids.filter_map(in_range).collect())
}

impl SpecialIds {
    /// Finds the ids and marks the tokens found by their spelling as control tokens.
    pub(crate) fn find(
        gguf: &Gguf<'_>,
        vocab: &mut Vocab,
        defaults: Defaults,
    ) -> Result<SpecialIds, TokenizerError> {
        let mut bos = id_of(gguf, vocab, "bos", defaults.bos)?;
        let mut eos = id_of(gguf, vocab, "eos", defaults.eos)?;
        // `seperator` is the spelling of the format.
        let mut separator = id_of(gguf, vocab, "seperator", None)?;
        if defaults.of_encoder {
            bos = id_of(gguf, vocab, "cls", bos)?;
            separator = separator.or(eos);
            eos = separator;
        }
        let unknown = id_of(gguf, vocab, "unknown", defaults.unknown)?;
        let padding = id_of(gguf, vocab, "padding", defaults.padding)?;
        let mut either = |names: &[&str], spellings: &[&str]| -> Result<_, GgufError> {
            let mut id = None;
            // A later name, the deprecated one, wins.
            for name in names {
                id = id_of(gguf, vocab, name, id)?;
            }
            Ok(id.or_else(|| mark_first(vocab, spellings)))
        };
        let eot = either(&["eot"], EOT)?;
        let eom = either(&["eom"], EOM)?;
        // These three do not end an answer, but they are control tokens.
        let prefix = either(&["fim_pre", "prefix"], FIM_PREFIX)?;
        let suffix = either(&["fim_suf", "suffix"], FIM_SUFFIX)?;
        let middle = either(&["fim_mid", "middle"], FIM_MIDDLE)?;
        let pad = either(&["fim_pad"], FIM_PAD)?;
        let repository = either(&["fim_rep"], FIM_REPOSITORY)?;
        let separator = either(&["fim_sep"], FIM_SEPARATOR)?;
        let infill = prefix.zip(suffix).zip(middle).map(|((prefix, suffix), middle)| InfillIds {
            prefix,
            suffix,
            middle,
            repository,
            separator,
        });

        let mut ends: Vec<u32> =
            [pad, repository, separator, eos, eot, eom].into_iter().flatten().collect();
        for spelling in ENDS {
            ends.extend(mark_first(vocab, &[spelling]));
        }
        for spelling in HARMONY {
            if let Some(id) = vocab.id(spelling.as_bytes()) {
                vocab.set_kind(id, TokenBits::USER);
            }
        }

        // In two families an ending spelling has another meaning.
        let end_id = |spelling: &str| {
            let id = vocab.id(spelling.as_bytes())?;
            ends.contains(&id).then_some(id)
        };
        let has = |spelling| end_id(spelling).is_some();
        let calls = has("<|call|>") || has("<|calls|>");
        let mut not_ends = Vec::new();
        if let Some(id) = end_id("<|end|>")
            && calls
            && (has("<|return|>") || has("<|flush|>"))
        {
            not_ends.push((id, TokenBits::USER));
        }
        if let Some(id) = end_id("</s>")
            && (has("<|tool_response>") || has("<|plamo:eos|>"))
        {
            not_ends.push((id, TokenBits::NORMAL));
        }
        for (id, kind) in not_ends {
            ends.retain(|&end| end != id);
            vocab.set_kind(id, kind);
        }
        // The list is the file's own statement, so no rule about spellings limits it.
        ends.extend(listed_ends(gguf, vocab.len())?);
        ends.sort_unstable();
        ends.dedup();

        mark_stripping(gguf, vocab)?;
        Ok(SpecialIds { bos, eos, unknown, padding, separator, ends, infill })
    }
}

/// The first of the spellings that is a token, marked as a control token.
fn mark_first(vocab: &mut Vocab, spellings: &[&str]) -> Option<u32> {
    let id = spellings.iter().find_map(|s| vocab.id(s.as_bytes()))?;
    vocab.set_kind(id, vocab.kind(id).or(TokenBits::CONTROL));
    Some(id)
}

/// Marks tokens that absorb the adjacent white space. GGUF has no field for it; llama.cpp
/// recognises them by the names of models.
fn mark_stripping(gguf: &Gguf<'_>, vocab: &mut Vocab) -> Result<(), GgufError> {
    let lower = |key: &str| -> Result<String, GgufError> {
        Ok(gguf.get_str(key)?.unwrap_or("").to_ascii_lowercase())
    };
    let name = lower("general.name")?;
    let pre = lower("tokenizer.ggml.pre")?;
    let architecture = lower("general.architecture")?;
    let mut set = |spelling: &str, kind: TokenBits, on: bool| {
        if let Some(id) = vocab.id(spelling.as_bytes()) {
            let old = vocab.kind(id);
            vocab.set_kind(id, if on { old.or(kind) } else { old.without(kind) });
        }
    };
    if ["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"].iter().any(|part| pre.contains(part))
        || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|part| architecture.contains(part))
    {
        set("<mask>", TokenBits::STRIP_LEFT, true);
    } else if name.contains("phi-3") || name.contains("phi3") {
        set("</s>", TokenBits::STRIP_RIGHT, true);
        for id in 0..vocab.len() as u32 {
            let kind = vocab.kind(id);
            if kind.has(SPECIAL) {
                vocab.set_kind(id, kind.or(TokenBits::STRIP_RIGHT));
            }
        }
        for spelling in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(id) = vocab.id(spelling.as_bytes()) {
                vocab.set_kind(id, vocab.kind(id).without(TokenBits::STRIP_RIGHT));
            }
        }
    } else if name.contains("modern-bert") {
        set("[MASK]", TokenBits::STRIP_LEFT, true);
    }
    Ok(())
}
