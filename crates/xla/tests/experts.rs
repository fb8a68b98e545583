//! Experts as XLA calls them, by a stand-in for XLA: those in a store give the bits of those in the file, on every rank, however they
//! lie in it and whatever of them is in memory; and what names no store, or no place, is an error.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use alight_kernels::WeightType;
use alight_pages::slots::{SlotOptions, SlotsError};
use alight_xla::api::data_type;
use alight_xla::store::{Stack, Store};

use crate::standin::{Array, Attr, Call, Threads};

const TY: WeightType = WeightType::Q8_0;
const EXPERTS: usize = 9;
const LAYERS: usize = 3;
const USED: usize = 2;
const WIDTH: usize = 96;
const COLS: usize = 64;
/// Bytes of the gates, ups and downs of an expert: all alike.
const PART: u64 = 96 * 68;
const PAGE: u64 = 4096;
const NEAR: u64 = 128;

/// Numbers that look random.
fn noise(count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    })
}

/// A model's file, on the disk and as the array that programs have, and where its experts are.
struct Model {
    path: PathBuf,
    file: Array,
    layers: Vec<[Stack; 3]>,
}

impl Model {
    /// With the parts of an expert side by side, or in three stacks.
    fn new(side_by_side: bool, name: &str) -> Model {
        let (mut at, mut layers) = (5 * PAGE, Vec::new());
        for _ in 0..LAYERS {
            let [first, step, stride] = match side_by_side {
                true => {
                    [at, PART.next_multiple_of(NEAR), (3 * PART + 2 * NEAR).next_multiple_of(PAGE)]
                }
                // Not where blocks of a disk begin.
                false => [at + 32, EXPERTS as u64 * PART + 64, PART],
            };
            let stack = |i| Stack { offset: first + i * step, bytes: PART, stride };
            layers.push([stack(0), stack(1), stack(2)]);
            let length = if side_by_side { EXPERTS as u64 * stride } else { 3 * step };
            at = (at + length).next_multiple_of(PAGE);
        }
        // Small numbers: no field of a block is infinite.
        let bytes: Vec<u8> = noise(at as usize, 3).map(|n| n as u8 & 0x2f).collect();
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("experts-{name}-{}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let file = Array::new(data_type::U8, &[bytes.len() as i64], &bytes);
        Model { path, file, layers }
    }

    fn store(
        &self,
        ranks: &[Range<usize>],
        memory: u64,
        options: SlotOptions,
    ) -> Result<Arc<Store>, SlotsError> {
        let file = File::open(&self.path).unwrap();
        let ranks: Vec<_> = ranks.iter().map(|own| (own.clone(), true)).collect();
        Store::new((&file, self.path.clone()), &self.layers, &ranks, NEAR, memory, options)
    }

    /// The places of a layer, in a store or in the file.
    fn places(&self, layer: usize, store: Option<&Store>) -> Vec<u32> {
        let place = |stack: &Stack| {
            let pages = if stack.stride == stack.bytes { 0 } else { (stack.stride / PAGE) as u32 };
            [stack.offset as u32, 0, TY.ggml().id(), 2 * pages]
        };
        let mut places: Vec<u32> = self.layers[layer].iter().flat_map(place).collect();
        places.extend([0; 12]);
        let number = store.map_or(0, Store::number);
        places.extend(match store {
            Some(_) => [number as u32, (number >> 32) as u32, layer as u32, 1],
            None => [0; 4],
        });
        places
    }

    fn call(
        &self,
        places: &[u32],
        ranks: &[Range<usize>],
        rank: usize,
        tokens: usize,
        seed: u64,
    ) -> Call {
        let words: Vec<u8> = places.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let chosen = noise(tokens, seed).flat_map(|n| {
            let first = n as usize % EXPERTS;
            [first as i32, ((first + 1 + (n >> 8) as usize % (EXPERTS - 1)) % EXPERTS) as i32]
        });
        let chosen: Vec<u8> = chosen.flat_map(i32::to_ne_bytes).collect();
        let floats = |count, seed| -> Vec<f32> {
            noise(count, seed).map(|n| (n % 2001) as f32 / 1000.0 - 1.0).collect()
        };
        let (t, k, c) = (tokens as i64, USED as i64, COLS as i64);
        let list = |of: &dyn Fn(&Range<usize>) -> usize| {
            Attr::Integers(ranks.iter().map(|r| of(r) as i64).collect())
        };
        Call {
            target: "alight_experts",
            device: rank as i32,
            threads: Threads::Inline,
            arguments: vec![
                self.file.clone(),
                Array::new(data_type::U32, &[7, 4], &words),
                Array::f32s(&[t, c], &floats(tokens * COLS, seed + 1)),
                Array::new(data_type::S32, &[t, k], &chosen),
                Array::f32s(&[t, k], &floats(tokens * USED, seed + 2)),
            ],
            results: vec![Array::f32s(&[t, c], &vec![f32::NAN; tokens * COLS])],
            aliases: vec![],
            attributes: vec![
                ("devices", Attr::Integers((0..ranks.len() as i64).collect())),
                ("experts", Attr::Integer(EXPERTS as i64)),
                ("width", Attr::Integer(WIDTH as i64)),
                ("gate", Attr::Integer(0)),
                ("first", list(&|own| own.start)),
                ("count", list(&|own| own.len())),
                ("threads", Attr::Integer(2)),
            ],
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn bits(results: &[Array]) -> Vec<u32> {
    results[0].floats().iter().map(|x| x.to_bits()).collect()
}

/// Experts of each of `n` ranks; with many, the last has none.
fn ranks(n: usize) -> Vec<Range<usize>> {
    let each = EXPERTS.div_ceil(n);
    (0..n).map(|rank| (rank * each).min(EXPERTS)..((rank + 1) * each).min(EXPERTS)).collect()
}

#[test]
fn a_store_gives_the_bits_of_the_file() {
    for (side_by_side, name) in [(true, "beside"), (false, "stacks")] {
        let model = Model::new(side_by_side, name);
        for n in [1, 2, 8] {
            let own = ranks(n);
            let usual = SlotOptions::default();
            for (options, share) in [
                (usual, 2),
                (SlotOptions { ring: false, ..usual }, 2),
                (SlotOptions { direct: false, ..usual }, 3),
                (SlotOptions { shuffled: Some(4), ..usual }, 2),
            ] {
                // Room for one layer, or for one and a half.
                let layer = EXPERTS as u64 * 3 * (PART.next_multiple_of(PAGE) + PAGE);
                let store = model.store(&own, layer * share / 2, options).unwrap();
                for round in 0..3 {
                    for layer in 0..LAYERS {
                        for (rank, tokens) in (0..n).flat_map(|rank| [(rank, 1), (rank, 40)]) {
                            let seed = (round * LAYERS + layer) as u64;
                            let of = |store| {
                                let places = model.places(layer, store);
                                bits(&model.call(&places, &own, rank, tokens, seed).run().unwrap())
                            };
                            let found = of(Some(&store));
                            assert!(found == of(None), "{name}: rank {rank} of {n}, {options:?}");
                            let some = found.iter().any(|bits| *bits != 0);
                            assert!(
                                some || own[rank].is_empty() || tokens == 1,
                                "{name}: rank {rank} of {n}"
                            );
                        }
                    }
                }
                let report = store.report();
                assert_eq!(report.len(), own.iter().filter(|own| !own.is_empty()).count());
                for (sizes, counts) in report {
                    assert_eq!(sizes.spans, if side_by_side { 1 } else { 3 });
                    assert!(
                        sizes.slots < sizes.pieces && counts.missed_bytes > 0,
                        "{sizes:?} {counts:?}"
                    );
                    assert_eq!(counts.reads, counts.brought * sizes.spans as u64);
                }
            }
        }
    }
}

/// All ranks at once, as XLA has it.
#[test]
fn ranks_do_not_wait_for_one_another() {
    let model = Model::new(true, "ranks");
    let own = ranks(4);
    let layer = EXPERTS as u64 * 5 * PAGE * 2;
    let store = model.store(&own, layer, SlotOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let (model, own, store) = (&model, &own, &store);
            scope.spawn(move || {
                for seed in 0..40 {
                    let layer = seed as usize % LAYERS;
                    let of = |store| {
                        let places = model.places(layer, store);
                        bits(&model.call(&places, own, rank, 6, seed).run().unwrap())
                    };
                    assert!(of(Some(store)) == of(None), "rank {rank}");
                }
            });
        }
    });
}

#[test]
fn what_is_no_store_is_an_error() {
    let model = Model::new(true, "errors");
    let own = ranks(2);
    let store = model.store(&own, 1 << 22, SlotOptions::default()).unwrap();
    let good = model.places(1, Some(&store));
    let run = |places: &[u32], ranks: &[Range<usize>], rank| {
        model.call(places, ranks, rank, 5, 1).run().map(drop).map_err(|(_, text)| text)
    };
    run(&good, &own, 0).unwrap();
    let with = |index: usize, value: u32| {
        let mut places = good.clone();
        places[index] = value;
        run(&places, &own, 0).unwrap_err()
    };
    for (index, value) in
        [(24, good[24] + 1000), (25, 1), (26, LAYERS as u32), (26, u32::MAX), (27, 2), (27, 0)]
    {
        let text = with(index, value);
        assert!(text.contains("expected the number of a store that is still there"), "{text}");
    }
    // The store is cut in another way than the program.
    let text = run(&good, &ranks(1), 0).unwrap_err();
    assert!(text.contains("the store of rank 0 does not have expert"), "{text}");
    let text = run(&good, &ranks(8), 7);
    assert!(text.is_ok(), "it has none, and asks for none");
    let text = run(&good, &[0..3, 3..6, 6..9], 2).unwrap_err();
    assert!(text.contains("the store of rank 2 has no experts"), "{text}");
    // Types that ask for more bytes than a part has.
    let text = with(2, WeightType::F32.ggml().id());
    assert!(text.contains("the gate of expert") && text.contains("in slots"), "{text}");
    // A way from expert to expert that is shorter than one.
    let text = with(3, 2);
    assert!(text.contains("layout 2, expected 0 (rows) or 1 (tiles)"), "{text}");
    // A file that cannot be read.
    let file = File::options().write(true).open(&model.path).unwrap();
    let fresh = model.store(&own, 1 << 22, SlotOptions::default()).unwrap();
    file.set_len(4096).unwrap();
    let text = run(&model.places(0, Some(&fresh)), &own, 0).unwrap_err();
    assert!(text.contains("experts-errors"), "{text}");
    drop(store);
    let text = run(&good, &own, 0).unwrap_err();
    assert!(text.contains("still there"), "{text}");
    assert!(matches!(
        model.store(&own, PAGE, SlotOptions::default()),
        Err(SlotsError::TooFew { .. })
    ));
}
