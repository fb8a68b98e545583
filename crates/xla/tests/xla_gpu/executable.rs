//! A program as XLA runs it with command buffers, which are CUDA graphs: what is prepared when, and who waits for whom. As XLA's
//! `gpu_executable.cc` and `command_buffer_thunk.cc` have it (2026-09):
//!
//! - A program that is made takes the graphs of all others away (*evicts* them): they are made again when these run again.
//! - In a run each device has a thread. It initializes first: the handler's *initialize*, then, where there is no graph, one is
//!   captured, for which *execute* is called, and instantiated.
//! - Then the devices of the process meet, but only if XLA knows of a collective in the program.
//! - Then the graph is launched. Where it has been taken away since, this run is op by op: *execute* on the device's own stream.
//!
//! Arrays keep their addresses here, so that no graph is ever updated.

use std::ffi::c_int;
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::Duration;

use alight_xla::Stage;
use alight_xla::cuda::{Driver, Graph};

use super::{Context, Program, call};
use crate::emulator;

/// By device of the program.
type Graphs = Mutex<Vec<Option<Graph>>>;

/// Those of all programs.
static ALL: Mutex<Vec<Weak<Graphs>>> = Mutex::new(vec![]);

fn evict(graphs: &Graphs) {
    graphs.lock().unwrap().iter_mut().filter_map(Option::take).for_each(emulator::destroy);
}

/// What a host is late for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Late {
    /// Initializing.
    Initialize,
    /// Launching.
    Execute,
}

/// How a run goes.
#[derive(Clone, Copy, Default)]
pub struct Run<'a> {
    /// The thread of which device comes late, for what, by how much.
    pub late: Option<(usize, Late, Duration)>,
    /// True if XLA knows of a collective in the program.
    pub meet: bool,
    /// What happens on the first device between its initializing and its launch.
    pub between: Option<&'a (dyn Fn() + Sync)>,
}

pub struct Executable {
    pub program: Program,
    /// True if it is large enough for XLA to make graphs of it.
    pub in_graphs: bool,
    graphs: Arc<Graphs>,
}

impl Executable {
    pub fn new(program: Program) -> Executable {
        let graphs = Arc::new(Mutex::new(vec![None; program.contexts.len()]));
        let mut all = ALL.lock().unwrap();
        all.iter().filter_map(Weak::upgrade).for_each(|graphs| evict(&graphs));
        all.push(Arc::downgrade(&graphs));
        Executable { program, in_graphs: true, graphs }
    }

    /// Launches on all devices; it does not wait for the GPUs.
    pub fn run(&mut self, run: Run<'_>) -> Vec<Result<(), (c_int, String)>> {
        run_one_after_another(&mut [self], run)
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        evict(&self.graphs);
    }
}

/// Programs one after the other, each device in a thread of its own that continues with the next as soon as it has launched, as Python has
/// it do. `run` is for the first one. Gives what each device found first: it continues after an error,
/// since the others meet with it.
pub fn run_one_after_another(
    programs: &mut [&mut Executable],
    run: Run<'_>,
) -> Vec<Result<(), (c_int, String)>> {
    let devices = programs[0].program.contexts.len();
    let barriers: Vec<_> = programs.iter().map(|_| Barrier::new(devices)).collect();
    std::thread::scope(|scope| {
        let mut by_device: Vec<Vec<_>> = (0..devices).map(|_| vec![]).collect();
        for (executable, barrier) in programs.iter_mut().zip(&barriers) {
            let Program { contexts, attributes, arrays } = &mut executable.program;
            let (graphs, attributes) = (&*executable.graphs, &*attributes);
            let graphs = (graphs, executable.in_graphs);
            for (at, (context, arrays)) in contexts.iter().zip(arrays).enumerate() {
                by_device[at].push((graphs, attributes, context, arrays, barrier));
            }
        }
        let spawned = by_device.into_iter().enumerate().map(|(at, calls)| {
            scope.spawn(move || {
                let mut found = Ok(());
                for (number, (graphs, attributes, context, arrays, barrier)) in
                    calls.into_iter().enumerate()
                {
                    let run =
                        if number == 0 { run } else { Run { meet: run.meet, ..Run::default() } };
                    let stage = |stage, context: &Context| {
                        call(stage, context, attributes, &mut arrays.0, &mut arrays.1)
                    };
                    let went = on_a_device(at, run, graphs, barrier, context, stage);
                    found = found.and(went);
                }
                found
            })
        });
        let threads: Vec<_> = spawned.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn on_a_device(
    at: usize,
    run: Run<'_>,
    (graphs, in_graphs): (&Graphs, bool),
    barrier: &Barrier,
    context: &Context,
    mut stage: impl FnMut(Stage, &Context) -> Result<(), (c_int, String)>,
) -> Result<(), (c_int, String)> {
    let driver = Driver::get().unwrap();
    let device = i64::from(context.device);
    let sleep = |what| match run.late {
        Some((late, at_what, time)) if (late, at_what) == (at, what) => std::thread::sleep(time),
        _ => {}
    };
    sleep(Late::Initialize);
    let mut ready = stage(Stage::Initialize, context);
    // Not locked while the graph is made: that may take long, and another program may come meanwhile.
    let there = graphs.lock().unwrap()[at].is_some();
    if ready.is_ok() && in_graphs && !there {
        let traced = Context {
            device: context.device,
            stream: driver.stream(device).unwrap(),
            state: std::sync::atomic::AtomicPtr::new(
                context.state.load(std::sync::atomic::Ordering::Acquire),
            ),
        };
        let graph = driver.on(device, || {
            driver.capture(traced.stream, || {
                ready = stage(Stage::Execute, &traced);
                Ok(())
            })
        });
        graphs.lock().unwrap()[at] = Some(graph.unwrap());
    }
    if run.meet {
        barrier.wait();
    }
    ready?;
    if let Some(between) = run.between.filter(|_| at == 0) {
        between();
    }
    sleep(Late::Execute);
    // Held while it is launched, as by XLA.
    let graphs = graphs.lock().unwrap();
    match graphs[at] {
        Some(graph) => {
            driver.replay(graph, context.stream).unwrap();
            Ok(())
        }
        None => stage(Stage::Execute, context),
    }
}
