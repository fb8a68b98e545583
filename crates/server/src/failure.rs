//! Why a request has no answer, in the format that its client expects.

use alight_chat::body::refusal::{Refusal, TOO_LONG};
use alight_chat::grammar::{NoGrammar, NotHeld};
use alight_text::{PromptError, TokenizerError};
use hyper::StatusCode;
use serde_json::{Map, Value, json};

/// The text that programs look for in the message to detect a prompt that is too long; the wording is llama-server's.
const EXCEEDS: &str = "exceeds the available context size";

/// Formats a failure as a client expects it.
pub(crate) type ErrorFormat = fn(&Failure) -> Value;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    /// For programs: the category of the failure, and its code.
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    /// The field that caused it.
    pub(crate) param: Option<String>,
    /// For people.
    pub(crate) message: String,
    /// Further fields of the error.
    pub(crate) more: Option<Box<Map<String, Value>>>,
    /// The methods that the address supports, if the request used another one.
    pub(crate) allow: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(
        status: StatusCode,
        kind: &'static str,
        message: impl Into<String>,
    ) -> Failure {
        let message = message.into();
        Failure { status, kind, code: None, param: None, message, more: None, allow: None }
    }

    /// A client error.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A server error.
    pub(crate) fn internal(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The requested object does not exist.
    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// A feature that is not enabled.
    pub(crate) fn off(option: &str) -> Failure {
        let message = format!("the server does not offer this: start it with {option}");
        Failure::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// There are too many requests at the same time.
    pub(crate) fn busy(waiting: usize) -> Failure {
        let message = format!(
            "{waiting} requests are running or waiting, and the server takes no more: try again later"
        );
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The server is shutting down before the answer is complete.
    pub(crate) fn ending() -> Failure {
        let message = "the server is shutting down, and the answer is not complete: try again when it is back";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// Too much of an answer waits for its client to read it.
    pub(crate) fn unread(most: usize) -> Failure {
        let message = format!(
            "the answer has ended, because more than {most} of its tokens and log probabilities were not read: read faster, or ask for fewer"
        );
        Failure::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// Too many large bodies arrive at the same time.
    pub(crate) fn no_room() -> Failure {
        let message = "the server holds too many large requests at the moment: try again later";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// A prompt that is longer than the context.
    pub(crate) fn too_long(tokens: usize, context: usize) -> Failure {
        let message = format!(
            "the prompt of {tokens} tokens {EXCEEDS} of {context} for prompt and answer: shorten it, or start the server with a larger \
             --ctx-size"
        );
        let more = json!({"n_prompt_tokens": tokens, "n_ctx": context});
        Failure {
            kind: "exceed_context_size_error",
            code: Some(TOO_LONG),
            more: more.as_object().cloned().map(Box::new),
            ..Failure::invalid(message)
        }
    }

    /// Renames the field for a client whose field names differ from OpenAI's. `names` are pairs of OpenAI's name and the client's; any other
    /// field gets the prefix `others`.
    pub(crate) fn in_words(mut self, names: &[(&str, &str)], others: &str) -> Failure {
        let Some(param) = self.param.take() else { return self };
        let own = |(ours, own): &(&str, &'_ str)| {
            let rest = param.strip_prefix(ours)?;
            match rest.starts_with(['.', '[']) || rest.is_empty() {
                // A path within an object of OpenAI's is not a path in the client's body.
                true if ours == own => Some(param.clone()),
                true => Some((*own).to_owned()),
                false => None,
            }
        };
        let name = names.iter().find_map(own).unwrap_or_else(|| format!("{others}{param}"));
        if let Some(rest) = self.message.strip_prefix(&format!("{param}: ")) {
            let mut rest = rest.to_owned();
            for (ours, own) in names {
                rest = rest.replace(&format!("there is {ours}, "), &format!("there is {own}, "));
            }
            self.message = format!("{name}: {rest}");
        }
        self.param = Some(name);
        self
    }

    /// The index of the tool that caused it, and the field of the tool.
    pub(crate) fn tool(&self) -> Option<(usize, &str)> {
        let (index, field) = self.param.as_deref()?.strip_prefix("tools[")?.split_once(']')?;
        Some((index.parse().ok()?, field))
    }

    /// Gives the field another name, which the message begins with, and after which it has this `note`.
    pub(crate) fn renamed(mut self, name: String, note: &str) -> Failure {
        let before = self.param.take().unwrap_or_default();
        if let Some(rest) = self.message.strip_prefix(&format!("{before}: ")) {
            self.message = format!("{name}: {note}{rest}");
        }
        self.param = Some(name);
        self
    }

    /// Renames the field of a tool for a client that has its tools at these `places`, and their schemas in the field `schema`.
    pub(crate) fn in_places(self, places: &[String], schema: &str) -> Failure {
        let Some((index, field)) = self.tool() else { return self };
        let Some(place) = places.get(index) else { return self };
        let field = field.replace(".function", "").replace(".parameters", &format!(".{schema}"));
        let name = format!("{place}{field}");
        self.renamed(name, "")
    }

    /// In the format of OpenAI and llama-server.
    pub(crate) fn openai(&self) -> Value {
        let mut error = json!({
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        });
        if let (Some(error), Some(more)) = (error.as_object_mut(), &self.more) {
            error.extend((**more).clone());
        }
        json!({"error": error})
    }
}

impl Failure {
    /// In Anthropic's format.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.kind {
            "server_error" => "api_error",
            "unavailable_error" => "overloaded_error",
            "exceed_context_size_error" => "invalid_request_error",
            _ if self.status == StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            kind => kind,
        };
        // Its agent looks for this wording, and then shortens the conversation.
        let number = |name: &str| self.more.as_ref().and_then(|more| more.get(name)?.as_u64());
        let message = match (number("n_prompt_tokens"), number("n_ctx")) {
            (Some(tokens), Some(context)) => {
                format!("prompt is too long: {tokens} tokens > {context} maximum")
            }
            _ => self.message.clone(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// In the format of Text Embeddings Inference.
    pub(crate) fn tei(&self) -> Value {
        let kind = match self.status {
            status if status.is_server_error() => "Backend",
            StatusCode::TOO_MANY_REQUESTS => "Overloaded",
            _ => "Validation",
        };
        json!({"error": self.message, "error_type": kind})
    }

    /// In Ollama's format.
    pub(crate) fn ollama(&self) -> Value {
        json!({"error": self.message})
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let Refusal { code, param, message } = refusal;
        let (kind, message) = match code {
            TOO_LONG => ("exceed_context_size_error", format!("{message} (it {EXCEEDS})")),
            _ => ("invalid_request_error", message),
        };
        Failure { kind, code: Some(code), param, ..Failure::invalid(message) }
    }
}

impl From<PromptError> for Failure {
    fn from(error: PromptError) -> Failure {
        match error {
            // The server ends: a client that has left reads nothing.
            PromptError::Tokenizer(TokenizerError::Stopped) => Failure::ending(),
            PromptError::TooLong(why) => Refusal::new(TOO_LONG, why.to_string()).into(),
            error => Failure::invalid(error.to_string()),
        }
    }
}

impl From<NotHeld> for Failure {
    fn from(why: NotHeld) -> Failure {
        match why {
            NotHeld::Refused(refusal) => refusal.into(),
            NotHeld::Compiler(NoGrammar::Cancelled) => Failure::ending(),
            NotHeld::Compiler(
                why @ (NoGrammar::Busy { .. } | NoGrammar::Late | NoGrammar::Full { .. }),
            ) => {
                Failure::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", why.to_string())
            }
            NotHeld::Compiler(why) => Failure::internal(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_named_where_the_client_has_it() {
        let places = ["tools[0]".to_owned(), "tools[2].tools[1]".to_owned()];
        for (param, wanted) in [
            ("tools[1].function.parameters", "tools[2].tools[1].input_schema: no"),
            ("tools[0].function.name", "tools[0].name: no"),
            ("tools[7].function.name", "tools[7].function.name: no"),
            ("tool_choice", "tool_choice: no"),
        ] {
            let failure: Failure = Refusal::invalid(param, "no").into();
            let failure = failure.in_places(&places, "input_schema");
            assert_eq!(failure.message, wanted);
            assert_eq!(failure.param.unwrap(), wanted.strip_suffix(": no").unwrap());
        }
    }

    #[test]
    fn a_field_is_named_as_the_client_has_it() {
        let names = [("max_tokens", "n"), ("response_format", "format"), ("tools", "tools")];
        for (param, message, wanted) in [
            ("max_tokens", "it is \"max_tokens: 3\"", "n: it is \"max_tokens: 3\""),
            ("response_format.schema", "it is missing", "format: it is missing"),
            ("tools[0].name", "expected a string", "tools[0].name: expected a string"),
            ("max_tokens_more", "no", "options.max_tokens_more: no"),
            ("grammar", "there is response_format, too", "options.grammar: there is format, too"),
        ] {
            let failure: Failure = Refusal::invalid(param, message).into();
            let failure = failure.in_words(&names, "options.");
            assert_eq!(failure.message, wanted);
            assert!(wanted.starts_with(&format!("{}: ", failure.param.unwrap())));
        }
        let none = Failure::invalid("max_tokens: no");
        assert_eq!(none.clone().in_words(&names, "options."), none);
    }
}
