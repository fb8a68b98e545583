//! The architectures: one file each, and one line here that registers it.

mod afmoe;
mod apertus;
mod arcee;
mod bailingmoe;
mod bert;
mod bitnet;
mod chatglm;
mod cohere2;
mod cohere2moe;
mod command_r;
mod dbrx;
mod deci;
mod deepseek;
mod deepseek2;
mod dots1;
mod encoders;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_swa;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;
mod internlm2;
mod kimi_linear;
mod laguna;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
mod maincoder;
mod mamba;
mod mamba2;
mod maple;
mod mellum;
mod mimo2;
mod minicpm;
mod minicpm3;
mod minimax_m2;
mod minimax_m3;
mod mistral3;
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nanbeige;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmoe;
mod openelm;
mod orion;
mod phi3;
mod phimoe;
mod plamo3;
mod qwen;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod rwkv6;
mod rwkv7;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod spark2_5;
mod stablelm;
mod starcoder2;
mod step35;
mod t5encoder;
mod xverse;

use super::{ModelSpec, SpecError};
use crate::keys::Keys;

/// Every architecture that can be run.
const ALL: [&Architecture; 125] = [
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
    &bert::JINA_V2,
    &bert::JINA_V3,
    &bert::NOMIC,
    &bert::NOMIC_MOE,
    &modern_bert::ARCHITECTURE,
    &encoders::EUROBERT,
    &encoders::LLAMA_EMBED,
    &encoders::NEO_BERT,
    &encoders::GEMMA,
    &encoders::GEMMA_2,
    &gemma::ARCHITECTURE,
    &afmoe::ARCHITECTURE,
    &bailingmoe::ARCHITECTURE,
    &bailingmoe::SECOND,
    &chatglm::ARCHITECTURE,
    &deepseek::ARCHITECTURE,
    &dots1::ARCHITECTURE,
    &ernie4_5_moe::ARCHITECTURE,
    &exaone::ARCHITECTURE,
    &exaone::PANGU,
    &exaone::PLAMO,
    &exaone_moe::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gpt2::STARCODER,
    &gptneox::ARCHITECTURE,
    &gptneox::CODESHELL,
    &gptneox::PHI2,
    &gptneox::FALCON,
    &hunyuan_moe::ARCHITECTURE,
    &maincoder::ARCHITECTURE,
    &mamba2::ARCHITECTURE,
    &mellum::ARCHITECTURE,
    &nemotron::ARCHITECTURE,
    &nemotron::JAIS2,
    &orion::ARCHITECTURE,
    &qwen::ARCHITECTURE,
    &xverse::ARCHITECTURE,
    &t5encoder::ARCHITECTURE,
    &hy_v3::ARCHITECTURE,
    &granite_swa::ARCHITECTURE,
    &laguna::ARCHITECTURE,
    &step35::ARCHITECTURE,
    &mimo2::ARCHITECTURE,
    &apertus::ARCHITECTURE,
    &cohere2moe::ARCHITECTURE,
    &maple::ARCHITECTURE,
    &olmo::ARCHITECTURE,
    &dbrx::ARCHITECTURE,
    &bitnet::ARCHITECTURE,
    &deci::ARCHITECTURE,
    &openelm::ARCHITECTURE,
    &minicpm3::ARCHITECTURE,
    &minicpm3::PLM,
    &mpt::ARCHITECTURE,
    &mpt::BLOOM,
    &mpt::JAIS,
    &mpt::REFACT,
    &mpt::BAICHUAN,
    &falcon_h1::ARCHITECTURE,
    &mamba::ARCHITECTURE,
    &mamba::JAMBA,
    &kimi_linear::ARCHITECTURE,
    &kimi_linear::BAILING,
    &spark2_5::ARCHITECTURE,
    &muse_glimmer::ARCHITECTURE,
    &minimax_m3::ARCHITECTURE,
    &smallthinker::ARCHITECTURE,
    &deepseek2::DEEPSEEK32,
    &deepseek2::GLM_DSA,
    &hunyuan_dense::VL,
    &ernie4_5::PADDLE,
    &rwkv7::ARCHITECTURE,
    &rwkv7::IN_QWEN,
    &rwkv6::ARCHITECTURE,
    &rwkv6::IN_QWEN,
    &plamo3::ARCHITECTURE,
    &nanbeige::ARCHITECTURE,
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
