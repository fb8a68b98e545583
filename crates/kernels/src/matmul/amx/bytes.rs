//! Integer products of bytes: 12 tokens × 16 rows × 32 columns in one instruction, for types with one scale per 32 weights.
//! (Types with one per 16 would need twice as many sums, and gain nothing.)
//!
//! The panel is that of AVX-512, with signed codes, and the activations are those of packed weights there. A sum of products is
//! exact, and the operations that turn it into a part of a result are those of AVX-512 in their order. So the bits are the same,
//! and the number of tokens of a prompt may decide which of the two is used.
//!
//! Sums leave the tile registers through memory, 16 rows of a register in 16 cycles at best, and wait for the products. So the
//! products of the next group are started before the sums of a group are stored, and these are read one step later.
//!
//! While tile instructions are in flight, a core multiplies floats with only one of its two 512-bit multipliers (measured on
//! Sapphire Rapids: 320 multiplications take 300 cycles after a single `tilezero`, and 160 without). Additions still have two. So
//! integers are converted to floats by additions, see [`add`].

use super::GROUP;
use super::tile::{LINE, Registers, Shapes, TILE};
use crate::blocks::Formula;
use crate::lanes::avx512::in_order;
use crate::matmul::gemm::Panel;
use crate::matmul::sizes::{PANEL_ROWS, TOKEN_BLOCK};
use crate::matmul::tiles::avx512::{Block, mask};
use crate::matmul::{Output, Tokens};
use std::arch::x86_64::*;
use std::ops::Range;

/// Halves of a panel; one instruction multiplies one.
const HALVES: usize = PANEL_ROWS / TILE;

const _: () = assert!(HALVES == 2 && TOKEN_BLOCK <= TILE);

/// Bytes of a panel's line of four columns.
const LINE_OF_PANEL: usize = 4 * PANEL_ROWS;

/// Registers 0 to 3 are sums: two groups, each with two halves of the panel. 4 and 5 are tokens, 6 and 7 the two halves.
static SHAPES: Shapes = {
    let (sums, tokens, lines) = ([TOKEN_BLOCK, LINE], [TOKEN_BLOCK, GROUP], [GROUP / 4, LINE]);
    Shapes::new([sums, sums, sums, sums, tokens, tokens, lines, lines])
};

/// Sums of one group of columns.
#[repr(align(64))]
struct GroupSums([[[i32; TILE]; HALVES]; TOKEN_BLOCK]);

/// Multiplies a panel's columns `k` with all tokens: overwrites the outputs with the first columns, adds the others. The panel's
/// first row is `base`, and the results of `rows` are stored.
///
/// # Safety
/// The elements `rows` of all tokens of `out` are inside its buffer and only ours; the panel has these columns, as signed codes
/// with one scale per 32; the tokens have 8 bits and are packed in blocks; the CPU has the level.
pub(in crate::matmul) unsafe fn multiply<F: Formula>(
    rows: &Range<usize>,
    base: usize,
    k: Range<usize>,
    x: &Tokens<'_>,
    out: Output<'_>,
    p: &Panel,
) {
    // SAFETY: by the caller's promise.
    let registers = unsafe { Registers::take(&SHAPES) };
    let mut sums = [const { GroupSums([[[0; TILE]; HALVES]; TOKEN_BLOCK]) }; 2];
    for t in (0..x.tokens()).step_by(TOKEN_BLOCK) {
        let part = BlockOperands {
            rows,
            base,
            k: &k,
            x: Block::of(x, t / TOKEN_BLOCK),
            first: t,
            tokens: (x.tokens() - t).min(TOKEN_BLOCK),
            p,
        };
        // SAFETY: by the caller's promise. Results for tokens that do not exist are not stored.
        unsafe { block::<F>(&registers, &part, out, &mut sums) };
    }
}

/// The operands of one step: a panel and a block of tokens.
struct BlockOperands<'a> {
    rows: &'a Range<usize>,
    /// The panel's first row.
    base: usize,
    k: &'a Range<usize>,
    x: Block,
    /// The block's first token; `tokens` of them exist.
    first: usize,
    tokens: usize,
    p: &'a Panel,
}

/// # Safety
/// As for [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,fma,f16c")]
unsafe fn block<F: Formula>(
    registers: &Registers,
    part: &BlockOperands<'_>,
    out: Output<'_>,
    sums: &mut [GroupSums; 2],
) {
    let at = |t: usize, half: usize| out.at(part.first + t, part.base + TILE * half);
    // Loops of a fixed length, so that the sums stay in registers.
    let there = [0, 1].map(|half| mask(part.rows, part.base + TILE * half));
    let masks = |t: usize| if t < part.tokens { there } else { [0; HALVES] };
    // SAFETY: masked lanes are neither read nor written; the others are ours by the caller's promise.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); HALVES]; TOKEN_BLOCK];
        if part.k.start != 0 {
            for t in 0..TOKEN_BLOCK {
                for half in 0..HALVES {
                    acc[t][half] = _mm512_maskz_loadu_ps(masks(t)[half], at(t, half));
                }
            }
        }
        columns::<F>(registers, part, sums, &mut acc);
        for t in 0..TOKEN_BLOCK {
            for half in 0..HALVES {
                _mm512_mask_storeu_ps(at(t, half), masks(t)[half], acc[t][half]);
            }
        }
    }
}

/// Adds the products of all columns.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn columns<F: Formula>(
    registers: &Registers,
    part: &BlockOperands<'_>,
    sums: &mut [GroupSums; 2],
    acc: &mut [[__m512; HALVES]; TOKEN_BLOCK],
) {
    let groups = part.k.len() / GROUP;
    let [even, odd] = sums;
    // SAFETY: there are this many groups; by the caller's promise.
    unsafe {
        begin::<0, 1, 4>(registers, part, 0);
        if groups > 1 {
            begin::<2, 3, 5>(registers, part, 1);
        }
        end::<0, 1>(registers, even);
        let mut g = 0;
        while g + 3 < groups {
            // Group `g` is in memory, and group `g + 1` in registers.
            begin::<0, 1, 4>(registers, part, g + 2);
            end::<2, 3>(registers, odd);
            add::<F>(part, g, even, acc);
            begin::<2, 3, 5>(registers, part, g + 3);
            end::<0, 1>(registers, even);
            add::<F>(part, g + 1, odd, acc);
            g += 2;
        }
        // One, two or three are left.
        if g + 1 < groups {
            end::<2, 3>(registers, odd);
        }
        add::<F>(part, g, even, acc);
        if g + 2 < groups {
            begin::<0, 1, 4>(registers, part, g + 2);
            end::<0, 1>(registers, even);
        }
        if g + 1 < groups {
            add::<F>(part, g + 1, odd, acc);
        }
        if g + 2 < groups {
            add::<F>(part, g + 2, even, acc);
        }
    }
}

/// Starts the products of group `g` of the panel with both halves of it, in registers `FIRST` and `SECOND`.
///
/// # Safety
/// There is such a group.
#[inline(always)]
unsafe fn begin<const FIRST: u8, const SECOND: u8, const TOKENS: u8>(
    registers: &Registers,
    part: &BlockOperands<'_>,
    g: usize,
) {
    let x = part.x.q.wrapping_add(TOKEN_BLOCK * (part.k.start + GROUP * g));
    let w = part.p.q.as_ptr().wrapping_add(PANEL_ROWS * GROUP * g);
    // SAFETY: inside the activations and the panel, by the caller's promise.
    unsafe {
        registers.load::<TOKENS>(x.cast(), GROUP);
        registers.load::<6>(w.cast(), LINE_OF_PANEL);
        registers.zero::<FIRST>();
        registers.multiply_bytes::<FIRST, TOKENS, 6>();
        registers.load::<7>(w.wrapping_add(LINE).cast(), LINE_OF_PANEL);
        registers.zero::<SECOND>();
        registers.multiply_bytes::<SECOND, TOKENS, 7>();
    }
}

/// Stores the products started by [`begin`].
#[inline(always)]
fn end<const FIRST: u8, const SECOND: u8>(registers: &Registers, sums: &mut GroupSums) {
    let to = sums.0.as_mut_ptr().cast::<u8>();
    // SAFETY: the sums have the rows of the registers.
    unsafe {
        registers.store::<FIRST>(to, HALVES * LINE);
        registers.store::<SECOND>(to.add(LINE), HALVES * LINE);
    }
}

/// Adds the sums of group `g` of the panel.
///
/// # Safety
/// There is such a group; the CPU has the level.
#[inline(always)]
unsafe fn add<F: Formula>(
    part: &BlockOperands<'_>,
    g: usize,
    sums: &GroupSums,
    acc: &mut [[__m512; HALVES]; TOKEN_BLOCK],
) {
    let (x, p) = (&part.x, part.p);
    // Counted among the row's groups.
    let b = part.k.start / GROUP + g;
    // SAFETY: inside the activations and the panel, by the caller's promise.
    unsafe {
        // An integer below 2²² added to the bits of 1.5·2²³ yields the bits of the sum of the two. The sums are below 32·128·128.
        let large = _mm512_set1_ps(12_582_912.0);
        let d = p.d.as_ptr().add(PANEL_ROWS * g);
        let d = [_mm512_load_ps(d), _mm512_load_ps(d.add(TILE))];
        let scale = x.scale.add(TOKEN_BLOCK * b);
        for t in 0..TOKEN_BLOCK {
            let a = _mm512_set1_ps(*scale.add(t));
            for half in 0..HALVES {
                let sum = _mm512_load_si512(sums.0[t][half].as_ptr().cast());
                let f = _mm512_add_epi32(_mm512_castps_si512(large), sum);
                let f = _mm512_sub_ps(_mm512_castsi512_ps(f), large);
                let sum = _mm512_fmadd_ps(f, _mm512_mul_ps(d[half], a), acc[t][half]);
                // In this order: the compiler would otherwise read more sums than it has registers for.
                acc[t][half] = in_order(sum);
            }
        }
        for h in 0..F::OFFSETS {
            let m = p.m.as_ptr().add(PANEL_ROWS * (F::OFFSETS * g + h));
            let m = [_mm512_load_ps(m), _mm512_load_ps(m.add(TILE))];
            for t in 0..TOKEN_BLOCK {
                let sum = _mm512_set1_ps(x.offset_sum(F::OFFSETS, b, h, t));
                for half in 0..HALVES {
                    acc[t][half] = in_order(_mm512_fmadd_ps(m[half], sum, acc[t][half]));
                }
            }
        }
    }
}
