//! Converts a `tokenizer.json` to GGUF's terms.
//!
//! BPE comes in two kinds. One is over bytes (`ByteLevel`), and GGUF keeps its merges. The other is
//! SentencePiece's, rewritten: spaces are `▁`, and text without a token is spelled in bytes. For it, GGUF keeps
//! scores, which such a file no longer has. They are reconstructed from the order in which tokens are first
//! created. For Gemma 3, every token that is ever merged gets exactly the score of the original
//! `tokenizer.model`. (llama.cpp's `LlamaHfVocab` gives every token the same score.)

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::bpe::{self, Table};
use super::parts::{Added, steps};
use super::text::{Entries, Text};
use super::{File, TokenizerError as E, pre};
use crate::tokenizer::vocabulary::{
    Model, Special, Token, TokenType, Vocabulary, byte_of, looks_special,
};

/// The score of tokens that are never merged, as in llama.cpp's converter.
pub(super) const NEVER: f32 = -1000.0;

impl<'a> File<'a> {
    /// Converts the file to GGUF's terms.
    ///
    /// # Errors
    /// The file has settings that GGUF cannot express, or is inconsistent.
    pub fn vocabulary(&self) -> Result<Vocabulary<'a>, E> {
        let refused =
            |part, found: &str, advice| Err(E::Unsupported { part, found: found.into(), advice });
        let kind = match &self.model.kind {
            Some(kind) => kind.as_str(),
            // Early files do not state it.
            None if matches!(self.model.vocab, Entries::Scores(_)) => "Unigram",
            None if self.model.merges.is_some() => "BPE",
            None => return Err(E::Inconsistent { problem: "model: its type is missing" }),
        };
        match kind {
            "BPE" => {}
            "Unigram" => return self.unigram(),
            "WordPiece" => return self.word_piece(),
            other => return refused("model", other, "expected BPE, Unigram or WordPiece"),
        }
        let fixes = [&self.model.continuing_subword_prefix, &self.model.end_of_word_suffix];
        if let Some(fix) = fixes.into_iter().flatten().find(|fix| !fix.as_str().is_empty()) {
            let advice = "GGUF has no prefix or suffix of subwords";
            return refused(
                "model: continuing_subword_prefix or end_of_word_suffix",
                fix.as_str(),
                advice,
            );
        }
        let has = |part, kind: &str| steps(part).iter().any(|step| step.kind.as_str() == kind);
        if has(&self.pre_tokenizer, "ByteLevel") || has(&self.decoder, "ByteLevel") {
            self.over_bytes()
        } else {
            self.rewritten()
        }
    }

    /// Converts BPE over bytes.
    fn over_bytes(&self) -> Result<Vocabulary<'a>, E> {
        let table = Table::of(self, bpe::ids(self)?)?;
        bpe::merges(self, &table)?;
        let (pre, prefix) = pre::name(self)?;
        let mut notes = Vec::new();
        if prefix {
            notes.push(
                "the tokenizer puts a space before every text, which GGUF files of this kind cannot say"
                    .into(),
            );
        }
        self.note_normalizers(&mut notes, |_| false)?;
        let added = self.added();
        let tokens = table.entries.iter().map(|(id, text)| {
            let (text, ty) = match added.get(id) {
                Some(added) => kind_of_added(added),
                None => (text.0.clone(), TokenType::Normal),
            };
            Token { id: *id, text, score: 0.0, ty }
        });
        Ok(Vocabulary {
            model: Model::ByteLevel,
            pre,
            tokens: tokens.collect(),
            merges: bpe::written(self),
            special: self.special(&table),
            add_bos: None,
            add_eos: None,
            add_space_prefix: false,
            remove_extra_whitespaces: false,
            charsmap: Cow::Borrowed(&[]),
            word_piece: None,
            notes,
        })
    }

    /// Converts BPE that was SentencePiece's, with its merges and without scores: Gemma 4's, whose merges GGUF keeps.
    ///
    /// # Errors
    /// It is of another kind, or inconsistent.
    pub fn over_characters(&self) -> Result<Vocabulary<'a>, E> {
        let mut vocabulary = self.vocabulary()?;
        if vocabulary.model != Model::SentencePiece {
            let advice = "expected BPE that was SentencePiece's";
            let found = vocabulary.model.name().into();
            return Err(E::Unsupported { part: "model", found, advice });
        }
        // These concern scores.
        vocabulary.notes.clear();
        self.note_normalizers(&mut vocabulary.notes, is_of_spaces)?;
        vocabulary.tokens.iter_mut().for_each(|token| token.score = NEVER);
        let (model, merges) = (Model::Characters, bpe::written(self));
        Ok(Vocabulary { model, pre: "gemma4", merges, add_bos: Some(true), ..vocabulary })
    }

    /// Converts BPE that was SentencePiece's.
    fn rewritten(&self) -> Result<Vocabulary<'a>, E> {
        let table = Table::of(self, bpe::ids(self)?)?;
        let merges = bpe::merges(self, &table)?;
        let (mut notes, prefix) = (Vec::new(), self.spaces()?);
        self.note_normalizers(&mut notes, is_of_spaces)?;
        let fallback = self.model.byte_fallback.unwrap_or(false);
        let added = self.added();
        let unknown = self.model.unk_token.as_ref().map(Text::as_str);
        let mut tokens = Vec::with_capacity(table.entries.len());
        for (id, text) in &table.entries {
            let (text, ty) = match added.get(id) {
                Some(added) => kind_of_added(added),
                None if fallback && byte_of(text.as_str()).is_some() => {
                    (text.0.clone(), TokenType::Byte)
                }
                None if unknown == Some(text.as_str()) => (text.0.clone(), TokenType::Unknown),
                None => (text.0.clone(), TokenType::Normal),
            };
            let score = if ty == TokenType::Byte { 0.0 } else { NEVER };
            tokens.push(Token { id: *id, text, score, ty });
        }
        // Tokens created by merges, in the order of the merges, and then the others by id.
        let first = bpe::made_first(&table, &merges);
        let mut order: Vec<usize> =
            (0..tokens.len()).filter(|&at| tokens[at].ty == TokenType::Normal).collect();
        let otherwise = bpe::not_by_score(&table, &merges, &order)?;
        if otherwise > 0 {
            notes.push(format!(
                "{otherwise} tokens are merged otherwise than by a score of theirs, which is all that \
                 GGUF files of this kind have: some texts are cut otherwise"
            ));
        }
        order.sort_by_key(|&at| (first[at].unwrap_or(u32::MAX), at));
        for (place, at) in order.into_iter().enumerate() {
            tokens[at].score = -(place as f32);
        }
        Ok(Vocabulary {
            model: Model::SentencePiece,
            pre: "default",
            tokens,
            merges: Vec::new(),
            special: self.special(&table),
            add_bos: None,
            add_eos: None,
            add_space_prefix: prefix,
            remove_extra_whitespaces: false,
            charsmap: Cow::Borrowed(&[]),
            word_piece: None,
            notes,
        })
    }

    /// Checks that spaces become `▁`; returns true if one is put before every text.
    pub(super) fn spaces(&self) -> Result<bool, E> {
        let mut marked = false;
        let mut prefix = false;
        for step in steps(&self.normalizer) {
            match step.kind.as_str() {
                "Prepend" => {
                    prefix |= step.prepend.as_ref().is_some_and(|text| text.as_str() == "▁")
                }
                "Replace" if step.looks_for(" ") => {
                    marked |= step.content.as_ref().is_some_and(|text| text.as_str() == "▁");
                }
                _ => {}
            }
        }
        for step in steps(&self.pre_tokenizer) {
            let kind = step.kind.as_str();
            match kind {
                "Metaspace" => {
                    marked |= step.replacement.as_ref().is_none_or(|text| text.as_str() == "▁");
                    prefix |= match &step.prepend_scheme {
                        Some(scheme) => scheme.as_str() != "never",
                        None => step.add_prefix_space.unwrap_or(true),
                    };
                }
                // Words without the white space between them: see `merges_spaces`.
                "WhitespaceSplit" if matches!(self.model.vocab, Entries::Scores(_)) => {}
                // After the normalizer there are no spaces left.
                "Split" if step.looks_for(" ") => {}
                _ => {
                    let advice = "expected none, Metaspace, or Split at spaces, for a tokenizer that \
                                  was SentencePiece's; or ByteLevel";
                    return Err(E::Unsupported {
                        part: "pre_tokenizer",
                        found: kind.into(),
                        advice,
                    });
                }
            }
        }
        if marked {
            return Ok(prefix);
        }
        let found = if self.model.byte_fallback == Some(true) { "byte_fallback" } else { "" };
        let advice = "expected ByteLevel, or spaces that become \"▁\"";
        Err(E::Unsupported {
            part: "the way in which it treats spaces",
            found: found.into(),
            advice,
        })
    }

    /// Notes the normalizers that GGUF cannot express, except for those that are `known`.
    ///
    /// # Errors
    /// One of them changes usual text, which would be cut into other tokens than those that the model was trained on.
    pub(super) fn note_normalizers(
        &self,
        notes: &mut Vec<String>,
        known: impl Fn(&str) -> bool,
    ) -> Result<(), E> {
        for step in steps(&self.normalizer).iter().filter(|step| !known(step.kind.as_str())) {
            let kind = step.kind.as_str();
            let kind: String = kind.chars().take(40).flat_map(char::escape_debug).collect();
            if !is_of_forms(&kind) {
                let advice = "GGUF files of this kind cannot express this normalizer, and without it usual \
                              text becomes other tokens than those that the model was trained on";
                return Err(E::Unsupported { part: "normalizer", found: kind.into(), advice });
            }
            notes.push(format!(
                "the tokenizer normalises text ({kind}), which GGUF files of this kind cannot express: \
                 text in other forms becomes other tokens"
            ));
        }
        let strips = |added: &&Added<'_>| added.lstrip || added.rstrip;
        let count = self.added_tokens.iter().filter(strips).count();
        if count > 0 {
            notes.push(format!(
                "{count} tokens take the white space beside them, which GGUF files cannot say"
            ));
        }
        Ok(())
    }

    pub(super) fn added(&self) -> HashMap<u32, &Added<'a>> {
        self.added_tokens.iter().map(|added| (added.id, added)).collect()
    }

    /// The unknown token, and the template's first and last pieces if they are tokens.
    pub(super) fn special(&self, table: &Table<'_, 'a>) -> Special {
        let mut special = Special {
            unknown: self.model.unk_token.as_ref().and_then(|text| table.id(text.as_str())),
            ..Special::default()
        };
        let templates = steps(&self.post_processor);
        let special_tokens: HashSet<&str> =
            self.added_tokens.iter().filter(|a| a.special).map(|a| a.content.as_str()).collect();
        for single in templates.iter().filter_map(|step| step.single.as_deref()) {
            let id = |piece: Option<&super::TemplatePiece<'a>>| {
                let text = piece?.token().filter(|text| special_tokens.contains(text))?;
                table.id(text)
            };
            if single.len() > 1 {
                special.bos = special.bos.or(id(single.first()));
                special.eos = special.eos.or(id(single.last()));
            }
        }
        special
    }
}

/// True for normalizers that only convert between forms of the same text, most of which is in the usual form already.
fn is_of_forms(kind: &str) -> bool {
    matches!(kind, "NFC" | "NFD" | "NFKC" | "NFKD" | "Nmt" | "Precompiled" | "Strip")
}

/// True for normalizers that convert spaces to their form in tokens.
fn is_of_spaces(kind: &str) -> bool {
    matches!(kind, "Prepend" | "Replace")
}

/// Text and type of an added token. One that is not a control token is matched in the original text, so it has spaces.
pub(super) fn kind_of_added<'a>(added: &Added<'a>) -> (Cow<'a, str>, TokenType) {
    let text = &added.content.0;
    if added.special || looks_special(text) {
        (text.clone(), TokenType::Control)
    } else if text.contains('▁') {
        (text.replace('▁', " ").into(), TokenType::UserDefined)
    } else {
        (text.clone(), TokenType::UserDefined)
    }
}
