//! The collective among GPUs of several processes, over emulated memory that they open by handles: the processes are this program again, each
//! with the test `child`, and the parent hands round what they tell each other, as JAX's collectives do.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use alight_collective::{Element, Spec};
use alight_xla::Stage;
use alight_xla::api::code;
use alight_xla::cuda::{CudaError, Driver, Shareable, arena, errors};

use crate::cuda_checks;
use crate::cuda_checks::oracle::{Inputs, numbers};
use crate::emulator;
use crate::xla_gpu::executable::{Executable, Late, Run};
use crate::xla_gpu::{Attributes, Program};

/// What a child of the test is told by the environment: case, number, count, GPUs.
const CHILD: &str = "ALIGHT_TEST_CHILD";
/// Nothing here takes as long; who waits for longer hangs.
const PATIENCE: Duration = Duration::from_secs(240);
const LONG: i64 = 100_000;

/// What a process said, line by line, and that it has ended.
enum Said {
    Line(String),
    End,
}

/// Runs `count` processes of a case, each with `gpus` GPUs, numbered from 0 in each. Returns whether each ended well.
fn run(case: &str, count: usize, gpus: usize, more: &[(&str, &str)]) -> Option<Vec<bool>> {
    if !emulator::emulated() {
        return None;
    }
    let before = names();
    let (say, said) = channel();
    let mut children: Vec<Child> = vec![];
    for number in 0..count {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "cuda_processes::child", "--nocapture"])
            .env(CHILD, format!("{case} {number} {count} {gpus}"))
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (lines, say) = (BufReader::new(child.stdout.take().unwrap()), say.clone());
        std::thread::spawn(move || {
            for line in lines.lines() {
                let _ = say.send((number, Said::Line(line.unwrap_or_default())));
            }
            let _ = say.send((number, Said::End));
        });
        children.push(child);
    }
    let problem = relay(&mut children, &said);
    for child in &mut children {
        if problem.is_some() {
            let _ = child.kill();
        }
    }
    let ended = children.iter_mut().map(|child| child.wait().unwrap().success()).collect();
    assert_eq!(problem, None, "{case}");
    assert_eq!(names(), before, "{case} has left something");
    Some(ended)
}

/// Names in shared memory that are ours.
fn names() -> Vec<String> {
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let mut names: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into()).collect();
    names.retain(|name: &String| name.contains("alight-emulated"));
    names.sort();
    names
}

/// Hands round what the processes tell, until all have ended. Of those that are gone nothing is waited for.
fn relay(children: &mut [Child], said: &Receiver<(usize, Said)>) -> Option<String> {
    let (end, count) = (Instant::now() + PATIENCE, children.len());
    let (mut told, mut gone) = (vec![None; count], vec![false; count]);
    while !gone.iter().all(|gone| *gone) {
        let left = end.saturating_duration_since(Instant::now());
        match said.recv_timeout(left) {
            Err(_) => return Some(format!("it hangs; ended: {gone:?}, told: {told:?}")),
            Ok((number, Said::End)) => gone[number] = true,
            Ok((number, Said::Line(line))) => match line.split_once("@tell ") {
                Some((_, what)) => told[number] = Some(what.to_owned()),
                None => println!("{number}: {line}"),
            },
        }
        let ready = |(told, gone): (&Option<String>, &bool)| told.is_some() || *gone;
        if told.iter().any(Option::is_some) && told.iter().zip(&gone).all(ready) {
            let all = told.iter_mut().map(|one| one.take().unwrap_or_default());
            let all = all.collect::<Vec<_>>().join(" ") + "\n";
            for (child, _) in children.iter_mut().zip(&gone).filter(|(_, gone)| !**gone) {
                let _ = child.stdin.as_mut().unwrap().write_all(all.as_bytes());
            }
        }
    }
    None
}

/// A process of a case.
struct Me {
    number: usize,
    count: usize,
    gpus: usize,
}

impl Me {
    /// What all processes tell, in step; nothing of those that are gone.
    fn gather(&self, what: &str) -> Vec<String> {
        println!("\n@tell {}", if what.is_empty() { "-" } else { what });
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let all: Vec<String> = line.trim_end_matches('\n').split(' ').map(String::from).collect();
        assert_eq!(all.len(), self.count, "{line}");
        all
    }

    fn ordinals(&self) -> Vec<i64> {
        (0..self.gpus as i64).collect()
    }

    /// JAX's numbers of all GPUs.
    fn devices(&self) -> Vec<i64> {
        (0..(self.count * self.gpus) as i64).map(|id| 100 + id).collect()
    }

    fn process(&self, device: i64) -> i64 {
        (device - 100) / self.gpus as i64
    }

    /// Offers, and opens what the others offer.
    fn connect(&self, fabric: bool) -> Result<(), CudaError> {
        let handles = arena::offer(&self.ordinals(), 8 << 20, fabric).unwrap();
        let hex = |handle: &Shareable| handle.0.iter().map(|b| format!("{b:02x}")).collect();
        let mine: Vec<String> = handles.iter().map(hex).collect();
        let told = self.gather(&mine.join(","));
        let handles = told.iter().flat_map(|one| one.split(',')).map(|text| {
            let byte = |i: usize| u8::from_str_radix(&text[2 * i..][..2], 16).unwrap();
            Shareable(std::array::from_fn(byte))
        });
        let offers: Vec<_> = handles
            .zip(self.devices())
            .map(|(handle, device)| arena::Offer { device, process: self.process(device), handle })
            .collect();
        arena::open(self.number as i64, &offers)
    }

    fn connected(&self, fabric: bool) {
        self.connect(fabric).unwrap();
        self.gather("");
        arena::trial(&self.devices(), Duration::from_secs(100)).unwrap();
        self.gather("");
    }

    /// A program on `devices`, JAX's numbers, in groups of `ranks`; this process has some of them.
    fn program(
        &self,
        spec: &Spec,
        devices: &[i64],
        ranks: usize,
        limit_ms: i64,
        channel: i64,
    ) -> (Program, Inputs) {
        let inputs = Inputs::random(ranks, spec, spec.hidden as u64);
        let processes: Vec<_> = devices.iter().map(|device| self.process(*device)).collect();
        let here: Vec<_> = (0..devices.len())
            .filter(|at| processes[*at] == self.number as i64)
            .map(|at| (at, (devices[at] - 100) % self.gpus as i64))
            .collect();
        let all = devices.to_vec();
        let attributes = Attributes::of(spec, all, processes, ranks, limit_ms, channel);
        (Program::with(spec, &inputs, attributes, &here), inputs)
    }
}

fn runs(program: &mut Program, spec: &Spec, inputs: &Inputs) {
    program.run().into_iter().for_each(|result| result.unwrap());
    program.wait();
    program.check(spec, inputs);
}

fn specs() -> [Spec; 3] {
    let spec = cuda_checks::small(3);
    let (element, weight) = (Element::Bf16, Element::Bf16);
    let half = Spec { element, weight, hidden: 512, post_norm: true, ..spec };
    [spec, half, Spec { rows: 1, hidden: 1024, ..half }]
}

/// Results are those of threads, to the bit: in groups of all GPUs and of some, again and again, out of graphs, on channels.
fn works(me: &Me, fabric: bool) {
    me.connected(fabric);
    let (all, [spec, half, one]) = (me.devices(), specs());
    let backwards: Vec<i64> = all.iter().rev().copied().collect();
    // Every second GPU, so that each group is of several processes.
    let split: Vec<i64> =
        (0..2).flat_map(|odd| all.iter().copied().filter(move |id| id % 2 == odd)).collect();
    let mut programs: Vec<(Spec, Program, Inputs)> = vec![];
    for (channel, spec, devices, ranks) in [
        (0, &spec, &all, all.len()),
        (0, &half, &backwards, all.len()),
        (0, &half, &split, all.len() / 2),
        (7, &one, &all, all.len()),
        (7, &one, &all, all.len()),
    ] {
        let (mut program, inputs) = me.program(spec, devices, ranks, LONG, channel);
        runs(&mut program, spec, &inputs);
        programs.push((*spec, program, inputs));
    }
    for turn in 0..20 {
        let (spec, program, inputs) = &mut programs[turn * 3 % 5];
        runs(program, spec, inputs);
    }
    // One of a channel goes here earlier than there, and another comes.
    if me.number == 0 {
        programs.truncate(3);
    }
    me.gather("");
    programs.truncate(3);
    let (mut again, inputs) = me.program(&one, &all, all.len(), LONG, 7);
    runs(&mut again, &one, &inputs);
    // Captured, and replayed without a handler.
    let driver = Driver::get().unwrap();
    let graphs: Vec<_> = (0..again.contexts.len())
        .map(|at| {
            let (stream, device) = (again.contexts[at].stream, again.contexts[at].device.into());
            let captured = driver.on(device, || {
                driver.capture(stream, || {
                    again.stage(Stage::Execute, at).unwrap();
                    Ok(())
                })
            });
            captured.unwrap()
        })
        .collect();
    for (_, results) in &mut again.arrays {
        results.iter_mut().for_each(|result| result.2.fill(u64::MAX));
    }
    for _ in 0..50 {
        for (context, graph) in again.contexts.iter().zip(&graphs) {
            driver.replay(*graph, context.stream).unwrap();
        }
    }
    again.wait();
    again.check(&one, &inputs);
    assert_eq!(errors(), []);
}

/// Programs with graphs. Devices meet within their process alone, as XLA has it, so kernels of the others wait while the first process makes its graphs:
/// the first time, and after they were taken away there. A kernel that waits holds up calls of its own process, and none of these is made meanwhile.
fn graphs(me: &Me) {
    const LATE: Duration = Duration::from_millis(300);
    me.connected(false);
    let spec = specs()[0];
    let (program, inputs) = me.program(&spec, &me.devices(), me.count * me.gpus, LONG, 0);
    let mut one = Executable::new(program);
    let waited = emulator::calls_that_waited();
    let late = |what| (me.number == 0).then_some((me.gpus - 1, what, LATE));
    for (turn, what) in [Late::Initialize, Late::Execute, Late::Initialize].into_iter().enumerate()
    {
        if turn == 2 && me.number == 0 {
            // It is never run.
            drop(Executable::new(me.program(&spec, &me.devices(), me.count * me.gpus, LONG, 0).0));
        }
        let there = if turn == 0 || turn == 2 && me.number == 0 { 0 } else { me.gpus };
        assert_eq!(emulator::graphs(), there, "before run {turn}");
        for (_, results) in &mut one.program.arrays {
            results.iter_mut().for_each(|result| result.2.fill(u64::MAX));
        }
        me.gather("");
        let run = one.run(Run { meet: true, late: late(what), ..Run::default() });
        run.into_iter().for_each(|result| result.unwrap());
        one.program.wait();
        one.program.check(&spec, &inputs);
        assert_eq!(emulator::graphs(), me.gpus);
    }
    assert_eq!(emulator::calls_that_waited(), waited, "a call has waited for a kernel");
    assert_eq!(errors(), []);
}

/// Waits for the calls, which fail: results are NaN, the host knows of it, and no further call is made.
fn fails(program: &mut Program, spec: &Spec, said: &[&str]) {
    let _ = program.run();
    program.wait();
    let found = numbers(spec.element, &program.arrays[0].1[0].bytes());
    assert!(found.iter().all(|x| x.is_nan()));
    let told: Vec<_> = errors().iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && said.iter().any(|said| told[0].contains(said)), "{told:?}");
    let (found, message) = program.stage(Stage::Execute, 0).unwrap_err();
    assert!([code::DEADLINE_EXCEEDED, code::FAILED_PRECONDITION].contains(&found), "{message}");
}

const GIVEN_UP: &str = "a rank of another process has given up";

/// The last process is killed between two calls. The others know of it in time, all of them.
fn killed(me: &Me) {
    me.connected(false);
    let spec = specs()[0];
    let (mut program, inputs) = me.program(&spec, &me.devices(), me.count, 500, 0);
    // A limit that no machine is too busy for is too long to wait for: the first call is of another program.
    let (mut first, _) = me.program(&spec, &me.devices(), me.count, LONG, 0);
    runs(&mut first, &spec, &inputs);
    me.gather("");
    if me.number == me.count - 1 {
        // SAFETY: ends this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let missing = format!("for rank {}", me.count - 1);
    // Or for one that has given up and does not come any more.
    fails(&mut program, &spec, &[&missing, GIVEN_UP, "waited 500ms for rank"]);
}

/// A process that comes within the limit is waited for; one that comes after it finds that the others have given up.
fn late(me: &Me) {
    me.connected(false);
    let spec = specs()[0];
    let (mut patient, inputs) = me.program(&spec, &me.devices(), me.count, LONG, 0);
    let (mut program, _) = me.program(&spec, &me.devices(), me.count, 300, 0);
    if me.number == 0 {
        me.gather("");
    } else {
        patient.run().into_iter().for_each(|result| result.unwrap());
        me.gather("");
    }
    if me.number == 0 {
        patient.run().into_iter().for_each(|result| result.unwrap());
    }
    patient.wait();
    patient.check(&spec, &inputs);
    if me.number == 0 {
        me.gather("");
        fails(&mut program, &spec, &[GIVEN_UP]);
    } else {
        fails(&mut program, &spec, &["waited 300ms for rank", GIVEN_UP]);
        me.gather("");
    }
    // Other calls are as they were.
    me.gather("");
    runs(&mut patient, &spec, &inputs);
}

/// Processes that load different programs are told so, instead of adding what does not belong together.
fn different(me: &Me) {
    me.connected(false);
    let [spec, half, _] = specs();
    let mine = if me.number == 0 { spec } else { half };
    let (mut program, _) = me.program(&mine, &me.devices(), me.count, 300, 0);
    for turn in 0..me.count {
        if turn == me.number {
            let result = program.stage(Stage::Initialize, 0);
            if turn == 0 {
                result.unwrap();
            } else {
                let (found, message) = result.unwrap_err();
                assert_eq!(found, code::FAILED_PRECONDITION);
                assert!(message.contains("GPU 100 has loaded another program"), "{message}");
            }
        }
        me.gather("");
    }
}

/// What does not fit into the arenas is an error in all processes, and what has a place keeps it.
fn full(me: &Me) {
    me.connected(false);
    let [spec, ..] = specs();
    let large = Spec { rows: 2400, ..spec };
    let (mut program, inputs) = me.program(&spec, &me.devices(), me.count, LONG, 0);
    runs(&mut program, &spec, &inputs);
    let (mut second, _) = me.program(&large, &me.devices(), me.count, LONG, 0);
    let (found, message) = second.stage(Stage::Initialize, 0).unwrap_err();
    assert_eq!(found, code::FAILED_PRECONDITION);
    assert!(message.contains("are left"), "{message}");
    runs(&mut program, &spec, &inputs);
}

/// If one process cannot open what another offers, all give everything back.
fn refused(me: &Me, fabric: bool) {
    if me.number == 0 {
        // SAFETY: no other thread of this process reads the environment.
        unsafe { std::env::set_var("ALIGHT_EMULATED_PEERS", "no") };
    }
    let opened = me.connect(fabric);
    assert_eq!(opened.is_err(), me.number == 0, "{opened:?}");
    if let Err(error) = opened {
        let said = if fabric { "cuMemImportFromShareableHandle" } else { "cuIpcOpenMemHandle" };
        assert!(error.to_string().starts_with(said), "{error}");
    }
    me.gather("");
    arena::close();
    me.gather("");
    arena::free();
    let path = std::env::var("ALIGHT_LIBCUDA").unwrap();
    assert_eq!(emulator::shared_pieces(&path), 0);
    let (mut program, _) = me.program(&specs()[0], &me.devices(), me.count, 300, 0);
    for stage in [Stage::Initialize, Stage::Execute] {
        let (_, message) = program.stage(stage, 0).unwrap_err();
        assert!(message.contains("call alight.jax.connect() first"), "{message}");
    }
}

/// What is written does not arrive: the trial says so on all, in its time.
fn lost(me: &Me) {
    me.connect(false).unwrap();
    me.gather("");
    let tried = arena::trial(&me.devices(), Duration::from_millis(300));
    assert!(tried.is_err(), "{tried:?}");
}

#[test]
fn child() {
    let Ok(told) = std::env::var(CHILD) else { return };
    assert!(emulator::emulated());
    let told: Vec<_> = told.split(' ').collect();
    let [number, count, gpus] = [1, 2, 3].map(|at| told[at].parse().unwrap());
    let me = Me { number, count, gpus };
    match told[0] {
        "works" => works(&me, false),
        "fabric" => works(&me, true),
        "graphs" => graphs(&me),
        "killed" => killed(&me),
        "late" => late(&me),
        "different" => different(&me),
        "full" => full(&me),
        "refused" => refused(&me, false),
        "refused_fabric" => refused(&me, true),
        "lost" => lost(&me),
        other => panic!("{other}"),
    }
}

fn all_end_well(case: &str, count: usize, gpus: usize, more: &[(&str, &str)]) {
    if let Some(ended) = run(case, count, gpus, more) {
        assert_eq!(ended, vec![true; count], "{case}");
    }
}

#[test]
fn four_processes_of_one_gpu_have_the_bits_of_threads() {
    all_end_well("works", 4, 1, &[]);
}

#[test]
fn two_processes_of_two_gpus_have_the_bits_of_threads() {
    all_end_well("works", 2, 2, &[]);
}

#[test]
fn so_has_memory_that_other_hosts_can_open() {
    all_end_well("fabric", 2, 2, &[("ALIGHT_EMULATED_FABRIC", "yes")]);
}

#[test]
fn graphs_that_are_made_while_kernels_of_other_processes_wait() {
    all_end_well("graphs", 2, 2, &[]);
    all_end_well("graphs", 3, 1, &[]);
}

#[test]
fn a_killed_process_is_an_error_on_all_others() {
    if let Some(ended) = run("killed", 3, 1, &[]) {
        assert_eq!(ended, [true, true, false]);
    }
}

#[test]
fn late_processes() {
    all_end_well("late", 3, 1, &[]);
}

#[test]
fn different_programs_are_told_apart() {
    all_end_well("different", 2, 1, &[]);
}

#[test]
fn no_room() {
    all_end_well("full", 2, 1, &[]);
}

#[test]
fn what_cannot_be_opened_is_given_back() {
    all_end_well("refused", 3, 1, &[]);
    all_end_well("refused_fabric", 3, 1, &[("ALIGHT_EMULATED_FABRIC", "yes")]);
}

#[test]
fn what_does_not_arrive_is_found_by_the_trial() {
    all_end_well("lost", 2, 1, &[("ALIGHT_EMULATED_PEERS", "lost")]);
}
