//! Layers that are read when they are computed: an answer has the same bits with any memory, only what does not fit is read again, and a file that
//! cannot be read is an error.

use std::fs::File;
use std::path::Path;

use alight_formats::GgmlType;
use alight_model::{Load, Model, OpenOptions, PartName, ResidentPart, SlotsReport};
use alight_pages::{Kind, evict};
use alight_testing::models::{self, Spec};

use crate::experts::{answers, least, open};

/// Models without experts, of which no layer is more than a small part.
fn models() -> Vec<Spec> {
    let large = |spec: Spec, ty| Spec { ty, embd: 256, ff: 512, layers: 12, heads: 4, ..spec };
    let llama = Spec { key_dim: 64, value_dim: 64, ..large(Spec::llama(), GgmlType::F16) };
    let gemma = large(Spec::gemma3(), GgmlType::Q8_0);
    let gemma = Spec { key_dim: 128, value_dim: 128, ..gemma };
    let hybrid = large(Spec::qwen35(), GgmlType::F16);
    vec![llama, gemma, hybrid]
}

/// The report on layers that are streamed; `None` where reads cannot go around the page cache.
fn streamed(model: &Model) -> Option<SlotsReport> {
    let report = model.load_report();
    let facts = &report.files[0].facts;
    if facts.direct_refused || facts.filesystem.kind != Kind::Local {
        assert!(report.slots.is_none());
        return None;
    }
    let slots = report.slots.unwrap_or_else(|| panic!("not streamed: {}", report.reason()));
    assert!(slots.streamed && slots.shared, "{slots:?}");
    assert!(report.reason().contains("each step reads the other"), "{}", report.reason());
    Some(slots)
}

/// The bytes of layers, and those of them that are in memory.
fn layers(model: &Model) -> [u64; 2] {
    let parts = model.resident();
    let of_layers = parts.iter().filter(|part| matches!(part.part, PartName::Layer(_)));
    of_layers.fold([0, 0], |[all, there], part: &ResidentPart| {
        [all + part.bytes, there + part.resident.unwrap_or(0)]
    })
}

fn is_possible(path: &Path) -> bool {
    let model = open(path, 1, None).unwrap();
    let facts = &model.load_report().files[0].facts;
    !facts.direct_refused && facts.filesystem.kind == Kind::Local
}

#[test]
fn an_answer_has_the_same_bits_with_any_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for spec in models() {
        let (path, _) = spec.write(folder.path());
        if !is_possible(&path) {
            return;
        }
        let whole = open(&path, 2, None).unwrap();
        assert!(whole.load_report().slots.is_none());
        let (expected, [all, _]) = (answers(&whole), layers(&whole));
        drop(whole);
        let file = File::open(&path).unwrap();
        let [least, layer] = least(&path);
        assert!(layer < all / 6, "{}: {layer} of {all}", spec.arch);
        for (memory, threads) in
            [(least, 1), (least + layer, 2), (least + all / 2, models::threads())]
        {
            // Pages that are not yet on the disk cannot be dropped.
            let is_cold = evict(&file).is_ok_and(|left| left.is_proven_cold());
            let model = open(&path, threads, Some(memory)).unwrap();
            assert!(answers(&model) == expected, "{}: {memory} bytes", spec.arch);
            let Some(SlotsReport { sizes, counts, .. }) = streamed(&model) else { return };
            assert!(sizes.slots < sizes.pieces, "{}: {sizes:?}", spec.arch);
            // Not all of it was needed again and again: what fits stays, and what does not has been dropped.
            if !is_cold {
                continue;
            }
            let [_, there] = layers(&model);
            // Small matrices always stay, and so do pages at the ends of others.
            let may = memory - least + 2 * layer + all / 8;
            assert!(there <= may, "{}: {there} bytes stay, {may} may", spec.arch);
            if memory >= least + all / 2 {
                // A third on a quiet machine; without any that stay, none.
                assert!(counts.hits > counts.wanted / 6, "{}: {counts:?}", spec.arch);
                assert!(there > all / 8, "{}: {there} bytes stay", spec.arch);
            }
        }
        // Two sessions at the same time take turns at the layers.
        let model = open(&path, 2, Some(least + layer)).unwrap();
        std::thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| answers(&model)));
            both.into_iter().for_each(|one| assert!(one.join().unwrap() == expected));
        });
    }
}

#[test]
fn layers_are_streamed_only_where_nothing_else_was_asked_for() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = models()[0].write(folder.path());
    if !is_possible(&path) {
        return;
    }
    let [least, layer] = least(&path);
    let options = OpenOptions { memory: Some(least + layer), ..OpenOptions::default() };
    for load in [Load::Mmap, Load::Read, Load::Direct] {
        let model = Model::open(&path, &OpenOptions { load, ..options }).unwrap();
        assert!(model.load_report().slots.is_none(), "{load:?}");
    }
    assert!(open(&path, 1, Some(1 << 30)).unwrap().load_report().slots.is_none());
}

/// A file that has become shorter fails the step that needs what is gone.
#[test]
fn a_file_that_loses_its_end_is_an_error() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = models()[0].write(folder.path());
    if !is_possible(&path) {
        return;
    }
    let [least, layer] = least(&path);
    let model = open(&path, 2, Some(least + layer)).unwrap();
    let options = alight_model::SessionOptions::default();
    let mut session = alight_model::Session::new(&model, &options).unwrap();
    session.decode(1).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len / 2).unwrap();
    let error = session.decode(2).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
}
