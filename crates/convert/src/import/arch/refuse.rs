//! Refuses unsupported sources by name, with an alternative.

use serde_json::Value;

use super::config::{Config, clipped, shown, whole};
use super::describe::{Architecture, COUNTS};
use super::encoder;
use crate::ConvertError;

/// Suffixes of the names of tensors that only quantised checkpoints have.
const QUANTISED: [&str; 13] = [
    ".qweight",
    ".qzeros",
    ".scales",
    ".g_idx",
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_packed",
    ".weight_zero_point",
    ".input_scale",
    ".SCB",
    ".absmax",
    ".quant_map",
    ".weight_format",
];
const ORIGINAL: &str = "take the original model (its weights are F16, BF16 or F32) and quantise it on \
                        the way with --type: quantising twice loses twice";

/// Returns the architecture of a configuration.
///
/// # Errors
/// It is unknown, its weights are quantised, or it has a mixture of experts.
pub(super) fn recognise<'a>(
    config: &Config,
    known: &'a [Architecture],
) -> Result<&'a Architecture, ConvertError> {
    let class = class(config)?;
    let model_type = config.word("model_type")?;
    let fits = |architecture: &&Architecture| match (class, model_type) {
        (Some(class), _) => architecture.classes.contains(&class) && (architecture.fits)(config),
        (None, Some(model_type)) => {
            architecture.model_types.contains(&model_type) && (architecture.fits)(config)
        }
        (None, None) => false,
    };
    let found = known.iter().find(fits);
    for key in ["quantization_config", "compression_config"] {
        if let Some(quantised) = config.get(key) {
            let read = found.and_then(|architecture| architecture.quantised);
            if read.is_some() && quantised.get("quant_method").and_then(Value::as_str) == read
                || tile(config)?.is_some()
            {
                continue;
            }
            let method = quantised.get("quant_method").map_or("an unnamed method".into(), shown);
            return Err(config.error(format!(
                "{key} says that the weights are quantised ({method}), which is not read: {ORIGINAL}"
            )));
        }
    }
    let says_experts = COUNTS.into_iter().find(|key| config.get(key).is_some_and(|n| *n != 0));
    let is_named = |name: &str| name.contains("Moe") || name.contains("Mixtral");
    let is_expected = found.is_some_and(|architecture| architecture.experts.is_some());
    let is_named = found.is_none() && class.is_some_and(is_named);
    if !is_expected && (says_experts.is_some() || is_named) {
        let name = class.or(model_type).unwrap_or("this model");
        let key = says_experts.map_or(String::new(), |key| format!(" ({key})"));
        return Err(config.error(format!(
            "{} is a mixture of experts{key}, which is not converted yet; Alight runs GGUF files of \
             some: take one that another program made",
            clipped(name)
        )));
    }
    let Some(architecture) = found else {
        return Err(unknown(config, class, model_type, known));
    };
    for flag in architecture.never {
        if config.flag(flag)? {
            let expected = format!("false: {} has no such thing in GGUF", architecture.gguf);
            return Err(config.wrong(flag, &true.into(), &expected));
        }
    }
    let (key, expected) = architecture.activation;
    match config.word(key)? {
        Some(found) if found != expected => {
            let expected = format!("\"{expected}\", which is what {} has", architecture.gguf);
            Err(config.wrong(key, &found.into(), &expected))
        }
        _ => Ok(architecture),
    }
}

/// Returns the rows and columns of an F8 matrix that share a scale (`quant_method` "fp8", as published by DeepSeek and
/// Qwen).
pub(super) fn tile(config: &Config) -> Result<Option<(u64, u64)>, ConvertError> {
    let Some(quantised) = config.object("quantization_config")? else { return Ok(None) };
    if quantised.get("quant_method").and_then(Value::as_str) != Some("fp8") {
        return Ok(None);
    }
    let key = "weight_block_size";
    let Some(size) = quantised.get(key).filter(|size| !size.is_null()) else { return Ok(None) };
    let extents: Option<Vec<u64>> =
        size.as_array().map(|size| size.iter().filter_map(whole).collect());
    match extents.as_deref() {
        Some(&[rows, columns])
            if (1..=MAX_TILE).contains(&rows) && (1..=MAX_TILE).contains(&columns) =>
        {
            Ok(Some((rows, columns)))
        }
        _ => {
            let name = format!("quantization_config.{key}");
            Err(config.wrong(&name, size, &format!("two numbers from 1 to {MAX_TILE}")))
        }
    }
}

/// Maximum side of a tile that shares a scale.
const MAX_TILE: u64 = 1 << 20;

/// Returns the first of `architectures`; the text part's takes precedence.
pub(super) fn class(config: &Config) -> Result<Option<&str>, ConvertError> {
    let key = "architectures";
    let Some(value) = config.get(key) else { return Ok(None) };
    let Value::Array(classes) = value else {
        return Err(config.wrong(key, value, "an array of one name"));
    };
    match classes.first() {
        None => Ok(None),
        Some(Value::String(class)) => Ok(Some(class)),
        Some(other) => Err(config.wrong(&format!("{key}[0]"), other, "a name")),
    }
}

fn unknown(
    config: &Config,
    class: Option<&str>,
    model_type: Option<&str>,
    known: &[Architecture],
) -> ConvertError {
    let found = match (class, model_type) {
        (Some(class), Some(ty)) => {
            format!("architectures is \"{}\" (model_type \"{}\")", clipped(class), clipped(ty))
        }
        (Some(class), None) => format!("architectures is \"{}\"", clipped(class)),
        (None, Some(ty)) => format!("model_type is \"{}\"", clipped(ty)),
        (None, None) => "has neither architectures nor model_type".into(),
    };
    let mut known: Vec<_> = known.iter().map(|architecture| architecture.model_types[0]).collect();
    known.extend(encoder::model_types());
    known.dedup();
    config.error(format!(
        "{found}, and those that are known are of model_type {}. A new one needs two files that \
         describe it: one in crates/convert/src/import/arch (its keys and tensors), one in \
         crates/model/src/spec/arch (how it computes)",
        known.join(", ")
    ))
}

/// True if only quantised checkpoints have tensors with such a name.
pub(super) fn is_quantised(name: &str) -> bool {
    QUANTISED.iter().any(|end| name.ends_with(end)) || name.contains(".quant_state.")
}

/// The error about such a tensor.
pub(super) fn quantised_tensor(config: &Config, name: &str) -> ConvertError {
    config.error(format!(
        "tensor \"{}\" of the weights is of a quantised checkpoint (GPTQ, AWQ, FP8, bitsandbytes \
         …), which is not read: {ORIGINAL}",
        clipped(name)
    ))
}
