//! The data that a pickle builds here: values, and tables of containers, storages and tensors that values refer to by index.

use super::globals::{Dtype, Global};

/// A value on the stack. Containers are indices into [`Read`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
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

impl Value<'_> {
    /// Its kind, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::BigInt => "an integer",
            Value::Float(_) => "a float",
            Value::Str(_) => "text",
            Value::Set => "a set",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Dict(_) => "a dictionary",
            Value::Global(_) => "a global",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

/// A storage: a record of the zip, in elements of a type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storage<'a> {
    pub(super) key: &'a str,
    pub(super) dtype: Dtype,
    pub(super) numel: u64,
    /// Offset and length of its record in the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A tensor as described by the pickle; it is checked when it gets a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tensor {
    pub(super) storage: u32,
    pub(super) dtype: Dtype,
    /// In elements.
    pub(super) start: u64,
    /// Indices of two tuples of non-negative integers, of equal length.
    pub(super) shape: u32,
    pub(super) strides: u32,
}

/// The result of a pickle.
#[derive(Debug)]
pub(super) struct Read<'a> {
    pub(super) root: Value<'a>,
    pub(super) lists: Vec<Vec<Value<'a>>>,
    pub(super) dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    pub(super) storages: Vec<Storage<'a>>,
    pub(super) tensors: Vec<Tensor>,
}
