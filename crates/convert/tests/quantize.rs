//! A model with weights of other types: which types they get, what is in the file, and what is refused.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_convert::{
    ConvertError, MeasuredTensor, Options, Quantization, QuantizationMix, TensorTypes,
    imatrix_file, pack, quantize,
};
use alight_formats::GgmlType;
use alight_formats::gguf::{self, Gguf, write::Builder};
use alight_kernels::{Isa, WeightType, dequantize_row, quantize_row, quantize_row_weighted};
use alight_pages::ReplaceError;

const LAYERS: u64 = 8;

/// A model of matrices and norms, with an odd one whose rows are no whole K-blocks.
fn builder(float: GgmlType) -> Builder {
    let mut b = Builder::new();
    b.str("general.architecture", "llama").u32("general.file_type", 0).u32("llama.block_count", 8);
    b.tensor("token_embd.weight", float, &[256, 64]).unwrap();
    b.tensor("output.weight", float, &[256, 64]).unwrap();
    b.tensor("output_norm.weight", GgmlType::F32, &[256]).unwrap();
    for i in 0..LAYERS {
        for name in ["attn_q", "attn_v", "ffn_down"] {
            b.tensor(&format!("blk.{i}.{name}.weight"), float, &[512, 48]).unwrap();
        }
        b.tensor(&format!("blk.{i}.attn_k.weight"), float, &[96, 5]).unwrap();
        b.tensor(&format!("blk.{i}.attn_norm.weight"), GgmlType::F32, &[256]).unwrap();
        b.tensor(&format!("blk.{i}.attn_q.bias"), GgmlType::F32, &[48]).unwrap();
    }
    b
}

fn weight(tensor: usize, i: usize) -> f32 {
    let x = (tensor * 7919 + i * 104_729) % 65_521;
    (x as f32 / 65_521.0 - 0.5) * (1.0 + (i % 13) as f32)
}

fn write_model(path: &Path, float: GgmlType, spoil: bool) {
    let ty = WeightType::of(float).unwrap();
    let b = builder(float);
    let names: Vec<_> = b.layout().to_vec();
    let bytes = b.file(|tensor, out| {
        let (ty, size) = if names[tensor].ty == float {
            (ty, float.block_bytes())
        } else {
            (WeightType::F32, 4)
        };
        let mut x: Vec<f32> = (0..out.len() / size as usize).map(|i| weight(tensor, i)).collect();
        if spoil && names[tensor].name == "blk.3.attn_q.weight" {
            x[700] = f32::NAN;
        }
        quantize_row(Isa::best(), ty, &x, out);
    });
    fs::write(path, bytes).unwrap();
}

fn make(
    source: &Path,
    dest: &Path,
    mix: QuantizationMix,
    threads: usize,
) -> Result<(), ConvertError> {
    let options = Options { force: true, ..Options::default() };
    quantize(source, dest, &mix.into(), threads, options, &mut |_| ControlFlow::Continue(()))
        .map(drop)
}

fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, dest) = (folder.path().join("in.gguf"), folder.path().join("out.gguf"));
    (folder, source, dest)
}

fn bytes_of<'a>(file: &'a [u8], gguf: &Gguf<'_>, name: &str) -> &'a [u8] {
    let info = gguf.tensors.iter().find(|info| info.name == name).unwrap();
    &file[info.offset as usize..][..info.nbytes as usize]
}

#[test]
fn every_mix_gives_the_bits_of_the_kernels() {
    let (_folder, source, dest) = folder();
    for float in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
        write_model(&source, float, false);
        let original = fs::read(&source).unwrap();
        let before = gguf::parse(&original).unwrap();
        for mix in QuantizationMix::ALL {
            if float != GgmlType::F16
                && !matches!(mix, QuantizationMix::Q8_0 | QuantizationMix::Q4_K_M)
            {
                continue;
            }
            make(&source, &dest, mix, 2).unwrap();
            let made = fs::read(&dest).unwrap();
            let after = gguf::parse(&made).unwrap();
            assert_eq!(after.tensors.len(), before.tensors.len());
            assert_eq!(after.alignment, 4096);
            assert_eq!(made.len() % 4096, 0);
            for info in &after.tensors {
                assert_eq!(info.offset % 4096, 0);
                let was = before.tensors.iter().find(|t| t.name == info.name).unwrap();
                assert_eq!(was.ne, info.ne);
                let (from, to) =
                    (bytes_of(&original, &before, info.name), bytes_of(&made, &after, info.name));
                if was.ty == info.ty {
                    assert!(from == to, "{mix}: {}", info.name);
                    continue;
                }
                let mut x = vec![0.0; info.elements() as usize];
                dequantize_row(WeightType::of(was.ty).unwrap(), from, &mut x);
                let mut expected = vec![0; to.len()];
                quantize_row(Isa::SCALAR, WeightType::of(info.ty).unwrap(), &x, &mut expected);
                assert!(to == expected, "{mix}: {}", info.name);
            }
        }
    }
}

/// How much column `i` of matrix `matrix` counts.
fn counts(matrix: u64, i: usize) -> f32 {
    1.0 + ((i as u64 * 31 + matrix * 17) % 29) as f32
}

/// An importance matrix of tensors of these names and extents (columns, matrices); inputs of each matrix one more than of the
/// one before, none of the first of several.
fn write_imatrix(path: &Path, tensors: &[(&str, u64, u64)]) {
    let inputs = |matrix: u64, matrices: u64| matrix + u64::from(matrices == 1);
    let mut b = Builder::new();
    b.str("general.type", "imatrix").u32("imatrix.chunk_count", 7);
    b.strs("imatrix.datasets", &["one.txt", "two.txt"]);
    for (name, columns, matrices) in tensors {
        b.tensor(&format!("{name}.in_sum2"), GgmlType::F32, &[*columns, *matrices]).unwrap();
        b.tensor(&format!("{name}.counts"), GgmlType::F32, &[1, *matrices]).unwrap();
    }
    let bytes = b.file(|tensor, out| {
        let (_, columns, matrices) = tensors[tensor / 2];
        for (i, out) in out.chunks_exact_mut(4).enumerate() {
            let value = match tensor % 2 {
                0 => {
                    let matrix = i as u64 / columns;
                    counts(matrix, i % columns as usize) * inputs(matrix, matrices) as f32
                }
                _ => inputs(i as u64, matrices) as f32,
            };
            out.copy_from_slice(&value.to_le_bytes());
        }
    });
    fs::write(path, bytes).unwrap();
}

/// The same tensors in the format before GGUF, of five calls each.
fn write_old_imatrix(path: &Path, tensors: &[(&str, u64, u64)], with_dataset: bool) {
    let mut out = (tensors.len() as i32).to_le_bytes().to_vec();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as i32).to_le_bytes());
        out.extend(text.as_bytes());
    };
    for (name, columns, matrices) in tensors {
        text(&mut out, name);
        out.extend(5_i32.to_le_bytes());
        out.extend(((columns * matrices) as i32).to_le_bytes());
        for i in 0..columns * matrices {
            out.extend((5.0 * counts(i / columns, (i % columns) as usize)).to_le_bytes());
        }
    }
    if with_dataset {
        out.extend(7_i32.to_le_bytes());
        text(&mut out, "one.txt");
    }
    fs::write(path, out).unwrap();
}

#[test]
fn columns_count_as_they_were_measured() {
    let (folder, source, dest) = folder();
    let imatrix = folder.path().join("imatrix.gguf");
    let (down, up) = ("blk.0.ffn_down_exps.weight", "blk.0.ffn_up_exps.weight");
    let q = "blk.0.attn_q.weight";
    let mut b = Builder::new();
    b.str("general.architecture", "x").str("quantize.imatrix.file", "another");
    // Rows of 20480 are taken apart into several units.
    b.tensor(q, GgmlType::F32, &[20480, 3]).unwrap();
    b.tensor(down, GgmlType::F32, &[256, 6, 3]).unwrap();
    b.tensor(up, GgmlType::F32, &[256, 6, 3]).unwrap();
    let bytes = b.file(|tensor, out| {
        let x: Vec<f32> = (0..out.len() / 4).map(|i| weight(tensor, i)).collect();
        quantize_row(Isa::best(), WeightType::F32, &x, out);
    });
    fs::write(&source, bytes).unwrap();
    write_imatrix(&imatrix, &[(q, 20480, 1), (down, 256, 3)]);
    let options = Options { force: true, ..Options::default() };
    let run = |imatrix: &Path| {
        let weighted = Quantization { imatrix: Some(imatrix), ..QuantizationMix::Q4_K_S.into() };
        quantize(&source, &dest, &weighted, 3, options, &mut |_| ControlFlow::Continue(()))
    };
    let (about, _) = run(&imatrix).unwrap();
    assert!(about.notes.iter().any(|note| note.contains(up)), "{:?}", about.notes);
    let made = fs::read(&dest).unwrap();
    let gguf = gguf::parse(&made).unwrap();
    let said = |key: &str| gguf.get_str(&format!("quantize.imatrix.{key}")).unwrap().unwrap();
    assert_eq!((said("file"), said("dataset")), ("imatrix.gguf", "one.txt"));
    assert_eq!(gguf.get_u64("quantize.imatrix.entries_count").unwrap(), Some(2));
    assert_eq!(gguf.get_u64("quantize.imatrix.chunks_count").unwrap(), Some(7));
    let check = |made: &[u8], is_known: &dyn Fn(&str, u64) -> bool| {
        let gguf = gguf::parse(made).unwrap();
        for (tensor, name, columns, rows) in [(0, q, 20480, 3), (1, down, 256, 6), (2, up, 256, 6)]
        {
            let info = gguf.tensors.iter().find(|info| info.name == name).unwrap();
            let ty = WeightType::of(info.ty).unwrap();
            let found = bytes_of(made, &gguf, name);
            let size = ty.row_bytes(columns).unwrap();
            for (row, found) in found.chunks_exact(size).enumerate() {
                let x: Vec<f32> = (0..columns).map(|i| weight(tensor, row * columns + i)).collect();
                let matrix = (row / rows) as u64;
                let w: Vec<f32> = (0..columns).map(|i| counts(matrix, i)).collect();
                let mut expected = vec![0; size];
                let w = if is_known(name, matrix) { &w[..] } else { &[] };
                quantize_row_weighted(Isa::best(), ty, &x, w, &mut expected);
                assert!(found == expected, "{name}, row {row}");
            }
        }
    };
    // Nothing is known of the first expert, nor of another tensor.
    check(&made, &|name, matrix| name == q || name == down && matrix > 0);
    // The same in the format before GGUF, whose counts are of all matrices.
    for with_dataset in [true, false] {
        write_old_imatrix(&imatrix, &[(q, 20480, 1), (down, 256, 3)], with_dataset);
        run(&imatrix).unwrap();
        let made = fs::read(&dest).unwrap();
        check(&made, &|name, _| name != up);
        let gguf = gguf::parse(&made).unwrap();
        let chunks = gguf.get_u64("quantize.imatrix.chunks_count").unwrap();
        assert_eq!(chunks, with_dataset.then_some(7));
        assert_eq!(
            gguf.get_str("quantize.imatrix.dataset").unwrap(),
            with_dataset.then_some("one.txt")
        );
    }
    let whole = fs::read(&imatrix).unwrap();
    let made = fs::read(&dest).unwrap();
    // What is no importance matrix, or one of another model.
    let fails = |words: &[&str]| {
        let text = run(&imatrix).err().unwrap().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    write_imatrix(&imatrix, &[(q, 512, 1)]);
    fails(&["imatrix.gguf", q, "[1, 512]", "[1, 20480]"]);
    write_imatrix(&imatrix, &[(down, 256, 2)]);
    fails(&[down, "[2, 256]", "[3, 256]"]);
    fs::copy(&source, &imatrix).unwrap();
    fails(&["imatrix.gguf", "in_sum2", "llama-imatrix"]);
    write_old_imatrix(&imatrix, &[(q, 512, 1)], true);
    fails(&["imatrix.gguf", q, "[1, 512]", "[1, 20480]"]);
    fs::write(&imatrix, b"\x01\0\0\0\x05\0\0\0hello").unwrap();
    fails(&["imatrix.gguf", "llama-imatrix"]);
    fs::write(&imatrix, b"\x01\0\0\0\xff\xff\xff\x7fhello").unwrap();
    fails(&["imatrix.gguf", "2147483647 for the length of a name"]);
    fs::write(&imatrix, [0; 8]).unwrap();
    fails(&["imatrix.gguf", "has no entries"]);
    for len in [3, 9, 40, 100, whole.len() - 1] {
        fs::write(&imatrix, &whole[..len]).unwrap();
        fails(&["imatrix.gguf", "llama-imatrix"]);
    }
    fs::remove_file(&imatrix).unwrap();
    fails(&["imatrix.gguf"]);
    assert_eq!(fs::read(&dest).unwrap(), made, "the old file is there");
}

#[test]
fn types_and_metadata_are_those_of_the_mix() {
    let (_folder, source, dest) = folder();
    write_model(&source, GgmlType::F16, false);
    for (mix, id) in [
        (QuantizationMix::Q4_K_M, 15),
        (QuantizationMix::Q8_0, 7),
        (QuantizationMix::F16, 1),
        (QuantizationMix::Q4_0, 2),
    ] {
        make(&source, &dest, mix, 1).unwrap();
        let made = fs::read(&dest).unwrap();
        let gguf = gguf::parse(&made).unwrap();
        let number = |key: &str| gguf.get(key).map(|v| format!("{v:?}"));
        assert_eq!(number("general.file_type"), Some(format!("U32({id})")));
        assert_eq!(number("general.quantization_version"), Some("U32(2)".into()));
        assert_eq!(number("llama.block_count"), Some("U32(8)".into()));
        assert_eq!(gguf.metadata.iter().filter(|(key, _)| *key == "general.file_type").count(), 1);
        let ty = |name: &str| gguf.tensors.iter().find(|t| t.name == name).unwrap().ty;
        assert_eq!(ty("output_norm.weight"), GgmlType::F32);
        assert_eq!(ty("blk.0.attn_q.bias"), GgmlType::F32);
        match mix {
            QuantizationMix::Q4_K_M => {
                assert_eq!(ty("output.weight"), GgmlType::Q6_K);
                assert_eq!(ty("token_embd.weight"), GgmlType::Q4_K);
                assert_eq!(ty("blk.1.attn_q.weight"), GgmlType::Q4_K);
                assert_eq!(ty("blk.1.attn_v.weight"), GgmlType::Q4_K);
                assert_eq!(ty("blk.3.attn_v.weight"), GgmlType::Q6_K);
                assert_eq!(ty("blk.0.ffn_down.weight"), GgmlType::Q6_K);
                assert_eq!(ty("blk.0.attn_k.weight"), GgmlType::Q5_0, "rows of 96");
            }
            QuantizationMix::Q8_0 => assert_eq!(ty("output.weight"), GgmlType::Q8_0),
            QuantizationMix::Q4_0 => assert_eq!(ty("output.weight"), GgmlType::Q6_K),
            _ => assert_eq!(ty("output.weight"), GgmlType::F16),
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (folder, source, dest) = folder();
    write_model(&source, GgmlType::F32, false);
    make(&source, &dest, QuantizationMix::Q5_K_M, 1).unwrap();
    for threads in [2, 3, 7] {
        let other = folder.path().join("other.gguf");
        make(&source, &other, QuantizationMix::Q5_K_M, threads).unwrap();
        assert!(fs::read(&dest).unwrap() == fs::read(&other).unwrap(), "{threads} threads");
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_left() {
    let (folder, source, dest) = folder();
    fs::write(&dest, "old").unwrap();
    write_model(&source, GgmlType::F32, true);
    let error = make(&source, &dest, QuantizationMix::Q8_0, 2).unwrap_err().to_string();
    assert!(error.contains("blk.3.attn_q.weight") && error.contains("in.gguf"), "{error}");

    let mut b = Builder::new();
    b.str("general.architecture", "llama");
    b.tensor("blk.0.attn_q.weight", GgmlType::Q8_1, &[256, 16]).unwrap();
    fs::write(&source, b.file(|_, _| ())).unwrap();
    let error = make(&source, &dest, QuantizationMix::Q8_0, 2).unwrap_err().to_string();
    assert!(error.contains("Q8_1") && error.contains("F16"), "{error}");

    write_model(&source, GgmlType::F32, false);
    let stopped = quantize(
        &source,
        &dest,
        &QuantizationMix::Q8_0.into(),
        2,
        Options { force: true, ..Options::default() },
        &mut |p| {
            if p.done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        },
    );
    assert!(matches!(stopped, Err(ConvertError::Stopped)));
    let error = make(&source, &source, QuantizationMix::Q8_0, 2).unwrap_err();
    assert!(matches!(error, ConvertError::Replace(ReplaceError::Input { .. })));
    assert_eq!(fs::read_to_string(&dest).unwrap(), "old");

    let packed = folder.path().join("packed.gguf");
    pack(&source, &packed, Options::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let error = make(&packed, &dest, QuantizationMix::Q8_0, 2).unwrap_err();
    assert!(matches!(error, ConvertError::AlreadyPacked { .. }));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn tensors_get_the_types_that_are_asked_for_and_one_line_tells_the_others() {
    let (_folder, source, dest) = folder();
    write_model(&source, GgmlType::F16, false);
    let types = TensorTypes {
        patterns: ["attn_v=q8_0", r"blk\.[0-3]\.ffn=bf16"].map(|text| text.parse().unwrap()).into(),
        output: Some(GgmlType::Q5_1),
        embedding: Some(GgmlType::Q4_1),
    };
    let quantization = Quantization { types, ..QuantizationMix::Q2_K.into() };
    let options = Options { force: true, ..Options::default() };
    let (about, _) =
        quantize(&source, &dest, &quantization, 2, options, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    let made = fs::read(&dest).unwrap();
    let original = fs::read(&source).unwrap();
    let (before, after) = (gguf::parse(&original).unwrap(), gguf::parse(&made).unwrap());
    let ty = |name: &str| after.tensor(name).unwrap().ty;
    assert_eq!((ty("output.weight"), ty("token_embd.weight")), (GgmlType::Q5_1, GgmlType::Q4_1));
    for layer in 0..LAYERS {
        let of = |name: &str| ty(&format!("blk.{layer}.{name}.weight"));
        let down = if layer < 4 { GgmlType::BF16 } else { GgmlType::Q3_K };
        assert_eq!((of("attn_v"), of("ffn_down")), (GgmlType::Q8_0, down));
        assert_eq!((of("attn_q"), of("attn_k")), (GgmlType::Q2_K, GgmlType::Q4_0));
    }
    for name in ["output.weight", "blk.1.attn_v.weight"] {
        let mut x = vec![0.0; after.tensor(name).unwrap().elements() as usize];
        dequantize_row(WeightType::F16, bytes_of(&original, &before, name), &mut x);
        let mut expected = vec![0; bytes_of(&made, &after, name).len()];
        quantize_row(Isa::best(), WeightType::of(ty(name)).unwrap(), &x, &mut expected);
        assert!(bytes_of(&made, &after, name) == expected, "{name}");
    }
    // The rows of 96 are no blocks of 256.
    let notes: Vec<_> = about.notes.iter().filter(|note| note.contains("instead of")).collect();
    let [note] = notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("8 of 34 matrices") && note.contains("8 Q4_0 instead of Q2_K"), "{note}");
    assert_eq!(after.get_u32("general.file_type").unwrap(), Some(10));
}

#[test]
fn a_scale_that_f16_cannot_hold_is_an_error_that_names_the_tensor() {
    let (_folder, source, dest) = folder();
    let mut b = Builder::new();
    b.str("general.architecture", "x");
    let name = "blk.0.attn_q.weight";
    b.tensor(name, GgmlType::F32, &[512, 3]).unwrap();
    let file = |large: f32| {
        b.file(|tensor, out| {
            let mut x: Vec<f32> = (0..out.len() / 4).map(|i| weight(tensor, i)).collect();
            x[700] = large;
            quantize_row(Isa::best(), WeightType::F32, &x, out);
        })
    };
    for (mix, holds) in [
        (QuantizationMix::Q8_0, 8e6),
        (QuantizationMix::Q4_0, 5e5),
        (QuantizationMix::Q4_1, 5e5),
        (QuantizationMix::Q4_K_S, 5e5),
        (QuantizationMix::Q6_K, 1e5),
        (QuantizationMix::Q2_K, 1e5),
        (QuantizationMix::Q3_K_S, 1e5),
        (QuantizationMix::IQ4_NL, 1e5),
    ] {
        fs::write(&source, file(holds)).unwrap();
        make(&source, &dest, mix, 2).unwrap_or_else(|error| panic!("{mix}: {error}"));
        fs::write(&source, file(-3e9)).unwrap();
        match make(&source, &dest, mix, 2).unwrap_err() {
            ConvertError::ScaleTooLarge { tensor, found, .. } => {
                assert_eq!((&*tensor, found), (name, 3e9), "{mix}");
            }
            other => panic!("{mix}: {other}"),
        }
    }
    // Without such a scale it is held.
    make(&source, &dest, QuantizationMix::BF16, 2).unwrap();
}

#[test]
fn an_importance_matrix_that_was_measured_here_is_read() {
    let (folder, source, dest) = folder();
    write_model(&source, GgmlType::F16, false);
    let imatrix = folder.path().join("made.gguf");
    let squares = |columns: usize| (0..columns).map(|i| f64::from(counts(1, i)) * 40.0).collect();
    let one = |name: &str, columns| MeasuredTensor {
        name: name.into(),
        columns,
        squares: squares(columns),
        counts: vec![40],
    };
    let all = [one("blk.0.attn_q.weight", 512), one("blk.1.ffn_down.weight", 512)];
    fs::write(&imatrix, imatrix_file(&all, "text.txt", (3, 512)).unwrap()).unwrap();
    let weighted = Quantization { imatrix: Some(&imatrix), ..QuantizationMix::Q4_K_S.into() };
    let options = Options { force: true, ..Options::default() };
    quantize(&source, &dest, &weighted, 2, options, &mut |_| ControlFlow::Continue(())).unwrap();
    let made = fs::read(&dest).unwrap();
    let after = gguf::parse(&made).unwrap();
    let text = |key: &str| after.get_str(&format!("quantize.imatrix.{key}")).unwrap().unwrap();
    assert_eq!((text("file"), text("dataset")), ("made.gguf", "text.txt"));
    let number = |key: &str| after.get_u32(&format!("quantize.imatrix.{key}")).unwrap().unwrap();
    assert_eq!((number("entries_count"), number("chunks_count")), (2, 3));
    let original = fs::read(&source).unwrap();
    let before = gguf::parse(&original).unwrap();
    let name = "blk.0.attn_q.weight";
    let mut x = vec![0.0; 512 * 48];
    dequantize_row(WeightType::F16, bytes_of(&original, &before, name), &mut x);
    let weights: Vec<f32> = (0..512).map(|i| counts(1, i)).collect();
    let found = bytes_of(&made, &after, name);
    for (row, blocks) in x.chunks_exact(512).zip(found.chunks_exact(found.len() / 48)) {
        let mut expected = vec![0; blocks.len()];
        quantize_row_weighted(Isa::best(), WeightType::Q4_K, row, &weights, &mut expected);
        assert!(blocks == expected);
    }
}
