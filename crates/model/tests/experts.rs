//! Experts that are read when they are chosen: an answer has the same bits with any memory, and a file that cannot be read is an error
//! that names it.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{TensorInfo, parse};
use alight_model::{
    Engine, EngineOptions, Event, Load, LoadError, Model, ModelError, OpenOptions, PartName,
    Repack, Request, SamplerOptions, Session, SessionOptions, SlotOptions,
};
use alight_pages::evict;

#[cfg(target_os = "linux")]
use crate::disk;
use alight_testing::models::{self, Moe, Spec, tokens};
use alight_testing::packed::{new, packed};

pub fn open(path: &Path, threads: usize, memory: Option<u64>) -> Result<Model, ModelError> {
    Model::open(path, &OpenOptions { threads: Some(threads), memory, ..OpenOptions::default() })
}

/// The least memory that a model can be opened with, and how much the experts of a layer take.
pub fn least(path: &Path) -> [u64; 2] {
    match open(path, 1, Some(1)).err().expect("too little memory") {
        ModelError::Load(error) => match &*error {
            LoadError::TooFewSlots { least, always, .. } => {
                let text = error.to_string();
                assert!(text.contains("--memory 1") && text.contains(&least.to_string()), "{text}");
                [always + least, *least]
            }
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

/// Logits after a prompt, of an answer, and of a second prompt; and the logits of several sequences.
pub fn answers(model: &Model) -> Vec<u32> {
    let vocab = model.spec().vocab;
    let mut bits = Vec::new();
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    bits.extend(session.feed(&tokens(50, vocab, 1)).unwrap().iter().map(|x| x.to_bits()));
    for token in tokens(12, vocab, 2) {
        bits.extend(session.decode(token).unwrap().iter().map(|x| x.to_bits()));
    }
    bits.extend(session.feed(&tokens(7, vocab, 3)).unwrap().iter().map(|x| x.to_bits()));
    bits.extend(together(model, &EngineOptions::default(), 5, |i| Request {
        prompt: tokens(3 + 9 * i, vocab, 10 + i as u64),
        max_tokens: 4 + i,
        ..Request::default()
    }));
    bits
}

/// Tokens and logits of greedy answers to so many requests at the same time, one answer after the other.
fn together(
    model: &Model,
    options: &EngineOptions,
    count: usize,
    request: impl Fn(usize) -> Request,
) -> Vec<u32> {
    let mut engine = Engine::new(model, options).unwrap();
    let mut of: Vec<_> = (0..count)
        .map(|i| {
            let sampling = SamplerOptions::greedy();
            let request = Request { sampling, ignore_eos: true, ..request(i) };
            (engine.add(request).unwrap(), Vec::new())
        })
        .collect();
    while engine
        .step(&mut |id, event| {
            if let Event::Token(token, logits) = event {
                let answer = &mut of.iter_mut().find(|(other, _)| *other == id).unwrap().1;
                answer.push(token);
                answer.extend(logits.iter().map(|x| x.to_bits()));
            }
        })
        .unwrap()
    {}
    of.into_iter().flat_map(|(_, answer)| answer).collect()
}

fn models() -> Vec<Spec> {
    // Layers and experts enough that one layer's are much less than all, in whole blocks of a disk too.
    let quantised = |ty, spec: Spec| {
        let moe = spec.moe.map(|moe| {
            let width = if moe.latent > 0 { 768 } else { 128 };
            Moe { experts: 12, width, shared: moe.shared.min(1) * width, ..moe }
        });
        let layers = if spec.layout.is_empty() { 6 } else { spec.layers };
        Spec { ty, moe, layers, ..spec }
    };
    vec![
        quantised(GgmlType::Q8_0, Spec::qwen2moe()),
        quantised(GgmlType::Q4_0, Spec::gpt_oss()),
        quantised(GgmlType::F16, Spec::qwen3moe()),
        quantised(GgmlType::F16, Spec::nemotron_h_moe()),
        quantised(GgmlType::F16, Spec::deepseek2()),
        quantised(GgmlType::F16, Spec::llama4()),
    ]
}

#[test]
fn an_answer_has_the_same_bits_with_any_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for spec in models() {
        let (path, _) = spec.write(folder.path());
        let whole = open(&path, 2, None).unwrap();
        assert!(whole.load_report().slots.is_none());
        let expected = answers(&whole);
        let [least, layer] = least(&path);
        for (memory, threads) in [(least, 1), (least, 3), (least + layer / 2, 2)] {
            let model = open(&path, threads, Some(memory)).unwrap();
            let report = model.load_report();
            let slots = report.slots.unwrap_or_else(|| panic!("{}: no slots", spec.arch)).sizes;
            assert!(slots.slots < slots.pieces, "{}: {slots:?}", spec.arch);
            assert!(
                answers(&model) == expected,
                "{}: {memory} bytes, {threads} threads",
                spec.arch
            );
            let counts = model.load_report().slots.unwrap().counts;
            assert!(counts.wanted > counts.hits && counts.missed_bytes > 0, "{counts:?}");
            assert!(report.reason().contains("when they are chosen"), "{}", report.reason());
        }
        // Whichever way they are read, and in whichever order they come.
        let usual = SlotOptions::default();
        let ways = [
            SlotOptions { ring: false, ..usual },
            SlotOptions { direct: false, ..usual },
            SlotOptions { shuffled: Some(1), ..usual },
            SlotOptions { shuffled: Some(2), ..usual },
            // In the page cache.
            SlotOptions { shared: true, ..usual },
            SlotOptions { shared: true, shuffled: Some(3), ..usual },
        ];
        for slots in ways {
            let (threads, memory) = (Some(models::threads()), Some(least + layer / 2));
            let options = OpenOptions { threads, memory, slots, ..OpenOptions::default() };
            let model = Model::open(&path, &options).unwrap();
            assert!(answers(&model) == expected, "{}: {slots:?}", spec.arch);
        }
        // What every token reads can be locked, and experts come all the same.
        let options = OpenOptions {
            threads: Some(models::threads()),
            memory: Some(least),
            lock: true,
            ..OpenOptions::default()
        };
        let model = Model::open(&path, &options).unwrap();
        match model.wait_loaded() {
            Ok(()) => {
                let report = model.load_report();
                assert!(
                    report.bytes_locked > 0
                        && report.bytes_locked < report.files[0].weights / 2 + layer
                );
                assert!(answers(&model) == expected, "{}: locked", spec.arch);
            }
            // This user may not lock as much.
            Err(error) => assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}"),
        }
        // Two sessions at the same time take turns at the slots.
        let model = open(&path, 2, Some(least)).unwrap();
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| answers(&model)));
            both.into_iter().for_each(|one| assert!(one.join().unwrap() == expected));
        });
    }
}

/// Sequences that grow beyond what was expected take memory from slots, and give it back. Their answers have the same bits.
#[test]
fn what_is_computed_and_experts_share_one_budget() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 48, width: 512, ..Spec::qwen3moe().moe.unwrap() };
    let spec = Spec { ty: GgmlType::F16, layers: 6, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(folder.path());
    let [least, layer] = least(&path);
    let (whole, small) =
        (open(&path, 2, None).unwrap(), open(&path, 2, Some(least + 4 * layer)).unwrap());
    let sizes = || small.load_report().slots.unwrap().sizes;
    let first = sizes();
    assert!(first.slots < first.pieces && first.bytes > 3 * layer, "{first:?}");
    let long = |model: &Model, sequences: usize| {
        let options = EngineOptions { sequences, ..EngineOptions::default() };
        let answers = together(model, &options, sequences, |i| Request {
            prompt: tokens(300, model.spec().vocab, i as u64),
            max_tokens: 2,
            ..Request::default()
        });
        (answers, model.load_report().slots.map(|slots| slots.sizes))
    };
    let (_, one) = long(&small, 1);
    let (_, many) = long(&small, 12);
    let (one, many) = (one.unwrap(), many.unwrap());
    assert!(one.bytes > many.bytes && many.bytes >= layer, "{first:?}, {one:?}, {many:?}");
    let (bits, _) = long(&small, 12);
    assert!(bits == long(&whole, 12).0);
    // Each sequence of those takes as much, until only the experts of one layer have room.
    let fewer = long(&small, 4).1.unwrap();
    assert!(fewer.bytes > many.bytes, "{fewer:?}, {many:?}");
    assert!(answers(&small) == answers(&whole));
    // A short one needs no more than was expected: all is given back.
    let mut session = Session::new(&small, &SessionOptions::default()).unwrap();
    session.feed(&[1]).unwrap();
    assert_eq!(sizes(), first);
}

/// The same bits as from the file in which they lie tensor by tensor, in every way of loading and with any memory; and one read for an
/// expert that is not there.
#[test]
fn experts_side_by_side_give_the_same_bits_by_one_read_each() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut specs = models();
    // Rows that are no whole tiles stay as they are. (gpt-oss's gates and ups take turns in rows, which tiles would part.)
    let width = Moe { width: 72, ..specs[2].moe.unwrap() };
    specs.push(Spec { moe: Some(width), ..Spec { ty: GgmlType::F16, ..Spec::qwen3moe() } });
    for spec in specs.into_iter().filter(|spec| spec.arch != "gpt-oss") {
        let (source, _) = spec.write(folder.path());
        let [tensors, path] = [1, 2].map(|version| packed(&source, version));
        let arch = spec.arch;
        let expected = answers(&open(&tensors, 2, None).unwrap());
        for load in [Load::Auto, Load::Mmap, Load::Direct, Load::Read] {
            for repack in [Repack::Off, Repack::On] {
                let options = OpenOptions {
                    threads: Some(models::threads()),
                    load,
                    repack,
                    ..OpenOptions::default()
                };
                let model = Model::open(&path, &options).unwrap();
                // What is no tile in the file may become one.
                let same = model.load_report().packed == 0;
                assert!(!same || answers(&model) == expected, "{arch}: {load}, {repack:?}");
                assert!(same || repack == Repack::On, "{arch}: {load}");
                assert!(model.resident().iter().all(|part| part.resident <= Some(part.bytes)));
            }
        }
        let [least_of_tensors, _] = least(&tensors);
        let [least, layer] = least(&path);
        for (file, memory, one) in [
            (&path, least, true),
            (&path, least + layer / 2, true),
            (&tensors, least_of_tensors, false),
        ] {
            let model = open(file, 2, Some(memory)).unwrap();
            assert!(answers(&model) == expected, "{arch}: {memory} bytes");
            let slots = model.load_report().slots.unwrap();
            assert!(slots.sizes.slots < slots.sizes.pieces, "{arch}: {slots:?}");
            assert_eq!(slots.sizes.spans == 1, one, "{arch}");
            let (counts, spans) = (slots.counts, slots.sizes.spans as u64);
            assert!(counts.brought > 0, "{arch}");
            assert_eq!(counts.reads, counts.brought * spans, "{arch}: {counts:?}");
            let own = layer / slots.sizes.pieces as u64;
            assert!(counts.read_bytes >= counts.brought * own / 2, "{arch}: {counts:?}");
        }
        for slots in [
            SlotOptions { ring: false, ..SlotOptions::default() },
            SlotOptions { direct: false, ..SlotOptions::default() },
            SlotOptions { shuffled: Some(3), ..SlotOptions::default() },
        ] {
            let (threads, memory) = (Some(models::threads()), Some(least));
            let options = OpenOptions { threads, memory, slots, ..OpenOptions::default() };
            let model = Model::open(&path, &options).unwrap();
            assert!(answers(&model) == expected, "{arch}: {slots:?}");
        }
        // Which experts are there is known of each by itself.
        let model = open(&path, 2, Some(least)).unwrap();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        session.feed(&tokens(3, model.spec().vocab, 1)).unwrap();
        let resident = model.resident();
        let shares = resident.iter().flat_map(|part| &part.experts);
        assert!(shares.clone().any(|share| *share == 1.0) && shares.clone().any(|s| *s == 0.0));
    }
}

#[test]
fn only_experts_may_lie_side_by_side() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, _) = Spec { ty: GgmlType::F16, ..Spec::deepseek2() }.write(folder.path());
    let bytes = std::fs::read(&source).unwrap();
    let gguf = parse(&bytes).unwrap();
    // Matrices of heads, which are read in one run.
    let of_heads = ["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"];
    let (heads, others): (Vec<&TensorInfo<'_>>, Vec<_>) =
        gguf.tensors.iter().partition(|info| of_heads.contains(&info.name));
    assert_eq!(heads.len(), 2);
    let mut out = Builder::with_alignment(4096);
    for (key, value) in gguf.metadata.iter().filter(|(key, _)| *key != "general.alignment") {
        out.value(key, value);
    }
    out.str("alight.layout", "tiles16").u32("alight.layout.version", 2);
    out.u32s("alight.layout.experts", &[0, 2]);
    out.side_by_side(&heads.iter().map(|info| new(info, None)).collect::<Vec<_>>()).unwrap();
    for info in &others {
        out.add(new(info, None)).unwrap();
    }
    let order: Vec<_> = heads.iter().chain(&others).collect();
    let file = out.file(|i, to| to.copy_from_slice(&order[i].data(&bytes).unwrap()));
    let path = folder.path().join("heads.gguf");
    std::fs::write(&path, file).unwrap();
    let error = open(&path, 1, None).err().unwrap().to_string();
    let parts = ["heads.gguf", "blk.0.attn_", "side by side", "pack the original"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn a_file_that_is_cut_short_meanwhile_is_an_error_that_names_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 16, used: 2, width: 512, ..Moe::default() };
    let spec =
        Spec { ty: GgmlType::Q8_0, embd: 256, layers: 3, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(folder.path());
    let [least, _] = least(&path);
    let model = open(&path, 2, Some(least)).unwrap();
    model.wait_loaded().unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    session.feed(&tokens(5, model.spec().vocab, 1)).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 4).unwrap();
    let failed = (0..40).find_map(|token| session.decode(token).err()).expect("an error");
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(failed.to_string().contains(name), "{failed}");
}

/// The disk itself fails: what is past the end of the file that a filesystem is in cannot be read.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fails_meanwhile_is_an_error_that_names_the_file() {
    let mounted = match disk::mounts::in_a_file(64, &["mkfs.ext4", "-q", "-F"], "") {
        Ok(mounted) => mounted,
        Err(reason) => return eprintln!("skipped: {}", reason.trim()),
    };
    let moe = Moe { experts: 16, used: 2, width: 512, ..Moe::default() };
    let spec =
        Spec { ty: GgmlType::Q8_0, embd: 256, layers: 3, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(mounted.folder.path());
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    evict(&file).unwrap();
    let [least, _] = least(&path);
    for slots in [
        SlotOptions::default(),
        SlotOptions { ring: false, ..SlotOptions::default() },
        SlotOptions { direct: false, ..SlotOptions::default() },
    ] {
        let image = std::fs::File::options().write(true).open(mounted.image()).unwrap();
        let whole = std::fs::read(mounted.image()).unwrap();
        evict(&file).unwrap();
        let options = OpenOptions { memory: Some(least), slots, ..OpenOptions::default() };
        let model = Model::open(&path, &options).unwrap();
        model.wait_loaded().unwrap();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        session.feed(&tokens(1, model.spec().vocab, 1)).unwrap();
        image.set_len(1 << 20).unwrap();
        evict(&file).unwrap();
        let failed = (0..40).find_map(|token| session.decode(token).err()).expect("an error");
        let (name, eio) = (path.file_name().unwrap().to_str().unwrap(), libc::EIO);
        let eio = std::io::Error::from_raw_os_error(eio).to_string();
        let text = failed.to_string();
        let said = text.contains(name) && text.contains(&eio);
        std::fs::write(mounted.image(), whole).unwrap();
        assert!(said, "{slots:?}: {failed}");
        evict(&file).unwrap();
        for token in 0..5 {
            session.decode(token).expect("the disk can be read again");
        }
    }
}

/// What another process has of the page cache is used, and not copied; and who comes first notices.
#[test]
fn another_process_of_the_same_model_shares_the_page_cache() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 12, width: 512, ..Spec::qwen3moe().moe.unwrap() };
    let spec = Spec { ty: GgmlType::Q8_0, layers: 4, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(folder.path());
    let expected = answers(&open(&path, 2, None).unwrap());
    let [least, _] = least(&path);
    let first = open(&path, 2, Some(least)).unwrap();
    if !first.load_report().files.iter().all(|file| file.choice.reason.contains("of slots")) {
        return eprintln!("skipped: {}", first.load_report().reason());
    }
    assert!(answers(&first) == expected);
    let alone = first.load_report().slots.unwrap().counts;
    assert_eq!(alone.cached, 0);
    // As another process: another opening of the file.
    let second = open(&path, 2, Some(least)).unwrap();
    let reason = second.load_report().reason().to_owned();
    assert!(reason.contains("another process of this model shares"), "{reason}");
    assert!(answers(&second) == expected);
    let counts = second.load_report().slots.unwrap().counts;
    assert!(counts.cached > 0 && counts.cached == counts.brought, "{counts:?}");
    for _ in 0..8 {
        assert!(answers(&first) == expected);
    }
    let shared = first.load_report().slots.unwrap();
    assert!(shared.shared && shared.counts.cached > alone.cached, "{shared:?}");
    // Alone again, the next has slots.
    drop((first, second));
    let third = open(&path, 2, Some(least)).unwrap();
    assert!(third.load_report().reason().contains("of slots") && answers(&third) == expected);
}

/// Of a cold file that fits into memory, experts come when they are chosen, and all of them in the end.
#[test]
fn experts_of_a_cold_file_come_behind_the_rest() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 12, width: 512, ..Spec::qwen3moe().moe.unwrap() };
    let spec = Spec { ty: GgmlType::Q8_0, layers: 4, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(folder.path());
    let warm = open(&path, 2, None).unwrap();
    let expected = answers(&warm);
    assert!(!warm.brings_behind());
    drop(warm);
    let file = std::fs::File::open(&path).unwrap();
    if !evict(&file).is_ok_and(|left| left.is_proven_cold()) {
        return eprintln!("skipped: the file stays in the page cache");
    }
    let model = open(&path, 2, None).unwrap();
    let reason = model.load_report().reason().to_owned();
    assert!(reason.contains("experts come when they are chosen, the others after"), "{reason}");
    assert!(answers(&model) == expected);
    model.wait_loaded().unwrap();
    assert!(!model.brings_behind());
    for part in model.resident() {
        assert!(part.experts.iter().all(|share| *share == 1.0), "{part:?}");
    }
}

#[test]
fn it_is_known_which_experts_are_there() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 12, width: 512, ..Spec::qwen3moe().moe.unwrap() };
    let spec = Spec { ty: GgmlType::Q8_0, layers: 4, moe: Some(moe), ..Spec::qwen3moe() };
    let (path, _) = spec.write(folder.path());
    let [least, _] = least(&path);
    let model = open(&path, 2, Some(least)).unwrap();
    model.wait_loaded().unwrap();
    let names = |model: &Model| -> Vec<PartName> {
        model.resident().iter().map(|part| part.part).collect()
    };
    let mut expected = vec![PartName::Embedding];
    expected.extend((0..4).map(PartName::Layer));
    let layers = |model: &Model| -> Vec<Vec<f32>> {
        let parts = model.resident().into_iter();
        parts.filter(|part| matches!(part.part, PartName::Layer(_))).map(|p| p.experts).collect()
    };
    assert_eq!(names(&model)[..5], expected);
    // Nothing was chosen yet.
    assert_eq!(layers(&model), vec![vec![0.0; 12]; 4]);
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    session.feed(&tokens(9, model.spec().vocab, 1)).unwrap();
    let slots = model.load_report().slots.unwrap().sizes.slots;
    let there = layers(&model).concat().iter().filter(|share| **share == 1.0).count();
    assert!(there > 0 && there <= slots && slots < 48, "{there} of {slots}");
    for part in model.resident() {
        let experts = part.experts.iter().sum::<f32>() / part.experts.len().max(1) as f32;
        let resident = part.resident.unwrap();
        assert!(resident <= part.bytes, "{part:?}");
        // What is no expert was copied.
        assert!(resident as f32 >= part.bytes as f32 * experts * 0.9, "{part:?}");
        assert!(resident > 0, "{part:?}");
    }
    // In the map of a file that was just written all of it is there, unless memory is short.
    let whole = open(&path, 2, None).unwrap();
    let layers = layers(&whole);
    assert!(layers.iter().all(|experts| experts.len() == 12));
    assert!(layers.iter().flatten().all(|share| (0.0..=1.0).contains(share)));
}
