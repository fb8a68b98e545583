//! The weights of a layer that predicts the token after the next one (multi-token prediction, MTP; DeepSeek-AI, "DeepSeek-V3
//! Technical Report", 2024, section 2.2). In the file they follow the layers of the network.

use super::{LayerWeights, NetWeights, Weights};
use crate::norm::Norm;
use crate::spec::ModelSpec;
use crate::tensors::{Finder, LayerFinder, Linear, MatrixRef, WeightError};

/// A network of one layer, whose input is a token and the model's state at the tokens before it.
#[derive(Debug)]
pub(crate) struct MtpWeights {
    pub(crate) spec: ModelSpec,
    pub(crate) join: Join,
    layer: [LayerWeights; 1],
    /// Its own weights, where it does not share the model's.
    embed: Option<MatrixRef>,
    output_norm: Option<Norm>,
    output: Option<Linear>,
}

/// Makes one row of the token's embedding `e` and the model's final state `h` at the token before:
/// `projection([norm(e); norm(h)])`.
#[derive(Debug)]
pub(crate) struct Join {
    /// `[hidden]`
    pub(crate) token_norm: Norm,
    /// `[hidden]`
    pub(crate) state_norm: Norm,
    /// `[hidden, 2 · hidden]`
    pub(crate) projection: Linear,
}

impl MtpWeights {
    /// Finds the weights of the layer for the model `spec`, if the file has them.
    ///
    /// # Errors
    /// A tensor of the layer that is missing or of the wrong shape or type.
    pub(super) fn find(
        find: &Finder<'_, '_>,
        spec: &ModelSpec,
    ) -> Result<Option<MtpWeights>, WeightError> {
        let Some(own) = &spec.mtp_layer else { return Ok(None) };
        let find = LayerFinder { all: find, layer: spec.layers.len() };
        if !find.has("nextn.eh_proj") {
            return Ok(None);
        }
        let (hidden, vocab) = (spec.hidden_size, spec.vocab);
        let of_tokens = |what: &str| {
            let name = format!("blk.{}.{what}.weight", find.layer);
            find.has(what).then(|| find.all.embedding(&name, hidden, vocab)).transpose()
        };
        let output_norm = "nextn.shared_head_norm";
        let output_norm = find.has(output_norm).then(|| find.norm(output_norm, hidden));
        Ok(Some(MtpWeights {
            spec: ModelSpec {
                layers: vec![own.clone()],
                draft_layers: 0,
                mtp_layer: None,
                ..spec.clone()
            },
            join: Join {
                token_norm: find.norm("nextn.enorm", hidden)?,
                state_norm: find.norm("nextn.hnorm", hidden)?,
                projection: find.linear("nextn.eh_proj", 2 * hidden, hidden)?,
            },
            layer: [LayerWeights::find(&find, own, false, hidden)?],
            embed: of_tokens("nextn.embed_tokens")?,
            output_norm: output_norm.transpose()?,
            output: of_tokens("nextn.shared_head_head")?.map(Linear::from),
        }))
    }

    /// The weights that the layer computes with; `model` has those that are not its own.
    pub(crate) fn net<'w>(&'w self, model: &'w Weights) -> NetWeights<'w> {
        NetWeights {
            embed: self.embed.as_ref().unwrap_or(&model.embed),
            join: Some(&self.join),
            layers: &self.layer,
            output_norm: self.output_norm.as_ref().or(model.output_norm.as_ref()),
            output: self.output.as_ref().or(model.output.as_ref()),
            ..model.net()
        }
    }
}
