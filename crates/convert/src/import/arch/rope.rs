//! Rotary positions: their base and scaling, from the configuration's old form (`rope_theta`,
//! `rope_scaling`, `rope_local_base_freq`) and the newer one (`rope_parameters`, which may have one
//! set for each type of layer).

use std::f32::consts::TAU;
use std::ops::Range;

use serde_json::{Map, Value};

use super::config::{Config, shown, whole};
use super::describe::{Defaults, Own};
use super::dimensions::MAX_CONTEXT;
use crate::ConvertError;
use crate::import::tensor::Entry;

/// The limits of the program that runs the model.
const THETA: Range<f64> = 1.0..1e30;
const FACTOR: Range<f64> = 1e-6..1e9;

/// The scaling of Gemma 4's layers without a window.
pub(super) const PROPORTIONAL: &str = "proportional";
/// The factor of a pair that does not rotate, as all programs write it.
const STILL: f32 = 1e30;

/// The rotary embedding of positions.
#[derive(Debug, PartialEq)]
pub(super) struct Rope {
    theta: f64,
    /// Base of the layers with a sliding window.
    local_theta: Option<f64>,
    /// The share of a head that rotates.
    partial: f64,
    scaling: Scaling,
}

#[derive(Debug, PartialEq)]
enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Dynamic,
    Yarn {
        factor: f64,
        original: u64,
        rest: Vec<(&'static str, f64)>,
        rounded: bool,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: u64,
    },
    /// Only this share of the pairs rotates, with frequencies divided by the factor; they are
    /// numbered as if all rotated.
    Proportional {
        share: f64,
        factor: f64,
    },
    /// Factors of pairs for long contexts and for short ones, and the factor of cosines and sines.
    Long {
        factors: [Vec<f32>; 2],
        magnitude: f64,
    },
}

/// The optional numbers of YaRN: in the configuration, in GGUF.
const YARN: [(&[&str], &str); 4] = [
    (&["extrapolation_factor"], "rope.scaling.yarn_ext_factor"),
    (&["attention_factor", "attn_factor"], "rope.scaling.yarn_attn_factor"),
    (&["beta_fast"], "rope.scaling.yarn_beta_fast"),
    (&["beta_slow"], "rope.scaling.yarn_beta_slow"),
];

impl Rope {
    /// Reads it; `context` is the context that the model was trained for.
    ///
    /// # Errors
    /// An impossible number, or a kind of scaling that GGUF does not have.
    pub(super) fn read(
        config: &Config,
        defaults: &Defaults,
        context: u64,
    ) -> Result<Rope, ConvertError> {
        let set = Set::read(config)?;
        let theta = set.number("rope_theta", THETA)?;
        let theta = theta.or(config.number("rope_theta", THETA)?).unwrap_or(defaults.theta);
        let local = local(config, &set)?.or(defaults.local_theta);
        let local_theta = local.filter(|local| defaults.local_theta.is_some() || *local != theta);
        let partial = set.number("partial_rotary_factor", 0.0..1e9)?;
        let partial = partial.or(config.number("partial_rotary_factor", 0.0..1e9)?);
        let is_proportional = set.kind()? == PROPORTIONAL;
        let is_strange = |partial: &f64| *partial != 1.0 && defaults.partial.is_none();
        let partial_if_any = partial.filter(|partial| is_strange(partial) && !is_proportional);
        if let Some(partial) = partial_if_any {
            let expected = "1: a head that rotates in part is of another architecture";
            return Err(config.wrong("partial_rotary_factor", &partial.into(), expected));
        }
        let factor = || set.required("factor", FACTOR);
        let scaling = match set.kind()? {
            "default" => Scaling::None,
            "linear" => Scaling::Linear { factor: factor()? },
            PROPORTIONAL if defaults.scalings.contains(&PROPORTIONAL) => {
                let share = partial.unwrap_or(1.0);
                if share > 1.0 {
                    let name = set.name("partial_rotary_factor");
                    return Err(config.wrong(&name, &share.into(), "at most 1"));
                }
                let factor = set.number("factor", FACTOR)?.unwrap_or(1.0);
                Scaling::Proportional { share, factor }
            }
            "dynamic" => Scaling::Dynamic,
            "yarn" => {
                let mut rest = Vec::new();
                for (names, gguf) in YARN {
                    for name in names {
                        if let Some(value) = set.number(name, 1e-6..1e6)? {
                            rest.push((gguf, value));
                            break;
                        }
                    }
                }
                let rounded = set.find("truncate").is_none_or(|(_, value)| *value != false);
                let original = set.original(context)?;
                Scaling::Yarn { factor: factor()?, original, rest, rounded }
            }
            "llama3" => {
                let low = set.required("low_freq_factor", FACTOR)?;
                let high = set.required("high_freq_factor", FACTOR)?;
                // Llama 4 Scout has both equal: there is nothing in between.
                if high < low {
                    let name = set.name("high_freq_factor");
                    let expected = format!("at least low_freq_factor, {low}");
                    return Err(config.wrong(&name, &high.into(), &expected));
                }
                Scaling::Llama3 { factor: factor()?, low, high, original: set.original(context)? }
            }
            // "su" was its original name.
            kind @ ("longrope" | "su") if defaults.scalings.contains(&kind) => {
                let original = set.original(context)? as f64;
                let stretched = context as f64 / original;
                let usual = match stretched > 1.0 && original > 1.0 {
                    true => (1.0 + libm::log(stretched) / libm::log(original)).sqrt(),
                    false => 1.0,
                };
                let magnitude = set.number("attention_factor", FACTOR)?.unwrap_or(usual);
                let factors = [set.factors("long_factor")?, set.factors("short_factor")?];
                Scaling::Long { factors, magnitude }
            }
            other => {
                let expected = "one of default, linear, dynamic, yarn, llama3";
                return Err(config.wrong(&set.name("rope_type"), &other.into(), expected));
            }
        };
        let partial = partial.or(defaults.partial).unwrap_or(1.0);
        Ok(Rope { theta, local_theta, partial, scaling })
    }

    /// Returns the number of elements of a head of `head` that rotate.
    pub(super) fn rotated(&self, head: u64) -> u64 {
        (head as f64 * self.partial) as u64
    }

    /// Writes the keys.
    pub(super) fn keys(&self, own: &mut Own) {
        let mut scaling = |kind: &str, factor: f64| {
            own.add("rope.scaling.type", Entry::Str(kind.into()));
            own.add("rope.scaling.factor", Entry::F32(factor as f32));
        };
        match &self.scaling {
            // Their factors are a tensor.
            Scaling::None | Scaling::Llama3 { .. } | Scaling::Proportional { .. } => {}
            Scaling::Dynamic => own.notes.push(
                "dynamic RoPE scaling is left out, as GGUF has no key for it: it changes only \
                 contexts that are longer than the model was made for"
                    .into(),
            ),
            Scaling::Linear { factor } => scaling("linear", *factor),
            Scaling::Long { magnitude, .. } => {
                own.add("rope.scaling.attn_factor", Entry::F32(*magnitude as f32));
            }
            Scaling::Yarn { factor, original, rest, rounded } => {
                scaling("yarn", *factor);
                own.add("rope.scaling.original_context_length", Entry::U32(*original as u32));
                for (key, value) in rest {
                    own.add(key, Entry::F32(*value as f32));
                }
                if !rounded {
                    own.notes.push(
                        "YaRN is not rounded to whole pairs in the original (truncate false), for which GGUF has \
                         no word: programs that round it give answers that differ a little"
                            .into(),
                    );
                }
            }
        }
        own.add("rope.freq_base", Entry::F32(self.theta as f32));
        if let Some(local) = self.local_theta {
            own.add("rope.freq_base_swa", Entry::F32(local as f32));
        }
    }

    /// Returns the divisors of the frequencies of all pairs of a head of `head` elements, `[pairs]`, with the names of
    /// these tensors: one for the scaling of Llama 3 or of Gemma 4, one for long and one for short contexts if there are
    /// factors for both.
    ///
    /// # Errors
    /// The number of factors differs from the number of pairs.
    pub(super) fn factors(
        &self,
        config: &Config,
        head: u64,
    ) -> Result<Vec<(&'static str, Vec<f32>)>, ConvertError> {
        match &self.scaling {
            Scaling::Llama3 { factor, low, high, original } => {
                let original = *original as f64;
                let factors = llama3_factors(self.theta, head, *factor, (*low, *high), original);
                Ok(vec![("rope_freqs.weight", factors)])
            }
            Scaling::Proportional { share, factor } => {
                let pairs = head / 2;
                let rotated = (share * head as f64) as u64 / 2;
                let factor = |pair| if pair < rotated { *factor as f32 } else { STILL };
                Ok(vec![("rope_freqs.weight", (0..pairs).map(factor).collect())])
            }
            Scaling::Long { factors: [long, short], .. } => {
                let pairs = self.rotated(head) / 2;
                for (key, factors) in [("long_factor", long), ("short_factor", short)] {
                    if factors.len() as u64 != pairs {
                        let found = factors.len();
                        return Err(config.error(format!(
                            "{key} has {found} factors, expected {pairs}, one for each pair that rotates"
                        )));
                    }
                }
                Ok(vec![
                    ("rope_factors_long.weight", long.clone()),
                    ("rope_factors_short.weight", short.clone()),
                ])
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Llama 3's scaling, `[head / 2]`: long waves (more than `original / low` tokens) are stretched by the
/// factor, short ones (fewer than `original / high`) are unchanged, with a smooth transition in
/// between. Computed in f32 and in torch's order of operations, so that the numbers equal the
/// original's.
pub(crate) fn llama3_factors(
    theta: f64,
    head: u64,
    factor: f64,
    (low, high): (f64, f64),
    original: f64,
) -> Vec<f32> {
    let (longest, shortest) = ((original / low) as f32, (original / high) as f32);
    let pair = |pair: u64| {
        let exponent = (2 * pair) as f32 / head as f32;
        let frequency = 1.0 / libm::pow(f64::from(theta as f32), exponent.into()) as f32;
        let wave = 1.0 / frequency * TAU;
        if wave < shortest || wave == longest && low == high {
            1.0
        } else if wave > longest {
            factor as f32
        } else {
            let smooth = (1.0 / wave * original as f32 - low as f32) / (high - low) as f32;
            1.0 / ((1.0 - smooth) / factor as f32 + smooth)
        }
    };
    (0..head / 2).map(pair).collect()
}

/// Returns the base of the layers with a sliding window, if the configuration has one.
fn local(config: &Config, set: &Set<'_>) -> Result<Option<f64>, ConvertError> {
    let name = "rope_parameters.sliding_attention";
    let Some(value) = set.nested.and_then(|sets| sets.get("sliding_attention")) else {
        return config.number("rope_local_base_freq", THETA);
    };
    let own = match value {
        Value::Null => return config.number("rope_local_base_freq", THETA),
        Value::Object(own) => own,
        other => return Err(config.wrong(name, other, "an object")),
    };
    let kind = own.get("rope_type").or_else(|| own.get("type"));
    if let Some(kind) = kind.filter(|kind| *kind != "default") {
        let expected = "\"default\": GGUF stretches only the global layers";
        return Err(config.wrong(&format!("{name}.rope_type"), kind, expected));
    }
    match own.get("rope_theta").filter(|theta| !theta.is_null()) {
        None => config.number("rope_local_base_freq", THETA),
        Some(theta) => config.in_range(&format!("{name}.rope_theta"), theta, THETA).map(Some),
    }
}

/// The objects with parameters of the (global) layers, in order of precedence.
struct Set<'c> {
    config: &'c Config,
    objects: Vec<(&'static str, &'c Map<String, Value>)>,
    /// The newer form with a set for each type of layer.
    nested: Option<&'c Map<String, Value>>,
}

impl<'c> Set<'c> {
    fn read(config: &'c Config) -> Result<Set<'c>, ConvertError> {
        let mut objects = Vec::new();
        if let Some(scaling) = config.object("rope_scaling")? {
            objects.push(("rope_scaling", scaling));
        }
        let parameters = config.object("rope_parameters")?;
        let is_nested = |sets: &&Map<String, Value>| {
            sets.contains_key("full_attention") || sets.contains_key("sliding_attention")
        };
        let nested = parameters.filter(is_nested);
        match (nested.and_then(|sets| sets.get("full_attention")), parameters) {
            (Some(Value::Object(full)), _) => {
                objects.push(("rope_parameters.full_attention", full));
            }
            (Some(Value::Null), _) | (None, None) => {}
            (Some(other), _) => {
                return Err(config.wrong("rope_parameters.full_attention", other, "an object"));
            }
            (None, Some(_)) if nested.is_some() => {}
            (None, Some(flat)) => objects.push(("rope_parameters", flat)),
        }
        Ok(Set { config, objects, nested })
    }

    fn find(&self, key: &str) -> Option<(&'static str, &'c Value)> {
        let value = |(name, object): &(&'static str, &'c Map<String, Value>)| {
            object.get(key).filter(|value| !value.is_null()).map(|value| (*name, value))
        };
        self.objects.iter().find_map(value)
    }

    /// Returns the name of a key for messages: its actual or expected location.
    fn name(&self, key: &str) -> String {
        let first = self.objects.first().map_or("rope_parameters", |(name, _)| name);
        format!("{}.{key}", self.find(key).map_or(first, |(name, _)| name))
    }

    fn number(&self, key: &str, range: Range<f64>) -> Result<Option<f64>, ConvertError> {
        let Some((name, value)) = self.find(key) else { return Ok(None) };
        self.config.in_range(&format!("{name}.{key}"), value, range).map(Some)
    }

    /// Reads a list of factors, which must be present.
    fn factors(&self, key: &str) -> Result<Vec<f32>, ConvertError> {
        let name = self.name(key);
        let missing = || self.config.error(format!("{name} is missing, and \"longrope\" needs it"));
        let (_, value) = self.find(key).ok_or_else(missing)?;
        let wrong = || self.config.wrong(&name, value, "an array of numbers");
        let factors = value.as_array().ok_or_else(wrong)?.iter();
        let factor = |value| self.config.in_range(&name, value, FACTOR).map(|factor| factor as f32);
        factors.map(factor).collect()
    }

    fn required(&self, key: &str, range: Range<f64>) -> Result<f64, ConvertError> {
        let missing = || {
            let kind = self.kind().unwrap_or_default();
            self.config.error(format!("{} is missing, and \"{kind}\" needs it", self.name(key)))
        };
        self.number(key, range)?.ok_or_else(missing)
    }

    /// Returns `rope_type`, or `type` as it was called originally.
    fn kind(&self) -> Result<&'c str, ConvertError> {
        let Some((name, value)) = self.find("rope_type").or_else(|| self.find("type")) else {
            return Ok("default");
        };
        let wrong = || self.config.wrong(&format!("{name}.rope_type"), value, "a string");
        value.as_str().ok_or_else(wrong)
    }

    /// Returns the context before scaling.
    fn original(&self, context: u64) -> Result<u64, ConvertError> {
        let key = "original_max_position_embeddings";
        let Some((name, value)) = self.find(key) else {
            return Ok(self.config.count(key, MAX_CONTEXT)?.unwrap_or(context));
        };
        whole(value).filter(|found| (1..=MAX_CONTEXT).contains(found)).ok_or_else(|| {
            let found = shown(value);
            self.config.error(format!("{name}.{key} is {found}, expected 1 to {MAX_CONTEXT}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_that_torch_computes_to_the_last_bit() {
        // Base, length of a head, factor, low, high, original; torch's results: the number of
        // values between the ends, and the sum of all bits times their position.
        for (theta, head, factor, low, high, original, between, sum) in [
            (500_000.0, 64, 8.0, 1.0, 4.0, 8192, 3, 0x85_3435_431au64),
            (500_000.0, 128, 8.0, 1.0, 4.0, 8192, 6, 0x20c_e8f2_90a8),
            (500_000.0, 64, 32.0, 1.0, 4.0, 8192, 3, 0x86_a493_ec3b),
            (1_000_000.0, 96, 16.0, 1.3, 7.7, 4097, 6, 0x12b_4d65_73a4),
            (10_000.0, 1024, 3.3, 0.7, 50.0, 2047, 237, 0x80af_ceda_95c4),
            (500_000.0, 256, 1.7, 1.0, 3.0, 511, 10, 0x80a_2476_7566),
        ] {
            let factors = llama3_factors(theta, head, factor, (low, high), original.into());
            let inside = |f: &&f32| **f != 1.0 && **f != factor as f32;
            assert_eq!(factors.iter().filter(inside).count(), between);
            let bits = (1..).zip(&factors).map(|(at, f)| u64::from(f.to_bits()) * at).sum::<u64>();
            assert_eq!(bits, sum, "{theta} {head} {factor}: {factors:?}");
        }
    }
}
