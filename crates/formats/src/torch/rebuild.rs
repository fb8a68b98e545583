//! The functions that a pickle may call: the dictionary, four that describe a tensor, and the reference to a
//! storage. Modelled on the functions of the same names in torch/_utils.py.

use super::MAX_DIMS;
use super::error::PickleError;
use super::globals::{Global, TorchDtype};
use super::pickle::Machine;
use super::values::{PickledTensor, PickledValue, Storage};

impl<'a> Machine<'a, '_> {
    /// Calls `callee` with the tuple `args`.
    pub(super) fn call(
        &mut self,
        callee: PickledValue<'a>,
        args: PickledValue<'a>,
    ) -> Result<PickledValue<'a>, PickleError> {
        let PickledValue::Global(global) = callee else {
            return Err(self.operand(callee, "a function that rebuilds a tensor"));
        };
        let args = self.items(args, "a tuple of arguments")?;
        match global {
            Global::OrderedDict => self.ordered_dict(args),
            Global::FromType => self.typed(args),
            _ => self.rebuild(global, args),
        }
    }

    /// The index of a tuple.
    fn items(&self, value: PickledValue<'a>, expected: &'static str) -> Result<u32, PickleError> {
        match value {
            PickledValue::Tuple(place) => Ok(place),
            _ => Err(self.operand(value, expected)),
        }
    }

    /// The values of the tuple or list with index `place`.
    fn at(&self, place: u32) -> &[PickledValue<'a>] {
        &self.read.lists[place as usize]
    }

    /// `OrderedDict()`. Its items follow later; as an argument they would be copied for every call.
    fn ordered_dict(&mut self, args: u32) -> Result<PickledValue<'a>, PickleError> {
        match *self.at(args) {
            [] => Ok(self.dict()),
            [other, ..] => Err(self.operand(other, "no argument")),
        }
    }

    /// `_rebuild_from_type_v2(function, class, arguments, state)`: the tensor that the function returns. The
    /// class is its type in Python, the state its attributes there.
    fn typed(&mut self, args: u32) -> Result<PickledValue<'a>, PickleError> {
        let [function, class, inner, state] = *self.at(args) else {
            return Err(self.operand(PickledValue::Tuple(args), "4 arguments"));
        };
        let PickledValue::Global(
            function @ (Global::TensorV2 | Global::TensorV3 | Global::Parameter),
        ) = function
        else {
            return Err(self.operand(function, "a function that rebuilds a tensor"));
        };
        let PickledValue::Global(Global::Class) = class else {
            return Err(self.operand(class, "torch.Tensor or Parameter"));
        };
        let (PickledValue::None | PickledValue::Dict(_) | PickledValue::Tuple(_)) = state else {
            return Err(self.operand(state, "the attributes of a tensor"));
        };
        let inner = self.items(inner, "a tuple of arguments")?;
        self.rebuild(function, inner)
    }

    /// The three functions that describe a tensor themselves.
    fn rebuild(&mut self, function: Global, args: u32) -> Result<PickledValue<'a>, PickleError> {
        match (function, self.at(args)) {
            // (tensor, requires_grad, hooks)
            (Global::Parameter, &[data, grad, hooks]) => {
                let PickledValue::Tensor(_) = data else {
                    return Err(self.operand(data, "a tensor"));
                };
                self.plain(grad, hooks)?;
                Ok(data)
            }
            // (storage, start, size, strides, requires_grad, hooks[, metadata])
            (Global::TensorV2, &[storage, start, size, strides, grad, hooks, ref rest @ ..])
                if rest.len() <= 1 =>
            {
                let metadata = rest.first().copied();
                self.plain(grad, hooks)?;
                self.tensor(storage, start, size, strides, None, metadata)
            }
            // (storage, start, size, strides, requires_grad, hooks, dtype[, metadata])
            (
                Global::TensorV3,
                &[storage, start, size, strides, grad, hooks, dtype, ref rest @ ..],
            ) if rest.len() <= 1 => {
                let metadata = rest.first().copied();
                let PickledValue::Global(Global::Dtype(dtype)) = dtype else {
                    return Err(self.operand(dtype, "a dtype"));
                };
                self.plain(grad, hooks)?;
                self.tensor(storage, start, size, strides, Some(dtype), metadata)
            }
            (Global::Parameter | Global::TensorV2 | Global::TensorV3, _) => {
                Err(self
                    .operand(PickledValue::Tuple(args), "as many arguments as the function has"))
            }
            (other, _) => {
                Err(self.operand(PickledValue::Global(other), "a function that rebuilds a tensor"))
            }
        }
    }

    /// Gradients may be requested or not; hooks must be absent.
    fn plain(&self, grad: PickledValue<'a>, hooks: PickledValue<'a>) -> Result<(), PickleError> {
        let PickledValue::Bool(_) = grad else { return Err(self.operand(grad, "a boolean")) };
        self.nothing(hooks, "hooks, a dictionary")
    }

    /// Checks that `value` is None or an empty dictionary.
    fn nothing(&self, value: PickledValue<'a>, expected: &'static str) -> Result<(), PickleError> {
        match value {
            PickledValue::None => Ok(()),
            PickledValue::Dict(dict) if self.read.dicts[dict as usize].is_empty() => Ok(()),
            PickledValue::Dict(_) => Err(PickleError::Meaning { at: self.at }),
            other => Err(self.operand(other, expected)),
        }
    }

    fn tensor(
        &mut self,
        storage: PickledValue<'a>,
        start: PickledValue<'a>,
        size: PickledValue<'a>,
        strides: PickledValue<'a>,
        dtype: Option<TorchDtype>,
        metadata: Option<PickledValue<'a>>,
    ) -> Result<PickledValue<'a>, PickleError> {
        let PickledValue::Storage(place) = storage else {
            return Err(self.operand(storage, "a storage"));
        };
        if let Some(metadata) = metadata {
            self.nothing(metadata, "metadata, a dictionary")?;
        }
        let start = self.number(start, "where a tensor begins")?;
        let shape = self.items(size, "a tuple of sizes")?;
        let strides = self.items(strides, "a tuple of strides")?;
        let counts = [shape, strides].map(|tuple| self.at(tuple).len());
        if counts[0] > MAX_DIMS {
            return Err(PickleError::Dimensions { found: counts[0], at: self.at, limit: MAX_DIMS });
        }
        if counts[0] != counts[1] {
            let [shape, strides] = counts;
            return Err(PickleError::StridesCount { shape, strides, at: self.at });
        }
        for (tuple, field) in [(shape, "a size"), (strides, "a stride")] {
            for value in self.at(tuple) {
                self.number(*value, field)?;
            }
        }
        let dtype = dtype.unwrap_or(self.read.storages[place as usize].dtype);
        self.read.tensors.push(PickledTensor { storage: place, dtype, start, shape, strides });
        Ok(PickledValue::Tensor((self.read.tensors.len() - 1) as u32))
    }

    /// Returns a non-negative count.
    fn number(&self, value: PickledValue<'a>, field: &'static str) -> Result<u64, PickleError> {
        match value {
            PickledValue::Int(number) => u64::try_from(number).map_err(|_| PickleError::Number {
                what: self.what,
                at: self.at,
                field,
                number,
            }),
            other => Err(self.operand(other, "an integer of 63 bits")),
        }
    }

    /// Returns the storage that `('storage', class, key, location, numel)` refers to.
    pub(super) fn storage(
        &mut self,
        id: PickledValue<'a>,
    ) -> Result<PickledValue<'a>, PickleError> {
        const EXPECTED: &str = "('storage', class, key, location, numel)";
        let id = self.items(id, EXPECTED)?;
        let [
            PickledValue::Str("storage"),
            class,
            PickledValue::Str(key),
            PickledValue::Str(_),
            numel,
        ] = *self.at(id)
        else {
            return Err(self.operand(PickledValue::Tuple(id), EXPECTED));
        };
        let PickledValue::Global(Global::Storage(dtype)) = class else {
            return Err(self.operand(class, "a class of storages"));
        };
        let numel = self.number(numel, "a number of elements")?;
        if let Some(place) = self.by_key.get(key) {
            let known = &self.read.storages[*place as usize];
            return match (known.dtype, known.numel) == (dtype, numel) {
                true => Ok(PickledValue::Storage(*place)),
                false => Err(PickleError::StorageTwice { key: key.into() }),
            };
        }
        let record = match key.contains('/') || key.len() > super::zip::MAX_NAME {
            true => None,
            false => self.zip.get(&format!("data/{key}")),
        };
        let record = record.ok_or_else(|| PickleError::NoRecord { key: key.into() })?;
        if numel.checked_mul(dtype.bytes()) != Some(record.size) {
            let (key, record) = (key.into(), record.size);
            return Err(PickleError::RecordSize { key, numel, dtype, record });
        }
        let place = self.read.storages.len() as u32;
        let (offset, bytes) = (record.offset, record.size);
        self.read.storages.push(Storage { key, dtype, numel, offset, bytes });
        self.by_key.insert(key, place);
        Ok(PickledValue::Storage(place))
    }
}
