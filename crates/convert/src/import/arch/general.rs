//! The keys under `general.`: the model's name, and its publisher's sampling settings.
//!
//! Unlike llama.cpp's converter, this omits what the model's card states about other models and
//! about data (`general.base_model.*`, `general.dataset.*`, tags, languages, authors): nothing
//! reads it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config::{Config, clipped};
use super::naming::{Parts, parts, size_label};
use crate::ConvertError;
use crate::import::side::SideFiles;
use crate::import::tensor::Entry;

/// Maximum length of a card that is read, in bytes.
const MAX_CARD: u64 = 4 << 20;

/// Maximum length of a model's name, in bytes.
const MAX_NAME: usize = 256;

/// The type of a setting of `generation_config.json`.
#[derive(Clone, Copy)]
enum As {
    Whole,
    Float,
}

/// Keys in `generation_config.json` and under `general.sampling.`; the last name for one key wins.
const SAMPLING: [(&str, &str, As); 12] = [
    ("top_k", "top_k", As::Whole),
    ("top_p", "top_p", As::Float),
    ("min_p", "min_p", As::Float),
    ("xtc_probability", "xtc_probability", As::Float),
    ("xtc_threshold", "xtc_threshold", As::Float),
    ("temperature", "temp", As::Float),
    ("penalty_last_n", "penalty_last_n", As::Whole),
    ("repetition_penalty", "penalty_repeat", As::Float),
    ("penalty_repeat", "penalty_repeat", As::Float),
    ("mirostat", "mirostat", As::Whole),
    ("mirostat_tau", "mirostat_tau", As::Float),
    ("mirostat_eta", "mirostat_eta", As::Float),
];

/// Returns the keys of a model with `parameters` parameters, without those that every file has.
///
/// # Errors
/// None of these files has to exist or be correct: mistakes are noted and omitted.
pub(super) fn keys(
    side: &SideFiles,
    config: &Config,
    parameters: u64,
    notes: &mut Vec<String>,
) -> Result<Vec<(String, Entry)>, ConvertError> {
    let mut keys = Vec::new();
    match side.network.json("generation_config.json") {
        Ok(settings) => sampling(&settings.unwrap_or_default(), &mut keys),
        Err(error) => notes.push(format!("left out: {error}")),
    }
    let named = names(&side.network.path("config.json"), config, parameters)?;
    let text = |key: &str, value: Option<String>| {
        value.map(|value| (format!("general.{key}"), Entry::Str(value)))
    };
    keys.extend(text("name", named.name));
    keys.extend(text("version", named.version));
    keys.extend(text("organization", named.organization));
    keys.extend(text("finetune", named.finetune));
    keys.extend(text("basename", named.basename));
    keys.extend(text("size_label", named.size_label.or(Some(size_label(parameters)))));
    // A card that cannot be read does not prevent using the model.
    if let Ok(Some(card)) = side.network.read("README.md", MAX_CARD) {
        license(&String::from_utf8_lossy(&card), &mut keys);
    }
    Ok(keys)
}

fn sampling(settings: &Map<String, Value>, keys: &mut Vec<(String, Entry)>) {
    for (name, key, form) in SAMPLING {
        let Some(value) = settings.get(name) else { continue };
        let entry = match form {
            As::Whole => value.as_i64().and_then(|n| i32::try_from(n).ok()).map(Entry::I32),
            As::Float => value.as_f64().map(|n| Entry::F32(n as f32)),
        };
        let Some(entry) = entry else { continue };
        let key = format!("general.sampling.{key}");
        match keys.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = entry,
            None => keys.push((key, entry)),
        }
    }
}

/// Returns the model's name from its configuration, or else from its folder.
fn names(config_path: &Path, config: &Config, parameters: u64) -> Result<Parts, ConvertError> {
    let name = config.outer("_name_or_path").and_then(Value::as_str).unwrap_or_default();
    // A path on the publisher's machine has more slashes.
    let is_name = (1..=MAX_NAME).contains(&name.len()) && name.matches('/').count() <= 1;
    let name = if is_name { parts(name, parameters) } else { Parts::default() };
    let folder = config_path.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    Ok(name.or(folder_id(&folder).map_or(Parts::default(), |id| parts(&id, parameters))))
}

/// Returns the name of a folder; in Hugging Face's cache, where folders are named after commits,
/// that of the model.
fn folder_id(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let own = name(&folder)?;
    let above = folder.parent();
    let is_commit = own.len() == 40 && own.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit && above.and_then(name).is_some_and(|above| above == "snapshots") {
        let model = above.and_then(Path::parent).and_then(name)?;
        if let Some(id) = model.strip_prefix("models--") {
            return Some(id.replacen("--", "/", 1));
        }
    }
    Some(own)
}

/// Reads the license from the lines `key: value` at the head of the card.
fn license(card: &str, keys: &mut Vec<(String, Entry)>) {
    let mut lines = card.lines();
    if lines.next() != Some("---") {
        return;
    }
    let head: Vec<&str> = lines.take_while(|line| *line != "---").collect();
    for (name, key) in [
        ("license", "general.license"),
        ("license_name", "general.license.name"),
        ("license_link", "general.license.link"),
    ] {
        let value = head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.map(|value| value.trim().trim_matches(['"', '\'']));
        // Lists and multi-line texts are other forms of YAML.
        let is_plain = |value: &&str| !value.is_empty() && !value.starts_with(['[', '|', '>', '&']);
        if let Some(value) = value.filter(is_plain) {
            keys.push((key.into(), Entry::Str(clipped(value))));
        }
    }
}
