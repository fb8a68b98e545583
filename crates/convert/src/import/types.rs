//! What the types of a new file's tensors are.

use std::collections::BTreeMap;

use alight_formats::GgmlType;

use crate::quantize::{Recipe, Shape};
use crate::write::Item;

/// Makes every vector F32, as all programs expect it, and every matrix what `recipe` says, or else what
/// it is: only a type that nothing computes with becomes F32.
pub(crate) fn choose(items: &mut [Item], recipe: Option<Recipe>) {
    let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    let model = Shape::of(&names);
    for item in items {
        let same = item.from.current();
        item.to = match recipe.and_then(|recipe| recipe.of(&item.name, &item.ne, model)) {
            Some(ty) => ty,
            None if item.ne.len() == 1 && is_float(same) => GgmlType::F32,
            None if same == GgmlType::F64 => GgmlType::F32,
            None => same,
        };
    }
}

fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F16 | GgmlType::BF16 | GgmlType::F32 | GgmlType::F64)
}

/// `general.file_type`: by the type of most weights.
pub(crate) fn file_type(items: &[Item], recipe: Option<Recipe>) -> u32 {
    if let Some(recipe) = recipe {
        return recipe.file_type();
    }
    let mut weights: BTreeMap<GgmlType, u64> = BTreeMap::new();
    for item in items.iter().filter(|item| item.ne.len() > 1) {
        *weights.entry(item.to).or_default() += item.columns() * item.rows();
    }
    let most = weights.into_iter().max_by_key(|(_, n)| *n);
    match most.map(|(ty, _)| ty) {
        Some(GgmlType::F16) => 1,
        Some(GgmlType::Q4_0) => 2,
        Some(GgmlType::Q4_1) => 3,
        Some(GgmlType::Q8_0) => 7,
        Some(GgmlType::Q5_0) => 8,
        Some(GgmlType::Q5_1) => 9,
        Some(GgmlType::Q2_K) => 10,
        Some(GgmlType::Q3_K) => 12,
        Some(GgmlType::Q4_K) => 15,
        Some(GgmlType::Q5_K) => 17,
        Some(GgmlType::Q6_K) => 18,
        Some(GgmlType::BF16) => 32,
        _ => 0,
    }
}
