//! `adapter_config.json`: every field is applied, or known to change nothing, or refused by its name.

use std::path::{Path, PathBuf};

use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::syntax;
use serde_json::{Map, Value};

use super::super::arch::config::shown;
use super::super::side::Folder;
use crate::ConvertError;

/// The file.
pub(super) const NAME: &str = "adapter_config.json";
/// Maximum rank; the same as that of the program that runs adapters.
const MAX_RANK: u64 = alight_formats::adapter::MAX_RANK;
/// Maximum number of patterns, and of names of parameters.
const MAX_PATTERNS: usize = 1 << 15;
/// Maximum size of all compiled patterns of a field, in bytes.
const MAX_PATTERNS_SIZE: usize = 256 << 20;
/// Maximum size of a compiled pattern, in bytes.
const MAX_PATTERN: usize = 1 << 20;

/// Fields of training, or of what other fields say already.
const WITHOUT_EFFECT: [&str; 20] = [
    "auto_mapping",
    "revision",
    "inference_mode",
    "lora_dropout",
    "task_type",
    // The trained modules follow from the tensors.
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "bias",
    "loftq_config",
    "eva_config",
    "megatron_config",
    "megatron_core",
    "runtime_config",
    "qalora_group_size",
    "peft_type",
    // The factors are those of a `Linear` in either case.
    "fan_in_fan_out",
    "lora_bias",
];

/// Beginnings of values of `init_lora_weights` that change the weights of the base.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "loftq", "corda", "lora_ga"];

/// The description of an adapter.
pub(super) struct AdapterConfig {
    path: PathBuf,
    rank: u64,
    /// The numerator of the scale.
    pub(super) alpha: f64,
    ranks: Vec<(Pattern, f64)>,
    alphas: Vec<(Pattern, f64)>,
    /// The scale is alpha / √r.
    by_root: bool,
    /// The rows have magnitudes.
    pub(super) dora: bool,
    /// Names of parameters, of which a module may have several.
    pub(super) parameters: Vec<String>,
    /// An output that is the embedding is adapted with it.
    pub(super) ties: bool,
    /// The name of the base, or its path.
    pub(super) base: Option<String>,
    /// Tokens from which on it acts.
    pub(super) invocation: Option<Vec<u32>>,
    /// Major and minor version of PEFT.
    pub(super) version: Option<(u64, u64)>,
}

/// A pattern of names of modules, as PEFT matches it.
struct Pattern {
    text: String,
    /// Every name that it matches ends with this.
    end: String,
    compiled: PikeVM,
}

impl AdapterConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// A field has a value that makes no sense, or that cannot be expressed.
    pub(super) fn read(folder: &Folder) -> Result<AdapterConfig, ConvertError> {
        let path = folder.path(NAME);
        let wrong = |problem: String| ConvertError::Side { path: path.clone(), problem };
        let Some(fields) = folder.json(NAME)? else {
            return Err(wrong("is missing: it says how an adapter is scaled".into()));
        };
        let kind = fields.get("peft_type").and_then(Value::as_str).unwrap_or("none");
        if kind != "LORA" {
            return Err(wrong(format!(
                "peft_type is {}, expected \"LORA\": no other kind has a form in GGUF",
                shown(&kind.into())
            )));
        }
        for (field, value) in &fields {
            check(field, value).map_err(wrong)?;
        }
        let flag = |field: &str| match fields.get(field) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => {
                Err(wrong(format!("{field} is {}, expected true or false", shown(other))))
            }
        };
        for field in ["fan_in_fan_out", "lora_bias", "inference_mode"] {
            flag(field)?;
        }
        let number = |field: &str, default: f64| match fields.get(field) {
            None => Ok(default),
            Some(value) => finite(field, value).map_err(wrong),
        };
        let rank = number("r", 8.0)?;
        if !(1.0..=MAX_RANK as f64).contains(&rank) || rank.fract() != 0.0 {
            return Err(wrong(format!("r is {rank}, expected 1 to {MAX_RANK}")));
        }
        let invocation = match fields.get("alora_invocation_tokens") {
            None | Some(Value::Null) => None,
            Some(value) => Some(tokens(value).ok_or_else(|| {
                let found = shown(value);
                wrong(format!("alora_invocation_tokens is {found}, expected numbers of tokens"))
            })?),
        };
        let config = AdapterConfig {
            rank: rank as u64,
            alpha: number("lora_alpha", 8.0)?,
            ranks: patterns(&fields, "rank_pattern").map_err(wrong)?,
            alphas: patterns(&fields, "alpha_pattern").map_err(wrong)?,
            by_root: flag("use_rslora")?,
            dora: flag("use_dora")?,
            parameters: names(&fields, "target_parameters").map_err(wrong)?,
            ties: flag("ensure_weight_tying")?,
            base: fields.get("base_model_name_or_path").and_then(Value::as_str).map(Into::into),
            invocation,
            version: fields.get("peft_version").and_then(Value::as_str).and_then(version),
            path: path.clone(),
        };
        if config.dora && flag("lora_bias")? {
            let problem = "use_dora and lora_bias are both true: PEFT's norms are then those of other weights than its products'";
            return Err(wrong(problem.into()));
        }
        Ok(config)
    }

    /// Returns an error about the file.
    pub(super) fn error(&self, problem: String) -> ConvertError {
        ConvertError::Side { path: self.path.clone(), problem }
    }

    /// Returns the factor on the product of a module's factors, which are of rank `rank`. `module` is its path in the model, or that of its
    /// parameter.
    ///
    /// # Errors
    /// The configuration says another rank.
    pub(super) fn scale(&self, module: &str, rank: u64) -> Result<f64, ConvertError> {
        let found = |patterns: &[(Pattern, f64)]| {
            patterns.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, value)| *value)
        };
        let expected = found(&self.ranks).unwrap_or(self.rank as f64);
        if expected != rank as f64 {
            return Err(self.error(format!(
                "the factors of \"{module}\" are of rank {rank}, expected {expected}, which r or rank_pattern says"
            )));
        }
        let alpha = found(&self.alphas).unwrap_or(self.alpha);
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }

    /// Returns the folder of the base, if the file names one that is here.
    pub(super) fn base_folder(&self) -> Option<&Path> {
        self.base.as_deref().map(Path::new).filter(|path| path.join("config.json").is_file())
    }
}

impl Pattern {
    fn read(text: &str) -> Result<Pattern, String> {
        let syntax = syntax::Config::new().unicode(false).utf8(false);
        let thompson = PikeVM::config();
        let limit = regex_automata::nfa::thompson::Config::new().nfa_size_limit(Some(MAX_PATTERN));
        // `re.match(rf"(.*\.)?({key})$", name)`.
        let whole = format!(r"\A(?:.*\.)?(?:{text})\z");
        let built =
            PikeVM::builder().configure(thompson).syntax(syntax).thompson(limit).build(&whole);
        let compiled = built.map_err(|_| format!("{text:?} is no pattern that can be read"))?;
        // An alternative, a flag or an escape changes what the last characters mean.
        let is_plain = !text.contains(['|', '\\']) && !text.contains("(?");
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = text.trim_end_matches(is_word).len();
        let end = if is_plain { &text[end..] } else { "" };
        Ok(Pattern { text: text.into(), end: end.into(), compiled })
    }

    fn matches(&self, module: &str) -> bool {
        // Nearly all patterns are names.
        if module == self.text || !module.ends_with(&self.end) {
            return module == self.text;
        }
        self.compiled.is_match(&mut self.compiled.create_cache(), module)
    }
}

/// Refuses a field that would have an effect, and is not applied.
fn check(field: &str, value: &Value) -> Result<(), String> {
    let applied = [
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "target_parameters",
        "ensure_weight_tying",
        "base_model_name_or_path",
        "alora_invocation_tokens",
        "peft_version",
    ];
    if applied.contains(&field) || WITHOUT_EFFECT.contains(&field) {
        return Ok(());
    }
    let is_nothing = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(array) => array.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    if is_nothing {
        return Ok(());
    }
    let why = match field {
        "init_lora_weights" => match value {
            Value::Bool(_) => return Ok(()),
            Value::String(name)
                if !CHANGES_BASE.iter().any(|start| name.to_lowercase().starts_with(start)) =>
            {
                return Ok(());
            }
            _ => {
                "such a start changes the weights of the base, so that the adapter does not fit the published ones: save it with \
                  PEFT's `path_initial_model_for_weight_conversion`"
            }
        },
        "layer_replication" => {
            "layers were repeated before they were adapted, and the base's file does not have them"
        }
        "trainable_token_indices" => {
            "rows of the embedding were trained, which GGUF has no form for"
        }
        "invocation_string" => {
            "its tokens are not known: alora_invocation_tokens has them in newer files"
        }
        _ => "this field is not known here, and may change what the adapter computes",
    };
    Err(format!("{field} is {}: {why}", shown(value)))
}

fn finite(field: &str, value: &Value) -> Result<f64, String> {
    let found = value.as_f64().filter(|found| (0.0..1e30).contains(found));
    found.ok_or_else(|| format!("{field} is {}, expected a number from 0", shown(value)))
}

fn patterns(fields: &Map<String, Value>, field: &str) -> Result<Vec<(Pattern, f64)>, String> {
    let all = match fields.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(all)) if all.len() <= MAX_PATTERNS => all,
        Some(other) => {
            return Err(format!("{field} is {}, expected an object of numbers", shown(other)));
        }
    };
    let (mut patterns, mut size) = (Vec::with_capacity(all.len()), 0);
    for (text, value) in all {
        let pattern = Pattern::read(text).map_err(|problem| format!("{field}: {problem}"))?;
        size += pattern.compiled.get_nfa().memory_usage();
        if size > MAX_PATTERNS_SIZE {
            return Err(format!("{field}: its patterns take more than {MAX_PATTERNS_SIZE} bytes"));
        }
        patterns.push((pattern, finite(&format!("{field} of {text:?}"), value)?));
    }
    Ok(patterns)
}

fn names(fields: &Map<String, Value>, field: &str) -> Result<Vec<String>, String> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all))
            if all.len() <= MAX_PATTERNS && all.iter().all(Value::is_string) =>
        {
            Ok(all.iter().filter_map(Value::as_str).map(Into::into).collect())
        }
        Some(other) => Err(format!("{field} is {}, expected an array of names", shown(other))),
    }
}

fn tokens(value: &Value) -> Option<Vec<u32>> {
    let all = value.as_array().filter(|all| !all.is_empty())?;
    all.iter().map(|token| token.as_u64()?.try_into().ok()).collect()
}

fn version(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
