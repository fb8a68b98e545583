//! Untrusted JSON: its cost is limited before it is parsed, including texts within it that are JSON themselves.

use serde_json::Value;
use thiserror::Error;

/// Maximum number of values of a request. A value uses many times the memory of its text.
pub const MAX_VALUES: usize = 1 << 19;
/// Maximum nesting of lists and objects.
pub const MAX_DEPTH: usize = 100;

/// A text is not JSON, or exceeds the limits of a request.
#[derive(Debug, Error)]
pub enum JsonError {
    /// Lists and objects are nested too deeply.
    #[error("more than {MAX_DEPTH} lists and objects in one another")]
    TooDeep,
    /// All texts of the request together have too many values.
    #[error("more than {MAX_VALUES} values")]
    TooMany,
    /// It is not JSON.
    #[error(transparent)]
    Syntax(serde_json::Error),
}

/// The number of values that a request may still have.
#[derive(Debug)]
pub struct JsonBudget {
    values: usize,
}

impl Default for JsonBudget {
    fn default() -> JsonBudget {
        JsonBudget { values: MAX_VALUES }
    }
}

impl JsonBudget {
    /// The remaining budget after these parsed values.
    pub fn after(parsed: &[Value]) -> JsonBudget {
        JsonBudget { values: MAX_VALUES.saturating_sub(parsed.iter().map(count).sum()) }
    }

    /// Parses a text, and deducts its values.
    ///
    /// # Errors
    /// The text is not JSON, or exceeds the limits of the request; in the latter case it has not been parsed.
    pub fn parse(&mut self, text: &str) -> Result<Value, JsonError> {
        self.measure(text.as_bytes())?;
        serde_json::from_str(text).map_err(JsonError::Syntax)
    }

    /// Counts the structure outside strings.
    fn measure(&mut self, bytes: &[u8]) -> Result<(), JsonError> {
        let (mut depth, mut at) = (0usize, 0);
        while let Some(&byte) = bytes.get(at) {
            match byte {
                b'"' => {
                    at += 1;
                    while bytes.get(at).is_some_and(|byte| *byte != b'"') {
                        at += 1 + usize::from(bytes[at] == b'\\');
                    }
                }
                b'[' | b'{' => {
                    depth += 1;
                    self.spend()?;
                }
                b']' | b'}' => depth = depth.saturating_sub(1),
                b',' => self.spend()?,
                _ => {}
            }
            if depth > MAX_DEPTH {
                return Err(JsonError::TooDeep);
            }
            at += 1;
        }
        Ok(())
    }

    fn spend(&mut self) -> Result<(), JsonError> {
        self.values = self.values.checked_sub(1).ok_or(JsonError::TooMany)?;
        Ok(())
    }
}

/// Counts as [`JsonBudget::measure`] does: lists, objects and commas. The value is nested at most [`MAX_DEPTH`] deep.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len().max(1) + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => fields.len().max(1) + fields.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_too_much_is_not_parsed() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        let many = |n: usize| format!("[{}1]", "1,".repeat(n));
        let parse = |text: &str| JsonBudget::default().parse(text);
        assert!(parse(&deep(MAX_DEPTH)).is_ok());
        assert!(matches!(parse(&deep(MAX_DEPTH + 1)), Err(JsonError::TooDeep)));
        assert!(matches!(parse(&"[".repeat(100_000)), Err(JsonError::TooDeep)));
        assert!(parse(&many(MAX_VALUES - 1)).is_ok());
        assert!(matches!(parse(&many(MAX_VALUES)), Err(JsonError::TooMany)));
        assert!(matches!(parse("NaN"), Err(JsonError::Syntax(_))));
        assert!(matches!(parse("\"\\"), Err(JsonError::Syntax(_))));
        // The contents of a string cost nothing more.
        assert!(parse(&format!("\"{}\\\"{}\"", "[".repeat(1000), ",".repeat(MAX_VALUES))).is_ok());
    }

    #[test]
    fn all_texts_of_a_request_share_a_budget() {
        let half = format!("[{}1]", "1,".repeat(MAX_VALUES / 2));
        let mut budget = JsonBudget::default();
        let first = budget.parse(&half).unwrap();
        assert!(matches!(budget.parse(&half), Err(JsonError::TooMany)));
        let mut rest = JsonBudget::after(&[first]);
        assert!(rest.parse("[1, 2, 3]").is_ok());
        assert!(matches!(rest.parse(&half), Err(JsonError::TooMany)));
    }
}
