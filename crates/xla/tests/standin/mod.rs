//! A stand-in for XLA that calls a handler with arrays and attributes, and has a pool of threads that can be awkward.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use alight_xla::api::{self, data_type};
use alight_xla::{Stage, targets};

use crate::frames::{Attributes, frame};

/// How tasks are run that a handler schedules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threads {
    /// There is no pool: asking is an error.
    None,
    /// In the call that schedules them.
    Inline,
    /// When the handler has returned.
    Late,
    /// At once, on threads of their own.
    Real,
    /// At some time, on threads of their own.
    Slow,
}

/// A pointer that may go to other threads.
struct Sent(*mut c_void);
// SAFETY: tasks may be run on any thread, says the interface.
unsafe impl Send for Sent {}

/// XLA's context.
struct Context {
    device: i32,
    threads: Threads,
    late: Mutex<Vec<(api::Task, Sent)>>,
}

fn context<'a>(ctx: *mut api::ExecutionContext) -> &'a Context {
    // SAFETY: every context in this file is one of ours, and outlives its calls.
    unsafe { &*ctx.cast::<Context>() }
}

fn error(code: c_int, message: CString) -> *mut api::Error {
    Box::into_raw(Box::new((code, message))).cast()
}

unsafe extern "C" fn error_create(args: *mut api::ErrorCreateArgs) -> *mut api::Error {
    // SAFETY: the message is a string for the call.
    unsafe { error((*args).errc, CStr::from_ptr((*args).message).to_owned()) }
}

unsafe extern "C" fn error_destroy(args: *mut api::ErrorDestroyArgs) {
    // SAFETY: an error of ours, which ends here.
    drop(unsafe { Box::from_raw((*args).error.cast::<(c_int, CString)>()) });
}

unsafe extern "C" fn unused(_: *mut c_void) -> *mut api::Error {
    error(api::code::INTERNAL, CString::new("not expected").unwrap())
}

unsafe extern "C" fn device(args: *mut api::DeviceOrdinalGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    args.device_ordinal = context(args.ctx).device;
    null_mut()
}

unsafe extern "C" fn num_threads(args: *mut api::NumThreadsArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    if context(args.ctx).threads == Threads::None {
        return error(api::code::INTERNAL, CString::new("no pool").unwrap());
    }
    // SAFETY: a number to be written.
    unsafe { *args.num_threads = 8 };
    null_mut()
}

unsafe extern "C" fn schedule(args: *mut api::ScheduleArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    let context = context(args.ctx);
    let (task, data) = (args.task, Sent(args.data));
    match context.threads {
        Threads::None => return error(api::code::INTERNAL, CString::new("no pool").unwrap()),
        // SAFETY: by the interface, once.
        Threads::Inline => unsafe { task(data.0) },
        Threads::Late => context.late.lock().unwrap().push((task, data)),
        Threads::Real | Threads::Slow => {
            let wait = if context.threads == Threads::Slow { data.0 as u64 / 64 % 300 } else { 0 };
            std::thread::spawn(move || {
                let data = data;
                std::thread::sleep(std::time::Duration::from_micros(wait));
                // SAFETY: as above.
                unsafe { task(data.0) };
            });
        }
    }
    null_mut()
}

fn functions() -> api::Api {
    // SAFETY: zeros are a value of pointers and numbers; the functions are called with pointers to structs.
    unsafe {
        api::Api {
            struct_size: size_of::<api::Api>(),
            extension_start: null_mut(),
            api_version: std::mem::zeroed(),
            internal_api: null(),
            XLA_FFI_Error_Create: error_create,
            XLA_FFI_Error_GetMessage: null(),
            XLA_FFI_Error_Destroy: Some(error_destroy),
            XLA_FFI_Handler_Register: null(),
            XLA_FFI_Stream_Get: std::mem::transmute::<Unused, api::FfiFunction<_>>(unused),
            XLA_FFI_Type_Register: null(),
            XLA_FFI_ExecutionContext_Get: null(),
            XLA_FFI_State_Set: std::mem::transmute::<Unused, api::FfiFunction<_>>(unused),
            XLA_FFI_State_Get: std::mem::transmute::<Unused, api::FfiFunction<_>>(unused),
            XLA_FFI_DeviceMemory_Allocate: null(),
            XLA_FFI_DeviceMemory_Free: null(),
            XLA_FFI_ThreadPool_Schedule: Some(schedule),
            XLA_FFI_ThreadPool_NumThreads: Some(num_threads),
            XLA_FFI_Future_Create: null(),
            XLA_FFI_Future_SetAvailable: null(),
            XLA_FFI_Future_SetError: null(),
            XLA_FFI_RunId_Get: std::mem::transmute::<Unused, api::FfiFunction<_>>(unused),
            XLA_FFI_DeviceOrdinal_Get: device,
        }
    }
}

type Unused = unsafe extern "C" fn(*mut c_void) -> *mut api::Error;

/// An array: its elements' type, its shape, and its bytes, at an address that suits any element.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub dtype: c_int,
    pub dims: Vec<i64>,
    words: Vec<u64>,
    length: usize,
}

impl Array {
    pub fn new(dtype: c_int, dims: &[i64], bytes: &[u8]) -> Array {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        // SAFETY: the words are at least as many bytes, and any bytes are a number.
        let of_words =
            unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), bytes.len()) };
        of_words.copy_from_slice(bytes);
        Array { dtype, dims: dims.to_vec(), words, length: bytes.len() }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the words are at least as many bytes, borrowed for as long as the array.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.length) }
    }

    pub fn floats(&self) -> Vec<f32> {
        self.bytes().chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    pub fn f32s(dims: &[i64], values: &[f32]) -> Array {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        Array::new(data_type::F32, dims, &bytes)
    }

    pub fn s32(value: i32) -> Array {
        Array::new(data_type::S32, &[], &value.to_ne_bytes())
    }

    fn buffer(&mut self) -> api::Buffer {
        api::Buffer {
            struct_size: size_of::<api::Buffer>(),
            extension_start: null_mut(),
            dtype: self.dtype,
            data: self.words.as_mut_ptr().cast(),
            rank: self.dims.len() as i64,
            dims: self.dims.as_mut_ptr(),
        }
    }
}

/// An attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    Integer(i64),
    Float(f32),
    Integers(Vec<i64>),
}

/// A call of a target on a device.
#[derive(Clone, Debug)]
pub struct Call {
    pub target: &'static str,
    pub device: i32,
    pub threads: Threads,
    pub arguments: Vec<Array>,
    pub results: Vec<Array>,
    /// Result → the argument whose memory it is.
    pub aliases: Vec<(usize, usize)>,
    pub attributes: Vec<(&'static str, Attr)>,
}

impl Call {
    /// Replaces an attribute.
    pub fn set(&mut self, name: &str, value: Attr) {
        self.attributes.iter_mut().find(|(other, _)| *other == name).unwrap().1 = value;
    }

    /// The results, or the error.
    pub fn run(mut self) -> Result<Vec<Array>, (c_int, String)> {
        let api = functions();
        let context =
            Context { device: self.device, threads: self.threads, late: Mutex::new(Vec::new()) };
        let mut inputs: Vec<_> = self.arguments.iter_mut().map(Array::buffer).collect();
        let mut outputs: Vec<_> = self.results.iter_mut().map(Array::buffer).collect();
        for (result, argument) in &self.aliases {
            outputs[*result].data = inputs[*argument].data;
        }
        let (mut input_pointers, mut output_pointers) =
            (pointers(&mut inputs), pointers(&mut outputs));
        let mut kinds = [api::BUFFER; 16];
        let names: Vec<_> = self.attributes.iter().map(|(name, _)| *name).collect();
        let mut spans: Vec<_> = names
            .iter()
            .map(|name| api::ByteSpan { ptr: name.as_ptr().cast::<c_char>(), len: name.len() })
            .collect();
        let mut span_pointers: Vec<_> = spans.iter_mut().map(std::ptr::from_mut).collect();
        let mut values: Vec<Box<dyn Value>> = Vec::new();
        let mut attr_kinds = Vec::new();
        for (_, attr) in &mut self.attributes {
            let (kind, value): (_, Box<dyn Value>) = match attr {
                Attr::Integer(value) => (api::ATTR_SCALAR, scalar(data_type::S64, value)),
                Attr::Float(value) => (api::ATTR_SCALAR, scalar(data_type::F32, value)),
                Attr::Integers(values) => {
                    let data = values.as_mut_ptr().cast();
                    let array = api::Array { dtype: data_type::S64, size: values.len(), data };
                    (api::ATTR_ARRAY, Box::new(array))
                }
            };
            attr_kinds.push(kind);
            values.push(value);
        }
        let mut value_pointers: Vec<_> = values.iter_mut().map(|value| value.pointer()).collect();
        let attributes = Attributes {
            kinds: &mut attr_kinds,
            names: &mut span_pointers,
            values: &mut value_pointers,
        };
        let mut frame = frame(
            &api,
            std::ptr::from_ref(&context).cast_mut().cast(),
            &mut kinds,
            &mut input_pointers,
            &mut output_pointers,
            attributes,
        );
        let target = targets().into_iter().find(|target| target.name == self.target).unwrap();
        // SAFETY: a frame as XLA makes it, alive for the call.
        let error = unsafe { target.stage(Stage::Execute).unwrap()(&mut frame) };
        let results = || {
            let mut results = self.results.clone();
            for (result, argument) in &self.aliases {
                results[*result].words.clone_from(&self.arguments[*argument].words);
            }
            results
        };
        let results = results();
        for (task, data) in context.late.into_inner().unwrap() {
            // SAFETY: scheduled, and not run yet. What the handler was called with is gone for it.
            unsafe { task(data.0) };
        }
        if error.is_null() {
            return Ok(results);
        }
        // SAFETY: made by `error`.
        let (code, message) = *unsafe { Box::from_raw(error.cast::<(c_int, CString)>()) };
        Err((code, message.into_string().unwrap()))
    }
}

fn pointers<T>(values: &mut [T]) -> Vec<*mut c_void> {
    values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect()
}

fn scalar<T>(dtype: c_int, value: &mut T) -> Box<dyn Value> {
    Box::new(api::Scalar { dtype, value: std::ptr::from_mut(value).cast() })
}

trait Value {
    fn pointer(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }
}
impl Value for api::Scalar {}
impl Value for api::Array {}
