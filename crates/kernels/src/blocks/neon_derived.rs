//! The types that NEON reads by their portable decoding: each group is first decoded to the stack, then multiplied like those of
//! types with hooks of their own. To make a type faster, write its hooks in its file and remove it from this list.

use super::decoded::decoded;
use super::{iq1_m, iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs};
use super::{nvfp4, q1_0, q2_0, q2_k, q3_k, tq1_0, tq2_0};
use {iq1_m::Iq1M, iq1_s::Iq1S, iq2_s::Iq2S, iq2_xs::Iq2Xs, iq2_xxs::Iq2Xxs};
use {iq3_s::Iq3S, iq3_xxs::Iq3Xxs, nvfp4::Nvfp4, q1_0::Q1_0, q2_0::Q2_0};
use {q2_k::Q2K, q3_k::Q3K, tq1_0::Tq1_0, tq2_0::Tq2_0};

decoded!(Q2K: RowsNeon, TilesNeon);
decoded!(Q3K: RowsNeon, TilesNeon);
decoded!(Nvfp4: RowsNeon, TilesNeon);
decoded!(Tq1_0: RowsNeon, TilesNeon);
decoded!(Tq2_0: RowsNeon, TilesNeon);
decoded!(Q1_0: RowsNeon, TilesNeon);
decoded!(Q2_0: RowsNeon, TilesNeon);

// These have no packed form.
decoded!(Iq3Xxs: RowsNeon);
decoded!(Iq3S: RowsNeon);
decoded!(Iq2Xxs: RowsNeon);
decoded!(Iq2Xs: RowsNeon);
decoded!(Iq2S: RowsNeon);
decoded!(Iq1S: RowsNeon);
decoded!(Iq1M: RowsNeon);
