//! How fast a file is copied to the disk, by each way: `copy_speed SOURCE DEST [ROUNDS]`.
//!
//! Every round begins with a proven cold source and ends with fsync; medians belong to whoever reads it.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use alight_pages::copy::{Options, Reflink, copy};
use alight_pages::{evict, residency};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (from, to) = (Path::new(&args[1]), Path::new(&args[2]));
    let rounds = args.get(3).map_or(3, |n| n.parse().unwrap());
    for _ in 0..rounds {
        for (name, read_write) in [("copy_file_range", false), ("read/write", true)] {
            for window in [4, 8, 16, 32] {
                let source = File::open(from).unwrap();
                let len = source.metadata().unwrap().len();
                let cold = evict(&source).unwrap();
                let dest = File::create(to).unwrap();
                let mut options = Options::default();
                (options.reflink, options.read_write) = (Reflink::Auto, read_write);
                options.window = window << 20;
                let began = Instant::now();
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
                println!(
                    "{name:16} {window:3} MiB: {:.2} s, {:.2} with fsync; cold {}, peak {} MiB, left {} + {}; {:?}",
                    copied.as_secs_f64(),
                    began.elapsed().as_secs_f64(),
                    cold.cached == 0,
                    peak >> 8,
                    residency(&source, 0..len).unwrap().cached,
                    residency(&dest, 0..len).unwrap().cached,
                    report.fallbacks,
                );
                std::fs::remove_file(to).unwrap();
            }
        }
    }
}
