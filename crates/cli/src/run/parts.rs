//! What of an answer is shown: thinking dimmed on a terminal, or left out.

use std::io;

use alight_text::output::{Format, Parser, Part};
use alight_text::{StreamDecoder, Style, Tokenizer, Vocabulary};

/// How a piece of text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Dimmed, where the terminal may be given styles.
    Dim,
}

/// Writes text.
pub type Sink<'s> = dyn FnMut(Tone, &str) -> io::Result<()> + 's;

/// What is written of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Every token's text, as the model wrote it: what a pipe gets.
    All,
    /// The thinking dimmed, a blank line behind it, and no marks.
    Dimmed,
    /// The answer alone, and calls of tools as the model wrote them.
    Answer,
}

/// The last tokens of a prompt, in which a template may have opened the thinking.
const END: usize = 32;

/// Takes one answer apart.
pub struct Parts<'t> {
    tokenizer: &'t Tokenizer,
    decoder: StreamDecoder,
    parser: Parser,
    /// Tokens without text that are marks.
    hidden: Vec<u32>,
    show: Show,
    /// What has been written last.
    tone: Option<Tone>,
    said: String,
}

impl<'t> Parts<'t> {
    /// For the answer to a prompt.
    pub fn new(vocabulary: &'t Vocabulary, style: Style, prompt: &[u32], show: Show) -> Parts<'t> {
        let tokenizer = &vocabulary.tokenizer;
        let format = match style {
            Style::Chat => vocabulary.output_format(),
            Style::Raw => Format::Plain,
        };
        let mut end = Vec::new();
        for &id in &prompt[prompt.len().saturating_sub(END)..] {
            tokenizer.decode_special(id, &mut end);
        }
        Parts {
            tokenizer,
            decoder: StreamDecoder::new(),
            parser: Parser::new(format, &String::from_utf8_lossy(&end)),
            hidden: format.hidden_marks(tokenizer),
            show,
            tone: None,
            said: String::new(),
        }
    }

    /// What the next token shows, other than its own text.
    pub fn push(&mut self, id: u32, sink: &mut Sink<'_>) -> io::Result<()> {
        match self.hidden.contains(&id) {
            true => self.tokenizer.decode_special(id, self.decoder.buffer()),
            false => self.tokenizer.decode_bytes(id, self.decoder.buffer()),
        }
        self.take(false, sink)
    }

    /// The answer ends here: shows the rest, and returns what was said to the user, without the thinking. That is
    /// what a conversation goes on with: templates leave old thinking out.
    pub fn finish(mut self, sink: &mut Sink<'_>) -> io::Result<String> {
        self.take(true, sink)?;
        Ok(self.said)
    }

    fn take(&mut self, last: bool, sink: &mut Sink<'_>) -> io::Result<()> {
        let (show, tone, said) = (self.show, &mut self.tone, &mut self.said);
        let mut failed = Ok(());
        let mut each = |span: alight_text::output::Span<'_>| {
            let now = match span.part {
                Part::Mark => return,
                Part::Thinking => Tone::Dim,
                Part::Answer | Part::Call(_) => Tone::Plain,
            };
            if now == Tone::Plain {
                said.push_str(span.raw);
            }
            if failed.is_err() || show == Show::All || show == Show::Answer && now == Tone::Dim {
                return;
            }
            let between = if tone.is_some_and(|before| before != now) { "\n\n" } else { "" };
            if !between.is_empty() {
                failed = sink(now, between);
            }
            *tone = Some(now);
            if failed.is_ok() {
                failed = sink(now, span.raw);
            }
        };
        let text = if last { self.decoder.finish() } else { self.decoder.take() };
        self.parser.push(text, &mut each);
        if last {
            self.parser.finish(&mut each);
        }
        failed
    }
}
