//! Flattens nested dictionaries to names: keys joined by dots, every tensor checked against its storage.

use std::collections::HashSet;

use super::error::TorchError;
use super::values::{PickledTensor, PickledValue, Unpickled};
use super::{Scalar, TorchTensor};

/// Maximum nesting of dictionaries, lists and tuples.
pub(super) const MAX_DEPTH: usize = 32;
/// Maximum bytes of a name.
pub(super) const MAX_NAME: usize = 1024;

/// Maximum bytes of names and shapes: the first number for each byte of the pickle, and at most the second.
/// Ordinary files stay far below; files that reach it refer to the same containers again and again.
const PER_BYTE: u64 = 32;
const MAX_BYTES: u64 = 256 << 20;

/// The named values that were found.
#[derive(Default)]
pub(super) struct Found<'a> {
    pub(super) tensors: Vec<TorchTensor>,
    pub(super) scalars: Vec<(Box<str>, Scalar<'a>)>,
    /// Indices into the tensors, sorted by name.
    pub(super) by_name: Vec<u32>,
}

/// Collects the contents of `read`; `pickle` is the length of the pickle it was read from.
pub(super) fn walk<'a>(read: &Unpickled<'a>, pickle: u64) -> Result<Found<'a>, TorchError> {
    let PickledValue::Dict(root) = read.root else {
        return Err(TorchError::NotADict { found: read.root.kind() });
    };
    let limit = pickle.saturating_mul(PER_BYTE).saturating_add(4096).min(MAX_BYTES);
    let mut walk = Walk {
        read,
        name: String::new(),
        path: Vec::new(),
        found: Found::default(),
        pickle,
        limit,
        left: limit,
    };
    walk.dict(root)?;
    let Found { tensors, scalars, .. } = walk.found;
    let name = |index: u32| &*tensors[index as usize].name;
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    by_name.sort_unstable_by_key(|index| name(*index));
    if let Some(pair) = by_name.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        return Err(TorchError::DuplicateName { name: name(pair[0]).into() });
    }
    Ok(Found { tensors, scalars, by_name })
}

struct Walk<'r, 'a> {
    read: &'r Unpickled<'a>,
    /// The name of the current position.
    name: String,
    /// The containers around the current position.
    path: Vec<(bool, u32)>,
    found: Found<'a>,
    pickle: u64,
    limit: u64,
    /// The rest of the limit. A visit counts as a byte.
    left: u64,
}

impl<'a> Walk<'_, 'a> {
    fn dict(&mut self, place: u32) -> Result<(), TorchError> {
        self.enter((true, place))?;
        let items = &self.read.dicts[place as usize];
        let mut keys = HashSet::with_capacity(items.len());
        for (key, value) in items {
            self.spend(1)?;
            let number;
            let (part, new) = match key {
                PickledValue::Str("") if !holds(value) => continue,
                PickledValue::Str("") => return Err(self.key("empty")),
                PickledValue::Str(text) => (*text, keys.insert(Key::Text(text))),
                PickledValue::Int(n) => {
                    number = n.to_string();
                    (&*number, keys.insert(Key::Number(*n)))
                }
                _ if !holds(value) => continue,
                other => return Err(self.key(other.kind())),
            };
            let from = self.name.len();
            self.push(part, new)?;
            self.value(value, true)?;
            self.name.truncate(from);
        }
        self.path.pop();
        Ok(())
    }

    fn list(&mut self, place: u32) -> Result<(), TorchError> {
        self.enter((false, place))?;
        for (index, value) in self.read.lists[place as usize].iter().enumerate() {
            self.spend(1)?;
            if holds(value) {
                let from = self.name.len();
                self.push(&index.to_string(), true)?;
                self.value(value, false)?;
                self.name.truncate(from);
            }
        }
        self.path.pop();
        Ok(())
    }

    fn value(&mut self, value: &PickledValue<'a>, keep: bool) -> Result<(), TorchError> {
        let scalar = match *value {
            PickledValue::Dict(place) => return self.dict(place),
            PickledValue::List(place) | PickledValue::Tuple(place) => return self.list(place),
            PickledValue::Tensor(place) => {
                let tensor = self.tensor(&self.read.tensors[place as usize])?;
                self.spend((64 + 8 * tensor.shape.len() + tensor.name.len()) as u64)?;
                self.found.tensors.push(tensor);
                return Ok(());
            }
            PickledValue::None => Scalar::None,
            PickledValue::Bool(value) => Scalar::Bool(value),
            PickledValue::Int(value) => Scalar::Int(value),
            PickledValue::Float(value) => Scalar::Float(value),
            PickledValue::Str(value) => Scalar::Str(value),
            PickledValue::BigInt
            | PickledValue::Set
            | PickledValue::Global(_)
            | PickledValue::Storage(_) => return Ok(()),
        };
        if keep {
            self.spend(32 + self.name.len() as u64)?;
            self.found.scalars.push((self.name(), scalar));
        }
        Ok(())
    }

    /// Enters a container, unless the position is already inside it or nested too deep.
    fn enter(&mut self, container: (bool, u32)) -> Result<(), TorchError> {
        if self.path.contains(&container) {
            return Err(TorchError::Recursive { name: self.name() });
        }
        if self.path.len() == MAX_DEPTH {
            return Err(TorchError::TooDeep { name: self.name(), limit: MAX_DEPTH });
        }
        self.path.push(container);
        self.spend(1)
    }

    /// Appends a part to the name; `new` is true if no other entry of the container has it.
    fn push(&mut self, part: &str, new: bool) -> Result<(), TorchError> {
        if self.name.len() + 1 + part.len() > MAX_NAME {
            return Err(TorchError::NameLength { name: self.name(), limit: MAX_NAME });
        }
        if self.path.len() > 1 {
            self.name.push('.');
        }
        self.name.push_str(part);
        if !new {
            return Err(TorchError::DuplicateName { name: self.name() });
        }
        Ok(())
    }

    fn spend(&mut self, cost: u64) -> Result<(), TorchError> {
        let over = TorchError::TooManyNames { pickle: self.pickle, limit: self.limit };
        self.left = self.left.checked_sub(cost).ok_or(over)?;
        Ok(())
    }

    fn key(&self, found: &'static str) -> TorchError {
        TorchError::Key { name: self.name(), found }
    }

    fn name(&self) -> Box<str> {
        self.name.as_str().into()
    }

    /// Returns a tensor, under the name of the current position.
    fn tensor(&self, tensor: &PickledTensor) -> Result<TorchTensor, TorchError> {
        let storage = &self.read.storages[tensor.storage as usize];
        let numbers = |tuple: u32| -> Box<[u64]> {
            let values = self.read.lists[tuple as usize].iter();
            values
                .map(|value| if let PickledValue::Int(n) = value { *n as u64 } else { 0 })
                .collect()
        };
        let (shape, strides) = (numbers(tensor.shape), numbers(tensor.strides));
        let size = tensor.dtype.bytes();
        let limit = i64::MAX as u64;
        // Even if one extent is 0, the product of the others must not overflow: later code may multiply them in another order.
        let all = shape.iter().filter(|n| **n != 0).try_fold(size, |product, extent| {
            product.checked_mul(*extent).filter(|product| *product <= limit)
        });
        let Some(all) = all else {
            return Err(TorchError::ShapeOverflow { name: self.name(), shape });
        };
        let empty = shape.contains(&0);
        let nbytes = if empty { 0 } else { all };
        if !empty && !contiguous(&shape, &strides) {
            return Err(TorchError::Strides { name: self.name(), shape, strides });
        }
        let start = tensor.start.checked_mul(size).filter(|start| *start <= storage.bytes);
        let Some(start) = start.filter(|start| nbytes <= storage.bytes - start) else {
            return Err(TorchError::PastStorage {
                name: self.name(),
                key: storage.key.into(),
                start: tensor.start.saturating_mul(size),
                nbytes,
                storage: storage.bytes,
            });
        };
        Ok(TorchTensor {
            name: self.name(),
            dtype: tensor.dtype,
            shape,
            offset: storage.offset + start,
            nbytes,
            storage: tensor.storage,
        })
    }
}

/// Keys of a dictionary; 1 and "1" are distinct.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Text(&'a str),
    Number(i64),
}

/// True for values that can contain a tensor.
fn holds(value: &PickledValue<'_>) -> bool {
    matches!(
        value,
        PickledValue::Tensor(_)
            | PickledValue::Dict(_)
            | PickledValue::List(_)
            | PickledValue::Tuple(_)
    )
}

/// True if elements are stored in the order of their indices, without gaps. The stride of a dimension of extent
/// 1 has no meaning; torch leaves any number there.
fn contiguous(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if *extent != 1 {
            if *stride != expected {
                return false;
            }
            expected *= extent;
        }
    }
    true
}
