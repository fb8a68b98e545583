//! What the system refuses, and what no answer follows from: threads, memory, weights that are not numbers.
//! Each refusal is real, in a child process that has it.
#![cfg(target_os = "linux")]

use std::path::Path;

use alight_formats::{GgmlType, gguf};
use alight_model::{Load, Model, ModelError, OpenOptions, Repack, Session, SessionOptions};

use crate::refuse;
use alight_testing::models::{self, Moe, Spec};

fn logits(path: &Path, options: &OpenOptions) -> Result<Vec<f32>, ModelError> {
    let model = Model::open(path, options)?;
    let mut session = Session::new(&model, &SessionOptions::default())?;
    session.feed(&models::tokens(20, 300, 1)).map(<[f32]>::to_vec)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
#[ignore = "a child of the test below"]
fn child_without_threads() {
    let path = std::env::var("REFUSED").unwrap();
    let path = Path::new(&path);
    let options =
        |load, repack| OpenOptions { threads: Some(3), load, repack, ..OpenOptions::default() };
    let expected = logits(path, &options(Load::Mmap, Repack::Off)).unwrap();
    for call in [libc::SYS_clone3, libc::SYS_clone] {
        if let Err(error) = refuse::forbid(call, libc::EAGAIN) {
            return eprintln!("skipped: no seccomp filters: {error}");
        }
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "threads are refused");
    for load in [Load::Auto, Load::Mmap, Load::Read, Load::Direct] {
        for repack in [Repack::Off, Repack::On] {
            let options = options(load, repack);
            let model = Model::open(path, &options).unwrap();
            assert_eq!((model.threads(), model.pool().wanted()), (1, 3));
            assert_eq!(
                bits(&logits(path, &options).unwrap()),
                bits(&expected),
                "{load}, {repack:?}"
            );
        }
    }
}

#[test]
fn without_threads_a_model_runs_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    refuse::run("refusals::child_without_threads", path.to_str().unwrap());
}

#[test]
fn logits_that_are_not_numbers_are_an_error_that_names_the_weight() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let options = OpenOptions { threads: Some(2), ..OpenOptions::default() };
    assert!(logits(&path, &options).is_ok());
    let mut bytes = std::fs::read(&path).unwrap();
    let name = "blk.1.ffn_up.weight";
    let range = gguf::parse(&bytes).unwrap().tensor(name).unwrap().range();
    bytes[range.start + 400..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();

    let error = logits(&path, &options).unwrap_err();
    assert!(matches!(error, ModelError::NotNumbers { position: 19, .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(name) && text.contains("position 19") && text.contains(".gguf"),
        "{text}"
    );

    let model = Model::open(&path, &options).unwrap();
    let checked = model.check_tensors().unwrap_err();
    assert!(
        matches!(&checked, ModelError::NotFinite { tensor, .. } if tensor == name),
        "{checked}"
    );
    assert!(checked.to_string().contains(".gguf: tensor "), "{checked}");
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let each = session.feed_each(&[5, 6], &mut |_, _| panic!("logits that are not numbers"));
    assert!(matches!(each, Err(ModelError::NotNumbers { position: 0, .. })));
    assert_eq!(session.position(), 0, "an error leaves the sequence as it was");
}

#[test]
fn scales_of_blocks_that_are_not_numbers_are_found_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let options = OpenOptions { threads: Some(2), ..OpenOptions::default() };
    for (ty, at) in
        [(GgmlType::Q4_0, 0), (GgmlType::Q8_0, 34), (GgmlType::Q4_K, 2), (GgmlType::Q6_K, 208)]
    {
        let moe = Spec::qwen3moe().moe.map(|moe| Moe { width: 256, ..moe });
        let spec = Spec {
            ty,
            moe,
            embd: 256,
            heads: 4,
            kv_heads: 4,
            key_dim: 64,
            value_dim: 64,
            ..Spec::qwen3moe()
        };
        let (path, _) = spec.write(folder.path());
        Model::open(&path, &options).unwrap().check_tensors().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let gguf = gguf::parse(&whole).unwrap();
        // An expert that few tokens go through.
        let name = "blk.1.ffn_gate_exps.weight";
        let tensor = gguf.tensor(name).unwrap();
        let expert = tensor.expert(tensor.ne[2] - 1).start as usize;
        for scale in [0x7e00_u16, 0x7c00, 0xfc00] {
            let mut bytes = whole.clone();
            bytes[expert + at..][..2].copy_from_slice(&scale.to_le_bytes());
            std::fs::write(&path, bytes).unwrap();
            let checked = Model::open(&path, &options).unwrap().check_tensors();
            let error = checked.unwrap_err().to_string();
            assert!(error.contains(name), "{ty:?}: {error}");
        }
    }
}

#[test]
fn weights_that_do_not_fit_are_refused_before_anything_is_read() {
    // A sparse file with matrices of more bytes than any machine has that runs this.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let spec = Spec {
        layers: 8,
        ff: 1 << 20,
        embd: 1 << 14,
        heads: 128,
        key_dim: 128,
        value_dim: 128,
        ..Spec::llama()
    };
    let path = folder.path().join("large.gguf");
    let (mut header, len) = (spec.metadata(""), spec.tensors());
    for (name, shape) in &len {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        header.tensor(name, alight_formats::GgmlType::F32, &shape).unwrap();
    }
    let start = header.header();
    let end = header.layout().last().map(|last| last.offset + last.nbytes).unwrap();
    std::fs::write(&path, &start).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if let Err(error) = file.set_len(start.len() as u64 + end) {
        return eprintln!("skipped: no sparse file of {end} bytes here: {error}");
    }
    for (load, lock) in [(Load::Read, false), (Load::Direct, false), (Load::Mmap, true)] {
        let options = OpenOptions {
            threads: Some(1),
            load,
            lock,
            repack: Repack::Off,
            ..OpenOptions::default()
        };
        let text = Model::open(&path, &options).err().expect("there is no room").to_string();
        // Without the right to lock as much, that is the reason.
        let limit = lock && text.contains("RLIMIT_MEMLOCK");
        assert!(limit || text.contains("are needed for its weights"), "{text}");
        assert!(text.contains("large.gguf"), "{text}");
    }
}
