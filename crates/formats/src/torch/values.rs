//! The data that a pickle builds here: values, and tables of containers, storages and tensors that values refer to by index.

use super::globals::{Global, TorchDtype};

/// A value on the stack. Containers are indices into [`Unpickled`].
#[derive(Clone, Copy, Debug)]
pub(super) enum PickledValue<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that does not fit into 64 bits. Nothing here needs one.
    BigInt,
    Float(f64),
    Str(&'a str),
    Set,
    List(u32),
    /// Also immutable lists; the same table.
    Tuple(u32),
    Dict(u32),
    Global(Global),
    Storage(u32),
    Tensor(u32),
}

impl PickledValue<'_> {
    /// Its kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            PickledValue::None => "None",
            PickledValue::Bool(_) => "a boolean",
            PickledValue::Int(_) | PickledValue::BigInt => "an integer",
            PickledValue::Float(_) => "a float",
            PickledValue::Str(_) => "text",
            PickledValue::Set => "a set",
            PickledValue::List(_) => "a list",
            PickledValue::Tuple(_) => "a tuple",
            PickledValue::Dict(_) => "a dictionary",
            PickledValue::Global(_) => "a global",
            PickledValue::Storage(_) => "a storage",
            PickledValue::Tensor(_) => "a tensor",
        }
    }
}

/// A storage: a record of the zip, in elements of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub(super) key: &'a str,
    pub(super) dtype: TorchDtype,
    pub(super) numel: u64,
    /// Offset and length of its record in the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A tensor as described by the pickle; it is checked when it gets a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct PickledTensor {
    pub(super) storage: u32,
    pub(super) dtype: TorchDtype,
    /// In elements.
    pub(super) start: u64,
    /// Indices of two tuples of non-negative integers, of equal length.
    pub(super) shape: u32,
    pub(super) strides: u32,
}

/// The result of a pickle.
#[derive(Debug)]
pub(super) struct Unpickled<'a> {
    pub(super) root: PickledValue<'a>,
    pub(super) lists: Vec<Vec<PickledValue<'a>>>,
    pub(super) dicts: Vec<Vec<(PickledValue<'a>, PickledValue<'a>)>>,
    pub(super) storages: Vec<Storage<'a>>,
    pub(super) tensors: Vec<PickledTensor>,
}
