//! What the parser makes of a safetensors file, as JSON that `evidence check safetensors` makes, too, by
//! another reader: one object of the file, one for each tensor with the SHA-256 of its bytes.

use alight_formats::safetensors::parse;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// All of it, or the parser's error.
pub fn dump(bytes: &[u8]) -> Result<Vec<Value>, String> {
    let file = parse(bytes).map_err(|error| error.to_string())?;
    let metadata: Vec<_> = file.metadata.iter().map(|(key, value)| [key, value]).collect();
    let mut out = vec![json!({
        "data_start": file.data_start, "data_end": file.data_end, "metadata": metadata,
    })];
    for tensor in &file.tensors {
        let data = tensor.data(bytes).ok_or("a tensor lies outside of its file")?;
        let sha256: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        out.push(json!({
            "tensor": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape,
            "begin": tensor.range.start, "end": tensor.range.end, "sha256": sha256,
        }));
    }
    Ok(out)
}
