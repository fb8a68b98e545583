//! The answer to one line, in the making.

use alight_model::Finish;
use alight_text::output::{Call, Format, Parser, Part, Reader, Span};
use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Value, json};

use super::request::Prepared;
use super::result::{LineId, now};

/// Stands between two parts that the model divided by marks.
const BLANK: &str = "\n\n";

/// An answer that is being computed.
pub struct Answer {
    /// Its place among the results.
    pub index: u64,
    /// The line that asks for it.
    pub line: LineId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    chat: bool,
    tools: bool,
    stops: Vec<String>,
    reader: Reader<'static>,
    parser: Parser,
    /// All that the model wrote, marks included.
    text: String,
}

impl Answer {
    /// Nothing is written yet.
    pub fn new(index: u64, prepared: &Prepared, vocabulary: &'static Vocabulary) -> Answer {
        let tokenizer: &'static Tokenizer = &vocabulary.tokenizer;
        let format = if prepared.chat { vocabulary.output_format() } else { Format::Plain };
        Answer {
            index,
            line: prepared.line.clone(),
            prompt_tokens: prepared.prompt.len(),
            tokens: 0,
            chat: prepared.chat,
            tools: prepared.tools,
            stops: prepared.stops.clone(),
            reader: Reader::new(format, tokenizer),
            parser: Parser::after(format, tokenizer, &prepared.prompt),
            text: String::new(),
        }
    }

    /// Takes the next token. Returns whether a text that ends the answer has come, which is cut off.
    pub fn push(&mut self, token: u32) -> bool {
        self.tokens += 1;
        let before = self.text.len();
        self.text.push_str(self.reader.push(token));
        let found = stop(&self.text, before, &self.stops);
        if let Some(at) = found {
            self.text.truncate(at);
        }
        found.is_some()
    }

    /// The body of the response. `finish` is `None` if a text has ended the answer.
    pub fn body(mut self, finish: Option<Finish>, model: &str) -> Value {
        if finish.is_some() {
            self.text.push_str(self.reader.finish());
        }
        let cut = matches!(finish, Some(Finish::Length | Finish::ContextFull));
        let reason = if cut { "length" } else { "stop" };
        let number = self.line.number;
        let usage = json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
        });
        let (id, object, choice) = if self.chat {
            let (message, called) = self.message();
            let reason = if called && !cut { "tool_calls" } else { reason };
            ("chatcmpl", "chat.completion", json!({"message": message, "finish_reason": reason}))
        } else {
            ("cmpl", "text_completion", json!({"text": self.text, "finish_reason": reason}))
        };
        let mut choices = json!([{"index": 0, "logprobs": null}]);
        if let (Some(all), Value::Object(choice)) = (choices[0].as_object_mut(), choice) {
            all.extend(choice);
        }
        json!({
            "id": format!("{id}-{number}"),
            "object": object,
            "created": now(),
            "model": model,
            "choices": choices,
            "usage": usage,
        })
    }

    /// The message, and whether it calls tools. What looks like a call where there are no tools is text.
    fn message(&mut self) -> (Value, bool) {
        let mut said = Said { tools: self.tools, ..Said::default() };
        self.parser.push(&self.text, &mut |span| said.take(&span));
        self.parser.finish(&mut |span| said.take(&span));
        let [content, thinking] = said.texts;
        let content =
            if content.is_empty() && !said.calls.is_empty() { Value::Null } else { content.into() };
        let mut message = json!({"role": "assistant", "content": content});
        if !thinking.is_empty() {
            message["reasoning_content"] = thinking.into();
        }
        let calls = said.calls.iter().enumerate().map(|(i, call)| {
            json!({
                "id": format!("call_{}_{i}", self.line.number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        });
        if !said.calls.is_empty() {
            message["tool_calls"] = calls.collect();
        }
        (message, !said.calls.is_empty())
    }
}

/// Where the first of the texts `stops` begins in `text`, whose beginning of `before` bytes has none.
fn stop(text: &str, before: usize, stops: &[String]) -> Option<usize> {
    let found = stops.iter().filter_map(|stop| {
        // It may have begun in front of what is new.
        let mut from = (before + 1).saturating_sub(stop.len());
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        text[from..].find(stop).map(|at| from + at)
    });
    found.min()
}

/// The parts of an answer.
#[derive(Default)]
struct Said {
    /// Whether there are tools to call.
    tools: bool,
    /// What was said to the user, and what was thought.
    texts: [String; 2],
    calls: Vec<Call>,
    /// Which of the texts was written last.
    last: Option<usize>,
    /// A mark or a call stood behind it.
    divided: bool,
}

impl Said {
    fn take(&mut self, span: &Span<'_>) {
        let which = match &span.part {
            Part::Mark => {
                self.divided = true;
                return;
            }
            Part::Call(call) if self.tools => {
                self.divided = true;
                return self.calls.push(call.clone());
            }
            Part::Answer | Part::Call(_) => 0,
            Part::Thinking => 1,
        };
        let divided = std::mem::take(&mut self.divided) || self.last != Some(which);
        let text = &mut self.texts[which];
        if divided && !text.is_empty() {
            text.push_str(BLANK);
        }
        text.push_str(span.raw);
        self.last = Some(which);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_found_wherever_the_pieces_are_cut() {
        let stops = ["end".to_owned(), "é.".to_owned()];
        let text = "the né e en en. én é.end";
        // The first character that is part of a stop is that of "é.".
        let wanted = text.find("é.");
        for piece in 1..5 {
            let (mut found, mut so_far) = (None, String::new());
            let all: Vec<char> = text.chars().collect();
            for piece in all.chunks(piece) {
                let before = so_far.len();
                so_far.extend(piece);
                found = stop(&so_far, before, &stops);
                if found.is_some() {
                    break;
                }
            }
            assert_eq!(found, wanted, "{piece}");
        }
        assert_eq!(stop("the end", 0, &[]), None);
    }

    #[test]
    fn calls_are_apart_where_there_are_tools_and_text_where_there_are_none() {
        let call = Call { name: "f".into(), arguments: "{}".into() };
        let spans = [
            Span { part: Part::Thinking, raw: "Hm." },
            Span { part: Part::Mark, raw: "</think>" },
            Span { part: Part::Answer, raw: "I lo" },
            Span { part: Part::Answer, raw: "ok." },
            Span { part: Part::Call(call), raw: "<call f>" },
            Span { part: Part::Answer, raw: "So." },
        ];
        for (tools, content, calls) in
            [(true, "I look.\n\nSo.", 1), (false, "I look.<call f>So.", 0)]
        {
            let mut said = Said { tools, ..Said::default() };
            spans.iter().for_each(|span| said.take(span));
            assert_eq!((&*said.texts[0], said.calls.len()), (content, calls));
            assert_eq!(said.texts[1], "Hm.");
        }
    }
}
