//! Everything that one GPU can show of the collective and of products with blocks of weights, and how long it takes: `make test-gpu` and
//! `make bench-gpu` run this.
//!
//!     cuda_check test [--quick | --together]
//!     cuda_check bench
//!     cuda_check matmul [test | bench]
//!     cuda_check pool

#[cfg(target_os = "linux")]
#[path = "../../tests/cuda_checks/mod.rs"]
mod cuda_checks;
#[cfg(target_os = "linux")]
mod matmul;

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("for Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    use cuda_checks::Extent;
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let passed = match words[..] {
        ["test"] => {
            linux::test(Extent { ranks: 8, calls: 20_000, replays: 100_000, large: true }, false)
        }
        ["test", "--quick"] => {
            linux::test(Extent { ranks: 4, calls: 200, replays: 200, large: false }, false)
        }
        // Under compute-sanitizer, which makes kernels many times slower, and may run them one after the other.
        ["test", "--together"] => {
            linux::test(Extent { ranks: 4, calls: 200, replays: 200, large: false }, true)
        }
        ["bench"] => linux::bench(),
        ["matmul"] => linux::there() && matmul::test() && matmul::bench(),
        ["matmul", "test"] => linux::there() && matmul::test(),
        ["matmul", "bench"] => linux::there() && matmul::bench(),
        ["pool"] => linux::there() && matmul::pool(),
        _ => {
            eprintln!(
                "usage: cuda_check test [--quick | --together] | bench | matmul [test | bench] | pool"
            );
            false
        }
    };
    std::process::exit(i32::from(!passed));
}

#[cfg(target_os = "linux")]
mod linux {
    use std::time::{Duration, Instant};

    use alight_collective::{Element, Spec};
    use alight_xla::cuda::{CudaError, Driver, Graph, Stream};

    use crate::cuda_checks::oracle::Inputs;
    use crate::cuda_checks::{
        Checked, Extent, Ranks, adversaries, agreement, controls, said, small,
    };

    type Check = fn(Extent) -> Checked;

    fn gpu() -> Result<&'static Driver, String> {
        let driver = Driver::get().map_err(said)?;
        let (major, minor) = driver.capability(0).map_err(said)?;
        println!(
            "GPU 0 of {}: {}, compute capability {major}.{minor}, {} multiprocessors",
            driver.count().map_err(said)?,
            driver.name(0).map_err(said)?,
            driver.multiprocessors(0).map_err(said)?
        );
        Ok(driver)
    }

    fn trial(_: Extent) -> Checked {
        alight_xla::cuda::probe(&[0], Duration::from_secs(10)).map_err(said)
    }

    /// Among as many GPUs as there are, if there are several: what one GPU cannot show.
    fn peers(_: Extent) -> Checked {
        let count = Driver::get().map_err(said)?.count().map_err(said)?;
        if count < 2 {
            println!("  one GPU: nothing to show");
            return Ok(());
        }
        let ordinals: Vec<i64> = (0..count.min(8) as i64).collect();
        alight_xla::cuda::probe(&ordinals, Duration::from_secs(20)).map_err(said)
    }

    /// Says which GPU there is, or what is wrong.
    pub fn there() -> bool {
        gpu().inspect_err(|error| eprintln!("{error}")).is_ok()
    }

    /// All checks, or those in which all ranks are one grid.
    pub fn test(extent: Extent, together: bool) -> bool {
        if !there() {
            return false;
        }
        let checks: [(&str, Check); 12] = [
            ("the trial at the start", trial),
            ("the trial among several GPUs", peers),
            ("results", agreement::everything),
            ("what is not finite", agreement::not_finite),
            ("late ranks, operands overwritten", adversaries::delays),
            ("changing shapes", adversaries::alternating),
            ("numbers of calls that wrap", adversaries::wrapping),
            ("a rank that never comes", adversaries::missing),
            ("two calls at the same time", adversaries::in_flight),
            ("many calls", adversaries::chained),
            ("replays of a graph", adversaries::replays),
            ("broken variants fail", controls::all_fail),
        ];
        let one_grid =
            ["the trial at the start", "results", "what is not finite", "replays of a graph"];
        let (mut failed, mut passed) = (0, 0);
        for (name, check) in checks {
            if together && !one_grid.contains(&name) {
                continue;
            }
            match holds(name, || check(extent)) {
                true => passed += 1,
                false => failed += 1,
            }
        }
        println!("{passed} passed, {failed} failed");
        failed == 0
    }

    pub fn bench() -> bool {
        match measure() {
            Ok(()) => true,
            Err(error) => {
                eprintln!("{error}");
                false
            }
        }
    }

    /// Runs a check and prints what came of it: whether it holds.
    pub fn holds(name: &str, check: impl FnOnce() -> Checked) -> bool {
        let start = Instant::now();
        let result = check();
        match &result {
            Ok(()) => println!("ok      {name} ({:.1} s)", start.elapsed().as_secs_f64()),
            Err(error) => println!("FAILED  {name}: {error}"),
        }
        result.is_ok()
    }

    /// Lower quartile, median and upper quartile of microseconds per call, of `turns` replays of a graph with `calls` calls. The context of
    /// the stream's GPU is current.
    pub fn replays(
        driver: &Driver,
        stream: Stream,
        graph: Graph,
        calls: usize,
        turns: usize,
    ) -> Result<[f64; 3], CudaError> {
        const WARM: usize = 5;
        let (from, to) = (driver.event()?, driver.event()?);
        let mut times = vec![];
        for turn in 0..turns + WARM {
            driver.record(from, stream)?;
            driver.replay(graph, stream)?;
            driver.record(to, stream)?;
            driver.wait(0, stream)?;
            if turn >= WARM {
                times.push(driver.elapsed(from, to)? / calls as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok([times[turns / 4], times[turns / 2], times[turns * 3 / 4]])
    }

    /// [`replays`] of calls of the collective.
    fn time(ranks: usize, spec: &Spec, calls: usize, turns: usize) -> Result<[f64; 3], String> {
        let driver = Driver::get().map_err(said)?;
        let room = spec.bytes().unwrap_or(0).max(4 * spec.hidden);
        let all = Ranks::new(ranks, room, Duration::from_secs(20))?;
        all.set(&Inputs::random(ranks, spec, 9))?;
        let (function, shape) = all.function(spec)?;
        let resident = driver.resident(0, function, shape.threads).map_err(said)?;
        if shape.blocks as usize * ranks > resident {
            return Err(format!("{} blocks do not run at once", shape.blocks as usize * ranks));
        }
        let (params, stream) = (all.params(0, spec)?, all.streams[0]);
        let times = driver.on(0, || {
            let launch = || {
                // SAFETY: the arrays are there as long as the graph is used.
                unsafe { all.communicator.launch(function, &shape, &params, ranks as u32, stream) }
            };
            let graph = driver.capture(stream, || (0..calls).try_for_each(|_| launch()))?;
            replays(driver, stream, graph, calls, turns)
        });
        let times = times.map_err(said)?;
        all.wait()?;
        Ok(times)
    }

    fn measure() -> Checked {
        gpu()?;
        let turns = 201;
        let [low, median, high] = time(1, &Spec { hidden: 4, ..small(1) }, 100, turns)?;
        println!(
            "One GPU plays all ranks: no figure of NVLink. µs per call in a graph of 100, median (quartiles) of {turns}."
        );
        println!("Floor, one rank with one row of 16 bytes: {median:.2} ({low:.2}–{high:.2})");
        println!("\n| ranks | rows | hidden | post-norm | µs | KB moved by a rank |");
        println!("|---|---|---|---|---|---|");
        for (rows, hidden) in [(1, 4608), (8, 4608), (32, 4608), (1, 8192), (8, 8192)] {
            for (ranks, post_norm) in [(1, false), (2, false), (4, false), (8, false), (8, true)] {
                let spec = Spec {
                    hidden,
                    element: Element::Bf16,
                    weight: Element::Bf16,
                    post_norm,
                    ..small(rows)
                };
                // The operand is read, written to the peers' slots and read there; the residual is read, and both results written.
                let bytes = rows * hidden * 2 * (1 + 2 * (ranks - 1) + 3);
                let norm = if post_norm { "yes" } else { "no" };
                match time(ranks, &spec, 100, turns) {
                    Ok([low, median, high]) => println!(
                        "| {ranks} | {rows} | {hidden} | {norm} | {median:.2} ({low:.2}–{high:.2}) | {:.0} |",
                        bytes as f64 / 1e3
                    ),
                    Err(error) => println!("| {ranks} | {rows} | {hidden} | {norm} | {error} | |"),
                }
            }
        }
        Ok(())
    }
}
