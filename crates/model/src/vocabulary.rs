//! What of a model is about text: its tokenizer, and the template of its conversations.

use std::time::{Duration, Instant};

use alight_formats::gguf::Gguf;

use crate::chat::ChatTemplate;
use crate::tokenizer::{Tokenizer, TokenizerError};

/// A file's tokenizer and chat template.
pub struct Vocabulary {
    /// Text into tokens and back.
    pub tokenizer: Tokenizer,
    /// The chat template, if the file has one that compiles.
    pub template: Option<ChatTemplate>,
    /// Why the chat template does not compile, if the file has one that does not.
    pub template_error: Option<String>,
    /// How long this took.
    pub took: Duration,
}

impl Vocabulary {
    /// Builds the tokenizer, and compiles the chat template.
    ///
    /// # Errors
    /// See [`Tokenizer::from_gguf`]. A template that does not compile is no error.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Vocabulary, TokenizerError> {
        let clock = Instant::now();
        let tokenizer = Tokenizer::from_gguf(gguf)?;
        let text = |id: Option<u32>| {
            let bytes = id.map(|id| tokenizer.token_text(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (template, template_error) = match gguf.get_str("tokenizer.chat_template") {
            Ok(None) => (None, None),
            Ok(Some(source)) => {
                match ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos())) {
                    Ok(template) => (Some(template), None),
                    Err(error) => (None, Some(error.to_string())),
                }
            }
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Vocabulary { tokenizer, template, template_error, took: clock.elapsed() })
    }
}
