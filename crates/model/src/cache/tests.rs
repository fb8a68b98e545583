//! Random lives of sequences, in a cache whose layers have windows: every row finds at every position that it sees what was computed there.

use alight_kernels::Isa;
use alight_kernels::attention::{KvShape, KvType, Window};

use super::*;

/// Keys and values that are small, in a page.
pub(super) const SMALL: KvShape = KvShape {
    kv_heads: 1,
    k_dim: 16,
    v_dim: 16,
    capacity: POSITIONS,
    shared: false,
    ty: KvType::F16,
};
const SLIDING: usize = 100;
const CHUNK: usize = 192;
const MAX_LEN: usize = 1500;
const SEQUENCES: usize = 3;

/// A layer that keeps all positions, one with a window, a window of a layer that uses the keys and values of that one, and perhaps a state.
fn cache(kept: usize, state: usize) -> Cache {
    let layer = |shape, window| LayerCache { shape, window, state: 0 };
    let layers = [
        layer(Some(SMALL), None),
        layer(Some(SMALL), Some(Window::Sliding(SLIDING))),
        layer(None, Some(Window::Chunk(CHUNK))),
        LayerCache { state, ..layer(None, None) },
    ];
    let positions = MAX_LEN.next_multiple_of(POSITIONS) * SEQUENCES;
    Cache::new(positions, SEQUENCES, kept, &layers, NeededFor::Sequence).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize * n) >> 31
    }
}

/// For each of some tokens a number that f16 has, and that depends on it and all tokens before it.
fn summaries(tokens: &[u32]) -> Vec<f32> {
    let next = |hash: &mut u32, token: &u32| {
        *hash = (*hash ^ token).wrapping_mul(0x9e37_79b1);
        Some((*hash >> 21) as f32)
    };
    tokens.iter().scan(7u32, next).collect()
}

/// The number of all of some tokens.
fn summary(tokens: &[u32]) -> f32 {
    summaries(tokens).last().copied().unwrap_or_default()
}

/// The number that a cache holds of a sequence for a layer at a position.
fn stored(cache: &Cache, layer: usize, sequence: usize, position: usize) -> f32 {
    let table = cache.sequences[sequence].table(layer == 1);
    let page = cache.pools.of_layer(layer).bytes_of(table[position / POSITIONS]);
    let at = 2 * (position % POSITIONS / 16 * 256 + position % 16);
    let mut number = [0.0];
    alight_kernels::vec::widen_f16(
        Isa::SCALAR,
        &[u16::from_le_bytes([page[at], page[at + 1]])],
        &mut number,
    );
    number[0]
}

/// Computes `tokens` of a sequence from `from` on, in parts, and checks what each row sees.
fn compute(cache: &mut Cache, sequence: usize, tokens: &[u32], from: usize, part: usize) {
    let mut start = from;
    let expected = summaries(tokens);
    while start < tokens.len() {
        let end = tokens.len().min(start + part);
        assert!(cache.prepare(sequence, start, end));
        for (position, number) in expected.iter().enumerate().take(end).skip(start) {
            let row = [*number; 16];
            for layer in [0, 1] {
                let writer = cache.writers(layer)(sequence);
                // SAFETY: one thread.
                unsafe { writer.store(Isa::SCALAR, position, &row, &row) };
            }
            if !cache.sequences[sequence].states.is_empty() {
                cache.state(3, sequence).fill(row[0]);
            }
        }
        for position in start..end {
            let first = (position + 1).saturating_sub(SLIDING).min(position / CHUNK * CHUNK);
            for (layer, first) in [(0, 0), (1, first)] {
                // All of some, and the edges of all.
                let step = if position == end - 1 { 1 } else { 37 };
                for seen in (first..=position).step_by(step).chain([position]) {
                    let found = stored(cache, layer, sequence, seen);
                    assert_eq!(found, expected[seen], "{seen} of {position}, layer {layer}");
                }
            }
        }
        let held = cache.sequences[sequence].window.held().len();
        assert!(held <= (2 * CHUNK + part) / POSITIONS + 3, "{held} pages");
        start = end;
    }
}

/// The tokens of some prompt: they begin like others, up to where one of a few of them differs.
fn prompt(random: &mut Random) -> Vec<u32> {
    let (len, parts) = (1 + random.below(MAX_LEN - 200), [0, 200, 450, 451, 830]);
    let from = parts[random.below(parts.len())];
    let kind = random.below(2) as u32;
    (0..len as u32).map(|i| if i as usize >= from { i + 10_000 * kind } else { i }).collect()
}

fn live(seed: u64, kept: usize, state: usize) -> usize {
    let mut cache = cache(kept, state);
    let mut random = Random(seed);
    let mut all: [(Vec<u32>, Indexed); SEQUENCES] = Default::default();
    let mut reused = 0;
    for _ in 0..120 {
        let sequence = random.below(SEQUENCES);
        let (tokens, indexed) = &mut all[sequence];
        match random.below(8) {
            0 => {
                cache.clear(sequence);
                tokens.clear();
                *indexed = Indexed::default();
            }
            1..4 => {
                // A prompt of an engine: it continues where the index ends, and a place or two are kept.
                cache.clear(sequence);
                *tokens = prompt(&mut random);
                *indexed = Indexed::default();
                let mut from = 0;
                let reusable = &tokens[..tokens.len() - 1];
                if let Some((found, of)) = cache.adopt(sequence, "", reusable, 0) {
                    assert!(found.positions <= found.attended && found.attended < tokens.len());
                    reused += found.positions;
                    (from, *indexed) = (found.positions, of);
                    if state > 0 {
                        let now = cache.state(3, sequence)[0];
                        assert_eq!(now, summary(&tokens[..from]), "the state after {from}");
                    }
                }
                let part = 1 + random.below(300);
                let cut = (from + random.below(tokens.len() - from)).next_multiple_of(POSITIONS);
                for to in [cut.min(tokens.len()), tokens.len()] {
                    if to > from {
                        compute(&mut cache, sequence, &tokens[..to], from, part);
                        from = to;
                    }
                    let rest = state == 0 && to == tokens.len();
                    cache.add(sequence, "", &tokens[..to], rest, indexed);
                    if to.is_multiple_of(POSITIONS) || rest {
                        cache.keep_windows(sequence, indexed, indexed.last_page(), to);
                        cache.keep_states(sequence, indexed);
                    }
                }
                assert!(cache.kept_bytes() <= kept.max(cache.touched()), "its limit");
            }
            4..6 => {
                let from = tokens.len();
                let more = random.below(MAX_LEN.saturating_sub(from).min(180) + 1);
                tokens.extend((0..more).map(|_| random.below(50) as u32 + 50_000));
                let part = if random.below(2) == 0 { 1 } else { 100 };
                compute(&mut cache, sequence, tokens, from, part);
            }
            6 => cache.save_place(sequence, tokens.len()),
            _ => {
                let computed = tokens.len();
                let n = random.below(computed + 1);
                let place = cache.sequences[sequence].places.latest_within(n);
                let place = place.map_or(0, |place| place.position);
                let left = cache.go_back(sequence, n);
                assert!(left == n || left == place, "{left} of {n}, with a place at {place}");
                let draft = state == 0 && n + POSITIONS > computed;
                assert!(left == n || !draft, "{left} of {n} of {computed}");
                if state > 0 {
                    let at = if left == 0 { 0.0 } else { summary(&tokens[..left]) };
                    assert_eq!(cache.state(3, sequence)[0], at);
                }
                tokens.truncate(left);
                // The index has the rows of prompts.
                *indexed = Indexed::default();
            }
        }
    }
    cache.forget();
    assert_eq!(cache.kept_bytes(), 0);
    for pool in [&mut cache.pools.full, &mut cache.pools.window] {
        let free = (0..pool.count()).filter(|_| pool.take().is_some()).count();
        assert_eq!(free, pool.count(), "every page is free at the end");
    }
    reused
}

#[test]
fn every_row_finds_what_it_sees() {
    let mut reused = [0; 3];
    for seed in 0..8 {
        reused[0] += live(seed, 1 << 28, 0);
        reused[1] += live(seed, 40 * 16_384, 0);
        reused[2] += live(seed, 1 << 28, 5);
    }
    assert!(reused.iter().all(|reused| *reused > 5000), "{reused:?}");
}

#[test]
fn a_prompt_continues_after_each_of_its_last_tokens() {
    let mut cache = cache(1 << 30, 0);
    let tokens: Vec<u32> = (0..1000).collect();
    let mut indexed = Indexed::default();
    compute(&mut cache, 0, &tokens, 0, 300);
    cache.add(0, "", &tokens, true, &mut indexed);
    cache.keep_windows(0, &indexed, indexed.last_page(), tokens.len());
    // The answer writes to a copy of the last page, and gives back the pages of the window.
    let answer: Vec<u32> = (0..1400).collect();
    compute(&mut cache, 0, &answer, 1000, 1);
    cache.clear(0);
    let mut found = |n: usize| {
        let found = cache.adopt(1, "", &tokens[..n], 0).map_or(0, |(found, _)| found.positions);
        compute(&mut cache, 1, &tokens, found, 100);
        found
    };
    assert_eq!([1000, 999, 961].map(&mut found), [1000, 999, 961]);
    assert_eq!([700, 500].map(&mut found), [0, 0], "nothing is kept there");
}

#[test]
fn an_answer_is_cut_where_a_prompt_ended() {
    let mut cache = cache(0, 0);
    let tokens: Vec<u32> = (0..1200).collect();
    compute(&mut cache, 0, &tokens[..500], 0, 256);
    cache.save_place(0, 500);
    compute(&mut cache, 0, &tokens[..560], 500, 1);
    assert_eq!(cache.go_back(0, 510), 510, "the place has what was given back");
    compute(&mut cache, 0, &tokens[..900], 510, 1);
    assert_eq!(cache.go_back(0, 840), 840, "a draft");
    assert_eq!(cache.go_back(0, 620), 500, "too far: what follows the place is gone");
    compute(&mut cache, 0, &tokens, 500, 64);
    assert_eq!(cache.go_back(0, 300), 0);
    compute(&mut cache, 0, &tokens, 0, 512);
}

#[test]
#[should_panic(expected = "a window from 200 on")]
fn a_row_that_sees_what_was_given_back_is_not_computed() {
    let mut cache = cache(0, 0);
    let tokens: Vec<u32> = (0..1200).collect();
    compute(&mut cache, 0, &tokens, 0, 100);
    cache.prepare(0, 200, 201);
}

/// The memory of a sequence at depth, of the shapes of published models: bytes of a position on average, and the share of what all layers of all
/// positions have. `cargo test -p alight-model --lib cache::tests::depth -- --nocapture` prints them.
#[test]
fn depth_costs_little_more_than_the_layers_that_see_all() {
    // Layers that keep all, their elements of a position; the same of those with a window, and its width.
    let shapes = [
        ("Gemma 3 270M", ([3, 512], [15, 512], 512), 25.0),
        ("gpt-oss 20B", ([12, 1024], [12, 1024], 128), 54.0),
        ("Gemma 4 26B", ([5, 2048], [25, 4096], 1024), 25.0),
    ];
    for (name, ([full, wide], [windowed, narrow], window), most) in shapes {
        let shape = |elements: usize| KvShape {
            kv_heads: 1,
            k_dim: elements / 2,
            v_dim: elements / 2,
            capacity: POSITIONS,
            shared: false,
            ty: KvType::F16,
        };
        let layer =
            |elements, window| LayerCache { shape: Some(shape(elements)), window, state: 0 };
        let window = Some(Window::Sliding(window));
        let layers = [vec![layer(wide, None); full], vec![layer(narrow, window); windowed]];
        for depth in [4096, 32_768, 131_072] {
            let mut cache = Cache::new(depth, 1, 0, &layers.concat(), NeededFor::Sequence).unwrap();
            for from in (0..depth).step_by(512) {
                assert!(cache.prepare(0, from, from + 512));
                if (from + 512).is_multiple_of(2048) {
                    cache.save_place(0, from + 512);
                }
            }
            let (kept, all) = (cache.touched(), depth * 2 * (full * wide + windowed * narrow));
            let share = 100.0 * kept as f64 / all as f64;
            eprintln!("{name}, {depth} positions: {} bytes each, {share:.1} %", kept / depth);
            assert!(depth < 32_768 || share < most, "{name}, {depth}: {share:.1} %");
        }
    }
}
