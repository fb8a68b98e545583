//! Why a request is refused, whoever reads it: the server, or `alight batch`.

/// The code of a prompt that the context does not hold.
pub const TOO_LONG: &str = "context_length_exceeded";

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub code: &'static str,
    /// The field that is the reason, if it is one.
    pub param: Option<String>,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A refusal that is about no single field.
    pub fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, param: None, message: message.into() }
    }

    /// A field is not what it should be.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Refusal {
        let param = param.into();
        let message = format!("{param}: {}", message.into());
        Refusal { code: "invalid_request", param: Some(param), message }
    }

    /// A field asks for something that is not here.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Refusal {
        Refusal { code: "unsupported", ..Refusal::invalid(param, message) }
    }
}
