//! The custom call for GPUs as XLA calls it, among eight emulated GPUs with a stream each: stages, results, graphs, errors, and the
//! trial at the start. In one test with a process of its own, since the emulated driver is told by the environment what to play.
#![cfg(target_os = "linux")]

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use alight_collective::{Element, Spec};
use alight_kernels::{WeightType, dequantize_row};
use alight_xla::api::{self, data_type};
use alight_xla::cuda::{CudaError, Driver, accounts, errors, probe};
use alight_xla::{Stage, targets};

use crate::alone::is_alone;
use crate::cuda_checks;
use crate::cuda_checks::oracle::{Inputs, numbers};
use crate::emulator;
use crate::xla_gpu::{Array, Attribute, Context, Program, call_with, named};

fn metadata() {
    let all: Vec<_> = targets().into_iter().filter(|target| target.platform == "CUDA").collect();
    assert_eq!(all.len(), 4);
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

/// A GPU without memory is an error of the call; the next one works if there is memory again.
fn a_failure_that_passes(spec: &Spec) {
    let spec = Spec { rows: 40, ..*spec };
    let inputs = Inputs::random(2, &spec, 10);
    for channel in [0, 8] {
        let mut program = Program::of_channel(channel, &spec, &inputs, &[0, 1], 2, 20_000);
        // Nobody has given back as much. The second is after what nobody has was freed.
        emulator::refuse_memory(2);
        let (_, message) = program.stage(Stage::Initialize, 1).unwrap_err();
        assert!(message.contains("cuMemAlloc"), "{message}");
        program.run().into_iter().for_each(|result| result.unwrap());
        program.wait();
        program.check(&spec, &inputs);
    }
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
    let mut program = Program::new(spec, &inputs, &[0, 1, 2], 3, 2000);
    for at in 0..2 {
        program.stage(Stage::Initialize, at).unwrap();
        program.stage(Stage::Execute, at).unwrap();
    }
    let start = Instant::now();
    program.wait();
    assert!(start.elapsed() < Duration::from_secs(20));
    let nothing = |program: &Program| {
        let numbers = numbers(spec.element, &program.arrays[0].1[0].bytes());
        numbers.iter().all(|x| x.is_nan())
    };
    assert!(nothing(&program));
    // The host says so in the next call, on every rank.
    for at in 0..3 {
        let (code, message) = program.stage(Stage::Execute, at).unwrap_err();
        assert_eq!(code, api::code::DEADLINE_EXCEEDED);
        assert!(message.contains("waited 2s for rank 2"), "{message}");
    }
    assert_eq!(errors().len(), 1);
    drop(program);
    assert_eq!(errors(), []);
}

/// Two ranks that the program has the other way round: with groups of other devices, sums would be of other operands, silently.
fn a_mesh_in_another_order(spec: &Spec) {
    let inputs = Inputs::random(3, spec, 5);
    let mut program = Program::new(spec, &inputs, &[0, 1, 2], 3, 20_000);
    for (at, place) in [(1, 2), (2, 1)] {
        *program.arrays[at].0.last_mut().unwrap() = Array::place(place);
    }
    let is_said = |(code, message): (c_int, String)| {
        assert_eq!(code, api::code::INVALID_ARGUMENT);
        let told =
            |rank| message.contains(&format!("rank {rank} is another device in the shard_map"));
        assert!(told(1) || told(2), "{message}");
    };
    // A rank whose call begins after another rank's kernel has found the mistake gets the error at once.
    program.run().into_iter().filter_map(Result::err).for_each(is_said);
    program.wait();
    for (_, results) in &program.arrays {
        assert!(numbers(spec.element, &results[0].bytes()).iter().all(|x| x.is_nan()));
    }
    for at in 0..3 {
        is_said(program.stage(Stage::Execute, at).unwrap_err());
    }
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

/// Products with blocks, of pairs too, and their rows: all stages on two GPUs, a capture that calls *execute* alone, and what cannot be.
fn blocks() {
    let (driver, ty) = (Driver::get().unwrap(), WeightType::Q4_1);
    let (rows, columns, tokens) = (6, 96, 3);
    let bytes = cuda_checks::blocks::random_blocks(ty, rows * ty.row_bytes(columns).unwrap(), 1);
    let mut weights = vec![0.0; rows * columns];
    dequantize_row(ty, &bytes, &mut weights);
    let shape = |dims: &[usize]| dims.iter().map(|n| *n as i64).collect::<Vec<_>>();
    let typed = |dtype: c_int, dims: &[usize], bytes: &[u8]| {
        let mut array = Array::new(Element::F32, &shape(dims), bytes);
        array.0 = dtype;
        array
    };
    let matrix = |dims: &[usize]| typed(data_type::U8, dims, &bytes);
    // The same as three matrices, of which each token chooses two.
    let (slots, pitch, chosen) = (3, bytes.len() / rows, [2, 0, -1, 1, 1, 3i32]);
    let (height, pairs) = (rows / slots, chosen.len());
    let choice = || {
        typed(
            data_type::S32,
            &[pairs],
            &chosen.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>(),
        )
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
    let product = |t: usize, row: usize| {
        let (x, w) = (&x[t * columns..][..columns], &weights[row * columns..][..columns]);
        w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    for (name, dims) in [
        ("alight_matvec", [tokens, rows]),
        ("alight_matvec_chosen", [pairs, height]),
        ("alight_dequantize", [rows, columns]),
    ] {
        let target = named(name);
        let given = || floats(&[tokens, columns], &x);
        let arguments = || match name {
            "alight_matvec" => vec![matrix(&[rows, pitch]), given()],
            "alight_matvec_chosen" => vec![matrix(&[slots, height, pitch]), given(), choice()],
            _ => vec![matrix(&[rows, pitch])],
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
                let (line, row) = (at / dims[1], at % dims[1]);
                let expected = match name {
                    "alight_matvec" => product(line, row),
                    "alight_matvec_chosen" => match usize::try_from(chosen[line]) {
                        Ok(slot) if slot < slots => product(line / 2, slot * height + row),
                        _ => 0.0,
                    },
                    _ => f64::from(weights[at]),
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
        *narrow[0].1.last_mut().unwrap() = 54;
        fails(without, &mut narrow, &dims, wrong, "blocks of IQ4_NL, the kernels know Q4_0");
        if name == "alight_matvec_chosen" {
            let with = |at: usize, other: Array| {
                let mut arguments = arguments();
                arguments[at] = other;
                arguments
            };
            for (mut given, said) in [
                (
                    with(0, matrix(&[rows, pitch])),
                    "the stack of matrices is [6, 60], expected 3 dimensions",
                ),
                (
                    with(1, floats(&[4, columns], &x)),
                    "6 pairs for 4 rows of x, expected as many for each",
                ),
                (with(1, floats(&[0, columns], &[])), "6 pairs for 0 rows of x"),
                (
                    with(2, typed(data_type::U8, &[pairs], &[0; 8])),
                    "the numbers are of XLA's type 6, expected int32",
                ),
                (
                    with(2, typed(data_type::S32, &[4], &[0; 16])),
                    "the result is [6, 2], expected [4, 2]",
                ),
                (
                    arguments().drain(..2).collect(),
                    "2 arguments and 1 results, expected matrices, x",
                ),
            ] {
                fails(type_id, &mut given, &dims, wrong, said);
            }
            // No pairs: nothing to launch.
            let mut results = [nothing(&[0, height])];
            let mut none = with(2, typed(data_type::S32, &[0], &[]));
            call_with(
                &target,
                Stage::Execute,
                &contexts[0],
                attributes(type_id),
                &mut none,
                &mut results,
            )
            .unwrap();
        }
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
    if !emulator::emulated() || !is_alone("cuda_handler::the_custom_call") {
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
    a_failure_that_passes(&spec);
    memory_that_nobody_has_is_used_again();
    a_missing_rank(&spec);
    a_mesh_in_another_order(&spec);
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
