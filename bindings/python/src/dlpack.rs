//! DLPack: arrays that other libraries take over in place, through a capsule. Structs and numbers are those of `dlpack.h`, version
//! 1.0.
//!
//! The arrays are read-only, which only version 1 can express: a consumer that does not request that version (JAX 0.10 does not)
//! gets a copy, which it may write to.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::Memory;

/// Host memory: the type of the device, and its number.
pub const CPU: (i32, i32) = (1, 0);
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The type of an element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

pub const FLOAT32: DataType = DataType { code: 2, bits: 32, lanes: 1 };

/// The type of this name in NumPy; `None` if version 1.0 of DLPack has no such type.
pub fn dtype(name: &str) -> Option<DataType> {
    let (code, bits) = match name {
        "int8" => (0, 8),
        "int16" => (0, 16),
        "int32" => (0, 32),
        "int64" => (0, 64),
        "uint8" => (1, 8),
        "uint16" => (1, 16),
        "uint32" => (1, 32),
        "uint64" => (1, 64),
        "float16" => (2, 16),
        "float32" => (2, 32),
        "float64" => (2, 64),
        "bfloat16" => (4, 16),
        "bool" => (6, 8),
        _ => return None,
    };
    Some(DataType { code, bits, lanes: 1 })
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// The contents of a capsule of version 0.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// The contents of a capsule of version 1.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The target of a `context`: everything that a tensor needs, for as long as it is used.
struct Kept {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Box<dyn Any + Send + Sync>,
}

/// Numbers to be shared.
pub struct Shared {
    pub data: *const c_void,
    pub nbytes: usize,
    pub dtype: DataType,
    pub shape: Vec<i64>,
    /// While it lives, `nbytes` bytes at `data` stay in place and are readable.
    pub owner: Box<dyn Any + Send + Sync>,
}

const NAME: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Memory of a copy, which the consumer may write to.
struct Copied(#[expect(dead_code, reason = "it is held")] Memory);

/// A capsule of `shared`, as requested by the keywords of `__dlpack__`.
///
/// # Errors
/// `BufferError`: the request cannot be met.
pub fn capsule<'py>(
    py: Python<'py>,
    mut shared: Shared,
    stream: Option<Bound<'py, PyAny>>,
    max_version: Option<(u32, u32)>,
    device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    if stream.is_some() {
        return Err(PyBufferError::new_err("there are no streams in the memory of the host"));
    }
    if device.is_some_and(|device| device != CPU) {
        return Err(PyBufferError::new_err("it is in the memory of the host, device (1, 0)"));
    }
    let versioned = max_version.is_some_and(|(major, _)| major >= 1);
    if copy == Some(false) && !versioned {
        return Err(PyBufferError::new_err(
            "it is read-only, which DLPack says from version 1.0 on: ask with max_version=(1, 0), or for a copy",
        ));
    }
    let copied = copy == Some(true) || !versioned;
    if !copied && !(shared.data as usize).is_multiple_of(usize::from(shared.dtype.bits / 8)) {
        return Err(PyBufferError::new_err(
            "it begins at an address that is no multiple of an element's size: ask for a copy",
        ));
    }
    if copied {
        let mut memory =
            Memory::new(shared.nbytes).map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        // SAFETY: `owner` keeps that many bytes; those of the copy are new.
        let from = unsafe { std::slice::from_raw_parts(shared.data.cast::<u8>(), shared.nbytes) };
        memory.bytes_mut().copy_from_slice(from);
        shared.data = memory.bytes().as_ptr().cast();
        shared.owner = Box::new(Copied(memory));
    }
    let Shared { data, dtype, shape, owner, .. } = shared;
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    let ndim = shape.len() as i32;
    let mut kept = Box::new(Kept { shape, strides, _owner: owner });
    let tensor = DlTensor {
        data: data.cast_mut(),
        device_type: CPU.0,
        device_id: CPU.1,
        ndim,
        dtype,
        shape: kept.shape.as_mut_ptr(),
        strides: kept.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(kept).cast();
    let (pointer, name, end): (*mut c_void, _, ffi::PyCapsule_Destructor) = if versioned {
        let flags = if copied { IS_COPIED } else { READ_ONLY };
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { major: 1, minor: 0, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED, end_versioned)
    } else {
        let deleter = Some(delete as unsafe extern "C" fn(*mut Managed));
        let managed = Managed { tensor, context, deleter };
        (Box::into_raw(Box::new(managed)).cast(), NAME, end_unversioned)
    };
    // SAFETY: the pointer is not null, and its target lives until its deleter is called: by the consumer, which renames the capsule
    // when it takes it over, or by the capsule's destructor. The name is static. The result is a new reference, or null with an
    // exception.
    unsafe {
        let capsule = ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end));
        if capsule.is_null() {
            match versioned {
                true => delete_versioned(pointer.cast()),
                false => delete(pointer.cast()),
            }
        }
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// # Safety
/// It was made by [`capsule`], and is not used any more.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: by the contract; both were boxes.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Kept>()));
    }
}

/// # Safety
/// It was made by [`capsule`], and is not used any more.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: by the contract; both were boxes.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Kept>()));
    }
}

/// The contents of a capsule that has not been taken over; otherwise null.
///
/// # Safety
/// Called by the interpreter, with a capsule that [`capsule`] has made.
unsafe fn unused(capsule: *mut ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: by the contract. A consumer that takes it over renames it.
    unsafe {
        match ffi::PyCapsule_IsValid(capsule, name.as_ptr()) {
            1 => ffi::PyCapsule_GetPointer(capsule, name.as_ptr()),
            _ => ptr::null_mut(),
        }
    }
}

/// # Safety
/// Called by the interpreter when the capsule is not used any more.
unsafe extern "C" fn end_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: by the contract.
    unsafe {
        let managed = unused(capsule, VERSIONED);
        if !managed.is_null() {
            delete_versioned(managed.cast());
        }
    }
}

/// # Safety
/// Called by the interpreter when the capsule is not used any more.
unsafe extern "C" fn end_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: by the contract.
    unsafe {
        let managed = unused(capsule, NAME);
        if !managed.is_null() {
            delete(managed.cast());
        }
    }
}
