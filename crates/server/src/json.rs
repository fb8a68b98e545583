//! JSON of strangers: what it may cost is known before it is parsed.

use serde_json::{Map, Value};

use crate::failure::Failure;

/// Most values in a body. What a value takes in memory is many times what it takes as text.
const VALUES: usize = 1 << 19;
/// Most lists and objects in one another.
const DEPTH: usize = 100;

/// The object in a body.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Failure::invalid(format!("the body is not UTF-8 text: see byte {}", error.valid_up_to()))
    })?;
    measure(text.as_bytes())?;
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::invalid("the body is not a JSON object")),
        Err(_) if text.trim().is_empty() => {
            Err(Failure::invalid("the body is empty, expected a JSON object"))
        }
        Err(error) => Err(Failure::invalid(format!("the body is not JSON: {error}"))),
    }
}

/// Counts what stands between strings.
fn measure(bytes: &[u8]) -> Result<(), Failure> {
    let (mut depth, mut values, mut at) = (0usize, 0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
            }
            b'[' | b'{' => (depth, values) = (depth + 1, values + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > DEPTH {
            let message =
                format!("the body has more than {DEPTH} lists and objects in one another");
            return Err(Failure::invalid(message));
        }
        if values > VALUES {
            return Err(Failure::invalid(format!("the body has more than {VALUES} values")));
        }
        at += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // What stands in a string costs nothing more.
        let text = format!("{{\"a\": \"{}\\\"{}\"}}", "[".repeat(1000), ",".repeat(VALUES + 1));
        assert!(object(text.as_bytes()).is_ok());
        assert!(object(b"{\"a\": \"\xff\"}").unwrap_err().message.contains("byte 7"));
    }
}
