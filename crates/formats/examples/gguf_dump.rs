//! Prints what the parser makes of a GGUF file, one JSON object per line: the file, each metadata
//! entry, each tensor. `python -m evidence check gguf` holds it against another reader.
//!
//! Floats are printed as their bits, so that NaN and -0 compare; bytes as hexadecimal.

use std::error::Error;

use alight_formats::gguf::{self, Array, Value, ValueType};
use serde_json::{Value as Json, json};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: gguf_dump FILE")?;
    let bytes = std::fs::read(&path)?;
    let file = gguf::parse(&bytes)?;
    println!(
        "{}",
        json!({"version": file.version, "alignment": file.alignment,
               "data_start": file.data_start, "data_end": file.data_end})
    );
    for (key, value) in &file.metadata {
        println!("{}", json!({"key": key, "type": type_name(value), "value": scalar(value)}));
    }
    for tensor in &file.tensors {
        println!(
            "{}",
            json!({"tensor": tensor.name, "shape": tensor.shape(), "type": tensor.ty.name(),
                   "offset": tensor.offset, "nbytes": tensor.nbytes})
        );
    }
    Ok(())
}

fn type_name(value: &Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("[{}]", array.elem_type()),
        other => other.value_type().to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn scalar(value: &Value<'_>) -> Json {
    match value {
        Value::F32(v) => json!(v.to_bits()),
        Value::F64(v) => json!(v.to_bits()),
        Value::Bool(v) => json!(u8::from(*v)),
        Value::Str(v) => json!(hex(v)),
        Value::Array(v) => elements(v),
        other => json!(other.as_int().and_then(|v| i64::try_from(v).ok())),
    }
}

fn elements(array: &Array<'_>) -> Json {
    match array.elem_type() {
        ValueType::Str => array.iter_str().map(|i| i.map(hex).collect::<Vec<_>>()).into(),
        ValueType::F32 => array.iter_f32().map(|i| i.map(f32::to_bits).collect::<Vec<_>>()).into(),
        ValueType::F64 => array.iter_f64().map(|i| i.map(f64::to_bits).collect::<Vec<_>>()).into(),
        ValueType::Bool => array.iter_bool().map(|i| i.map(u8::from).collect::<Vec<_>>()).into(),
        _ => array
            .iter_int()
            .map(|i| i.filter_map(|v| i64::try_from(v).ok()).collect::<Vec<_>>())
            .into(),
    }
}
