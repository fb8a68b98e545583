//! The weight types that have kernels, one a line, for scripts: name, id in GGUF files, weights and
//! bytes of a block, and the scales at fixed places of a block, each as the kind of `ScaleField`, `@` and the
//! byte, like `f16@0`.

use alight_kernels::{ScaleField, WeightType};

fn main() {
    for ty in WeightType::ALL {
        print!("{ty} {} {} {}", ty.ggml().id(), ty.block_len(), ty.block_bytes());
        for field in ty.scale_fields() {
            match field {
                ScaleField::F16(at) => print!(" f16@{at}"),
                ScaleField::Exponent(at) => print!(" exponent@{at}"),
                ScaleField::E4M3(at) => print!(" e4m3@{at}"),
                ScaleField::F16Nibbles(at) => print!(" f16-nibbles@{at}"),
            }
        }
        println!();
    }
}
