//! Settings that sentence-transformers keeps with a model, which `alight convert` writes under `sentence_transformers.*`: prompts by name, the longest
//! text, and what is done with vectors unless the caller says otherwise.

use alight_formats::gguf::{Gguf, GgufError, Strings};

use crate::tokenizer::TokenizerError;

/// The settings; empty for a file without them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentenceSettings {
    /// Texts that precede an input, by their names.
    pub prompts: Vec<(Box<str>, Box<str>)>,
    /// The name of the one that is used unless the caller names one.
    pub default_prompt: Option<Box<str>>,
    /// The longest input, in tokens.
    pub max_tokens: Option<usize>,
    /// The number of leading elements of a vector that are kept.
    pub dimensions: Option<usize>,
    /// True if vectors are divided by their length.
    pub normalize: Option<bool>,
}

const NAMES: &str = "sentence_transformers.prompt_names";
const PROMPTS: &str = "sentence_transformers.prompts";

impl SentenceSettings {
    /// Reads the settings of a file.
    ///
    /// # Errors
    /// A key has a value of another type, or there is not one prompt for each name.
    pub(crate) fn read(gguf: &Gguf<'_>) -> Result<SentenceSettings, TokenizerError> {
        let (names, texts) = (strings(gguf, NAMES)?, strings(gguf, PROMPTS)?);
        if texts.len() < names.len() {
            let (found, expected) = (texts.len(), names.len());
            return Err(TokenizerError::ShortArray { key: PROMPTS, found, expected });
        }
        let default_prompt = gguf.get_str("sentence_transformers.default_prompt_name")?;
        let number = |key: &str| -> Result<Option<usize>, GgufError> {
            let found = gguf.value::<u32>(&format!("sentence_transformers.{key}"))?;
            Ok(found.map(|n| n as usize).filter(|n| *n > 0))
        };
        Ok(SentenceSettings {
            prompts: names.into_iter().zip(texts).collect(),
            default_prompt: default_prompt.map(Into::into),
            max_tokens: number("max_seq_length")?,
            dimensions: number("truncate_dim")?,
            normalize: gguf.get_bool("sentence_transformers.normalize")?,
        })
    }

    /// Returns the prompt of this name.
    pub fn prompt(&self, name: &str) -> Option<&str> {
        self.prompts.iter().find(|(known, _)| &**known == name).map(|(_, text)| &**text)
    }
}

fn strings(gguf: &Gguf<'_>, key: &str) -> Result<Vec<Box<str>>, GgufError> {
    let Some(all) = gguf.value::<Strings<'_>>(key)? else { return Ok(Vec::new()) };
    Ok(all.map(|text| String::from_utf8_lossy(text).into()).collect())
}
