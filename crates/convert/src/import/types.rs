//! What the types of a new file's tensors are.

use std::collections::BTreeMap;

use alight_formats::GgmlType;

use crate::quantize::{Recipe, Shape};
use crate::write::Item;

/// `general.file_type` of a file of F32, and of what has no number.
const ALL_F32: u32 = 0;

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
        // Of these there are files, but nothing here makes them.
        Some(GgmlType::Q2_K) => 10,
        Some(GgmlType::Q3_K) => 12,
        Some(ty) => Recipe::of_type(ty).map_or(ALL_F32, Recipe::file_type),
        None => ALL_F32,
    }
}
