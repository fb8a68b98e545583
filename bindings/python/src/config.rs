//! The description of a network as a dict, from the checked result of `alight_model`.

use alight_kernels::rope::{RopePairing, RopeParams, RopeTable};
use alight_model::describe;
use alight_model::spec::{
    Activation, AttentionSpec, DenseSpec, ExpertsSpec, Gating, InputMatrices, Mask, Mixer,
    ModelSpec, NormKind, Norms, OutputGate, QkNorm, Routing,
};
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error;
use crate::given::Given;

/// The hyper-parameters of a model: its path, or its open catalog.
///
/// What the engine of `alight run` refuses raises here, too: `FormatError` with the file, the key or the
/// tensor, what was found and what was expected. `NotImplementedError`: the engine runs the network, but it has
/// something that this dict does not tell, such as layers that differ by more than their sliding windows.
#[pyfunction]
pub fn config<'py>(py: Python<'py>, model: Given<'py>) -> PyResult<Bound<'py, PyDict>> {
    let spec = model.with_gguf(py, |files| describe::spec(files).map_err(error::model))?;
    let untold = |what| {
        let name = spec.architecture;
        PyNotImplementedError::new_err(format!(
            "architecture '{name}' is not supported by the JAX engine ({what}); `--engine native` runs it"
        ))
    };
    let experts = match experts(&spec) {
        Ok(experts) => experts,
        Err(why) => return Err(untold(why)),
    };
    let plain = |mixer: &Mixer| matches!(mixer, Mixer::Attention(_));
    if spec.mixers().any(|(_, mixer)| matches!(mixer, Mixer::LatentAttention(_))) {
        return Err(untold("latent attention"));
    }
    if spec.is_bidirectional() {
        return Err(untold("attention in both directions"));
    }
    if spec.mixers().filter(|(_, mixer)| plain(mixer)).count() < spec.layers.len() {
        return Err(untold("it has recurrent layers"));
    }
    if spec.passes > 1 {
        return Err(untold("tokens pass its layers more than once"));
    }
    let layers = Uniform::of(&spec).ok_or_else(|| untold("its layers differ in shape"))?;
    let attention = &layers.attention;
    let (width, activation) = match (layers.dense, experts) {
        (Some(dense), _) => (dense.intermediate_size, dense.activation),
        (None, Some(experts)) => (0, experts.activation),
        (None, None) => return Err(untold("it has no feed-forward part")),
    };
    let dict = PyDict::new(py);
    dict.set_item("architecture", spec.architecture)?;
    for (name, value) in [
        ("layers", spec.layers.len()),
        ("embedding", spec.hidden_size),
        ("feed_forward", width),
        ("heads", attention.heads),
        ("kv_heads", attention.kv_heads),
        ("key_dim", attention.key_dim),
        ("value_dim", attention.value_dim),
        ("vocab", spec.vocab),
        ("context", spec.context),
    ] {
        dict.set_item(name, value)?;
    }
    if spec.long_context.rope.is_some() {
        return Err(untold("its long sequences are rotated by other factors"));
    }
    rope(&dict, &spec.ropes[0])?;
    let pairing = match attention.pairing {
        RopePairing::Interleaved => "interleaved",
        RopePairing::NeoX => "neox",
    };
    dict.set_item("rope_pairing", pairing)?;
    dict.set_item("rotates", attention.rope.is_some())?;
    dict.set_item("local", layers.windows(py, &spec)?)?;
    let gate = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::ClampedSilu => "clamped_silu",
        Activation::ReluSquared => "relu_squared",
        _ => return Err(untold("another activation")),
    };
    dict.set_item("gate", gate)?;
    dict.set_item("experts", experts.map(|experts| mixture(py, experts)).transpose()?)?;
    dict.set_item("rms_eps", spec.norm.eps)?;
    dict.set_item("embedding_scale", spec.embedding_scale)?;
    dict.set_item("residual_scale", spec.layers[0].residual_scale)?;
    dict.set_item("logit_scale", spec.logit_scale)?;
    dict.set_item("attention_scale", attention.scale)?;
    dict.set_item("sinks", attention.sinks)?;
    dict.set_item("attention_softcap", attention.softcap)?;
    dict.set_item("logit_softcap", spec.logit_softcap)?;
    let qk_norm = match attention.qk_norm {
        QkNorm::None => false,
        QkNorm::Heads => true,
        QkNorm::HeadsIfThere | QkNorm::OwnHeadsIfThere => {
            return Err(untold("norms that its heads may have"));
        }
        QkNorm::Unweighted => return Err(untold("norms of heads without weights")),
        QkNorm::Whole | QkNorm::WholeIfThere => {
            return Err(untold("all heads of its queries are normed together"));
        }
    };
    dict.set_item("qk_norm", qk_norm)?;
    let norms = spec.layers[0].norms;
    let post_norms = match norms {
        Norms { mixer: Some(_), mixer_output: None, feed_forward_output: None, .. } => false,
        Norms::BOTH => true,
        _ => return Err(untold("the norms of its layers")),
    };
    let feed_forward = norms.feed_forward.ok_or_else(|| untold("the norms of its layers"))?;
    dict.set_item("feed_forward_norm", feed_forward)?;
    dict.set_item("post_norms", post_norms)?;
    Ok(dict)
}

/// The mixture of experts that all layers have, if any; or the reason that the dict cannot describe it.
fn experts(spec: &ModelSpec) -> Result<Option<&ExpertsSpec>, &'static str> {
    let Some(first) = spec.expert_layers().next() else { return Ok(None) };
    let routing = &first.routing;
    if spec.dense_layers().next().is_some() || spec.expert_layers().any(|other| other != first) {
        return Err("its layers differ in shape");
    }
    if first.shared.is_some() {
        return Err("it is a mixture of experts with a network for all tokens");
    }
    if first.weighs_input {
        return Err("it is a mixture of experts whose inputs are weighted");
    }
    if first.interleaved {
        return Err("it is a mixture of experts whose gates and ups are one tensor, row by row");
    }
    if !matches!(first.activation, Activation::Silu | Activation::ClampedSilu) || !first.gated {
        return Err("it is a mixture of experts with another activation");
    }
    match gating(routing) {
        Some(_) if routing.groups == 1 => Ok(Some(first)),
        _ => Err("it is a mixture of experts that are chosen in another way"),
    }
}

/// The dict's name for the function that computes shares from a router's logits.
fn gating(routing: &Routing) -> Option<&'static str> {
    match routing.gating {
        Gating::Softmax => Some("softmax"),
        Gating::SoftmaxOfChosen => Some("softmax_of_chosen"),
        Gating::Sigmoid | Gating::SqrtSoftplus => None,
    }
}

fn mixture<'py>(py: Python<'py>, experts: &ExpertsSpec) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("gating", gating(&experts.routing))?;
    dict.set_item("count", experts.routing.experts)?;
    dict.set_item("used", experts.routing.used)?;
    dict.set_item("feed_forward", experts.intermediate_size)?;
    dict.set_item("normalised", experts.routing.normalise)?;
    dict.set_item("scale", experts.routing.scale)?;
    Ok(dict)
}

/// Layers that differ only in their windows, and in the rotary embedding that goes with them.
struct Uniform<'s> {
    /// Without a window, and with the first rotary embedding, if layers have one.
    attention: AttentionSpec,
    /// `None` if all of them are mixtures of experts.
    dense: Option<&'s DenseSpec>,
    /// The window, the layers that have it, and the index of the rotary embedding that goes with it.
    window: Option<(usize, Vec<bool>, usize)>,
}

impl<'s> Uniform<'s> {
    fn of(spec: &'s ModelSpec) -> Option<Uniform<'s>> {
        let plain = |a: &AttentionSpec| AttentionSpec {
            mask: Mask::Causal,
            rope: a.rope.map(|_| 0),
            ..a.clone()
        };
        let attention = plain(spec.attention_layers().next()?);
        let dense = spec.dense_layers().next();
        let plain_dense = |d: &DenseSpec| Some(d) == dense && d.inputs == InputMatrices::GateAndUp;
        let first = spec.layers.first()?;
        let windows: Vec<Option<usize>> =
            spec.attention_layers().map(|a| a.mask.window()).collect();
        let window = windows.iter().copied().flatten().next();
        let local =
            spec.attention_layers().find(|a| a.mask.window().is_some()).and_then(|a| a.rope);
        let known = |a: &AttentionSpec| matches!(a.mask, Mask::Causal | Mask::Window(_));
        let alike = spec.attention_layers().all(|a| plain(a) == attention && known(a))
            && !(attention.output_gate != OutputGate::None
                || attention.output_norm.is_some()
                || attention.clamp.is_some()
                || attention.bias.is_some()
                || attention.value_scale != 1.0
                || attention.norm_after_rope
                || attention.temperature.is_some()
                || attention.value_norm
                || attention.kv_layer.is_some())
            && spec.dense_layers().all(plain_dense)
            && spec.norm.kind == NormKind::Rms
            && spec.layers.iter().all(|layer| {
                layer.norms == first.norms
                    && layer.residual_scale == first.residual_scale
                    && layer.token_input == 0
                    && !layer.parallel
            })
            && windows.iter().flatten().all(|w| Some(*w) == window)
            && spec.attention_layers().all(|a| match a.mask.window() {
                None => matches!(a.rope, None | Some(0)),
                Some(_) => a.rope.is_some() && a.rope == local,
            });
        let layers = || windows.iter().map(Option::is_some).collect();
        let window = window.zip(local).map(|(window, rope)| (window, layers(), rope));
        alike.then_some(Uniform { attention, dense, window })
    }

    /// The differences of the layers with a sliding window; `None` without such layers.
    fn windows<'py>(
        &self,
        py: Python<'py>,
        spec: &ModelSpec,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some((window, layers, with)) = &self.window else { return Ok(None) };
        let dict = PyDict::new(py);
        dict.set_item("window", window)?;
        dict.set_item("layers", layers)?;
        rope(&dict, &spec.ropes[*with])?;
        Ok(Some(dict))
    }
}

/// Adds the angles themselves, so that the caller need not know the scaling.
fn rope(dict: &Bound<'_, PyDict>, params: &RopeParams) -> PyResult<()> {
    let table = RopeTable::new(params);
    dict.set_item("rope_dims", params.dims)?;
    dict.set_item("rope_frequencies", table.frequencies())?;
    dict.set_item("rope_magnitude", table.magnitude())
}
