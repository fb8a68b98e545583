//! Pre-tokenisers: they cut text where byte-level BPE may not merge.
//!
//! `tokenizer.ggml.pre` names one; the name stands for a list of regular expressions, applied one
//! after another, each to every part that the previous one left. The names, the expressions and the
//! few switches of a name are llama.cpp's (`src/llama-vocab.cpp`), so that a file made for it is
//! cut the same way. An unknown name is an error: a wrong cut gives fluent nonsense.

mod classes;
mod split;
#[cfg(test)]
mod tests;

use classes::{Characters, LETTER, PUNCTUATION, Piece};
use split::{LLAMA3, PartEnds, WordCase, Words};

/// One regular expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Gpt2,
    Words(Words),
    /// `\p{N}{1,max}`, 0: `\p{N}+`.
    Numbers(usize),
    AsciiTriples,
    AsciiTriplesFromRight,
    NumbersFromRight,
    Punctuation {
        backtick: bool,
    },
    Lines,
    Newlines,
    HanAndKana,
    HanAndHangul,
    /// `\s?` and a run of this class.
    Spaced(u8),
    SpacedSigns,
    SpacedCased,
    SpaceAtEnd,
    Asian,
    Youtu,
    DeepSeek3 {
        newlines_apart: bool,
    },
    /// ` ?[^(\s|.,!?…。，、।۔،)]+`
    NoPunctuation,
}

/// The definition of a name in `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pre {
    stages: &'static [Stage],
    /// A part that is a token is taken whole, regardless of the merges.
    pub(crate) ignore_merges: bool,
    /// `add_bos_token` if the file does not set it.
    pub(crate) add_bos: bool,
    /// A beginning-of-sequence token is added even if the file disables it.
    pub(crate) always_bos: bool,
    /// There is no beginning-of-sequence token unless the file names one.
    pub(crate) no_default_bos: bool,
    /// Spaces become U+2581 and bytes stand for themselves (a SentencePiece vocabulary with
    /// merges), instead of the alphabet of byte-level BPE.
    pub(crate) raw_bytes: bool,
    /// A part of newlines only that is a token is taken whole.
    pub(crate) newlines_whole: bool,
}

const LLAMA3_STAGES: &[Stage] = &[Stage::Words(LLAMA3)];
const GPT2_STAGES: &[Stage] = &[Stage::Gpt2];
const DIGITS_GPT2: &[Stage] = &[Stage::Numbers(1), Stage::Gpt2];
const QWEN2: Words = Words { digits: 1, ..LLAMA3 };
const TEKKEN: Words =
    Words { contractions: false, case: WordCase::Cut, digits: 1, slashes_after: true, ..LLAMA3 };
/// llama.cpp's version of an expression with `\p{Lu}`, `\p{Ll}` and so on: each matches any letter.
const LETTERS_AND_MARKS: Words = Words { marks: true, suffix: true, case: WordCase::Any, ..TEKKEN };
const GPT4O: Words = Words { suffix: true, digits: 3, ..TEKKEN };
const DEEPSEEK3: Stage = Stage::DeepSeek3 { newlines_apart: false };
const DEEPSEEK3_STAGES: &[Stage] = &[Stage::Numbers(3), Stage::HanAndKana, DEEPSEEK3];

const PLAIN: Pre = Pre {
    stages: GPT2_STAGES,
    ignore_merges: false,
    add_bos: false,
    always_bos: false,
    no_default_bos: false,
    raw_bytes: false,
    newlines_whole: false,
};

impl Pre {
    /// The pre-tokeniser of that name, `None` if there is none.
    pub(crate) fn by_name(name: &str) -> Option<Pre> {
        let with = |stages: &'static [Stage]| Pre { stages, ..PLAIN };
        Some(match name {
            "default" => with(&[
                Stage::Punctuation { backtick: false },
                Stage::Gpt2,
                Stage::Numbers(0),
                Stage::AsciiTriples,
            ]),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling"
            | "exaone4" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert" | "jina-es"
            | "jina-de" | "jina-v1-en" | "jina-v2-es" | "jina-v2-de" | "jina-v2-code"
            | "roberta-bpe" => with(GPT2_STAGES),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => with(DIGITS_GPT2),
            "bloom" | "poro-chat" | "gpt3-finnish" => with(&[Stage::NoPunctuation]),
            "viking" => with(&[Stage::NoPunctuation, Stage::Numbers(1)]),
            "falcon" => {
                with(&[Stage::Punctuation { backtick: true }, Stage::Gpt2, Stage::AsciiTriples])
            }
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => {
                Pre { ignore_merges: true, add_bos: true, ..with(LLAMA3_STAGES) }
            }
            "dbrx" | "smaug-bpe" => with(LLAMA3_STAGES),
            "chatglm-bpe" => Pre { no_default_bos: true, ..with(LLAMA3_STAGES) },
            "glm4" | "glm5" => {
                Pre { ignore_merges: true, no_default_bos: true, ..with(LLAMA3_STAGES) }
            }
            "minicpm5" => Pre {
                ignore_merges: true,
                ..with(&[Stage::Numbers(3), Stage::Words(Words { digits: 0, ..LLAMA3 })])
            },
            "jais-2" => with(&[Stage::Words(Words { spaces_in_powers: true, ..LLAMA3 })]),
            "k2-horizon" => with(&[Stage::Words(Words { marks: true, joiners: true, ..LLAMA3 })]),
            // bailingmoe writes `\s*[\r\n]` without the plus, which is equivalent after `\s*`.
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2"
            | "hunyuan" | "solar-open" | "grok-2" | "bailingmoe" | "bailingmoe2" | "llada-moe" => {
                with(&[Stage::Words(QWEN2)])
            }
            "spark2_5" => with(&[
                Stage::Numbers(1),
                Stage::HanAndKana,
                Stage::DeepSeek3 { newlines_apart: true },
            ]),
            "qwen35" => {
                with(&[Stage::Words(Words { marks: true, no_marks_in_others: true, ..QWEN2 })])
            }
            "laguna" => with(&[Stage::Lines, Stage::Words(QWEN2)]),
            "ufakzeka" => with(&[Stage::Words(Words { contractions: false, ..QWEN2 })]),
            "seed-coder" => with(&[Stage::Words(Words { newlines_after: 0, ..QWEN2 })]),
            "tekken" => Pre { ignore_merges: true, add_bos: true, ..with(&[Stage::Words(TEKKEN)]) },
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => {
                with(&[Stage::Words(GPT4O)])
            }
            "granite-embed-multi-97m" => {
                Pre { ignore_merges: true, ..with(&[Stage::Words(Words { marks: true, ..GPT4O })]) }
            }
            "tiny_aya" | "cohere2moe" => with(&[
                Stage::NumbersFromRight,
                Stage::Words(Words { digits: 3, ..LETTERS_AND_MARKS }),
            ]),
            "youtu" => Pre {
                ignore_merges: true,
                ..with(&[Stage::Youtu, Stage::Words(LETTERS_AND_MARKS)])
            },
            "kimi-k2" => with(&[Stage::Words(Words {
                contractions: false,
                suffix: true,
                han: true,
                ..LLAMA3
            })]),
            // It also writes `\s*[\r\n]` without the plus.
            "exaone-moe" => with(&[Stage::Words(Words {
                marks: true,
                spaces: true,
                newlines_after: 1,
                slashes_after: true,
                ..QWEN2
            })]),
            "superbpe" => with(&[Stage::Numbers(0), Stage::AsciiTriplesFromRight]),
            "afmoe" => with(&[Stage::NumbersFromRight, Stage::Asian, DEEPSEEK3]),
            "deepseek-llm" => with(&[
                Stage::Newlines,
                Stage::SpacedCased,
                Stage::SpacedSigns,
                Stage::SpaceAtEnd,
                Stage::HanAndHangul,
                Stage::Numbers(0),
            ]),
            "deepseek-coder" => with(&[
                Stage::Newlines,
                Stage::Spaced(LETTER),
                Stage::Spaced(PUNCTUATION),
                Stage::HanAndHangul,
                Stage::Numbers(1),
            ]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => with(DEEPSEEK3_STAGES),
            "gemma4" | "granite-embed-multi-311m" => Pre {
                raw_bytes: true,
                newlines_whole: true,
                always_bos: true,
                ..with(&[Stage::Lines])
            },
            "sarvam-moe" => Pre { raw_bytes: true, ..with(&[Stage::Lines]) },
            _ => return None,
        })
    }

    /// Cuts `text` and calls `each` with every part, in order. The parts are not empty and, joined, are `text`.
    pub(crate) fn split<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        let all = Characters::new(text);
        let mut ends = vec![all.chars.len() as u32];
        let mut next = Vec::new();
        for stage in self.stages {
            next.clear();
            let mut from = 0;
            for &end in &ends {
                let end = end as usize;
                stage.cut(Piece::new(&all, from, end), &mut PartEnds::new(from, &mut next));
                from = end;
            }
            std::mem::swap(&mut ends, &mut next);
        }
        let mut from = 0;
        for end in ends {
            let end = all.starts[end as usize] as usize;
            // Cuts are between characters, so this slice always exists.
            if let Some(part) = text.get(from..end)
                && !part.is_empty()
            {
                each(part);
            }
            from = end;
        }
    }
}

impl Stage {
    fn cut(self, piece: Piece<'_>, ends: &mut PartEnds<'_>) {
        match self {
            Stage::Gpt2 => split::gpt2(piece, ends),
            Stage::Words(rules) => split::words(piece, &rules, ends),
            Stage::Numbers(max) => split::numbers(piece, max, ends),
            Stage::AsciiTriples => split::ascii_triples(piece, ends),
            Stage::AsciiTriplesFromRight => split::ascii_triples_from_right(piece, ends),
            Stage::NumbersFromRight => split::numbers_from_right(piece, ends),
            Stage::Punctuation { backtick } => split::punctuation(piece, backtick, ends),
            Stage::Lines => split::lines(piece, ends),
            Stage::Newlines => split::newlines(piece, ends),
            Stage::HanAndKana => split::han_and_kana(piece, ends),
            Stage::HanAndHangul => split::han_and_hangul(piece, ends),
            Stage::Spaced(class) => split::spaced(piece, class, ends),
            Stage::SpacedSigns => split::spaced_signs(piece, ends),
            Stage::SpacedCased => split::spaced_cased(piece, ends),
            Stage::SpaceAtEnd => split::space_at_end(piece, ends),
            Stage::Asian => split::asian(piece, ends),
            Stage::Youtu => split::youtu(piece, ends),
            Stage::DeepSeek3 { newlines_apart } => split::deepseek3(piece, newlines_apart, ends),
            Stage::NoPunctuation => split::no_punctuation(piece, ends),
        }
    }
}
