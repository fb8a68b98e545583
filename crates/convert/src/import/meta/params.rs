//! `params.json`: Meta's description of a network.
//!
//! Facts from the `params.json` of LLaMA 1 to 3.3 and the models' own code (`ModelArgs`).

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::ConvertError;
use crate::import::Request;
use crate::import::arch::config::shown;
use crate::import::arch::rope::llama3_factors;
use crate::import::find::Found;
use crate::import::side::SideFiles;
use crate::import::tensor::Entry;
use crate::import::tensor::Tensor;

/// The file.
pub(super) const FILE: &str = "params.json";
/// Maximum for every number; keeps products of two far below overflow.
const MAX_NUMBER: u64 = 1 << 24;
/// Factor for scaling the rotary embedding of Llama 3.1 and later (`use_scaled_rope`), with Meta's
/// own defaults.
const FACTOR: f64 = 8.0;
/// The factor of the small models (Llama 3.2), from their configurations at Hugging Face.
const FACTOR_OF_SMALL: f64 = 32.0;
/// Hidden sizes below this are small.
const SMALL: u64 = 4096;
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const ORIGINAL: f64 = 8192.0;

/// The numbers of a network, checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Params {
    pub(super) dim: u64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) layers: u64,
    pub(super) head_dim: u64,
    pub(super) hidden: u64,
    pub(super) vocab: u64,
    eps: f64,
    rope_theta: Option<f64>,
    /// The factor of the scaled rotary embedding, if there is one.
    scaled: Option<f64>,
}

impl Params {
    /// Reads the file next to the parts. `first` has the tensors of the first part; values missing from
    /// the file are derived from them.
    pub(super) fn read(
        side: &SideFiles,
        found: &Found,
        first: &HashMap<String, Tensor>,
    ) -> Result<Params, ConvertError> {
        let path = side.network.path(FILE);
        let Some(mut object) = side.network.json(FILE)? else {
            let problem = "does not exist: it belongs to consolidated.00.pth, and says how many heads \
                           and layers there are";
            return Err(ConvertError::Side { path, problem: problem.into() });
        };
        if let Some(Value::Object(model)) = object.remove("model") {
            object = model;
        }
        let file = File { path: &path, object: &object };
        if object.get("moe").is_some_and(|moe| !moe.is_null()) {
            return Err(file.wrong("moe: is a mixture of experts, for which there is no code yet"));
        }
        let parts = found.weights.len() as u64;
        let rows = |name: &str| first.get(name).and_then(|t| t.shape.first().copied());
        let columns = |name: &str| first.get(name).and_then(|t| t.shape.get(1).copied());
        let dim = file.number("dim")?.ok_or_else(|| file.missing("dim"))?;
        let heads = file.number("n_heads")?.ok_or_else(|| file.missing("n_heads"))?;
        let layers = file.number("n_layers")?.ok_or_else(|| file.missing("n_layers"))?;
        let (kv_heads, head_dim) = file.heads(dim, heads)?;
        let w1 = rows("layers.0.feed_forward.w1.weight");
        let hidden = w1.ok_or_else(|| missing_tensor(found, "layers.0.feed_forward.w1.weight"))?;
        // LLaMA 1 and 2 split the embedding by columns, 3 by rows.
        let name = "tok_embeddings.weight";
        let embedding = (rows(name), columns(name));
        let (Some(embedding), Some(width)) = embedding else {
            return Err(missing_tensor(found, name));
        };
        let vocab = if width == dim { embedding * parts } else { embedding };
        let eps = file.float("norm_eps")?.unwrap_or(1e-5);
        if !(0.0..1.0).contains(&eps) {
            return Err(file.wrong(&format!("norm_eps is {eps}, expected from 0 to below 1")));
        }
        let (rope_theta, scaled) = file.rope(dim)?;
        let params = Params {
            dim,
            heads,
            kv_heads,
            layers,
            head_dim,
            hidden: hidden * parts,
            vocab,
            eps,
            rope_theta,
            scaled,
        };
        match file.signed("vocab_size")? {
            Some(found) if found > 0 && found as u64 != params.vocab => Err(file.wrong(&format!(
                "vocab_size is {found}, but the parts have {} rows of the embedding: parts are missing, \
                 or belong to another model",
                params.vocab
            ))),
            _ => Ok(params),
        }
    }

    /// Returns the factors of the rotary frequencies, `[head_dim / 2]`, if they are scaled.
    pub(super) fn rope_factors(&self) -> Option<Vec<f32>> {
        let base = self.rope_theta.unwrap_or(10_000.0);
        let factors = |factor| llama3_factors(base, self.head_dim, factor, (LOW, HIGH), ORIGINAL);
        self.scaled.map(factors)
    }

    /// The metadata of the network.
    pub(super) fn keys(
        &self,
        request: Request<'_>,
        notes: &mut Vec<String>,
    ) -> Vec<(String, Entry)> {
        let context = request.context.unwrap_or_else(|| {
            let (context, which) = self.context();
            notes.push(format!(
                "the files do not say for how many positions the model was trained: taken are {context}, as \
                 {which} has; --context says otherwise"
            ));
            context
        });
        let eps = request.eps.unwrap_or(self.eps as f32);
        let number = |key: &str, value: u64| {
            // Checked to be small.
            (format!("llama.{key}"), Entry::U32(u32::try_from(value).unwrap_or(u32::MAX)))
        };
        let mut keys = vec![
            number("vocab_size", self.vocab),
            ("llama.context_length".into(), Entry::U32(context)),
            number("embedding_length", self.dim),
            number("block_count", self.layers),
            number("feed_forward_length", self.hidden),
            number("rope.dimension_count", self.head_dim),
            number("attention.head_count", self.heads),
            number("attention.head_count_kv", self.kv_heads),
        ];
        if self.head_dim * self.heads != self.dim {
            keys.push(number("attention.key_length", self.head_dim));
            keys.push(number("attention.value_length", self.head_dim));
        }
        let base = self.rope_theta.unwrap_or(10_000.0) as f32;
        keys.push(("llama.attention.layer_norm_rms_epsilon".into(), Entry::F32(eps)));
        keys.push(("llama.rope.freq_base".into(), Entry::F32(base)));
        keys
    }

    /// Returns the context of the model that has these numbers, and its name.
    fn context(&self) -> (u32, &'static str) {
        match self.rope_theta {
            Some(_) if self.scaled.is_some() => (131_072, "Llama 3.1"),
            Some(base) if base >= 1e6 => (16_384, "Code Llama"),
            Some(base) if base >= 5e5 => (8192, "Llama 3"),
            _ if self.eps > 5e-6 => (4096, "LLaMA 2"),
            _ => (2048, "LLaMA 1"),
        }
    }
}

fn missing_tensor(found: &Found, name: &str) -> ConvertError {
    let path = found.weights.first().cloned().unwrap_or_default();
    let problem = format!("has no matrix \"{name}\", which all of Meta's models have");
    ConvertError::Source { path, problem }
}

/// The file, and its values by name.
struct File<'f> {
    path: &'f std::path::Path,
    object: &'f Map<String, Value>,
}

impl File<'_> {
    fn wrong(&self, problem: &str) -> ConvertError {
        ConvertError::Side { path: self.path.into(), problem: problem.into() }
    }

    fn missing(&self, key: &str) -> ConvertError {
        self.wrong(&format!("{key} is missing"))
    }

    /// The error for a value that is not the `expected` one.
    fn no(&self, key: &str, value: &Value, expected: &str) -> ConvertError {
        self.wrong(&format!("{key} is {}, expected {expected}", shown(value)))
    }

    /// Returns the number of key/value heads, and the elements of a head.
    fn heads(&self, dim: u64, heads: u64) -> Result<(u64, u64), ConvertError> {
        let kv_heads = self.number("n_kv_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let problem =
                format!("n_kv_heads is {kv_heads}, expected a divisor of the {heads} heads");
            return Err(self.wrong(&problem));
        }
        let head_dim = match self.number("head_dim")? {
            Some(head_dim) => head_dim,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => {
                let problem = format!("n_heads is {heads}, expected a divisor of dim, {dim}");
                return Err(self.wrong(&problem));
            }
        };
        match head_dim.is_multiple_of(2) {
            true => Ok((kv_heads, head_dim)),
            false => {
                let problem = format!("heads have {head_dim} elements, expected an even number");
                Err(self.wrong(&problem))
            }
        }
    }

    /// Returns the base of the rotary embedding, if the file gives it, and the factor of its scaling, if it
    /// is scaled.
    fn rope(&self, dim: u64) -> Result<(Option<f64>, Option<f64>), ConvertError> {
        let base = self.float("rope_theta")?;
        if base.is_some_and(|base| !(1.0..1e30).contains(&base)) {
            return Err(self.wrong("rope_theta: expected from 1 to 1e30"));
        }
        let scaled = self.object.get("use_scaled_rope").and_then(Value::as_bool).unwrap_or(false);
        let usual = if dim < SMALL { FACTOR_OF_SMALL } else { FACTOR };
        let factor = self.float("rope_scaling_factor")?.unwrap_or(usual);
        match (1.0..1e6).contains(&factor) {
            true => Ok((base, scaled.then_some(factor))),
            false => Err(self.wrong("rope_scaling_factor: expected from 1 to 1e6")),
        }
    }

    /// A whole number of at least 1.
    fn number(&self, key: &str) -> Result<Option<u64>, ConvertError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if (1..=MAX_NUMBER).contains(&number) => Ok(Some(number)),
                _ => Err(self.no(key, value, &format!("from 1 to {MAX_NUMBER}"))),
            },
        }
    }

    fn signed(&self, key: &str) -> Result<Option<i64>, ConvertError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_i64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.no(key, value, "a whole number")),
            },
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ConvertError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.no(key, value, "a number")),
            },
        }
    }
}
