//! The fields of a JSON object, taken one by one: each has its name in errors, and what is left in the end is a field that
//! nobody knows. A field that is null is not there.

use serde_json::{Map, Value};

use super::refusal::Refusal;

/// An object, some of whose fields have been taken.
pub struct Fields(Map<String, Value>);

type Taken<T> = Result<Option<T>, Refusal>;

impl Fields {
    /// With all its fields.
    pub fn new(object: Map<String, Value>) -> Fields {
        Fields(object)
    }

    /// Adds a field of this name, or gives it another value.
    pub fn insert(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// True if there is such a field.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Whatever it is.
    pub fn any(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// A string.
    pub fn string(&mut self, name: &str) -> Taken<String> {
        self.read(name, "a string", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// A list.
    pub fn list(&mut self, name: &str) -> Taken<Vec<Value>> {
        self.read(name, "a list", |value| match value {
            Value::Array(items) => Some(items),
            _ => None,
        })
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> Taken<Map<String, Value>> {
        self.read(name, "an object", |value| match value {
            Value::Object(fields) => Some(fields),
            _ => None,
        })
    }

    /// True or false.
    pub fn truth(&mut self, name: &str) -> Taken<bool> {
        self.read(name, "true or false", |value| value.as_bool())
    }

    /// A whole number, not below 0.
    pub fn count(&mut self, name: &str) -> Taken<usize> {
        self.read(name, "a whole number, not below 0", |value| usize::try_from(whole(&value)?).ok())
    }

    /// A whole number, not below 0, or −1, which stands for `all`: so llama.cpp writes that there is no limit.
    pub fn count_or_all(&mut self, name: &str, all: usize) -> Taken<usize> {
        self.read(name, "a whole number, not below 0, or -1", |value| match whole(&value)? {
            -1 => Some(all),
            n => usize::try_from(n).ok(),
        })
    }

    /// Any number that `fits`; `what` says which do.
    pub fn number(&mut self, name: &str, what: &str, fits: impl Fn(f32) -> bool) -> Taken<f32> {
        self.read(name, what, |value| {
            let x = value.as_f64()? as f32;
            (x.is_finite() && fits(x)).then_some(x)
        })
    }

    /// A field that reads as `what`.
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

    /// A field that may say only what is done in any case.
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

    /// Fields that change no answer.
    pub fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.any(name)));
    }

    /// All fields have been taken.
    pub fn finish(self) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                Err(Refusal::unsupported(shown(&name), "there is no such field here"))
            }
        }
    }
}

/// A whole number, which some clients write as `40.0`.
pub fn whole(value: &Value) -> Option<i128> {
    let exact = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    // Beyond, not every whole number can be written so.
    let fits = |x: &f64| x.fract() == 0.0 && x.abs() <= (1u64 << 53) as f64;
    exact.or_else(|| value.as_f64().filter(fits).map(|x| x as i128))
}

/// What a value is, for people.
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

/// A name from the input in an error: not more of it than is of use.
fn shown(name: &str) -> String {
    match name.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
