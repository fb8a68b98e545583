//! The answer to one line, while it is generated.

use alight_chat::answer::{self, Message};
use alight_model::Finish;
use alight_text::Vocabulary;
use serde_json::{Map, Value, json};

use super::request::Prepared;
use super::result::{LineId, now};
use crate::record::{self, Record, RecordedAnswer, RecordedFinish, Recorder};

/// An answer that is being computed.
pub struct LineAnswer {
    /// The line that requests it.
    pub line: LineId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// The request and the tokens, if they are recorded.
    recorded: Option<RecordedLine>,
    vocabulary: &'static Vocabulary,
    chat: bool,
    making: answer::Answer,
    message: Message,
}

/// The parts of a record that a line determines.
struct RecordedLine {
    request: Map<String, Value>,
    tokens: Vec<u32>,
}

impl LineAnswer {
    /// Creates an empty answer, which is recorded if `records` is set.
    pub fn new(prepared: &Prepared, vocabulary: &'static Vocabulary, records: bool) -> LineAnswer {
        let request = records.then(|| prepared.recorded());
        LineAnswer {
            recorded: request.map(|request| RecordedLine { request, tokens: Vec::new() }),
            vocabulary,
            line: prepared.line.clone(),
            prompt_tokens: prepared.prompt.len(),
            tokens: 0,
            chat: prepared.chat,
            making: answer::Answer::new(&prepared.asked, &prepared.prompt, vocabulary),
            message: Message::default(),
        }
    }

    /// Takes the next token. Returns true if a stop text has been generated, which is cut off.
    pub fn push(&mut self, token: u32) -> bool {
        self.tokens += 1;
        if let Some(recorded) = &mut self.recorded {
            recorded.tokens.push(token);
        }
        self.making.push(token, &mut |delta| self.message.take(delta))
    }

    /// Returns the record of the answer, if it has one. `finish` is as in [`body`](Self::body).
    pub fn record(&mut self, finish: Option<Finish>, recorder: &Recorder) -> Option<Record> {
        let RecordedLine { request, tokens } = self.recorded.take()?;
        let finish = match finish {
            None => RecordedFinish::StopText,
            Some(Finish::Stop) => RecordedFinish::Stop,
            Some(Finish::Length) => RecordedFinish::Length,
            Some(Finish::ContextFull) => RecordedFinish::Context,
            Some(Finish::Interrupted) => RecordedFinish::Interrupted,
        };
        let text = record::text(&tokens, self.vocabulary);
        Some(recorder.record(request, self.chat, RecordedAnswer { finish, text, tokens }))
    }

    /// Returns the body of the response. `finish` is `None` if a stop text has ended the answer.
    pub fn body(mut self, finish: Option<Finish>, model: &str) -> Value {
        if finish.is_some() {
            self.making.finish(&mut |delta| self.message.take(delta));
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
            let reason = if self.making.called() && !cut { "tool_calls" } else { reason };
            let message = self.message.openai(&[], |i| format!("call_{number}_{i}"));
            ("chatcmpl", "chat.completion", json!({"message": message, "finish_reason": reason}))
        } else {
            let choice = json!({"text": self.message.content, "finish_reason": reason});
            ("cmpl", "text_completion", choice)
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
}
