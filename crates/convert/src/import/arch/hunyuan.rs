//! `HunYuanDenseV1ForCausalLM`: Tencent's Hunyuan 0.5B to 7B: norms of each head after the rotation, whose base is raised by a factor (NTK); in GGUF the
//! base is the raised one.

use super::config::Config;
use super::describe::{
    Architecture, Defaults, Dim, Dimensions, Group, MATRICES, Own, Part, TWO_NORMS, norm,
};
use super::llama;
use crate::ConvertError;
use crate::import::tensor::Entry;

pub(super) const HUNYUAN_DENSE: Architecture = Architecture {
    gguf: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"],
    model_types: &["hunyuan_v1_dense"],
    defaults: Defaults { eps: 1e-5, ..llama::LLAMA.defaults },
    layer: &[Group::always(TWO_NORMS), Group::always(MATRICES), Group::always(NORMS)],
    permuted: false,
    never: &["attention_bias"],
    keys,
    ..llama::LLAMA
};

const NORMS: &[Part] = &[
    norm("self_attn.query_layernorm.weight", "attn_q_norm.weight", Dim::Head),
    norm("self_attn.key_layernorm.weight", "attn_k_norm.weight", Dim::Head),
];

/// The positions that models with a raised base can take: their configuration says fewer.
const RAISED_CONTEXT: u32 = 256 * 1024;

fn keys(config: &Config, dimensions: &Dimensions, own: &mut Own) -> Result<(), ConvertError> {
    for name in ["rope_scaling", "rope_parameters"] {
        let Some(set) = config.object(name)? else { continue };
        let kind = set.get("rope_type").or_else(|| set.get("type"));
        let Some(alpha) = set.get("alpha").filter(|_| kind.is_some_and(|kind| *kind == "dynamic"))
        else {
            continue;
        };
        let alpha = config.in_range(&format!("{name}.alpha"), alpha, 1.0..1e9)?;
        let head = dimensions.head as f64;
        let base = set.get("rope_theta").or_else(|| config.get("rope_theta"));
        let base =
            base.map_or(Ok(10_000.0), |base| config.in_range("rope_theta", base, 1.0..1e30))?;
        let raised = base * libm::pow(alpha, head / (head - 2.0));
        for (key, entry) in &mut own.keys {
            match *key {
                "rope.freq_base" => *entry = Entry::F32(raised as f32),
                "context_length" => *entry = Entry::U32(RAISED_CONTEXT),
                _ => {}
            }
        }
        own.add("rope.scaling.type", Entry::Str("none".into()));
        own.add("rope.scaling.factor", Entry::F32(1.0));
        own.add("rope.scaling.original_context_length", Entry::U32(RAISED_CONTEXT));
        // The scaling is not left out.
        own.notes.retain(|note| !note.starts_with("dynamic RoPE scaling"));
        break;
    }
    Ok(())
}
