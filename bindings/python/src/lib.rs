//! `alight._alight`: model files for Python.
//!
//! [`catalog`] opens a model and lists its tensors; a [`tensor`] returns its bytes, or some of them, as a [`block`], which Python's
//! buffer protocol exposes without a copy wherever possible; [`geometry`] computes which bytes belong to a part of a tensor; a
//! [`model`] answers prompts, on the thread of its [`worker`], and [`completion`] hands out an answer; [`array`] holds other
//! computed numbers; [`dlpack`] and [`numpy`] expose both kinds of numbers to other libraries; a [`hub`] finds models by their
//! names; [`config`] and [`tokenizer`] expose the parts of a model that `alight_model` has read and checked; [`ffi`] provides the
//! custom calls for XLA, [`cuda`] functions for those on GPUs; [`new_file`] writes the output files of the package's commands.
//!
//! **Invariant:** a view, a NumPy array or a JAX array of bytes of a file keeps the object that they came from alive, and that
//! keeps the map. All of it is read-only. If a file is cut short, arrays over it show zeros, and `Catalog.check` reports an error.
//!
//! **Invariant:** the interpreter is released while bytes are read, copied or converted, and while an answer is awaited; signals
//! are checked every 50 ms meanwhile. Threads that compute never touch Python.
//!
//! **Invariant:** the engine's results are those of `alight run`: options, prompts and texts are handled by the crates that both
//! use. Bytes do not depend on the number of threads. Conversions to floats are those of the kernels, rounded once.
//!
//! **Invariant:** no panic for any contents of a file. Rust knows nothing of NumPy and JAX; Python knows nothing of formats.
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
mod pack;
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
