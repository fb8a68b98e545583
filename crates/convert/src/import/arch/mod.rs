//! Maps other programs' configurations and names to those of GGUF.
//!
//! An architecture is data ([`describe`]): its own file lists the defaults of its configuration,
//! the tensors of a layer, and the metadata specific to it. The rest is the same for all. Keys,
//! their types and their order are those of llama.cpp's `convert_hf_to_gguf.py`; defaults are those
//! of `transformers`.

mod afmoe;
mod arcee;
mod cohere;
pub(super) mod config;
mod deepseek;
mod describe;
mod dimensions;
mod dots1;
mod encoder;
mod ernie4_5;
mod exaone;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod general;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan;
mod lfm2;
mod llama;
mod llama4;
mod mamba2;
mod minimax_m2;
mod mistral;
mod mixtral;
mod naming;
mod nemotron;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3_5;
mod qwen3_next;
mod qwen3moe;
mod refuse;
mod reranker;
pub(crate) mod rope;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod tensors;
mod window;

#[cfg(test)]
mod tests;

use self::config::Config;
use self::describe::{Architecture, Dim, Dimensions, Own};
use self::rope::Rope;
pub(crate) use self::tensors::BasePlace;
use self::tensors::NetworkTensors;
use super::sentence::SentenceTransformer;
use super::side::SideFiles;
use super::tensor::{Described, Entry, Network};
use crate::ConvertError;

static KNOWN: [Architecture; 56] = [
    llama::LLAMA,
    llama4::LLAMA4,
    mistral::MISTRAL,
    mixtral::MIXTRAL,
    qwen2::QWEN2,
    qwen2moe::QWEN2MOE,
    qwen3::QWEN3,
    qwen3moe::QWEN3MOE,
    qwen3_next::QWEN3_NEXT,
    qwen3_5::QWEN3_5,
    qwen3_5::QWEN3_5_MOE,
    deepseek::DEEPSEEK_V2,
    deepseek::DEEPSEEK_V3,
    glm4::GLM4,
    glm4_moe::GLM4_MOE,
    gemma2::GEMMA2,
    // Both have the same model_type.
    gemma3::EMBEDDING,
    gemma3::GEMMA3,
    gemma4::GEMMA4,
    gemma4::GEMMA4_SMALL,
    gemma4::GEMMA4_MOE,
    gpt_oss::GPT_OSS,
    granite::GRANITE,
    granitemoe::GRANITEMOE,
    granitemoe::GRANITEMOE_SHARED,
    granitehybrid::HYBRID,
    granitehybrid::HYBRID_MOE,
    granitehybrid::ATTENTION_DENSE,
    granitehybrid::ATTENTION_MOE,
    lfm2::LFM2,
    lfm2::LFM2_MOE,
    minimax_m2::MINIMAX_M2,
    olmo2::OLMO2,
    olmo2::OLMO3,
    phi3::PHI3,
    seed_oss::SEED_OSS,
    smollm3::SMOLLM3,
    afmoe::AFMOE,
    arcee::ARCEE,
    cohere::COHERE,
    cohere::COHERE2,
    dots1::DOTS1,
    ernie4_5::ERNIE4_5,
    ernie4_5::ERNIE4_5_MOE,
    exaone4::EXAONE4,
    gemma::GEMMA,
    hunyuan::HUNYUAN_DENSE,
    nemotron::NEMOTRON,
    olmoe::OLMOE,
    stablelm::STABLELM,
    starcoder2::STARCODER2,
    exaone::EXAONE,
    falcon::FALCON,
    gpt2::GPT2,
    gpt_neox::GPT_NEOX,
    mamba2::MAMBA2,
];

/// Describes the network of a Hugging Face folder.
///
/// # Errors
/// It has no `config.json`, an unknown architecture, or tensors that do not fit.
pub(crate) fn huggingface(
    side: &SideFiles,
    tensors: &[Described<'_>],
) -> Result<Network, ConvertError> {
    let config = Config::read(side)?;
    if let Some(encoder) = encoder::network(side, &config, tensors)? {
        return Ok(encoder);
    }
    let architecture = refuse::recognise(&config, &KNOWN)?;
    let config = &config.with_usual_names(architecture.naming.keys);
    let sentence = SentenceTransformer::read(side)?;
    let pooling = sentence.as_ref().and_then(|found| found.pooling);
    let mut source = NetworkTensors::find(config, &architecture.naming, tensors)?;
    source.of_vectors = pooling.is_some();
    let dimensions = Dimensions::read(config, architecture, source.rows)?;
    let rope = Rope::read(config, &architecture.defaults, dimensions.context)?;
    let (rules, mut parameters) = source.place(config, architecture, &dimensions)?;

    let mut extra = Vec::new();
    for (name, factors) in rope.factors(config, dimensions.head)? {
        parameters = parameters.saturating_add(factors.len() as u64);
        extra.push((name.into(), factors));
    }
    let mut own = Own::default();
    network_keys(config, architecture, &dimensions, &rope, &mut own)?;
    if let Some(pooling) = pooling {
        own.add("pooling_type", Entry::U32(pooling.number()));
    }
    let scores =
        architecture.gguf == "qwen3" && pooling.is_none() && reranker::is_reranker(side, config)?;
    let mut notes = own.notes;
    let mut keys = general::keys(side, config, parameters, &mut notes)?;
    let prefix = architecture.gguf;
    keys.extend(own.keys.into_iter().map(|(key, entry)| (format!("{prefix}.{key}"), entry)));
    keys.extend(sentence.iter().flat_map(SentenceTransformer::keys));
    let (vocab, tile) = (dimensions.vocab, source.tile);
    let templates = Vec::new();
    let mut network =
        Network { architecture: prefix, keys, rules, extra, vocab, tile, templates, notes };
    if scores {
        reranker::score(side, &mut network)?;
    }
    Ok(network)
}

/// The tensors of a base model that an adapter changes.
pub(crate) struct AdaptedBase {
    /// `general.architecture`.
    pub(crate) architecture: &'static str,
    /// True if the output is the embedding.
    pub(crate) tied: bool,
    /// The place of each name; `None` for those that the model does not have.
    pub(crate) places: Vec<Option<BasePlace>>,
}

/// Returns what becomes of the tensors `names` of the model in a Hugging Face folder, of which only the configuration is read.
///
/// # Errors
/// It has no `config.json`, an unknown architecture, or one of the tensors has no place in GGUF.
pub(crate) fn base(side: &SideFiles, names: &[&str]) -> Result<AdaptedBase, ConvertError> {
    let config = Config::read(side)?.without_quantization();
    if let Some(base) = encoder::base(&config, names)? {
        return Ok(base);
    }
    let architecture = refuse::recognise(&config, &KNOWN)?;
    let config = &config.with_usual_names(architecture.naming.keys);
    let Some(rows) = config.count("vocab_size", u64::from(u32::MAX))? else {
        return Err(config.error("has no vocab_size: expected the number of rows of the embedding"));
    };
    let dimensions = Dimensions::read(config, architecture, rows)?;
    let places = tensors::places(config, architecture, &dimensions, names)?;
    Ok(AdaptedBase { architecture: architecture.gguf, tied: dimensions.tied, places })
}

/// Returns the keys under the architecture's name. The limits of all numbers are far below `u32`.
fn network_keys(
    config: &Config,
    architecture: &Architecture,
    dimensions: &Dimensions,
    rope: &Rope,
    own: &mut Own,
) -> Result<(), ConvertError> {
    for (key, value) in [
        ("block_count", dimensions.layers),
        ("context_length", dimensions.context),
        ("embedding_length", dimensions.hidden),
    ] {
        own.add(key, Entry::U32(value as u32));
    }
    let widths = (0..dimensions.layers).map(|layer| dimensions.at(Some(layer), Dim::FeedForward));
    let widths: Vec<i32> = widths.map(|width| width as i32).collect();
    own.add(
        "feed_forward_length",
        match widths.iter().all(|width| *width == widths[0]) {
            true => Entry::U32(dimensions.at(Some(0), Dim::FeedForward) as u32),
            false => Entry::I32s(widths),
        },
    );
    own.add("attention.head_count", Entry::U32(dimensions.heads as u32));
    let kv_heads = if architecture.latent { 1 } else { dimensions.kv_heads };
    own.add(
        "attention.head_count_kv",
        match &dimensions.more.kv_heads[..] {
            [] => Entry::U32(kv_heads as u32),
            each => Entry::I32s(each.iter().map(|count| *count as i32).collect()),
        },
    );
    if architecture.defaults.partial.is_some() {
        own.add("rope.dimension_count", Entry::U32(rope.rotated(dimensions.head) as u32));
    }
    rope.keys(own);
    own.add(architecture.norm, Entry::F32(dimensions.eps));
    if let Some(experts) = &dimensions.experts {
        own.add("expert_count", Entry::U32(experts.count as u32));
        own.add("expert_used_count", Entry::U32(experts.used as u32));
    }
    if architecture.own_head_length && !architecture.latent {
        for key in ["attention.key_length", "attention.value_length"] {
            own.add(key, Entry::U32(dimensions.head as u32));
        }
    }
    if let (Some(mixture), Some(experts)) = (&architecture.experts, &dimensions.experts) {
        if mixture.width.is_some() {
            own.add("expert_feed_forward_length", Entry::U32(experts.width as u32));
        }
        if mixture.shared.is_some() {
            own.add("expert_shared_feed_forward_length", Entry::U32(experts.shared as u32));
        }
    }
    (architecture.keys)(config, dimensions, own)
}
