//! The types of a new file's tensors.

use std::collections::BTreeMap;

use alight_formats::GgmlType;

use crate::mix::{ModelFacts, QuantizationMix, Shape};
use crate::tensor_types::{self, TensorTypes};
use crate::write::Item;

/// `general.file_type` of an F32 file, and of files without a number of their own.
const ALL_F32: u32 = 0;

/// Makes every vector F32, as all programs expect, and gives every matrix the type chosen by `mix` for a model with these facts,
/// or else keeps its type: only a type without kernels becomes F32. Returns a note about matrices that the type does not fit.
pub(crate) fn choose(
    items: &mut [Item],
    mix: Option<QuantizationMix>,
    facts: &ModelFacts,
) -> Option<String> {
    let types = TensorTypes::default();
    let model = Shape::of(items.iter().map(|item| item.name.as_str()), facts);
    let chosen = |item: &Item| types.choose(mix?, &item.name, &item.ne, &model);
    let of =
        |item: &'_ Item| chosen(item).map(|chosen| (item.name.clone(), item.columns(), chosen));
    let all: Vec<_> = items.iter().filter_map(of).collect();
    for item in items.iter_mut() {
        let same = item.from.current();
        let chosen = chosen(item);
        item.to = match chosen {
            Some(chosen) => chosen.to,
            None if is_float(same) && (item.ne.len() == 1 || is_small(&item.name)) => GgmlType::F32,
            None if same == GgmlType::F64 => GgmlType::F32,
            None => same,
        };
    }
    tensor_types::note(all.iter().map(|(name, columns, chosen)| (&**name, *columns, *chosen)))
}

/// Routers, biases of experts, tables of positions and token types, taps of convolutions and all tensors of a recurrent layer except its projections: they are small and
/// matter much, and all programs have them in F32.
fn is_small(name: &str) -> bool {
    let ends = [
        "ffn_gate_inp.weight",
        "position_embd.weight",
        "token_types.weight",
        ".bias",
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        "ssm_a",
        "ssm_d",
        "ssm_norm.weight",
    ];
    ends.iter().any(|end| name.ends_with(end))
}

fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F16 | GgmlType::BF16 | GgmlType::F32 | GgmlType::F64)
}

/// Returns `general.file_type`, from the type of most weights.
pub(crate) fn file_type(items: &[Item], mix: Option<QuantizationMix>) -> u32 {
    if let Some(mix) = mix {
        return mix.file_type();
    }
    let mut weights: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for item in items.iter().filter(|item| item.ne.len() > 1) {
        *weights.entry(item.to).or_default() += item.columns() * item.rows();
    }
    let most = weights.into_iter().max_by_key(|(_, n)| *n);
    match most.map(|(ty, _)| ty) {
        // It has three mixes: the middle one.
        Some(GgmlType::Q3_K) => QuantizationMix::Q3_K_M.file_type(),
        Some(ty) => QuantizationMix::of_type(ty).map_or(ALL_F32, QuantizationMix::file_type),
        None => ALL_F32,
    }
}
