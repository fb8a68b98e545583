//! The SIMD levels that can run here, one a line, for scripts; the last except for AMX is the one that is used.

use alight_kernels::Isa;

fn main() {
    for isa in Isa::available() {
        println!("{isa}");
    }
}
