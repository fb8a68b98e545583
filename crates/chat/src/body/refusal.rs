//! The reason why a request is refused, for the server and for `alight batch`.

/// The code for a prompt that does not fit into the context.
pub const TOO_LONG: &str = "context_length_exceeded";

/// The code for a feature that is not supported.
pub const UNSUPPORTED: &str = "unsupported";

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: &'static str,
    /// The field that caused it, if there is one.
    pub param: Option<String>,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// Creates a refusal that concerns no single field.
    pub fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, param: None, message: message.into() }
    }

    /// Creates a refusal for a field with an invalid value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Refusal {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        Refusal { code: "invalid_request", param: Some(param), message }
    }

    /// The same for a field within an object, whose path ends with a dot.
    pub fn within(self, path: &str) -> Refusal {
        let named = |text: String| format!("{path}{text}");
        Refusal { param: self.param.map(named), message: named(self.message), ..self }
    }

    /// Creates a refusal for a field that requests an unsupported feature.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Refusal {
        Refusal { code: UNSUPPORTED, ..Refusal::invalid(param, message) }
    }
}
