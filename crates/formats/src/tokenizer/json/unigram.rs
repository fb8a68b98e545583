//! Converts a `tokenizer.json` of the type Unigram to GGUF's terms, which have its scores and SentencePiece's
//! own normalisation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::bpe::Table;
use super::parts::{Component, Pattern, steps};
use super::text::Entries;
use super::vocabulary::{NEVER, kind_of_added};
use super::{File, TokenizerError as E};
use crate::tokenizer::vocabulary::{Model, Token, TokenType, Vocabulary, byte_of};

impl<'a> File<'a> {
    /// Converts Unigram to GGUF's terms.
    pub(super) fn unigram(&self) -> Result<Vocabulary<'a>, E> {
        let Entries::Scores(scores) = &self.model.vocab else {
            let problem = "model: its vocabulary has ids, expected scores for Unigram";
            return Err(E::Inconsistent { problem });
        };
        let ids: Vec<_> = (0..).zip(scores).map(|(id, (text, _))| (text.clone(), id)).collect();
        let table = Table::of(self, &ids)?;
        let (mut notes, prefix) = (Vec::new(), self.spaces()?);
        self.note_normalizers(&mut notes, |kind| {
            matches!(kind, "Prepend" | "Replace" | "Precompiled" | "Strip")
        })?;
        let added = self.added();
        let fallback = self.model.byte_fallback.unwrap_or(false);
        let mut tokens = Vec::with_capacity(table.entries.len());
        for (id, text) in &table.entries {
            let given = scores.get(*id as usize).map_or(f64::from(NEVER), |(_, score)| *score);
            let score = given as f32;
            if !score.is_finite() {
                return Err(E::Score { token: (*id).into(), found: given });
            }
            let (text, ty) = match added.get(id) {
                _ if self.model.unk_id == Some(*id) => (text.0.clone(), TokenType::Unknown),
                Some(added) => kind_of_added(added),
                None if fallback && byte_of(text.as_str()).is_some() => {
                    (text.0.clone(), TokenType::Byte)
                }
                None => (text.0.clone(), TokenType::Normal),
            };
            tokens.push(Token { id: *id, text, score, ty });
        }
        let mut special = self.special(&table);
        special.unknown = self.model.unk_id.filter(|id| (*id as usize) < scores.len());
        Ok(Vocabulary {
            model: Model::Unigram,
            pre: "default",
            tokens,
            merges: Vec::new(),
            special,
            add_bos: None,
            add_eos: None,
            add_space_prefix: prefix,
            remove_extra_whitespaces: self.merges_spaces(),
            charsmap: self.charsmap()?.into(),
            word_piece: None,
            notes,
        })
    }

    /// True if several spaces become one, in `transformers`' notation of SentencePiece's setting, or in its older one, of XLM-R's and T5's files, in
    /// which text is split at white space before each word gets its `▁`.
    fn merges_spaces(&self) -> bool {
        let is_older = |step: &&Component<'_>| step.kind.as_str() == "WhitespaceSplit";
        steps(&self.pre_tokenizer).iter().any(is_older)
            || steps(&self.normalizer).iter().any(|step| {
                matches!(&step.pattern, Some(Pattern::Regex(regex)) if regex.as_str() == " {2,}")
            })
    }

    /// SentencePiece's own normalisation.
    fn charsmap(&self) -> Result<Vec<u8>, E> {
        let steps = steps(&self.normalizer);
        let Some(map) = steps.iter().find_map(|step| step.precompiled_charsmap.as_ref()) else {
            return Ok(Vec::new());
        };
        let problem = "normalizer: its precompiled_charsmap is not base64";
        STANDARD.decode(map.as_str()).map_err(|_| E::Inconsistent { problem })
    }
}
