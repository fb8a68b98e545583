//! The text part of a model file: its tokenizer and its chat template.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use alight_formats::Pieces;
use alight_formats::gguf::{Gguf, GgufError};

use crate::format::Format;
use crate::sentence::SentenceSettings;
use crate::template::{ChatError, ChatTemplate, MAX_SOURCE};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// The reason why a file's chat template is unusable.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It is not a string.
    #[error(transparent)]
    Metadata(GgufError),
    /// It is not a valid template.
    #[error(transparent)]
    Template(ChatError),
}

/// A file's tokenizer and chat template.
pub struct Vocabulary {
    /// Text into tokens and back.
    pub tokenizer: Tokenizer,
    /// The source of the chat template, if the file has one.
    source: Option<Result<String, TemplateError>>,
    compiled: OnceLock<Result<ChatTemplate, TemplateError>>,
    /// The format of the output, if it is not to be derived.
    format: Option<Format>,
    /// The template of a query and a document.
    rerank: Option<Box<str>>,
    /// Prompts and limits of inputs whose vectors are computed.
    pub sentence: SentenceSettings,
    /// The time that building it took.
    pub took: Duration,
}

impl Vocabulary {
    /// Builds the tokenizer, with a copy of the vocabulary, and the chat template.
    ///
    /// # Errors
    /// See [`Tokenizer::from_gguf`].
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Vocabulary, TokenizerError> {
        Vocabulary::from_header(gguf, &Pieces::default())
    }

    /// Builds the tokenizer, whose vocabulary stays in the `pieces` of the parsed header. The chat template is copied, and compiled when it is first
    /// requested: an invalid template is no error for callers that do not use it.
    ///
    /// # Errors
    /// See [`Tokenizer::from_gguf`].
    pub fn from_header(gguf: &Gguf<'_>, pieces: &Pieces) -> Result<Vocabulary, TokenizerError> {
        let clock = Instant::now();
        let tokenizer = Tokenizer::from_header(gguf, pieces)?;
        let source = match gguf.get_str("tokenizer.chat_template") {
            Ok(None) => None,
            Ok(Some(source)) if source.len() > MAX_SOURCE => {
                let error = ChatError::TooLong { len: source.len(), limit: MAX_SOURCE };
                Some(Err(TemplateError::Template(error)))
            }
            Ok(Some(source)) => Some(Ok(source.to_owned())),
            Err(error) => Some(Err(TemplateError::Metadata(error))),
        };
        let rerank = gguf.get_str("tokenizer.chat_template.rerank")?;
        let rerank = rerank.filter(|text| text.len() <= MAX_SOURCE).map(Into::into);
        let sentence = SentenceSettings::read(gguf)?;
        let (compiled, took) = (OnceLock::new(), clock.elapsed());
        Ok(Vocabulary { tokenizer, source, compiled, format: None, rerank, sentence, took })
    }

    /// The marks that divide the model's output.
    pub fn output_format(&self) -> Format {
        let token = |text: &str| self.tokenizer.token_id(text.as_bytes()).is_some();
        self.format.unwrap_or_else(|| Format::of(self.template_source(), token))
    }

    /// Uses this format instead of the one that the template and the tokens show.
    pub fn set_output_format(&mut self, format: Format) {
        self.format = Some(format);
    }

    /// Returns true if there is a chat template that contains `text`.
    pub fn template_has(&self, text: &str) -> bool {
        self.template_source().is_some_and(|source| source.contains(text))
    }

    /// Returns true if the chat template shows the model tools, in a notation whose calls are read. Otherwise they have to be
    /// described to it in words.
    pub fn shows_tools(&self) -> bool {
        self.template_has("tools") && self.output_format() != Format::Plain
    }

    /// The text of the chat template, if there is one.
    pub fn template_source(&self) -> Option<&str> {
        self.source.as_ref()?.as_deref().ok()
    }

    /// The template of a query and a document, with `{query}` and `{document}` in it, of a decoder that scores them.
    pub fn rerank_template(&self) -> Option<&str> {
        self.rerank.as_deref()
    }

    /// The file's chat template, compiled; `None` if it has none.
    ///
    /// # Errors
    /// The template is unusable.
    pub fn template(&self) -> Option<Result<&ChatTemplate, &TemplateError>> {
        let source = self.source.as_ref()?;
        let compile = || self.compile(source.as_ref().map_err(TemplateError::clone)?);
        Some(self.compiled.get_or_init(compile).as_ref())
    }

    /// Uses another chat template instead of the file's.
    ///
    /// # Errors
    /// [`TemplateError::Template`]: it is unusable, and nothing changes.
    pub fn set_template(&mut self, source: String) -> Result<(), TemplateError> {
        let compiled = self.compile(&source)?;
        self.source = Some(Ok(source));
        self.compiled = OnceLock::from(Ok(compiled));
        Ok(())
    }

    /// Compiles a chat template for the tokens of this file.
    ///
    /// # Errors
    /// [`TemplateError::Template`].
    pub fn compile(&self, source: &str) -> Result<ChatTemplate, TemplateError> {
        let text = |id: Option<u32>| {
            let bytes = id.map(|id| self.tokenizer.token_text(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let (bos, eos) = (text(self.tokenizer.bos()), text(self.tokenizer.eos()));
        ChatTemplate::new(source, &bos, &eos).map_err(TemplateError::Template)
    }
}
