//! `unpack` gives back what `pack` was given, bit for bit: on files of every type, shape, version and
//! alignment, with junk in their padding, and on the real models. What is packed is what it should be.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use alight_convert::{ConvertError, KeptReason, Options, pack, unpack};
use alight_formats::GgmlType;
use alight_formats::gguf::{self, write::Builder};
use alight_formats::packed::{Packing, has_tiles};
use alight_kernels::{WeightType, tiles};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::*;

/// A file that is in order but as strange as a file may be.
#[derive(Clone, Debug)]
struct Strange {
    version: u32,
    /// As a power of two, and before which metadata entry it stands.
    alignment: Option<(u32, usize)>,
    values: Vec<Vec<u8>>,
    /// Type, blocks per row, rows, matrices.
    tensors: Vec<(usize, u64, u64, u64)>,
    /// How many experts there are, and of each of their tensors the type, blocks per row, and rows: after the others.
    experts: (u64, Vec<(usize, u64, u64)>),
    /// Names that the order of use knows.
    named: bool,
    /// True if padding is not zero.
    dirty: bool,
    tail: usize,
    seed: u64,
}

fn strange() -> impl Strategy<Value = Strange> {
    let rows = prop_oneof![Just(1_u64), 2..40_u64, Just(16), Just(32), Just(48), Just(17)];
    let part = (0..GgmlType::ALL.len(), 1..30_u64, rows.clone());
    let experts = (1..5_u64, prop_oneof![2 => Just(Vec::new()), 1 => vec(part, 1..=EXPERTS.len())]);
    let tensor =
        (0..GgmlType::ALL.len(), 1..4_u64, rows, prop_oneof![4 => Just(1_u64), 1 => 2..4_u64]);
    (
        prop_oneof![1 => Just(1_u32), 2 => Just(2), 4 => Just(3)],
        proptest::option::of((3..14_u32, 0..4_usize)),
        vec(vec(any::<u8>(), 0..20), 0..4),
        (vec(tensor, 0..8), experts),
        (any::<bool>(), any::<bool>(), prop_oneof![Just(0_usize), 1..5000_usize], any::<u64>()),
    )
        .prop_map(|(version, alignment, values, (tensors, experts), rest)| {
            let (named, dirty, tail, seed) = rest;
            Strange { version, alignment, values, tensors, experts, named, dirty, tail, seed }
        })
}

const NAMES: [&str; 8] = [
    "output.weight",
    "blk.1.ffn_down.weight",
    "blk.0.attn_q.weight",
    "token_embd.weight",
    "blk.0.attn_norm.weight",
    "blk.10.attn_k.bias",
    "output_norm.weight",
    "blk.0.mystery",
];

/// Names of experts' tensors, of two layers, in an order that is not that of use.
const EXPERTS: [&str; 6] = [
    "blk.0.ffn_down_exps.weight",
    "blk.0.ffn_gate_exps.bias",
    "blk.0.ffn_gate_exps.weight",
    "blk.1.ffn_gate_up_exps.weight",
    "blk.0.ffn_up_exps.weight",
    "blk.1.ffn_down_exps.weight",
];

impl Strange {
    fn bytes(&self) -> Vec<u8> {
        let mut b = Builder::new();
        if self.version == 2 {
            b.version_2();
        }
        for index in 0..=self.values.len() {
            if let Some((shift, before)) = self.alignment
                && before.min(self.values.len()) == index
            {
                b.alignment(1 << shift);
            }
            if let Some(value) = self.values.get(index) {
                b.str(&format!("key.{index}"), value);
            }
        }
        b.strs("words", &["a", "", "b"]).u64("n", 7);
        for (index, (ty, blocks, rows, matrices)) in self.tensors.iter().enumerate() {
            let ty = GgmlType::ALL[*ty];
            let name = if self.named { NAMES[index].into() } else { format!("t{index}") };
            b.tensor(&name, ty, &[blocks * ty.block_len(), *rows, *matrices]).unwrap();
        }
        for ((ty, blocks, rows), name) in self.experts.1.iter().zip(EXPERTS) {
            let ty = GgmlType::ALL[*ty];
            b.tensor(name, ty, &[blocks * ty.block_len(), *rows, self.experts.0]).unwrap();
        }
        let mut random = Random(self.seed);
        let mut out = if self.version == 1 { narrow(&b) } else { b.unpadded_header() };
        let alignment = self.alignment.map_or(32, |(shift, _)| 1 << shift);
        let dirt = |out: &mut Vec<u8>, len: usize, random: &mut Random| {
            (0..len).for_each(|_| out.push(if self.dirty { random.byte() } else { 0 }));
        };
        for planned in b.layout() {
            let padding = out.len().next_multiple_of(alignment) - out.len();
            dirt(&mut out, padding, &mut random);
            (0..planned.nbytes).for_each(|_| out.push(random.byte()));
        }
        dirt(&mut out, self.tail, &mut random);
        out
    }
}

/// The same as version 1, where lengths and counts have 32 bits.
fn narrow(b: &Builder) -> Vec<u8> {
    let header = b.unpadded_header();
    let mut file = header.clone();
    let end = b.layout().last().map_or(0, |last| last.offset + last.nbytes) as usize;
    file.resize(b.header().len() + end, 0);
    let gguf = gguf::parse(&file).unwrap();
    let mut out = b"GGUF\x01\0\0\0".to_vec();
    let string = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
    };
    out.extend((gguf.tensors.len() as u32).to_le_bytes());
    let entries: Vec<_> = gguf.metadata.iter().filter(|(key, _)| *key != "n").collect();
    out.extend((entries.len() as u32).to_le_bytes());
    for (key, value) in entries {
        string(&mut out, key.as_bytes());
        out.extend(value.value_type().id().to_le_bytes());
        match value {
            gguf::Value::U32(v) => out.extend(v.to_le_bytes()),
            gguf::Value::Str(v) => string(&mut out, v),
            gguf::Value::Array(array) => {
                out.extend(array.elem_type().id().to_le_bytes());
                out.extend((array.len() as u32).to_le_bytes());
                array.iter_str().unwrap().for_each(|s| string(&mut out, s));
            }
            other => panic!("{other:?}"),
        }
    }
    for (info, planned) in gguf.tensors.iter().zip(b.layout()) {
        string(&mut out, info.name.as_bytes());
        out.extend(info.n_dims.to_le_bytes());
        info.shape().iter().for_each(|n| out.extend((*n as u32).to_le_bytes()));
        out.extend(info.ty.id().to_le_bytes());
        out.extend(planned.offset.to_le_bytes());
    }
    out
}

/// Checks a packed file against its source, tensor by tensor.
fn check_packed(source: &[u8], packed: &[u8]) {
    let (from, to) = (gguf::parse(source).unwrap(), gguf::parse(packed).unwrap());
    assert!(to.packed && packed.len().is_multiple_of(4096) && to.alignment >= 4096);
    assert_eq!(from.tensors.len(), to.tensors.len());
    let tied = from.tensor("output.weight").is_none();
    for info in &from.tensors {
        let new = to.tensor(info.name).unwrap();
        assert_eq!((new.ne, new.n_dims, new.ty), (info.ne, info.n_dims, info.ty));
        assert!(new.stride.is_some() || new.offset.is_multiple_of(4096));
        let layer = info.name.split('.').nth(1).unwrap_or_default();
        let beside = from.tensors.iter().filter(|other| {
            let of_layer = other.name.starts_with(&format!("blk.{layer}."));
            of_layer && other.name.ends_with("_exps.weight") && other.ne[2] == info.ne[2]
        });
        let experts = info.name.ends_with("_exps.weight") && info.ne[2] > 1 && beside.count() > 1;
        assert_eq!(new.stride.is_some(), experts, "{info:?}");
        let lookup = info.name == "token_embd.weight" && !tied;
        let tiled = has_tiles(info.ty) && WeightType::of(info.ty).is_some();
        let expected = info.ne[1] % 16 == 0 && tiled && !lookup;
        assert_eq!(new.packed, expected.then_some(Packing::Tiles), "{info:?}");
        let canonical = info.data(source).unwrap();
        let mut tiled = canonical.to_vec();
        if expected {
            let ty = WeightType::of(info.ty).unwrap();
            tiles::pack(ty, info.ne[0] as usize, &canonical, &mut tiled);
        }
        assert!(*new.data(packed).unwrap() == *tiled, "{}", info.name);
    }
    // Who knows of no experts side by side reads files that have none.
    let beside = to.tensors.iter().any(|info| info.stride.is_some());
    let version = to.get_u32("alight.layout.version").unwrap();
    assert_eq!(version, Some(if beside { 2 } else { 1 }));
    // All metadata of the source, in its order, and then ours.
    let alignment = |(key, _): &&(&str, gguf::Value<'_>)| *key != "general.alignment";
    let ours = to.metadata.iter().filter(alignment);
    for (a, b) in from.metadata.iter().filter(alignment).zip(ours.clone()) {
        assert_eq!((a.0, a.1.to_string()), (b.0, b.1.to_string()));
    }
    let theirs = from.metadata.iter().filter(alignment).count();
    assert!(ours.skip(theirs).all(|(key, _)| key.starts_with("alight.")));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn any_file_comes_back_bit_for_bit(strange in strange()) {
        let dir = tempfile::tempdir().unwrap();
        let [source, packed, back] = paths(dir.path());
        let bytes = strange.bytes();
        fs::write(&source, &bytes).unwrap();
        let done = pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
        let written = fs::read(&packed).unwrap();
        check_packed(&bytes, &written);
        prop_assert_eq!(done.volume.read, bytes.len() as u64);
        prop_assert_eq!(done.volume.written, written.len() as u64);
        prop_assert_eq!(done.packed + done.kept.len(), strange.tensors.len() + strange.experts.1.len());
        let header = gguf::parse(&written).unwrap();
        prop_assert_eq!(header.get("alight.source.header").is_some(), strange.version == 1,
            "the header is only kept where it does not follow");
        let undone = unpack(&packed, &back, Options::default(), &mut go_on()).unwrap();
        prop_assert!(fs::read(&back).unwrap() == bytes);
        prop_assert_eq!(undone.sha256, done.sha256);
        prop_assert_eq!(files(dir.path()), 3, "nothing else is left");
    }
}

#[test]
fn real_models_come_back_bit_for_bit() {
    for name in ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"] {
        let Some(source) = model(name) else { continue };
        let dir = tempfile::tempdir().unwrap();
        let [_, packed, back] = paths(dir.path());
        let done = pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
        let bytes = fs::read(&source).unwrap();
        check_packed(&bytes, &fs::read(&packed).unwrap());
        assert!(done.kept.iter().all(|kept| kept.reason == KeptReason::Vector), "{:?}", done.kept);
        unpack(&packed, &back, Options::default(), &mut go_on()).unwrap();
        assert!(fs::read(&back).unwrap() == bytes, "{name}");
        // With the output matrix, which is Q8_0 in both, in planes.
        let options = Options { force: true, planes: true };
        let done = pack(&source, &packed, options, &mut go_on()).unwrap();
        let file = fs::read(&packed).unwrap();
        let gguf = gguf::parse(&file).unwrap();
        let in_planes = gguf.tensor(&done.planes.unwrap()).unwrap();
        assert_eq!((in_planes.packed, in_planes.ty), (Some(Packing::Planes), GgmlType::Q8_0));
        assert_eq!(gguf.get_u32("alight.layout.version").unwrap(), Some(3));
        unpack(&packed, &back, options, &mut go_on()).unwrap();
        assert!(fs::read(&back).unwrap() == bytes, "{name}, planes");
    }
}

#[test]
fn a_packed_file_is_in_the_order_of_use() {
    let Some(source) = model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let dir = tempfile::tempdir().unwrap();
    let [_, packed, _] = paths(dir.path());
    pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
    let bytes = fs::read(&packed).unwrap();
    let names: Vec<&str> = gguf::parse(&bytes).unwrap().tensors.iter().map(|t| t.name).collect();
    let layer = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"];
    let layer = layer.iter().chain(&["ffn_gate", "ffn_up", "ffn_down"]);
    let mut expected: Vec<String> = (0..30)
        .flat_map(|n| layer.clone().map(move |part| format!("blk.{n}.{part}.weight")))
        .collect();
    expected.extend(["output_norm.weight".into(), "token_embd.weight".into()]);
    assert_eq!(names, expected);
}

#[test]
fn shards_become_one_file() {
    let dir = tempfile::tempdir().unwrap();
    // The experts of a layer are in two of them.
    let tensors: [(&str, GgmlType, &[u64]); 5] = [
        ("output.weight", GgmlType::Q8_0, &[64, 32]),
        ("blk.0.ffn_down_exps.weight", GgmlType::Q4_0, &[32, 48, 3]),
        ("blk.0.attn_q.weight", GgmlType::F16, &[5, 16]),
        ("blk.0.ffn_up_exps.weight", GgmlType::F16, &[7, 32, 3]),
        ("a", GgmlType::F32, &[3]),
    ];
    let whole = {
        let mut b = Builder::with_alignment(64);
        b.str("general.architecture", "llama");
        for (name, ty, shape) in tensors {
            b.tensor(name, ty, shape).unwrap();
        }
        b.file(|index, out| Random(index as u64).fill(out))
    };
    for (no, part) in [&tensors[..1], &tensors[1..3], &tensors[3..]].into_iter().enumerate() {
        let mut b = Builder::with_alignment(64);
        if no == 0 {
            b.str("general.architecture", "llama");
        }
        b.u16("split.no", no as u16).u16("split.count", 3).i32("split.tensors.count", 5);
        for (name, ty, shape) in part {
            b.tensor(name, *ty, shape).unwrap();
        }
        let first = [0, 1, 3][no];
        let bytes = b.file(|index, out| Random((first + index) as u64).fill(out));
        fs::write(dir.path().join(format!("m-0000{}-of-00003.gguf", no + 1)), bytes).unwrap();
    }
    let [_, packed, back] = paths(dir.path());
    let done =
        pack(&dir.path().join("m-00002-of-00003.gguf"), &packed, Options::default(), &mut go_on());
    assert_eq!(done.unwrap().packed, 4);
    check_packed(&whole, &fs::read(&packed).unwrap());
    unpack(&packed, &back, Options::default(), &mut go_on()).unwrap();
    assert!(fs::read(&back).unwrap() == whole, "what merging the shards gives");
}

#[test]
fn large_tensors_go_in_pieces() {
    // More than any buffer holds, in tiles that do not divide the pieces, and one that is copied.
    let dir = tempfile::tempdir().unwrap();
    let mut b = Builder::new();
    b.tensor("blk.0.ffn_up.weight", GgmlType::Q6_K, &[256 * 7, 16 * 777]).unwrap();
    b.tensor("blk.0.ffn_down.weight", GgmlType::F32, &[1000, 5000]).unwrap();
    b.tensor("blk.0.attn_q.weight", GgmlType::F16, &[262_144, 32]).unwrap();
    b.tensor("blk.0.attn_k.weight", GgmlType::F16, &[262_145, 16]).unwrap();
    let bytes = b.file(|index, out| Random(index as u64).fill(out));
    let [source, packed, back] = paths(dir.path());
    fs::write(&source, &bytes).unwrap();
    let mut seen = Vec::new();
    let done = pack(&source, &packed, Options::default(), &mut |progress| {
        seen.push(progress);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(seen.is_sorted_by_key(|p| p.done) && seen.len() > 12);
    assert!(seen.iter().all(|p| p.total == bytes.len() as u64));
    assert_eq!(seen.last().unwrap().done, bytes.len() as u64);
    let reasons: Vec<_> = done.kept.iter().map(|kept| kept.reason).collect();
    assert_eq!(reasons, [KeptReason::LongRows, KeptReason::Type(GgmlType::F32)]);
    unpack(&packed, &back, Options::default(), &mut go_on()).unwrap();
    assert!(fs::read(&back).unwrap() == bytes);
}

#[test]
fn what_cannot_be_done_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    let mut b = Builder::new();
    b.tensor("w", GgmlType::Q4_0, &[64, 64]).unwrap();
    let bytes = b.file(|_, out| Random(1).fill(out));
    fs::write(&source, &bytes).unwrap();
    let force = Options { force: true, ..Options::default() };
    let packs =
        |from: &Path, to: &Path, options| pack(from, to, options, &mut go_on()).unwrap_err();

    use ConvertError as E;
    use alight_pages::ReplaceError as R;
    assert!(matches!(unpack(&source, &back, force, &mut go_on()), Err(E::NotPacked { .. })));
    assert!(matches!(packs(&source, dir.path(), force), E::Replace(R::NotAFile { .. })));
    let device = packs(&source, Path::new("/dev/null"), force);
    assert!(matches!(device, E::Replace(R::NotAFile { .. })));
    assert!(matches!(packs(&source, &dir.path().join("no/x"), force), E::Replace(R::Name { .. })));
    assert!(matches!(packs(&source, &source, Options::default()), E::Replace(R::Input { .. })));
    assert!(matches!(packs(&source, &source, force), E::Replace(R::Input { .. })));
    let link = dir.path().join("link");
    fs::hard_link(&source, &link).unwrap();
    assert!(
        matches!(packs(&source, &link, force), E::Replace(R::Input { .. })),
        "another name of it"
    );
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&source, &link).unwrap();
    assert!(matches!(packs(&source, &link, force), E::Replace(R::Input { .. })), "through a link");
    fs::remove_file(&link).unwrap();
    assert!(matches!(packs(&dir.path().join("none"), &packed, force), E::Map(_)));
    assert_eq!(files(dir.path()), 1);

    let mut stop = |_| ControlFlow::Break(());
    assert!(matches!(pack(&source, &packed, force, &mut stop), Err(E::Stopped)));
    assert_eq!(files(dir.path()), 1, "stopping leaves nothing");

    fs::write(&packed, "old").unwrap();
    assert!(matches!(packs(&source, &packed, Options::default()), E::Replace(R::Exists { .. })));
    assert!(matches!(pack(&source, &packed, force, &mut stop), Err(E::Stopped)));
    assert_eq!(fs::read(&packed).unwrap(), b"old", "the old file stays");
    fs::remove_file(&link).ok();
    std::os::unix::fs::symlink(&packed, &link).unwrap();
    pack(&source, &link, force, &mut go_on()).unwrap();
    assert!(link.is_symlink(), "what a link points to is replaced");
    check_packed(&bytes, &fs::read(&packed).unwrap());
    assert!(matches!(packs(&packed, &back, force), E::AlreadyPacked { .. }));
    assert!(fs::read(&source).unwrap() == bytes);
    assert_eq!(files(dir.path()), 3);
}

#[test]
fn more_junk_than_is_kept_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    let mut b = Builder::new();
    b.tensor("w", GgmlType::Q4_0, &[64, 64]).unwrap();
    let mut bytes = b.file(|_, out| Random(1).fill(out));
    // Zeros do not need to be kept.
    bytes.resize(bytes.len() + (20 << 20), 0);
    fs::write(&source, &bytes).unwrap();
    pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
    assert!(fs::metadata(&packed).unwrap().len() < 1 << 20);
    unpack(&packed, &back, Options::default(), &mut go_on()).unwrap();
    assert!(fs::read(&back).unwrap() == bytes);
    bytes.push(1);
    fs::write(&source, &bytes).unwrap();
    let error = pack(&source, &packed, Options { force: true, ..Options::default() }, &mut go_on())
        .unwrap_err();
    assert!(matches!(error, ConvertError::Junk { limit: 0x100_0000, .. }), "{error}");
    fs::File::options().write(true).open(&source).unwrap().set_len(100 << 20).unwrap();
    let error = pack(&source, &packed, Options { force: true, ..Options::default() }, &mut go_on())
        .unwrap_err();
    assert!(matches!(error, ConvertError::Junk { limit: 0x400_0000, .. }), "{error}");
}

/// A type without kernels: nothing says what its tile is. The header may be read, the bytes may not.
#[test]
fn tiles_of_a_type_without_kernels_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    let mut b = Builder::new();
    b.tensor("w", GgmlType::Q4_0, &[64, 64]).unwrap();
    fs::write(&source, b.file(|_, out| Random(1).fill(out))).unwrap();
    pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
    // Of half as many weights it has as many bytes.
    let (from, to) = (GgmlType::Q4_0, GgmlType::Q8_1);
    assert!(WeightType::of(to).is_none());
    assert_eq!(from.row_bytes(64), to.row_bytes(32));
    let id = |ty| alight_formats::packed::packed_id(ty, Packing::Tiles).unwrap().to_le_bytes();
    let mut bytes = fs::read(&packed).unwrap();
    let at = bytes.windows(4).position(|b| b == id(from)).unwrap();
    bytes[at..at + 4].copy_from_slice(&id(to));
    // ne[0], ne[1], the type.
    bytes[at - 16..at - 8].copy_from_slice(&32u64.to_le_bytes());
    fs::write(&packed, &bytes).unwrap();
    let error = unpack(&packed, &back, Options::default(), &mut go_on()).unwrap_err();
    assert!(matches!(error, ConvertError::Restore { .. }), "{error}");
    assert!(error.to_string().contains("Q8_1"), "{error}");
    assert!(!back.exists());
}

#[test]
fn a_damaged_packed_file_is_not_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    let mut b = Builder::new();
    b.str("general.name", "x");
    b.tensor("w", GgmlType::Q4_1, &[64, 64]).unwrap();
    b.tensor("v", GgmlType::F32, &[5]).unwrap();
    b.tensor("blk.0.ffn_up_exps.weight", GgmlType::Q4_0, &[32, 16, 3]).unwrap();
    b.tensor("blk.0.ffn_down_exps.weight", GgmlType::F32, &[5, 7, 3]).unwrap();
    let bytes = b.file(|index, out| Random(index as u64).fill(out));
    fs::write(&source, &bytes).unwrap();
    pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
    let good = fs::read(&packed).unwrap();
    let gguf = gguf::parse(&good).unwrap();
    let (header, end) = (gguf.header_len as usize, gguf.data_end as usize);
    let unpacked = |bytes: &[u8]| {
        fs::write(&packed, bytes).unwrap();
        unpack(&packed, &back, Options::default(), &mut go_on())
    };
    // Cut short anywhere.
    for len in (1..end).step_by(97).chain([end - 1, header, header + 1]) {
        assert!(unpacked(&good[..len]).is_err(), "cut to {len}");
    }
    // A byte of the weights changed.
    for info in &gguf.tensors {
        let mut bad = good.clone();
        bad[info.offset as usize + 3] ^= 1;
        assert!(matches!(unpacked(&bad), Err(ConvertError::Checksum { .. })));
        // Of the last expert, too.
        let mut bad = good.clone();
        bad[info.range().end - 1] ^= 1;
        assert!(matches!(unpacked(&bad), Err(ConvertError::Checksum { .. })), "{}", info.name);
    }
    // Any byte of the header changed: an error or the same file, and never a panic.
    for at in 0..header {
        for flip in [1, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            if unpacked(&bad).is_ok() {
                assert!(fs::read(&back).unwrap() == bytes, "byte {at}");
                fs::remove_file(&back).unwrap();
            }
        }
    }
    assert_eq!(files(dir.path()), 2, "nothing is left of the failures");
}

/// What stands between tensors is as much as a number in the header says.
#[test]
fn a_large_alignment_is_not_paid_for_where_tensors_are_small() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    // Of the only file there is nothing after the header.
    let mut b = Builder::with_alignment(gguf::MAX_ALIGNMENT);
    b.str("general.architecture", "llama");
    fs::write(&source, b.unpadded_header()).unwrap();
    let error = pack(&source, &packed, Options::default(), &mut go_on()).unwrap_err();
    assert!(matches!(error, ConvertError::Padding { .. }), "{error}");
    // Converted, it has another.
    let conversion = alight_convert::Conversion::of_gguf(
        &source,
        None,
        &alight_convert::TensorTypes::default(),
        None,
    )
    .unwrap();
    conversion.write(&back, 1, Options::default(), &mut go_on()).unwrap();
    assert_eq!(fs::metadata(&back).unwrap().len(), 4096);
    fs::remove_file(&back).unwrap();
    // That of the first shard is that of the whole.
    for no in 0..2_u16 {
        let mut b = Builder::new();
        if no == 0 {
            b.str("general.architecture", "llama").alignment(1 << 25);
        }
        b.u16("split.no", no).u16("split.count", 2).i32("split.tensors.count", 20);
        for i in 0..20 * u64::from(no) {
            b.tensor(&format!("t{i}"), GgmlType::F32, &[1]).unwrap();
        }
        let bytes = if no == 0 { b.unpadded_header() } else { b.file(|_, _| ()) };
        fs::write(dir.path().join(format!("m-0000{}-of-00002.gguf", no + 1)), bytes).unwrap();
    }
    let first = dir.path().join("m-00001-of-00002.gguf");
    let error = pack(&first, &packed, Options::default(), &mut go_on()).unwrap_err();
    assert!(matches!(error, ConvertError::Padding { .. }), "{error}");
    assert!(error.to_string().contains("general.alignment"), "{error}");
}

#[test]
fn a_packed_file_says_no_larger_alignment_of_its_source_than_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let [source, packed, back] = paths(dir.path());
    let mut b = Builder::with_alignment(64);
    b.tensor("a", GgmlType::F32, &[3]).unwrap();
    b.tensor("b", GgmlType::F32, &[3]).unwrap();
    fs::write(&source, b.file(|_, _| ())).unwrap();
    pack(&source, &packed, Options::default(), &mut go_on()).unwrap();
    let mut bytes = fs::read(&packed).unwrap();
    let key = b"alight.source.alignment";
    // A type follows, and the number.
    let at = bytes.windows(key.len()).position(|bytes| bytes == key).unwrap() + key.len() + 4;
    let mut with = |alignment: u32| {
        bytes[at..at + 4].copy_from_slice(&alignment.to_le_bytes());
        fs::write(&packed, &bytes).unwrap();
        unpack(&packed, &back, Options::default(), &mut go_on()).unwrap_err()
    };
    let refused = |error: &ConvertError| {
        matches!(error, ConvertError::Restore { key: "alight.source.alignment", .. })
    };
    let error = with(1 << 26);
    assert!(refused(&error) && error.to_string().contains("4096"), "{error}");
    assert!(!refused(&with(4096)), "of which there may be one");
}
