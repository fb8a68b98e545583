//! `alight._alight`: model files as Python sees them.
//!
//! [`catalog`] opens a model and lists its tensors; a [`tensor`] gives its bytes, or some of them, as a
//! [`block`] that Python's buffer protocol shows without a copy wherever that can be; [`geometry`] says
//! which bytes belong to a part of a tensor; a [`model`] answers prompts, in a thread of its own that a [`worker`] is, and
//! [`completion`] hands an answer out; [`array`] has other numbers that were computed; [`dlpack`] and [`numpy`] show both kinds of
//! numbers to other libraries; a [`hub`] has models by their names; [`config`] and [`tokenizer`] show what `alight_model` has read of
//! a model and checked; [`ffi`] hands out the custom calls for XLA, [`cuda`] tells of those for GPUs;
//! [`new_file`] writes what a command of the package was asked to write.
//!
//! **Invariant:** what shows bytes of a file (a view, a NumPy array, a JAX array) keeps the object that they came from, and that
//! keeps the map. All of it is read-only. A file that is cut short under arrays shows zeros, and is an error of `Catalog.check`.
//!
//! **Invariant:** the interpreter is let go while bytes are read, copied or converted, and while an answer is waited for; signals are
//! looked at every 50 ms meanwhile. What computes never touches Python.
//!
//! **Invariant:** what the engine gives is what `alight run` gives: options, prompts and texts are those of the crates that both use.
//! Bytes do not depend on the number of
//! threads. Conversions to floats are those of the kernels, rounded once.
//!
//! **Invariant:** no panic on anything in a file. Rust knows nothing of NumPy and JAX; Python knows nothing of formats.
//!
//! **Invariant:** custom calls are registered when the first program that needs one is traced, never on import.

mod array;
mod asked;
mod block;
mod catalog;
mod completion;
mod config;
mod convert;
mod cuda;
mod dlpack;
mod error;
mod experts;
mod ffi;
mod geometry;
mod given;
mod hub;
mod items;
mod memory;
mod metadata;
mod model;
mod new_file;
mod numpy;
mod residency;
mod source;
mod staging;
mod tensor;
mod tokenizer;
mod worker;

use alight_kernels::{ScaleField, WeightType};
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

/// The extension module; the package `alight` is what people import.
#[pymodule]
fn _alight(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("ALIGNMENT", memory::ALIGNMENT)?;
    let types = WeightType::ALL.map(|ty| {
        let scales = ty.scale_fields().iter().map(|field| match *field {
            ScaleField::F16(at) => ("f16", at),
            ScaleField::Exponent(at) => ("exponent", at),
            ScaleField::E4M3(at) => ("e4m3", at),
            ScaleField::F16Nibbles(at) => ("f16-nibbles", at),
        });
        (ty.ggml().name(), (ty.ggml().id(), ty.block_len(), scales.collect::<Vec<_>>()))
    });
    module.add("WEIGHT_TYPES", types.into_py_dict(module.py())?)?;
    module.add("GPU_WEIGHT_TYPES", cuda::block_types())?;
    for class in error::CLASSES {
        module.add(class.name, class.get(module.py())?)?;
    }
    module.add_class::<catalog::Catalog>()?;
    module.add_class::<residency::Residency>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<block::Block>()?;
    module.add_class::<experts::ExpertStore>()?;
    module.add_function(wrap_pyfunction!(cuda::cuda_accounts, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_close, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_errors, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_has_fabric, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_offer, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_open, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_probe, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_problem, module)?)?;
    module.add_function(wrap_pyfunction!(cuda::cuda_trial, module)?)?;
    module.add_class::<staging::Staging>()?;
    module.add_function(wrap_pyfunction!(staging::how_to_copy, module)?)?;
    module.add_function(wrap_pyfunction!(ffi::ffi_interface, module)?)?;
    module.add_function(wrap_pyfunction!(ffi::ffi_targets, module)?)?;
    module.add_function(wrap_pyfunction!(ffi::share_memory, module)?)?;
    module.add_function(wrap_pyfunction!(ffi::unlink_memory, module)?)?;
    module.add_function(wrap_pyfunction!(new_file::check_new_file, module)?)?;
    module.add_function(wrap_pyfunction!(new_file::write_new_file, module)?)?;
    module.add_function(wrap_pyfunction!(hub::pull, module)?)?;
    module.add_class::<model::Model>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<completion::Completion>()?;
    module.add_class::<completion::Stream>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<tokenizer::Decoder>()?;
    module.add_function(wrap_pyfunction!(tokenizer::reusable, module)?)?;
    module.add_function(wrap_pyfunction!(config::config, module)?)?;
    module.add_function(wrap_pyfunction!(catalog::open, module)?)
}
