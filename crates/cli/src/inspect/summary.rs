//! Totals over a model's tensors.

use alight_formats::GgmlType;
use alight_formats::split::Catalog;
use serde::Serialize;

/// Totals over all tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Weights.
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
    /// ggml's name.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// How many tensors.
    pub tensors: u64,
    /// Weights in them.
    pub parameters: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
}

impl Summary {
    /// Adds up a catalog.
    pub fn of(catalog: &Catalog<'_>) -> Summary {
        let mut types = Vec::new();
        for &ty in GgmlType::ALL {
            let of_type = || catalog.tensors.iter().filter(move |t| t.info.ty == ty);
            let parameters = sum(of_type().map(|t| t.info.elements()));
            let bytes = sum(of_type().map(|t| t.info.nbytes));
            let tensors = of_type().count() as u64;
            if let Some(bits_per_weight) = bits(bytes, parameters) {
                types.push(OfType { ty: ty.name(), tensors, parameters, bytes, bits_per_weight });
            }
        }
        types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
        let parameters = sum(types.iter().map(|t| t.parameters));
        let tensor_bytes = sum(types.iter().map(|t| t.bytes));
        Summary { parameters, tensor_bytes, bits_per_weight: bits(tensor_bytes, parameters), types }
    }
}

/// Sparse files can announce absurd sizes; a total of many may pass 64 bits.
fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}

fn bits(bytes: u64, parameters: u64) -> Option<f64> {
    (parameters > 0).then(|| bytes as f64 * 8.0 / parameters as f64)
}
