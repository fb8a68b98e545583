//! Chat templates: in `tokenizer_config.json` (one, or several by name), or in files of their own. A template
//! longer than the renderer's limit is omitted, with a note: the model is useful without it.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use alight_text::template::MAX_SOURCE;
use serde_json::Value;

use super::super::side::{SideFile, SideFiles};
use super::super::tensor::Entry;
use super::config::{CONFIG, TokenizerConfig};
use crate::ConvertError;

const JINJA: &str = "chat_template.jinja";
const JSON: &str = "chat_template.json";
const MORE: &str = "additional_chat_templates";

/// Returns their keys, with those of `more` (name, text), which take precedence.
pub(super) fn read(
    side: &SideFiles,
    config: &TokenizerConfig,
    more: &[(&'static str, String)],
    notes: &mut Vec<String>,
) -> Result<Vec<(String, Entry)>, ConvertError> {
    let mut templates = all(side, config, notes)?;
    templates.extend(more.iter().map(|(name, text)| ((*name).to_owned(), text.clone())));
    Ok(keys(templates))
}

/// Returns the templates of the files by name.
fn all(
    side: &SideFiles,
    config: &TokenizerConfig,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, String>, ConvertError> {
    let given = config.config.get("chat_template").filter(|value| !value.is_null());
    if let Some(value) = given {
        let Some(templates) = of(value) else {
            notes.push(format!(
                "{CONFIG}: its chat_template is neither a text nor a list of them; it is left out"
            ));
            return Ok(BTreeMap::new());
        };
        return Ok(short(CONFIG, templates, notes));
    }
    let default = side.tokenizer.find(JINJA, MAX_SOURCE as u64)?;
    if default != SideFile::Nothing {
        let mut templates = BTreeMap::new();
        let mut add = |name: String, file: &str, found| {
            match found {
                SideFile::Nothing => {}
                SideFile::TooLong(len) => notes.push(too_long(file, &name, len)),
                SideFile::Bytes(bytes) => drop(templates.insert(name, text(side, file, bytes)?)),
            }
            Ok::<_, ConvertError>(())
        };
        add("default".into(), JINJA, default)?;
        for name in more(side)? {
            let file = format!("{MORE}/{name}.jinja");
            let found = side.tokenizer.find(&file, MAX_SOURCE as u64)?;
            add(name, &file, found)?;
        }
        return Ok(templates);
    }
    let file = side.tokenizer.json(JSON)?.unwrap_or_default();
    let templates = file.get("chat_template").and_then(of).unwrap_or_default();
    Ok(short(JSON, templates, notes))
}

/// Returns the templates of `file` without those that are too long.
fn short(
    file: &str,
    mut templates: BTreeMap<String, String>,
    notes: &mut Vec<String>,
) -> BTreeMap<String, String> {
    templates.retain(|name, text| {
        let fits = text.len() <= MAX_SOURCE;
        if !fits {
            notes.push(too_long(file, name, text.len() as u64));
        }
        fits
    });
    templates
}

fn too_long(file: &str, name: &str, len: u64) -> String {
    format!(
        "{file}: the chat template \"{name}\" has {len} bytes, more than the {MAX_SOURCE} that one may have; it \
         is left out"
    )
}

fn text(side: &SideFiles, name: &str, bytes: Vec<u8>) -> Result<String, ConvertError> {
    String::from_utf8(bytes).map_err(|_| ConvertError::Side {
        path: side.tokenizer.path(name),
        problem: "is not UTF-8".into(),
    })
}

/// One template, or a list of `{"name": …, "template": …}`.
fn of(value: &Value) -> Option<BTreeMap<String, String>> {
    if let Some(text) = value.as_str() {
        return Some(BTreeMap::from([("default".into(), text.into())]));
    }
    let named = |entry: &Value| {
        let name = entry.get("name")?.as_str()?;
        Some((name.to_owned(), entry.get("template")?.as_str()?.to_owned()))
    };
    Some(value.as_array()?.iter().filter_map(named).collect())
}

/// Returns the names, without extension, of the files in the folder of further templates.
fn more(side: &SideFiles) -> Result<Vec<String>, ConvertError> {
    let path = side.tokenizer.path(MORE);
    let failed = |source| ConvertError::Read { path: path.clone(), at: 0, source };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".jinja")) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Returns the GGUF keys, in llama.cpp's order: the named templates, their names, the default.
fn keys(mut templates: BTreeMap<String, String>) -> Vec<(String, Entry)> {
    const KEY: &str = "tokenizer.chat_template";
    let default = templates.remove("default");
    // Other characters could be confused with the separator of keys.
    let plain = |name: &str| -> String {
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    };
    let named: BTreeMap<String, String> =
        templates.iter().map(|(name, text)| (plain(name), text.clone())).collect();
    let names: Vec<String> = named.keys().filter(|name| !name.is_empty()).cloned().collect();
    let mut keys = Vec::new();
    for (name, text) in named.into_iter().filter(|(name, _)| !name.is_empty()) {
        keys.push((format!("{KEY}.{name}"), Entry::Str(text)));
    }
    if !names.is_empty() {
        keys.push(("tokenizer.chat_templates".into(), Entry::Strs(names)));
    }
    keys.extend(default.map(|text| (KEY.into(), Entry::Str(text))));
    keys
}
