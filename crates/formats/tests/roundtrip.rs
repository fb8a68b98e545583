//! What the builder writes, the parser reads back the same; and whatever is done to such a file, the
//! parser answers and does not panic.

use alight_formats::GgmlType;
use alight_formats::gguf::write::{Builder, New};
use alight_formats::gguf::{Gguf, Value, parse};
use alight_formats::packed::{
    EXPERTS_KEY, EXPERTS_VERSION, LAYOUT, LAYOUT_KEY, LAYOUT_VERSION_KEY,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::raw;

/// A metadata value that owns its content.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    /// As bits, so that NaN compares.
    F32(u32),
    F64(u64),
    Bool(bool),
    Str(Vec<u8>),
    Strs(Vec<Vec<u8>>),
    U8s(Vec<u8>),
    I16s(Vec<i16>),
    I32s(Vec<i32>),
    U64s(Vec<u64>),
    F32s(Vec<u32>),
    Bools(Vec<bool>),
}

impl Owned {
    fn add(&self, key: &str, to: &mut Builder) {
        match self {
            Owned::U8(v) => to.u8(key, *v),
            Owned::I8(v) => to.i8(key, *v),
            Owned::U16(v) => to.u16(key, *v),
            Owned::I16(v) => to.i16(key, *v),
            Owned::U32(v) => to.u32(key, *v),
            Owned::I32(v) => to.i32(key, *v),
            Owned::U64(v) => to.u64(key, *v),
            Owned::I64(v) => to.i64(key, *v),
            Owned::F32(v) => to.f32(key, f32::from_bits(*v)),
            Owned::F64(v) => to.f64(key, f64::from_bits(*v)),
            Owned::Bool(v) => to.bool(key, *v),
            Owned::Str(v) => to.str(key, v),
            Owned::Strs(v) => to.strs(key, v),
            Owned::U8s(v) => to.u8s(key, v),
            Owned::I16s(v) => to.i16s(key, v),
            Owned::I32s(v) => to.i32s(key, v),
            Owned::U64s(v) => to.u64s(key, v),
            Owned::F32s(v) => {
                to.f32s(key, &v.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>())
            }
            Owned::Bools(v) => to.bools(key, v),
        };
    }

    /// What was read, in the form of `self`.
    fn of(&self, value: &Value<'_>) -> Option<Owned> {
        Some(match (self, value) {
            (Owned::U8(_), Value::U8(v)) => Owned::U8(*v),
            (Owned::I8(_), Value::I8(v)) => Owned::I8(*v),
            (Owned::U16(_), Value::U16(v)) => Owned::U16(*v),
            (Owned::I16(_), Value::I16(v)) => Owned::I16(*v),
            (Owned::U32(_), Value::U32(v)) => Owned::U32(*v),
            (Owned::I32(_), Value::I32(v)) => Owned::I32(*v),
            (Owned::U64(_), Value::U64(v)) => Owned::U64(*v),
            (Owned::I64(_), Value::I64(v)) => Owned::I64(*v),
            (Owned::F32(_), Value::F32(v)) => Owned::F32(v.to_bits()),
            (Owned::F64(_), Value::F64(v)) => Owned::F64(v.to_bits()),
            (Owned::Bool(_), Value::Bool(v)) => Owned::Bool(*v),
            (Owned::Str(_), Value::Str(v)) => Owned::Str(v.to_vec()),
            (Owned::Strs(_), Value::Array(v)) => {
                Owned::Strs(v.iter_str()?.map(<[u8]>::to_vec).collect())
            }
            (Owned::U8s(_), Value::Array(v)) => Owned::U8s(v.as_u8()?.to_vec()),
            (Owned::I16s(_), Value::Array(v)) => Owned::I16s(v.iter_i16()?.collect()),
            (Owned::I32s(_), Value::Array(v)) => Owned::I32s(v.iter_i32()?.collect()),
            (Owned::U64s(_), Value::Array(v)) => Owned::U64s(v.iter_u64()?.collect()),
            (Owned::F32s(_), Value::Array(v)) => {
                Owned::F32s(v.iter_f32()?.map(f32::to_bits).collect())
            }
            (Owned::Bools(_), Value::Array(v)) => Owned::Bools(v.iter_bool()?.collect()),
            _ => return None,
        })
    }
}

fn owned() -> impl Strategy<Value = Owned> {
    prop_oneof![
        any::<u8>().prop_map(Owned::U8),
        any::<i8>().prop_map(Owned::I8),
        any::<u16>().prop_map(Owned::U16),
        any::<i16>().prop_map(Owned::I16),
        any::<u32>().prop_map(Owned::U32),
        any::<i32>().prop_map(Owned::I32),
        any::<u64>().prop_map(Owned::U64),
        any::<i64>().prop_map(Owned::I64),
        any::<u32>().prop_map(Owned::F32),
        any::<u64>().prop_map(Owned::F64),
        any::<bool>().prop_map(Owned::Bool),
        vec(any::<u8>(), 0..20).prop_map(Owned::Str),
        vec(vec(any::<u8>(), 0..6), 0..6).prop_map(Owned::Strs),
        vec(any::<u8>(), 0..9).prop_map(Owned::U8s),
        vec(any::<i16>(), 0..9).prop_map(Owned::I16s),
        vec(any::<i32>(), 0..9).prop_map(Owned::I32s),
        vec(any::<u64>(), 0..9).prop_map(Owned::U64s),
        vec(any::<u32>(), 0..9).prop_map(Owned::F32s),
        vec(any::<bool>(), 0..9).prop_map(Owned::Bools),
    ]
}

/// The type, the blocks of a row, and the rows.
type Part = (usize, u64, u64);

#[derive(Clone, Debug)]
struct Model {
    /// As a power of two, if it is set.
    alignment: Option<u32>,
    values: Vec<Owned>,
    /// Type, blocks of the first dimension, the other dimensions.
    tensors: Vec<(usize, u64, Vec<u64>)>,
    /// After them, runs of tensors whose experts lie side by side: how many experts there are, and the tensors.
    runs: Vec<(u64, Vec<Part>)>,
}

fn model() -> impl Strategy<Value = Model> {
    let tensor = (0..GgmlType::ALL.len(), 1..3_u64, vec(1..4_u64, 0..=3));
    let part = (0..GgmlType::ALL.len(), 1..40_u64, 1..20_u64);
    let runs = prop_oneof![2 => Just(Vec::new()), 1 => vec((2..5_u64, vec(part, 2..5)), 1..3)];
    (proptest::option::of(3..13_u32), vec(owned(), 0..8), vec(tensor, 0..6), runs).prop_map(
        |(alignment, values, tensors, runs)| {
            // They begin on pages.
            let alignment = if runs.is_empty() { alignment } else { Some(12) };
            Model { alignment, values, tensors, runs }
        },
    )
}

impl Model {
    fn builder(&self) -> Builder {
        let mut out = match self.alignment {
            Some(shift) => Builder::with_alignment(1 << shift),
            None => Builder::new(),
        };
        for (index, value) in self.values.iter().enumerate() {
            value.add(&format!("key.{index}"), &mut out);
        }
        for (index, (ty, blocks, rest)) in self.tensors.iter().enumerate() {
            let ty = GgmlType::ALL[*ty];
            let shape: Vec<u64> =
                std::iter::once(blocks * ty.block_len()).chain(rest.iter().copied()).collect();
            out.tensor(&format!("tensor.{index}"), ty, &shape).unwrap();
        }
        let mut first = self.tensors.len();
        let mut pairs = Vec::new();
        for (experts, parts) in &self.runs {
            pairs.extend([first as u32, parts.len() as u32]);
            let shapes: Vec<_> = parts
                .iter()
                .map(|(ty, blocks, rows)| {
                    [blocks * GgmlType::ALL[*ty].block_len(), *rows, *experts]
                })
                .collect();
            let names: Vec<_> =
                (first..).take(parts.len()).map(|i| format!("tensor.{i}")).collect();
            let some = parts.iter().zip(&names).zip(&shapes).map(|(((ty, ..), name), shape)| New {
                name,
                ty: GgmlType::ALL[*ty],
                packed: None,
                shape,
            });
            out.side_by_side(&some.collect::<Vec<_>>()).unwrap();
            first += parts.len();
        }
        if !pairs.is_empty() {
            out.str(LAYOUT_KEY, LAYOUT).u32(LAYOUT_VERSION_KEY, EXPERTS_VERSION as u32);
            out.u32s(EXPERTS_KEY, &pairs);
        }
        out
    }

    /// How many tensors there are.
    fn count(&self) -> usize {
        self.tensors.len() + self.runs.iter().map(|(_, parts)| parts.len()).sum::<usize>()
    }

    /// How many entries of metadata there are.
    fn entries(&self) -> usize {
        let layout = if self.runs.is_empty() { 0 } else { 3 };
        self.values.len() + usize::from(self.alignment.is_some()) + layout
    }

    fn file(&self) -> Vec<u8> {
        self.builder().file(|index, data| data.fill(index as u8 + 1))
    }
}

/// Uses all that a parsed file offers.
fn use_all(file: &Gguf<'_>, bytes: &[u8]) {
    for (key, value) in &file.metadata {
        assert_eq!(file.get(key).map(Value::value_type), Some(value.value_type()));
        if let Value::Array(array) = value {
            let strings = array.iter_str().map(|items| items.map(<[u8]>::len).count());
            let numbers = array.iter_int().map(|items| items.count());
            for count in strings.into_iter().chain(numbers) {
                assert_eq!(count, array.len());
            }
        }
    }
    for tensor in &file.tensors {
        assert_eq!(tensor.data(bytes).map(|data| data.len()), Some(tensor.nbytes as usize));
        let pieces: u64 = tensor.pieces().map(|piece| piece.end - piece.start).sum();
        assert_eq!(pieces, tensor.nbytes);
        assert_eq!(file.tensor(tensor.name), Some(tensor));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn what_is_written_is_read_back(model in model()) {
        let builder = model.builder();
        let bytes = model.file();
        let file = parse(&bytes).unwrap();
        prop_assert_eq!(file.version, 3);
        prop_assert_eq!(file.alignment, model.alignment.map_or(32, |shift| 1 << shift));
        prop_assert_eq!(file.metadata.len(), model.entries());
        for (index, value) in model.values.iter().enumerate() {
            let read = file.get(&format!("key.{index}")).unwrap();
            let read = value.of(read);
            prop_assert_eq!(read.as_ref(), Some(value));
        }
        prop_assert_eq!(file.tensors.len(), model.count());
        prop_assert_eq!(file.data_start as usize, builder.header().len());
        for (index, (planned, tensor)) in builder.layout().iter().zip(&file.tensors).enumerate() {
            prop_assert_eq!(&planned.name, tensor.name);
            prop_assert_eq!(&planned.shape[..], tensor.shape());
            prop_assert_eq!((planned.ty, planned.nbytes), (tensor.ty, tensor.nbytes));
            prop_assert_eq!(file.data_start + planned.offset, tensor.offset);
            prop_assert_eq!(planned.stride, tensor.stride);
            let data = tensor.data(&bytes).unwrap();
            prop_assert!(data.iter().all(|byte| *byte == index as u8 + 1));
        }
        prop_assert_eq!(file.data_end, file.data_start + builder.data_end());
        // Nothing overlaps, and experts begin on pages.
        let mut taken: Vec<_> = file.tensors.iter().flat_map(|tensor| tensor.pieces()).collect();
        taken.sort_by_key(|piece| piece.start);
        prop_assert!(taken.windows(2).all(|two| two[0].end <= two[1].start));
        let mut first = model.tensors.len();
        for (experts, parts) in &model.runs {
            let some = &file.tensors[first..first + parts.len()];
            for expert in 0..*experts {
                let all: Vec<_> = some.iter().map(|tensor| tensor.expert(expert)).collect();
                prop_assert!(all[0].start.is_multiple_of(4096));
                prop_assert!(all.windows(2).all(|two| two[1].start - two[0].end < 128));
            }
            first += parts.len();
        }
        use_all(&file, &bytes);
    }

    #[test]
    fn copying_every_value_writes_the_same_bytes(model in model()) {
        let bytes = model.file();
        let file = parse(&bytes).unwrap();
        let mut copy = match model.alignment {
            Some(shift) => Builder::with_alignment(1 << shift),
            None => Builder::new(),
        };
        for (key, value) in &file.metadata {
            if *key != "general.alignment" {
                copy.value(key, value);
            }
        }
        for tensor in &file.tensors {
            copy.tensor(tensor.name, tensor.ty, tensor.shape()).unwrap();
        }
        let again = copy.file(|index, data| data.fill(index as u8 + 1));
        prop_assert!(!model.runs.is_empty() || again == bytes);
    }

    #[test]
    fn changed_files_never_panic(
        model in model(),
        changes in vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u8>().prop_map(|byte| vec![byte]),
            prop_oneof![Just(0), Just(1), Just(u64::MAX), Just(1 << 63), Just(1 << 31), 0..100_u64]
                .prop_map(|number| number.to_le_bytes().to_vec()),
            vec(any::<u8>(), 0..12),
        ]), 1..6),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = model.file();
        for (at, with) in changes {
            let at = at.index(bytes.len());
            let end = bytes.len().min(at + with.len());
            bytes[at..end].copy_from_slice(&with[..end - at]);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        match parse(&bytes) {
            Ok(file) => use_all(&file, &bytes),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_bytes_behind_a_good_start_never_panic(
        version in 1..4_u32,
        tensors in 0..4_u64,
        entries in 0..4_u64,
        rest in vec(any::<u8>(), 0..300),
    ) {
        let bytes = raw::Raw::new(version, tensors, entries).put(&rest).done();
        if let Ok(file) = parse(&bytes) {
            use_all(&file, &bytes);
        }
    }
}

#[test]
fn every_byte_of_a_small_file_may_take_every_value() {
    let good = raw::small();
    let mut accepted = 0;
    for at in 0..good.len() {
        let mut bytes = good.clone();
        for value in 0..=255 {
            bytes[at] = value;
            if let Ok(file) = parse(&bytes) {
                use_all(&file, &bytes);
                accepted += 1;
            }
        }
    }
    // Data and values may change, lengths and counts may not.
    assert!(accepted > 256 * 100 && accepted < 256 * good.len(), "{accepted}");
}

#[test]
fn the_builder_refuses_impossible_tensors() {
    let mut out = Builder::new();
    for (ty, shape) in [
        (GgmlType::F32, &[][..]),
        (GgmlType::F32, &[1, 1, 1, 1, 1]),
        (GgmlType::F32, &[1, 0]),
        (GgmlType::Q8_0, &[31]),
        (GgmlType::F32, &[1 << 32, 1 << 32]),
    ] {
        assert!(out.tensor("t", ty, shape).is_err(), "{ty} {shape:?}");
    }
    assert!(out.layout().is_empty());
}
