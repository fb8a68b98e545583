//! Settings that sentence-transformers keeps beside the weights: how the vectors of tokens become that of a text, prompts, and the longest text.
//!
//! GGUF has a key for the pooling alone. The rest goes under keys of our own, `sentence_transformers.*`, which `docs/how-to/embeddings.md`
//! lists. A module that changes the vectors and has no place in GGUF is an error, and so is a way of pooling that has no number there. Modules
//! `Dense` have weights of their own ([`dense`](super::dense)).

use std::path::{Component, Path};

use serde_json::{Map, Value};

use super::arch::config::shown;
use super::side::SideFiles;
use super::tensor::Entry;
use crate::ConvertError;

/// Maximum length of one of its files, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of prompts.
const MAX_PROMPTS: usize = 1024;

const MODULES: &str = "modules.json";
const CONFIG: &str = "config_sentence_transformers.json";
const BERT: &str = "sentence_bert_config.json";
/// Where newer versions keep the longest text.
const TOKENIZER: &str = "tokenizer_config.json";
/// The largest number of tokens that is a limit: tokenizers without one have 10^30.
const MAX_TOKENS: f64 = (1u64 << 30) as f64;
/// The states that are pooled.
const STATES: &str = "last_hidden_state";

/// How the vectors of tokens become that of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    Mean,
    Cls,
    Last,
}

impl Pooling {
    /// Its number in `pooling_type`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Pooling::Mean => 1,
            Pooling::Cls => 2,
            Pooling::Last => 3,
        }
    }
}

/// The settings of a folder.
#[derive(Debug, Default)]
pub(crate) struct SentenceTransformer {
    pub(crate) pooling: Option<Pooling>,
    /// True if vectors are divided by their length.
    normalize: Option<bool>,
    prompts: Vec<(String, String)>,
    default_prompt: Option<String>,
    similarity: Option<String>,
    /// The number of leading elements that are kept.
    truncate: Option<u32>,
    /// The longest text, in tokens.
    max_tokens: Option<u32>,
    /// True if text is lower-cased before it is tokenized.
    pub(crate) lowercase: bool,
    /// The folders of the projections of the pooled vector, one after the other.
    pub(crate) dense: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl SentenceTransformer {
    /// Reads the files of a folder; `None` if it has none of them.
    ///
    /// # Errors
    /// One of them is malformed, or says something that GGUF cannot express.
    pub(crate) fn read(side: &SideFiles) -> Result<Option<SentenceTransformer>, ConvertError> {
        let mut found = SentenceTransformer::default();
        let modules = found.modules(side)?;
        let config = side.network.json(CONFIG)?;
        let bert = side.network.json(BERT)?;
        if !modules && config.is_none() && bert.is_none() {
            return Ok(None);
        }
        if let Some(config) = config {
            found.config(side, &config)?;
        }
        if let Some(bert) = bert {
            let path = side.network.path(BERT);
            found.max_tokens = count(&bert, "max_seq_length", &path)?;
            found.lowercase = bert.get("do_lower_case") == Some(&Value::Bool(true));
            let output = || bert.get("modality_config")?.get("text")?.get("method_output_name");
            if let Some(output) = output().filter(|name| found.pooling.is_some() && *name != STATES)
            {
                let problem = format!("pools {}, expected {STATES:?}", shown(output));
                return Err(ConvertError::Side { path, problem });
            }
        }
        if modules && found.max_tokens.is_none() {
            let config = side.network.json(TOKENIZER)?.unwrap_or_default();
            let limit = config.get("model_max_length").and_then(Value::as_f64);
            if limit.is_some_and(|limit| limit < MAX_TOKENS) {
                let path = side.network.path(TOKENIZER);
                found.max_tokens = count(&config, "model_max_length", &path)?;
            }
        }
        Ok(Some(found))
    }

    /// Reads `modules.json` and what it names. Returns false if there is none.
    fn modules(&mut self, side: &SideFiles) -> Result<bool, ConvertError> {
        let path = side.network.path(MODULES);
        let Some(bytes) = side.network.read(MODULES, MAX_FILE)? else { return Ok(false) };
        let wrong = |problem: String| ConvertError::Side { path: path.clone(), problem };
        let all: Value =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let all = all.as_array().ok_or_else(|| wrong("is no list of modules".into()))?;
        let mut normalize = false;
        for module in all {
            let ty = module.get("type").and_then(Value::as_str).unwrap_or_default();
            let folder = module.get("path").and_then(Value::as_str).unwrap_or_default();
            match ty.rsplit('.').next().unwrap_or_default() {
                "Transformer" if folder.is_empty() => {}
                "Transformer" => {
                    return Err(wrong(format!(
                        "has the network in the folder {folder:?}: put its files beside modules.json"
                    )));
                }
                "Pooling" if self.dense.is_empty() && !normalize => self.pooling(side, folder)?,
                "Dense" if self.pooling.is_some() && !normalize => {
                    self.dense.push(own_folder(side, folder)?.to_owned());
                }
                "Normalize" => normalize = true,
                // It changes vectors in training only.
                "Dropout" => {}
                other @ ("Pooling" | "Dense") => {
                    return Err(wrong(format!(
                        "has the module {other:?} in a place for which GGUF has no form: expected Transformer, Pooling, Dense, Normalize"
                    )));
                }
                other => {
                    let shown: String = other.chars().take(60).collect();
                    return Err(wrong(format!(
                        "has a module {shown:?}, which changes the vectors and for which GGUF has no form"
                    )));
                }
            }
        }
        self.normalize = Some(normalize);
        Ok(true)
    }

    /// Reads the configuration of the module that pools.
    fn pooling(&mut self, side: &SideFiles, folder: &str) -> Result<(), ConvertError> {
        let name = format!("{}/config.json", own_folder(side, folder)?);
        let path = side.network.path(&name);
        let wrong = |problem: String| ConvertError::Side { path: path.clone(), problem };
        let Some(config) = side.network.json(&name)? else {
            return Err(wrong("is missing: modules.json names it".into()));
        };
        if config.get("include_prompt") == Some(&Value::Bool(false)) {
            let problem = "include_prompt is false: GGUF has no form for prompts that do not count in the mean";
            return Err(wrong(problem.into()));
        }
        let mut found = Vec::new();
        match config.get("pooling_mode") {
            Some(Value::String(mode)) => found.push(mode.clone()),
            Some(Value::Array(modes)) => {
                found.extend(modes.iter().map(|mode| mode.as_str().unwrap_or_default().to_owned()));
            }
            _ => {
                for (key, value) in &config {
                    let mode = key.strip_prefix("pooling_mode_");
                    found.extend(mode.filter(|_| value == &Value::Bool(true)).map(str::to_owned));
                }
            }
        }
        let pooling = match found.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["mean" | "mean_tokens"] => Pooling::Mean,
            ["cls" | "cls_token"] => Pooling::Cls,
            ["lasttoken" | "last_token"] => Pooling::Last,
            _ => {
                let found = if found.is_empty() { "none".into() } else { found.join(" and ") };
                let found: String = found.chars().take(120).collect();
                return Err(wrong(format!(
                    "pools by {found}, expected one of mean, cls and lasttoken, for which GGUF has numbers"
                )));
            }
        };
        self.pooling = Some(pooling);
        Ok(())
    }

    fn config(
        &mut self,
        side: &SideFiles,
        config: &Map<String, Value>,
    ) -> Result<(), ConvertError> {
        let path = side.network.path(CONFIG);
        let wrong = |problem: String| ConvertError::Side { path: path.clone(), problem };
        let word = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(word)) => Ok(Some(word.clone())),
            Some(other) => Err(wrong(format!("{key} is {}, expected a string", shown(other)))),
        };
        match config.get("prompts") {
            None | Some(Value::Null) => {}
            Some(Value::Object(prompts)) if prompts.len() <= MAX_PROMPTS => {
                for (name, prompt) in prompts {
                    let Some(prompt) = prompt.as_str() else {
                        return Err(wrong(format!("the prompt {name:?} is {}", shown(prompt))));
                    };
                    self.prompts.push((name.clone(), prompt.to_owned()));
                }
            }
            Some(other) => {
                let found = shown(other);
                return Err(wrong(format!(
                    "prompts is {found}, expected at most {MAX_PROMPTS} texts by name"
                )));
            }
        }
        self.default_prompt = word("default_prompt_name")?;
        if let Some(name) = &self.default_prompt
            && !self.prompts.iter().any(|(known, _)| known == name)
        {
            return Err(wrong(format!(
                "default_prompt_name is {name:?}, which is no prompt of it"
            )));
        }
        self.similarity = word("similarity_fn_name")?;
        self.truncate = count(config, "truncate_dim", &path)?;
        Ok(())
    }

    /// Returns the keys for all but the pooling.
    pub(crate) fn keys(&self) -> Vec<(String, Entry)> {
        let mut keys = Vec::new();
        let mut put = |key: &str, entry: Option<Entry>| {
            keys.extend(entry.map(|entry| (format!("sentence_transformers.{key}"), entry)));
        };
        let has = !self.prompts.is_empty();
        let names = || Entry::Strs(self.prompts.iter().map(|(name, _)| name.clone()).collect());
        let texts = || Entry::Strs(self.prompts.iter().map(|(_, text)| text.clone()).collect());
        put("prompt_names", has.then(names));
        put("prompts", has.then(texts));
        put("default_prompt_name", self.default_prompt.clone().map(Entry::Str));
        put("similarity_fn_name", self.similarity.clone().map(Entry::Str));
        put("truncate_dim", self.truncate.map(Entry::U32));
        put("max_seq_length", self.max_tokens.map(Entry::U32));
        put("normalize", self.normalize.map(Entry::Bool));
        keys
    }
}

/// Checks that a module's folder, which is joined to a path, is within that of `modules.json`.
fn own_folder<'f>(side: &SideFiles, folder: &'f str) -> Result<&'f str, ConvertError> {
    let mut parts = Path::new(folder).components();
    let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
    if folder.is_empty() || !is_plain {
        let path = side.network.path(MODULES);
        let problem = format!("names the folder {folder:?}, expected one in its own");
        return Err(ConvertError::Side { path, problem });
    }
    Ok(folder)
}

/// Returns a whole number from 1 on, if there is one.
pub(super) fn count(
    config: &Map<String, Value>,
    key: &str,
    path: &Path,
) -> Result<Option<u32>, ConvertError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let found = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            found.map(Some).ok_or_else(|| ConvertError::Side {
                path: path.into(),
                problem: format!("{key} is {}, expected a whole number from 1 on", shown(value)),
            })
        }
    }
}
