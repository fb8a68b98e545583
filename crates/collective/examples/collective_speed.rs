//! Times the collective among threads: every algorithm on every shape, interleaved.
//!
//!     cargo run --release -p alight-collective --example collective_speed -- [CALLS]
//!
//! A line for each shape: microseconds per call, the median of 31 turns of CALLS calls (default 200) with its quartiles.

#[path = "../../kernels/examples/support/sample.rs"]
mod sample;

use alight_collective::{Algorithm, Args, Element, Options, Spec, ThreadGroup};
use alight_kernels::Isa;
use sample::{Sample, time};

const TURNS: usize = 31;

/// Microseconds per call of `calls` calls.
fn turn(group: &ThreadGroup, spec: &Spec, calls: i64) -> f64 {
    let bytes = spec.bytes().expect("a shape that fits");
    let seconds = time(|| {
        std::thread::scope(|scope| {
            for rank in 0..group.ranks() {
                scope.spawn(move || {
                    // 1 in bf16 everywhere.
                    let ones: Vec<u8> = 0x3f80_u16.to_ne_bytes().repeat(bytes / 2);
                    let (mut normed, mut new_residual) = (vec![0; bytes], vec![0; bytes]);
                    for run in 0..calls {
                        let args = Args {
                            partial: Some(&ones),
                            residual: Some(&ones),
                            weight: &ones[..spec.hidden * 2],
                            post_weight: None,
                            normed: &mut normed,
                            new_residual: &mut new_residual,
                        };
                        group.allreduce_norm(rank, run, spec, args).expect("a call");
                    }
                });
            }
        })
    });
    seconds * 1e6 / calls as f64
}

fn main() {
    let calls = std::env::args().nth(1).map_or(200, |calls| calls.parse().expect("a number"));
    println!(
        "{}, {} cores, hidden 4608, bf16",
        Isa::best(),
        std::thread::available_parallelism().unwrap()
    );
    println!(
        "ranks rows   one-shot µs (quartiles)   combine-once µs (quartiles)   split µs (quartiles)"
    );
    for ranks in [2, 4, 8] {
        for rows in [1, 8, 32] {
            let spec = Spec {
                rows,
                hidden: 4608,
                element: Element::Bf16,
                weight: Element::Bf16,
                bias: true,
                epsilon: 1e-6,
                post_norm: false,
            };
            let mut columns =
                [Algorithm::OneShot, Algorithm::CombineOnce, Algorithm::Split].map(|algorithm| {
                    let mut options = Options::new(ranks, spec.bytes().expect("a shape that fits"));
                    options.algorithm = Some(algorithm);
                    (ThreadGroup::new(options).expect("a group"), vec![])
                });
            let calls = (calls / rows as i64).max(10);
            for _ in 0..TURNS {
                for (group, times) in &mut columns {
                    times.push(turn(group, &spec, calls));
                }
            }
            print!("{ranks:5} {rows:4}");
            for (_, times) in columns {
                let times = Sample::of(times);
                let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| times.quantile(share));
                print!("   {middle:9.1} ({low:.1}–{high:.1})");
            }
            println!();
        }
    }
}
