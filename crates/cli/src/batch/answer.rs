//! The answer to one line, while it is generated.

use alight_chat::answer::{self, Message};
use alight_model::Finish;
use alight_text::Vocabulary;
use serde_json::{Value, json};

use super::request::Prepared;
use super::result::{LineId, now};

/// An answer that is being computed.
pub struct LineAnswer {
    /// The line that requests it.
    pub line: LineId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    chat: bool,
    making: answer::Answer,
    message: Message,
}

impl LineAnswer {
    /// Creates an empty answer.
    pub fn new(prepared: &Prepared, vocabulary: &'static Vocabulary) -> LineAnswer {
        LineAnswer {
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
        self.making.push(token, &mut |delta| self.message.take(delta))
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
