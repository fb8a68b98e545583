//! Two real files, read as the `gguf` package's reader reads them. `tests/data/gguf_py.json` is
//! written by `python -m evidence check gguf --write`; the files are fetched by `make models`.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use alight_formats::gguf::{Array, Gguf, GgufError, TensorInfo, Value, parse};
use serde_json::{Value as Json, json};

const EXPECTED: &str = include_str!("data/gguf_py.json");

fn folder() -> PathBuf {
    match std::env::var_os("ALIGHT_MODELS") {
        Some(folder) => folder.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models"),
    }
}

/// FNV-1a of 64 bits.
fn fnv(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

fn array(key: &str, array: &Array<'_>) -> Json {
    let hash = match array.iter_str() {
        Some(strings) => fnv(strings.flat_map(|text| {
            (text.len() as u64).to_le_bytes().into_iter().chain(text.iter().copied())
        })),
        None => fnv(array.bytes().iter().copied()),
    };
    let ty = format!("[{}]", array.elem_type());
    json!({"key": key, "type": ty, "len": array.len(), "fnv": hash})
}

fn entry(key: &str, value: &Value<'_>) -> Json {
    let plain = match value {
        Value::Array(items) => return array(key, items),
        Value::F32(v) => json!(v.to_bits()),
        Value::F64(v) => json!(v.to_bits()),
        Value::Bool(v) => json!(u8::from(*v)),
        Value::Str(v) => json!(v.iter().map(|b| format!("{b:02x}")).collect::<String>()),
        other => json!(i64::try_from(other.as_int().unwrap()).unwrap()),
    };
    json!({"key": key, "type": value.value_type().name(), "value": plain})
}

fn tensor(info: &TensorInfo<'_>) -> Json {
    json!({"tensor": info.name, "shape": info.shape(), "type": info.ty.name(),
           "offset": info.offset, "nbytes": info.nbytes})
}

fn all(file: &Gguf<'_>) -> Vec<Json> {
    let mut out = vec![json!({"version": file.version, "alignment": file.alignment,
                              "data_start": file.data_start, "data_end": file.data_end})];
    out.extend(file.metadata.iter().map(|(key, value)| entry(key, value)));
    out.extend(file.tensors.iter().map(tensor));
    out
}

#[test]
fn real_files_are_read_as_gguf_py_reads_them() {
    let expected: Json = serde_json::from_str(EXPECTED).unwrap();
    let files = expected.as_object().unwrap();
    assert_eq!(files.len(), 2);
    for (name, things) in files {
        let path = folder().join(name);
        let bytes = std::fs::read(&path)
            .unwrap_or_else(|e| panic!("{}: {e}; `make models` fetches it", path.display()));
        let file = parse(&bytes).unwrap();
        let (ours, theirs) = (all(&file), things.as_array().unwrap());
        for (mine, other) in ours.iter().zip(theirs) {
            assert_eq!(mine, other, "{name}");
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
        assert_eq!(file.data_end, bytes.len() as u64, "{name}");
    }
}

#[test]
fn a_real_header_cut_anywhere_is_refused() {
    let path = folder().join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let mut bytes = Vec::new();
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.take(4 << 20).read_to_end(&mut bytes).unwrap();
    // Steps of a prime number of bytes, so that cuts fall everywhere in the entries.
    for len in (0..bytes.len()).step_by(9973) {
        match parse(&bytes[..len]) {
            Err(
                GgufError::Truncated { .. } | GgufError::Count { .. } | GgufError::PastEnd { .. },
            ) => {}
            other => panic!("{len}: {other:?}"),
        }
    }
}
