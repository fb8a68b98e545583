//! `config.json`, with values checked for type and limits. Missing values default to those of
//! `transformers`, and messages mention it.

use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::ConvertError;
use crate::import::side::SideFiles;

/// The configuration of a network.
#[derive(Debug)]
pub(super) struct Config {
    path: PathBuf,
    top: Map<String, Value>,
    /// The text part's values, for a model of text and pictures.
    text: Map<String, Value>,
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// There is none, or it is not a JSON object.
    pub(super) fn read(side: &SideFiles) -> Result<Config, ConvertError> {
        let path = side.network.path("config.json");
        let Some(top) = side.network.json("config.json")? else {
            let problem = "is missing: the configuration of the network, which a Hugging Face \
                           model has beside its weights";
            return Err(ConvertError::Side { path, problem: problem.into() });
        };
        let text = match top.get("text_config") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(text)) => text.clone(),
            Some(other) => {
                let problem = format!("text_config is {}, expected an object", shown(other));
                return Err(ConvertError::Side { path, problem });
            }
        };
        Ok(Config { path, top, text })
    }

    /// Gives keys that have other names here the usual ones.
    pub(super) fn with_usual_names(mut self, names: &[(&'static str, &'static str)]) -> Config {
        for (usual, name) in names {
            if self.raw(usual).is_none()
                && let Some(value) = self.raw(name).cloned()
            {
                self.top.insert((*usual).to_owned(), value);
            }
        }
        self
    }

    /// The same without how the weights are quantised, which does not matter where they are not read.
    pub(super) fn without_quantization(mut self) -> Config {
        for key in ["quantization_config", "compression_config"] {
            self.top.remove(key);
            self.text.remove(key);
        }
        self
    }

    /// Returns an error about the file.
    pub(super) fn error(&self, problem: impl Into<String>) -> ConvertError {
        ConvertError::Side { path: self.path.clone(), problem: problem.into() }
    }

    /// Returns an error about one of its values.
    pub(super) fn wrong(&self, key: &str, found: &Value, expected: &str) -> ConvertError {
        self.error(format!("{key} is {}, expected {expected}", shown(found)))
    }

    /// Returns the value of `key`, possibly `null`; the text part takes precedence, unless its
    /// value is `null`.
    pub(super) fn raw(&self, key: &str) -> Option<&Value> {
        let inner = self.text.get(key);
        inner.filter(|value| !value.is_null()).or_else(|| self.top.get(key)).or(inner)
    }

    /// As [`raw`](Config::raw), with `null` as no value.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.raw(key).filter(|value| !value.is_null())
    }

    /// Returns the value of `key`; the whole model's takes precedence over the text part's.
    pub(super) fn outer(&self, key: &str) -> Option<&Value> {
        self.top.get(key).or_else(|| self.text.get(key)).filter(|value| !value.is_null())
    }

    /// Returns a whole number from 1 to `most`, if there is one.
    pub(super) fn count(&self, key: &str, most: u64) -> Result<Option<u64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = whole(value).filter(|found| (1..=most).contains(found));
        found.map(Some).ok_or_else(|| self.wrong(key, value, &format!("1 to {most}")))
    }

    /// Returns a whole number of at most `most`, which may be 0, or the default.
    pub(super) fn count_or(&self, key: &str, default: u64, most: u64) -> Result<u64, ConvertError> {
        match self.get(key) {
            Some(value) if *value == 0 => Ok(0),
            _ => Ok(self.count(key, most)?.unwrap_or(default)),
        }
    }

    /// Returns a number in `range`, if there is one.
    pub(super) fn number(&self, key: &str, range: Range<f64>) -> Result<Option<f64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        self.in_range(key, value, range).map(Some)
    }

    /// Returns the number in `value`, the value of `key`.
    pub(super) fn in_range(
        &self,
        key: &str,
        value: &Value,
        range: Range<f64>,
    ) -> Result<f64, ConvertError> {
        let found = value.as_f64().filter(|found| range.contains(found));
        found.ok_or_else(|| {
            let expected = format!("a number from {} to below {}", range.start, range.end);
            self.wrong(key, value, &expected)
        })
    }

    /// Returns true if a flag is set; false if it is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConvertError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// Returns a string, if there is one.
    pub(super) fn word(&self, key: &str) -> Result<Option<&str>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(word)) => Ok(Some(word)),
            Some(other) => Err(self.wrong(key, other, "a string")),
        }
    }

    /// Returns an object, if there is one.
    pub(super) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }
}

/// Returns the whole number in a value; some programs write `4096.0`.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let float = || value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f));
    value.as_u64().or_else(|| float().map(|float| float as u64))
}

/// Returns a value for a message, on one line of limited length.
pub(in crate::import) fn shown(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("an array of {}", array.len()),
        Value::Object(_) => "an object".into(),
        Value::String(text) => format!("\"{}\"", clipped(text)),
        other => other.to_string(),
    }
}

/// Returns the start of a text from a file, without characters that would disturb a terminal.
pub(in crate::import) fn clipped(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}
