//! Every conversion of a tensor, compared with a slow reference.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_formats::ggml::blocks::{Losses, convert};
use alight_formats::ggml::{Era, LegacyType};
use alight_formats::gguf::{self, write::Builder};
use alight_kernels::quantize::quantize_row;
use alight_kernels::{Isa, WeightType, dequantize_row};
use proptest::prelude::*;

use super::item::{Change, Elements, Item, ItemData, Order, Piece, Scales};
use super::{Files, Plan, Target};
use crate::{ConvertError, Options};

/// A target that may replace a file.
fn target<'p>(dest: &'p Path, files: &Files) -> Target<'p> {
    Target::new(dest, Options { force: true, ..Options::default() }, files.maps(), &[]).unwrap()
}

/// A tensor whose elements are split over files.
#[derive(Clone, Debug)]
struct Case {
    from: Elements,
    to: GgmlType,
    /// In blocks of 256.
    column_blocks: u64,
    rows: u64,
    /// Number of pieces along columns and rows.
    cuts: (u64, u64),
    heads: Option<u64>,
    add: f32,
    /// Bytes before each piece in its file.
    junk: u64,
}

impl Case {
    fn columns(&self) -> u64 {
        self.column_blocks * 256 * self.cuts.0
    }

    fn height(&self) -> u64 {
        self.rows * self.cuts.1
    }

    /// Returns the bytes of every row, in the source's type.
    fn source(&self, seed: u64) -> Vec<Vec<u8>> {
        let (columns, mut state) = (self.columns() as usize, seed);
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0
        };
        let row = |_| {
            let values: Vec<f32> = (0..columns).map(|_| random()).collect();
            let of = |ty: GgmlType| {
                let mut out = vec![0; ty.row_bytes(columns as u64).unwrap() as usize];
                let ty = WeightType::of(ty).unwrap();
                quantize_row(Isa::best(), ty, &values, &mut out);
                out
            };
            match self.from {
                Elements::Gguf(GgmlType::F64) => {
                    values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect()
                }
                Elements::Gguf(ty) => of(ty),
                Elements::Mxfp4Apart | Elements::Fp8 => unreachable!("have tests of their own"),
                // Any bits are valid quants; scales must be numbers.
                Elements::Legacy(era, ty) => {
                    let (block, bytes) = era.block(ty).unwrap();
                    let blocks = columns as u64 / block;
                    let mut out: Vec<u8> =
                        (0..blocks * bytes).map(|i| (i * 37 + seed) as u8).collect();
                    assert_eq!((era, ty), (Era::Pairs, LegacyType::Q4_0));
                    for (block, value) in out.chunks_exact_mut(bytes as usize).zip(&values) {
                        block[..4].copy_from_slice(&value.to_le_bytes());
                    }
                    out
                }
            }
        };
        (0..self.height()).map(row).collect()
    }

    /// Returns the expected result, row by row.
    fn expected(&self, source: &[Vec<u8>]) -> Vec<u8> {
        let (height, columns) = (self.height(), self.columns() as usize);
        let mut out = Vec::new();
        for row in 0..height {
            let row = match self.heads {
                None => row,
                Some(heads) => {
                    let head = height / heads;
                    let (number, i) = (row / head, row % head);
                    number * head + i % 2 * (head / 2) + i / 2
                }
            };
            let bytes = &source[row as usize];
            if self.add == 0.0 && self.from == Elements::Gguf(self.to) {
                out.extend(bytes);
                continue;
            }
            let mut values = vec![0.0; columns];
            let today = match self.from {
                Elements::Legacy(era, ty) => {
                    let mut made =
                        vec![0; ty.current().row_bytes(columns as u64).unwrap() as usize];
                    convert(era, ty, bytes, &mut made, &mut Losses::default()).unwrap();
                    made
                }
                Elements::Gguf(_) | Elements::Mxfp4Apart | Elements::Fp8 => bytes.clone(),
            };
            if self.add == 0.0 && self.from.current() == self.to {
                out.extend(today);
                continue;
            }
            match WeightType::of(self.from.current()) {
                Some(ty) => dequantize_row(ty, &today, &mut values),
                None => {
                    for (value, bytes) in values.iter_mut().zip(today.as_chunks().0) {
                        *value = f64::from_le_bytes(*bytes) as f32;
                    }
                }
            }
            // Adding zero would turn −0 into +0.
            if self.add != 0.0 {
                values.iter_mut().for_each(|value| *value += self.add);
            }
            let mut made = vec![0; self.to.row_bytes(columns as u64).unwrap() as usize];
            let to = WeightType::of(self.to).unwrap();
            quantize_row(Isa::best(), to, &values, &mut made);
            out.extend(made);
        }
        out
    }

    /// Cuts the rows into pieces, contiguous in the bytes of two files.
    fn pieces(&self, source: &[Vec<u8>], files: &mut [Vec<u8>; 2]) -> Vec<Piece> {
        let (columns, mut pieces) = (self.column_blocks * 256, Vec::new());
        for across in 0..self.cuts.0 {
            for down in 0..self.cuts.1 {
                let number = ((across + down) % 2) as usize;
                let file = &mut files[number];
                file.resize(file.len() + self.junk as usize, 0x5a);
                let (first_row, first_column) = (down * self.rows, across * columns);
                let offset = file.len() as u64;
                for row in &source[first_row as usize..][..self.rows as usize] {
                    let at = self.from.bytes(first_column).unwrap() as usize;
                    let len = self.from.bytes(columns).unwrap() as usize;
                    file.extend(&row[at..at + len]);
                }
                let rows = self.rows;
                let piece = Piece::new(number, offset, (rows, columns), first_row);
                pieces.push(Piece { first_column, ..piece });
            }
        }
        pieces
    }
}

fn case() -> impl Strategy<Value = Case> {
    let gguf = |ty| Just(Elements::Gguf(ty));
    let from = prop_oneof![
        gguf(GgmlType::F32),
        gguf(GgmlType::F16),
        gguf(GgmlType::BF16),
        gguf(GgmlType::F64),
        gguf(GgmlType::Q8_0),
        gguf(GgmlType::Q6_K),
        Just(Elements::Legacy(Era::Pairs, LegacyType::Q4_0)),
    ];
    let to = prop_oneof![
        Just(None),
        Just(Some(GgmlType::F32)),
        Just(Some(GgmlType::F16)),
        Just(Some(GgmlType::BF16)),
        Just(Some(GgmlType::Q4_0)),
        Just(Some(GgmlType::Q8_0)),
        Just(Some(GgmlType::Q4_K)),
    ];
    let numbers = (1_u64..4, 1_u64..140, 1_u64..4, 1_u64..4, 0_u64..3, any::<bool>(), 0_u64..70);
    (from, to, numbers).prop_map(|(from, to, numbers)| {
        let (column_blocks, rows, across, down, heads, add, junk) = numbers;
        let (heads, rows) = match heads {
            0 => (None, rows),
            // An even number of rows in each head.
            n => (Some(n), rows.next_multiple_of(2 * n)),
        };
        // The new type of a 64-bit type must be given explicitly.
        let same = match from.current() {
            GgmlType::F64 => GgmlType::F32,
            same => same,
        };
        let add = if add && !same.is_quantised() { 1.0 } else { 0.0 };
        let (cuts, to) = ((across, down), to.unwrap_or(same));
        Case { from, to, column_blocks, rows, cuts, heads, add, junk }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_tensors_come_out_as_the_slow_way_makes_them(
        cases in prop::collection::vec(case(), 1..5),
        seed in any::<u32>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut contents = [b"one".to_vec(), b"two".to_vec()];
        let (mut items, mut expected) = (Vec::new(), Vec::new());
        for (number, case) in cases.iter().enumerate() {
            let source = case.source(seed.into());
            expected.push(case.expected(&source));
            items.push(Item {
                name: format!("t{number}"),
                ne: vec![case.columns(), case.height()],
                from: case.from,
                to: case.to,
                data: ItemData::Pieces(case.pieces(&source, &mut contents)),
                heads: case.heads,
                change: if case.add == 0.0 { Change::None } else { Change::Add(case.add) },
                order: Order::Same,
            });
        }
        let paths: Vec<PathBuf> = ["a", "b"].map(|name| folder.path().join(name)).into();
        for (path, bytes) in paths.iter().zip(&contents) {
            std::fs::write(path, bytes).unwrap();
        }
        let files = Files::open(&paths, false).unwrap();
        let mut builder = Builder::with_alignment(4096);
        builder.str("general.architecture", "none");
        let plan = Plan::new(&paths[0], builder, items).unwrap();
        let dest = folder.path().join("made");
        // With many threads, pieces of the file are small: most tensors span several.
        plan.write(&files, &target(&dest, &files), 48, &mut |_| ControlFlow::Continue(())).unwrap();
        let made = std::fs::read(&dest).unwrap();
        prop_assert_eq!(made.len() as u64, plan.len);
        let parsed = gguf::parse(&made).unwrap();
        for (number, expected) in expected.iter().enumerate() {
            let tensor = parsed.tensor(&format!("t{number}")).unwrap();
            prop_assert_eq!(tensor.offset % 4096, 0);
            let found = &made[tensor.offset as usize..][..tensor.nbytes as usize];
            prop_assert!(found == expected, "tensor {number}: {:?}", cases[number]);
        }
        let data: u64 = parsed.tensors.iter().map(|tensor| tensor.nbytes).sum();
        let gaps = made.iter().filter(|byte| **byte != 0).count() as u64;
        prop_assert!(gaps <= parsed.header_len + data, "what is between tensors is zero");
    }
}

/// The values of MXFP4's four bits, by the format's definition.
const FP4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[test]
fn blocks_whose_scales_are_elsewhere_and_every_other_row() {
    const EXPERTS: u64 = 3;
    const ROWS: u64 = 10;
    const BLOCKS: u64 = 5;
    let folder = tempfile::tempdir().unwrap();
    let random = |i: u64, by: u64| (i.wrapping_mul(by) >> 7) as u8;
    let blocks: Vec<u8> = (0..EXPERTS * ROWS * BLOCKS * 16).map(|i| random(i, 40_503)).collect();
    // Powers of two that f16 cannot represent.
    let scales: Vec<u8> = (0..EXPERTS * ROWS * BLOCKS).map(|i| 100 + random(i, 977) % 60).collect();
    let numbers: Vec<f32> = (0..EXPERTS * ROWS).map(|i| i as f32).collect();
    let numbers: Vec<u8> = numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
    let paths: Vec<PathBuf> = ["a", "b", "c"].map(|name| folder.path().join(name)).into();
    for (path, bytes) in paths.iter().zip([&blocks, &scales, &numbers]) {
        std::fs::write(path, [b"xyz", &bytes[..]].concat()).unwrap();
    }
    let files = Files::open(&paths, false).unwrap();
    for (first, step) in [(0, 1), (0, 2), (1, 2)] {
        let taken = ROWS / step;
        let piece = |expert: u64| {
            let row = expert * ROWS + first;
            let (offset, stride) = (3 + row * BLOCKS, step * BLOCKS);
            let piece = Piece::new(0, 3 + row * BLOCKS * 16, (taken, BLOCKS * 32), expert * taken);
            let scales = Some(Scales { file: 1, offset, stride });
            Piece { stride: Some(step * BLOCKS * 16), scales, ..piece }
        };
        let item = |name: &str, to| Item {
            name: name.into(),
            ne: vec![BLOCKS * 32, taken, EXPERTS],
            from: Elements::Mxfp4Apart,
            to,
            data: ItemData::Pieces((0..EXPERTS).map(piece).collect()),
            heads: None,
            change: Change::None,
            order: Order::Same,
        };
        let bias = Piece::new(2, 3 + 4 * first, (taken * EXPERTS, 1), 0);
        let bias = Piece { stride: Some(4 * step), ..bias };
        let bias = Item {
            ne: vec![taken, EXPERTS],
            from: Elements::Gguf(GgmlType::F32),
            data: ItemData::Pieces(vec![bias]),
            ..item("bias", GgmlType::F32)
        };
        let items = vec![item("same", GgmlType::MXFP4), item("wide", GgmlType::F32), bias];
        let plan = Plan::new(&paths[0], Builder::with_alignment(4096), items).unwrap();
        let dest = folder.path().join("made");
        plan.write(&files, &target(&dest, &files), 5, &mut |_| ControlFlow::Continue(())).unwrap();
        let made = std::fs::read(&dest).unwrap();
        let parsed = gguf::parse(&made).unwrap();
        let floats = |name: &str| -> Vec<f32> {
            let tensor = parsed.tensor(name).unwrap();
            let bytes = &made[tensor.offset as usize..][..tensor.nbytes as usize];
            match tensor.ty {
                GgmlType::F32 => {
                    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
                }
                _ => {
                    let mut out = vec![0.0; bytes.len() / 17 * 32];
                    dequantize_row(WeightType::of(tensor.ty).unwrap(), bytes, &mut out);
                    out
                }
            }
        };
        let (mut expected, mut of_bias) = (Vec::new(), Vec::new());
        for row in (0..EXPERTS * ROWS).filter(|row| row % step == first) {
            of_bias.push(row as f32);
            for at in row * BLOCKS * 32..(row + 1) * BLOCKS * 32 {
                let code = blocks[at as usize / 2] >> (4 * (at % 2)) & 15;
                let value = FP4[usize::from(code & 7)] * if code > 7 { -1.0 } else { 1.0 };
                expected.push(value * 2f32.powi(i32::from(scales[at as usize / 32]) - 127));
            }
        }
        assert_eq!(floats("same"), expected, "{first} {step}");
        assert_eq!(floats("wide"), expected, "{first} {step}");
        assert_eq!(floats("bias"), of_bias);
    }
}

#[test]
fn matrices_of_experts_that_stand_transposed() {
    const EXPERTS: u64 = 3;
    // Of the source: rows that become columns, and columns, of which the second half is used.
    const ROWS: u64 = 96;
    const COLUMNS: u64 = 2 * 150;
    let folder = tempfile::tempdir().unwrap();
    let value = |i: u64| (i.wrapping_mul(40_503) % 65_521) as f32 / 1000.0;
    let count = EXPERTS * ROWS * COLUMNS;
    let values: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    let path = folder.path().join("a");
    std::fs::write(&path, [b"xyz", &values[..]].concat()).unwrap();
    let files = Files::open(std::slice::from_ref(&path), false).unwrap();
    let taken = COLUMNS / 2;
    let piece = |expert: u64| {
        let offset = 3 + 4 * (expert * ROWS * COLUMNS + taken);
        Piece { across: Some(4 * COLUMNS), ..Piece::new(0, offset, (taken, ROWS), expert * taken) }
    };
    let item = |name: &str, to| Item {
        name: name.into(),
        ne: vec![ROWS, taken, EXPERTS],
        from: Elements::Gguf(GgmlType::F32),
        to,
        data: ItemData::Pieces((0..EXPERTS).map(piece).collect()),
        heads: None,
        change: Change::None,
        order: Order::Same,
    };
    let items = vec![item("same", GgmlType::F32), item("short", GgmlType::Q8_0)];
    let plan = Plan::new(&path, Builder::with_alignment(4096), items).unwrap();
    let dest = folder.path().join("made");
    plan.write(&files, &target(&dest, &files), 5, &mut |_| ControlFlow::Continue(())).unwrap();
    let made = std::fs::read(&dest).unwrap();
    let parsed = gguf::parse(&made).unwrap();
    let (mut same, mut short) = (Vec::new(), Vec::new());
    for expert in 0..EXPERTS {
        for column in taken..COLUMNS {
            let at = |row| (expert * ROWS + row) * COLUMNS + column;
            let row: Vec<f32> = (0..ROWS).map(|row| value(at(row))).collect();
            let mut blocks = vec![0; ROWS as usize / 32 * 34];
            quantize_row(Isa::best(), WeightType::Q8_0, &row, &mut blocks);
            same.extend(row.iter().flat_map(|value| value.to_le_bytes()));
            short.extend(blocks);
        }
    }
    for (name, expected) in [("same", same), ("short", short)] {
        let tensor = parsed.tensor(name).unwrap();
        let found = &made[tensor.offset as usize..][..tensor.nbytes as usize];
        assert!(found == expected, "{name}");
    }
    // Elements that cannot be separated have no columns.
    let blocks = Item { from: Elements::Gguf(GgmlType::Q8_0), ..item("blocks", GgmlType::Q8_0) };
    assert!(Plan::new(&path, Builder::with_alignment(4096), vec![blocks]).is_err());
}

/// A vector, and incomplete tensors.
#[test]
fn vectors_of_heads_alternate_too_and_what_is_not_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    std::fs::write(&path, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let files = Files::open(std::slice::from_ref(&path), true).unwrap();
    let piece = Piece::new(0, 0, (1, 12), 0);
    let from = Elements::Gguf(GgmlType::F32);
    let item = |pieces: Vec<Piece>, heads| Item {
        name: "q.bias".into(),
        ne: vec![12],
        from,
        to: GgmlType::F32,
        data: ItemData::Pieces(pieces),
        heads,
        change: Change::None,
        order: Order::Same,
    };
    let plan = |item| Plan::new(&path, Builder::with_alignment(4096), vec![item]);
    let dest = folder.path().join("made");
    let made = plan(item(vec![piece], Some(2))).unwrap();
    made.write(&files, &target(&dest, &files), 2, &mut |_| ControlFlow::Continue(())).unwrap();
    let bytes = std::fs::read(&dest).unwrap();
    let found: Vec<f32> =
        bytes[4096..][..48].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(found, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);

    let short = Piece { columns: 11, ..piece };
    let far = Piece { first_column: 1, ..piece };
    for (pieces, heads) in [
        (vec![], None),
        (vec![short], None),
        (vec![far], None),
        (vec![piece, piece], None),
        (vec![Piece { offset: u64::MAX - 3, ..piece }], None),
        (vec![piece], Some(0)),
        (vec![piece], Some(4)),
        (vec![piece], Some(5)),
    ] {
        let error = plan(item(pieces, heads)).err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("q.bias")));
    }
    let missing = Piece { offset: 4, ..piece };
    let made = plan(item(vec![missing], None)).unwrap();
    let error = made.write(&files, &target(&dest, &files), 2, &mut |_| ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("byte 4"));
    assert_eq!(std::fs::read(&dest).unwrap(), bytes, "the old file is there");
}

#[test]
fn a_weight_that_is_none_or_too_large_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let dest = folder.path().join("made");
    for (weight, to, part) in [
        (f32::NAN, GgmlType::Q8_0, "not a number"),
        (f32::INFINITY, GgmlType::BF16, "infinite"),
        (70_000.0, GgmlType::F16, "70000"),
    ] {
        let mut values = [1.0_f32; 64];
        values[40] = weight;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(&path, bytes).unwrap();
        let files = Files::open(std::slice::from_ref(&path), false).unwrap();
        let item = Item {
            name: "blk.0.x.weight".into(),
            ne: vec![32, 2],
            from: Elements::Gguf(GgmlType::F32),
            to,
            data: ItemData::Pieces(vec![Piece::new(0, 0, (2, 32), 0)]),
            heads: None,
            change: Change::None,
            order: Order::Same,
        };
        let plan = Plan::new(&path, Builder::with_alignment(4096), vec![item]).unwrap();
        let error =
            plan.write(&files, &target(&dest, &files), 1, &mut |_| ControlFlow::Continue(()));
        let text = error.unwrap_err().to_string();
        assert!(text.contains(part) && text.contains("blk.0.x.weight"), "{text}");
        assert!(!dest.exists());
    }
}

#[test]
fn a_matrix_that_is_transposed_as_a_whole_is_no_longer_than_a_row_may_be() {
    let side = 1 << 12;
    // A tensor of this size, in an empty file.
    let item = |side: u64| Item {
        name: "blk.0.attn_k_b.weight".into(),
        ne: vec![side, side, 1],
        from: Elements::Gguf(GgmlType::BF16),
        to: GgmlType::BF16,
        data: ItemData::Pieces(vec![Piece::new(0, 0, (1, side * side), 0)]),
        heads: None,
        change: Change::None,
        order: Order::Transposed { rows: side, columns: side },
    };
    let plan = |side| Plan::new(Path::new("model"), Builder::new(), vec![item(side)]);
    assert!(plan(side / 2).is_ok());
    let error = plan(side).err().unwrap();
    assert!(matches!(error, ConvertError::LongRow { found: 0x400_0000, .. }), "{error}");
}

#[test]
fn rows_may_come_in_any_order_and_once() {
    let item = |pieces: &[(u64, u64)]| Item {
        name: "experts".into(),
        ne: vec![4, 6],
        from: Elements::Gguf(GgmlType::F32),
        to: GgmlType::F32,
        data: ItemData::Pieces(
            pieces.iter().map(|(first, rows)| Piece::new(0, 0, (*rows, 4), *first)).collect(),
        ),
        heads: None,
        change: Change::None,
        order: Order::Same,
    };
    let fits = |pieces| Plan::new(Path::new("model"), Builder::new(), vec![item(pieces)]).is_ok();
    assert!(fits(&[(0, 2), (2, 1), (3, 3)]) && fits(&[(3, 3), (0, 2), (2, 0), (2, 1)]));
    for pieces in [&[(0, 2), (1, 2), (4, 2)], &[(4, 2), (0, 3), (2, 1)], &[(0, 3), (3, 0), (3, 2)]]
    {
        assert!(!fits(pieces), "{pieces:?}");
    }
}
