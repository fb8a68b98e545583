//! The small parts of the pipeline: added tokens, normalizers, pre-tokenizers, post-processors and decoders.
//! Each has a type, and one struct holds the fields of all types; nested parts (`Sequence`) are walked in order.

use serde::Deserialize;

use super::text::Text;

/// An added token.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Added<'a> {
    /// Its id.
    pub id: u32,
    /// Its spelling.
    #[serde(borrow)]
    pub content: Text<'a>,
    /// True if it is omitted from decoded text.
    #[serde(default)]
    pub special: bool,
    /// True if it is searched in the text after normalisation.
    #[serde(default)]
    pub normalized: bool,
    /// True if it absorbs white space before it.
    #[serde(default)]
    pub lstrip: bool,
    /// True if it absorbs white space after it.
    #[serde(default)]
    pub rstrip: bool,
    /// True if it matches only as a whole word.
    #[serde(default)]
    pub single_word: bool,
}

/// A normalizer, pre-tokenizer, post-processor or decoder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Component<'a> {
    /// Its type.
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
    /// For `Split` and `Replace`: the pattern.
    #[serde(default, borrow)]
    pub pattern: Option<Pattern<'a>>,
    /// For `Split` and `Punctuation`: the treatment of matches.
    #[serde(default, borrow)]
    pub behavior: Option<Text<'a>>,
    /// For `Split`: true if the pattern matches the pieces instead of the separators.
    #[serde(default)]
    pub invert: Option<bool>,
    /// For `Replace` and `Strip`: the replacement.
    #[serde(default, borrow)]
    pub content: Option<Text<'a>>,
    /// For `Precompiled`: SentencePiece's own normalisation, in base64.
    #[serde(default, borrow)]
    pub precompiled_charsmap: Option<Text<'a>>,
    /// For `Prepend`: the text put before the input.
    #[serde(default, borrow)]
    pub prepend: Option<Text<'a>>,
    /// For `Metaspace`: the character that replaces a space.
    #[serde(default, borrow)]
    pub replacement: Option<Text<'a>>,
    /// For `Metaspace`: `always`, `first` or `never`.
    #[serde(default, borrow)]
    pub prepend_scheme: Option<Text<'a>>,
    /// For `Metaspace`: true if the text is split before spaces.
    #[serde(default)]
    pub split: Option<bool>,
    /// For `Metaspace` and `ByteLevel`: true if a space is put before the text.
    #[serde(default)]
    pub add_prefix_space: Option<bool>,
    /// For `ByteLevel`: true if the text is split as by GPT-2.
    #[serde(default)]
    pub use_regex: Option<bool>,
    /// For `BertNormalizer`: true if text is lower-cased.
    #[serde(default)]
    pub lowercase: Option<bool>,
    /// For `BertNormalizer`: true if marks are removed; by default if text is lower-cased.
    #[serde(default)]
    pub strip_accents: Option<bool>,
    /// For `BertNormalizer`: true if control characters are removed.
    #[serde(default)]
    pub clean_text: Option<bool>,
    /// For `BertNormalizer`: true if ideographs are words of their own.
    #[serde(default)]
    pub handle_chinese_chars: Option<bool>,
    /// For `Digits`: true if each digit is split off.
    #[serde(default)]
    pub individual_digits: Option<bool>,
    /// For `TemplateProcessing`: the template of a single text.
    #[serde(default, borrow)]
    pub single: Option<Vec<TemplatePiece<'a>>>,
    /// For `TemplateProcessing`: the template of two texts.
    #[serde(default, borrow)]
    pub pair: Option<Vec<TemplatePiece<'a>>>,
}

/// The pattern of `Split` or `Replace`.
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
        /// `A` or `B`.
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
    /// Its steps: itself, or the parts of a sequence.
    pub fn steps(&self) -> Vec<&Component<'a>> {
        let mut steps = Vec::new();
        self.collect(&mut steps);
        steps
    }

    // Recursion is as deep as the parser lets files nest, at most 128.
    fn collect<'c>(&'c self, steps: &mut Vec<&'c Component<'a>>) {
        if self.kind.as_str() != "Sequence" {
            return steps.push(self);
        }
        let parts = [&self.normalizers, &self.pretokenizers, &self.processors, &self.decoders];
        for part in parts.into_iter().flatten().flatten() {
            part.collect(steps);
        }
    }

    /// True if the pattern is this text.
    pub fn looks_for(&self, text: &str) -> bool {
        matches!(&self.pattern, Some(Pattern::String(pattern)) if pattern.as_str() == text)
    }
}

/// The steps of an optional part of the pipeline.
pub(super) fn steps<'c, 'a>(part: &'c Option<Component<'a>>) -> Vec<&'c Component<'a>> {
    part.as_ref().map(Component::steps).unwrap_or_default()
}
