//! Turns the tokens of an answer into the text that a [`Parser`] receives.

use std::ops::Deref;

use super::stops::Stops;
use super::{Format, Parser, Span, Tools};
use crate::format::Pair;
use crate::tokenizer::{StreamDecoder, Tokenizer};
use crate::vocabulary::Vocabulary;

/// The number of tokens at the end of a prompt in which a template may have opened the thinking.
const END: usize = 32;

/// Takes the tokens of an answer one by one, and returns its text. Marks of the format that are control tokens, which otherwise
/// have no text, are spelled out. `V` is the vocabulary, borrowed or shared.
pub struct Reader<V> {
    vocabulary: V,
    decoder: StreamDecoder,
    marks: Vec<u32>,
}

impl<V: Deref<Target = Vocabulary>> Reader<V> {
    /// Creates a reader for an answer in this format.
    pub fn new(format: Format, vocabulary: V) -> Reader<V> {
        let marks = hidden_marks(format, &vocabulary.tokenizer);
        Reader { vocabulary, decoder: StreamDecoder::new(), marks }
    }

    /// Returns the text that is complete with this token: a character whose last bytes are missing waits.
    pub fn push(&mut self, id: u32) -> &str {
        let tokenizer = &self.vocabulary.tokenizer;
        match self.marks.contains(&id) {
            true => tokenizer.decode_special(id, self.decoder.buffer()),
            false => tokenizer.decode_bytes(id, self.decoder.buffer()),
        }
        self.decoder.take()
    }

    /// True if the last character is incomplete.
    pub fn is_in_character(&mut self) -> bool {
        !self.decoder.buffer().is_empty()
    }

    /// Returns the rest: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.decoder.finish()
    }
}

/// Turns the tokens of an answer into spans, up to its end: the only path from tokens to the text that is shown.
pub struct AnswerSpans<V> {
    reader: Reader<V>,
    stops: Stops,
    parser: Parser,
    ended: bool,
}

impl<V: Deref<Target = Vocabulary>> AnswerSpans<V> {
    /// Creates the spans of an answer in this format; `parser` separates its parts, and any of `stops` ends it.
    pub fn new(format: Format, vocabulary: V, parser: Parser, stops: Stops) -> AnswerSpans<V> {
        AnswerSpans { reader: Reader::new(format, vocabulary), stops, parser, ended: false }
    }

    /// Gives the parser the tools that may be called ([`Parser::with_tools`]).
    pub fn with_tools(self, tools: Tools) -> AnswerSpans<V> {
        AnswerSpans { parser: self.parser.with_tools(tools), ..self }
    }

    /// Takes the next token, and emits all that is certain now. Returns whether the answer has ended; by then all text before its end has been
    /// emitted, and nothing follows.
    pub fn push(&mut self, id: u32, each: &mut dyn FnMut(Span<'_>)) -> bool {
        let AnswerSpans { reader, stops, parser, ended } = self;
        if !*ended && stops.push(reader.push(id), &mut |text| parser.push(text, each)) {
            parser.finish(each);
            *ended = true;
        }
        *ended
    }

    /// Ends the answer, if it has not ended: emits the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(Span<'_>)) {
        let AnswerSpans { reader, stops, parser, ended } = self;
        if !std::mem::replace(ended, true) {
            stops.push(reader.finish(), &mut |text| parser.push(text, each));
            stops.finish(&mut |text| parser.push(text, each));
            parser.finish(each);
        }
    }

    /// The search for the answer's end.
    pub fn stops(&self) -> &Stops {
        &self.stops
    }
}

/// The tokens of a format that must be spelled out for a parser, although they have no text ([`Tokenizer::decode_special`]).
fn hidden_marks(format: Format, tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = format.marks().iter().filter_map(|mark| tokenizer.token_id(mark.as_bytes()));
    ids.filter(|id| tokenizer.is_control(*id)).collect()
}

impl Parser {
    /// Creates a parser for the answer to the prompt with these tokens.
    pub fn after(format: Format, tokenizer: &Tokenizer, prompt: &[u32]) -> Parser {
        Parser::new(format, &prompt_end(tokenizer, prompt))
    }
}

/// The marks of the thinking that a prompt with these tokens has opened, if it has.
pub fn opened_thinking(
    format: Format,
    tokenizer: &Tokenizer,
    prompt: &[u32],
) -> Option<&'static Pair> {
    format.notation().opened(&prompt_end(tokenizer, prompt))
}

/// The end of a prompt, with its marks.
fn prompt_end(tokenizer: &Tokenizer, prompt: &[u32]) -> String {
    let mut end = Vec::new();
    for &id in &prompt[prompt.len().saturating_sub(END)..] {
        tokenizer.decode_special(id, &mut end);
    }
    String::from_utf8_lossy(&end).into_owned()
}
