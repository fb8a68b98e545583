//! What of an answer is written, and where to.

use std::io;

use alight_text::output::Shown;
pub use alight_text::output::{Texts, Thinking, Tone};
use alight_text::{Style, Vocabulary};

/// Writes text.
pub type Sink<'s> = dyn FnMut(Tone, &str) -> io::Result<()> + 's;

/// Takes one answer apart, token by token, and writes it.
pub struct Parts<'t, 's> {
    shown: Shown<&'t Vocabulary>,
    sink: &'s mut Sink<'s>,
}

impl<'t, 's> Parts<'t, 's> {
    /// For the answer to a prompt, which any of `stops` ends. Without a chat template all text is the answer.
    pub fn new(
        vocabulary: &'t Vocabulary,
        style: Style,
        prompt: &[u32],
        thinking: Thinking,
        stops: &[String],
        sink: &'s mut Sink<'s>,
    ) -> Parts<'t, 's> {
        Parts { shown: Shown::new(vocabulary, style, prompt, thinking, stops), sink }
    }

    /// Writes what is certain with the next token.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, id: u32) -> io::Result<()> {
        self.shown.push(id, self.sink)
    }

    /// True if one of the texts has come that end it.
    pub fn stopped(&self) -> bool {
        self.shown.stopped()
    }

    /// The answer ends here: writes the rest.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self) -> io::Result<Texts> {
        self.shown.finish(self.sink)?;
        Ok(self.shown.into_texts())
    }
}
