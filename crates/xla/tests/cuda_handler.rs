//! The custom call for GPUs as XLA calls it, among eight emulated GPUs with a stream each: stages, results, graphs, errors, and the
//! trial at the start. In one test, since the emulated driver is told by the environment what to play.
#![cfg(target_os = "linux")]

mod cuda_checks;
mod emulator;
mod frames;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use alight_collective::{Element, Spec};
use alight_kernels::{WeightType, dequantize_row};
use alight_xla::api::{self, data_type};
use alight_xla::cuda::{CudaError, Driver, Stream, accounts, errors, probe};
use alight_xla::{Stage, Target, targets};
use cuda_checks::oracle::{Inputs, numbers, reference};

/// XLA's context of a device.
struct Context {
    device: i32,
    stream: Stream,
    state: AtomicPtr<c_void>,
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
        api.XLA_FFI_RunId_Get = std::mem::transmute::<Unused, api::Function<_>>(unused);
        api
    }
}

/// An array on a GPU, which is memory of this process.
#[derive(Clone)]
struct Array(c_int, Vec<i64>, Vec<u64>);

impl Array {
    fn new(element: Element, dims: &[i64], bytes: &[u8]) -> Array {
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

    fn bytes(&self) -> Vec<u8> {
        self.2.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn buffer(&mut self) -> api::Buffer {
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
struct Attributes {
    devices: Vec<i64>,
    ranks: i64,
    capacity: i64,
    limit_ms: i64,
    epsilon: f32,
    channel: i64,
}

fn pointers<T>(values: &mut [T]) -> Vec<*mut c_void> {
    values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect()
}

/// An attribute of a call site.
enum Attribute {
    Integers(Vec<i64>),
    Integer(i64),
    Float(f32),
}

/// Calls a stage of a custom call.
fn call_with(
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
fn call(
    stage: Stage,
    context: &Context,
    attributes: &Attributes,
    arguments: &mut [Array],
    results: &mut [Array],
) -> Result<(), (c_int, String)> {
    let listed = vec![
        ("devices", Attribute::Integers(attributes.devices.clone())),
        ("ranks", Attribute::Integer(attributes.ranks)),
        ("capacity", Attribute::Integer(attributes.capacity)),
        ("limit_ms", Attribute::Integer(attributes.limit_ms)),
        ("channel", Attribute::Integer(attributes.channel)),
        ("bias", Attribute::Integer(1)),
        ("epsilon", Attribute::Float(attributes.epsilon)),
    ];
    call_with(&target(), stage, context, listed, arguments, results)
}

fn named(name: &str) -> Target {
    targets().into_iter().find(|t| (t.name, t.platform) == (name, "CUDA")).unwrap()
}

fn target() -> Target {
    named("alight_allreduce_norm")
}

/// A program with one call site, on all devices.
struct Program {
    contexts: Vec<Context>,
    attributes: Attributes,
    arrays: Vec<(Vec<Array>, Vec<Array>)>,
}

impl Program {
    fn new(spec: &Spec, inputs: &Inputs, devices: &[i64], ranks: usize, limit_ms: i64) -> Program {
        Program::of_channel(0, spec, inputs, devices, ranks, limit_ms)
    }

    fn of_channel(
        channel: i64,
        spec: &Spec,
        inputs: &Inputs,
        devices: &[i64],
        ranks: usize,
        limit_ms: i64,
    ) -> Program {
        let driver = Driver::get().unwrap();
        let attributes = Attributes {
            devices: devices.to_vec(),
            ranks: ranks as i64,
            capacity: inputs.residual.len() as i64,
            limit_ms,
            epsilon: spec.epsilon,
            channel,
        };
        let contexts: Vec<_> = devices
            .iter()
            .map(|device| Context {
                device: *device as i32,
                stream: driver.stream((*device).min(7)).unwrap(),
                state: AtomicPtr::new(null_mut()),
            })
            .collect();
        call(Stage::Instantiate, &contexts[0], &attributes, &mut [], &mut []).unwrap();
        let state = contexts[0].state.load(Ordering::Acquire);
        contexts.iter().for_each(|context| context.state.store(state, Ordering::Release));
        let rows = &[spec.rows as i64, spec.hidden as i64];
        let arrays = (0..devices.len()).map(|at| {
            let rank = at % ranks;
            let mut arguments = vec![
                Array::new(spec.element, rows, &inputs.partials[rank]),
                Array::new(spec.element, rows, &inputs.residual),
                Array::new(spec.weight, &rows[1..], &inputs.weight),
            ];
            if spec.post_norm {
                arguments.push(Array::new(spec.weight, &rows[1..], &inputs.post_weight));
            }
            let nothing = Array::new(spec.element, rows, &vec![0xff; inputs.residual.len()]);
            (arguments, vec![nothing.clone(), nothing])
        });
        let arrays = arrays.collect();
        Program { contexts, attributes, arrays }
    }

    fn stage(&mut self, stage: Stage, at: usize) -> Result<(), (c_int, String)> {
        let (arguments, results) = &mut self.arrays[at];
        call(stage, &self.contexts[at], &self.attributes, arguments, results)
    }

    /// All devices, each on its thread as in XLA.
    fn run(&mut self) -> Vec<Result<(), (c_int, String)>> {
        let attributes = &self.attributes;
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .contexts
                .iter()
                .zip(&mut self.arrays)
                .map(|(context, (arguments, results))| {
                    scope.spawn(move || {
                        call(Stage::Initialize, context, attributes, arguments, results)?;
                        call(Stage::Execute, context, attributes, arguments, results)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn wait(&self) {
        for context in &self.contexts {
            Driver::get().unwrap().wait(context.device.into(), context.stream).unwrap();
        }
    }

    fn check(&self, spec: &Spec, inputs: &Inputs) {
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

fn metadata() {
    let all: Vec<_> = targets().into_iter().filter(|target| target.platform == "CUDA").collect();
    assert_eq!(all.len(), 3);
    for (stage, handler) in all.iter().flat_map(|target| target.stages) {
        // SAFETY: zeros are a value of pointers and numbers.
        let mut metadata: api::Metadata = unsafe { std::mem::zeroed() };
        let mut extension = api::MetadataExtension {
            extension_base: api::ExtensionBase {
                struct_size: size_of::<api::MetadataExtension>(),
                r#type: api::EXTENSION_METADATA,
                next: null_mut(),
            },
            metadata: &mut metadata,
        };
        // SAFETY: as above; the question is asked with nothing else in the frame.
        let mut frame: api::CallFrame = unsafe { std::mem::zeroed() };
        (frame.struct_size, frame.api) = (size_of::<api::CallFrame>(), null());
        frame.extension_start = std::ptr::from_mut(&mut extension).cast();
        // SAFETY: XLA's question.
        assert!(unsafe { handler(&mut frame) }.is_null());
        assert_eq!(metadata.traits, api::COMMAND_BUFFER_COMPATIBLE, "{stage:?}");
        assert_eq!(
            (metadata.api_version.major_version, metadata.api_version.minor_version),
            (0, 3)
        );
    }
}

fn results(spec: &Spec, devices: &[i64], ranks: usize) {
    let inputs = Inputs::random(ranks, spec, 3);
    let mut program = Program::new(spec, &inputs, devices, ranks, 20_000);
    for _ in 0..5 {
        for result in program.run() {
            result.unwrap();
        }
        program.wait();
        program.check(spec, &inputs);
    }
}

/// As XLA does with command buffers: the first run as it is, then one that is captured, and replays that call no handler.
fn graph(spec: &Spec) {
    let driver = Driver::get().unwrap();
    let inputs = Inputs::random(2, spec, 4);
    let mut program = Program::new(spec, &inputs, &[4, 6], 2, 20_000);
    let before = accounts().unwrap().len();
    for result in program.run() {
        result.unwrap();
    }
    program.wait();
    let capture = |program: &mut Program, at: usize| {
        let stream = program.contexts[at].stream;
        let device = i64::from(program.contexts[at].device);
        driver.on(device, || {
            driver.capture(stream, || {
                program.stage(Stage::Execute, at).unwrap();
                Ok(())
            })
        })
    };
    let graphs: Vec<_> = (0..2).map(|at| capture(&mut program, at).unwrap()).collect();
    for (_, results) in &mut program.arrays {
        results.iter_mut().for_each(|result| result.2.fill(u64::MAX));
    }
    for _ in 0..100 {
        for (context, graph) in program.contexts.iter().zip(&graphs) {
            driver.replay(*graph, context.stream).unwrap();
        }
    }
    program.wait();
    program.check(spec, &inputs);
    let accounts = accounts().unwrap();
    assert_eq!(accounts.len(), before + 1);
    let account = accounts.last().unwrap();
    assert_eq!((account.launched, account.captured, account.ended), (2, 2, 101));
}

/// While XLA captures on two GPUs, another program comes, runs on them, and goes; and somebody asks what has been done. Waiting for
/// a context would be refused, and make the captures invalid.
fn others_while_a_graph_is_captured(spec: &Spec) {
    let driver = Driver::get().unwrap();
    let inputs = Inputs::random(2, spec, 9);
    let mut program = Program::new(spec, &inputs, &[4, 6], 2, 20_000);
    program.run().into_iter().for_each(|result| result.unwrap());
    program.wait();
    let other = || {
        let streams = [4, 6].map(|device| driver.stream(device).unwrap());
        for _ in 0..3 {
            let mut program = Program::new(spec, &inputs, &[4, 6], 2, 20_000);
            for (context, stream) in program.contexts.iter_mut().zip(streams) {
                context.stream = stream;
            }
            program.run().into_iter().for_each(|result| result.unwrap());
            program.wait();
            program.check(spec, &inputs);
            accounts().unwrap();
        }
    };
    let mut graphs = vec![];
    for at in 0..2 {
        let stream = program.contexts[at].stream;
        let device = i64::from(program.contexts[at].device);
        let graph = driver.on(device, || {
            driver.capture(stream, || {
                program.stage(Stage::Execute, at).unwrap();
                std::thread::scope(|scope| scope.spawn(other).join().unwrap());
                Ok(())
            })
        });
        graphs.push(graph.unwrap());
    }
    for _ in 0..10 {
        for (context, graph) in program.contexts.iter().zip(&graphs) {
            driver.replay(*graph, context.stream).unwrap();
        }
    }
    program.wait();
    program.check(spec, &inputs);
}

/// Programs of one channel share a workspace, whose calls come one after the other; others have their own.
fn channels(spec: &Spec) {
    let larger = Spec { rows: spec.rows + 1, ..*spec };
    let much_larger = Spec { rows: 4 * spec.rows, ..*spec };
    let before = accounts().unwrap().len();
    let mut made: Vec<(Spec, Inputs, Program)> = vec![];
    for (channel, spec, devices, own) in [
        (5, spec, [1, 3], true),
        (5, spec, [1, 3], false),
        (5, &larger, [1, 3], false),
        (5, &much_larger, [1, 3], true),
        (5, spec, [3, 1], true),
        (6, spec, [1, 3], true),
        (0, spec, [1, 3], true),
        (0, spec, [1, 3], true),
    ] {
        let inputs = Inputs::random(2, spec, 20 + made.len() as u64);
        let mut program = Program::of_channel(channel, spec, &inputs, &devices, 2, 20_000);
        let count = accounts().unwrap().len();
        program.run().into_iter().for_each(|result| result.unwrap());
        program.wait();
        let more = accounts().unwrap().len() - count;
        assert_eq!(more, usize::from(own), "channel {channel}, {spec}, {devices:?}");
        made.push((*spec, inputs, program));
    }
    for round in 0..20 {
        let (spec, inputs, program) = &mut made[round * 7 % 8];
        program.run().into_iter().for_each(|result| result.unwrap());
        program.wait();
        program.check(spec, inputs);
    }
    // What one leaves, the other still has.
    drop(made.remove(0));
    let (spec, inputs, program) = &mut made[0];
    program.run().into_iter().for_each(|result| result.unwrap());
    program.wait();
    program.check(spec, inputs);
    drop(made);
    assert_eq!(accounts().unwrap().len(), before);
}

/// Freeing may wait for the whole GPU.
fn memory_that_nobody_has_is_used_again() {
    let driver = Driver::get().unwrap();
    let memory = driver.allocate(5, 123_456).unwrap();
    let address = memory.address();
    memory.fill(7).unwrap();
    drop(memory);
    let on_another = driver.allocate(3, 123_456).unwrap();
    let too_small = driver.allocate(5, 50_000).unwrap();
    let again = driver.allocate(5, 100_000).unwrap();
    assert_eq!((again.address(), again.bytes()), (address, 100_000));
    assert!(![on_another.address(), too_small.address()].contains(&address));
    let mut bytes = vec![1; 100_000];
    again.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

fn a_missing_rank(spec: &Spec) {
    let inputs = Inputs::random(3, spec, 5);
    let mut program = Program::new(spec, &inputs, &[0, 1, 2], 3, 200);
    for at in 0..2 {
        program.stage(Stage::Initialize, at).unwrap();
        program.stage(Stage::Execute, at).unwrap();
    }
    let start = Instant::now();
    program.wait();
    assert!(start.elapsed() < Duration::from_secs(5));
    let nothing = |program: &Program| {
        let numbers = numbers(spec.element, &program.arrays[0].1[0].bytes());
        numbers.iter().all(|x| x.is_nan())
    };
    assert!(nothing(&program));
    // The host says so in the next call, on every rank.
    for at in 0..3 {
        let (code, message) = program.stage(Stage::Execute, at).unwrap_err();
        assert_eq!(code, api::code::DEADLINE_EXCEEDED);
        assert!(message.contains("waited 200ms for rank 2"), "{message}");
    }
    assert_eq!(errors().len(), 1);
    drop(program);
    assert_eq!(errors(), []);
}

fn what_cannot_work(spec: &Spec) {
    let inputs = Inputs::random(2, spec, 6);
    let fails = |program: &mut Program, code: c_int, expected: &str| {
        let (found, message) = program.stage(Stage::Initialize, 0).unwrap_err();
        assert_eq!(found, code, "{message}");
        assert!(message.contains(expected), "{message}");
        // And without that stage, too.
        let (_, message) = program.stage(Stage::Execute, 0).unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    let mut program = Program::new(spec, &inputs, &[0, 99], 2, 1000);
    fails(&mut program, api::code::FAILED_PRECONDITION, "GPU 99: this process sees 8");
    let mut program = Program::new(spec, &inputs, &[0, 1], 2, 1000);
    program.contexts[0].device = 5;
    fails(&mut program, api::code::INVALID_ARGUMENT, "device 5 is not among the ranks [0, 1]");
    let mut program = Program::new(spec, &inputs, &[0, 1], 2, 1000);
    program.arrays[0].0[1].1[0] += 1;
    fails(&mut program, api::code::INVALID_ARGUMENT, "the residual is");
    let long =
        Spec { rows: 1, hidden: 10244, element: Element::F32, weight: Element::F32, ..*spec };
    let mut program = Program::new(&long, &Inputs::random(2, &long, 7), &[0, 1], 2, 1000);
    fails(&mut program, api::code::INVALID_ARGUMENT, "the kernel takes at most 10240");
    let mut program = Program::new(spec, &inputs, &[0, 1], 2, 1000);
    program.attributes.devices = vec![1, 1];
    let (_, message) = program.stage(Stage::Instantiate, 0).unwrap_err();
    assert!(message.contains("a device is twice"), "{message}");
}

/// Products with blocks, and their rows: all stages on two GPUs, a capture that calls *execute* alone, and what cannot be.
fn blocks() {
    let (driver, ty) = (Driver::get().unwrap(), WeightType::Q4_1);
    let (rows, columns, tokens) = (6, 96, 3);
    let bytes = cuda_checks::blocks::random_blocks(ty, rows * ty.row_bytes(columns).unwrap(), 1);
    let mut weights = vec![0.0; rows * columns];
    dequantize_row(ty, &bytes, &mut weights);
    let shape = |dims: &[usize]| dims.iter().map(|n| *n as i64).collect::<Vec<_>>();
    let matrix = || {
        let mut array = Array::new(Element::F32, &shape(&[rows, bytes.len() / rows]), &bytes);
        array.0 = data_type::U8;
        array
    };
    // Sums of these are exact.
    let x: Vec<f32> = (0..tokens * columns).map(|i| [1.0, -2.0, 0.5][i % 3]).collect();
    let floats = |dims: &[usize], values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
        Array::new(Element::F32, &shape(dims), &bytes)
    };
    let nothing = |dims: &[usize]| floats(dims, &vec![f32::NAN; dims.iter().product()]);
    let numbers = |array: &Array| cuda_checks::oracle::numbers(Element::F32, &array.bytes());
    let type_id = i64::from(ty.ggml().id());
    let attributes = |id: i64| vec![("block_type", Attribute::Integer(id))];
    for (name, dims) in [("alight_matvec", [tokens, rows]), ("alight_dequantize", [rows, columns])]
    {
        let target = named(name);
        let is_product = name == "alight_matvec";
        let arguments = || {
            let mut arguments = vec![matrix()];
            arguments.extend(is_product.then(|| floats(&[tokens, columns], &x)));
            arguments
        };
        let contexts = [2, 5].map(|device| Context {
            device,
            stream: driver.stream(device.into()).unwrap(),
            state: AtomicPtr::new(null_mut()),
        });
        call_with(&target, Stage::Instantiate, &contexts[0], attributes(type_id), &mut [], &mut [])
            .unwrap();
        let state = contexts[0].state.load(Ordering::Acquire);
        contexts[1].state.store(state, Ordering::Release);
        for context in &contexts {
            let (mut given, mut results) = (arguments(), [nothing(&dims)]);
            let mut stage = |stage, results: &mut [Array]| {
                call_with(&target, stage, context, attributes(type_id), &mut given, results)
            };
            stage(Stage::Initialize, &mut results).unwrap();
            let graph = driver.on(context.device.into(), || {
                driver.capture(context.stream, || {
                    stage(Stage::Execute, &mut results).unwrap();
                    Ok(())
                })
            });
            assert!(numbers(&results[0]).iter().all(|x| x.is_nan()), "it has run already");
            driver.replay(graph.unwrap(), context.stream).unwrap();
            driver.wait(context.device.into(), context.stream).unwrap();
            for (at, found) in numbers(&results[0]).into_iter().enumerate() {
                let expected = match is_product {
                    false => f64::from(weights[at]),
                    true => {
                        let (t, row) = (at / rows, at % rows);
                        let x = &x[t * columns..][..columns];
                        let w = &weights[row * columns..][..columns];
                        w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
                    }
                };
                assert!((found - expected).abs() < 1e-5, "{name}, {at}: {found}, {expected}");
            }
        }
        // Both stages refuse a wrong program.
        let fails = |id: i64, given: &mut [Array], dims: &[usize], code: c_int, said: &str| {
            for stage in [Stage::Initialize, Stage::Execute] {
                let mut results = [nothing(dims)];
                let (found, message) =
                    call_with(&target, stage, &contexts[0], attributes(id), given, &mut results)
                        .unwrap_err();
                assert_eq!(found, code, "{message}");
                assert!(message.starts_with(name) && message.contains(said), "{message}");
            }
        };
        let wrong = api::code::INVALID_ARGUMENT;
        fails(999, &mut arguments(), &dims, wrong, "type 999 of GGUF has no kernels");
        let other = i64::from(WeightType::Q4_0.ggml().id());
        fails(other, &mut arguments(), &dims, wrong, "96 columns of Q4_0 take 54 bytes");
        fails(type_id, &mut arguments(), &[dims[0] + 1, dims[1]], wrong, "the result is");
        // As many bytes in a row, and no kernel.
        let without = i64::from(WeightType::IQ4_NL.ggml().id());
        let mut narrow = arguments();
        narrow[0].1[1] = 54;
        fails(without, &mut narrow, &dims, wrong, "blocks of IQ4_NL, the kernels know Q4_0");
        let gone = Context { device: 99, stream: contexts[0].stream, state: AtomicPtr::new(state) };
        let (code, message) = call_with(
            &target,
            Stage::Initialize,
            &gone,
            attributes(type_id),
            &mut arguments(),
            &mut [nothing(&dims)],
        )
        .unwrap_err();
        assert_eq!(code, api::code::FAILED_PRECONDITION);
        assert!(message.contains("at most 64 GPUs"), "{message}");
        let info = (target.state.unwrap().type_info)();
        // SAFETY: as XLA does when a program ends: what `instantiate` made, once.
        unsafe { ((*info).deleter)(state) };
    }
}

fn play(peers: &str) {
    // SAFETY: this test is alone in its process, and no thread of it reads the environment now.
    unsafe { std::env::set_var("ALIGHT_EMULATED_PEERS", peers) };
}

#[test]
fn the_custom_call() {
    if !emulator::emulated() {
        return;
    }
    let spec = cuda_checks::small(3);
    let half = Spec {
        element: Element::Bf16,
        weight: Element::Bf16,
        hidden: 512,
        post_norm: true,
        ..spec
    };
    metadata();
    // Ranks in another order than the GPUs, and groups.
    results(&spec, &[3, 0, 7], 3);
    results(&half, &[0, 1, 2, 3, 4, 5, 6, 7], 8);
    results(&half, &[0, 4, 1, 5, 2, 6], 2);
    results(&spec, &[2], 1);
    graph(&spec);
    others_while_a_graph_is_captured(&spec);
    channels(&spec);
    memory_that_nobody_has_is_used_again();
    a_missing_rank(&spec);
    what_cannot_work(&spec);
    blocks();

    let all: Vec<i64> = (0..8).collect();
    let limit = Duration::from_millis(500);
    for ordinals in [&all[..], &[5], &[6, 2]] {
        assert_eq!(probe(ordinals, Duration::from_secs(20)), Ok(()));
    }
    assert!(matches!(probe(&[0, 8], limit), Err(CudaError::Device { ordinal: 8, .. })));
    play("no");
    assert_eq!(probe(&[1, 3], limit), Err(CudaError::NoPeers { from: 1, to: 3 }));
    let mut program = Program::new(&spec, &Inputs::random(2, &spec, 8), &[0, 1], 2, 1000);
    let (_, message) = program.stage(Stage::Initialize, 1).unwrap_err();
    assert!(message.contains("GPU 0 has no access to the memory of GPU 1"), "{message}");
    // Access is granted, and what is written does not arrive.
    play("lost");
    assert_eq!(probe(&[1, 3], limit), Err(CudaError::Wrong { ordinals: vec![1, 3] }));
    play("yes");
    assert_eq!(probe(&[1, 3], Duration::from_secs(20)), Ok(()));
}
