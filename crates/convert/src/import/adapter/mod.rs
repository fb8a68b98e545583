//! PEFT folders: LoRA adapters, which become GGUF adapters ([`alight_formats::adapter`]).
//!
//! An adapter knows the names and the orientation of the base's source. What becomes of a matrix of the base in GGUF, its converter knows:
//! the rule for that matrix is applied to the factors ([`factors`]), so there is no other table of names.
//!
//! **Invariant:** no half of an adapter. Every tensor has a place and every field of the configuration is applied, or there is an error with
//! its name.

mod config;
mod factors;
mod names;
mod place;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::adapter::{EMBEDDING, key, suffix};
use alight_formats::gguf::write::Builder;
use alight_kernels::{Isa, WeightType, dequantize_row, quantize_row};
use alight_pages::Map;

use self::config::AdapterConfig;
use self::factors::Factors;
use self::names::Sorted;
use self::place::PlacedFactors;
use super::arch::{self, AdaptedBase};
use super::find::Found;
use super::huggingface::{ByName, Source};
use super::side::SideFiles;
use super::tensor::{Place, Rule, Tensor};
use super::{catalog, types};
use crate::ConvertError;
use crate::files::Files;
use crate::mix::QuantizationMix;
use crate::order::execution_order;
use crate::write::{Change, Elements, Item, ItemData, Order, Plan};

/// Maximum number of elements of all factors together: they are in memory.
const MAX_ELEMENTS: u64 = 1 << 30;
/// Maximum length of the name of a tensor, in bytes.
const MAX_NAME: usize = 64;

/// An adapter that can be written.
pub(super) struct PlannedAdapter {
    pub(super) plan: Plan,
    pub(super) recognised: String,
    pub(super) architecture: String,
    pub(super) skipped: Vec<(String, &'static str)>,
    pub(super) notes: Vec<String>,
}

/// Plans the conversion of an adapter for the model in the folder `base`.
///
/// # Errors
/// The adapter or the base's configuration is wrong, they do not fit each other, or GGUF has no form for what the adapter does.
pub(super) fn read(
    found: &Found,
    files: &Files,
    side: &SideFiles,
    base: Option<&Path>,
    mix: Option<QuantizationMix>,
) -> Result<PlannedAdapter, ConvertError> {
    let wrong = |problem: String| ConvertError::Source { path: found.folder.clone(), problem };
    let ty = match mix {
        None => GgmlType::F32,
        Some(QuantizationMix::F16) => GgmlType::F16,
        Some(QuantizationMix::BF16) => GgmlType::BF16,
        Some(other) => {
            let found = other.to_string().to_lowercase();
            return Err(wrong(format!(
                "is an adapter, whose type cannot be {found}: leave --type out (F32), or give f16 or bf16"
            )));
        }
    };
    let config = AdapterConfig::read(&side.network)?;
    let has_own = side.network.path("config.json").is_file().then_some(&*found.folder);
    let Some(folder) = base.or(config.base_folder()).or(has_own) else {
        let name = config.base.as_deref().unwrap_or("its base");
        return Err(wrong(format!(
            "is an adapter, whose names are those of its base: say with --base where the folder of \"{}\" is, of which config.json is enough",
            arch::config::clipped(name)
        )));
    };
    let base_side = SideFiles::new(folder, None, &side.small);
    let tensors = catalog::read(found, files.maps(), side)?;
    let sorted = Sorted::read(&tensors).map_err(wrong)?;
    let wanted = wanted(&sorted, &config);
    let all: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let base = arch::base(&base_side, &all)?;
    let adapter = Adapter {
        config: &config,
        maps: files.maps(),
        base: &base,
        names: &all,
        folder: &found.folder,
    };
    let mut out = AdapterTensors { ty, ..AdapterTensors::default() };
    let mut notes = Vec::new();
    let mut skipped = Vec::new();
    adapter.copies(&sorted, &mut skipped)?;
    let placed = place::all(&adapter, &sorted, &mut skipped)?;
    out.factors(&adapter, placed)?;
    if config.ties && base.tied && sorted.modules.values().any(|tensors| tensors.embedding) {
        return Err(config.error(
            "ensure_weight_tying is true, and the embedding of the base is its output too: GGUF has no form for a change of both".into(),
        ));
    }
    let overrides = adapter.full(&sorted, &tensors)?;
    if out.items.is_empty() && overrides.is_empty() {
        return Err(wrong("has an adapter without tensors".into()));
    }
    out.items.extend(overrides);
    if base.tied && out.items.iter().any(|item| item.name.starts_with(EMBEDDING)) {
        notes.push(
            "the base's output is its embedding, and the adapter changes the embedding alone"
                .into(),
        );
    }
    let plan = planned(&found.folder, &config, base.architecture, out.items)?;
    let of = config
        .base
        .as_deref()
        .map_or(String::new(), |name| format!(" for {}", arch::config::clipped(name)));
    Ok(PlannedAdapter {
        plan,
        recognised: format!("PEFT, LoRA{of}"),
        architecture: base.architecture.into(),
        skipped,
        notes,
    })
}

/// Returns the names in the base of all tensors that the adapter may change.
fn wanted(sorted: &Sorted<'_>, config: &AdapterConfig) -> Vec<String> {
    let mut names: Vec<String> = sorted.full.keys().chain(sorted.copies.keys()).cloned().collect();
    for (module, depth) in sorted.modules.keys() {
        if *depth == 0 {
            names.push(format!("{module}.weight"));
            names.extend(place::parameters(config, module));
        }
    }
    names.sort();
    names.dedup();
    names
}

/// An adapter that is being read.
pub(super) struct Adapter<'a> {
    config: &'a AdapterConfig,
    maps: &'a [Map],
    base: &'a AdaptedBase,
    /// Of the base's places, sorted.
    names: &'a [&'a str],
    folder: &'a Path,
}

impl Adapter<'_> {
    /// Returns an error about the folder.
    pub(super) fn error(&self, problem: String) -> ConvertError {
        ConvertError::Source { path: self.folder.into(), problem }
    }

    /// Returns the place of a tensor of the base.
    pub(super) fn place(&self, name: &str) -> Option<&arch::BasePlace> {
        let index = self.names.binary_search(&name).ok()?;
        self.base.places.get(index)?.as_ref()
    }

    /// Returns the elements of a tensor.
    pub(super) fn values(&self, tensor: &Tensor) -> Result<Vec<f32>, ConvertError> {
        let from = tensor.elements(self.maps)?;
        let map = &self.maps[tensor.file];
        let count: u64 = tensor.shape.iter().product();
        if count > MAX_ELEMENTS {
            return Err(self.error(format!("tensor \"{}\" has {count} elements, more than the {MAX_ELEMENTS} that a factor may have", tensor.name)));
        }
        let mut bytes = vec![0; from.bytes(count).unwrap_or(0) as usize];
        map.read(&mut bytes, tensor.offset)?;
        let mut values = vec![0.0; count as usize];
        match from {
            Elements::Gguf(GgmlType::F64) => {
                for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f64::from_le_bytes(*bytes) as f32;
                }
            }
            Elements::Gguf(ty) => {
                if let Some(ty) = WeightType::of(ty) {
                    dequantize_row(ty, &bytes, &mut values);
                }
            }
            _ => {}
        }
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(ConvertError::NotFinite {
                path: map.path().into(),
                tensor: tensor.name.clone(),
            }),
        }
    }

    /// Checks weights of the base in the adapter's file, which are left out.
    fn copies(
        &self,
        sorted: &Sorted<'_>,
        skipped: &mut Vec<(String, &'static str)>,
    ) -> Result<(), ConvertError> {
        for (name, tensor) in &sorted.copies {
            let expected = self.place(name).map(|place| &place.shape);
            if expected != Some(&tensor.shape) {
                return Err(self.error(format!(
                    "tensor \"{}\" is {:?}, expected {}: a vocabulary that has grown (resize_token_embeddings) has no form in an adapter",
                    tensor.name,
                    tensor.shape,
                    expected.map_or("a tensor of the base".into(), |shape| format!("{shape:?}, which the base has"))
                )));
            }
            skipped.push((
                tensor.name.clone(),
                "is the base's own, which PEFT saves with an adapter of an embedding",
            ));
        }
        Ok(())
    }

    /// Returns the tensors that replace those of the base.
    fn full(&self, sorted: &Sorted<'_>, tensors: &[Tensor]) -> Result<Vec<Item>, ConvertError> {
        let all: ByName<'_> = tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect();
        let mut items = Vec::new();
        for (name, tensor) in &sorted.full {
            let Some(place) = self.place(name) else {
                return Err(self.error(format!(
                    "tensor \"{}\" is of no tensor that the base has in GGUF (modules_to_save, bias)",
                    tensor.name
                )));
            };
            if tensor.shape != place.shape {
                return Err(self.error(format!(
                    "tensor \"{}\" is {:?}, expected {:?}, which the base has",
                    tensor.name, tensor.shape, place.shape
                )));
            }
            let source = Source { tensor, all: &all, maps: self.maps, tile: None };
            for rule in &place.rules {
                let Rule::Take { name, heads, change, place } = rule else { continue };
                if name == EMBEDDING && self.base.tied {
                    return Err(self.error(
                        "replaces the embedding of a base whose output it is too (tie_word_embeddings): GGUF has no form for that".into(),
                    ));
                }
                if matches!(place, Place::Expert { .. }) {
                    return Err(self.error(format!(
                        "tensor \"{}\" replaces one of the experts that GGUF has together",
                        tensor.name
                    )));
                }
                items.push(source.item(
                    format!("{name}{}", suffix::OVERRIDE),
                    *heads,
                    *change,
                    place,
                )?);
            }
        }
        types::choose(&mut items, None, &crate::mix::ModelFacts::default());
        Ok(items)
    }
}

/// The tensors that are made.
struct AdapterTensors {
    ty: GgmlType,
    items: Vec<Item>,
    elements: u64,
}

impl Default for AdapterTensors {
    fn default() -> AdapterTensors {
        AdapterTensors { ty: GgmlType::F32, items: Vec::new(), elements: 0 }
    }
}

impl AdapterTensors {
    /// Adds the factors for tensors of the base, by their names, with experts together.
    fn factors(
        &mut self,
        adapter: &Adapter<'_>,
        placed: Vec<PlacedFactors>,
    ) -> Result<(), ConvertError> {
        let mut experts: BTreeMap<String, Vec<Option<Factors>>> = BTreeMap::new();
        let mut seen = HashSet::new();
        for one in placed {
            let PlacedFactors { name, factors, magnitude, bias, expert } = one;
            let twice = |name: &str| adapter.error(format!("has two changes of \"{name}\""));
            match expert {
                None => {
                    if !seen.insert(name.clone()) {
                        return Err(twice(&name));
                    }
                    self.pair(adapter, &name, factors, false)?;
                    for (suffix, values) in [(suffix::MAGNITUDE, magnitude), (suffix::BIAS, bias)] {
                        if let Some(values) = values {
                            self.add(
                                adapter,
                                format!("{name}{suffix}"),
                                vec![values.len() as u64],
                                &values,
                                GgmlType::F32,
                            )?;
                        }
                    }
                }
                Some((index, count)) => {
                    let all = experts
                        .entry(name.clone())
                        .or_insert_with(|| (0..count).map(|_| None).collect());
                    match all.get_mut(index as usize) {
                        Some(place @ None) => *place = Some(factors),
                        _ => return Err(twice(&name)),
                    }
                }
            }
        }
        for (name, all) in experts {
            let rank = all.iter().flatten().map(Factors::rank).max().unwrap_or(0) as u64;
            let extent = all
                .iter()
                .flatten()
                .map(|one| one.left.rows + one.right.columns)
                .max()
                .unwrap_or(0) as u64;
            self.reserve(adapter, (all.len() as u64).saturating_mul(rank).saturating_mul(extent))?;
            let factors = Factors::stacked(all)
                .map_err(|problem| adapter.error(format!("\"{name}\" {problem}")))?;
            self.pair(adapter, &name, factors, true)?;
        }
        Ok(())
    }

    fn reserve(&mut self, adapter: &Adapter<'_>, elements: u64) -> Result<(), ConvertError> {
        let found = self.elements.saturating_add(elements);
        match found > MAX_ELEMENTS {
            true => Err(adapter.error(format!("has factors of {found} elements or more, more than the {MAX_ELEMENTS} that fit into memory"))),
            false => Ok(()),
        }
    }

    /// Adds the two factors of one tensor.
    fn pair(
        &mut self,
        adapter: &Adapter<'_>,
        name: &str,
        factors: Factors,
        stack: bool,
    ) -> Result<(), ConvertError> {
        let Factors { left, right } = factors;
        // The embedding's rows are looked up in the first, [r, vocabulary].
        let (a, b) = match name == EMBEDDING {
            true => (left, right.transposed()),
            false => (right, left),
        };
        for (suffix, stacked) in [(suffix::A, a), (suffix::B, b)] {
            let mut ne = vec![stacked.columns as u64, stacked.rows as u64];
            if stack || stacked.count > 1 {
                ne.push(stacked.count as u64);
            }
            self.add(adapter, format!("{name}{suffix}"), ne, &stacked.values, self.ty)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        adapter: &Adapter<'_>,
        name: String,
        ne: Vec<u64>,
        values: &[f32],
        ty: GgmlType,
    ) -> Result<(), ConvertError> {
        self.reserve(adapter, values.len() as u64)?;
        self.elements += values.len() as u64;
        if name.len() > MAX_NAME {
            return Err(adapter.error(format!(
                "would have the tensor \"{name}\", whose name is longer than {MAX_NAME} bytes"
            )));
        }
        let data = match WeightType::of(ty).filter(|_| ty != GgmlType::F32) {
            None => ItemData::of_floats(values),
            Some(weights) => {
                if let Some(found) =
                    values.iter().find(|value| ty == GgmlType::F16 && value.abs() >= 65_520.0)
                {
                    return Err(ConvertError::TooLarge {
                        path: adapter.folder.into(),
                        tensor: name,
                        found: *found,
                    });
                }
                let mut bytes = vec![0; ty.row_bytes(values.len() as u64).unwrap_or(0) as usize];
                quantize_row(Isa::best(), weights, values, &mut bytes);
                ItemData::Bytes(bytes.into())
            }
        };
        let (from, heads, change, order) = (Elements::Gguf(ty), None, Change::None, Order::Same);
        self.items.push(Item { name, ne, from, to: ty, data, heads, change, order });
        Ok(())
    }
}

/// Plans the file.
fn planned(
    folder: &Path,
    config: &AdapterConfig,
    architecture: &str,
    mut items: Vec<Item>,
) -> Result<Plan, ConvertError> {
    items.sort_by(|one, other| one.name.cmp(&other.name));
    // In the order of the base's tensors.
    let base = |name: &str| name.rfind(".lora_").map_or(name.len(), |at| at);
    let names: Vec<&str> = items.iter().map(|item| &item.name[..base(&item.name)]).collect();
    let items = execution_order(&names).into_iter().map(|i| items[i].clone()).collect::<Vec<_>>();
    let mut out = Builder::new();
    out.str(key::ARCHITECTURE, architecture);
    out.str(key::TYPE, "adapter");
    out.str(key::KIND, "lora");
    out.f32(key::ALPHA, file_alpha(config) as f32);
    if let Some(tokens) = &config.invocation {
        out.u32s(key::INVOCATION_TOKENS, tokens);
    }
    if let Some(name) =
        alight_files::file_name(folder).split('/').next_back().filter(|name| !name.is_empty())
    {
        out.str("general.name", name);
    }
    if let Some(base) = config.base.as_deref().filter(|base| base.len() <= 256) {
        out.u32("general.base_model.count", 1);
        let (organization, name) = base.rsplit_once('/').unwrap_or(("", base));
        out.str("general.base_model.0.name", name);
        // A path says nothing about who made it.
        if !organization.is_empty() && !organization.contains('/') {
            out.str("general.base_model.0.organization", organization);
        }
    }
    out.u32("general.file_type", types::file_type(&items, None));
    Plan::new(folder, out, items)
}

/// Returns the numerator that the file has: readers take 0 for none.
fn file_alpha(config: &AdapterConfig) -> f64 {
    if config.alpha == 0.0 { 1.0 } else { f64::from(config.alpha as f32) }
}
