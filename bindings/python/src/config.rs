//! A model's hyper-parameters as a dict, from the one checked reading of them in `alight_model`.

use alight_kernels::rope::{RopePairing, RopeParams, RopeTable};
use alight_model::config::{Config, Gate, Local};
use alight_model::describe;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error;
use crate::source::Given;

/// The hyper-parameters of a model: its path, or its open catalog.
///
/// What the engine of `alight run` refuses raises here, too: `FormatError` with the file, the key or the
/// tensor, what was found and what was expected.
#[pyfunction]
pub fn config<'py>(py: Python<'py>, model: Given<'py>) -> PyResult<Bound<'py, PyDict>> {
    let config = model.with_gguf(py, |files| describe::config(files).map_err(error::model))?;
    let dict = PyDict::new(py);
    dict.set_item("architecture", config.architecture.name())?;
    for (name, value) in [
        ("layers", config.layers),
        ("embedding", config.embedding),
        ("feed_forward", config.feed_forward),
        ("heads", config.heads),
        ("kv_heads", config.kv_heads),
        ("key_dim", config.key_dim),
        ("value_dim", config.value_dim),
        ("vocab", config.vocab),
        ("context", config.context),
    ] {
        dict.set_item(name, value)?;
    }
    rope(&dict, &config.rope)?;
    dict.set_item(
        "rope_pairing",
        match config.rope_pairing {
            RopePairing::Interleaved => "interleaved",
            RopePairing::Halves => "halves",
        },
    )?;
    dict.set_item("local", config.local.as_ref().map(|local| of_local(py, local)).transpose()?)?;
    dict.set_item(
        "gate",
        match config.gate {
            Gate::Silu => "silu",
            Gate::GeluTanh => "gelu_tanh",
        },
    )?;
    let Config { rms_eps, embedding_scale, attention_scale, .. } = config;
    let Config { attention_softcap, logit_softcap, qk_norm, post_norms, .. } = config;
    dict.set_item("rms_eps", rms_eps)?;
    dict.set_item("embedding_scale", embedding_scale)?;
    dict.set_item("attention_scale", attention_scale)?;
    dict.set_item("attention_softcap", attention_softcap)?;
    dict.set_item("logit_softcap", logit_softcap)?;
    dict.set_item("qk_norm", qk_norm)?;
    dict.set_item("post_norms", post_norms)?;
    Ok(dict)
}

fn of_local<'py>(py: Python<'py>, local: &Local) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("window", local.window)?;
    dict.set_item("layers", &local.layers)?;
    rope(&dict, &local.rope)?;
    Ok(dict)
}

/// The angles themselves: whoever turns by them needs to know no scaling.
fn rope(dict: &Bound<'_, PyDict>, params: &RopeParams) -> PyResult<()> {
    let table = RopeTable::new(params);
    dict.set_item("rope_dims", params.dims)?;
    dict.set_item("rope_frequencies", table.frequencies())?;
    dict.set_item("rope_magnitude", table.magnitude())
}
