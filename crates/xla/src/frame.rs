//! A call frame, with checks: every field is checked before it is used, and any failure, including a panic, becomes an error of
//! XLA.

use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::api;

/// An error for XLA: its code and its message.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) c_int, pub(crate) String);

impl Refusal {
    pub(crate) fn argument(message: impl Into<String>) -> Refusal {
        Refusal(api::code::INVALID_ARGUMENT, message.into())
    }
}

/// An array passed by XLA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array<'a> {
    pub(crate) dtype: c_int,
    /// Outermost first; none is negative.
    pub(crate) dims: &'a [i64],
    pub(crate) data: *mut u8,
}

impl Array<'_> {
    /// The number of elements, unless it overflows.
    pub(crate) fn count(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |n, dim| n.checked_mul(usize::try_from(*dim).ok()?))
    }
}

/// The frame of a call in progress.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a>(&'a api::CallFrame);

/// Runs a handler: answers XLA's request for metadata, or calls `run`.
///
/// # Safety
/// `frame` is the one that XLA called the handler with.
pub(crate) unsafe fn handle(
    frame: *mut api::CallFrame,
    state_type: i64,
    run: impl FnOnce(Frame<'_>) -> Result<(), Refusal>,
) -> *mut api::Error {
    // SAFETY: passed on.
    unsafe { handle_with(frame, state_type, 0, run) }
}

/// As [`handle`], with traits: [`api::COMMAND_BUFFER_COMPATIBLE`].
///
/// # Safety
/// As [`handle`].
pub(crate) unsafe fn handle_with(
    frame: *mut api::CallFrame,
    state_type: i64,
    traits: u32,
    run: impl FnOnce(Frame<'_>) -> Result<(), Refusal>,
) -> *mut api::Error {
    // SAFETY: XLA's frame is valid for the call, with everything it points to.
    let frame = unsafe { &*frame };
    // SAFETY: as above; an extension begins with its base.
    let extension = unsafe { frame.extension_start.as_ref() };
    if extension.is_some_and(|extension| extension.r#type == api::EXTENSION_METADATA) {
        // SAFETY: an extension of this type is a metadata extension, whose answer this library writes.
        unsafe { describe(frame.extension_start.cast(), state_type, traits) };
        return null_mut();
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run(Frame(frame))));
    let Refusal(errc, message) = match outcome {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(refusal)) => refusal,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Refusal(api::code::INTERNAL, format!("a fault in Alight: {text}"))
        }
    };
    let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
    let mut args = api::ErrorCreateArgs {
        struct_size: size_of::<api::ErrorCreateArgs>(),
        extension_start: null_mut(),
        message: message.as_ptr(),
        errc,
    };
    // SAFETY: the frame's table of functions is valid; the message is copied before the call returns.
    unsafe { ((*frame.api).XLA_FFI_Error_Create)(&mut args) }
}

/// # Safety
/// `extension` is XLA's request, with space for the answer.
unsafe fn describe(extension: *mut api::MetadataExtension, state_type: i64, traits: u32) {
    // SAFETY: by the contract.
    let metadata = unsafe { &mut *(*extension).metadata };
    metadata.api_version = api::ApiVersion {
        struct_size: size_of::<api::ApiVersion>(),
        extension_start: null_mut(),
        major_version: api::MAJOR,
        minor_version: api::MINOR,
    };
    metadata.traits = traits;
    metadata.state_type_id = state_type;
}

/// `length` elements at `start`; an empty slice if there is no array.
///
/// # Safety
/// That many elements are valid for `'a`, unless `start` is null or `length` not positive.
unsafe fn slice<'a, T>(start: *const T, length: i64) -> &'a [T] {
    match usize::try_from(length) {
        // SAFETY: by the contract.
        Ok(length) if length > 0 && !start.is_null() => unsafe {
            std::slice::from_raw_parts(start, length)
        },
        _ => &[],
    }
}

impl<'a> Frame<'a> {
    /// All arguments, which are arrays.
    pub(crate) fn arguments(self) -> Result<Vec<Array<'a>>, Refusal> {
        // SAFETY: XLA's lists have the lengths that it states.
        let (types, values) = unsafe {
            (slice(self.0.args.types, self.0.args.size), slice(self.0.args.args, self.0.args.size))
        };
        arrays(types, values)
    }

    /// All results.
    pub(crate) fn results(self) -> Result<Vec<Array<'a>>, Refusal> {
        // SAFETY: XLA's lists have the lengths that it states.
        let (types, values) = unsafe {
            (slice(self.0.rets.types, self.0.rets.size), slice(self.0.rets.rets, self.0.rets.size))
        };
        arrays(types, values)
    }

    fn attribute(self, name: &str) -> Result<(c_int, *mut c_void), Refusal> {
        let attrs = &self.0.attrs;
        // SAFETY: XLA's lists have the lengths that it states; names are spans of bytes that live as long.
        unsafe {
            let types = slice(attrs.types, attrs.size);
            let names = slice(attrs.names, attrs.size);
            let values = slice(attrs.attrs, attrs.size);
            for ((kind, span), value) in types.iter().zip(names).zip(values) {
                let span = &**span;
                if slice(span.ptr.cast::<u8>(), span.len as i64) == name.as_bytes() {
                    return Ok((*kind, *value));
                }
            }
        }
        Err(Refusal::argument(format!("the attribute '{name}' is missing")))
    }

    fn scalar(self, name: &str, dtype: c_int) -> Result<*const c_void, Refusal> {
        let (kind, value) = self.attribute(name)?;
        if kind == api::ATTR_SCALAR {
            // SAFETY: an attribute of this kind is a scalar.
            let scalar = unsafe { &*value.cast::<api::Scalar>() };
            if scalar.dtype == dtype {
                return Ok(scalar.value);
            }
        }
        Err(Refusal::argument(format!("the attribute '{name}' is not a number of type {dtype}")))
    }

    /// An attribute that is an int64.
    pub(crate) fn integer(self, name: &str) -> Result<i64, Refusal> {
        let value = self.scalar(name, api::data_type::S64)?;
        // SAFETY: a scalar of this type.
        Ok(unsafe { value.cast::<i64>().read_unaligned() })
    }

    /// An attribute that is a float32.
    pub(crate) fn float(self, name: &str) -> Result<f32, Refusal> {
        let value = self.scalar(name, api::data_type::F32)?;
        // SAFETY: a scalar of this type.
        Ok(unsafe { value.cast::<f32>().read_unaligned() })
    }

    /// An attribute that is an array of int64.
    pub(crate) fn integers(self, name: &str) -> Result<Vec<i64>, Refusal> {
        let (kind, value) = self.attribute(name)?;
        if kind == api::ATTR_ARRAY {
            // SAFETY: an attribute of this kind is an array.
            let array = unsafe { &*value.cast::<api::Array>() };
            if array.dtype == api::data_type::S64 {
                let data = array.data.cast::<i64>();
                // SAFETY: the array has that many elements.
                return Ok((0..array.size)
                    .map(|i| unsafe { data.add(i).read_unaligned() })
                    .collect());
            }
        }
        Err(Refusal::argument(format!("the attribute '{name}' is not an array of int64")))
    }

    /// The number of this run, the same on all devices.
    pub(crate) fn run(self) -> Result<i64, Refusal> {
        let mut args = api::RunIdGetArgs {
            struct_size: size_of::<api::RunIdGetArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            run_id: 0,
        };
        // SAFETY: the frame's functions and context are valid for the call.
        check(unsafe { ((*self.0.api).XLA_FFI_RunId_Get)(&mut args) }, "the number of the run")?;
        Ok(args.run_id)
    }

    /// The number of the device.
    pub(crate) fn device(self) -> Result<i64, Refusal> {
        let mut args = api::DeviceOrdinalGetArgs {
            struct_size: size_of::<api::DeviceOrdinalGetArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            device_ordinal: 0,
        };
        // SAFETY: the frame's functions and context are valid for the call.
        check(unsafe { ((*self.0.api).XLA_FFI_DeviceOrdinal_Get)(&mut args) }, "the device")?;
        Ok(i64::from(args.device_ordinal))
    }

    /// The number of XLA's threads for tasks; 0 if there is no pool.
    pub(crate) fn pool_threads(self) -> usize {
        // SAFETY: the frame's table of functions is valid.
        let Some(function) = (unsafe { (*self.0.api).XLA_FFI_ThreadPool_NumThreads }) else {
            return 0;
        };
        let mut threads = 0_i64;
        let mut args = api::NumThreadsArgs {
            struct_size: size_of::<api::NumThreadsArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            num_threads: &mut threads,
        };
        // SAFETY: the frame's functions and context are valid for the call; the number is written to a local variable.
        match self.went_well(unsafe { function(&mut args) }) {
            true => usize::try_from(threads).unwrap_or(0),
            false => 0,
        }
    }

    /// Schedules `task` to be called with `data` on one of XLA's threads, now or later. Returns true if it will be called.
    ///
    /// # Safety
    /// `task` may be called with `data` once, at any time, on any thread.
    pub(crate) unsafe fn schedule(self, task: api::Task, data: *mut c_void) -> bool {
        // SAFETY: the frame's table of functions is valid.
        let Some(function) = (unsafe { (*self.0.api).XLA_FFI_ThreadPool_Schedule }) else {
            return false;
        };
        let mut args = api::ScheduleArgs {
            struct_size: size_of::<api::ScheduleArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            task,
            data,
        };
        // SAFETY: the frame's functions and context are valid for the call; the rest by the contract.
        self.went_well(unsafe { function(&mut args) })
    }

    /// Returns true if there is no error; destroys an error.
    fn went_well(self, error: *mut api::Error) -> bool {
        if error.is_null() {
            return true;
        }
        let mut args = api::ErrorDestroyArgs {
            struct_size: size_of::<api::ErrorDestroyArgs>(),
            extension_start: null_mut(),
            error,
        };
        // SAFETY: the frame's table of functions is valid, and the error is ours.
        unsafe {
            if let Some(destroy) = (*self.0.api).XLA_FFI_Error_Destroy {
                destroy(&mut args);
            }
        }
        false
    }

    /// The stream for the device's work: on GPUs, a `CUstream`.
    #[cfg(target_os = "linux")]
    pub(crate) fn stream(self) -> Result<*mut c_void, Refusal> {
        let mut args = api::StreamGetArgs {
            struct_size: size_of::<api::StreamGetArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            stream: null_mut(),
        };
        // SAFETY: the frame's functions and context are valid for the call.
        check(unsafe { ((*self.0.api).XLA_FFI_Stream_Get)(&mut args) }, "the stream")?;
        Ok(args.stream)
    }

    /// Sets the call site's state, which belongs to XLA from then on.
    pub(crate) fn set_state(self, id: &api::TypeId, state: *mut c_void) -> Result<(), Refusal> {
        let mut args = api::StateSetArgs {
            struct_size: size_of::<api::StateSetArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            stage: api::STAGE_INSTANTIATE,
            type_id: id,
            state,
        };
        // SAFETY: the frame's functions and context are valid for the call.
        check(unsafe { ((*self.0.api).XLA_FFI_State_Set)(&mut args) }, "a place for the state")
    }

    /// The state of the call site.
    pub(crate) fn state(self, id: &api::TypeId) -> Result<*mut c_void, Refusal> {
        let mut args = api::StateGetArgs {
            struct_size: size_of::<api::StateGetArgs>(),
            extension_start: null_mut(),
            ctx: self.0.ctx,
            stage: api::STAGE_INSTANTIATE,
            type_id: id,
            state: null_mut(),
        };
        // SAFETY: the frame's functions and context are valid for the call.
        check(unsafe { ((*self.0.api).XLA_FFI_State_Get)(&mut args) }, "the state")?;
        match args.state.is_null() {
            true => Err(Refusal(api::code::INTERNAL, "XLA gave no state".into())),
            false => Ok(args.state),
        }
    }
}

fn arrays<'a>(types: &[c_int], values: &[*mut c_void]) -> Result<Vec<Array<'a>>, Refusal> {
    let one = |(kind, value): (&c_int, &*mut c_void)| {
        if *kind != api::BUFFER {
            return Err(Refusal::argument("an argument or result is not an array"));
        }
        // SAFETY: an argument of this kind is a buffer, which lives as long as the frame.
        let buffer = unsafe { &*value.cast::<api::Buffer>() };
        // SAFETY: it has `rank` dimensions.
        let dims = unsafe { slice(buffer.dims, buffer.rank) };
        Ok(Array { dtype: buffer.dtype, dims, data: buffer.data.cast() })
    };
    types.iter().zip(values).map(one).collect()
}

/// Turns an error of an XLA function into a refusal; its own text is lost, and is not needed to identify the problem.
fn check(error: *mut api::Error, what: &str) -> Result<(), Refusal> {
    match error.is_null() {
        true => Ok(()),
        // The error is leaked: it happens at most once in a program that is about to fail.
        false => Err(Refusal(api::code::INTERNAL, format!("XLA does not give {what}"))),
    }
}
