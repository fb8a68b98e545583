//! LoRA adapters as GGUF files: what llama.cpp's converter writes, and what Alight adds so that nothing of a PEFT folder is lost.
//!
//! An adapter changes tensors of a base model. A name is that of the base's tensor (`blk.0.attn_q.weight`) with one of these suffixes:
//!
//! ```text
//! NAME.lora_a          [in, r]      or [in, r, experts]    y = W x + s · B (A x), s = scale · alpha / r (alpha 0 or absent: scale)
//! NAME.lora_b          [r, out]     or [r, out, experts]
//! NAME.lora_bias       [out]        F32: added to B (A x), so times s
//! NAME.lora_magnitude  [out]        F32 (DoRA): y = g ⊙ (W x + s · B (A x)), g = m / ‖W + t · B A‖ of each row, t = alpha / r
//! NAME.lora_delta      as NAME      F32: added to a vector of the base (a bias), times scale
//! NAME.lora_override   as NAME      in place of the base's tensor
//! ```
//!
//! The first two are llama.cpp's. The embedding (`token_embd.weight`) has its factors the other way round: A is `[r, vocabulary]`, B is
//! `[r, hidden]`, and the row of a token is W's plus `s · B a`.
//!
//! [`AdapterFile::read`] checks what can be known without the base: that it is an adapter of this kind, that nothing in it is unknown, that every
//! tensor has its counterpart, their shapes fit each other, and all numbers are within limits. The caller, who has the base,
//! checks that it has the tensors.

use std::collections::BTreeMap;

use alight_types::GgmlType;
use thiserror::Error;

use crate::gguf::{Gguf, GgufError, TensorInfo, Value};
use crate::text::shown;

/// Maximum rank. The largest that people train is 256.
pub const MAX_RANK: u64 = 4096;
/// The name of the embedding, whose factors are stored differently.
pub const EMBEDDING: &str = "token_embd.weight";
/// Names of tensors that are rows of another one, in its order, where a file has that instead of them.
pub const JOINED: [(&str, &[&str]); 2] = [
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_gate_up_exps", &["ffn_gate_exps", "ffn_up_exps"]),
];
/// Begins the keys of adapters.
const KEYS: &str = "adapter.";

/// The suffixes of names of tensors.
pub mod suffix {
    /// The first factor.
    pub const A: &str = ".lora_a";
    /// The second factor.
    pub const B: &str = ".lora_b";
    /// The bias of the second factor.
    pub const BIAS: &str = ".lora_bias";
    /// DoRA's magnitudes.
    pub const MAGNITUDE: &str = ".lora_magnitude";
    /// Numbers that are added to a vector.
    pub const DELTA: &str = ".lora_delta";
    /// A tensor that replaces one.
    pub const OVERRIDE: &str = ".lora_override";
}

/// The keys of a GGUF adapter.
pub mod key {
    /// `adapter` for adapters.
    pub const TYPE: &str = "general.type";
    /// The base's architecture.
    pub const ARCHITECTURE: &str = "general.architecture";
    /// `lora`.
    pub const KIND: &str = "adapter.type";
    /// The numerator of the scale.
    pub const ALPHA: &str = "adapter.lora.alpha";
    /// The task that it was trained for.
    pub const TASK_NAME: &str = "adapter.lora.task_name";
    /// Text that the caller should put before prompts.
    pub const PROMPT_PREFIX: &str = "adapter.lora.prompt_prefix";
    /// The tokens from which on an activated adapter acts.
    pub const INVOCATION_TOKENS: &str = "adapter.alora.invocation_tokens";
}

/// A LoRA adapter: what it says about itself, and which tensors of its base it changes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile<'a> {
    /// The architecture of its base.
    pub architecture: &'a str,
    /// The numerator of its scale; 0 if it has none.
    pub alpha: f32,
    /// The task that it was trained for.
    pub task_name: Option<&'a str>,
    /// Text that the caller should put before prompts.
    pub prompt_prefix: Option<&'a str>,
    /// The tokens from whose last occurrence in a prompt on it acts, if it is an activated one; at least one.
    pub invocation_tokens: Option<Vec<u32>>,
    /// By the name of the base's tensor.
    pub changes: BTreeMap<&'a str, TensorChange<'a>>,
}

/// A change of a tensor of the base.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorChange<'a> {
    /// Adds a product of low rank to a matrix, or to each of a stack of matrices.
    LowRank(Box<LowRankFactors<'a>>),
    /// Adds numbers to a vector: `[len]`, F32.
    Delta(TensorInfo<'a>),
    /// Replaces a tensor.
    Override(TensorInfo<'a>),
}

/// The factors of a product of low rank.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankFactors<'a> {
    /// `[in, r]`, or `[in, r, experts]`; that of the embedding is `[r, vocabulary]`.
    pub a: TensorInfo<'a>,
    /// `[r, out]`, or `[r, out, experts]`.
    pub b: TensorInfo<'a>,
    /// 1 to [`MAX_RANK`].
    pub rank: u64,
    /// `[out]`, F32: added to the product with B.
    pub bias: Option<TensorInfo<'a>>,
    /// `[out]`, F32: the norms of the rows of the changed matrix (DoRA).
    pub magnitude: Option<TensorInfo<'a>>,
}

impl LowRankFactors<'_> {
    /// Returns true if the name is that of the embedding, whose A is `[r, vocabulary]` and whose B is `[r, hidden]`.
    pub fn is_embedding(base: &str) -> bool {
        base == EMBEDDING
    }

    /// Returns the number of matrices of a stack; 1 for a matrix.
    pub fn experts(&self) -> u64 {
        self.a.ne[2]
    }

    /// Returns the base's extents, innermost first: `[in, out]`.
    pub fn base_extents(&self, base: &str) -> [u64; 2] {
        match Self::is_embedding(base) {
            true => [self.b.ne[1], self.a.ne[1]],
            false => [self.a.ne[0], self.b.ne[1]],
        }
    }

    /// See [`factor`].
    pub fn scale(&self, alpha: f32, scale: f32) -> f32 {
        factor(alpha, self.rank as usize, scale)
    }
}

/// Returns the factor on a product of low rank: the caller's `scale` times alpha / rank; the caller's alone if there is no alpha.
pub fn factor(alpha: f32, rank: usize, scale: f32) -> f32 {
    match alpha {
        0.0 => scale,
        alpha => scale * alpha / rank as f32,
    }
}

/// Why a file is not an adapter that can be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum AdapterError {
    #[error(transparent)]
    Gguf(#[from] GgufError),

    #[error(
        "metadata \"general.type\" is {}, expected \"adapter\": the file is not an adapter, but a model",
        found.as_ref().map_or("missing".into(), |found| shown(found.as_bytes()))
    )]
    NotAdapter { found: Option<Box<str>> },

    #[error("metadata \"adapter.type\" is {}, expected \"lora\", the only kind of adapter that is supported", shown(.found.as_bytes()))]
    Kind { found: Box<str> },

    #[error("metadata {} is not known, and may change what the adapter computes", shown(.key.as_bytes()))]
    UnknownKey { key: Box<str> },

    #[error("metadata \"adapter.lora.alpha\" is {found}, expected a finite number")]
    Alpha { found: f32 },

    #[error(
        "metadata \"adapter.alora.invocation_tokens\" {found}, expected an array of at least one u32"
    )]
    Invocation { found: String },

    #[error("the adapter has no tensors")]
    Empty,

    #[error(
        "tensor {} has none of the suffixes of adapters' tensors (.lora_a, .lora_b, .lora_bias, .lora_magnitude, .lora_delta, \
         .lora_override), so it would not be applied",
        shown(.name.as_bytes())
    )]
    Suffix { name: Box<str> },

    #[error("tensor {} is there without {expected}: half of an adapter", shown(.name.as_bytes()))]
    Lone { name: Box<str>, expected: &'static str },

    #[error("tensor {} is there together with {}: a tensor is changed in one way", shown(.name.as_bytes()), shown(.other.as_bytes()))]
    TwoWays { name: Box<str>, other: Box<str> },

    #[error("tensor {} is of type {found}, expected {expected}", shown(.name.as_bytes()))]
    Type { name: Box<str>, found: &'static str, expected: &'static str },

    #[error("tensor {} has the shape {found:?}, expected {expected}", shown(.name.as_bytes()))]
    Shape { name: Box<str>, found: Vec<u64>, expected: String },

    #[error(
        "tensor {} is for an embedding or a stack of experts: only a matrix may have a bias or magnitudes in an adapter",
        shown(.name.as_bytes())
    )]
    OfMatrices { name: Box<str> },

    #[error("tensor {} is of rank {found}, expected 1 to {MAX_RANK}", shown(.name.as_bytes()))]
    Rank { name: Box<str>, found: u64 },
}

/// The tensors for one tensor of the base.
#[derive(Default)]
struct Parts<'a> {
    a: Option<TensorInfo<'a>>,
    b: Option<TensorInfo<'a>>,
    bias: Option<TensorInfo<'a>>,
    magnitude: Option<TensorInfo<'a>>,
    delta: Option<TensorInfo<'a>>,
    replacement: Option<TensorInfo<'a>>,
}

impl<'a> AdapterFile<'a> {
    /// Returns true if the file says that it is an adapter.
    pub fn is_adapter(gguf: &Gguf<'_>) -> bool {
        gguf.get(key::TYPE).and_then(Value::as_str) == Some("adapter")
    }

    /// Reads the header of an adapter.
    ///
    /// # Errors
    /// [`AdapterError`] has a variant for each way in which one can be wrong.
    pub fn read(gguf: &Gguf<'a>) -> Result<AdapterFile<'a>, AdapterError> {
        if !Self::is_adapter(gguf) {
            let found = gguf.get_str(key::TYPE)?.map(Into::into);
            return Err(AdapterError::NotAdapter { found });
        }
        let kind: &str = gguf.require(key::KIND)?;
        if kind != "lora" {
            return Err(AdapterError::Kind { found: kind.into() });
        }
        let known =
            [key::KIND, key::ALPHA, key::TASK_NAME, key::PROMPT_PREFIX, key::INVOCATION_TOKENS];
        let keys = gguf.metadata.iter().map(|(key, _)| *key);
        if let Some(key) = keys.filter(|key| key.starts_with(KEYS)).find(|key| !known.contains(key))
        {
            return Err(AdapterError::UnknownKey { key: key.into() });
        }
        let alpha = gguf.get_f32(key::ALPHA)?.unwrap_or(0.0);
        if !alpha.is_finite() {
            return Err(AdapterError::Alpha { found: alpha });
        }
        Ok(AdapterFile {
            architecture: gguf.require(key::ARCHITECTURE)?,
            alpha,
            task_name: gguf.get_str(key::TASK_NAME)?,
            prompt_prefix: gguf.get_str(key::PROMPT_PREFIX)?,
            invocation_tokens: invocation_tokens(gguf)?,
            changes: changes(gguf)?,
        })
    }
}

fn invocation_tokens(gguf: &Gguf<'_>) -> Result<Option<Vec<u32>>, AdapterError> {
    let Some(value) = gguf.get(key::INVOCATION_TOKENS) else { return Ok(None) };
    let found = |found: String| Err(AdapterError::Invocation { found });
    let Value::Array(array) = value else {
        return found(format!("is of type {}", value.value_type()));
    };
    match array.iter_u32() {
        None => found(format!("is an array of {}", array.elem_type())),
        Some(tokens) if tokens.len() == 0 => found("is empty".into()),
        Some(tokens) => Ok(Some(tokens.collect())),
    }
}

/// Sorts the tensors by what they change, and checks what belongs together.
fn changes<'a>(gguf: &Gguf<'a>) -> Result<BTreeMap<&'a str, TensorChange<'a>>, AdapterError> {
    if gguf.tensors.is_empty() {
        return Err(AdapterError::Empty);
    }
    let mut all = BTreeMap::<&str, Parts<'a>>::new();
    for info in &gguf.tensors {
        let wrong = || AdapterError::Suffix { name: info.name.into() };
        let at = info.name.rfind(".lora_").ok_or_else(wrong)?;
        let (base, suffix) = info.name.split_at(at);
        if base.is_empty() || base.contains(".lora_") {
            return Err(wrong());
        }
        let parts = all.entry(base).or_default();
        let place = match suffix {
            suffix::A => &mut parts.a,
            suffix::B => &mut parts.b,
            suffix::BIAS => &mut parts.bias,
            suffix::MAGNITUDE => &mut parts.magnitude,
            suffix::DELTA => &mut parts.delta,
            suffix::OVERRIDE => &mut parts.replacement,
            _ => return Err(wrong()),
        };
        // Names are unique.
        *place = Some(*info);
    }
    all.into_iter().map(|(base, parts)| Ok((base, parts.change(base)?))).collect()
}

impl<'a> Parts<'a> {
    fn change(self, base: &str) -> Result<TensorChange<'a>, AdapterError> {
        let Parts { a, b, bias, magnitude, delta, replacement } = self;
        let low_rank = [a, b, bias, magnitude].into_iter().flatten().next();
        let mut ways = [low_rank, delta, replacement].into_iter().flatten();
        if let (Some(one), Some(other)) = (ways.next(), ways.next()) {
            let [name, other] = [one.name.into(), other.name.into()];
            return Err(AdapterError::TwoWays { name, other });
        }
        if let Some(info) = delta {
            check_vector(&info, None)?;
            return Ok(TensorChange::Delta(info));
        }
        if let Some(info) = replacement {
            check_not_packed(&info)?;
            return Ok(TensorChange::Override(info));
        }
        let lone = |info: Option<TensorInfo<'_>>, expected| {
            let name = info.map_or(base, |info| info.name).into();
            AdapterError::Lone { name, expected }
        };
        let Some(a) = a else { return Err(lone(b.or(bias).or(magnitude), "its .lora_a")) };
        let Some(b) = b else { return Err(lone(Some(a), "its .lora_b")) };
        let factors = LowRankFactors { a, b, rank: b.ne[0], bias, magnitude };
        factors.check(base)?;
        Ok(TensorChange::LowRank(Box::new(factors)))
    }
}

impl LowRankFactors<'_> {
    fn check(&self, base: &str) -> Result<(), AdapterError> {
        let LowRankFactors { a, b, rank, bias, magnitude } = self;
        let rank = *rank;
        for info in [a, b] {
            check_not_packed(info)?;
            let (name, found) = (info.name.into(), info.ty.name());
            if !matches!(info.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::Q8_0) {
                let expected = "F32, F16, BF16 or Q8_0";
                return Err(AdapterError::Type { name, found, expected });
            }
            if info.ne[3] != 1 {
                return Err(wrong_shape(info, "a matrix, or a stack of them".into()));
            }
        }
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(AdapterError::Rank { name: b.name.into(), found: rank });
        }
        let embedding = Self::is_embedding(base);
        let found = if embedding { a.ne[0] } else { a.ne[1] };
        if found != rank {
            let expected = match embedding {
                true => format!("[{rank}, vocabulary]"),
                false => format!("[columns, {rank}]"),
            };
            let of = "by the rank of its .lora_b";
            return Err(wrong_shape(a, format!("{expected} {of}")));
        }
        if a.ne[2] != b.ne[2] || embedding && a.ne[2] != 1 {
            return Err(wrong_shape(a, format!("{} matrices, as its .lora_b", b.ne[2])));
        }
        for info in [bias, magnitude].into_iter().flatten() {
            if embedding || b.ne[2] != 1 {
                return Err(AdapterError::OfMatrices { name: info.name.into() });
            }
            check_vector(info, Some(b.ne[1]))?;
        }
        Ok(())
    }
}

fn check_not_packed(info: &TensorInfo<'_>) -> Result<(), AdapterError> {
    match info.packed {
        None => Ok(()),
        Some(_) => Err(AdapterError::Type {
            name: info.name.into(),
            found: "packed",
            expected: "a type that is not packed",
        }),
    }
}

/// Checks a vector of F32.
fn check_vector(info: &TensorInfo<'_>, len: Option<u64>) -> Result<(), AdapterError> {
    if info.ty != GgmlType::F32 || info.packed.is_some() {
        let (name, found) = (info.name.into(), info.ty.name());
        return Err(AdapterError::Type { name, found, expected: "F32" });
    }
    let len = len.unwrap_or(info.ne[0]);
    if info.ne != [len, 1, 1, 1] {
        return Err(wrong_shape(info, format!("[{len}]")));
    }
    Ok(())
}

fn wrong_shape(info: &TensorInfo<'_>, expected: String) -> AdapterError {
    AdapterError::Shape { name: info.name.into(), found: info.shape().to_vec(), expected }
}
