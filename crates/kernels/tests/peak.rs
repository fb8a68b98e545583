//! What measures a core does the work that it says.

use alight_kernels::Isa;
use alight_kernels::peak::{int8_macs, int8_products, read};

#[test]
fn reading_sees_every_byte() {
    for isa in Isa::available() {
        let mut buffer = vec![0u8; 4096];
        assert_eq!(read(isa, &buffer), 0);
        for at in [0, 63, 2000, 4095] {
            buffer[at] = 1;
            assert_ne!(read(isa, &buffer), 0, "{isa} {at}");
            buffer[at] = 0;
        }
    }
}

#[test]
fn products_take_time_in_proportion() {
    for isa in Isa::available() {
        assert_eq!(int8_macs(isa, 20), 2 * int8_macs(isa, 10));
        std::hint::black_box(int8_products(isa, 100));
    }
}
