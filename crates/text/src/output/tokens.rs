//! Tokens of an answer into the text that a [`Parser`] is fed.

use std::ops::Deref;

use super::stops::Stops;
use super::{Format, Parser, Span};
use crate::tokenizer::{StreamDecoder, Tokenizer};
use crate::vocabulary::Vocabulary;

/// The last tokens of a prompt, in which a template may have opened the thinking.
const END: usize = 32;

/// Takes the tokens of an answer one by one, and gives out its text. Marks of the format that are control tokens, which have no
/// text otherwise, are spelled out. `V` is the vocabulary, borrowed or shared.
pub struct Reader<V> {
    vocabulary: V,
    decoder: StreamDecoder,
    marks: Vec<u32>,
}

impl<V: Deref<Target = Vocabulary>> Reader<V> {
    /// For an answer in this format.
    pub fn new(format: Format, vocabulary: V) -> Reader<V> {
        let marks = hidden_marks(format, &vocabulary.tokenizer);
        Reader { vocabulary, decoder: StreamDecoder::new(), marks }
    }

    /// The text that is complete with this token: a character whose last bytes are missing waits.
    pub fn push(&mut self, id: u32) -> &str {
        let tokenizer = &self.vocabulary.tokenizer;
        match self.marks.contains(&id) {
            true => tokenizer.decode_special(id, self.decoder.buffer()),
            false => tokenizer.decode_bytes(id, self.decoder.buffer()),
        }
        self.decoder.take()
    }

    /// The rest: what is still incomplete becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.decoder.finish()
    }
}

/// Tokens of an answer into its spans, up to what ends it: the one way from tokens to what is shown.
pub struct AnswerSpans<V> {
    reader: Reader<V>,
    stops: Stops,
    parser: Parser,
    ended: bool,
}

impl<V: Deref<Target = Vocabulary>> AnswerSpans<V> {
    /// Of an answer in this format, which `parser` takes apart and any of `stops` ends.
    pub fn new(format: Format, vocabulary: V, parser: Parser, stops: Stops) -> AnswerSpans<V> {
        AnswerSpans { reader: Reader::new(format, vocabulary), stops, parser, ended: false }
    }

    /// Takes the next token, and hands out what is certain now. Returns whether the end has come; what there was before it has been handed out
    /// then, and nothing follows.
    pub fn push(&mut self, id: u32, each: &mut dyn FnMut(Span<'_>)) -> bool {
        let AnswerSpans { reader, stops, parser, ended } = self;
        if !*ended && stops.push(reader.push(id), &mut |text| parser.push(text, each)) {
            parser.finish(each);
            *ended = true;
        }
        *ended
    }

    /// The answer ends here, if it has not: hands out the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(Span<'_>)) {
        let AnswerSpans { reader, stops, parser, ended } = self;
        if !std::mem::replace(ended, true) {
            stops.push(reader.finish(), &mut |text| parser.push(text, each));
            stops.finish(&mut |text| parser.push(text, each));
            parser.finish(each);
        }
    }

    /// What looks for its end.
    pub fn stops(&self) -> &Stops {
        &self.stops
    }
}

/// The tokens of a format that have to be spelled out for a parser, although they have no text ([`Tokenizer::decode_special`]).
fn hidden_marks(format: Format, tokenizer: &Tokenizer) -> Vec<u32> {
    let ids = format.marks().iter().filter_map(|mark| tokenizer.token_id(mark.as_bytes()));
    ids.filter(|id| tokenizer.is_control(*id)).collect()
}

impl Parser {
    /// A parser for the answer to the prompt of these tokens.
    pub fn after(format: Format, tokenizer: &Tokenizer, prompt: &[u32]) -> Parser {
        let mut end = Vec::new();
        for &id in &prompt[prompt.len().saturating_sub(END)..] {
            tokenizer.decode_special(id, &mut end);
        }
        Parser::new(format, &String::from_utf8_lossy(&end))
    }
}
