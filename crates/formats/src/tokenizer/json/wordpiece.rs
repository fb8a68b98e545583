//! Converts a `tokenizer.json` of the type WordPiece to GGUF's terms, in which a token that begins a word has a `▁` before it, and one
//! that continues a word has lost its prefix, `##`.

use std::borrow::Cow;

use super::bpe::{self, Table};
use super::parts::{Component, steps};
use super::text::Text;
use super::vocabulary::kind_of_added;
use super::{File, TokenizerError as E};
use crate::tokenizer::vocabulary::{Model, Token, TokenType, Vocabulary, WordPieceRules};
use crate::tokenizer::word_list::piece_text;

/// The longest word that has tokens, in characters: a setting for which GGUF has no key.
const MAX_CHARS: u64 = 100;

impl<'a> File<'a> {
    /// Converts WordPiece to GGUF's terms.
    pub(super) fn word_piece(&self) -> Result<Vocabulary<'a>, E> {
        let refused =
            |part, found: &str, advice| Err(E::Unsupported { part, found: found.into(), advice });
        let prefix = self.model.continuing_subword_prefix.as_ref().map_or("##", Text::as_str);
        if prefix != "##" {
            return refused("model: continuing_subword_prefix", prefix, "expected \"##\"");
        }
        if let Some(found) = self.model.max_input_chars_per_word.filter(|n| *n != MAX_CHARS) {
            let advice = "expected 100, for which GGUF has no key";
            return refused("model: max_input_chars_per_word", &found.to_string(), advice);
        }
        for step in steps(&self.pre_tokenizer) {
            if step.kind.as_str() != "BertPreTokenizer" {
                let advice = "expected BertPreTokenizer for WordPiece";
                return refused("pre_tokenizer", step.kind.as_str(), advice);
            }
        }
        if steps(&self.pre_tokenizer).is_empty() {
            return refused("pre_tokenizer", "none", "expected BertPreTokenizer for WordPiece");
        }
        let rules = rules(&steps(&self.normalizer))?;
        let table = Table::of(self, bpe::ids(self)?)?;
        let added = self.added();
        let unknown = self.model.unk_token.as_ref().map_or("[UNK]", Text::as_str);
        let tokens = table.entries.iter().map(|(id, text)| {
            let kind = match added.get(id) {
                Some(added) => kind_of_added(added).1,
                None if text.as_str() == unknown => TokenType::Unknown,
                None => TokenType::Normal,
            };
            Token { id: *id, text: piece_text(&text.0, kind), score: 0.0, ty: kind }
        });
        Ok(Vocabulary {
            model: Model::WordPiece,
            pre: "default",
            tokens: tokens.collect(),
            merges: Vec::new(),
            special: self.special(&table),
            add_bos: None,
            add_eos: None,
            add_space_prefix: false,
            remove_extra_whitespaces: false,
            charsmap: Cow::Borrowed(&[]),
            word_piece: Some(rules),
            notes: Vec::new(),
        })
    }
}

/// Returns the rules of the normalizer: BERT's own, or the same in steps.
fn rules(steps: &[&Component<'_>]) -> Result<WordPieceRules, E> {
    let mut rules = WordPieceRules {
        lowercase: false,
        strip_accents: false,
        clean_text: false,
        split_ideographs: false,
    };
    let mut decomposed = false;
    for step in steps {
        match step.kind.as_str() {
            "BertNormalizer" => {
                let lowercase = step.lowercase.unwrap_or(true);
                rules.lowercase |= lowercase;
                rules.strip_accents |= step.strip_accents.unwrap_or(lowercase);
                rules.clean_text |= step.clean_text.unwrap_or(true);
                rules.split_ideographs |= step.handle_chinese_chars.unwrap_or(true);
            }
            "Lowercase" => rules.lowercase = true,
            "NFD" => decomposed = true,
            "StripAccents" if decomposed => rules.strip_accents = true,
            other => {
                let advice =
                    "expected BertNormalizer, Lowercase, or NFD with StripAccents for WordPiece";
                return Err(E::Unsupported { part: "normalizer", found: other.into(), advice });
            }
        }
    }
    Ok(rules)
}
