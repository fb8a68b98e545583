//! The handlers as XLA calls them, by a stand-in for XLA: metadata, a state, two devices, and arguments that cannot work.
//! With the real one: `bindings/python/tests/test_collective.py`.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

use alight_xla::api::{self, data_type};
use alight_xla::{Stage, targets};

use crate::frames;

/// What the stand-in keeps for a call: XLA's context.
struct Context {
    device: i32,
    state: Cell<*mut c_void>,
}

fn context<'a>(ctx: *mut api::ExecutionContext) -> &'a Context {
    // SAFETY: every context in this file is one of ours, and outlives its calls.
    unsafe { &*ctx.cast::<Context>() }
}

unsafe extern "C" fn error_create(args: *mut api::ErrorCreateArgs) -> *mut api::Error {
    // SAFETY: the message is a string for the call.
    let message = unsafe { CStr::from_ptr((*args).message) }.to_owned();
    // SAFETY: as above.
    Box::into_raw(Box::new((unsafe { (*args).errc }, message))).cast()
}

unsafe extern "C" fn state_set(args: *mut api::StateSetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &*args };
    context(args.ctx).state.set(args.state);
    null_mut()
}

unsafe extern "C" fn state_get(args: *mut api::StateGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    args.state = context(args.ctx).state.get();
    null_mut()
}

unsafe extern "C" fn run_id(args: *mut api::RunIdGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    unsafe { (*args).run_id = 7 };
    null_mut()
}

unsafe extern "C" fn device(args: *mut api::DeviceOrdinalGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    args.device_ordinal = context(args.ctx).device;
    null_mut()
}

unsafe extern "C" fn stream(args: *mut api::StreamGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    unsafe { (*args).stream = null_mut() };
    null_mut()
}

fn functions() -> api::Api {
    // SAFETY: zeros are a value of pointers and numbers; functions follow.
    let version = unsafe { std::mem::zeroed() };
    api::Api {
        struct_size: size_of::<api::Api>(),
        extension_start: null_mut(),
        api_version: version,
        internal_api: null(),
        XLA_FFI_Error_Create: error_create,
        XLA_FFI_Error_GetMessage: null(),
        XLA_FFI_Error_Destroy: None,
        XLA_FFI_Handler_Register: null(),
        XLA_FFI_Stream_Get: stream,
        XLA_FFI_Type_Register: null(),
        XLA_FFI_ExecutionContext_Get: null(),
        XLA_FFI_State_Set: state_set,
        XLA_FFI_State_Get: state_get,
        XLA_FFI_DeviceMemory_Allocate: null(),
        XLA_FFI_DeviceMemory_Free: null(),
        XLA_FFI_ThreadPool_Schedule: None,
        XLA_FFI_ThreadPool_NumThreads: None,
        XLA_FFI_Future_Create: null(),
        XLA_FFI_Future_SetAvailable: null(),
        XLA_FFI_Future_SetError: null(),
        XLA_FFI_RunId_Get: run_id,
        XLA_FFI_DeviceOrdinal_Get: device,
    }
}

/// An array of f32 and its shape.
type Array = (Vec<f32>, Vec<i64>);

fn buffers(arrays: &mut [Array]) -> Vec<api::Buffer> {
    let one = |(data, dims): &mut Array| api::Buffer {
        struct_size: size_of::<api::Buffer>(),
        extension_start: null_mut(),
        dtype: data_type::F32,
        data: data.as_mut_ptr().cast(),
        rank: dims.len() as i64,
        dims: dims.as_mut_ptr(),
    };
    arrays.iter_mut().map(one).collect()
}

fn pointers<T>(values: &mut [T]) -> Vec<*mut c_void> {
    values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect()
}

thread_local! {
    /// The process of the second device.
    static SECOND_PROCESS: Cell<i64> = const { Cell::new(0) };
}

/// Calls `handler` with these arguments and results, and the attributes of a collective.
fn call(
    handler: api::Handler,
    context: &Context,
    arguments: &mut [Array],
    results: &mut [Array],
    bias: i64,
    capacity: i64,
) -> Result<(), (c_int, String)> {
    let api = functions();
    let (mut inputs, mut outputs) = (buffers(arguments), buffers(results));
    let (mut input_pointers, mut output_pointers) = (pointers(&mut inputs), pointers(&mut outputs));
    let mut kinds = vec![api::BUFFER; 8];
    let mut devices = [10_i64, 20];
    let mut processes = [0_i64, SECOND_PROCESS.get()];
    let mut arrays = [&mut devices, &mut processes].map(|numbers| api::Array {
        dtype: data_type::S64,
        size: 2,
        data: numbers.as_mut_ptr().cast(),
    });
    let mut integers = [2, capacity, 2000, bias];
    let mut epsilon = 0.0_f32;
    let mut scalars: Vec<_> = integers
        .iter_mut()
        .map(|value| api::Scalar { dtype: data_type::S64, value: std::ptr::from_mut(value).cast() })
        .collect();
    let value = std::ptr::from_mut(&mut epsilon).cast();
    scalars.push(api::Scalar { dtype: data_type::F32, value });
    let mut values = pointers(&mut scalars);
    values.splice(0..0, pointers(&mut arrays));
    let mut attr_kinds =
        [api::ATTR_ARRAY; 2].into_iter().chain([api::ATTR_SCALAR; 5]).collect::<Vec<_>>();
    let span =
        |name: &'static str| api::ByteSpan { ptr: name.as_ptr().cast::<c_char>(), len: name.len() };
    let mut names =
        ["devices", "processes", "ranks", "capacity", "limit_ms", "bias", "epsilon"].map(span);
    let mut name_pointers: Vec<_> = names.iter_mut().map(std::ptr::from_mut).collect();
    let attributes = frames::Attributes {
        kinds: &mut attr_kinds,
        names: &mut name_pointers,
        values: &mut values,
    };
    let mut frame = frames::frame(
        &api,
        std::ptr::from_ref(context).cast_mut().cast(),
        &mut kinds,
        &mut input_pointers,
        &mut output_pointers,
        attributes,
    );
    // SAFETY: a frame as XLA makes it, alive for the call.
    let error = unsafe { handler(&mut frame) };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: made by `error_create`.
    let (code, message) = *unsafe { Box::from_raw(error.cast::<(c_int, CString)>()) };
    Err((code, message.into_string().unwrap()))
}

fn array(data: &[f32], dims: &[i64]) -> Array {
    (data.to_vec(), dims.to_vec())
}

fn stage(stage: Stage) -> api::Handler {
    targets()[0].stage(stage).unwrap()
}

/// The state of a site, made by the first stage.
fn site(capacity: i64) -> Result<*mut c_void, (c_int, String)> {
    let context = Context { device: 10, state: Cell::new(null_mut()) };
    call(stage(Stage::Instantiate), &context, &mut [], &mut [], 0, capacity)?;
    Ok(context.state.get())
}

fn end(state: *mut c_void) {
    // SAFETY: the state is of this type, and no call runs.
    unsafe { ((*(targets()[0].state.unwrap().type_info)()).deleter)(state) }
}

#[test]
fn it_says_which_version_it_is() {
    // SAFETY: the address of a static.
    unsafe { &*(targets()[0].state.unwrap().type_id)() }.type_id.store(42, Ordering::Release);
    for (handler, state_type) in [(stage(Stage::Instantiate), 42), (stage(Stage::Execute), 0)] {
        // SAFETY: zeros are a value of numbers and pointers.
        let mut metadata: api::Metadata = unsafe { std::mem::zeroed() };
        let mut extension = api::MetadataExtension {
            extension_base: api::ExtensionBase {
                struct_size: size_of::<api::MetadataExtension>(),
                r#type: api::EXTENSION_METADATA,
                next: null_mut(),
            },
            metadata: &mut metadata,
        };
        // SAFETY: as above; the question needs no more.
        let mut frame: api::CallFrame = unsafe { std::mem::zeroed() };
        frame.extension_start = (&raw mut extension).cast();
        // SAFETY: XLA's question, alive for the call.
        assert!(unsafe { handler(&mut frame) }.is_null());
        let version = &metadata.api_version;
        assert_eq!((version.struct_size, version.major_version, version.minor_version), (24, 0, 3));
        assert_eq!((metadata.traits, metadata.state_type_id), (0, state_type));
    }
}

#[test]
fn two_devices_sum() {
    let state = site(8).unwrap();
    let address = state as usize;
    let results = [10, 20].map(|device| {
        std::thread::spawn(move || {
            let context = Context { device, state: Cell::new(address as *mut c_void) };
            let part = device as f32 / 10.0;
            let mut arguments = [
                array(&[part, 2.0], &[1, 2]),
                array(&[0.0, -8.0], &[1, 2]),
                array(&[1.0, 0.0], &[2]),
            ];
            let mut results = [array(&[0.0; 2], &[1, 2]), array(&[0.0; 2], &[1, 2])];
            let done = call(stage(Stage::Execute), &context, &mut arguments, &mut results, 1, 8);
            done.map(|()| results.map(|(data, _)| data))
        })
    });
    let root = (12.5_f64.sqrt().recip()) as f32;
    for result in results {
        // 1 + 2 and 2 + 2 - 8: [3, -4], whose mean of squares is 12.5; weights 1 + [1, 0].
        let [normed, new_residual] = result.join().unwrap().unwrap();
        assert_eq!(new_residual, [3.0, -4.0]);
        assert_eq!(normed, [3.0 * root * 2.0, -4.0 * root]);
    }
    end(state);
}

#[test]
fn what_cannot_work_is_an_error_with_words() {
    let (code, message) = site(-1).unwrap_err();
    assert!(
        code == api::code::INVALID_ARGUMENT && message.contains("'capacity' is -1"),
        "{message}"
    );
    SECOND_PROCESS.set(1);
    let (code, message) = site(8).unwrap_err();
    assert!(
        code == api::code::FAILED_PRECONDITION && message.contains("alight.jax.connect"),
        "{message}"
    );
    SECOND_PROCESS.set(0);
    let good =
        || vec![array(&[0.0; 2], &[1, 2]), array(&[0.0; 2], &[1, 2]), array(&[0.0; 2], &[2])];
    let error = |device, arguments: &mut [Array], results: usize, bias| {
        let state = site(8).unwrap();
        let context = Context { device, state: Cell::new(state) };
        let mut results = vec![array(&[0.0; 2], &[1, 2]); results];
        let error = call(stage(Stage::Execute), &context, arguments, &mut results, bias, 8);
        end(state);
        error.unwrap_err().1
    };
    assert!(error(30, &mut good(), 2, 0).contains("device 30 is not among the ranks [10, 20]"));
    assert!(error(10, &mut good(), 1, 0).contains("3 arguments and 1 results"));
    assert!(error(10, &mut good(), 2, 3).contains("'bias' is 3"));
    let mut wrong = good();
    wrong[1] = array(&[0.0; 4], &[2, 2]);
    assert!(error(10, &mut wrong, 2, 0).contains("the residual is [2, 2]"));
    let mut wrong = good();
    wrong[0] = array(&[0.0], &[]);
    assert!(error(10, &mut wrong, 2, 0).contains("scalar"));
    let mut none = good();
    for argument in &mut none[..2] {
        *argument = array(&[], &[1, 0]);
    }
    assert!(!error(10, &mut none, 2, 0).is_empty());
    let context = Context { device: 10, state: Cell::new(null_mut()) };
    let (code, message) =
        call(stage(Stage::Execute), &context, &mut good(), &mut [], 0, 8).unwrap_err();
    assert!(code == api::code::INTERNAL && message.contains("no state"), "{message}");
}
