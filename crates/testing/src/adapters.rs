//! Random LoRA adapters of model files, and what becomes of a model whose weights they are added to.

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{self, Gguf, TensorInfo};
use alight_kernels::dequant::dequantize_row;
use alight_kernels::half::f32_to_f16;

use crate::models::{Random, kernel_type};

/// How an adapter is made.
#[derive(Clone, Copy, Debug)]
pub struct AdapterSpec {
    pub rank: usize,
    pub alpha: f32,
    /// F32, F16 or BF16.
    pub ty: GgmlType,
    pub seed: u64,
    /// The largest number of a factor.
    pub size: f32,
    /// True if it has magnitudes (DoRA), and biases.
    pub dora: bool,
}

impl Default for AdapterSpec {
    fn default() -> AdapterSpec {
        AdapterSpec { rank: 2, alpha: 4.0, ty: GgmlType::F32, seed: 1, size: 0.06, dora: false }
    }
}

const EMBEDDING: &str = "token_embd.weight";

/// Returns the names of all matrices of a file, and stacks of them.
pub fn matrices(base: &[u8]) -> Vec<String> {
    let gguf = gguf::parse(base).unwrap();
    let is_matrix =
        |info: &&TensorInfo<'_>| info.name.ends_with(".weight") && info.ne[1] > 1 && info.ne[0] > 1;
    gguf.tensors.iter().filter(is_matrix).map(|info| info.name.to_owned()).collect()
}

/// Returns an adapter of these tensors of a model's file.
pub fn adapter(base: &[u8], spec: &AdapterSpec, names: &[String]) -> Vec<u8> {
    let gguf = gguf::parse(base).unwrap();
    let mut file = Builder::new();
    file.str("general.type", "adapter");
    file.str("general.architecture", gguf.get_str("general.architecture").unwrap().unwrap());
    file.str("adapter.type", "lora");
    file.f32("adapter.lora.alpha", spec.alpha);
    let mut sizes = Vec::new();
    let rank = spec.rank as u64;
    for name in names {
        let [cols, rows, experts, _] = gguf.tensor(name).unwrap().ne;
        let [a, b] = match name == EMBEDDING {
            true => [[rank, rows], [rank, cols]],
            false => [[cols, rank], [rank, rows]],
        };
        for (suffix, [inner, outer]) in [("lora_a", a), ("lora_b", b)] {
            let shape = [inner, outer, experts];
            let shape = if experts == 1 { &shape[..2] } else { &shape[..] };
            file.tensor(&format!("{name}.{suffix}"), spec.ty, shape).unwrap();
            sizes.push(spec.size);
        }
        // `merged` writes into the bias of the base.
        if spec.dora && experts == 1 && name != EMBEDDING {
            let bias = name.replace(".weight", ".bias");
            let suffixes = ["lora_magnitude", "lora_bias"];
            for suffix in &suffixes[..1 + usize::from(gguf.tensor(&bias).is_some())] {
                file.tensor(&format!("{name}.{suffix}"), GgmlType::F32, &[rows]).unwrap();
                sizes.push(if *suffix == "lora_bias" { spec.size } else { 0.0 });
            }
        }
    }
    let mut random = Random(spec.seed);
    file.file(|tensor, bytes| {
        let mut number = || match sizes[tensor] {
            // A magnitude.
            0.0 => 0.6 + 0.5 * random.signed().abs(),
            size => random.signed() * size,
        };
        match spec.ty {
            GgmlType::F16 => bytes
                .chunks_exact_mut(2)
                .for_each(|x| x.copy_from_slice(&f32_to_f16(number()).to_le_bytes())),
            GgmlType::BF16 => bytes
                .chunks_exact_mut(2)
                .for_each(|x| x.copy_from_slice(&number().to_le_bytes()[2..])),
            _ => bytes.chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&number().to_le_bytes())),
        }
    })
}

/// The numbers of a tensor.
fn numbers(file: &[u8], gguf: &Gguf<'_>, name: &str) -> Option<Vec<f64>> {
    let info = gguf.tensor(name)?;
    let mut values = vec![0.0; info.elements() as usize];
    dequantize_row(kernel_type(info.ty), &file[info.range()], &mut values);
    Some(values.into_iter().map(f64::from).collect())
}

/// Returns a model's file of F32 whose matrices have an adapter's products added, in float64.
pub fn merged(base: &[u8], adapter: &[u8], scale: f64) -> Vec<u8> {
    let (model, file) = (gguf::parse(base).unwrap(), gguf::parse(adapter).unwrap());
    let alpha = f64::from(file.get_f32("adapter.lora.alpha").unwrap().unwrap());
    let mut bytes = base.to_vec();
    for info in &model.tensors {
        let part = |suffix: &str| numbers(adapter, &file, &format!("{}.{suffix}", info.name));
        let (Some(a), Some(b)) = (part("lora_a"), part("lora_b")) else { continue };
        assert_eq!(info.ty, GgmlType::F32, "{}", info.name);
        let [cols, rows, ..] = info.ne.map(|n| n as usize);
        let rank = file.tensor(&format!("{}.lora_b", info.name)).unwrap().ne[0] as usize;
        let factor = scale * alpha / rank as f64;
        let is_table = info.name == EMBEDDING;
        let low = |expert: usize, row: usize, col: usize| {
            let a = &a[expert * rank * cols * usize::from(!is_table)..];
            let b = &b[expert * rows * rank * usize::from(!is_table)..];
            let term = |k: usize| match is_table {
                true => b[col * rank + k] * a[row * rank + k],
                false => b[row * rank + k] * a[k * cols + col],
            };
            (0..rank).map(term).sum::<f64>()
        };
        let magnitude = part("lora_magnitude");
        let mut biases = Vec::new();
        let weights = &mut bytes[info.range()];
        for (i, row_bytes) in weights.chunks_exact_mut(4 * cols).enumerate() {
            let (expert, row) = (i / rows, i % rows);
            let before: Vec<f64> = row_bytes
                .chunks_exact(4)
                .map(|w| f64::from(f32::from_le_bytes(w.try_into().unwrap())))
                .collect();
            let with = |factor: f64| -> Vec<f64> {
                (0..cols).map(|col| before[col] + factor * low(expert, row, col)).collect()
            };
            let gain = match &magnitude {
                None => 1.0,
                Some(magnitude) => {
                    let whole = with(alpha / rank as f64);
                    let norm = libm::sqrt(whole.iter().map(|w| w * w).sum::<f64>());
                    1.0 + scale * (magnitude[row] / norm - 1.0)
                }
            };
            if let Some(bias) = part("lora_bias") {
                let name = info.name.replace(".weight", ".bias");
                let at = model.tensor(&name).unwrap().range().start + 4 * row;
                let before = f32::from_le_bytes(base[at..at + 4].try_into().unwrap());
                let after = f64::from(before) + gain * factor * bias[row];
                biases.push((at, after as f32));
            }
            for (w, value) in row_bytes.chunks_exact_mut(4).zip(with(factor)) {
                w.copy_from_slice(&((gain * value) as f32).to_le_bytes());
            }
        }
        for (at, bias) in biases {
            bytes[at..at + 4].copy_from_slice(&f32::to_le_bytes(bias));
        }
    }
    bytes
}
