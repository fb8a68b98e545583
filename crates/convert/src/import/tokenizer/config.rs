//! The settings of the tokenizer: `tokenizer_config.json`, and `special_tokens_map.json` for settings
//! missing there.

use serde_json::{Map, Value};

use super::super::side::SideFiles;
use crate::ConvertError;

pub(super) const CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";

/// Both files; empty if they do not exist.
pub(super) struct TokenizerConfig {
    pub config: Map<String, Value>,
    map: Map<String, Value>,
}

impl TokenizerConfig {
    pub fn read(side: &SideFiles) -> Result<TokenizerConfig, ConvertError> {
        Ok(TokenizerConfig {
            config: side.tokenizer.json(CONFIG)?.unwrap_or_default(),
            map: side.tokenizer.json(MAP)?.unwrap_or_default(),
        })
    }

    /// Returns the text of the token with this name: `"bos_token": "<s>"`, or an object with
    /// `content`.
    pub fn token(&self, name: &str) -> Option<&str> {
        // null in the first file means none, whatever the second contains.
        let value = self.config.get(name).or_else(|| self.map.get(name))?;
        spelling(value)
    }

    /// Returns a boolean setting.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.config.get(name)?.as_bool()
    }

    /// Returns the texts of all tokens that have a special name.
    pub fn special(&self) -> impl Iterator<Item = &str> {
        let names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];
        let named = names.into_iter().filter_map(|name| self.token(&format!("{name}_token")));
        let more = "additional_special_tokens";
        let more = self.config.get(more).or_else(|| self.map.get(more)).and_then(Value::as_array);
        named.chain(more.into_iter().flatten().filter_map(spelling))
    }
}

fn spelling(value: &Value) -> Option<&str> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str());
    text.filter(|text| !text.is_empty())
}
