//! Encoders: networks that read a text as a whole, and make a vector of it, or scores.
//!
//! Their configurations and names have little in common with those of decoders, and less with each other, so each family has a function
//! that returns a [`EncoderPlan`] as data: its metadata, and the tensors with their shapes. EncoderNames in GGUF are those of llama.cpp's converter
//! (`conversion/bert.py`), except that the pooler of a BERT that scores pairs is kept: its scores are of no use without.
//!
//! Nothing is dropped silently: a tensor without a place is an error, or is listed with a reason; so is a setting that GGUF cannot
//! express.

mod bert;
mod eurobert;
mod head;
mod jina_v3;
mod modern_bert;
mod nomic_bert;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use super::config::{Config, clipped};
use super::general;
use super::refuse;
use super::{AdaptedBase, BasePlace};
use crate::ConvertError;
use crate::import::sentence::SentenceTransformer;
use crate::import::side::SideFiles;
use crate::import::tensor::{Described, Entry, Network, Place, Rule};
use crate::write::Change;
pub(super) use head::{Head, RANK};

/// Maximum number of layers; the same as that of the program that runs them.
const MAX_LAYERS: u64 = 4096;

/// A family of encoders.
struct Family {
    /// `general.architecture`, unless its plan says otherwise.
    gguf: &'static str,
    /// Values of `architectures`, and what each has after its layers.
    classes: &'static [(&'static str, Head)],
    /// Values of `model_type`, for configurations without `architectures`.
    model_types: &'static [&'static str],
    /// Possible prefixes of the names of its tensors.
    prefixes: &'static [&'static str],
    plan: fn(&Config, Head, &Shapes<'_>) -> Result<EncoderPlan, ConvertError>,
}

const FAMILIES: [Family; 7] = [
    bert::BERT,
    bert::ROBERTA,
    bert::DISTILBERT,
    jina_v3::JINA_V3,
    nomic_bert::NOMIC_BERT,
    modern_bert::MODERN_BERT,
    eurobert::EUROBERT,
];

/// The contents of an encoder.
#[derive(Debug, Default)]
struct EncoderPlan {
    /// `general.architecture`, if it is not that of the family.
    gguf: Option<&'static str>,
    /// Metadata without the architecture's prefix, in the order in which it is written.
    keys: Vec<(&'static str, Entry)>,
    layers: u64,
    /// The text before the number of a layer in the names of its tensors.
    layer: &'static str,
    /// Tensors outside of layers.
    outside: Vec<Known>,
    /// Tensors of each layer.
    inside: Vec<Known>,
    /// Beginnings of the names of tensors that are left out, with the reason.
    others: Vec<(&'static str, &'static str)>,
    /// Rows of the embedding.
    vocab: u64,
    /// Rows of the table of token types.
    token_types: u64,
    /// Labels of the scores, if there are scores.
    labels: Option<Vec<String>>,
}

/// A tensor that has a place.
#[derive(Clone, Debug)]
struct Known {
    source: &'static str,
    gguf: &'static str,
    /// Outermost first.
    shape: Vec<u64>,
    place: Place,
    layers: LayersWithTensor,
}

/// The layers that have a tensor.
#[derive(Clone, Copy, Debug)]
enum LayersWithTensor {
    All,
    /// All from this one on.
    From(u64),
    /// Those whose number has this remainder, by this divisor.
    Every(u64, u64),
    /// All others.
    AllBut(u64, u64),
}

impl LayersWithTensor {
    fn has(self, layer: u64) -> bool {
        match self {
            LayersWithTensor::All => true,
            LayersWithTensor::From(first) => layer >= first,
            LayersWithTensor::Every(remainder, divisor) => layer % divisor == remainder,
            LayersWithTensor::AllBut(remainder, divisor) => layer % divisor != remainder,
        }
    }
}

/// The tensors of a plan by the names of their source.
struct KnownTensors<'p> {
    plan: &'p EncoderPlan,
    outside: HashMap<&'p str, &'p Known>,
    inside: HashMap<&'p str, &'p Known>,
}

impl EncoderPlan {
    fn known(&self) -> KnownTensors<'_> {
        fn by_name(all: &[Known]) -> HashMap<&str, &Known> {
            all.iter().map(|known| (known.source, known)).collect()
        }
        let (outside, inside) = (by_name(&self.outside), by_name(&self.inside));
        KnownTensors { plan: self, outside, inside }
    }

    /// The reason for leaving out a tensor of this name.
    fn reason(&self, short: &str) -> Option<&'static str> {
        let mut others = self.others.iter();
        others.find(|(start, _)| short.starts_with(start)).map(|(_, reason)| *reason)
    }
}

impl<'p> KnownTensors<'p> {
    /// Returns the tensor of this name, which has no prefix, and its layer.
    fn find(&self, short: &str) -> Option<(Option<u64>, &'p Known)> {
        let layer = of_layer(self.plan.layer, short).filter(|(layer, _)| *layer < self.plan.layers);
        let (layer, known) = match layer {
            Some((layer, rest)) => (Some(layer), self.inside.get(rest)?),
            None => (None, self.outside.get(short)?),
        };
        layer.is_none_or(|n| known.layers.has(n)).then_some((layer, *known))
    }
}

impl Known {
    /// The rule of a tensor in this layer.
    fn rule(&self, layer: Option<u64>) -> Rule {
        let name = match layer {
            Some(layer) => format!("blk.{layer}.{}", self.gguf),
            None => self.gguf.to_owned(),
        };
        Rule::Take { name, heads: None, change: Change::None, place: self.place.clone() }
    }

    fn new(source: &'static str, gguf: &'static str, shape: &[u64]) -> Known {
        let (shape, place, layers) = (shape.to_vec(), Place::Whole, LayersWithTensor::All);
        Known { source, gguf, shape, place, layers }
    }
}

/// A matrix `NAME.weight` and its vector `NAME.bias`.
fn linear(
    (weight, bias): (&'static str, &'static str),
    (to_weight, to_bias): (&'static str, &'static str),
    rows: u64,
    columns: u64,
) -> [Known; 2] {
    [Known::new(weight, to_weight, &[rows, columns]), Known::new(bias, to_bias, &[rows])]
}

/// The names `NAME.weight` and `NAME.bias`.
macro_rules! both {
    ($name:literal) => {
        (concat!($name, ".weight"), concat!($name, ".bias"))
    };
}
use both;

/// The norm `NAME.weight` and `NAME.bias`.
fn norm(
    (weight, bias): (&'static str, &'static str),
    (to_weight, to_bias): (&'static str, &'static str),
    width: u64,
) -> [Known; 2] {
    [Known::new(weight, to_weight, &[width]), Known::new(bias, to_bias, &[width])]
}

/// The shapes of a source's tensors by name, without the prefix of the family.
struct Shapes<'a>(HashMap<&'a str, &'a [u64]>);

impl Shapes<'_> {
    /// Rows of a matrix; 0 if there is none.
    fn rows(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some([rows, _]) => *rows,
            _ => 0,
        }
    }
}

/// Describes the encoder of a Hugging Face folder; `None` if it is another network.
///
/// # Errors
/// It has settings that GGUF cannot express, or tensors that do not fit.
pub(super) fn network(
    side: &SideFiles,
    config: &Config,
    tensors: &[Described<'_>],
) -> Result<Option<Network>, ConvertError> {
    let Some((family, head)) = recognise(config)? else { return Ok(None) };
    if let Some(quantised) = config.get("quantization_config") {
        let message = "no quantised weights: take the original model";
        return Err(config.wrong("quantization_config", quantised, message));
    }
    let names = EncoderNames { prefixes: family.prefixes };
    let shapes = names.shapes(tensors);
    let mut plan = (family.plan)(config, head, &shapes)?;
    let (rules, parameters) = names.place(config, &plan, tensors)?;

    let mut notes = Vec::new();
    let sentence = SentenceTransformer::read(side)?;
    let mut own = std::mem::take(&mut plan.keys);
    let mut more = Vec::new();
    match &plan.labels {
        Some(labels) => {
            own.push(("pooling_type", Entry::U32(head::RANK)));
            own.push(("classifier.output_labels", Entry::Strs(labels.clone())));
        }
        None => match sentence.as_ref().and_then(|found| found.pooling) {
            Some(pooling) => own.push(("pooling_type", Entry::U32(pooling.number()))),
            None => notes.push(
                "nothing beside the weights says how the vectors of tokens become that of a text \
                 (modules.json of sentence-transformers): say it with --pooling where vectors are made"
                    .into(),
            ),
        },
    }
    if let Some(found) = &sentence {
        more = found.keys();
        notes.extend(found.notes.iter().cloned());
    }
    let mut keys = general::keys(side, config, parameters, &mut notes)?;
    let prefix = plan.gguf.unwrap_or(family.gguf);
    keys.extend(own.into_iter().map(|(key, entry)| (format!("{prefix}.{key}"), entry)));
    keys.extend(more);
    if plan.token_types > 0 {
        let count = Entry::U32(plan.token_types as u32);
        keys.push(("tokenizer.ggml.token_type_count".into(), count));
    }
    let (vocab, extra) = (plan.vocab, Vec::new());
    let (templates, tile) = (Vec::new(), None);
    Ok(Some(Network { architecture: prefix, keys, rules, extra, vocab, tile, templates, notes }))
}

/// Names of the embedding, by which families find the number of tokens.
const EMBEDDINGS: [&str; 3] =
    [bert::TOKENS, "embed_tokens.weight", "embeddings.tok_embeddings.weight"];

/// Returns what becomes of the tensors `names` of an encoder, of which only the configuration is read; `None` if it is another network.
///
/// # Errors
/// The configuration is wrong.
pub(super) fn base(config: &Config, names: &[&str]) -> Result<Option<AdaptedBase>, ConvertError> {
    let Some((family, _)) = recognise(config)? else { return Ok(None) };
    let Some(vocab) = config.count("vocab_size", u64::from(u32::MAX))? else {
        return Err(config.error("has no vocab_size: expected the number of rows of the embedding"));
    };
    let types = config.count("type_vocab_size", u64::from(u32::MAX))?.unwrap_or(0);
    let (tokens, types) = ([vocab, 1], [types, 1]);
    let mut shapes: HashMap<&str, &[u64]> =
        EMBEDDINGS.iter().map(|name| (*name, &tokens[..])).collect();
    shapes.insert(bert::TYPES, &types);
    // What an adapter changes is before the classifier.
    let plan = (family.plan)(config, Head::Vectors, &Shapes(shapes))?;
    let (source, known) = (EncoderNames { prefixes: family.prefixes }, plan.known());
    let place = |name: &&str| {
        let short = renamed(source.short(name));
        match known.find(&short) {
            Some((layer, known)) => {
                let (shape, rules) = (known.shape.clone(), vec![known.rule(layer)]);
                Some(BasePlace { shape, rules })
            }
            None => {
                let reason = plan.reason(&short)?;
                Some(BasePlace { shape: Vec::new(), rules: vec![Rule::Skip(reason)] })
            }
        }
    };
    let places = names.iter().map(place).collect();
    let architecture = plan.gguf.unwrap_or(family.gguf);
    Ok(Some(AdaptedBase { architecture, tied: false, places }))
}

/// Returns the family of a configuration, and what it has after its layers.
fn recognise(config: &Config) -> Result<Option<(&'static Family, Head)>, ConvertError> {
    let class = refuse::class(config)?;
    let found = FAMILIES.iter().find_map(|family| {
        let class = family.classes.iter().find(|(name, _)| Some(*name) == class)?;
        Some((family, class.1))
    });
    if found.is_some() || class.is_some() {
        return Ok(found);
    }
    let model_type = config.word("model_type")?;
    let of_type = |family: &&Family| model_type.is_some_and(|ty| family.model_types.contains(&ty));
    Ok(FAMILIES.iter().find(of_type).map(|family| (family, Head::Vectors)))
}

/// Returns the values of `model_type` that are known.
pub(super) fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied())
}

/// The names of a source's tensors.
struct EncoderNames {
    prefixes: &'static [&'static str],
}

impl EncoderNames {
    /// Returns a name without the prefix of the family, if it has one.
    fn short<'n>(&self, name: &'n str) -> &'n str {
        self.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
    }

    fn shapes<'a>(&self, tensors: &[Described<'a>]) -> Shapes<'a> {
        Shapes(tensors.iter().map(|tensor| (self.short(tensor.name), tensor.shape)).collect())
    }

    /// Returns the rule of each tensor, and the number of parameters.
    fn place(
        &self,
        config: &Config,
        plan: &EncoderPlan,
        tensors: &[Described<'_>],
    ) -> Result<(Vec<Rule>, u64), ConvertError> {
        if !(1..=MAX_LAYERS).contains(&plan.layers) {
            let layers = plan.layers;
            return Err(config.error(format!("it has {layers} layers, expected 1 to {MAX_LAYERS}")));
        }
        let known_tensors = plan.known();
        let mut seen: HashSet<(Option<u64>, &str)> = HashSet::new();
        let (mut rules, mut parameters) = (Vec::with_capacity(tensors.len()), 0u64);
        for tensor in tensors {
            let short = renamed(self.short(tensor.name));
            let Some((layer, known)) = known_tensors.find(&short) else {
                let Some(reason) = plan.reason(&short) else {
                    return Err(config.error(format!(
                        "tensor \"{}\" of the weights has no place: is it really of this architecture?",
                        clipped(tensor.name)
                    )));
                };
                rules.push(Rule::Skip(reason));
                continue;
            };
            if tensor.shape != known.shape {
                return Err(config.error(format!(
                    "tensor \"{}\" is {:?}, expected {:?}, which follows from the configuration",
                    clipped(tensor.name),
                    tensor.shape,
                    known.shape
                )));
            }
            if !seen.insert((layer, known.source)) {
                let name = clipped(tensor.name);
                return Err(config.error(format!("the weights have two tensors \"{name}\"")));
            }
            parameters = parameters.saturating_add(tensor.shape.iter().product());
            rules.push(known.rule(layer));
        }
        for known in &plan.outside {
            if !seen.contains(&(None, known.source)) {
                return Err(missing(config, known.source, known));
            }
        }
        for layer in 0..plan.layers {
            for known in plan.inside.iter().filter(|known| known.layers.has(layer)) {
                if !seen.contains(&(Some(layer), known.source)) {
                    let name = format!("{}{layer}.{}", plan.layer, known.source);
                    return Err(missing(config, &name, known));
                }
            }
        }
        Ok((rules, parameters))
    }
}

fn missing(config: &Config, name: &str, known: &Known) -> ConvertError {
    config.error(format!(
        "the weights have no tensor \"{name}\", expected one of {:?}: is a file of the weights missing?",
        known.shape
    ))
}

/// Old checkpoints name the weight and the bias of a norm otherwise.
fn renamed(name: &str) -> String {
    match (name.strip_suffix("LayerNorm.gamma"), name.strip_suffix("LayerNorm.beta")) {
        (Some(start), _) => format!("{start}LayerNorm.weight"),
        (_, Some(start)) => format!("{start}LayerNorm.bias"),
        _ => name.to_owned(),
    }
}

/// Splits the name of a tensor of a layer into the number and the rest.
fn of_layer<'n>(prefix: &str, name: &'n str) -> Option<(u64, &'n str)> {
    let (digits, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let layer = digits.parse::<u64>().ok()?;
    (layer.to_string() == digits).then_some((layer, rest))
}

/// Refuses another activation than the one that this family has in GGUF.
fn check_activation(
    config: &Config,
    key: &str,
    default: &str,
    known: &[&str],
) -> Result<(), ConvertError> {
    let found = config.word(key)?.unwrap_or(default);
    if known.contains(&found) {
        return Ok(());
    }
    Err(config.wrong(key, &found.into(), &format!("\"{}\", for which GGUF has no key", known[0])))
}

/// Refuses a flag that GGUF cannot express.
fn check_flag(config: &Config, key: &str, expected: bool) -> Result<(), ConvertError> {
    match config.get(key) {
        None => Ok(()),
        Some(value) if value == expected => Ok(()),
        Some(other) => {
            Err(config.wrong(key, other, &format!("{expected}, for which GGUF has no key")))
        }
    }
}
