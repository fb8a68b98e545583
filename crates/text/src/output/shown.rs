//! The part of an answer that is shown: thinking is dimmed, put between tags, or left out; a text may end the answer.

use std::ops::Deref;

use super::stops::{Limits, Stops};
use super::{AnswerSpans, Call, Format, Parser, Part, Span, Tools};
use crate::prompt::Style;
use crate::vocabulary::Vocabulary;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Unchanged.
    Plain,
    /// Dimmed.
    Dim,
}

/// Writes text.
type Sink<'s, E> = dyn FnMut(Tone, &str) -> Result<(), E> + 's;

/// The way thinking is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// Between [`OPEN`] and [`CLOSE`], whatever marks the model writes: one rule for every program that reads it.
    Tagged,
    /// Dimmed, with a blank line after it.
    Dimmed,
    /// Not at all.
    Hidden,
}

/// Precedes thinking that is [`Thinking::Tagged`].
const OPEN: &str = "<think>\n";
/// Follows it.
const CLOSE: &str = "\n</think>";
/// Separates two parts that the model divided by marks.
const BLANK: &str = "\n\n";

/// The texts of an answer.
#[derive(Clone, Debug, Default)]
pub struct Texts {
    /// All that was written.
    pub written: String,
    /// The model's text for the user; with tool calls as it wrote them, if there are no tools to call.
    pub answer: String,
    /// The model's thinking.
    pub thinking: String,
    /// Tool calls, if there are tools to call.
    pub calls: Vec<Call>,
}

/// Separates one answer into parts, token by token, and writes it. `V` is the vocabulary, borrowed or shared.
///
/// The output does not depend on how it is cut: the pieces, joined, are [`Texts::written`].
pub struct Shown<V> {
    spans: AnswerSpans<V>,
    writer: Writer,
}

impl<V: Deref<Target = Vocabulary>> Shown<V> {
    /// Creates a writer for the answer to a prompt; any of `stops` ends it. Without a chat template all text
    /// is the answer.
    pub fn new(
        vocabulary: V,
        style: Style,
        prompt: &[u32],
        thinking: Thinking,
        stops: &[String],
    ) -> Shown<V> {
        let format = match style {
            Style::Chat => vocabulary.output_format(),
            Style::Raw => Format::Plain,
        };
        let parser = Parser::after(format, &vocabulary.tokenizer, prompt);
        let writer = Writer {
            shown: thinking,
            tools: false,
            last: None,
            divided: false,
            texts: Texts::default(),
        };
        let stops = Stops::new(stops, Limits::default());
        Shown { spans: AnswerSpans::new(format, vocabulary, parser, stops), writer }
    }

    /// Gives the answer tools to call: calls are collected and not written.
    pub fn with_tools(mut self, tools: Tools) -> Shown<V> {
        self.writer.tools = true;
        Shown { spans: self.spans.with_tools(tools), ..self }
    }

    /// Writes all that is certain with the next token.
    ///
    /// # Errors
    /// The sink's.
    pub fn push<E>(&mut self, id: u32, sink: &mut Sink<'_, E>) -> Result<(), E> {
        let Shown { spans, writer } = self;
        let mut result = Ok(());
        spans.push(id, &mut |span| writer.each(&span, sink, &mut result));
        result
    }

    /// Returns true if one of the stop texts has occurred.
    pub fn stopped(&self) -> bool {
        self.spans.stops().found().is_some()
    }

    /// Ends the answer: writes the rest.
    ///
    /// # Errors
    /// The sink's.
    pub fn finish<E>(&mut self, sink: &mut Sink<'_, E>) -> Result<(), E> {
        let Shown { spans, writer } = self;
        let mut result = Ok(());
        spans.finish(&mut |span| writer.each(&span, sink, &mut result));
        result
    }

    /// The texts so far.
    pub fn texts(&self) -> &Texts {
        &self.writer.texts
    }

    /// The texts.
    pub fn into_texts(self) -> Texts {
        self.writer.texts
    }
}

/// Writes spans, and collects their texts.
struct Writer {
    shown: Thinking,
    /// True if there are tools to call.
    tools: bool,
    /// The tone of the previous span.
    last: Option<Tone>,
    /// A mark followed it.
    divided: bool,
    texts: Texts,
}

impl Writer {
    /// Takes a span unless writing an earlier one failed.
    fn each<E>(&mut self, span: &Span<'_>, sink: &mut Sink<'_, E>, result: &mut Result<(), E>) {
        if result.is_ok() {
            *result = self.take(span, sink);
        }
    }

    fn take<E>(&mut self, span: &Span<'_>, sink: &mut Sink<'_, E>) -> Result<(), E> {
        let tone = match &span.part {
            Part::Mark => {
                self.divided = true;
                return Ok(());
            }
            Part::Call(call) if self.tools => {
                self.divided = true;
                self.texts.calls.push(call.clone());
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
        self.between(before, tone, divided, sink)?;
        let tone = if self.shown == Thinking::Dimmed { tone } else { Tone::Plain };
        self.write(tone, span.raw, sink)
    }

    /// Writes the separator before a span.
    fn between<E>(
        &mut self,
        before: Option<Tone>,
        tone: Tone,
        divided: bool,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        let tagged = self.shown == Thinking::Tagged && before != Some(tone);
        if tagged && before == Some(Tone::Dim) {
            self.write(Tone::Plain, CLOSE, sink)?;
        }
        if divided && !self.texts.written.is_empty() {
            self.write(Tone::Plain, BLANK, sink)?;
        }
        if tagged && tone == Tone::Dim {
            self.write(Tone::Plain, OPEN, sink)?;
        }
        Ok(())
    }

    fn write<E>(&mut self, tone: Tone, text: &str, sink: &mut Sink<'_, E>) -> Result<(), E> {
        self.texts.written.push_str(text);
        sink(tone, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output for these spans, dimmed text in brackets, and the texts.
    fn written(shown: Thinking, spans: &[(Part, &str)]) -> (String, Texts) {
        written_with(false, shown, spans)
    }

    fn written_with(tools: bool, shown: Thinking, spans: &[(Part, &str)]) -> (String, Texts) {
        let mut out = String::new();
        let mut sink = |tone, text: &str| {
            out += &if tone == Tone::Dim { format!("[{text}]") } else { text.to_owned() };
            Ok::<(), std::convert::Infallible>(())
        };
        let texts = Texts::default();
        let mut writer = Writer { shown, tools, last: None, divided: false, texts };
        for (part, raw) in spans {
            writer.take(&Span { part: part.clone(), raw }, &mut sink).unwrap();
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

    #[test]
    fn calls_are_apart_where_there_are_tools_and_text_where_there_are_none() {
        let call = Call::new("f", "{}");
        let spans = [
            (Part::Answer, "I look."),
            (Part::Call(call.clone()), "{\"name\": \"f\"}"),
            (Part::Answer, "Done."),
        ];
        let (out, texts) = written(Thinking::Tagged, &spans);
        assert_eq!((&*out, texts.calls.len()), ("I look.{\"name\": \"f\"}Done.", 0));
        let (out, texts) = written_with(true, Thinking::Tagged, &spans);
        assert_eq!((&*out, &*texts.calls), ("I look.\n\nDone.", &[call][..]));
    }
}
