//! Prints what the parser makes of a safetensors file, one JSON object per line.
//! `python -m evidence check safetensors` holds it against another reader.

#[path = "../tests/support/safetensors_dump.rs"]
mod safetensors_dump;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: safetensors_dump FILE")?;
    for line in safetensors_dump::dump(&std::fs::read(&path)?)? {
        println!("{line}");
    }
    Ok(())
}
