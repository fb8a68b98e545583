//! Parsing of bodies that are JSON objects.

use alight_chat::body::json::{JsonBudget, JsonError};
use serde_json::{Map, Value};

use crate::failure::Failure;

/// The mark with which some programs begin a text in UTF-8. JSON has no place for it, and parsers may ignore it (RFC 8259).
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses the object in a body.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, Failure> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Failure::invalid(format!("the body is not UTF-8 text: see byte {}", error.valid_up_to()))
    })?;
    match JsonBudget::default().parse(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::invalid("the body is not a JSON object")),
        Err(JsonError::Syntax(_)) if text.trim().is_empty() => {
            Err(Failure::invalid("the body is empty, expected a JSON object"))
        }
        Err(JsonError::Syntax(error)) => {
            Err(Failure::invalid(format!("the body is not JSON: {error}")))
        }
        Err(much) => Err(Failure::invalid(format!("the body has {much}"))),
    }
}

#[cfg(test)]
mod tests {
    use alight_chat::body::json::{MAX_DEPTH as DEPTH, MAX_VALUES as VALUES};

    use super::*;

    #[test]
    fn a_byte_order_mark_is_ignored_at_the_beginning() {
        assert_eq!(object("\u{feff}{\"a\": 1}".as_bytes()).unwrap()["a"], 1);
        assert!(object("\u{feff}".as_bytes()).unwrap_err().message.contains("empty"));
        assert!(object("{\"a\": 1}\u{feff}".as_bytes()).is_err());
    }

    #[test]
    fn what_would_cost_too_much_is_refused_before_it_is_parsed() {
        let deep = |n: usize| format!("{{\"a\":{}1{}}}", "[".repeat(n), "]".repeat(n));
        assert!(object(deep(DEPTH - 1).as_bytes()).is_ok());
        for (body, said) in [
            (deep(DEPTH), "in one another"),
            ("[".repeat(100_000), "in one another"),
            (format!("{{\"a\":[{}1]}}", "1,".repeat(VALUES)), "values"),
            ("[1]".to_owned(), "not a JSON object"),
            (" ".to_owned(), "empty"),
            ("{\"a\": NaN}".to_owned(), "not JSON"),
            ("{\"a\": \"\\".to_owned(), "not JSON"),
        ] {
            let error = object(body.as_bytes()).unwrap_err();
            assert!(error.message.contains(said), "{}", error.message);
            assert_eq!(error.status, 400);
        }
        // Characters within a string do not count.
        let text = format!("{{\"a\": \"{}\\\"{}\"}}", "[".repeat(1000), ",".repeat(VALUES + 1));
        assert!(object(text.as_bytes()).is_ok());
        assert!(object(b"{\"a\": \"\xff\"}").unwrap_err().message.contains("byte 7"));
    }
}
