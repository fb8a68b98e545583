//! What of an answer is written: thinking is dimmed, stands between tags, or is left out.

use std::io;

use alight_text::output::{Format, Parser, Part, Reader, Span};
use alight_text::{Style, Vocabulary};

use super::stops::Stops;

/// How a piece of text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it is.
    Plain,
    /// Dimmed.
    Dim,
}

/// Writes text.
pub type Sink<'s> = dyn FnMut(Tone, &str) -> io::Result<()> + 's;

/// How thinking is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// Between [`OPEN`] and [`CLOSE`], whichever marks the model writes: one rule for every program that reads it.
    Tagged,
    /// Dimmed, a blank line behind it.
    Dimmed,
    /// Not at all.
    Hidden,
}

/// What stands before thinking that is [`Thinking::Tagged`].
const OPEN: &str = "<think>\n";
/// What stands behind it.
const CLOSE: &str = "\n</think>";
/// Stands between two parts that the model divided by marks.
const BLANK: &str = "\n\n";

/// The texts of an answer.
#[derive(Debug, Default)]
pub struct Texts {
    /// All that was written.
    pub written: String,
    /// What the model said to the user; calls of tools as it wrote them.
    pub answer: String,
    /// What it thought.
    pub thinking: String,
}

/// Takes one answer apart, token by token, and writes it.
pub struct Parts<'t, 's> {
    reader: Reader<'t>,
    stops: Stops,
    parser: Parser,
    writer: Writer<'s>,
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
        let tokenizer = &vocabulary.tokenizer;
        let format = match style {
            Style::Chat => vocabulary.output_format(),
            Style::Raw => Format::Plain,
        };
        let texts = Texts::default();
        Parts {
            reader: Reader::new(format, tokenizer),
            stops: Stops::new(stops),
            parser: Parser::after(format, tokenizer, prompt),
            writer: Writer { shown: thinking, sink, last: None, divided: false, texts },
        }
    }

    /// Writes what is certain with the next token.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, id: u32) -> io::Result<()> {
        let Parts { reader, stops, parser, writer } = self;
        let mut result = Ok(());
        stops.push(reader.push(id), &mut |text| {
            parser.push(text, &mut |span| writer.each(&span, &mut result));
        });
        result
    }

    /// Whether one of the texts has come that end it.
    pub fn stopped(&self) -> bool {
        self.stops.found()
    }

    /// The answer ends here: writes the rest.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish(mut self) -> io::Result<Texts> {
        let Parts { reader, stops, parser, writer } = &mut self;
        let mut result = Ok(());
        let mut each = |text: &str| parser.push(text, &mut |span| writer.each(&span, &mut result));
        stops.push(reader.finish(), &mut each);
        stops.finish(&mut each);
        parser.finish(&mut |span| writer.each(&span, &mut result));
        result.map(|()| self.writer.texts)
    }
}

/// Writes spans, and collects their texts.
struct Writer<'s> {
    shown: Thinking,
    sink: &'s mut Sink<'s>,
    /// The tone of the span before.
    last: Option<Tone>,
    /// A mark stood behind it.
    divided: bool,
    texts: Texts,
}

impl Writer<'_> {
    /// Takes a span unless one before it could not be written.
    fn each(&mut self, span: &Span<'_>, result: &mut io::Result<()>) {
        if result.is_ok() {
            *result = self.take(span);
        }
    }

    fn take(&mut self, span: &Span<'_>) -> io::Result<()> {
        let tone = match span.part {
            Part::Mark => {
                self.divided = true;
                return Ok(());
            }
            Part::Thinking => Tone::Dim,
            Part::Answer | Part::Call(_) => Tone::Plain,
        };
        let turned = self.last.is_some_and(|last| last != tone);
        let divided = std::mem::take(&mut self.divided) || turned;
        let text = match tone {
            Tone::Plain => &mut self.texts.answer,
            Tone::Dim => &mut self.texts.thinking,
        };
        if divided && !text.is_empty() {
            text.push_str(BLANK);
        }
        text.push_str(span.raw);
        let before = self.last.replace(tone);
        if tone == Tone::Dim && self.shown == Thinking::Hidden {
            return Ok(());
        }
        self.between(before, tone, divided)?;
        self.write(if self.shown == Thinking::Dimmed { tone } else { Tone::Plain }, span.raw)
    }

    /// What stands before a span that is written.
    fn between(&mut self, before: Option<Tone>, tone: Tone, divided: bool) -> io::Result<()> {
        let tagged = self.shown == Thinking::Tagged && before != Some(tone);
        if tagged && before == Some(Tone::Dim) {
            self.write(Tone::Plain, CLOSE)?;
        }
        if divided && !self.texts.written.is_empty() {
            self.write(Tone::Plain, BLANK)?;
        }
        if tagged && tone == Tone::Dim {
            self.write(Tone::Plain, OPEN)?;
        }
        Ok(())
    }

    fn write(&mut self, tone: Tone, text: &str) -> io::Result<()> {
        self.texts.written.push_str(text);
        (self.sink)(tone, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of these spans, dimmed text in brackets, and the texts.
    fn written(shown: Thinking, spans: &[(Part, &str)]) -> (String, Texts) {
        let mut out = String::new();
        let mut sink = |tone, text: &str| {
            out += &if tone == Tone::Dim { format!("[{text}]") } else { text.to_owned() };
            Ok(())
        };
        let texts = Texts::default();
        let mut writer = Writer { shown, sink: &mut sink, last: None, divided: false, texts };
        for (part, raw) in spans {
            writer.take(&Span { part: part.clone(), raw }).unwrap();
        }
        let texts = writer.texts;
        (out, texts)
    }

    #[test]
    fn thinking_is_tagged_dimmed_or_hidden() {
        let spans = [
            (Part::Mark, "<|channel|>analysis<|message|>"),
            (Part::Thinking, "H"),
            (Part::Thinking, "m."),
            (Part::Mark, "<|end|>"),
            (Part::Answer, "Ye"),
            (Part::Answer, "s."),
        ];
        let (out, texts) = written(Thinking::Tagged, &spans);
        assert_eq!(out, "<think>\nHm.\n</think>\n\nYes.");
        assert_eq!([texts.written, texts.answer, texts.thinking], [&out, "Yes.", "Hm."]);
        assert_eq!(written(Thinking::Dimmed, &spans).0, "[H][m.]\n\nYes.");
        let (out, texts) = written(Thinking::Hidden, &spans);
        assert_eq!([&out, &*texts.written, &*texts.thinking], ["Yes.", "Yes.", "Hm."]);
    }

    #[test]
    fn parts_that_marks_divide_do_not_run_together() {
        let spans = [
            (Part::Answer, "I look."),
            (Part::Mark, "<|end|>"),
            (Part::Thinking, "a"),
            (Part::Mark, "<|end|>"),
            (Part::Thinking, "b"),
            (Part::Mark, "<|end|>"),
            (Part::Answer, "x"),
            (Part::Mark, "<|end|>"),
            (Part::Answer, "y"),
        ];
        let (out, texts) = written(Thinking::Tagged, &spans);
        assert_eq!(out, "I look.\n\n<think>\na\n\nb\n</think>\n\nx\n\ny");
        assert_eq!([&*texts.answer, &*texts.thinking], ["I look.\n\nx\n\ny", "a\n\nb"]);
        assert_eq!(written(Thinking::Dimmed, &spans).0, "I look.\n\n[a]\n\n[b]\n\nx\n\ny");
        let (out, texts) = written(Thinking::Hidden, &spans);
        assert_eq!(out, texts.answer);
        // Thinking that is cut off is not closed.
        assert_eq!(written(Thinking::Tagged, &spans[2..3]).0, "<think>\na");
    }
}
