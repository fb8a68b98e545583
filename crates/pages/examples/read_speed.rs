//! How fast this disk brings a file, by way of reading, block, depth and threads:
//!
//! ```text
//! cargo run --release -p alight-pages --example read_speed -- FILE [MIB [ROUNDS]]
//! ```
//!
//! Before each measurement the file is put out of the page cache, which cachestat proves (or the line
//! says that it did not work). Measurements go round and round, so that a busy moment does not hit
//! one setting alone. On a machine that does nothing else the median counts, on a busy one the best.

#[cfg(target_os = "linux")]
#[path = "../../kernels/examples/support/sample.rs"]
mod sample;

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("Linux only: elsewhere there are no direct reads yet");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    linux::main()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::fs::File;
    use std::hint::black_box;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use alight_pages::transfer::{Engine, Piece, TransferMethod, TransferOptions, transfer};
    use alight_pages::{evict, residency};

    use crate::sample::Sample;

    /// As large as the loader cuts them.
    const PIECE: u64 = 4 << 20;

    struct Setting {
        method: TransferMethod,
        options: TransferOptions,
        /// GB/s of each round.
        speeds: Vec<f64>,
        note: String,
    }

    fn setting(
        method: TransferMethod,
        (ring, register): (bool, bool),
        threads: usize,
        block: usize,
        depth: usize,
    ) -> Setting {
        let mut options = TransferOptions::default();
        (options.ring, options.register) = (ring, register);
        (options.threads, options.block, options.depth) = (threads, block, depth);
        (options.readers, options.reader_block) = (depth, block);
        Setting { method, options, speeds: Vec::new(), note: String::new() }
    }

    pub fn main() -> Result<(), Box<dyn Error>> {
        let mut arguments = std::env::args().skip(1);
        let path = arguments.next().ok_or("usage: read_speed FILE [MIB [ROUNDS]]")?;
        let limit = arguments.next().map_or(Ok(512), |mib| mib.parse::<u64>())? << 20;
        let rounds = arguments.next().map_or(Ok(3), |rounds| rounds.parse::<usize>())?;
        let path = Path::new(&path);
        let file = File::open(path)?;
        let len = file.metadata()?.len().min(limit);
        let pieces: Vec<Piece> = (0..len)
            .step_by(PIECE as usize)
            .map(|at| Piece::slot(at..len.min(at + PIECE)))
            .collect();

        let cores = TransferOptions::default().threads;
        let mut settings = Vec::new();
        for threads in [1, cores] {
            for (block, depths) in [
                (256 << 10, [16, 64]),
                (512 << 10, [16, 64]),
                (1 << 20, [8, 32]),
                (2 << 20, [8, 16]),
                (4 << 20, [4, 8]),
            ] {
                for depth in depths {
                    settings.push(setting(
                        TransferMethod::Direct,
                        (true, true),
                        threads,
                        block,
                        depth,
                    ));
                }
            }
            settings.push(setting(TransferMethod::Direct, (true, false), threads, 1 << 20, 32));
        }
        for readers in [1, 4, 8, 16] {
            for block in [1 << 20, 4 << 20] {
                settings.push(setting(
                    TransferMethod::Direct,
                    (false, false),
                    cores,
                    block,
                    readers,
                ));
                settings.push(setting(TransferMethod::Read, (false, false), cores, block, readers));
            }
        }
        for _ in 0..rounds {
            for setting in &mut settings {
                measure(&file, path, &pieces, len, setting)?;
            }
        }
        println!("{}, {} MiB of it, {rounds} rounds", path.display(), len >> 20);
        println!(
            "{:24} {:>7} {:>9} {:>6} {:>11} {:>6}",
            "way", "threads", "block KiB", "depth", "median GB/s", "best"
        );
        for setting in &mut settings {
            let speeds = Sample::of(std::mem::take(&mut setting.speeds));
            let (median, best) = (speeds.median(), speeds.most());
            let options = &setting.options;
            let way = match (setting.method, options.ring, options.register) {
                (TransferMethod::Direct, true, true) => "direct, ring, registered",
                (TransferMethod::Direct, true, false) => "direct, ring",
                (TransferMethod::Direct, false, _) => "direct, threads",
                (TransferMethod::Read, ..) => "page cache, threads",
            };
            println!(
                "{way:24} {:>7} {:>9} {:>6} {median:>11.2} {best:>6.2}  {}",
                options.threads,
                options.block >> 10,
                options.depth,
                setting.note
            );
        }
        Ok(())
    }

    fn measure(
        file: &File,
        path: &Path,
        pieces: &[Piece],
        len: u64,
        setting: &mut Setting,
    ) -> Result<(), Box<dyn Error>> {
        let left = evict(file)?.cached;
        if left > 0 {
            setting.note = format!("not cold: {left} pages stayed");
        }
        let stop = AtomicBool::new(false);
        let report = transfer(
            file,
            path,
            pieces,
            setting.method,
            &setting.options,
            &stop,
            // One byte of each page, so that there is no doubt that it is there.
            &|_, bytes| {
                black_box(bytes.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>());
            },
        )?;
        for fallback in &report.fallbacks {
            setting.note = fallback.to_string();
        }
        let direct = setting.method == TransferMethod::Direct;
        if direct && residency(file, 0..len)?.cached > left {
            setting.note = "the page cache has changed".into();
        }
        if direct && setting.options.ring && report.engine != Engine::IoUring {
            setting.note += "; not by io_uring";
        }
        setting.speeds.push(report.bytes as f64 / 1e9 / report.took.as_secs_f64());
        Ok(())
    }
}
