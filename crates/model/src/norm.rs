//! Norms of the residual stream and of the outputs of parts, with their weights.

use alight_kernels::norm::{center, rms_norm_in_place};
use alight_kernels::{Isa, vec};

use crate::keys::Keys;
use crate::keys::SpecError;

/// Settings shared by all norms of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// The kind of norm.
    pub kind: NormKind,
    /// Added to the mean square, so that it is never zero.
    pub eps: f32,
}

/// The computation of a norm on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm: `x / √(mean(x²) + eps) ⊙ weight` (Zhang and Sennrich 2019).
    Rms,
    /// LayerNorm: the same with `x − mean(x)`, plus a bias if the file has one (Ba et al. 2016).
    Layer,
    /// LayerNorm without weights and biases.
    Unweighted,
}

impl NormSpec {
    /// Reads the key of this kind. Some families have the other one (Phi-3.5-MoE, Nemotron-H), which is used if this one is missing.
    ///
    /// # Errors
    /// Both are missing, or the value is not a number from 0 to below 1.
    pub(crate) fn read(keys: &Keys<'_, '_>, kind: NormKind) -> Result<NormSpec, SpecError> {
        let (rms, layer) = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon");
        let [key, other] = match kind {
            NormKind::Rms => [rms, layer],
            NormKind::Layer | NormKind::Unweighted => [layer, rms],
        };
        let read = |key| keys.float(key, 0.0..1.0, "from 0 to below 1");
        let eps = match read(key)? {
            Some(eps) => {
                keys.do_not_apply(&[other]);
                Some(eps)
            }
            None => read(other)?,
        };
        Ok(NormSpec { kind, eps: eps.ok_or_else(|| keys.missing(key))? })
    }
}

/// The name in the file of the norm before the output.
pub(crate) const OUTPUT_NORM: &str = "output_norm";

/// A norm of rows as long as its weights.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) spec: NormSpec,
    /// `[width]`
    pub(crate) weight: Vec<f32>,
    /// `[width]`
    pub(crate) bias: Option<Vec<f32>>,
}

impl Norm {
    /// Applies the norm to one row `[width]`, into another.
    pub(crate) fn apply_to(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        // The copy is in the L1 cache and costs less than a second kernel would.
        out.copy_from_slice(x);
        self.apply(isa, out);
    }

    /// Applies the norm to one row `[width]`, in place.
    pub(crate) fn apply(&self, isa: Isa, x: &mut [f32]) {
        if self.spec.kind != NormKind::Rms {
            center(isa, x);
        }
        rms_norm_in_place(isa, x, &self.weight, self.spec.eps);
        if let Some(bias) = &self.bias {
            vec::add_assign(isa, x, bias);
        }
    }
}
