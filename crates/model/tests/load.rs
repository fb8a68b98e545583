//! The ways in which weights reach memory: all of them give the same bits, leave nothing to be
//! brought later, and fail with the file's name.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alight_formats::GgmlType;
use alight_model::{Load, Model, ModelError, OpenOptions, Repack, Session, SessionOptions};

use alight_testing::models::{self, Moe, Spec, tokens};

/// Every way that keeps the layout, or (if `repack`) changes it.
fn ways(repack: Repack) -> Vec<OpenOptions> {
    let mut all = Vec::new();
    for load in Load::ALL {
        for (reclaim, lock) in [(true, false), (false, false), (true, true)] {
            let threads = Some(if reclaim { 4 } else { 1 });
            all.push(OpenOptions {
                threads,
                load,
                repack,
                reclaim,
                lock,
                ..OpenOptions::default()
            });
        }
    }
    all
}

/// Models with packed and unpacked matrices, tied and not, with rows that are no whole tiles.
fn models(folder: &Path) -> Vec<PathBuf> {
    let llama = Spec { ty: GgmlType::Q8_0, tied: false, biases: true, ..Spec::llama() };
    let gemma = Spec { ty: GgmlType::Q4_0, ff: 160, ..Spec::gemma3() };
    // 300 rows are no whole tiles.
    let odd = Spec { ty: GgmlType::F16, vocab: 304, seed: 9, ..Spec::llama() };
    let experts = Spec { ty: GgmlType::Q8_0, ..Spec::qwen2moe() };
    let mut all: Vec<_> =
        [llama, gemma, odd, experts].iter().map(|spec| spec.write(folder).0).collect();
    all.extend(models::real_model(models::SMOLLM2));
    all.extend(models::real_model(models::GEMMA3));
    all
}

/// Logits of a prompt and of some single tokens, chosen without looking at them.
fn logits(model: &Model) -> Vec<Vec<f32>> {
    let vocab = model.spec().vocab.min(40_000);
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    let mut all = vec![session.feed(&tokens(21, vocab, 5)).unwrap().to_vec()];
    all.extend(tokens(3, vocab, 6).iter().map(|&t| session.decode(t).unwrap().to_vec()));
    all
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|x| x.to_bits()).collect()
}

fn shown(options: &OpenOptions) -> String {
    let OpenOptions { load, repack, reclaim, lock, threads, .. } = options;
    format!("load {load}, repack {repack:?}, reclaim {reclaim}, lock {lock}, threads {threads:?}")
}

#[test]
fn every_way_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for path in models(folder.path()) {
        let mut by_layout = Vec::new();
        for repack in [Repack::Off, Repack::On] {
            let mut expected: Option<Vec<Vec<f32>>> = None;
            for options in ways(repack) {
                let what = format!("{} of {}", shown(&options), path.display());
                let model = Model::open(&path, &options).unwrap();
                // Half of them while the load continues, half after it.
                if options.reclaim {
                    model.wait_loaded().unwrap();
                }
                let got = logits(&model);
                model.wait_loaded().unwrap();
                let report = model.load_report();
                assert_eq!(report.repack, repack == Repack::On, "{what}");
                assert_eq!(report.packed > 0, report.repack, "{what}");
                assert_eq!(report.bytes_repacked > 0, report.repack, "{what}");
                assert_eq!(report.bytes_locked > 0, options.lock, "{what}");
                assert!(report.took.is_some(), "{what}");
                let expected = expected.get_or_insert_with(|| got.clone());
                assert!(bits(expected) == bits(&got), "{what}");
            }
            by_layout.extend(expected);
        }
        // Sums in another order: the activations of a batch are rounded to 8 bits after that, which
        // a last bit can tip.
        let [rows, tiles] = &by_layout[..] else { panic!("two layouts") };
        for (i, (a, b)) in rows.iter().zip(tiles).enumerate() {
            let most = a.iter().fold(0f32, |m, x| m.max(x.abs()));
            let off = models::distance(a, b) / most;
            eprintln!("step {i} of {}: layouts differ by {off:.1e} of the largest", path.display());
            assert!(off < 0.05, "step {i} of {}: {off}", path.display());
        }
    }
}

#[test]
fn the_layouts_choose_the_same_words() {
    for file in [models::SMOLLM2, models::GEMMA3] {
        let Some(path) = models::real_model(file) else { continue };
        let mut answers = Vec::new();
        for repack in [Repack::Off, Repack::On] {
            let options = OpenOptions { repack, ..OpenOptions::default() };
            let model = Model::open(&path, &options).unwrap();
            for text in ["The capital of France is", "def fibonacci(n):"] {
                let prompt = model.tokenizer().encode(text, Default::default()).unwrap();
                let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
                let top = |logits: &[f32]| {
                    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                    best.unwrap().0 as u32
                };
                let mut next = top(session.feed(&prompt).unwrap());
                let mut answer = vec![next];
                for _ in 0..12 {
                    next = top(session.decode(next).unwrap());
                    answer.push(next);
                }
                answers.push(answer);
            }
        }
        assert_eq!(answers[..2], answers[2..], "{file}");
    }
}

#[test]
fn shards_load_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { ty: GgmlType::F16, tied: false, ..Spec::llama() };
    let (whole, _) = spec.write(folder.path());
    let bytes = std::fs::read(&whole).unwrap();
    for (name, shard) in models::shards_of(&bytes, "m", 2) {
        std::fs::write(folder.path().join(name), shard).unwrap();
    }
    let first = folder.path().join("m-00001-of-00002.gguf");
    for repack in [Repack::Off, Repack::On] {
        for options in ways(repack) {
            let expected = logits(&Model::open(&whole, &options).unwrap());
            let model = Model::open(&first, &options).unwrap();
            assert!(bits(&logits(&model)) == bits(&expected), "{}", shown(&options));
            assert_eq!(model.load_report().files.len(), 2);
        }
    }
}

/// Page faults of this thread that had to wait for a disk.
#[cfg(target_os = "linux")]
fn major_faults() -> i64 {
    // SAFETY: zeros are a valid value, which is then filled.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_majflt as i64
    }
}

/// A copy of a real model that a test may evict and cut.
fn copy(file: &str, folder: &Path) -> Option<PathBuf> {
    let path = folder.join(file);
    std::fs::copy(models::real_model(file)?, &path).unwrap();
    Some(path)
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_is_left_on_the_disk_after_loading() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(path) = copy(models::SMOLLM2, folder.path()) else { return };
    let file = std::fs::File::open(&path).unwrap();
    for load in [Load::Mmap, Load::Direct, Load::Read] {
        for repack in [Repack::On, Repack::Off] {
            let left = alight_pages::evict(&file).unwrap().cached;
            if left > 0 {
                eprintln!("skipped: {left} pages of {} stay in the cache", path.display());
                return;
            }
            let threads = Some(1);
            let options = OpenOptions { threads, load, repack, ..OpenOptions::default() };
            let model = Model::open(&path, &options).unwrap();
            model.wait_loaded().unwrap();
            if load == Load::Direct {
                let whole = 0..file.metadata().unwrap().len();
                let cached = alight_pages::residency(&file, whole).unwrap().cached;
                assert_eq!(cached, 0, "the page cache is left as it was: {}", shown(&options));
            }
            let copied = repack == Repack::On || load != Load::Mmap;
            if copied {
                // What is not ours by now would have to come again.
                alight_pages::evict(&file).unwrap();
            }
            let before = major_faults();
            logits(&model);
            let faults = major_faults() - before;
            assert_eq!(faults, 0, "{}", shown(&options));
        }
    }
}

#[test]
fn a_copied_model_does_not_need_its_file_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec { ty: GgmlType::Q8_0, ..Spec::llama() }.write(folder.path());
    for load in [Load::Direct, Load::Read] {
        let options = OpenOptions { load, repack: Repack::Off, ..OpenOptions::default() };
        let (copy, name) = (folder.path().join("copy.gguf"), "copy.gguf");
        std::fs::copy(&path, &copy).unwrap();
        let model = Model::open(&copy, &options).unwrap();
        let expected = logits(&model);
        model.wait_loaded().unwrap();
        std::fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(10).unwrap();
        assert!(bits(&logits(&model)) == bits(&expected), "{load}: {name}");
        model.check().unwrap();
    }
}

/// What decides how weights are computed with is what was asked for, and not how the file is read at the moment.
#[test]
fn a_copy_that_was_asked_for_is_repacked_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec { ty: GgmlType::Q4_0, ..Spec::llama() }.write(folder.path());
    for load in Load::ALL {
        let options = OpenOptions { load, ..OpenOptions::default() };
        let report = Model::open(&path, &options).unwrap().load_report();
        let copied = matches!(load, Load::Direct | Load::Read);
        assert_eq!(report.repack, copied, "{load}: {}", report.repack_reason);
    }
}

#[test]
fn a_truncated_file_is_refused_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec { ty: GgmlType::Q4_0, ..Spec::gemma3() }.write(folder.path());
    let bytes = std::fs::read(&path).unwrap();
    for repack in [Repack::Off, Repack::On] {
        for options in ways(repack) {
            for cut in [100, bytes.len() / 2, bytes.len() - 1] {
                let cut_path = folder.path().join("cut.gguf");
                std::fs::write(&cut_path, &bytes[..cut]).unwrap();
                let error = Model::open(&cut_path, &options).err().unwrap().to_string();
                assert!(error.contains("cut.gguf"), "{}: {error}", shown(&options));
            }
        }
    }
}

/// The file is cut right after it was opened, at some moment of the load: either everything was
/// there by then, and the result is right, or the error names the file. No call hangs.
#[test]
fn a_file_that_shrinks_while_loading() {
    let folder = tempfile::tempdir().unwrap();
    let Some(real) = models::real_model(models::SMOLLM2) else { return };
    for (load, repack) in [
        (Load::Mmap, Repack::Off),
        (Load::Mmap, Repack::On),
        (Load::Direct, Repack::Off),
        (Load::Direct, Repack::On),
        (Load::Read, Repack::On),
    ] {
        let options = OpenOptions { threads: Some(2), load, repack, ..OpenOptions::default() };
        let expected = bits(&logits(&Model::open(&real, &options).unwrap()));
        let mut errors = 0;
        for _ in 0..3 {
            let path = folder.path().join("shrinks.gguf");
            std::fs::copy(&real, &path).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            let model = Model::open(&path, &options).unwrap();
            file.set_len(9_000_000).unwrap();
            let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
            match session.feed(&tokens(21, 40_000, 5)) {
                Ok(_) => assert!(bits(&logits(&model)) == expected, "{}", shown(&options)),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("shrinks.gguf"), "{}: {text}", shown(&options));
                    assert!(matches!(error, ModelError::Load(_) | ModelError::Map(_)), "{error:?}");
                    assert_eq!(session.position(), 0);
                    assert!(session.feed(&[1]).is_err(), "it stays an error");
                    assert!(model.wait_loaded().is_err() && model.check().is_err());
                    errors += 1;
                }
            }
        }
        eprintln!("{}: {errors} of 3 were caught loading", shown(&options));
        assert!(errors > 0 || load == Load::Direct, "{}", shown(&options));
    }
}

#[test]
fn dropping_a_model_ends_its_load() {
    let Some(path) = models::real_model(models::GEMMA3) else { return };
    for load in [Load::Mmap, Load::Direct, Load::Read] {
        let options = OpenOptions { load, repack: Repack::On, ..OpenOptions::default() };
        let model = Model::open(&path, &options).unwrap();
        let began = Instant::now();
        drop(model);
        assert!(began.elapsed() < Duration::from_millis(500), "{load}: {:?}", began.elapsed());
    }
}

/// Bytes of a file's map that were read since the flags were cleared, as the page tables have it; `None`: this system does not say.
fn referenced(path: &Path) -> Option<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let name = path.to_str().unwrap();
    let (mut ours, mut kib) = (false, None);
    for line in smaps.lines() {
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            ours = line.ends_with(name);
        } else if let Some(rest) = line.strip_prefix("Referenced:").filter(|_| ours) {
            let found: u64 = rest.trim().trim_end_matches(" kB").parse().unwrap();
            kib = Some(kib.unwrap_or(0) + found);
        }
    }
    kib.map(|kib| 1024 * kib)
}

#[test]
fn a_token_reads_its_own_experts_and_no_others() {
    let (experts, used, width, embd, layers) = (16, 2, 512, 256, 2);
    let moe = Moe { experts, used, width, ..Moe::default() };
    let spec = Spec { ty: GgmlType::Q8_0, embd, layers, moe: Some(moe), ..Spec::qwen3moe() };
    // In memory, where pages are small: on a disk they may be kept, and counted, by the megabyte.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let (path, _) = spec.write(folder.path());
    let options = OpenOptions {
        threads: Some(2),
        load: Load::Mmap,
        repack: Repack::Off,
        ..OpenOptions::default()
    };
    let model = Model::open(&path, &options).unwrap();
    model.wait_loaded().unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let vocab = model.spec().vocab;
    session.feed(&tokens(5, vocab, 1)).unwrap();

    let matrices = (3 * layers) as u64;
    let expert = (width * embd / 32 * 34) as u64;
    let all_experts = matrices * experts as u64 * expert;
    let others = std::fs::metadata(&path).unwrap().len() - all_experts;
    // An expert begins and ends within a page, and what lies up to 8 KiB after it is asked for ahead of its use.
    let edges = matrices * used as u64 * 4 * alight_pages::page_size() as u64;
    for step in 0..3 {
        if std::fs::write("/proc/self/clear_refs", "1").is_err() {
            eprintln!("skipped: this system does not tell which pages are read");
            return;
        }
        session.decode(step).unwrap();
        let Some(read) = referenced(&path) else { return };
        let chosen = matrices * used as u64 * expert;
        assert!(read >= chosen, "{read} bytes were read, of experts {chosen}");
        let most = chosen + others + edges;
        assert!(read <= most && most < all_experts / 2, "{read} bytes were read, {most} at most");
    }
    // The same counter sees those of many tokens.
    session.feed(&tokens(40, vocab, 2)).unwrap();
    let read = referenced(&path).unwrap();
    assert!(read > all_experts / 2, "{read} of {all_experts} bytes were read by 40 tokens");
}
