//! Totals over a model's tensors.

use std::collections::BTreeMap;

use alight_formats::split::Catalog;
use serde::Serialize;

/// Totals over all tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of tensor data, without padding.
    pub tensor_bytes: u64,
    /// Bits per weight over all tensors; null without tensors.
    pub bits_per_weight: Option<f64>,
    /// By type, the one with the most bytes first.
    pub types: Vec<OfType>,
}

/// Totals over the tensors of one type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfType {
    /// The format's name for it.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Number of tensors.
    pub tensors: u64,
    /// Number of weights in them.
    pub parameters: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
}

impl Summary {
    /// Adds up the tensors of a model in GGUF.
    pub fn of_catalog(catalog: &Catalog<'_>) -> Summary {
        let tensors = catalog.tensors.iter().map(|tensor| &tensor.info);
        Summary::of(tensors.map(|info| (info.ty.name(), info.elements(), info.nbytes)))
    }

    /// Adds up tensors: type, elements, bytes.
    pub fn of(tensors: impl Iterator<Item = (&'static str, u64, u64)>) -> Summary {
        let mut by_type = BTreeMap::new();
        for (ty, elements, bytes) in tensors {
            // Sparse files can declare absurd sizes; a total of many can exceed 64 bits.
            let (count, all_elements, all_bytes) =
                by_type.entry(ty).or_insert((0_u64, 0_u64, 0_u64));
            *count += 1;
            *all_elements = all_elements.saturating_add(elements);
            *all_bytes = all_bytes.saturating_add(bytes);
        }
        let of_type = |(ty, (tensors, parameters, bytes))| OfType {
            ty,
            tensors,
            parameters,
            bytes,
            bits_per_weight: bits(bytes, parameters).unwrap_or(0.0),
        };
        let mut types: Vec<OfType> = by_type.into_iter().map(of_type).collect();
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        let parameters = sum(types.iter().map(|t| t.parameters));
        let tensor_bytes = sum(types.iter().map(|t| t.bytes));
        Summary { parameters, tensor_bytes, bits_per_weight: bits(tensor_bytes, parameters), types }
    }
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

fn bits(bytes: u64, parameters: u64) -> Option<f64> {
    (parameters > 0).then(|| bytes as f64 * 8.0 / parameters as f64)
}
