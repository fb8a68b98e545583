//! The numbers that determine shapes, checked against each other.

use serde_json::Value;

use super::config::Config;
use super::describe::{Architecture, COUNTS, Dim, Dimensions, Experts, Mixture, More};
use crate::ConvertError;

/// Limits far above any model; they are those of the program that runs it.
const MAX_LAYERS: u64 = 4096;
pub(super) const MAX_WIDTH: u64 = 1 << 20;
pub(super) const MAX_CONTEXT: u64 = 1 << 30;
const MAX_VOCAB: u64 = i32::MAX as u64;

impl Dimensions {
    /// Reads the dimensions from a configuration, for an embedding of `rows` rows.
    ///
    /// # Errors
    /// An impossible number, or numbers that do not match each other.
    pub(super) fn read(
        config: &Config,
        architecture: &Architecture,
        rows: u64,
    ) -> Result<Dimensions, ConvertError> {
        let default = &architecture.defaults;
        let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
        let layers = count("num_hidden_layers", MAX_LAYERS, default.layers)?;
        let hidden = count("hidden_size", MAX_WIDTH, default.hidden)?;
        let feed_forward = count("intermediate_size", MAX_WIDTH, default.feed_forward)?;
        let heads = count("num_attention_heads", MAX_WIDTH, default.heads)?;
        let context = count("max_position_embeddings", MAX_CONTEXT, default.context)?;
        let vocab = vocab(config, rows)?;

        // `null` means the number of heads, or the length that follows from it.
        let silent = |key| config.raw(key).is_none();
        let kv_heads = match config.count("num_key_value_heads", MAX_WIDTH)? {
            Some(found) => found,
            None if silent("num_key_value_heads") => default.kv_heads.unwrap_or(heads),
            None => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of num_attention_heads, {heads}");
            return Err(config.wrong("num_key_value_heads", &kv_heads.into(), &expected));
        }
        let head = match config.count("head_dim", MAX_WIDTH)? {
            Some(found) => Some(found),
            None if silent("head_dim") => default.head_length,
            None => None,
        };
        let follows = hidden.is_multiple_of(heads).then_some(hidden / heads);
        let Some(head) = head.or(follows) else {
            let expected =
                format!("a divisor of hidden_size, {hidden}, as config.json has no head_dim");
            return Err(config.wrong("num_attention_heads", &heads.into(), &expected));
        };
        if !architecture.own_head_length && Some(head) != follows {
            let expected = format!(
                "hidden_size / num_attention_heads ({hidden} / {heads}): {} has no other in GGUF",
                architecture.gguf
            );
            return Err(config.wrong("head_dim", &head.into(), &expected));
        }
        // Elements rotate in pairs.
        if head % 2 != 0 {
            return Err(config.wrong("head_dim", &head.into(), "an even number"));
        }
        if heads * head > MAX_WIDTH {
            let expected = format!("at most {} for {heads} heads", MAX_WIDTH / heads);
            return Err(config.wrong("head_dim", &head.into(), &expected));
        }
        let tied = match config.outer("tie_word_embeddings") {
            None => default.tied,
            Some(Value::Bool(tied)) => *tied,
            Some(other) => return Err(config.wrong("tie_word_embeddings", other, "true or false")),
        };
        if !tied && !architecture.own_output {
            let expected = format!("true: {} has no other output in GGUF", architecture.gguf);
            return Err(config.wrong("tie_word_embeddings", &tied.into(), &expected));
        }
        let eps = config.number(architecture.eps_key, 0.0..1.0)?.unwrap_or(default.eps) as f32;
        let mut dimensions = Dimensions {
            layers,
            hidden,
            feed_forward,
            heads,
            kv_heads,
            head,
            context,
            vocab,
            eps,
            tied,
            experts: architecture
                .experts
                .map(|mixture| experts(config, &mixture, architecture.gguf, feed_forward))
                .transpose()?,
            more: More::default(),
        };
        dimensions.more = (architecture.more)(config, &dimensions)?;
        dimensions.feed_forward = dimensions.more.feed_forward.unwrap_or(feed_forward);
        dimensions.head = dimensions.more.head.unwrap_or(head);
        Ok(dimensions)
    }

    /// Returns an extent of a tensor in this layer, as a number.
    pub(super) fn at(&self, layer: Option<u64>, dim: Dim) -> u64 {
        let sizes = layer.and_then(|n| self.more.layers.get(n as usize)).map(|layer| &layer.sizes);
        let own = sizes.and_then(|sizes| sizes.iter().find(|(known, _)| *known == dim));
        own.map_or_else(|| self.of(dim), |(_, size)| *size)
    }

    /// True if the layer has this trait.
    pub(super) fn has(&self, layer: u64, named: &str) -> bool {
        let layer = self.more.layers.get(layer as usize);
        layer.is_some_and(|layer| layer.traits.contains(&named))
    }

    /// Returns an extent as a number.
    pub(super) fn of(&self, dim: Dim) -> u64 {
        match dim {
            Dim::Named(_) => {
                let found = self.more.sizes.iter().find(|(known, _)| *known == dim);
                found.map_or(0, |(_, size)| *size)
            }
            Dim::Vocab => self.vocab,
            Dim::Hidden => self.hidden,
            Dim::FeedForward => self.feed_forward,
            Dim::Queries => self.heads * self.head,
            Dim::Keys => self.kv_heads * self.head,
            Dim::Head => self.head,
            Dim::One => 1,
            Dim::Experts => self.experts.map_or(0, |experts| experts.count),
            Dim::ExpertWidth => self.experts.map_or(0, |experts| experts.width),
            Dim::SharedWidth => self.experts.map_or(0, |experts| experts.shared),
            Dim::GateAndUp => 2 * self.of(Dim::ExpertWidth),
            Dim::SharedGateAndUp => 2 * self.of(Dim::SharedWidth),
            Dim::HiddenBlocks => self.hidden / 32,
            Dim::WidthBlocks => self.of(Dim::ExpertWidth) / 32,
            Dim::BlockBytes => 16,
            Dim::Heads => self.heads,
            Dim::KeyHeads => self.kv_heads,
            Dim::Fused => self.of(Dim::Queries) + 2 * self.of(Dim::Keys),
            Dim::FusedUp => 2 * self.feed_forward,
        }
    }

    /// Returns an extent in words, with its configuration key.
    pub(super) fn origin(&self, config: &Config, dim: Dim) -> String {
        let said = |key: &str, value: u64| match config.get(key) {
            Some(_) => format!("{key} {value}"),
            None => format!("{key}, which config.json leaves at {value}"),
        };
        let heads = |key, count| format!("{} × {}", said(key, count), said("head_dim", self.head));
        match dim {
            Dim::Vocab => "rows of the embedding".into(),
            Dim::Hidden => said("hidden_size", self.hidden),
            Dim::FeedForward => said("intermediate_size", self.feed_forward),
            Dim::Queries => heads("num_attention_heads", self.heads),
            Dim::Keys => heads("num_key_value_heads", self.kv_heads),
            Dim::Head => said("head_dim", self.head),
            Dim::One => "one row".into(),
            Dim::Named(name) => name.into(),
            Dim::Experts => format!("{} experts", self.of(dim)),
            Dim::ExpertWidth => format!("experts of width {}", self.of(dim)),
            Dim::GateAndUp => {
                format!("gate and up of experts of width {}", self.of(Dim::ExpertWidth))
            }
            Dim::SharedGateAndUp => {
                format!("gate and up of a shared expert of width {}", self.of(Dim::SharedWidth))
            }
            Dim::HiddenBlocks => format!("blocks of 32 in {}", said("hidden_size", self.hidden)),
            Dim::WidthBlocks => {
                format!("blocks of 32 in experts of width {}", self.of(Dim::ExpertWidth))
            }
            Dim::BlockBytes => "bytes of a block".into(),
            Dim::Heads => said("num_attention_heads", self.heads),
            Dim::KeyHeads => format!("num_key_value_heads, {}", self.kv_heads),
            Dim::Fused => format!(
                "all heads of queries, keys and values: {} + 2 × {}",
                self.of(Dim::Queries),
                self.of(Dim::Keys)
            ),
            Dim::FusedUp => format!("2 × {}", said("intermediate_size", self.feed_forward)),
            Dim::SharedWidth => format!("a shared expert of width {}", self.of(dim)),
        }
    }
}

/// Maximum number of experts of a layer.
const MAX_EXPERTS: u64 = 4096;

/// Reads the mixture of experts from a configuration.
fn experts(
    config: &Config,
    mixture: &Mixture,
    gguf: &str,
    feed_forward: u64,
) -> Result<Experts, ConvertError> {
    let number = |(key, default), most| config.count(key, most).map(|n| n.unwrap_or(default));
    let key = COUNTS.into_iter().find(|key| config.get(key).is_some()).unwrap_or(COUNTS[0]);
    let count = number((key, mixture.count), MAX_EXPERTS)?;
    let used = number(mixture.used, MAX_EXPERTS)?;
    if used > count {
        let expected = format!("at most {key}, {count}");
        return Err(config.wrong(mixture.used.0, &used.into(), &expected));
    }
    let width = mixture.width.map(|width| number(width, MAX_WIDTH)).transpose()?;
    let shared = mixture.shared.map(|shared| number(shared, MAX_WIDTH)).transpose()?;
    if let Some((default, always)) = mixture.normed {
        let key = "norm_topk_prob";
        let said = if config.get(key).is_some() { config.flag(key)? } else { default };
        if said != always {
            let expected = format!("{always}, which is what {gguf} has in GGUF");
            return Err(config.wrong(key, &said.into(), &expected));
        }
    }
    Ok(Experts { count, used, width: width.unwrap_or(feed_forward), shared: shared.unwrap_or(0) })
}

/// Returns the rows of the embedding, which must match the configuration.
fn vocab(config: &Config, rows: u64) -> Result<u64, ConvertError> {
    let promised = config.count("vocab_size", MAX_VOCAB)?;
    if let Some(promised) = promised.filter(|promised| *promised != rows) {
        let expected = format!("{rows}, the rows of the embedding");
        return Err(config.wrong("vocab_size", &promised.into(), &expected));
    }
    if !(1..=MAX_VOCAB).contains(&rows) {
        return Err(config.error(format!("an embedding of {rows} rows, expected 1 to {MAX_VOCAB}")));
    }
    Ok(rows)
}
