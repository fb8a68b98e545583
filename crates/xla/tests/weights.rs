//! Products, rows and attention as XLA calls them, by a stand-in for XLA: results are the kernels' own, on any number of
//! threads that come when they like; and whatever a place, an attribute or a shape says, nothing outside is read.
//! With the real one, and real models: `bindings/python/tests/test_native.py`.

use std::sync::LazyLock;

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Queries, Tile, Window, attend_tile, kv_store,
};
use alight_kernels::tiles::pack;
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, matmul,
};
use alight_xla::api::{code, data_type};

use crate::standin::{Array, Attr, Call, Threads};

const ALL: [Threads; 5] =
    [Threads::None, Threads::Inline, Threads::Late, Threads::Real, Threads::Slow];

/// Numbers that look random.
fn noise(count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    })
}

fn floats(count: usize, seed: u64) -> Vec<f32> {
    noise(count, seed).map(|n| (n % 2001) as f32 / 1000.0 - 1.0).collect()
}

/// Blocks of small numbers: any bytes whose f16 fields are neither infinite nor NaN.
fn blocks(ty: WeightType, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    noise(ty.row_bytes(cols).unwrap() * rows, seed).map(|n| n as u8 & 0x2f).collect()
}

/// A file of these matrices after an odd number of other bytes, and their places.
fn file(matrices: &[(WeightType, Layout, Vec<u8>)]) -> (Vec<u8>, Vec<u32>) {
    let (mut bytes, mut places) = (vec![0xff; 77], Vec::new());
    for (ty, layout, data) in matrices {
        let id = ty.ggml().id();
        places.extend([bytes.len() as u32, 0, id, u32::from(*layout == Layout::Tiles)]);
        bytes.extend(data);
    }
    (bytes, places)
}

fn array_of(bytes: &[u8]) -> Array {
    Array::new(data_type::U8, &[bytes.len() as i64], bytes)
}

fn words(dims: &[i64], values: &[u32]) -> Array {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    Array::new(data_type::U32, dims, &bytes)
}

fn nan(dims: &[i64]) -> Array {
    Array::f32s(dims, &vec![f32::NAN; dims.iter().product::<i64>() as usize])
}

const ROWS: [usize; 3] = [200, 64, 112];
const COLS: usize = 512;

/// The file of `products` and the places in it, made once: it is asked for a thousand times.
static MATRICES: LazyLock<(Array, Array)> = LazyLock::new(|| {
    let types = [
        (WeightType::Q4_1, Layout::Rows),
        (WeightType::Q6_K, Layout::Tiles),
        (WeightType::BF16, Layout::Tiles),
    ];
    let matrices: Vec<_> = types
        .iter()
        .zip(ROWS)
        .map(|((ty, layout), rows)| {
            let canonical = blocks(*ty, rows, COLS, rows as u64);
            let mut data = canonical.clone();
            if *layout == Layout::Tiles {
                pack(*ty, COLS, &canonical, &mut data);
            }
            (*ty, *layout, data)
        })
        .collect();
    let (bytes, places) = file(&matrices);
    (array_of(&bytes), words(&[3, 4], &places))
});

/// Three matrices on two ranks: uneven rows, the last matrix on the first rank only; the first half of the columns, and
/// the second.
fn products(device: i32, tokens: i64, threads: Threads) -> Call {
    let (file, places) = &*MATRICES;
    let integers = |values: &[i64]| Attr::Integers(values.to_vec());
    Call {
        target: "alight_matmul",
        device,
        threads,
        arguments: vec![
            file.clone(),
            places.clone(),
            Array::f32s(&[tokens, 300], &floats(tokens as usize * 300, 5)),
        ],
        results: [110, 40, 112].map(|slots| nan(&[tokens, slots])).to_vec(),
        aliases: vec![],
        attributes: vec![
            ("devices", integers(&[30, 10, 8, 9])),
            ("rows", integers(&ROWS.map(|rows| rows as i64))),
            ("cols", Attr::Integer(COLS as i64)),
            ("row_start", integers(&[0, 100, 5, 24, 0, 112])),
            ("row_count", integers(&[100, 100, 40, 40, 112, 0])),
            ("col_start", integers(&[0, 256])),
            ("col_count", integers(&[256, 256])),
            ("threads", Attr::Integer(4)),
        ],
    }
}

/// What the kernels give for it.
fn expected(call: &Call, rank: usize) -> Vec<Vec<f32>> {
    let Attr::Integers(starts) = &call.attributes[3].1 else { unreachable!() };
    let Attr::Integers(counts) = &call.attributes[4].1 else { unreachable!() };
    let file = call.arguments[0].bytes();
    let places: Vec<u32> = call.arguments[1]
        .bytes()
        .chunks_exact(4)
        .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
        .collect();
    let x = call.arguments[2].floats();
    let tokens = call.arguments[2].dims[0] as usize;
    let mut all = Vec::new();
    for (i, rows) in ROWS.into_iter().enumerate() {
        let [at, _, id, layout] = places[4 * i..][..4] else { unreachable!() };
        let ty = WeightType::from_gguf(id).unwrap();
        let layout = if layout == 1 { Layout::Tiles } else { Layout::Rows };
        let data = &file[at as usize..][..rows * ty.row_bytes(COLS).unwrap()];
        let w = Matrix::with_layout(layout, ty, data, rows, COLS).unwrap();
        let w = w.columns(256 * rank..256 * rank + 256).unwrap();
        let mut act = Activations::new(tokens, 256);
        act.begin(Isa::best(), RowCounts::of_call(tokens), 256, ActivationFormats::of([w.kind()]));
        (0..tokens).for_each(|t| act.put(t, &x[300 * t..][..256]));
        let slots = call.results[i].dims[1] as usize;
        let (start, count) = (starts[2 * i + rank] as usize, counts[2 * i + rank] as usize);
        let mut y = vec![0.0; tokens * rows];
        let out = Output::new(&mut y, rows);
        // SAFETY: one thread.
        unsafe { matmul(&w, 0..rows, &act, out, &mut MatmulScratch::new()) };
        let mut result = vec![0.0; tokens * slots];
        for (result, y) in result.chunks_exact_mut(slots).zip(y.chunks_exact(rows)) {
            result[..count].copy_from_slice(&y[start..start + count]);
        }
        all.push(result);
    }
    all
}

fn same(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[test]
fn products_are_the_kernels_on_any_threads() {
    for (device, rank) in [(30, 0), (10, 1), (8, 0), (9, 1)] {
        for tokens in [1, 3, 90] {
            let expected = expected(&products(device, tokens, Threads::None), rank);
            for threads in ALL {
                for _ in 0..8 {
                    let found = products(device, tokens, threads).run().unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        let what = format!("rank {rank}, {tokens} tokens, {threads:?}");
                        assert!(same(&found.floats(), expected), "{what}");
                    }
                }
            }
        }
    }
}

/// Calls one after the other on several devices at once.
#[test]
fn calls_of_several_devices_share_threads() {
    let expected = [
        expected(&products(30, 1, Threads::None), 0),
        expected(&products(10, 1, Threads::None), 1),
    ];
    std::thread::scope(|scope| {
        for (device, expected) in [(30, &expected[0]), (10, &expected[1]), (8, &expected[0])] {
            scope.spawn(move || {
                for _ in 0..300 {
                    let found = products(device, 1, Threads::Real).run().unwrap();
                    for (found, expected) in found.iter().zip(expected) {
                        assert!(same(&found.floats(), expected), "device {device}");
                    }
                }
            });
        }
    });
}

/// More tokens than are held at a time.
#[test]
fn many_tokens_are_computed_in_parts() {
    let call = products(30, 1100, Threads::Real);
    let expected = expected(&call, 0);
    for (found, expected) in call.run().unwrap().iter().zip(&expected) {
        assert!(same(&found.floats(), expected));
    }
}

/// A rank without columns multiplies nothing.
#[test]
fn no_columns_give_zeros() {
    let mut call = products(10, 2, Threads::Real);
    call.set("col_count", Attr::Integers(vec![256, 0]));
    for result in call.run().unwrap() {
        assert!(result.floats().iter().all(|y| y.to_bits() == 0));
    }
}

fn refused(call: Call, text: &str) {
    let (found, message) = call.run().unwrap_err();
    assert!(found == code::INVALID_ARGUMENT && message.contains(text), "{message}, not: {text}");
    assert!(message.starts_with("alight_"), "{message}");
}

#[test]
fn places_that_lie_are_errors() {
    let places = |matrix: usize, index: usize, value: u32| {
        let mut call = products(30, 1, Threads::None);
        let mut bytes = call.arguments[1].bytes().to_vec();
        bytes[4 * (4 * matrix + index)..][..4].copy_from_slice(&value.to_ne_bytes());
        call.arguments[1] = Array::new(data_type::U32, &[3, 4], &bytes);
        call
    };
    let size = products(30, 1, Threads::None).arguments[0].bytes().len();
    // One byte too far, far outside, and where sums overflow.
    let last = size - 112 * COLS * 2;
    places(2, 0, last as u32).run().unwrap();
    refused(
        places(2, 0, last as u32 + 1),
        &format!(
            "matrix 2 of 3: 112 rows of 1024 bytes (BF16) at byte {}, where the file has {size} bytes",
            last + 1
        ),
    );
    refused(places(0, 0, u32::MAX), "at byte 4294967295");
    refused(places(1, 1, 1), "matrix 1 of 3: 64 rows");
    let mut call = places(1, 1, u32::MAX);
    let mut bytes = call.arguments[1].bytes().to_vec();
    bytes[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
    call.arguments[1] = Array::new(data_type::U32, &[3, 4], &bytes);
    refused(call, "at byte 18446744073709551615");
    for ty in [4, 5, 9, 15, 24, 28, 31, 38, 64, 1 << 30, u32::MAX] {
        refused(
            places(0, 2, ty),
            &format!(
                "matrix 0 of 3: type {ty} of GGUF has no kernels, expected one of 0 (F32), 1 (F16)"
            ),
        );
    }
    refused(places(0, 3, 3), "layout 3, expected 0 (rows), 1 (tiles) or 2 (planes)");
    refused(places(0, 3, 2), "200 rows of Q4_1 have no packed form");
    refused(places(0, 3, 1), "200 rows of Q4_1 have no packed form");
    refused(places(1, 2, 0), "64 rows of F32 have no packed form");
}

#[test]
fn attributes_and_shapes_that_cannot_work_are_errors() {
    let with = |name: &str, values: &[i64]| {
        let mut call = products(30, 1, Threads::None);
        let value = if matches!(name, "cols" | "threads") {
            Attr::Integer(values[0])
        } else {
            Attr::Integers(values.to_vec())
        };
        call.set(name, value);
        call
    };
    refused(with("devices", &[1, 2]), "device 30 is not among the ranks [1, 2]");
    refused(with("devices", &[30, 1, 2]), "3 devices, expected a multiple of the 2 ranks");
    refused(with("devices", &[]), "0 devices");
    refused(with("rows", &[200, 64]), "'rows' has 2 elements, expected 3");
    refused(with("rows", &[200, 64, -1]), "'rows' has -1, expected 0 or more");
    refused(with("rows", &[i64::MAX, 64, 112]), "where the file has");
    refused(
        with("rows", &[99, 64, 112]),
        "rows of matrix 0: 100 from 0 on for rank 0, where the matrix has 99",
    );
    refused(
        with("cols", &[480]),
        "matrix 1 of 3: 480 columns of Q6_K, expected whole blocks of 256",
    );
    refused(with("cols", &[i64::MAX]), "of Q4_1");
    refused(
        with("row_start", &[i64::MAX, 0, 0, 0, 0, 0]),
        "rows of matrix 0: 100 from 9223372036854775807 on",
    );
    refused(
        with("row_count", &[111, 100, 40, 40, 112, 0]),
        "matrix 0 of 3: 111 rows of this rank, where the result has 110",
    );
    refused(
        with("col_start", &[257, 256]),
        "columns: 256 from 257 on for rank 0, where the matrix has 512",
    );
    refused(
        with("col_start", &[16, 256]),
        "matrix 0 of 3: columns 16..272 of 512 are no whole blocks of Q4_1",
    );
    refused(
        with("col_start", &[32, 256]),
        "matrix 1 of 3: columns 32..288 of 512 are no whole blocks of Q6_K",
    );
    refused(with("col_count", &[320, 256]), "320 columns of this rank, where x has 300");
    refused(with("threads", &[-1]), "'threads' is -1");
    let broken = |change: fn(&mut Call)| {
        let mut call = products(30, 2, Threads::None);
        change(&mut call);
        call
    };
    refused(broken(|call| drop(call.arguments.pop())), "2 arguments, expected file, places and x");
    refused(broken(|call| drop(call.results.pop())), "places is [3, 4], expected [2, 4]");
    refused(
        broken(|call| call.arguments[0].dtype = data_type::F32),
        "file has elements of XLA's type 11, expected 6 (uint8)",
    );
    refused(broken(|call| call.arguments[2].dims = vec![600]), "x is [600], expected 2 dimensions");
    refused(
        broken(|call| call.results[1].dims = vec![1, 80]),
        "a result is [1, 80], expected [2, 80]",
    );
    refused(
        broken(|call| call.arguments[1].dims = vec![4, 3]),
        "places is [4, 3], expected [3, 4]",
    );
    let mut call = products(30, 1, Threads::None);
    call.attributes.pop();
    refused(call, "the attribute 'threads' is missing");
}

fn rows_of(ids: &[i32], scale: f32) -> Call {
    let data = blocks(WeightType::Q5_1, 48, 96, 9);
    let (bytes, places) = file(&[(WeightType::Q5_1, Layout::Rows, data)]);
    let tokens: Vec<u8> = ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
    Call {
        target: "alight_embed",
        device: 0,
        threads: Threads::None,
        arguments: vec![
            array_of(&bytes),
            words(&[4], &places),
            Array::new(data_type::S32, &[ids.len() as i64], &tokens),
        ],
        results: vec![nan(&[ids.len() as i64, 96])],
        aliases: vec![],
        attributes: vec![
            ("rows", Attr::Integer(48)),
            ("cols", Attr::Integer(96)),
            ("scale", Attr::Float(scale)),
        ],
    }
}

#[test]
fn rows_are_dequantised() {
    let data = blocks(WeightType::Q5_1, 48, 96, 9);
    let w = Matrix::new(WeightType::Q5_1, &data, 48, 96).unwrap();
    for scale in [1.0, 3.3] {
        let found = rows_of(&[47, 0, 7, 7], scale).run().unwrap().remove(0).floats();
        for (id, found) in [47, 0, 7, 7].into_iter().zip(found.chunks_exact(96)) {
            let mut row = [0.0; 96];
            w.dequantize_row(id, &mut row);
            assert!(same(found, &row.map(|w| w * scale)), "{id}");
        }
    }
    assert!(rows_of(&[], 1.0).run().unwrap()[0].floats().is_empty());
    refused(rows_of(&[0, 48], 1.0), "token 48, expected one of 0..48");
    refused(rows_of(&[-1], 1.0), "token -1, expected one of 0..48");
    let mut call = rows_of(&[1], 1.0);
    call.set("rows", Attr::Integer(49));
    refused(call, "the matrix: 49 rows of 72 bytes (Q5_1) at byte 77");
    let mut call = rows_of(&[1], 1.0);
    call.set("cols", Attr::Integer(64));
    refused(call, "the result is [1, 96], expected [1, 64]");
    let mut call = rows_of(&[1], 1.0);
    call.arguments[1] = words(&[2], &[0, 0]);
    refused(call, "expected [1, 4]");
}

const SHAPE: KvShape =
    KvShape { kv_heads: 2, k_dim: 32, v_dim: 48, capacity: 1024, shared: false, ty: KvType::F16 };
const LAYERS: usize = 3;

/// Of six query heads: weights of next to nothing, and of nearly all.
const SINKS: [f32; 6] = [0.5, -20.0, 9.0, -1.0, 3.5, 2.0];

/// Keys and values of all layers, made once.
static CACHES: LazyLock<(Array, Array)> = LazyLock::new(|| {
    let cache = |length: usize, seed| -> Array {
        let halves = floats(LAYERS * length, seed);
        let bytes: Vec<u8> = halves
            .iter()
            .flat_map(|x| alight_kernels::half::f32_to_f16(*x).to_ne_bytes())
            .collect();
        Array::new(data_type::F16, &[LAYERS as i64, length as i64], &bytes)
    };
    (cache(SHAPE.k_len(), 3), cache(SHAPE.v_len(), 4))
});

/// Six query heads on two.
fn attention(tokens: usize, pos: i32, window: i32, threads: Threads) -> Call {
    let t = tokens as i64;
    let (keys, values) = CACHES.clone();
    Call {
        target: "alight_attend",
        device: 0,
        threads,
        arguments: vec![
            Array::f32s(&[t, 192], &floats(tokens * 192, 6)),
            Array::f32s(&[t, 64], &floats(tokens * 64, 7)),
            Array::f32s(&[t, 96], &floats(tokens * 96, 8)),
            keys.clone(),
            values.clone(),
            Array::s32(1),
            Array::s32(pos),
            Array::s32(window),
            Array::f32s(&[6], &SINKS),
        ],
        results: vec![nan(&[t, 288]), keys, values],
        aliases: vec![(1, 3), (2, 4)],
        attributes: vec![
            ("q_heads", Attr::Integer(6)),
            ("kv_heads", Attr::Integer(2)),
            ("k_dim", Attr::Integer(32)),
            ("v_dim", Attr::Integer(48)),
            ("capacity", Attr::Integer(1024)),
            ("scale", Attr::Float(0.2)),
            ("softcap", Attr::Float(4.0)),
            ("devices", Attr::Integers(vec![0])),
            ("threads", Attr::Integer(5)),
        ],
    }
}

fn halves(array: &Array) -> Vec<u16> {
    array.bytes().chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]])).collect()
}

#[test]
fn attention_is_the_kernels_on_any_threads() {
    for (tokens, pos, window) in
        [(1, 1023, 0), (1, 0, 0), (4, 600, 333), (5, 17, 0), (130, 800, 100), (300, 20, 0)]
    {
        let call = attention(tokens, pos, window, Threads::None);
        let (mut keys, mut values) = (halves(&call.arguments[3]), halves(&call.arguments[4]));
        let [q, k, v] = [0, 1, 2].map(|i| call.arguments[i].floats());
        let (k_layer, v_layer) = (
            &mut keys[SHAPE.k_len()..2 * SHAPE.k_len()],
            &mut values[SHAPE.v_len()..2 * SHAPE.v_len()],
        );
        for t in 0..tokens {
            let at = pos as usize + t;
            kv_store(
                Isa::best(),
                &SHAPE,
                k_layer,
                v_layer,
                at,
                &k[64 * t..][..64],
                &v[96 * t..][..96],
            );
        }
        let params = AttentionParams {
            scale: 0.2,
            softcap: Some(4.0),
            window: Some(window as usize).filter(|w| *w > 0).map(Window::Sliding),
        };
        let cache = KvCache::new(SHAPE, k_layer, v_layer);
        let mut out = vec![0.0; tokens * 288];
        let limits = AttentionLimits { rows: 3 * tokens, k_dim: 32, v_dim: 48 };
        for head in 0..2 {
            let mut heads_out = HeadsOut::new(&mut out, 288);
            attend_tile(
                Isa::best(),
                &Tile {
                    params: &params,
                    cache: &cache,
                    kv_head: head,
                    q: Queries { data: &q, stride: 192 },
                    heads: 3 * head..3 * head + 3,
                    sinks: Some(&SINKS[3 * head..][..3]),
                    bias: None,
                    tokens: 0..tokens,
                    first_pos: pos as usize,
                    ahead: Ahead::Nothing,
                },
                &mut heads_out,
                &mut AttentionScratch::new(limits),
            );
        }
        let [keys, values] = [keys, values]
            .map(|halves| halves.iter().flat_map(|half| half.to_ne_bytes()).collect::<Vec<u8>>());
        let mut first: Option<Vec<f32>> = None;
        for threads in ALL {
            for _ in 0..5 {
                let found = attention(tokens, pos, window, threads).run().unwrap();
                let what = format!("{tokens} tokens at {pos}, window {window}, {threads:?}");
                assert!(found[1].bytes() == keys && found[2].bytes() == values, "{what}");
                let found = found[0].floats();
                // Cut in another way, so only as close as sums of floats are.
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-6;
                assert!(found.iter().zip(&out).all(near), "{what}");
                let first = first.get_or_insert_with(|| found.clone());
                assert!(same(&found, first), "{what}");
            }
        }
    }
}

#[test]
fn attention_that_cannot_be_is_an_error() {
    refused(
        attention(2, 1023, 0, Threads::None),
        "2 tokens from position 1023 on, where the cache holds 1024",
    );
    refused(attention(2, -1, 0, Threads::None), "'pos' has -1");
    refused(attention(2, i32::MAX, 0, Threads::None), "from position 2147483647 on");
    refused(attention(2, 0, -3, Threads::None), "'window' has -3");
    assert!(attention(2, 0, i32::MAX, Threads::None).run().is_ok());
    let sinks = |array: Array| {
        let mut call = attention(2, 0, 0, Threads::None);
        call.arguments[8] = array;
        call
    };
    refused(sinks(Array::f32s(&[5], &SINKS[..5])), "sinks is [5], expected [6]");
    refused(sinks(Array::f32s(&[2, 3], &SINKS)), "sinks is [2, 3], expected [6]");
    refused(sinks(Array::s32(1)), "sinks is [], expected [6]");
    // None, and some that are next to nothing.
    let without = sinks(Array::f32s(&[0], &[])).run().unwrap()[0].floats();
    let least = sinks(Array::f32s(&[6], &[-200.0; 6])).run().unwrap()[0].floats();
    let most = attention(2, 0, 0, Threads::None).run().unwrap()[0].floats();
    assert!(without.iter().zip(&least).all(|(a, b)| (a - b).abs() <= 2e-6));
    assert!(without.iter().zip(&most).any(|(a, b)| (a - b).abs() > 0.1));
    let with = |name: &str, value: i64| {
        let mut call = attention(2, 0, 0, Threads::None);
        call.set(name, Attr::Integer(value));
        call
    };
    refused(with("capacity", 1000), "a capacity of 1000, expected a multiple of 16");
    refused(with("capacity", 2048), "expected [layers, …] with 2 heads × 2048 positions × 32");
    refused(with("capacity", i64::MAX - 15), "2 heads × 9223372036854775792 positions");
    refused(with("kv_heads", 0), "6 query heads on");
    refused(with("kv_heads", 4), "6 query heads on");
    refused(with("q_heads", 8), "q is [2, 192], expected [2, 256]");
    refused(with("q_heads", i64::MAX - 1), "heads wider than any memory");
    refused(with("v_dim", 0), "none of these to be 0");
    let broken = |change: fn(&mut Call)| {
        let mut call = attention(2, 0, 0, Threads::None);
        change(&mut call);
        call
    };
    refused(broken(|call| call.aliases.clear()), "the cache of keys: its result is other memory");
    refused(
        broken(|call| call.aliases.truncate(1)),
        "the cache of values: its result is other memory",
    );
    refused(broken(|call| call.arguments[5] = Array::s32(3)), "layer 3 of 3");
    refused(broken(|call| call.arguments[5] = Array::s32(-1)), "'layer' has -1");
    refused(
        broken(|call| call.arguments[1].dims = vec![1, 128]),
        "k is [1, 128], expected [2, 64]",
    );
    refused(broken(|call| call.arguments[3].dims[0] = 6), "becomes");
    refused(broken(|call| call.arguments[6].dims = vec![1]), "pos is [1], expected a scalar");
}
