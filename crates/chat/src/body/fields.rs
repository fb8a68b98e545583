//! The fields of a JSON object, taken one by one: errors name the field, and a field that is left at the end is unknown. A null field
//! counts as absent.

use serde_json::{Map, Value};

use super::refusal::Refusal;

/// An object of which some fields have been taken.
pub struct Fields(Map<String, Value>);

type Taken<T> = Result<Option<T>, Refusal>;

impl Fields {
    /// Wraps an object with all its fields.
    pub fn new(object: Map<String, Value>) -> Fields {
        Fields(object)
    }

    /// Adds a field, or replaces its value.
    pub fn insert(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Returns true if the field is present.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes a value of any type.
    pub fn any(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a string.
    pub fn string(&mut self, name: &str) -> Taken<String> {
        self.read(name, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Takes a list.
    pub fn list(&mut self, name: &str) -> Taken<Vec<Value>> {
        self.read(name, "a list", |value| match value {
            Value::Array(items) => Some(items),
            _ => None,
        })
    }

    /// Takes an object.
    pub fn object(&mut self, name: &str) -> Taken<Map<String, Value>> {
        self.read(name, "an object", |value| match value {
            Value::Object(fields) => Some(fields),
            _ => None,
        })
    }

    /// Takes a boolean.
    pub fn truth(&mut self, name: &str) -> Taken<bool> {
        self.read(name, "true or false", |value| value.as_bool())
    }

    /// Takes an integer, at least 0.
    pub fn count(&mut self, name: &str) -> Taken<usize> {
        self.read(name, "a whole number, not below 0", |value| usize::try_from(whole(&value)?).ok())
    }

    /// Takes an integer, at least 0, or −1 for `all`: llama.cpp's notation for no limit.
    pub fn count_or_all(&mut self, name: &str, all: usize) -> Taken<usize> {
        self.read(name, "a whole number, not below 0, or -1", |value| match whole(&value)? {
            -1 => Some(all),
            n => usize::try_from(n).ok(),
        })
    }

    /// Takes a number that `fits`; `what` describes the accepted ones.
    pub fn number(&mut self, name: &str, what: &str, fits: impl Fn(f32) -> bool) -> Taken<f32> {
        self.read(name, what, |value| {
            let x = value.as_f64()? as f32;
            (x.is_finite() && fits(x)).then_some(x)
        })
    }

    /// Takes a field that parses as `what`.
    pub fn read<T>(
        &mut self,
        name: &str,
        what: &str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Taken<T> {
        let Some(value) = self.any(name) else { return Ok(None) };
        let kind = kind(&value);
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(Refusal::invalid(name, format!("it is {kind}, expected {what}"))),
        }
    }

    /// Takes a field that may only have `harmless` values, which change nothing; `why` is the reason for refusing others.
    pub fn only(
        &mut self,
        name: &str,
        harmless: impl FnOnce(&Value) -> bool,
        why: &str,
    ) -> Result<(), Refusal> {
        match self.any(name) {
            Some(value) if !harmless(&value) => Err(Refusal::unsupported(name, why)),
            _ => Ok(()),
        }
    }

    /// Drops fields that do not affect an answer.
    pub fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.any(name)));
    }

    /// Returns the names of the fields that have not been taken.
    pub fn left(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Checks that all fields have been taken.
    pub fn finish(self) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                Err(Refusal::unsupported(shown(&name), "there is no such field here"))
            }
        }
    }
}

/// Returns an integer, which some clients write as `40.0`.
pub fn whole(value: &Value) -> Option<i128> {
    let exact = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    // Above 2⁵³, not every integer has such a representation.
    let fits = |x: &f64| x.fract() == 0.0 && x.abs() <= (1u64 << 53) as f64;
    exact.or_else(|| value.as_f64().filter(fits).map(|x| x as i128))
}

/// Describes the type of a value, for people.
pub fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// A name from the input as shown in an error, shortened if it is long.
fn shown(name: &str) -> String {
    match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
