//! Blocks of old eras into GGUF's: both sides are decoded in f64 by their definitions, and agree value
//! for value, exactly or up to the rounding of scales to f16.

use alight_formats::ggml::blocks::{BlockError, BlockUpgrade, Losses, convert};
use alight_formats::ggml::{Era, LegacyType};
use proptest::prelude::*;

const ERAS: [Era; 4] = [Era::Rows, Era::Pairs, Era::Halves, Era::Current];
use LegacyType as T;

/// An f16 by its definition.
fn half(b: &[u8]) -> f64 {
    let bits = u16::from_le_bytes([b[0], b[1]]);
    let fraction = f64::from(bits & 0x3ff);
    let size = match bits >> 10 & 31 {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
    };
    if bits & 0x8000 == 0 { size } else { -size }
}

fn single(b: &[u8]) -> f64 {
    f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// x rounded to f16 by its definition: to a multiple of the step at its size, ties to even.
fn rounded(x: f64) -> f64 {
    let exponent = (x.abs().log2().floor() as i32).max(-14);
    let step = 2_f64.powi(exponent - 10);
    if x == 0.0 { x } else { (x / step).round_ties_even() * step }
}

/// The parts of one block: scale, minimum, quants as they are multiplied.
struct Block {
    d: f64,
    m: f64,
    q: Vec<f64>,
}

/// A row of blocks before, for each type by the table of the eras.
fn before(era: Era, ty: T, row: &[u8]) -> Vec<Block> {
    let (len, bytes) = era.block(ty).unwrap();
    let (len, bytes) = (len as usize, bytes as usize);
    let blocks = row.len() / bytes;
    let block = |index: usize| {
        let b = &row[index * bytes..][..bytes];
        let nibbles = |qs: &[u8], less: f64, fifth: u32| -> Vec<f64> {
            let value = |i: usize| {
                let q = match era {
                    Era::Halves => qs[i % 16] >> (i / 16 * 4),
                    _ => qs[i / 2] >> (i % 2 * 4),
                };
                f64::from(u32::from(q & 15) | (fifth >> i & 1) << 4) - less
            };
            (0..len).map(value).collect()
        };
        let fifth = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        match (era, ty) {
            (Era::Rows, T::Q4_0) => Block {
                d: single(&row[index * 4..]),
                m: 0.0,
                q: nibbles(&row[blocks * 4 + index * 16..], 8.0, 0),
            },
            (Era::Rows, T::Q4_1) => Block {
                m: single(&row[index * 4..]),
                d: single(&row[blocks * 4 + index * 4..]),
                q: nibbles(&row[blocks * 8 + index * 16..], 0.0, 0),
            },
            (_, T::Q4_0) => Block { d: single(b), m: 0.0, q: nibbles(&b[4..], 8.0, 0) },
            (_, T::Q4_1) => Block { d: single(b), m: single(&b[4..]), q: nibbles(&b[8..], 0.0, 0) },
            (_, T::Q4_2) => Block { d: half(b), m: 0.0, q: nibbles(&b[2..], 8.0, 0) },
            (_, T::Q4_3) => Block { d: half(b), m: half(&b[2..]), q: nibbles(&b[4..], 0.0, 0) },
            (_, T::Q5_0) => Block { d: half(b), m: 0.0, q: nibbles(&b[6..], 16.0, fifth(2)) },
            (_, T::Q5_1) => {
                Block { d: half(b), m: half(&b[2..]), q: nibbles(&b[8..], 0.0, fifth(4)) }
            }
            (_, T::Q8_0) => {
                let q = b[4..].iter().map(|q| f64::from(*q as i8)).collect();
                Block { d: single(b), m: 0.0, q }
            }
            other => panic!("{other:?}"),
        }
    };
    (0..blocks).map(block).collect()
}

/// A block after, as GGUF has it (halves).
fn after(ty: T, b: &[u8]) -> Block {
    let nibbles = |qs: &[u8], less: f64, fifth: u32| -> Vec<f64> {
        let nibble = |i: usize| u32::from(qs[i % 16] >> (i / 16 * 4) & 15);
        (0..32).map(|i| f64::from(nibble(i) | (fifth >> i & 1) << 4) - less).collect()
    };
    let fifth = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    match ty {
        T::Q4_0 => Block { d: half(b), m: 0.0, q: nibbles(&b[2..], 8.0, 0) },
        T::Q4_1 => Block { d: half(b), m: half(&b[2..]), q: nibbles(&b[4..], 0.0, 0) },
        T::Q5_0 => Block { d: half(b), m: 0.0, q: nibbles(&b[6..], 16.0, fifth(2)) },
        T::Q5_1 => Block { d: half(b), m: half(&b[2..]), q: nibbles(&b[8..], 0.0, fifth(4)) },
        _ => {
            let q = b[2..].iter().map(|q| f64::from(*q as i8)).collect();
            Block { d: half(b), m: 0.0, q }
        }
    }
}

/// Where the numbers of a row lie, and whether they are f32.
fn numbers(era: Era, ty: T, blocks: usize) -> (Vec<usize>, bool) {
    let bytes = era.block(ty).unwrap().1 as usize;
    let each = |offsets: &[usize]| {
        (0..blocks).flat_map(|i| offsets.iter().map(move |at| i * bytes + at)).collect()
    };
    match (era, ty) {
        (Era::Rows, T::Q4_0) => ((0..blocks).map(|i| i * 4).collect(), true),
        (Era::Rows, T::Q4_1) => ((0..2 * blocks).map(|i| i * 4).collect(), true),
        (_, T::Q4_0 | T::Q8_0) => (each(&[0]), true),
        (_, T::Q4_1) => (each(&[0, 4]), true),
        (_, T::Q4_2 | T::Q5_0) => (each(&[0]), false),
        _ => (each(&[0, 2]), false),
    }
}

/// A number for a scale: ordinary, very small, exact, or at the edge of f16.
fn scale() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -1.0_f32..1.0,
        2 => -65519.0_f32..65519.0,
        2 => -7e-5_f32..7e-5,
        1 => Just(0.0_f32), 1 => Just(-0.0_f32), 1 => Just(1e-30_f32), 1 => Just(65504.0_f32),
        1 => (0_u32..0x477f_e000).prop_map(f32::from_bits),
        1 => (0_u16..0x7c00).prop_map(|bits| half(&bits.to_le_bytes()) as f32),
    ]
}

fn small_half() -> impl Strategy<Value = u16> {
    // Up to 2048: what Q4_2 and Q4_3 decode to then fits f16.
    (0_u16..0x6800, any::<bool>()).prop_map(|(size, minus)| size | u16::from(minus) << 15)
}

/// An era and type whose blocks change, and a row of them.
fn row() -> impl Strategy<Value = (Era, T, Vec<u8>)> {
    let changed = ERAS.iter().flat_map(|era| T::ALL.iter().map(move |ty| (*era, *ty)));
    let changed: Vec<(Era, T)> = changed
        .filter(|(era, ty)| !matches!(era.upgrade(*ty), None | Some(BlockUpgrade::Copy)))
        .collect();
    (proptest::sample::select(changed), 1_usize..5).prop_flat_map(|((era, ty), blocks)| {
        let bytes = blocks * era.block(ty).unwrap().1 as usize;
        let raw = prop::collection::vec(any::<u8>(), bytes);
        let singles = prop::collection::vec(scale(), 2 * blocks);
        let halves = prop::collection::vec(small_half(), 2 * blocks);
        (raw, singles, halves).prop_map(move |(mut raw, singles, halves)| {
            let (places, wide) = numbers(era, ty, blocks);
            for (i, at) in places.into_iter().enumerate() {
                match wide {
                    true => raw[at..at + 4].copy_from_slice(&singles[i].to_le_bytes()),
                    false => raw[at..at + 2].copy_from_slice(&halves[i].to_le_bytes()),
                }
            }
            (era, ty, raw)
        })
    })
}

fn run(era: Era, ty: T, row: &[u8]) -> Result<(Vec<u8>, Losses), BlockError> {
    let (len, bytes) = era.block(ty).unwrap();
    let elements = row.len() as u64 / bytes * len;
    let mut out = vec![0xcc; era.sizes(ty, elements).unwrap().1 as usize];
    let mut losses = Losses::default();
    convert(era, ty, row, &mut out, &mut losses).map(|()| (out, losses))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn values_stay_what_they_were((era, ty, row) in row()) {
        let (out, losses) = run(era, ty, &row).unwrap();
        let old = before(era, ty, &row);
        let (mut count, mut lost, mut gone, mut small) = (0, 0, 0, 0);
        let mut check = |old: f64, new: f64| {
            assert_eq!(new, rounded(old));
            assert_eq!(new.is_sign_negative(), old.is_sign_negative());
            count += 1;
            lost += u64::from(new != old);
            gone += u64::from(new != old && new == 0.0);
            small += u64::from(new != old && new != 0.0 && old.abs() < 2_f64.powi(-14));
        };
        if let T::Q4_2 | T::Q4_3 = ty {
            let values = old.iter().flat_map(|b| b.q.iter().map(|q| (q * b.d, b.m)));
            for (new, (product, m)) in out.chunks_exact(2).zip(values) {
                // In f32, as it was computed then; the product is exact in it.
                let then = if ty == T::Q4_3 { product as f32 + m as f32 } else { product as f32 };
                check(f64::from(then), half(new));
            }
        } else {
            let bytes = ty.current().block_bytes() as usize;
            assert_eq!(out.len(), old.len() * bytes);
            for (new, old) in out.chunks_exact(bytes).zip(&old) {
                let new = after(ty, new);
                assert_eq!(&new.q, &old.q);
                if era.upgrade(ty) == Some(BlockUpgrade::Move) {
                    assert_eq!((new.d.to_bits(), new.m.to_bits()), (old.d.to_bits(), old.m.to_bits()));
                } else {
                    check(old.d, new.d);
                    if ty == T::Q4_1 {
                        check(old.m, new.m);
                    }
                }
            }
        }
        let expected = Losses { numbers: count, rounded: lost, subnormal: small, vanished: gone, not_finite: 0 };
        assert_eq!(losses, expected);
    }

    #[test]
    fn any_bytes_and_any_room_are_an_error_or_a_result(
        era in proptest::sample::select(&ERAS[..]),
        ty in proptest::sample::select(&T::ALL[..]),
        row in prop::collection::vec(any::<u8>(), 0..200),
        room in 0_usize..400,
    ) {
        let _ = convert(era, ty, &row, &mut vec![0; room], &mut Losses::default());
    }
}

/// All that happens to a scale, counted: see class 10 of the malformed inputs.
#[test]
fn scales_that_do_not_fit_are_told() {
    let row = |d: f32| [&d.to_le_bytes()[..], &[0xff; 16]].concat();
    let losses = |d: f32| run(Era::Halves, T::Q4_0, &row(d)).unwrap().1;
    let none = Losses { numbers: 1, ..Losses::default() };
    assert_eq!(losses(0.5), none);
    assert_eq!(losses(2.0_f32.powi(-24)), none); // subnormal and exact
    assert_eq!(losses(0.1), Losses { rounded: 1, ..none });
    assert_eq!(losses(1.1e-6), Losses { rounded: 1, subnormal: 1, ..none });
    assert_eq!(losses(-1e-9), Losses { rounded: 1, vanished: 1, ..none });
    assert_eq!(losses(f32::NAN), Losses { not_finite: 1, ..none });
    assert_eq!(losses(f32::NEG_INFINITY), Losses { not_finite: 1, ..none });
    assert_eq!(run(Era::Halves, T::Q4_0, &row(f32::NEG_INFINITY)).unwrap().0[..2], [0, 0xfc]);
    assert_eq!(losses(65519.0), Losses { rounded: 1, ..none });

    for (era, ty) in ERAS.iter().flat_map(|era| T::ALL.iter().map(move |ty| (*era, *ty))) {
        if era.upgrade(ty) != Some(BlockUpgrade::Rescale) {
            continue;
        }
        let bytes = era.block(ty).unwrap().1 as usize;
        let (places, _) = numbers(era, ty, 3);
        for (index, at) in places.iter().enumerate() {
            let mut row = vec![0; bytes * 3];
            row[*at..at + 4].copy_from_slice(&(-65520.0_f32).to_le_bytes());
            let block = match (era, ty) {
                (Era::Rows, _) => index % 3,
                (_, T::Q4_1) => index / 2,
                _ => index,
            };
            let found = -65520.0;
            assert_eq!(run(era, ty, &row), Err(BlockError::TooLarge { ty, block, found }));
        }
    }
    // 15 times the largest f16 is no f16.
    let wide = [&[0xff_u8, 0x7b, 0, 0][..], &[0xff; 8]].concat();
    let error = run(Era::Pairs, T::Q4_3, &wide).unwrap_err();
    assert!(
        matches!(error, BlockError::TooLarge { block: 0, .. }) && error.to_string().contains("F32")
    );
}

#[test]
fn what_is_gguf_s_already_is_copied_to_the_bit() {
    let mut copies = 0;
    for (era, ty) in ERAS.iter().flat_map(|era| T::ALL.iter().map(move |ty| (*era, *ty))) {
        let Some((elements, bytes)) = era.block(ty) else {
            let error = convert(era, ty, &[], &mut [], &mut Losses::default());
            assert_eq!(error, Err(BlockError::NoSuchType { ty, era }));
            assert_eq!((era.upgrade(ty), era.sizes(ty, 256)), (None, None));
            continue;
        };
        assert_eq!(era.sizes(ty, elements).map(|sizes| sizes.0), Some(bytes));
        assert!(ty != T::F32 || era.sizes(ty, u64::MAX / 2).is_none());
        if elements > 1 {
            assert_eq!(era.sizes(ty, elements + 1), None);
        }
        if era.upgrade(ty) == Some(BlockUpgrade::Copy) {
            let row: Vec<u8> = (0..bytes * 3).map(|i| (i * 37 + 255) as u8).collect();
            assert_eq!(run(era, ty, &row), Ok((row, Losses::default())));
            copies += 1;
        }
    }
    // F32 and F16 four times, Q5 once more, and Q4, Q5, Q8 and K-quants of today.
    assert_eq!(copies, 8 + 2 + 10);
    let room = convert(Era::Pairs, T::Q5_0, &[0; 22], &mut [0; 21], &mut Losses::default());
    assert_eq!(room, Err(BlockError::Length { ty: T::Q5_0, found: 21, expected: 22 }));
    let part = convert(Era::Pairs, T::Q5_0, &[0; 23], &mut [0; 22], &mut Losses::default());
    assert_eq!(part, Err(BlockError::PartialBlock { ty: T::Q5_0, found: 23, block: 22 }));
}
