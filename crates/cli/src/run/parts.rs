//! The parts of an answer that are written, and their destination.

use std::io;

use alight_text::output::Shown;
pub use alight_text::output::{Texts, Thinking, Tone};
use alight_text::{Style, Vocabulary};

/// Writes text.
pub type Sink<'s> = dyn FnMut(Tone, &str) -> io::Result<()> + 's;

/// Splits one answer into parts, token by token, and writes it.
pub struct Parts<'t, 's> {
    shown: Shown<&'t Vocabulary>,
    sink: &'s mut Sink<'s>,
}

impl<'t, 's> Parts<'t, 's> {
    /// Creates the parts of an answer, which any of `stops` ends. Without a chat template all text is the answer.
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

    /// Writes the text that is final with the next token.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn push(&mut self, id: u32) -> io::Result<()> {
        self.shown.push(id, self.sink)
    }

    /// Returns true if a stop text has been found.
    pub fn stopped(&self) -> bool {
        self.shown.stopped()
    }

    /// Ends the answer: writes the rest.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(mut self) -> io::Result<Texts> {
        self.shown.finish(self.sink)?;
        Ok(self.shown.into_texts())
    }
}
