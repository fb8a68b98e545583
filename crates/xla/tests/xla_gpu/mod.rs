//! A stand-in for XLA that calls the custom calls for GPUs, stage by stage, on devices with a stream each.

pub mod executable;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, Ordering};

use alight_collective::{Element, Spec};
use alight_xla::api::{self, data_type};
use alight_xla::cuda::{Driver, Stream};
use alight_xla::{Stage, Target, targets};

use crate::cuda_checks::oracle::{Inputs, reference};
use crate::frames;

/// XLA's context of a device.
pub struct Context {
    pub device: i32,
    pub stream: Stream,
    pub state: AtomicPtr<c_void>,
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
    context(args.ctx).state.store(args.state, Ordering::Release);
    null_mut()
}

unsafe extern "C" fn state_get(args: *mut api::StateGetArgs) -> *mut api::Error {
    // SAFETY: the handler's arguments.
    let args = unsafe { &mut *args };
    args.state = context(args.ctx).state.load(Ordering::Acquire);
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
    let args = unsafe { &mut *args };
    args.stream = context(args.ctx).stream.pointer();
    null_mut()
}

type Unused = unsafe extern "C" fn(*mut c_void) -> *mut api::Error;

unsafe extern "C" fn unused(_: *mut c_void) -> *mut api::Error {
    panic!("not expected");
}

fn functions() -> api::Api {
    // SAFETY: zeros are a value of pointers and numbers; the functions are called with pointers to structs.
    unsafe {
        let mut api: api::Api = std::mem::transmute([0xffu8; size_of::<api::Api>()]);
        api.struct_size = size_of::<api::Api>();
        api.extension_start = null_mut();
        api.XLA_FFI_Error_Create = error_create;
        api.XLA_FFI_State_Set = state_set;
        api.XLA_FFI_State_Get = state_get;
        api.XLA_FFI_DeviceOrdinal_Get = device;
        api.XLA_FFI_Stream_Get = stream;
        api.XLA_FFI_RunId_Get = std::mem::transmute::<Unused, api::FfiFunction<_>>(unused);
        api
    }
}

/// An array on a GPU, which is memory of this process.
#[derive(Clone)]
pub struct Array(pub c_int, pub Vec<i64>, pub Vec<u64>);

impl Array {
    pub fn new(element: Element, dims: &[i64], bytes: &[u8]) -> Array {
        let dtype = match element {
            Element::Bf16 => data_type::BF16,
            Element::F16 => data_type::F16,
            Element::F32 => data_type::F32,
        };
        // Words, and an even number of them, since rows begin at multiples of 16 bytes here.
        let mut words: Vec<u64> =
            bytes.chunks(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
        words.shrink_to_fit();
        Array(dtype, dims.to_vec(), words)
    }

    /// The place of a device among all, as the program has it.
    pub fn place(place: i64) -> Array {
        Array(data_type::S32, vec![], vec![place as u64])
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.2.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub fn buffer(&mut self) -> api::Buffer {
        api::Buffer {
            struct_size: size_of::<api::Buffer>(),
            extension_start: null_mut(),
            dtype: self.0,
            data: self.2.as_mut_ptr().cast(),
            rank: self.1.len() as i64,
            dims: self.1.as_mut_ptr(),
        }
    }
}

/// Attributes of a call site of the collective.
#[derive(Clone)]
pub struct Attributes {
    pub devices: Vec<i64>,
    /// Of each device.
    pub processes: Vec<i64>,
    pub ranks: i64,
    pub capacity: i64,
    pub limit_ms: i64,
    pub epsilon: f32,
    pub channel: i64,
}

impl Attributes {
    pub fn of(
        spec: &Spec,
        devices: Vec<i64>,
        processes: Vec<i64>,
        ranks: usize,
        limit_ms: i64,
        channel: i64,
    ) -> Attributes {
        let (ranks, capacity) = (ranks as i64, spec.bytes().unwrap() as i64);
        Attributes { devices, processes, ranks, capacity, limit_ms, epsilon: spec.epsilon, channel }
    }
}

fn pointers<T>(values: &mut [T]) -> Vec<*mut c_void> {
    values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect()
}

/// An attribute of a call site.
pub enum Attribute {
    Integers(Vec<i64>),
    Integer(i64),
    Float(f32),
}

/// Calls a stage of a custom call.
pub fn call_with(
    target: &Target,
    stage: Stage,
    context: &Context,
    mut attributes: Vec<(&'static str, Attribute)>,
    arguments: &mut [Array],
    results: &mut [Array],
) -> Result<(), (c_int, String)> {
    let api = functions();
    let mut inputs: Vec<_> = arguments.iter_mut().map(Array::buffer).collect();
    let mut outputs: Vec<_> = results.iter_mut().map(Array::buffer).collect();
    let (mut input_pointers, mut output_pointers) = (pointers(&mut inputs), pointers(&mut outputs));
    let mut kinds = [api::BUFFER; 8];
    let scalar = |dtype, value| Box::new(api::Scalar { dtype, value });
    let (mut attr_kinds, mut values) = (vec![], vec![]);
    // Where the values are for the call.
    let (mut arrays, mut scalars) = (vec![], vec![]);
    for (_, attribute) in &mut attributes {
        match attribute {
            Attribute::Integers(list) => {
                let (size, data) = (list.len(), list.as_mut_ptr().cast());
                arrays.push(Box::new(api::Array { dtype: data_type::S64, size, data }));
            }
            Attribute::Integer(value) => {
                scalars.push(scalar(data_type::S64, std::ptr::from_mut(value).cast()));
            }
            Attribute::Float(value) => {
                scalars.push(scalar(data_type::F32, std::ptr::from_mut(value).cast()));
            }
        }
        let is_array = matches!(attribute, Attribute::Integers(_));
        attr_kinds.push(if is_array { api::ATTR_ARRAY } else { api::ATTR_SCALAR });
        values.push(match is_array {
            true => std::ptr::from_mut(arrays.last_mut().unwrap().as_mut()).cast::<c_void>(),
            false => std::ptr::from_mut(scalars.last_mut().unwrap().as_mut()).cast(),
        });
    }
    let span =
        |name: &'static str| api::ByteSpan { ptr: name.as_ptr().cast::<c_char>(), len: name.len() };
    let mut names: Vec<_> = attributes.iter().map(|(name, _)| span(name)).collect();
    let mut name_pointers: Vec<_> = names.iter_mut().map(std::ptr::from_mut).collect();
    let listed = frames::Attributes {
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
        listed,
    );
    // SAFETY: a frame as XLA makes it, alive for the call.
    let error = unsafe { target.stage(stage).unwrap()(&mut frame) };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: made by `error_create`.
    let (code, message) = *unsafe { Box::from_raw(error.cast::<(c_int, CString)>()) };
    Err((code, message.into_string().unwrap()))
}

/// Calls a stage of the collective.
pub fn call(
    stage: Stage,
    context: &Context,
    attributes: &Attributes,
    arguments: &mut [Array],
    results: &mut [Array],
) -> Result<(), (c_int, String)> {
    let listed = vec![
        ("devices", Attribute::Integers(attributes.devices.clone())),
        ("processes", Attribute::Integers(attributes.processes.clone())),
        ("ranks", Attribute::Integer(attributes.ranks)),
        ("capacity", Attribute::Integer(attributes.capacity)),
        ("limit_ms", Attribute::Integer(attributes.limit_ms)),
        ("channel", Attribute::Integer(attributes.channel)),
        ("bias", Attribute::Integer(1)),
        ("epsilon", Attribute::Float(attributes.epsilon)),
    ];
    call_with(&target(), stage, context, listed, arguments, results)
}

pub fn named(name: &str) -> Target {
    targets().into_iter().find(|t| (t.name, t.platform) == (name, "CUDA")).unwrap()
}

pub fn target() -> Target {
    named("alight_allreduce_norm")
}

/// A program with one call site, on all devices.
pub struct Program {
    pub contexts: Vec<Context>,
    pub attributes: Attributes,
    pub arrays: Vec<(Vec<Array>, Vec<Array>)>,
}

impl Program {
    pub fn new(
        spec: &Spec,
        inputs: &Inputs,
        devices: &[i64],
        ranks: usize,
        limit_ms: i64,
    ) -> Program {
        Program::of_channel(0, spec, inputs, devices, ranks, limit_ms)
    }

    /// Of this process alone.
    pub fn of_channel(
        channel: i64,
        spec: &Spec,
        inputs: &Inputs,
        devices: &[i64],
        ranks: usize,
        limit_ms: i64,
    ) -> Program {
        let (all, processes) = (devices.to_vec(), vec![0; devices.len()]);
        let attributes = Attributes::of(spec, all, processes, ranks, limit_ms, channel);
        let here = devices.iter().enumerate().map(|(at, device)| (at, *device));
        Program::with(spec, inputs, attributes, &here.collect::<Vec<_>>())
    }

    /// On some of the devices: their places among all, and what this process calls them.
    pub fn with(
        spec: &Spec,
        inputs: &Inputs,
        attributes: Attributes,
        here: &[(usize, i64)],
    ) -> Program {
        let driver = Driver::get().unwrap();
        let ranks = attributes.ranks as usize;
        let contexts: Vec<_> = here
            .iter()
            .map(|(_, device)| Context {
                device: *device as i32,
                stream: driver.stream((*device).min(7)).unwrap(),
                state: AtomicPtr::new(null_mut()),
            })
            .collect();
        call(Stage::Instantiate, &contexts[0], &attributes, &mut [], &mut []).unwrap();
        let state = contexts[0].state.load(Ordering::Acquire);
        contexts.iter().for_each(|context| context.state.store(state, Ordering::Release));
        let rows = &[spec.rows as i64, spec.hidden as i64];
        let arrays = here.iter().map(|(at, _)| {
            let rank = at % ranks;
            let mut arguments = vec![
                Array::new(spec.element, rows, &inputs.partials[rank]),
                Array::new(spec.element, rows, &inputs.residual),
                Array::new(spec.weight, &rows[1..], &inputs.weight),
            ];
            if spec.post_norm {
                arguments.push(Array::new(spec.weight, &rows[1..], &inputs.post_weight));
            }
            arguments.push(Array::place(*at as i64));
            let nothing = Array::new(spec.element, rows, &vec![0xff; inputs.residual.len()]);
            (arguments, vec![nothing.clone(), nothing])
        });
        let arrays = arrays.collect();
        Program { contexts, attributes, arrays }
    }

    pub fn stage(&mut self, stage: Stage, at: usize) -> Result<(), (c_int, String)> {
        let (arguments, results) = &mut self.arrays[at];
        call(stage, &self.contexts[at], &self.attributes, arguments, results)
    }

    /// All devices, each on its thread as in XLA, and one operation after the other. They meet before the first kernel, as XLA has them do if
    /// it knows of a collective in the program: without, one may wait already while another still loads its kernel.
    pub fn run(&mut self) -> Vec<Result<(), (c_int, String)>> {
        let attributes = &self.attributes;
        let all_are_ready = &Barrier::new(self.contexts.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .contexts
                .iter()
                .zip(&mut self.arrays)
                .map(|(context, (arguments, results))| {
                    scope.spawn(move || {
                        let ready =
                            call(Stage::Initialize, context, attributes, arguments, results);
                        all_are_ready.wait();
                        ready?;
                        call(Stage::Execute, context, attributes, arguments, results)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    pub fn wait(&self) {
        for context in &self.contexts {
            Driver::get().unwrap().wait(context.device.into(), context.stream).unwrap();
        }
    }

    pub fn check(&self, spec: &Spec, inputs: &Inputs) {
        let (new, normed) = reference(spec, inputs);
        for (at, (_, results)) in self.arrays.iter().enumerate() {
            assert_eq!(results[0].bytes(), normed, "norm on device {at}, {spec}");
            assert_eq!(results[1].bytes(), new, "new residual on device {at}, {spec}");
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let state = self.contexts[0].state.load(Ordering::Acquire);
        let info = (target().state.unwrap().type_info)();
        // SAFETY: as XLA does when a program ends: what `instantiate` made, once.
        unsafe { ((*info).deleter)(state) };
    }
}
