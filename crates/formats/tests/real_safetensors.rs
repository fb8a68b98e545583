//! A real file that nobody here made, read as another reader reads it: names, dtypes, shapes, places and
//! the SHA-256 of every tensor's bytes. `tests/data/safetensors_py.json` is written by
//! `python -m evidence check safetensors --write`; the file is fetched by `make models`.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::safetensors_dump;

const EXPECTED: &str = include_str!("data/safetensors_py.json");

#[test]
fn a_real_file_is_read_as_by_another_hand() {
    let folder = match std::env::var_os("ALIGHT_MODELS") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models"),
    };
    let expected: Value = serde_json::from_str(EXPECTED).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let path = folder.join(name);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("skipped: {}: {error}; `make models` fetches it", path.display());
                continue;
            }
        };
        let got = Value::from(safetensors_dump::dump(&bytes).unwrap());
        assert_eq!(&got, expected, "{name}");
    }
}
