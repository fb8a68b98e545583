//! Models in files that are still being received: the bits are those of the whole file, only what an answer needs is received before
//! it, and a source that fails or sends nothing ends the steps that need it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use alight_formats::GgmlType;
use alight_formats::gguf::parse;
use alight_model::{
    Cancel, Engine, EngineOptions, Event, Load, Model, ModelError, OpenOptions, Repack, Request,
    SamplerOptions, Session, SessionOptions, SlotOptions,
};
use alight_pages::{Incoming, IncomingQueue, Map, Taken};

use crate::experts::least;
use alight_testing::models::{Moe, Spec, shards_of, tokens};

/// A thread that receives files: it copies the ranges that are asked for from the whole ones.
struct Source {
    /// That of the first file.
    incoming: Arc<Incoming>,
    maps: Vec<Arc<Map>>,
    /// Bytes that it may still send; then it sends nothing.
    quota: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Source {
    fn new(whole: &Path, quota: u64) -> Source {
        Source::of(&[whole.to_owned()], quota)
    }

    fn of(wholes: &[PathBuf], quota: u64) -> Source {
        let queue: Arc<IncomingQueue> = Arc::default();
        let (mut files, mut maps) = (Vec::new(), Vec::new());
        for whole in wholes {
            let bytes = std::fs::read(whole).unwrap();
            // Shards have their names.
            let folder = whole.parent().unwrap().join("part");
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join(whole.file_name().unwrap());
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(true).open(&path);
            let file = file.unwrap();
            file.set_len(bytes.len() as u64 + 100).unwrap();
            let incoming = Arc::new(Incoming::new(&queue, &path, bytes.len() as u64));
            let map = Map::of_incoming(file.try_clone().unwrap(), Arc::clone(&incoming)).unwrap();
            files.push((bytes, file, incoming));
            maps.push(Arc::new(map));
        }
        let incoming = Arc::clone(&files[0].2);
        let (quota, over) = (Arc::new(AtomicU64::new(quota)), Arc::new(AtomicBool::new(false)));
        let theirs = (Arc::clone(&quota), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let (quota, over) = theirs;
            while !over.load(Ordering::Relaxed) {
                let Taken::Range(no, range) = queue.take(Duration::from_millis(5)) else {
                    continue;
                };
                let (bytes, file, incoming) = &files[no];
                let len = range.end - range.start;
                while quota.load(Ordering::Relaxed) < len {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                quota.fetch_sub(len, Ordering::Relaxed);
                let part = &bytes[range.start as usize..range.end as usize];
                file.write_all_at(part, range.start).unwrap();
                incoming.received(range);
            }
        });
        Source { incoming, maps, quota, over, thread: Some(thread) }
    }

    fn open(&self, options: &OpenOptions) -> Model {
        Model::open_mapped(&self.maps, options).unwrap()
    }

    fn received(&self) -> u64 {
        let missing = |map: &Arc<Map>| map.incoming().map_or(0, |incoming| incoming.missing());
        self.maps.iter().map(|map| map.len() as u64 - missing(map)).sum()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

const ALL: u64 = u64::MAX / 2;

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Logits after a prompt and of an answer.
fn answer(model: &Model) -> Result<Vec<u32>, ModelError> {
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    let mut all = bits(session.feed(&tokens(5, model.spec().vocab, 1))?);
    for token in tokens(6, model.spec().vocab, 2) {
        all.extend(bits(session.decode(token)?));
    }
    Ok(all)
}

fn options() -> OpenOptions {
    OpenOptions { threads: Some(2), repack: Repack::Off, ..OpenOptions::default() }
}

/// A mixture whose experts take most of the file.
fn mixture(moe: Moe, spec: Spec) -> Spec {
    let moe = Moe { experts: 16, used: 2, width: 512, ..moe };
    Spec { ty: GgmlType::F16, embd: 256, moe: Some(moe), layers: 3, ..spec }
}

fn qwen3moe() -> Spec {
    mixture(Spec::qwen3moe().moe.unwrap(), Spec::qwen3moe())
}

#[test]
fn an_answer_has_the_bits_that_the_whole_file_gives() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tied = Spec { tied: true, seed: 7, ..Spec::llama() };
    let specs =
        [Spec::llama(), tied, Spec::gemma3n(), Spec::gpt_oss(), Spec::qwen2moe(), qwen3moe()];
    for spec in specs.into_iter().chain(Spec::recurrent()) {
        let (path, _) = spec.write(folder.path());
        let whole = Model::open(&path, &options()).unwrap();
        let expected = answer(&whole).unwrap();
        drop(whole);
        for repack in [Repack::Off, Repack::On] {
            let options = OpenOptions { repack, load: Load::Mmap, ..options() };
            let expected = match repack {
                Repack::On => answer(&Model::open(&path, &options).unwrap()).unwrap(),
                _ => expected.clone(),
            };
            let source = Source::new(&path, ALL);
            let model = source.open(&options);
            assert!(answer(&model).unwrap() == expected, "{} {repack:?}", spec.arch);
            model.wait_loaded().unwrap();
        }
        let load = OpenOptions { load: Load::Read, ..options() };
        let source = Source::new(&path, ALL);
        assert!(answer(&source.open(&load)).unwrap() == expected, "{}", spec.arch);
    }
}

/// Writes a model, and the same in this number of shards.
fn sharded(folder: &Path, spec: &Spec, count: usize) -> (PathBuf, Vec<PathBuf>) {
    let (whole, _) = spec.write(folder);
    let shards = shards_of(&std::fs::read(&whole).unwrap(), "m", count);
    let write = |(name, bytes)| {
        let path = folder.join::<String>(name);
        std::fs::write::<_, Vec<u8>>(&path, bytes).unwrap();
        path
    };
    (whole, shards.into_iter().map(write).collect())
}

#[test]
fn shards_that_come_together_have_the_bits_of_the_whole_model() {
    for (i, spec) in [Spec::llama(), Spec::gemma3n(), qwen3moe()].into_iter().enumerate() {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (whole, shards) = sharded(folder.path(), &spec, 3);
        for load in [Load::Mmap, Load::Read] {
            for repack in [Repack::Off, Repack::On] {
                let options = OpenOptions { repack, load, ..options() };
                let expected = answer(&Model::open(&whole, &options).unwrap()).unwrap();
                let source = Source::of(&shards, ALL);
                let model = source.open(&options);
                assert_eq!(model.files().len(), 3);
                assert!(answer(&model).unwrap() == expected, "{} {load:?} {repack:?}", spec.arch);
                model.wait_loaded().unwrap();
                assert!(answer(&model).unwrap() == expected);
            }
        }
        // Of some shards that are complete already.
        let mut source = Source::of(&shards, ALL);
        let there = source.maps[i].path().to_owned();
        std::fs::copy(&shards[i], &there).unwrap();
        source.maps[i] = Arc::new(Map::open(&there).unwrap());
        let expected = answer(&Model::open(&whole, &options()).unwrap()).unwrap();
        assert!(answer(&source.open(&options())).unwrap() == expected);
    }
}

#[test]
fn experts_that_do_not_fit_into_memory_come_when_they_are_chosen() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for spec in
        [qwen3moe(), Spec { layers: 6, ..mixture(Spec::gpt_oss().moe.unwrap(), Spec::gpt_oss()) }]
    {
        let (path, _) = spec.write(folder.path());
        let expected = answer(&Model::open(&path, &options()).unwrap()).unwrap();
        let [memory, _] = least(&path);
        for slots in [SlotOptions::default(), SlotOptions { ring: false, ..SlotOptions::default() }]
        {
            let source = Source::new(&path, ALL);
            let model = source.open(&OpenOptions { memory: Some(memory), slots, ..options() });
            assert!(model.load_report().slots.is_some() && !source.incoming.is_complete());
            assert!(answer(&model).unwrap() == expected);
            while !source.incoming.is_complete() {
                thread::sleep(Duration::from_millis(5));
            }
            assert!(answer(&model).unwrap() == expected);
        }
    }
}

/// Bytes of the experts that were chosen, and everything else of these files.
fn needed(files: &[PathBuf], model: &Model, chosen: &str) -> u64 {
    let (mut all, mut of_experts) = (0, 0);
    for file in files {
        let bytes = std::fs::read(file).unwrap();
        let gguf = parse(&bytes[..]).unwrap();
        let experts = gguf.tensors.iter().filter(|t| t.name.contains("_exps"));
        of_experts += experts.map(|t| t.nbytes).sum::<u64>();
        all += bytes.len() as u64;
    }
    let experts = (model.spec().layers.len() * 16) as u64;
    let visits = chosen.lines().skip(2).map(|line| line.split(' ').count() as u64 - 1);
    all - of_experts + of_experts / experts * visits.sum::<u64>()
}

#[test]
fn before_the_first_token_only_what_it_needs_is_received() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (whole, shards) = sharded(folder.path(), &qwen3moe(), 3);
    let prompt = tokens(2, 300, 3);
    let first = |model: &Model| {
        let mut session = Session::new(model, &SessionOptions::default()).unwrap();
        session.feed(&prompt).map(bits)
    };
    let model = Model::open(&whole, &options()).unwrap();
    model.record_experts();
    let expected = first(&model).unwrap();
    let chosen = model.recorded_experts().to_string();
    for files in [vec![whole], shards] {
        let needed = needed(&files, &model, &chosen);
        let all: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
        assert!(needed < all / 2, "{needed} of {all}");
        // A source that has no more than a tenth more to send.
        let source = Source::of(&files, needed + needed / 10);
        let (incoming, over) = (Arc::clone(&source.incoming), Arc::clone(&source.over));
        let patience = thread::spawn(move || {
            for _ in 0..6000 {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
            incoming.queue().fail("it needs more");
        });
        let model = source.open(&options());
        assert!(model.is_incoming() && model.load_report().reason().contains("being received"));
        // Time in which nothing may come that the answer does not need.
        thread::sleep(Duration::from_millis(50));
        assert!(first(&model).unwrap() == expected);
        assert!(source.received() <= needed + needed / 10);
        // All of it comes after that, without another step.
        source.quota.store(ALL, Ordering::Relaxed);
        while source.maps.iter().any(|map| map.incoming().is_some()) {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!model.is_incoming());
        drop((model, source));
        patience.join().unwrap();
    }
}

#[test]
fn a_model_that_is_not_asked_anything_is_received_when_that_is_wanted() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = qwen3moe().write(folder.path());
    let source = Source::new(&path, ALL);
    let model = source.open(&options());
    thread::sleep(Duration::from_millis(100));
    assert!(source.received() < source.incoming.len() / 2);
    model.receive_rest();
    while !source.incoming.is_complete() {
        thread::sleep(Duration::from_millis(5));
    }
    // Several sequences, which choose most experts of each layer.
    let several = |model: &Model| {
        let mut engine = Engine::new(model, &EngineOptions::default()).unwrap();
        for i in 0..3 {
            let prompt = tokens(20, model.spec().vocab, i);
            let sampling = SamplerOptions::greedy();
            let request = Request { prompt, sampling, max_tokens: 3, ..Request::default() };
            engine.add(request).unwrap();
        }
        let mut all = Vec::new();
        let mut on_event = |_, event: Event<'_>| {
            if let Event::Token(_, logits) = event {
                all.extend(bits(logits));
            }
        };
        while engine.step(&mut on_event).unwrap() {}
        all
    };
    let again = Source::new(&path, ALL);
    assert!(several(&again.open(&options())) == several(&model));
}

#[test]
fn a_source_that_fails_ends_the_step_that_needs_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for spec in [Spec { embd: 256, ff: 512, layers: 4, ..Spec::llama() }, qwen3moe()] {
        let (path, _) = spec.write(folder.path());
        let expected = answer(&Model::open(&path, &options()).unwrap()).unwrap();
        let (mut failed, mut quota) = (0, std::fs::metadata(&path).unwrap().len() / 8);
        loop {
            let source = Source::new(&path, quota);
            let incoming = Arc::clone(&source.incoming);
            let over = Arc::clone(&source.over);
            let left = Arc::clone(&source.quota);
            let watch = thread::spawn(move || {
                // When it has stalled.
                let mut before = u64::MAX;
                while !over.load(Ordering::Relaxed) && before != incoming.missing() {
                    before = incoming.missing();
                    thread::sleep(Duration::from_millis(60));
                }
                left.store(0, Ordering::Relaxed);
                incoming.queue().fail("the hub is gone");
            });
            let model = Model::open_mapped(&source.maps, &options());
            let answered = model.and_then(|model| {
                let answered = answer(&model);
                assert!(answered.is_ok() || model.check().is_err() || answer(&model).is_err());
                answered
            });
            drop(source);
            watch.join().unwrap();
            match answered {
                Ok(bits) => break assert!(bits == expected),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(".gguf: byte "), "{text}");
                    assert!(text.ends_with("was not received: the hub is gone"), "{text}");
                }
            }
            failed += 1;
            quota = if failed < 6 { quota + quota / 2 } else { ALL };
        }
        assert!(failed > 1);
    }
}

#[test]
fn a_step_that_waits_for_a_source_can_be_cancelled_and_a_model_dropped() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = qwen3moe().write(folder.path());
    let prompt = tokens(4, 300, 9);
    let whole = Model::open(&path, &options()).unwrap();
    let mut session = Session::new(&whole, &SessionOptions::default()).unwrap();
    let expected = bits(session.feed(&prompt).unwrap());
    let all = std::fs::metadata(&path).unwrap().len();
    // It stalls in the layers, or among the experts.
    for quota in [all / 10, all / 6, all / 4] {
        let source = Source::new(&path, ALL);
        let model = source.open(&options());
        source.quota.store(quota.saturating_sub(source.received()), Ordering::Relaxed);
        let cancelled = Arc::new(AtomicBool::new(false));
        let is_cancelled = Arc::clone(&cancelled);
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        session.cancel_by(Cancel::when(move || is_cancelled.load(Ordering::Relaxed)));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                cancelled.store(true, Ordering::Relaxed);
            });
            let found = session.feed(&prompt).map(bits);
            match found {
                Err(ModelError::Cancelled) => {}
                Ok(found) => assert!(found == expected, "nothing was missing"),
                Err(error) => panic!("{error}"),
            }
        });
        cancelled.store(false, Ordering::Relaxed);
        source.quota.store(ALL, Ordering::Relaxed);
        session.truncate(0);
        assert!(bits(session.feed(&prompt).unwrap()) == expected);
    }
    // Its threads wait for bytes that do not come.
    let source = Source::new(&path, ALL);
    let model = source.open(&options());
    source.quota.store(0, Ordering::Relaxed);
    drop(model);
}
