//! One tensor of a catalog.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use alight_formats::GgmlType;
use alight_formats::gguf::TensorInfo;
use alight_formats::packed::TILE_ROWS;
use alight_formats::safetensors::{self, Dtype};
use alight_kernels::{Layout, Matrix, WeightType};
use alight_pages::Map;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::block::Block;
use crate::convert::{self, Float};
use crate::dlpack::{self, Shared};
use crate::error;
use crate::geometry::{Runs, Spread};
use crate::memory::Memory;
use crate::numpy;
use crate::residency::Residency;

/// A catalog's information about a tensor.
#[derive(Debug)]
pub struct Info {
    pub name: String,
    /// Extents of the elements, outermost first.
    shape: Vec<u64>,
    /// The format's name of the type.
    ty: &'static str,
    /// NumPy's name of the element type, if elements are contiguous.
    dtype: Option<&'static str>,
    /// The type and layout, if there are kernels for it.
    weights: Option<(WeightType, Layout)>,
    /// The shape of the bytes as an array, and the bytes of an element.
    stored: Vec<u64>,
    unit: usize,
    /// The last dimension of `stored` can be cut at multiples of this.
    grain: u64,
    packed: bool,
    file: usize,
    spread: Spread,
    pub nbytes: u64,
}

impl Info {
    pub fn of_gguf(file: usize, info: &TensorInfo<'_>) -> Info {
        let shape: Vec<u64> = info.shape().iter().rev().copied().collect();
        let dtype = if info.packed.is_some() { None } else { ggml_dtype(info.ty) };
        let row_bytes = info.row_bytes();
        let (stored, unit, grain) = match (dtype, shape.split_last()) {
            (Some(_), _) | (_, None) => (shape.clone(), info.ty.block_bytes() as usize, 1),
            (None, Some((_, outer))) => {
                let mut stored = outer.to_vec();
                let mut last = row_bytes;
                if info.packed.is_some() {
                    // The parser has checked that the rows fill whole tiles.
                    if let Some(rows) = stored.last_mut() {
                        *rows /= TILE_ROWS;
                    }
                    last *= TILE_ROWS;
                }
                stored.push(last);
                (stored, 1, if info.packed.is_some() { last } else { info.ty.block_bytes() })
            }
        };
        let layout = Layout::from(info.packed);
        Info {
            name: info.name.to_owned(),
            shape,
            ty: info.ty.name(),
            dtype,
            weights: WeightType::of(info.ty).map(|ty| (ty, layout)),
            stored,
            unit,
            grain,
            packed: info.packed.is_some(),
            file,
            spread: Spread::of(info),
            nbytes: info.nbytes,
        }
    }

    pub fn of_safetensors(file: usize, tensor: &safetensors::Tensor<'_>) -> Info {
        let weights = match tensor.dtype {
            Dtype::F32 => Some(WeightType::F32),
            Dtype::F16 => Some(WeightType::F16),
            Dtype::BF16 => Some(WeightType::BF16),
            _ => None,
        };
        Info {
            name: tensor.name.as_ref().to_owned(),
            shape: tensor.shape.clone(),
            ty: tensor.dtype.name(),
            dtype: safetensors_dtype(tensor.dtype),
            weights: weights.map(|ty| (ty, Layout::Rows)),
            stored: tensor.shape.clone(),
            unit: tensor.dtype.bytes() as usize,
            grain: 1,
            packed: false,
            file,
            spread: Spread::contiguous(tensor.range.start, tensor.bytes()),
            nbytes: tensor.bytes(),
        }
    }

    /// The part of the stored array; the whole array without `ranges`.
    fn runs(&self, shape: &[u64], ranges: Option<&[(u64, u64)]>) -> PyResult<Runs> {
        let whole: Vec<(u64, u64)> = shape.iter().map(|&dim| (0, dim)).collect();
        Runs::new(shape, ranges.unwrap_or(&whole)).map_err(|problem| self.value(problem))
    }

    /// The number of matrices, for a stack of them.
    pub fn experts(&self) -> Option<u64> {
        match self.shape[..] {
            [count, _, _] if count > 0 => Some(count),
            _ => None,
        }
    }

    /// The location of its bytes in the file.
    pub fn spread(&self) -> Spread {
        self.spread
    }

    /// The range of the file that contains a part, and whether it contains nothing else.
    fn extent(&self, runs: &Runs) -> (Range<u64>, bool) {
        let at = |elements: usize| (elements * self.unit) as u64;
        let extent = runs.extent();
        let (extent, whole) = self.spread.extent(at(extent.start)..at(extent.end));
        (extent, whole && runs.count() <= 1)
    }

    fn value(&self, problem: impl std::fmt::Display) -> PyErr {
        PyValueError::new_err(format!("tensor '{}': {problem}", self.name))
    }
}

/// NumPy's names of the types that are plain elements.
fn ggml_dtype(ty: GgmlType) -> Option<&'static str> {
    Some(match ty {
        GgmlType::F32 => "float32",
        GgmlType::F16 => "float16",
        GgmlType::BF16 => "bfloat16",
        GgmlType::F64 => "float64",
        GgmlType::I8 => "int8",
        GgmlType::I16 => "int16",
        GgmlType::I32 => "int32",
        GgmlType::I64 => "int64",
        _ => return None,
    })
}

fn safetensors_dtype(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "bool",
        Dtype::U8 => "uint8",
        Dtype::I8 => "int8",
        Dtype::F8E4M3 => "float8_e4m3fn",
        Dtype::F8E5M2 => "float8_e5m2",
        Dtype::U16 => "uint16",
        Dtype::I16 => "int16",
        Dtype::F16 => "float16",
        Dtype::BF16 => "bfloat16",
        Dtype::U32 => "uint32",
        Dtype::I32 => "int32",
        Dtype::F32 => "float32",
        Dtype::U64 => "uint64",
        Dtype::I64 => "int64",
        Dtype::F64 => "float64",
        _ => return None,
    })
}

/// A tensor: what it is, where it is in its file, and its bytes, in place and read-only by the buffer protocol.
#[pyclass(frozen, module = "alight")]
#[derive(Debug)]
pub struct Tensor {
    pub files: Arc<[Map]>,
    pub info: Arc<Info>,
}

impl Tensor {
    fn map(&self) -> &Map {
        &self.files[self.info.file]
    }

    /// Its bytes in the map, if they are contiguous. The catalog's parser has checked that the file is long enough.
    fn bytes(&self) -> Result<&[u8], PyErr> {
        let Info { spread, nbytes, name, .. } = &*self.info;
        if spread.stride().is_some() {
            return Err(PyBufferError::new_err(format!(
                "tensor '{name}': its experts lie side by side with those of other tensors: read() copies them"
            )));
        }
        let range = spread.offset as usize..(spread.offset + nbytes) as usize;
        Ok(self.map().bytes().get(range).unwrap_or_default())
    }

    fn memory(&self, len: Option<usize>) -> PyResult<Memory> {
        let len = len.ok_or_else(|| self.info.value("more bytes than this machine can address"))?;
        Memory::new(len).map_err(|e| PyMemoryError::new_err(format!("'{}': {e}", self.info.name)))
    }

    /// A part of the stored array: in place if possible, otherwise copied.
    fn stored_part(&self, ranges: Option<&[(u64, u64)]>, align: usize) -> PyResult<Block> {
        let info = &self.info;
        let runs = info.runs(&info.stored, ranges)?;
        let shape = lengths(&info.stored, ranges);
        let len = runs.elements() * info.unit;
        let (extent, whole) = info.extent(&runs);
        if whole {
            let start = extent.start as usize;
            // Maps begin at a page.
            if len == 0 || start.is_multiple_of(align) {
                let block = Block::mapped(self.files.clone(), info.file, start, len, shape);
                return block.ok_or_else(|| info.value("its bytes are not in the file"));
            }
        }
        let mut memory = self.memory(Some(len))?;
        convert::copy(self.map().bytes(), info.spread, &runs, info.unit, memory.bytes_mut());
        self.map().check().map_err(error::map)?;
        Ok(Block::copied(memory, shape))
    }

    /// A part of the elements, as floats.
    fn floats_part(&self, ranges: Option<&[(u64, u64)]>, name: &str) -> PyResult<Block> {
        let info = &self.info;
        let Some(float) = Float::from_name(name) else {
            let expected = "expected bfloat16, float16 or float32";
            return Err(info.value(format!("cannot be converted to {name}, {expected}")));
        };
        let Some((ty, layout)) = info.weights else {
            let advice = "take its bytes, or convert the file";
            return Err(info.value(format!("is {}, which has no kernels; {advice}", info.ty)));
        };
        let whole: Vec<(u64, u64)> = info.shape.iter().map(|&dim| (0, dim)).collect();
        let ranges = ranges.unwrap_or(&whole);
        let elements = info.runs(&info.shape, Some(ranges))?.elements();
        let shape = lengths(&info.shape, Some(ranges));
        let mut memory = self.memory(elements.checked_mul(float.bytes()))?;
        if elements > 0 {
            // A single element is a row of one.
            let one = ([1], [(0, 1)]);
            let (dims, parts): (&[u64], &[(u64, u64)]) =
                if info.shape.is_empty() { (&one.0, &one.1) } else { (&info.shape, ranges) };
            let Some((&cols, outer)) = dims.split_last() else {
                return Err(info.value("no shape"));
            };
            let (cut, outer_parts) = (parts[outer.len()], &parts[..outer.len()]);
            let runs = Runs::new(outer, outer_parts).map_err(|problem| info.value(problem))?;
            let rows = outer.iter().product::<u64>() as usize;
            // Of experts that alternate with others, each is a matrix.
            let count = (info.nbytes as usize).div_ceil(info.spread.one()).max(1);
            let one = |index: usize| {
                let at = index * info.spread.one();
                let place = info.spread.place(at as u64) as usize;
                let len = info.spread.one().min(info.nbytes as usize);
                let bytes = self.map().bytes().get(place..place + len).unwrap_or_default();
                Matrix::with_layout(layout, ty, bytes, rows / count, cols as usize)
                    .map_err(|e| info.value(e))
            };
            let matrices = (0..count).map(one).collect::<PyResult<Vec<_>>>()?;
            let cut = (cut.0 as usize, cut.1 as usize);
            convert::floats(&matrices, &runs, cut, float, memory.bytes_mut());
        }
        self.map().check().map_err(error::map)?;
        Ok(Block::copied(memory, shape))
    }
}

/// Lengths of the ranges.
fn lengths(shape: &[u64], ranges: Option<&[(u64, u64)]>) -> Vec<u64> {
    match ranges {
        None => shape.to_vec(),
        Some(ranges) => ranges.iter().map(|(start, stop)| stop - start).collect(),
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }

    /// Extents of the elements, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.info.shape)
    }

    /// The type, as the format calls it: "Q4_K", "BF16".
    #[getter]
    fn r#type(&self) -> &str {
        self.info.ty
    }

    /// The element type, as NumPy calls it; `None` for blocks and tiles.
    #[getter]
    fn dtype(&self) -> Option<&str> {
        self.info.dtype
    }

    /// True if the bytes are in tiles of 16 rows, or in planes, as `alight pack` writes them.
    #[getter]
    fn packed(&self) -> bool {
        self.info.packed
    }

    /// True if the bytes are in planes: the high bits in tiles, apart from the low ones.
    #[getter]
    fn planes(&self) -> bool {
        self.info.weights.is_some_and(|(_, layout)| layout == Layout::Planes)
    }

    /// Shape of the bytes as they are stored: as `shape` for plain elements, else in bytes:
    /// `[…, rows, bytes of a row]`, and `[…, tiles, bytes of a tile]` where packed.
    #[getter]
    fn stored_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.info.stored)
    }

    /// The last dimension of `stored_shape` can be cut at multiples of this.
    #[getter]
    fn grain(&self) -> u64 {
        self.info.grain
    }

    /// True if it can be had as floats.
    #[getter]
    fn convertible(&self) -> bool {
        self.info.weights.is_some()
    }

    /// Where its bytes begin in the file.
    #[getter]
    fn offset(&self) -> u64 {
        self.info.spread.offset
    }

    /// Bytes from each expert to the next in the file, where those of other tensors lie in between (`alight pack` writes them so);
    /// `None`: the bytes are contiguous.
    #[getter]
    fn stride(&self) -> Option<u64> {
        self.info.spread.stride()
    }

    /// True if its address in the map is one that XLA uses in place: a multiple of 64. Of others, arrays
    /// are copies; `alight convert` writes files in which every tensor is aligned.
    #[getter]
    fn aligned(&self) -> bool {
        self.info.spread.offset.is_multiple_of(crate::memory::ALIGNMENT as u64)
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.info.nbytes
    }

    /// The file that holds it.
    #[getter]
    fn file(&self) -> PathBuf {
        self.map().path().to_owned()
    }

    /// Its place among the files of the catalog.
    #[getter]
    fn file_index(&self) -> usize {
        self.info.file
    }

    /// How much of it is in the page cache now.
    fn residency(&self, py: Python<'_>) -> PyResult<Residency> {
        let Info { spread, nbytes, .. } = &*self.info;
        // For alternating experts, the bytes in between are resident to the same extent.
        let (extent, _) = spread.extent(0..*nbytes);
        py.detach(|| Residency::of(self.map(), extent.start, extent.end - extent.start))
    }

    /// Its bytes, or those of a part: `ranges` has a (start, stop) for each dimension of
    /// `stored_shape`. They are shown in place if they are contiguous in the file, from a
    /// multiple of `align` on; else they are copied to such an address.
    ///
    /// With `dtype` ("bfloat16", "float16", "float32") the elements are converted, and `ranges` are of
    /// `shape`.
    #[pyo3(signature = (ranges=None, dtype=None, align=1))]
    fn read(
        &self,
        py: Python<'_>,
        ranges: Option<Vec<(u64, u64)>>,
        dtype: Option<&str>,
        align: usize,
    ) -> PyResult<Block> {
        if !align.is_power_of_two() || align > crate::memory::ALIGNMENT {
            return Err(PyValueError::new_err(format!("align is {align}, expected 1, 2, 4 … 64")));
        }
        py.detach(|| match dtype {
            None => self.stored_part(ranges.as_deref(), align),
            Some(name) => self.floats_part(ranges.as_deref(), name),
        })
    }

    /// Where a part of the stored array lies in the file: (start, stop, whether nothing else lies in
    /// between).
    #[pyo3(signature = (ranges=None))]
    fn extent(&self, ranges: Option<Vec<(u64, u64)>>) -> PyResult<(u64, u64, bool)> {
        let runs = self.info.runs(&self.info.stored, ranges.as_deref())?;
        let (extent, whole) = self.info.extent(&runs);
        Ok((extent.start, extent.end, whole))
    }

    /// As a NumPy array: plain elements in place, read-only; blocks as float32. `dtype` ("float32", "float16", "bfloat16") converts.
    #[pyo3(signature = (dtype=None))]
    fn numpy<'py>(slf: &Bound<'py, Self>, dtype: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        numpy::of_tensor(slf.as_any(), dtype)
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        numpy::array(slf.as_any(), dtype, copy)
    }

    /// As an array of JAX, which asks for it where it is given this object: float32 of what is stored in blocks.
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        numpy::jax_array(slf.as_any())
    }

    /// Its elements, in place and read-only, for who takes DLPack.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let info = &self.info;
        let Some(dtype) = info.dtype.and_then(dlpack::dtype) else {
            return Err(PyBufferError::new_err(format!(
                "tensor '{}' is {}, which DLPack has no type for: read it with a dtype, or by numpy()",
                info.name, info.ty
            )));
        };
        let bytes = self.bytes()?;
        let shared = Shared {
            data: bytes.as_ptr().cast(),
            nbytes: bytes.len(),
            dtype,
            shape: info.shape.iter().map(|&n| n as i64).collect(),
            owner: Box::new(Arc::clone(&self.files)),
        };
        dlpack::capsule(py, shared, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut pyo3::ffi::Py_buffer,
        flags: std::os::raw::c_int,
    ) -> PyResult<()> {
        // SAFETY: the interpreter's view. The object is frozen and keeps the map that the bytes are in.
        unsafe { crate::block::fill(slf.as_any(), slf.get().bytes()?, view, flags) }
    }

    fn __repr__(&self) -> String {
        let Info { name, shape, ty, .. } = &*self.info;
        format!("<alight.Tensor '{name}' {shape:?} {ty}>")
    }
}
