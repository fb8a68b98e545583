//! Programs with CUDA graphs, in the order that XLA has, among emulated GPUs whose driver is as strict as CUDA may be: what takes memory,
//! as a graph does that is instantiated, waits for every kernel that waits for another rank. In one test with a process of its own,
//! since its parts share what the emulated driver counts.
#![cfg(target_os = "linux")]

use std::ffi::c_int;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use alight_collective::{Element, Spec};
use alight_xla::cuda::{Driver, accounts};
use alight_xla::{Stage, api};

use crate::alone::is_alone;
use crate::cuda_checks::oracle::{Inputs, numbers};
use crate::cuda_checks::{self, Ranks};
use crate::emulator::{self, calls_that_waited, graphs, refuse_memory};
use crate::xla_gpu::Program;
use crate::xla_gpu::executable::{Executable, Late, Run, run_one_after_another};

/// By how much a host is late, and how long ranks wait where that is an error.
const LATE: Duration = Duration::from_millis(300);
const LIMIT: i64 = 3_000;
const LONG: i64 = 20_000;

/// GPUs of all programs here; the third is late.
const DEVICES: [i64; 4] = [0, 1, 2, 3];
const THIRD: usize = 2;

fn late(what: Late) -> Run<'static> {
    Run { late: Some((THIRD, what, LATE)), ..Run::default() }
}

fn program(spec: &Spec, limit: i64) -> (Inputs, Executable) {
    program_of_channel(0, spec, limit)
}

fn program_of_channel(channel: i64, spec: &Spec, limit: i64) -> (Inputs, Executable) {
    let inputs = Inputs::random(DEVICES.len(), spec, 11);
    let program = Program::of_channel(channel, spec, &inputs, &DEVICES, DEVICES.len(), limit);
    (inputs, Executable::new(program))
}

/// All devices have the right results. What was there before is gone.
fn right(
    (inputs, executable): &mut (Inputs, Executable),
    spec: &Spec,
    run: impl FnOnce(&mut Executable) -> Vec<Result<(), (c_int, String)>>,
) {
    for (_, results) in &mut executable.program.arrays {
        results.iter_mut().for_each(|result| result.2.fill(u64::MAX));
    }
    run(executable).into_iter().for_each(|result| result.unwrap());
    executable.program.wait();
    executable.program.check(spec, inputs);
}

/// Some waited until they gave up, for the third or for another whose graph their kernels held up, and nobody has a result.
fn stuck((_, executable): &mut (Inputs, Executable), spec: &Spec, run: Run<'_>) {
    let _ = executable.run(run);
    executable.program.wait();
    for (_, results) in &executable.program.arrays {
        assert!(numbers(spec.element, &results[0].bytes()).iter().all(|x| x.is_nan()));
    }
    let (code, message) = executable.program.stage(Stage::Execute, 0).unwrap_err();
    assert_eq!(code, api::code::DEADLINE_EXCEEDED);
    assert!(message.contains("waited 3s for rank"), "{message}");
}

/// One host comes late to make its graph.
fn a_late_graph(spec: &Spec) {
    let meet = Run { meet: true, ..late(Late::Initialize) };
    let mut one = program(spec, LIMIT);
    let (before, waited) = (graphs(), calls_that_waited());
    for _ in 0..3 {
        right(&mut one, spec, |program| program.run(meet));
    }
    assert_eq!(
        (graphs(), calls_that_waited()),
        (before + 4, waited),
        "nobody has waited for a kernel"
    );
    // It is the graph: once they are there, devices need not meet, and late ones are waited for.
    for what in [Late::Initialize, Late::Execute] {
        right(&mut one, spec, |program| program.run(late(what)));
    }
    // What devices do not do if XLA knows of no collective: the graph of the late one is made when the others' kernels have given up.
    let mut two = program(spec, LIMIT);
    let start = Instant::now();
    stuck(&mut two, spec, late(Late::Initialize));
    assert!(start.elapsed() >= Duration::from_millis(LIMIT as u64));
    assert!(calls_that_waited() > waited);
}

/// Another program takes the graphs away: they are made again, so that devices have to meet in each run, not once.
fn graphs_that_are_taken_away(spec: &Spec) {
    let meet = Run { meet: true, ..late(Late::Initialize) };
    let mut one = program(spec, LIMIT);
    right(&mut one, spec, |program| program.run(meet));
    right(&mut one, spec, |program| program.run(Run::default()));
    // It comes while the first one's kernels are still under way.
    let other = Mutex::new(None);
    right(&mut one, spec, |executable| {
        let results = executable.run(Run { meet: true, ..late(Late::Execute) });
        *other.lock().unwrap() = Some(program(spec, LIMIT));
        assert_eq!(graphs(), 0);
        results
    });
    right(&mut one, spec, |program| program.run(meet));
    assert_eq!(graphs(), 4);
    // It comes between the preparation of a run and its launch: no graph is made there, where nobody would meet.
    let launched = || accounts().unwrap().iter().map(|one| one.launched).sum::<u64>();
    let before = launched();
    let between = || drop(other.lock().unwrap().replace(program(spec, LIMIT)));
    let run = Run { meet: true, between: Some(&between), ..late(Late::Execute) };
    right(&mut one, spec, |program| program.run(run));
    assert!(launched() > before, "by the host, and by no graph");
    // A run in which they do not meet, though all has been well before.
    stuck(&mut one, spec, late(Late::Initialize));
}

/// A device is still to launch the first program, for whose kernel the others wait, when these go on with the next: its memory, kernels and
/// graphs come when those have ended, and what the late device needs to launch is held by none of them.
fn another_program_while_kernels_wait(channel: i64, spec: &Spec, next: &Spec, in_graphs: bool) {
    let mut one = program_of_channel(channel, spec, LONG);
    one.1.in_graphs = in_graphs;
    let mut two = program_of_channel(channel, next, LONG);
    let waited = calls_that_waited();
    let run = Run { meet: true, ..late(Late::Execute) };
    let start = Instant::now();
    let results = run_one_after_another(&mut [&mut one.1, &mut two.1], run);
    results.into_iter().for_each(|result| result.unwrap());
    for (spec, (inputs, executable)) in [(spec, &one), (next, &two)] {
        executable.program.wait();
        executable.program.check(spec, inputs);
    }
    assert!(calls_that_waited() > waited, "the second program has waited for nothing");
    assert!(start.elapsed() < Duration::from_millis(LONG as u64 / 2), "{:?}", start.elapsed());
}

/// While a kernel of the collective waits for a rank, a thread does something of which the driver lets it wait for that kernel. Then what the rank does
/// `here`, before it comes, does not wait for that thread.
fn while_a_rank_is_late(
    spec: &Spec,
    elsewhere: impl FnOnce(&Ranks) + Send,
    here: impl FnOnce(&Ranks),
) {
    let ranks = Ranks::new(2, spec.bytes().unwrap(), Duration::from_millis(LONG as u64)).unwrap();
    let inputs = Inputs::random(2, spec, 12);
    ranks.set(&inputs).unwrap();
    let waited = calls_that_waited();
    let start = Instant::now();
    let launch = |rank| ranks.launch(spec, &ranks.params(rank, spec)?, 1);
    launch(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| elsewhere(&ranks));
        while calls_that_waited() == waited {
            assert!(start.elapsed() < Duration::from_millis(LONG as u64), "nothing waits");
            thread::yield_now();
        }
        here(&ranks);
        launch(1).unwrap();
    });
    ranks.wait().unwrap();
    ranks.check(spec, &inputs, "while a rank is late").unwrap();
    assert!(start.elapsed() < Duration::from_millis(LONG as u64 / 2), "{:?}", start.elapsed());
}

/// A kernel is loaded that nobody has loaded: the rank finds its own, which is there.
fn a_kernel_is_loaded_while_a_rank_is_late(spec: &Spec, other: &Spec) {
    while_a_rank_is_late(spec, |ranks| _ = ranks.function(other).unwrap(), |_| ());
}

/// A channel's workspaces are made: the rank finds those of another channel.
fn a_channel_is_made_while_a_rank_is_late(spec: &Spec) {
    let large = Spec { rows: 16, hidden: 10240, ..*spec };
    let [(_, mut held), (_, mut again)] = [0, 1].map(|_| program_of_channel(21, spec, LONG));
    let (_, mut made) = program_of_channel(22, &large, LONG);
    let initialize = |of: &mut Executable| of.program.stage(Stage::Initialize, 0);
    initialize(&mut held).unwrap();
    let before = accounts().unwrap().len();
    while_a_rank_is_late(
        spec,
        |_| made.program.stage(Stage::Initialize, 0).unwrap(),
        |_| initialize(&mut again).unwrap(),
    );
    // That of the ranks has gone.
    assert_eq!(accounts().unwrap().len(), before + 1, "channel 21 has two communicators");
}

/// A GPU has no memory any more, so what is kept of it is freed: the rank gives memory back.
fn memory_is_freed_while_a_rank_is_late(spec: &Spec) {
    let driver = Driver::get().unwrap();
    let [spare, mine] = [100_000, 3000].map(|bytes| driver.allocate(0, bytes).unwrap());
    drop(spare);
    let without_memory = |_: &Ranks| {
        refuse_memory(1);
        driver.allocate(0, 32 << 20).unwrap();
    };
    while_a_rank_is_late(spec, without_memory, |_| drop(mine));
}

#[test]
fn programs_with_graphs() {
    if !emulator::emulated() || !is_alone("cuda_graphs::programs_with_graphs") {
        return;
    }
    let spec = cuda_checks::small(3);
    a_late_graph(&spec);
    graphs_that_are_taken_away(&spec);
    // The next one has memory of its own, and kernels that nobody has loaded.
    let half = Spec { hidden: 512, weight: Element::F16, element: Element::F16, ..spec };
    another_program_while_kernels_wait(0, &spec, &half, true);
    // The handler is called for each launch, and the next one shares the first one's memory: its kernels come alone.
    let wide = Spec { hidden: 10240, post_norm: false, ..half };
    another_program_while_kernels_wait(7, &wide, &Spec { post_norm: true, ..wide }, false);
    a_kernel_is_loaded_while_a_rank_is_late(&spec, &half);
    a_channel_is_made_while_a_rank_is_late(&spec);
    memory_is_freed_while_a_rank_is_late(&spec);
}
