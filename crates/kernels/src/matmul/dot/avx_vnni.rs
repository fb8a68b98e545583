//! Rows with AVX-VNNI: those of [`avx2`](super::avx2), with the sums of products of `tiles/avx_vnni.rs`. Results are bit-identical to AVX2.

use super::avx2::{floats, quantized, units};
use super::units::never;
use crate::blocks::avx2_rows::RowsAvx2;
use crate::blocks::avx2_tiles::TilesAvx2;
use crate::blocks::{with_rows, with_tiles};
use crate::matmul::tiles::avx_vnni::Whole;
use crate::matmul::{Matrix, Output, Tokens};
use std::ops::Range;

units_driver!("avx2,fma,f16c,avxvnni", TilesAvx2, RowsAvx2, never, tokens_together, Whole);
