//! Prints what the reader makes of a file of torch's, one JSON object per line: the file, each tensor
//! with the SHA-256 of its bytes, each other value; or, for a file that is refused, why.
//! `python -m evidence check torch` holds it against Python's own zipfile and pickle.

use std::error::Error;

use alight_formats::torch::{self, Scalar};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: torch_dump FILE")?;
    let bytes = std::fs::read(&path)?;
    let file = match torch::parse(&bytes) {
        Ok(file) => file,
        Err(error) => {
            println!("{}", json!({"refused": error.to_string()}));
            return Ok(());
        }
    };
    println!("{}", json!({"root": file.root, "version": file.version}));
    for tensor in &file.tensors {
        let data = tensor.data(&bytes).ok_or("a tensor outside of the file")?;
        let hash: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        println!(
            "{}",
            json!({"tensor": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape,
                   "offset": tensor.offset, "sha256": hash})
        );
    }
    for (name, value) in &file.scalars {
        let value = match value {
            Scalar::None => Json::Null,
            Scalar::Bool(value) => json!(value),
            Scalar::Int(value) => json!(value),
            // As its bits, so that NaN and -0 compare.
            Scalar::Float(value) => json!({"f64": value.to_bits()}),
            Scalar::Str(value) => json!(value),
        };
        println!("{}", json!({"name": name, "value": value}));
    }
    Ok(())
}
