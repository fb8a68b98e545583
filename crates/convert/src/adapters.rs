//! Adapters for a model: whether they fit, and what they change in its tensors.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use alight_files::{copy, parse};
use alight_formats::GgmlType;
use alight_formats::adapter::{AdapterFile, EMBEDDING, JOINED, LowRankFactors, TensorChange};
use alight_formats::gguf::TensorInfo;
use alight_kernels::{WeightType, dequantize_row};
use alight_pages::Map;

use crate::ConvertError;
use crate::mix::QuantizationMix;
use crate::write::{Change, Dora, Elements, Item, ItemData, LowRank, Merge, Order, Term};

/// Maximum number of elements of all factors together: they are in memory.
const MAX_ELEMENTS: u64 = 1 << 32;
/// Maximum number of columns of a matrix that is changed: whole rows are in memory.
const MAX_COLUMNS: u64 = 1 << 23;
const OUTPUT: &str = "output.weight";

/// An adapter, and how strongly it acts.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledAdapter<'p> {
    /// The file: a GGUF adapter.
    pub path: &'p Path,
    /// On its change; 1 is what it was trained for.
    pub scale: f32,
}

/// Returns how an adapter does not fit a model: one sentence for each tensor. `extents` returns those of the model's tensor, innermost first.
pub fn misfits<'m>(
    adapter: &AdapterFile<'_>,
    architecture: &str,
    extents: impl Fn(&str) -> Option<&'m [u64]>,
) -> Vec<String> {
    let mut all = Vec::new();
    if adapter.architecture != architecture {
        all.push(format!(
            "it is for the architecture \"{}\", and the model's is \"{architecture}\"",
            adapter.architecture
        ));
    }
    for (name, change) in &adapter.changes {
        let own = match change {
            TensorChange::LowRank(factors) => low_rank_extents(name, factors),
            TensorChange::Delta(info) | TensorChange::Override(info) => info.shape().to_vec(),
        };
        let Some(found) = extents(name) else {
            if parts_of(name, &extents, own.get(1).copied().unwrap_or(1)).is_none()
                || own.len() != 2
            {
                all.push(format!("the model has no tensor \"{name}\", which it changes"));
            }
            continue;
        };
        // A matrix of one row is a vector.
        let same = trimmed(found) == trimmed(&own);
        if !same {
            all.push(format!("\"{name}\" is {found:?}, expected {own:?}, which it changes"));
        }
    }
    all
}

fn low_rank_extents(name: &str, factors: &LowRankFactors<'_>) -> Vec<u64> {
    let mut own = factors.base_extents(name).to_vec();
    if factors.a.n_dims > 2 {
        own.push(factors.experts());
    }
    own
}

fn trimmed(extents: &[u64]) -> &[u64] {
    let end = extents.iter().rposition(|extent| *extent != 1).map_or(1, |last| last + 1);
    &extents[..end.min(extents.len())]
}

/// Rows of a tensor of the model, and the first row of the adapter's that is for them.
struct FusedPart {
    name: String,
    first: u64,
    rows: u64,
    own: u64,
}

/// Returns the tensors of the model that have the rows of `name` where it has them together with others, or divided.
fn parts_of<'m>(
    name: &str,
    extents: &impl Fn(&str) -> Option<&'m [u64]>,
    rows: u64,
) -> Option<Vec<FusedPart>> {
    let rows_of = |name: &str| extents(name).and_then(|extents| extents.get(1).copied());
    let (layer, what) = name.strip_suffix(".weight")?.rsplit_once('.')?;
    let named = |what: &str| format!("{layer}.{what}.weight");
    for (whole, parts) in JOINED {
        if what == whole {
            let (mut found, mut own) = (Vec::new(), 0);
            for part in parts {
                let name = named(part);
                let rows = rows_of(&name)?;
                found.push(FusedPart { name, first: 0, rows, own });
                own += rows;
            }
            return (own == rows).then_some(found);
        }
        let Some(i) = parts.iter().position(|part| *part == what) else { continue };
        let name = named(whole);
        let all = rows_of(&name)?;
        // All but the first have as many rows: keys and values, which follow the queries.
        let after = rows.checked_mul((parts.len() - i) as u64)?;
        let first = if i == 0 { 0 } else { all.checked_sub(after)? };
        return (first + rows <= all).then(|| vec![FusedPart { name, first, rows, own: 0 }]);
    }
    None
}

/// The changes of a model by adapters.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) merges: HashMap<String, Merge>,
    /// Tensors in place of the model's: the number of the file, and where in it.
    overrides: BTreeMap<String, (usize, GgmlType, u64)>,
    /// Additions to vectors that the model may not have.
    deltas: Vec<(String, Vec<f32>, f32)>,
    elements: u64,
}

impl Changes {
    /// Reads the adapter in `map`, which will be the file of number `file`, for a model with these tensors.
    ///
    /// # Errors
    /// It is no adapter, or is for another model.
    pub(crate) fn add(
        &mut self,
        map: &Map,
        file: usize,
        scale: f32,
        architecture: &str,
        items: &HashMap<String, Vec<u64>>,
    ) -> Result<(), ConvertError> {
        let wrong = |problem: String| ConvertError::Source { path: map.path().into(), problem };
        let header = copy(map);
        let gguf = parse(map, &header)?;
        let adapter = AdapterFile::read(&gguf).map_err(|error| wrong(error.to_string()))?;
        if adapter.invocation_tokens.is_some() {
            return Err(wrong("acts only after certain tokens (activated LoRA): a merged model would have it everywhere".into()));
        }
        let extents = |name: &str| items.get(name).map(Vec::as_slice);
        let misfits = misfits(&adapter, architecture, extents);
        if let Some(first) = misfits.first() {
            let more = match misfits.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            return Err(wrong(format!("does not fit the model: {first}{more}")));
        }
        for (name, change) in &adapter.changes {
            match change {
                TensorChange::LowRank(factors) => {
                    self.low_rank(map, name, factors, (adapter.alpha, scale), items)?
                }
                TensorChange::Delta(info) => {
                    let values = self.values(map, info)?;
                    self.push(name, Term::Delta { values, scale });
                }
                TensorChange::Override(info) => {
                    if scale != 1.0 {
                        return Err(wrong(format!(
                            "replaces \"{name}\", which has no form at the scale {scale}: take 1"
                        )));
                    }
                    if self
                        .overrides
                        .insert((*name).to_owned(), (file, info.ty, info.offset))
                        .is_some()
                    {
                        return Err(wrong(format!(
                            "replaces \"{name}\", which another adapter replaces too"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, name: &str, term: Term) {
        self.merges.entry(name.to_owned()).or_default().terms.push(term);
    }

    /// Reads a tensor.
    fn values(&mut self, map: &Map, info: &TensorInfo<'_>) -> Result<Vec<f32>, ConvertError> {
        let wrong = |problem: String| ConvertError::Source { path: map.path().into(), problem };
        self.elements = self.elements.saturating_add(info.elements());
        if self.elements > MAX_ELEMENTS {
            return Err(wrong(format!(
                "has more than {MAX_ELEMENTS} elements with the adapters before it"
            )));
        }
        let Some(ty) = WeightType::of(info.ty) else {
            return Err(ConvertError::Unreadable {
                path: map.path().into(),
                tensor: info.name.into(),
                ty: info.ty,
            });
        };
        let mut bytes = vec![0; info.nbytes as usize];
        map.read(&mut bytes, info.offset)?;
        let mut values = vec![0.0; info.elements() as usize];
        dequantize_row(ty, &bytes, &mut values);
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => {
                Err(ConvertError::NotFinite { path: map.path().into(), tensor: info.name.into() })
            }
        }
    }

    fn low_rank(
        &mut self,
        map: &Map,
        name: &str,
        factors: &LowRankFactors<'_>,
        (alpha, user): (f32, f32),
        items: &HashMap<String, Vec<u64>>,
    ) -> Result<(), ConvertError> {
        let wrong = |problem: String| ConvertError::Source { path: map.path().into(), problem };
        let rank = factors.rank as usize;
        let (mut a, mut b) = (self.values(map, &factors.a)?, self.values(map, &factors.b)?);
        let [columns, rows] = factors.base_extents(name);
        if columns > MAX_COLUMNS {
            return Err(wrong(format!(
                "changes rows of {columns} elements, at most {MAX_COLUMNS}"
            )));
        }
        if LowRankFactors::is_embedding(name) {
            // `[r, hidden]` becomes A, and `[r, vocabulary]` is B.
            let hidden = columns as usize;
            let turned = (0..rank).flat_map(|k| (0..hidden).map(move |i| (i, k)));
            let turned = turned.map(|(i, k)| b[i * rank + k]).collect();
            (a, b) = (turned, a);
        }
        let scale = factors.scale(alpha, user);
        let magnitudes = factors.magnitude.map(|info| self.values(map, &info)).transpose()?;
        if magnitudes.is_some() && factors.bias.is_some() {
            return Err(wrong(format!("has magnitudes and a bias for \"{name}\"")));
        }
        if let Some(bias) = &factors.bias {
            let values = self.values(map, bias)?;
            let Some(start) = name.strip_suffix(".weight") else {
                return Err(wrong(format!("has a bias for \"{name}\", which can have none")));
            };
            self.deltas.push((format!("{start}.bias"), values, scale));
        }
        let parts = match items.contains_key(name) {
            true => vec![FusedPart { name: name.to_owned(), first: 0, rows, own: 0 }],
            // It has been checked.
            false => {
                parts_of(name, &|name| items.get(name).map(Vec::as_slice), rows).unwrap_or_default()
            }
        };
        let whole = parts.len() == 1;
        for part in parts {
            let of_item = items.get(&part.name).and_then(|ne| ne.get(1).copied()).unwrap_or(1);
            let own = part.own as usize..(part.own + part.rows) as usize;
            let dora = magnitudes.as_ref().map(|all| Dora {
                magnitudes: all[own.clone()].to_vec(),
                scale: factors.scale(alpha, 1.0),
                strength: user,
            });
            let (a, b) = match whole {
                true => (std::mem::take(&mut a), std::mem::take(&mut b)),
                false => (a.clone(), b[own.start * rank..own.end * rank].to_vec()),
            };
            self.push(
                &part.name,
                Term::LowRank(LowRank {
                    a,
                    b,
                    rank,
                    rows: of_item as usize,
                    of: part.first as usize..(part.first + part.rows) as usize,
                    scale,
                    dora,
                }),
            );
        }
        Ok(())
    }

    /// Changes the tensors of the new file: their types where they cannot be made, their sources where they are replaced; and adds those
    /// that the model lacks. Returns notes.
    pub(crate) fn apply(
        &mut self,
        items: &mut Vec<Item>,
        mix: Option<QuantizationMix>,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        let is_tied = !items.iter().any(|item| item.name == OUTPUT);
        let changes_embedding = self.merges.contains_key(EMBEDDING);
        if is_tied
            && changes_embedding
            && let Some(embedding) = items.iter().find(|item| item.name == EMBEDDING)
        {
            // The output stays what it was.
            let output = Item { name: OUTPUT.into(), ..embedding.clone() };
            items.push(output);
            notes.push("the model's output was its embedding, which the adapter changes alone: the new file has both".into());
        }
        let mut missing: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for (name, values, scale) in std::mem::take(&mut self.deltas) {
            if items.iter().any(|item| item.name == name) {
                self.push(&name, Term::Delta { values, scale });
                continue;
            }
            let sums = missing.entry(name).or_insert_with(|| vec![0.0; values.len()]);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * scale);
        }
        for (name, values) in missing {
            notes.push(format!(
                "the adapter adds the bias \"{name}\", which the model does not have"
            ));
            let (from, to) = (Elements::Gguf(GgmlType::F32), GgmlType::F32);
            let (data, heads, change, order) =
                (ItemData::of_floats(&values), None, Change::None, Order::Same);
            items.push(Item {
                name,
                ne: vec![values.len() as u64],
                from,
                to,
                data,
                heads,
                change,
                order,
            });
        }
        let mut coarse = 0;
        let mut other = Vec::new();
        for item in items.iter_mut() {
            if let Some((file, ty, offset)) = self.overrides.get(&item.name) {
                let is_same = item.from.current() == item.to;
                item.from = Elements::Gguf(*ty);
                item.data = ItemData::whole(*file, *offset, &item.ne);
                if mix.is_none() && is_same {
                    item.to = *ty;
                }
            }
            if self.merges.contains_key(&item.name) {
                if WeightType::of(item.to).is_none_or(|ty| !ty.quantizes()) {
                    other.push(item.to);
                    item.to = GgmlType::F16;
                }
                coarse += usize::from(item.from.block() > 1 && item.to.is_quantised());
            }
        }
        if let Some(ty) = other.first() {
            notes.push(format!(
                "{} of the changed matrices become F16: none can be made of the type {ty}",
                other.len()
            ));
        }
        if coarse > 0 {
            notes.push(format!(
                "{coarse} of the changed matrices are quantised, which loses part of a small change: a model of F16 or BF16, \
                 merged and then quantised, is better"
            ));
        }
        notes
    }
}
