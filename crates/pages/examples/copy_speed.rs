//! How fast a file is copied to the disk, by each way: `copy_speed SOURCE DEST [ROUNDS]`.
//!
//! Every round begins with a proven cold source and ends with fsync. A line for each copy, and at the end one for
//! each way: the median and the least of its rounds.

#[path = "../../kernels/examples/support/sample.rs"]
mod sample;

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use alight_pages::copy::{Method, Options, copy};
use alight_pages::{evict, residency};
use sample::Sample;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (from, to) = (Path::new(&args[1]), Path::new(&args[2]));
    let rounds = args.get(3).map_or(3, |n| n.parse().unwrap());
    let mut taken: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for method in [Method::Direct, Method::CopyFileRange, Method::ReadWrite] {
            let windows: &[u64] = if method == Method::Direct { &[16] } else { &[8, 16] };
            for &window in windows {
                let source = File::open(from).unwrap();
                let len = source.metadata().unwrap().len();
                let cold = evict(&source).unwrap();
                if std::env::var_os("WARM").is_some() {
                    alight_pages::warm(&source, 0..len).unwrap();
                }
                let dest = File::create(to).unwrap();
                let mut options = Options::default();
                options.method = Some(method);
                options.window = window << 20;
                let (began, used) = (Instant::now(), cpu());
                let mut peak = 0;
                let report = copy((&source, from), (&dest, to), &options, &mut |_| {
                    if std::env::var_os("PEAK").is_some() {
                        let [a, b] = [&source, &dest].map(|f| residency(f, 0..len).unwrap().cached);
                        peak = peak.max(a + b);
                    }
                    ControlFlow::Continue(())
                });
                let report = report.unwrap();
                let copied = began.elapsed();
                dest.sync_all().unwrap();
                let (durable, way) =
                    (began.elapsed(), format!("{:16} {window:3} MiB", method.name()));
                println!(
                    "{way}: {:.2} s, {:.2} with fsync, {:.2} s of CPU; cold {}, peak {} MiB, left {} + {}; {:?}",
                    copied.as_secs_f64(),
                    durable.as_secs_f64(),
                    cpu() - used,
                    cold.cached == 0,
                    peak >> 8,
                    residency(&source, 0..len).unwrap().cached,
                    residency(&dest, 0..len).unwrap().cached,
                    report.fallbacks,
                );
                taken.entry(way).or_default().push(durable.as_secs_f64());
                std::fs::remove_file(to).unwrap();
            }
        }
    }
    for (way, seconds) in taken {
        let seconds = Sample::of(seconds);
        println!("{way}: median {:.2} s with fsync, best {:.2}", seconds.median(), seconds.least());
    }
}

/// Seconds that this process has computed, on its own and within the kernel.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    [11, 12].map(|i| fields[i].parse::<f64>().unwrap()).iter().sum::<f64>() / 100.0
}
