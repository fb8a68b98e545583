//! The small parts of the pipeline: added tokens, normalizers, pre-tokenizers, post-processors and
//! decoders. Each has a type, and the fields of all types are in one structure; parts of parts
//! (`Sequence`) are walked in order.

use serde::Deserialize;

use super::text::Text;

/// A token that was added.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Added<'a> {
    /// Its number.
    pub id: u32,
    /// Its spelling.
    #[serde(borrow)]
    pub content: Text<'a>,
    /// True if it is left out where text is decoded.
    #[serde(default)]
    pub special: bool,
    /// True if it is found in the text after the normalizer.
    #[serde(default)]
    pub normalized: bool,
    /// True if it takes white space before it.
    #[serde(default)]
    pub lstrip: bool,
    /// True if it takes white space after it.
    #[serde(default)]
    pub rstrip: bool,
    /// True if it is only found as a whole word.
    #[serde(default)]
    pub single_word: bool,
}

/// A normalizer, pre-tokenizer, post-processor or decoder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Component<'a> {
    /// Which one.
    #[serde(rename = "type", borrow)]
    pub kind: Text<'a>,
    #[serde(default, borrow)]
    normalizers: Option<Vec<Component<'a>>>,
    #[serde(default, borrow)]
    pretokenizers: Option<Vec<Component<'a>>>,
    #[serde(default, borrow)]
    processors: Option<Vec<Component<'a>>>,
    #[serde(default, borrow)]
    decoders: Option<Vec<Component<'a>>>,
    /// Of `Split` and `Replace`: what is looked for.
    #[serde(default, borrow)]
    pub pattern: Option<Pattern<'a>>,
    /// Of `Split` and `Punctuation`: what becomes of it.
    #[serde(default, borrow)]
    pub behavior: Option<Text<'a>>,
    /// Of `Split`: whether it is what lies between.
    #[serde(default)]
    pub invert: Option<bool>,
    /// Of `Replace` and `Strip`: what takes its place.
    #[serde(default, borrow)]
    pub content: Option<Text<'a>>,
    /// Of `Precompiled`: SentencePiece's own normalisation, in base64.
    #[serde(default, borrow)]
    pub precompiled_charsmap: Option<Text<'a>>,
    /// Of `Prepend`: what goes before the text.
    #[serde(default, borrow)]
    pub prepend: Option<Text<'a>>,
    /// Of `Metaspace`: what stands for a space.
    #[serde(default, borrow)]
    pub replacement: Option<Text<'a>>,
    /// Of `Metaspace`: `always`, `first` or `never`.
    #[serde(default, borrow)]
    pub prepend_scheme: Option<Text<'a>>,
    /// Of `Metaspace`: whether the text is cut before spaces.
    #[serde(default)]
    pub split: Option<bool>,
    /// Of `Metaspace` and `ByteLevel`: whether a space goes before the text.
    #[serde(default)]
    pub add_prefix_space: Option<bool>,
    /// Of `ByteLevel`: whether the text is cut as by GPT-2.
    #[serde(default)]
    pub use_regex: Option<bool>,
    /// Of `Digits`: whether each is cut off.
    #[serde(default)]
    pub individual_digits: Option<bool>,
    /// Of `TemplateProcessing`: what becomes of one text.
    #[serde(default, borrow)]
    pub single: Option<Vec<TemplatePiece<'a>>>,
    /// Of `TemplateProcessing`: what becomes of two.
    #[serde(default, borrow)]
    pub pair: Option<Vec<TemplatePiece<'a>>>,
}

/// What `Split` or `Replace` look for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub enum Pattern<'a> {
    /// This text.
    String(#[serde(borrow)] Text<'a>),
    /// A regular expression.
    Regex(#[serde(borrow)] Text<'a>),
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub enum TemplatePiece<'a> {
    /// A token.
    SpecialToken {
        /// Its spelling.
        #[serde(borrow)]
        id: Text<'a>,
    },
    /// A text.
    Sequence {
        /// Which one, `A` or `B`.
        #[serde(borrow)]
        id: Text<'a>,
    },
}

impl TemplatePiece<'_> {
    /// The spelling, if it is a token.
    pub fn token(&self) -> Option<&str> {
        match self {
            TemplatePiece::SpecialToken { id } => Some(id.as_str()),
            TemplatePiece::Sequence { .. } => None,
        }
    }
}

impl<'a> Component<'a> {
    /// What it does, step by step: itself, or the parts of a sequence.
    pub fn steps(&self) -> Vec<&Component<'a>> {
        let mut steps = Vec::new();
        self.collect(&mut steps);
        steps
    }

    // As deep as the parser lets files nest, which is 128.
    fn collect<'c>(&'c self, steps: &mut Vec<&'c Component<'a>>) {
        if self.kind.as_str() != "Sequence" {
            return steps.push(self);
        }
        let parts = [&self.normalizers, &self.pretokenizers, &self.processors, &self.decoders];
        for part in parts.into_iter().flatten().flatten() {
            part.collect(steps);
        }
    }

    /// The pattern, if it is this text.
    pub fn looks_for(&self, text: &str) -> bool {
        matches!(&self.pattern, Some(Pattern::String(pattern)) if pattern.as_str() == text)
    }
}

/// The steps of a part of the pipeline that may be missing.
pub(super) fn steps<'c, 'a>(part: &'c Option<Component<'a>>) -> Vec<&'c Component<'a>> {
    part.as_ref().map(Component::steps).unwrap_or_default()
}
