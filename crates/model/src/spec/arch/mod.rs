//! The architectures: one file each, and one line here that registers it.

mod arcee;
mod bert;
mod cohere2;
mod command_r;
mod deepseek2;
mod encoders;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod internlm2;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
mod minicpm;
mod minimax_m2;
mod mistral3;
mod modern_bert;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use super::{ModelSpec, SpecError};
use crate::keys::Keys;

/// Every architecture that can be run.
const ALL: [&Architecture; 56] = [
    &llama::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &gemma3n::ARCHITECTURE,
    &gemma4::ARCHITECTURE,
    &granite::ARCHITECTURE,
    &seed_oss::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &mistral3::ARCHITECTURE,
    &glm4::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &phimoe::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &exaone4::ARCHITECTURE,
    &qwen2vl::ARCHITECTURE,
    &qwen3vl::ARCHITECTURE,
    &qwen3vl::MIXTURE,
    &qwen35::ARCHITECTURE,
    &qwen35moe::ARCHITECTURE,
    &qwen3next::ARCHITECTURE,
    &ernie4_5::ARCHITECTURE,
    &internlm2::ARCHITECTURE,
    &qwen3moe::ARCHITECTURE,
    &qwen2moe::ARCHITECTURE,
    &olmoe::ARCHITECTURE,
    &granitemoe::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
    &gpt_oss::OLLAMAS,
    &glm4moe::ARCHITECTURE,
    &deepseek2::ARCHITECTURE,
    &deepseek2::MISTRAL4,
    &minimax_m2::ARCHITECTURE,
    &llama4::ARCHITECTURE,
    &arcee::ARCHITECTURE,
    &starcoder2::ARCHITECTURE,
    &stablelm::ARCHITECTURE,
    &command_r::ARCHITECTURE,
    &cohere2::ARCHITECTURE,
    &minicpm::ARCHITECTURE,
    &hunyuan_dense::ARCHITECTURE,
    &granitehybrid::ARCHITECTURE,
    &lfm2::ARCHITECTURE,
    &lfm2moe::ARCHITECTURE,
    &nemotron_h::ARCHITECTURE,
    &nemotron_h::MIXTURE,
    &bert::ARCHITECTURE,
    &bert::JINA_V3,
    &bert::NOMIC,
    &bert::NOMIC_MOE,
    &modern_bert::ARCHITECTURE,
    &encoders::EUROBERT,
    &encoders::LLAMA_EMBED,
    &encoders::NEO_BERT,
    &encoders::GEMMA,
];

/// A family of networks.
#[derive(Debug)]
pub struct Architecture {
    /// The name in `general.architecture`, which is also the prefix of its keys.
    pub name: &'static str,
    /// Reads the network from the metadata.
    pub(super) read: fn(&Keys<'_, '_>) -> Result<ModelSpec, SpecError>,
}

/// Every architecture that can be run.
pub fn architectures() -> impl Iterator<Item = &'static Architecture> {
    ALL.into_iter()
}

/// Returns the architecture called `name`.
///
/// # Errors
/// [`SpecError::Architecture`], which lists the supported ones.
pub(super) fn named(name: &str) -> Result<&'static Architecture, SpecError> {
    architectures().find(|a| a.name == name).ok_or_else(|| SpecError::Architecture {
        found: name.into(),
        supported: ALL.map(|a| a.name).join(", "),
    })
}
