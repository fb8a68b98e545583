//! BERT, RoBERTa (XLM-R, CamemBERT) and DistilBERT: one graph in GGUF, `bert`.
//!
//! RoBERTa numbers positions from the padding token's id plus one, so the rows of the table before that belong to no position, and are
//! left out. Its classifier has a dense layer of its own; that of BERT is the pooler.

use super::super::config::Config;
use super::super::dimensions::{MAX_CONTEXT, MAX_WIDTH};
use super::head::{self, Head};
use super::jina_v3::refuse_adaptations;
use super::{
    EncoderPlan, Family, Known, MAX_LAYERS, Shapes, both, check_activation, check_flag, linear,
    norm,
};
use crate::ConvertError;
use crate::import::tensor::{Entry, Place};

pub(super) const BERT: Family = Family {
    gguf: "bert",
    classes: &[
        ("BertModel", Head::Vectors),
        ("BertForMaskedLM", Head::Vectors),
        ("BertForPreTraining", Head::Vectors),
        ("BertForSequenceClassification", Head::Scores),
    ],
    model_types: &["bert"],
    prefixes: &["bert."],
    plan: bert,
};

pub(super) const ROBERTA: Family = Family {
    gguf: "bert",
    classes: &[
        ("RobertaModel", Head::Vectors),
        ("RobertaForMaskedLM", Head::Vectors),
        ("RobertaForSequenceClassification", Head::Scores),
        ("XLMRobertaModel", Head::Vectors),
        ("XLMRobertaForMaskedLM", Head::Vectors),
        ("XLMRobertaForSequenceClassification", Head::Scores),
        ("CamembertModel", Head::Vectors),
        ("CamembertForMaskedLM", Head::Vectors),
        ("CamembertForSequenceClassification", Head::Scores),
    ],
    model_types: &["roberta", "xlm-roberta", "camembert"],
    prefixes: &["roberta.", "camembert."],
    plan: roberta,
};

pub(super) const DISTILBERT: Family = Family {
    gguf: "bert",
    classes: &[
        ("DistilBertModel", Head::Vectors),
        ("DistilBertForMaskedLM", Head::Vectors),
        ("DistilBertForSequenceClassification", Head::Scores),
    ],
    model_types: &["distilbert"],
    prefixes: &["distilbert."],
    plan: distilbert,
};

pub(super) const TOKENS: &str = "embeddings.word_embeddings.weight";
const POSITIONS: &str = "embeddings.position_embeddings.weight";
pub(super) const TYPES: &str = "embeddings.token_type_embeddings.weight";

/// The sizes of a network.
pub(super) struct Sizes {
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) feed_forward: u64,
    pub(super) heads: u64,
    /// Rows of the table of positions.
    pub(super) positions: u64,
    pub(super) types: u64,
    pub(super) vocab: u64,
    pub(super) eps: f64,
}

impl Sizes {
    fn read(config: &Config, shapes: &Shapes<'_>) -> Result<Sizes, ConvertError> {
        let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
        check_activation(config, "hidden_act", "gelu", &["gelu"])?;
        check_activation(config, "position_embedding_type", "absolute", &["absolute"])?;
        check_flag(config, "is_decoder", false)?;
        check_flag(config, "add_cross_attention", false)?;
        let sizes = Sizes {
            layers: count("num_hidden_layers", MAX_LAYERS, 12)?,
            hidden: count("hidden_size", MAX_WIDTH, 768)?,
            feed_forward: count("intermediate_size", MAX_WIDTH, 3072)?,
            heads: count("num_attention_heads", MAX_WIDTH, 12)?,
            positions: count("max_position_embeddings", MAX_CONTEXT, 512)?,
            types: count("type_vocab_size", MAX_WIDTH, 2)?,
            vocab: shapes.rows(TOKENS),
            eps: config.number("layer_norm_eps", 0.0..1.0)?.unwrap_or(1e-12),
        };
        sizes.check(config)
    }

    pub(super) fn check(self, config: &Config) -> Result<Sizes, ConvertError> {
        let promised = config.count("vocab_size", i32::MAX as u64)?;
        if let Some(promised) = promised.filter(|promised| *promised != self.vocab) {
            let expected = format!("{}, the rows of the embedding", self.vocab);
            return Err(config.wrong("vocab_size", &promised.into(), &expected));
        }
        if !self.hidden.is_multiple_of(self.heads) {
            let expected = format!("a divisor of the hidden size, {}", self.hidden);
            return Err(config.wrong("num_attention_heads", &self.heads.into(), &expected));
        }
        Ok(self)
    }

    /// The keys that all have, for `context` positions.
    pub(super) fn keys(&self, context: u64) -> Vec<(&'static str, Entry)> {
        vec![
            ("block_count", Entry::U32(self.layers as u32)),
            ("context_length", Entry::U32(context as u32)),
            ("embedding_length", Entry::U32(self.hidden as u32)),
            ("feed_forward_length", Entry::U32(self.feed_forward as u32)),
            ("attention.head_count", Entry::U32(self.heads as u32)),
            ("attention.layer_norm_epsilon", Entry::F32(self.eps as f32)),
            ("attention.causal", Entry::Bool(false)),
        ]
    }

    fn embeddings(&self) -> Vec<Known> {
        let mut all = vec![
            Known::new(TOKENS, "token_embd.weight", &[self.vocab, self.hidden]),
            Known::new(POSITIONS, "position_embd.weight", &[self.positions, self.hidden]),
        ];
        all.extend(norm(both!("embeddings.LayerNorm"), both!("token_embd_norm"), self.hidden));
        if self.types > 0 {
            all.push(Known::new(TYPES, "token_types.weight", &[self.types, self.hidden]));
        }
        all
    }

    fn layer(&self) -> Vec<Known> {
        let (e, f) = (self.hidden, self.feed_forward);
        [
            linear(both!("attention.self.query"), both!("attn_q"), e, e),
            linear(both!("attention.self.key"), both!("attn_k"), e, e),
            linear(both!("attention.self.value"), both!("attn_v"), e, e),
            linear(both!("attention.output.dense"), both!("attn_output"), e, e),
            norm(both!("attention.output.LayerNorm"), both!("attn_output_norm"), e),
            linear(both!("intermediate.dense"), both!("ffn_up"), f, e),
            linear(both!("output.dense"), both!("ffn_down"), e, f),
            norm(both!("output.LayerNorm"), both!("layer_output_norm"), e),
        ]
        .concat()
    }
}

/// The differences between BERT and RoBERTa.
struct BertPlan {
    sizes: Sizes,
    context: u64,
    outside: Vec<Known>,
    /// The beginning of the names of tensors that predict tokens.
    predicts: &'static str,
    /// Weight and bias of the classifier's dense layer and of its projection.
    classifier: [(&'static str, &'static str); 2],
}

impl BertPlan {
    fn with_head(
        self,
        config: &Config,
        head: Head,
        shapes: &Shapes<'_>,
    ) -> Result<EncoderPlan, ConvertError> {
        let BertPlan { sizes, context, mut outside, predicts, classifier: [dense, projection] } =
            self;
        let mut others =
            vec![(predicts, head::PREDICTS), ("embeddings.position_ids", head::POSITIONS)];
        let labels = match head {
            Head::Vectors => {
                others.push(("pooler.", head::POOLER));
                None
            }
            Head::Scores => {
                let (e, count) = (sizes.hidden, shapes.rows(projection.0));
                outside.extend(linear(dense, both!("cls"), e, e));
                outside.extend(linear(projection, both!("cls.output"), count, e));
                Some(head::labels(config, count)?)
            }
        };
        Ok(EncoderPlan {
            gguf: None,
            keys: sizes.keys(context),
            layers: sizes.layers,
            layer: "encoder.layer.",
            inside: sizes.layer(),
            outside,
            others,
            vocab: sizes.vocab,
            token_types: sizes.types,
            labels,
        })
    }
}

fn bert(config: &Config, head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    let sizes = Sizes::read(config, shapes)?;
    let (context, outside) = (sizes.positions, sizes.embeddings());
    // The classifier's input is the pooler's output, which llama.cpp's converter leaves out.
    let classifier = [both!("pooler.dense"), both!("classifier")];
    let plan = BertPlan { sizes, context, outside, predicts: "cls.", classifier };
    plan.with_head(config, head, shapes)
}

fn roberta(config: &Config, head: Head, shapes: &Shapes<'_>) -> Result<EncoderPlan, ConvertError> {
    refuse_adaptations(config)?;
    let sizes = Sizes::read(config, shapes)?;
    let mut outside = sizes.embeddings();
    let padding = match config.get("pad_token_id") {
        None => 1,
        Some(id) => id.as_u64().ok_or_else(|| config.wrong("pad_token_id", id, "a token"))?,
    };
    let unused = padding.saturating_add(1);
    let Some(context) = sizes.positions.checked_sub(unused).filter(|n| *n > 0) else {
        let expected = format!("more than {unused}, the rows of no position");
        return Err(config.wrong("max_position_embeddings", &sizes.positions.into(), &expected));
    };
    for known in outside.iter_mut().filter(|known| known.source == POSITIONS) {
        known.place = Place::Rows(vec![(unused, context)]);
    }
    let classifier = [both!("classifier.dense"), both!("classifier.out_proj")];
    let plan = BertPlan { sizes, context, outside, predicts: "lm_head.", classifier };
    plan.with_head(config, head, shapes)
}

fn distilbert(
    config: &Config,
    head: Head,
    shapes: &Shapes<'_>,
) -> Result<EncoderPlan, ConvertError> {
    let count = |key, most, default| config.count(key, most).map(|n| n.unwrap_or(default));
    check_activation(config, "activation", "gelu", &["gelu"])?;
    let sizes = Sizes {
        layers: count("n_layers", MAX_LAYERS, 6)?,
        hidden: count("dim", MAX_WIDTH, 768)?,
        feed_forward: count("hidden_dim", MAX_WIDTH, 3072)?,
        heads: count("n_heads", MAX_WIDTH, 12)?,
        positions: count("max_position_embeddings", MAX_CONTEXT, 512)?,
        types: 0,
        vocab: shapes.rows(TOKENS),
        eps: 1e-12,
    };
    let sizes = sizes.check(config)?;
    let (e, f) = (sizes.hidden, sizes.feed_forward);
    let inside = [
        linear(both!("attention.q_lin"), both!("attn_q"), e, e),
        linear(both!("attention.k_lin"), both!("attn_k"), e, e),
        linear(both!("attention.v_lin"), both!("attn_v"), e, e),
        linear(both!("attention.out_lin"), both!("attn_output"), e, e),
        norm(both!("sa_layer_norm"), both!("attn_output_norm"), e),
        linear(both!("ffn.lin1"), both!("ffn_up"), f, e),
        linear(both!("ffn.lin2"), both!("ffn_down"), e, f),
        norm(both!("output_layer_norm"), both!("layer_output_norm"), e),
    ]
    .concat();
    let (mut keys, mut outside) = (sizes.keys(sizes.positions), sizes.embeddings());
    let labels = match head {
        Head::Vectors => None,
        Head::Scores => {
            let count = shapes.rows("classifier.weight");
            outside.extend(linear(both!("pre_classifier"), both!("cls"), e, e));
            outside.extend(linear(both!("classifier"), both!("cls.output"), count, e));
            // Other programs know no such value, and refuse it.
            keys.push(("classifier.activation", Entry::Str("relu".into())));
            Some(head::labels(config, count)?)
        }
    };
    let others = vec![("vocab_", head::PREDICTS), ("embeddings.position_ids", head::POSITIONS)];
    Ok(EncoderPlan {
        gguf: None,
        keys,
        layers: sizes.layers,
        layer: "transformer.layer.",
        inside,
        outside,
        others,
        vocab: sizes.vocab,
        // Readers expect at least one.
        token_types: 1,
        labels,
    })
}
