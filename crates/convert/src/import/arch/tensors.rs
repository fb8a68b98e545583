//! Matches the tensors of a source with those of its architecture: every one has a place and a
//! shape that follows from the configuration, and none is missing.

use std::collections::HashSet;

use super::config::{Config, clipped};
use super::describe::{
    Architecture, Dim, Dimensions, EMBEDDING, FURTHER, Group, Naming, OUTPUT, Part, TensorKind,
    When,
};
use super::refuse;
use crate::ConvertError;
use crate::import::tensor::{Described, Place, Rule};
use crate::write::Change;

/// The reason for omitting layers that predict more than the next token.
pub(super) const PREDICTS_FURTHER: &str = "belongs to layers that predict further tokens";
/// Possible prefixes of the name of the output.
const OUTPUT_PREFIXES: [&str; 2] = ["", "language_model."];

/// The part of the source that belongs to the network.
pub(super) struct NetworkTensors<'a> {
    tensors: &'a [Described<'a>],
    /// Their names.
    names: HashSet<&'a str>,
    prefix: &'static str,
    /// Rows of the embedding.
    pub(super) rows: u64,
    /// Rows and columns of an F8 matrix that share a scale.
    pub(super) tile: Option<(u64, u64)>,
    /// True for a model of vectors, which needs no output.
    pub(super) of_vectors: bool,
}

impl<'a> NetworkTensors<'a> {
    /// Finds the embedding, which determines the prefix of all names.
    ///
    /// # Errors
    /// There is none, there are two, or it is not a matrix.
    pub(super) fn find(
        config: &Config,
        naming: &Naming,
        tensors: &'a [Described<'a>],
    ) -> Result<NetworkTensors<'a>, ConvertError> {
        let mut found = tensors.iter().filter_map(|tensor| {
            let prefix = tensor.name.strip_suffix(naming.embedding)?;
            naming
                .prefixes
                .iter()
                .copied()
                .find(|known| *known == prefix)
                .map(|prefix| (tensor, prefix))
        });
        let Some((embedding, prefix)) = found.next() else {
            if let Some(quantised) = tensors.iter().find(|tensor| refuse::is_quantised(tensor.name))
            {
                return Err(refuse::quantised_tensor(config, quantised.name));
            }
            return Err(config.error(format!(
                "the weights have no tensor \"{}{}\", which every model has; {}",
                naming.prefixes[0],
                naming.embedding,
                match tensors.first() {
                    None => "they have no tensors at all".into(),
                    Some(first) => format!("their first is \"{}\"", clipped(first.name)),
                }
            )));
        };
        if let Some((other, _)) = found.next() {
            return Err(config.error(format!(
                "the weights have two embeddings, \"{}\" and \"{}\": are they of two models?",
                embedding.name, other.name
            )));
        }
        let &[rows, _] = embedding.shape else {
            return Err(config.error(format!(
                "tensor \"{}\" is {:?}, expected a matrix of a row per token",
                embedding.name, embedding.shape
            )));
        };
        let names = tensors.iter().map(|tensor| tensor.name).collect();
        let tile = refuse::tile(config)?;
        Ok(NetworkTensors { tensors, names, prefix, rows, tile, of_vectors: false })
    }

    /// Returns the rule for each tensor, and the total number of parameters.
    ///
    /// # Errors
    /// The first tensor that has no place, that occurs twice, whose shape does not follow from the
    /// configuration, or that is missing.
    pub(super) fn place(
        &self,
        config: &Config,
        architecture: &Architecture,
        dimensions: &Dimensions,
    ) -> Result<(Vec<Rule>, u64), ConvertError> {
        let groups = groups(config, architecture, self.tensors)?;
        let names = Names { source: self, architecture, dimensions, groups: &groups };
        let mut seen = HashSet::with_capacity(self.tensors.len());
        let mut rules = Vec::with_capacity(self.tensors.len());
        let mut parameters = 0u64;
        let mut strange: Option<&str> = None;
        let mut others = 0u64;
        for tensor in self.tensors {
            if !seen.insert(tensor.name) {
                let name = clipped(tensor.name);
                return Err(config.error(format!("the weights have two tensors \"{name}\"")));
            }
            let rule = match names.of(tensor.name) {
                Some(TensorRole::Out(reason)) => Rule::Skip(reason),
                Some(TensorRole::Tied) => {
                    check(config, dimensions, tensor, None, &OUTPUT)?;
                    Rule::Copy {
                        of: format!("{}{}", self.prefix, architecture.naming.embedding),
                        name: architecture.own_output.then_some(OUTPUT.gguf),
                    }
                }
                Some(TensorRole::Companion) => Rule::Beside,
                Some(TensorRole::In(layer, name, part, expert)) => {
                    check(config, dimensions, tensor, layer, &part)?;
                    parameters = parameters.saturating_add(elements(tensor, &part));
                    take(architecture, dimensions, name, &part, expert)
                }
                Some(TensorRole::Several(layer, parts)) => {
                    let mut rules = Vec::with_capacity(parts.len());
                    for (name, part) in parts {
                        check(config, dimensions, tensor, Some(layer), &part)?;
                        let of_all = parameters.saturating_add(elements(tensor, &part));
                        parameters = if rules.is_empty() { of_all } else { parameters };
                        rules.push(take(architecture, dimensions, name, &part, None));
                    }
                    Rule::Several(rules)
                }
                None => {
                    others += u64::from(strange.is_some());
                    strange.get_or_insert(tensor.name);
                    Rule::Skip("")
                }
            };
            rules.push(rule);
        }
        if let Some(strange) = strange {
            return Err(names.strange(config, strange, others));
        }
        names.missing(config, &seen).map_or(Ok((rules, parameters)), Err)
    }
}

/// Names of parameters that transformers 5 has in memory, whose weights have others in files.
const IN_MEMORY: [(&str, &str); 5] = [
    ("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    ("block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"),
    ("block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight"),
    ("mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj_blocks"),
    ("mlp.experts.down_proj", "mlp.experts.down_proj_blocks"),
];

/// Returns the name in files of a parameter.
fn stored_name(name: &str) -> Option<String> {
    let renamed =
        |(memory, file): &(&str, &str)| Some(format!("{}{file}", name.strip_suffix(memory)?));
    IN_MEMORY.iter().find_map(renamed)
}

/// A tensor of a base model, of which an adapter knows only the name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BasePlace {
    /// Its extents in the source, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Its tensors in GGUF: one rule, or several if it is divided.
    pub(crate) rules: Vec<Rule>,
}

/// Returns the place of each of the tensors `names` of a model with this configuration, whose weights need not be there; `None` for
/// those that it does not have.
///
/// # Errors
/// The configuration is wrong, or a tensor has no place in GGUF.
pub(super) fn places(
    config: &Config,
    architecture: &Architecture,
    dimensions: &Dimensions,
    names: &[&str],
) -> Result<Vec<Option<BasePlace>>, ConvertError> {
    let mut groups = Vec::new();
    for group in architecture.layer {
        // Whatever the form of the weights: names of different forms differ.
        let wanted = match group.when {
            When::Flag(flag) => config.flag(flag)?,
            _ => true,
        };
        if wanted {
            groups.push(group);
        }
    }
    let found = |prefix: &&'static str| {
        let source = NetworkTensors {
            tensors: &[],
            names: HashSet::new(),
            prefix,
            rows: dimensions.vocab,
            tile: None,
            of_vectors: false,
        };
        let all = Names { source: &source, architecture, dimensions, groups: &groups };
        let of = |name: &&str| all.of(name).or_else(|| all.of(&stored_name(name)?));
        names.iter().map(of).collect::<Vec<_>>()
    };
    let known = |roles: &Vec<Option<TensorRole>>| roles.iter().flatten().count();
    // The first of the best.
    let prefixes = architecture.naming.prefixes.iter().rev();
    let roles = prefixes.map(found).max_by_key(known).unwrap_or_default();
    let place = |(name, role): (&&str, Option<TensorRole>)| {
        let refused = |why: &str| {
            let name = clipped(name);
            config.error(format!("the adapter changes \"{name}\" of this model, which {why}"))
        };
        let taken = |layer, name, part: &Part, expert| {
            let mut shape = extents(dimensions, layer, part);
            if let (TensorKind::Blocks { .. }, &[experts, rows, blocks, _]) =
                (part.kind, &shape[..])
            {
                // In memory they are no blocks, and transposed.
                shape = vec![experts, blocks * 32, rows];
            }
            (shape, take(architecture, dimensions, name, part, expert))
        };
        match role {
            None => Ok(None),
            Some(TensorRole::Out(reason)) => Err(refused(reason)),
            Some(TensorRole::Companion) => Err(refused("accompanies another tensor")),
            Some(TensorRole::Tied) => Err(refused(
                "is its embedding (tie_word_embeddings): GGUF has no form for an output of its own",
            )),
            Some(TensorRole::In(layer, name, part, expert)) => {
                let (shape, rule) = taken(layer, name, &part, expert);
                Ok(Some(BasePlace { shape, rules: vec![rule] }))
            }
            Some(TensorRole::Several(layer, parts)) => {
                let mut place = BasePlace { shape: Vec::new(), rules: Vec::new() };
                for (name, part) in parts {
                    let (shape, rule) = taken(Some(layer), name, &part, None);
                    // Both forms of experts have the same router.
                    if !place.rules.contains(&rule) {
                        place.rules.push(rule);
                    }
                    place.shape = shape;
                }
                Ok(Some(place))
            }
        }
    };
    names.iter().zip(roles).map(place).collect()
}

/// Returns the groups of tensors required by this configuration, in some layers or in all.
fn groups<'a>(
    config: &Config,
    architecture: &'a Architecture,
    tensors: &[Described<'_>],
) -> Result<Vec<&'a Group>, ConvertError> {
    let mut groups = Vec::new();
    for group in architecture.layer {
        let wanted = match group.when {
            When::Always | When::Trait(_) => true,
            When::Flag(flag) => config.flag(flag)?,
            When::Stored(end, there) | When::TraitStored(_, end, there) => {
                tensors.iter().any(|tensor| tensor.name.ends_with(end)) == there
            }
        };
        if wanted {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// The role of a tensor.
enum TensorRole {
    /// Its layer, GGUF name, description, and expert.
    In(Option<u64>, String, Part, Option<u64>),
    /// The same for several tensors that are each a part of it.
    Several(u64, Vec<(String, Part)>),
    /// It accompanies another tensor.
    Companion,
    Out(&'static str),
    /// It should be a copy of the embedding.
    Tied,
}

/// The accepted names of tensors.
struct Names<'a> {
    source: &'a NetworkTensors<'a>,
    architecture: &'a Architecture,
    dimensions: &'a Dimensions,
    groups: &'a [&'a Group],
}

impl Names<'_> {
    /// Returns the parts of this layer.
    fn parts(&self, layer: u64) -> impl Iterator<Item = &'static Part> {
        let has = move |group: &&&Group| match group.when {
            When::Trait(named) | When::TraitStored(named, ..) => self.dimensions.has(layer, named),
            When::Always | When::Flag(_) | When::Stored(..) => true,
        };
        self.groups.iter().filter(has).flat_map(|group| group.parts)
    }

    fn of(&self, name: &str) -> Option<TensorRole> {
        // Old files have the inverse frequencies of every layer.
        if name.ends_with("rotary_emb.inv_freq") {
            return Some(TensorRole::Out("follows from the configuration"));
        }
        for (start, reason) in self.architecture.others {
            if name.starts_with(start) {
                return Some(TensorRole::Out(reason));
            }
        }
        let naming = &self.architecture.naming;
        if OUTPUT_PREFIXES.iter().any(|prefix| name.strip_prefix(prefix) == Some(naming.output)) {
            return Some(match self.dimensions.tied {
                true => TensorRole::Tied,
                false => TensorRole::In(None, OUTPUT.gguf.into(), OUTPUT, None),
            });
        }
        let rest = name.strip_prefix(self.source.prefix)?;
        // Scales accompany their matrix.
        if let Some(matrix) = rest.strip_suffix("_scale_inv").filter(|_| self.source.tile.is_some())
        {
            let name = &name[..name.len() - rest.len() + matrix.len()];
            return self.source.names.contains(name).then_some(TensorRole::Companion);
        }
        let embedding = Part { source: naming.embedding, ..EMBEDDING };
        for part in [&embedding].into_iter().chain(self.architecture.outside) {
            if rest == part.source {
                return Some(TensorRole::In(None, part.gguf.into(), *part, None));
            }
        }
        let (layer, rest) = split_layer(rest, naming)?;
        let found = self.parts(layer).filter_map(|part| Some((part, part.is_named(rest)?)));
        let found: Vec<_> = found.collect();
        let name = |part: &Part| format!("blk.{layer}.{}", part.gguf);
        match found[..] {
            _ if layer >= self.dimensions.layers => {
                let end = self.dimensions.layers + self.dimensions.of(Dim::Named(FURTHER));
                (layer < end).then_some(TensorRole::Out(PREDICTS_FURTHER))
            }
            [] => None,
            [(Part { kind: TensorKind::Unused(reason), .. }, _)] => Some(TensorRole::Out(reason)),
            [(part, expert)] => {
                let is_there = expert.is_none_or(|n| n < self.dimensions.of(Dim::Experts));
                is_there.then(|| TensorRole::In(Some(layer), name(part), *part, expert))
            }
            _ => Some(TensorRole::Several(
                layer,
                found.iter().map(|(part, _)| (name(part), **part)).collect(),
            )),
        }
    }

    /// Returns the error about a tensor without a place.
    fn strange(&self, config: &Config, name: &str, others: u64) -> ConvertError {
        if refuse::is_quantised(name) {
            return refuse::quantised_tensor(config, name);
        }
        let more = match others {
            0 => String::new(),
            others => format!(" (nor have {others} others)"),
        };
        let rest = name.strip_prefix(self.source.prefix).unwrap_or(name);
        let why = match split_layer(rest, &self.architecture.naming) {
            Some((layer, _)) if layer >= self.dimensions.layers => {
                format!("num_hidden_layers is {}", self.dimensions.layers)
            }
            _ if name.ends_with(".bias") => {
                "the configuration speaks of no such biases (attention_bias, mlp_bias)".into()
            }
            _ => "is it really of this architecture?".into(),
        };
        config.error(format!(
            "tensor \"{}\" of the weights has no place in {}{more}: {why}",
            clipped(name),
            self.architecture.classes[0]
        ))
    }

    /// Returns the error about the first missing tensor, if any.
    fn missing(&self, config: &Config, seen: &HashSet<&str>) -> Option<ConvertError> {
        let (prefix, naming) = (self.source.prefix, &self.architecture.naming);
        let missing = |name: String, layer: Option<u64>, part: &Part, hint: &str| {
            let shape = extents(self.dimensions, layer, part);
            let origin = origins(config, self.dimensions, part);
            Some(config.error(format!(
                "the weights have no tensor \"{name}\", expected one of {shape:?} ({origin}): {hint}"
            )))
        };
        // Ends at the first missing one, so this is no longer than the list of tensors.
        for layer in 0..self.dimensions.layers {
            let needed = |part: &&Part| !matches!(part.kind, TensorKind::Unused(_));
            for part in self.parts(layer).filter(needed) {
                let experts = match part.source.contains('*') {
                    true => self.dimensions.of(Dim::Experts),
                    false => 1,
                };
                for expert in 0..experts {
                    let source = part.source.replace('*', &expert.to_string());
                    let name = format!("{prefix}{}{layer}.{source}", naming.layers);
                    if !seen.contains(&*name) {
                        let layers = self.dimensions.layers;
                        let hint = format!(
                            "is a file of the weights missing, or num_hidden_layers, {layers}, wrong?"
                        );
                        return missing(name, Some(layer), part, &hint);
                    }
                }
            }
        }
        for part in self.architecture.outside {
            let name = format!("{prefix}{}", part.source);
            if !seen.contains(&*name) {
                return missing(name, None, part, "is a file of the weights missing?");
            }
        }
        let has_output = OUTPUT_PREFIXES
            .iter()
            .any(|prefix| seen.contains(&*format!("{prefix}{}", naming.output)));
        if !self.dimensions.tied && !has_output && !self.source.of_vectors {
            let hint = "if the output of this model is its embedding, config.json has to say \
                        tie_word_embeddings true; if it has none, it cannot write text";
            return missing(naming.output.into(), None, &OUTPUT, hint);
        }
        None
    }
}

/// Splits `layers.N.rest`, with N in canonical form.
fn split_layer<'n>(name: &'n str, naming: &Naming) -> Option<(u64, &'n str)> {
    let (digits, rest) = name.strip_prefix(naming.layers)?.split_once('.')?;
    let layer = digits.parse::<u64>().ok()?;
    (layer.to_string() == digits).then_some((layer, rest))
}

impl Part {
    /// Returns `Some` if this is its name in a layer of the source, with the expert's number if it
    /// has one.
    #[allow(clippy::option_option)]
    fn is_named(&self, name: &str) -> Option<Option<u64>> {
        let Some((before, after)) = self.source.split_once('*') else {
            return (self.source == name).then_some(None);
        };
        let digits = name.strip_prefix(before)?.strip_suffix(after)?;
        let expert = digits.parse::<u64>().ok()?;
        (expert.to_string() == digits).then_some(Some(expert))
    }
}

fn take(
    architecture: &Architecture,
    dimensions: &Dimensions,
    name: String,
    part: &Part,
    expert: Option<u64>,
) -> Rule {
    let heads = match part.kind {
        TensorKind::Queries if architecture.permuted => Some(dimensions.heads),
        TensorKind::Keys if architecture.permuted => Some(dimensions.kv_heads),
        _ => None,
    };
    let change = match part.kind {
        TensorKind::Norm if architecture.norm_add != 0.0 => Change::Add(architecture.norm_add),
        TensorKind::Rates(_) | TensorKind::RatesOfRows(_) => Change::NegativeExp,
        _ => Change::None,
    };
    let place = match (expert, part.kind) {
        (Some(index), _) => Place::Expert { index, count: dimensions.of(Dim::Experts) },
        (None, TensorKind::Scales) => return Rule::Beside,
        (None, TensorKind::Row) => Place::Row,
        (None, TensorKind::Blocks { first, step }) => Place::Blocks { first, step },
        (None, TensorKind::Half(half)) => Place::Half(half),
        (None, TensorKind::Turned { part, of }) => Place::Turned { part, of },
        (None, TensorKind::Numbers { first, step }) => Place::Numbers { first, step },
        (None, TensorKind::Rows(runs) | TensorKind::Rates(runs)) => Place::Rows(runs(dimensions)),
        (None, TensorKind::VectorOfRows(rows) | TensorKind::RatesOfRows(rows)) => {
            Place::OfRows(rows(dimensions))
        }
        (None, TensorKind::Columns(runs)) => Place::Columns(runs(dimensions)),
        (None, TensorKind::Heads(runs)) => Place::Heads(runs(dimensions)),
        (None, TensorKind::Transposed(rows)) => {
            let (rows, of) = rows(dimensions);
            Place::Transposed { rows, of }
        }
        (None, _) => Place::Whole,
    };
    Rule::Take { name, heads, change, place }
}

/// Returns the number of parameters in a tensor.
fn elements(tensor: &Described<'_>, part: &Part) -> u64 {
    let count = tensor.shape.iter().product::<u64>();
    match part.kind {
        TensorKind::Blocks { .. } => count.saturating_mul(2),
        TensorKind::Scales => 0,
        _ => count,
    }
}

fn check(
    config: &Config,
    dimensions: &Dimensions,
    tensor: &Described<'_>,
    layer: Option<u64>,
    part: &Part,
) -> Result<(), ConvertError> {
    let expected = extents(dimensions, layer, part);
    if tensor.shape == expected {
        return Ok(());
    }
    Err(config.error(format!(
        "tensor \"{}\" is {:?}, expected {expected:?} ({})",
        tensor.name,
        tensor.shape,
        origins(config, dimensions, part)
    )))
}

fn extents(dimensions: &Dimensions, layer: Option<u64>, part: &Part) -> Vec<u64> {
    part.shape.into_iter().flatten().map(|dim| dimensions.at(layer, dim)).collect()
}

fn origins(config: &Config, dimensions: &Dimensions, part: &Part) -> String {
    let words = part.shape.into_iter().flatten();
    words.map(|dim| dimensions.origin(config, dim)).collect::<Vec<_>>().join("; ")
}
