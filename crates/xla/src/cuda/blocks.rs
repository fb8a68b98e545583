//! Matrices as the blocks of a model file, on a GPU: products with a few tokens, and rows as floats. The supported types, the
//! distribution of a call over a GPU, and its launch; the kernels are in `cuda/matmul.cu`.

use alight_collective::Element;
use alight_kernels::WeightType;

use super::code::{Code, Source};
use super::driver::{Driver, Function, Stream};
use super::error::CudaError;
use super::kernel::name;

/// The types that the kernels support.
pub const TYPES: [WeightType; 7] = [
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q8_0,
    WeightType::MXFP4,
    WeightType::Q4_K,
    WeightType::Q5_K,
    WeightType::Q6_K,
];
/// Maximum number of tokens of a product.
pub const MAX_TOKENS: usize = 8;

/// Columns that a warp processes at a time, as in the source.
const STEP: usize = 1024;
/// Floats of a gap in x, as in the source.
const GAP: usize = 4;
/// Elements of x in a block's shared memory at a time, of all tokens. With more of them, fewer blocks fit on a multiprocessor.
const PANEL: usize = 8 * STEP;
/// This many blocks keep every multiprocessor of the largest GPUs busy; for a matrix with fewer rows, blocks are smaller.
const ENOUGH_BLOCKS: usize = 256;
/// Warps of a block that writes floats.
const WRITERS: usize = 8;

/// The source's constants for a type: see `Of_blocks` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of shared memory for a step of a row.
    pub place: usize,
    /// Columns of x between gaps.
    pub run: usize,
    /// Steps that are fetched at a time.
    pub stages: usize,
}

impl Sizes {
    /// The constants of one of [`TYPES`].
    pub fn of(ty: WeightType) -> Sizes {
        let bytes = STEP / ty.block_len() * ty.block_bytes();
        let run = match ty {
            WeightType::Q6_K => 128,
            WeightType::Q4_K | WeightType::Q5_K => 64,
            _ => 32,
        };
        Sizes { place: (bytes + 34) / 16 * 16, run, stages: if bytes > 800 { 3 } else { 4 } }
    }

    /// Bytes of `columns` columns of x.
    fn panel(&self, columns: usize) -> usize {
        4 * (columns + columns / self.run * GAP)
    }
}

/// The source of the pairs of a token and a matrix: a type in the CUDA source, of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// The host lists them.
    Listed,
    /// An array on the GPU.
    Counted,
}

/// A kernel of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlocksVariant {
    /// A product with up to `tokens` tokens: 1, 2, 4 or 8.
    Product {
        /// Type of the matrix.
        ty: WeightType,
        /// Type of x: bf16 or f32.
        x: Element,
        /// Maximum number of tokens.
        tokens: usize,
    },
    /// Products with matrices in slots, of one token each.
    Chosen {
        /// Type of the matrices.
        ty: WeightType,
        /// Type of x: bf16 or f32.
        x: Element,
        /// The source of the matrix of each token.
        pairs: Pairs,
    },
    /// Rows as floats.
    Rows {
        /// Type of the matrix.
        ty: WeightType,
        /// Type of the result: bf16 or f32.
        out: Element,
    },
}

impl BlocksVariant {
    /// The variant on a GPU: compiled and loaded the first time.
    pub fn load(self, driver: &Driver, ordinal: i64) -> Result<Function, CudaError> {
        self.code().load(driver, ordinal)
    }

    /// The variant with a deliberate mistake, for tests.
    pub fn load_broken(
        self,
        driver: &Driver,
        ordinal: i64,
        mistake: &str,
    ) -> Result<Function, CudaError> {
        let mut code = self.code();
        code.macros.push(mistake.into());
        code.load(driver, ordinal)
    }

    fn code(self) -> Code {
        let source = Source::Matmul;
        match self {
            BlocksVariant::Product { ty, x, tokens } => {
                let macros = vec![
                    format!("ALIGHT_TYPE={}", ty.ggml().name()),
                    format!("ALIGHT_X={}", name(x)),
                    format!("ALIGHT_TOKENS={tokens}"),
                ];
                let shared = shared(ty, tokens, most_warps(tokens), PANEL / tokens);
                Code { source, entry: c"alight_matvec", macros, shared }
            }
            BlocksVariant::Chosen { ty, x, pairs } => {
                let macros = vec![
                    format!("ALIGHT_TYPE={}", ty.ggml().name()),
                    format!("ALIGHT_X={}", name(x)),
                    format!("ALIGHT_CHOSEN={pairs:?}"),
                ];
                let shared = shared(ty, 1, most_warps(1), PANEL);
                Code { source, entry: c"alight_chosen", macros, shared }
            }
            BlocksVariant::Rows { ty, out } => {
                let macros = vec![
                    format!("ALIGHT_TYPE={}", ty.ggml().name()),
                    format!("ALIGHT_OUT={}", name(out)),
                ];
                let shared = shared_of_writers(ty);
                Code { source, entry: c"alight_dequantize", macros, shared }
            }
        }
    }
}

/// Checks that kernels can be compiled for these GPUs: a driver, a compiler, and compute capability 8.0.
pub fn available(ordinals: &[i64]) -> Result<(), CudaError> {
    let driver = Driver::get()?;
    super::nvrtc::available()?;
    ordinals.iter().try_for_each(|ordinal| super::code::architecture(driver, *ordinal).map(|_| ()))
}

/// Rows that a warp computes at once, as in the source.
const fn rows_of_a_warp(tokens: usize) -> usize {
    if tokens < 4 { 2 } else { 4 }
}

/// Maximum number of warps of a block, as in the source.
const fn most_warps(tokens: usize) -> usize {
    if tokens < 4 { 8 } else { 4 }
}

/// Bytes of shared memory of a block that multiplies.
fn shared(ty: WeightType, tokens: usize, warps: usize, panel: usize) -> usize {
    let sizes = Sizes::of(ty);
    tokens * sizes.panel(panel) + warps * sizes.stages * rows_of_a_warp(tokens) * sizes.place
}

/// Bytes of shared memory of a block that writes floats.
fn shared_of_writers(ty: WeightType) -> usize {
    let sizes = Sizes::of(ty);
    WRITERS * (sizes.place + sizes.panel(STEP))
}

/// A matrix of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// One of [`TYPES`].
    pub ty: WeightType,
    /// At least one.
    pub rows: usize,
    /// Whole blocks, at least one.
    pub columns: usize,
}

/// The distribution of a call over a GPU: a pure function of type and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub(super) variant: BlocksVariant,
    pub(super) blocks: usize,
    pub(super) warps: usize,
    pub(super) shared: usize,
    pub(super) panel: usize,
}

/// A call: a kernel, its grid and its argument, without the addresses of the arrays.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub(super) grid: Grid,
    pub(super) params: BlocksParams,
}

impl Blocks {
    /// A matrix that the kernels can read.
    pub fn new(ty: WeightType, rows: usize, columns: usize) -> Result<Blocks, CudaError> {
        let refuse = |text: String| Err(CudaError::Unsupported(text));
        if !TYPES.contains(&ty) {
            let known = TYPES.map(|ty| ty.to_string()).join(", ");
            return refuse(format!("blocks of {ty}, the kernels know {known}"));
        }
        // Offsets in a row, and columns, are counted in 32 bits.
        let most = i32::MAX as usize / 2;
        match ty.row_bytes(columns) {
            None => refuse(format!(
                "{columns} columns of {ty}, expected whole blocks of {}",
                ty.block_len()
            )),
            Some(bytes)
                if (1..most).contains(&rows)
                    && (1..most).contains(&columns)
                    && (1..most).contains(&bytes) =>
            {
                Ok(Blocks { ty, rows, columns })
            }
            Some(_) => {
                refuse(format!("{rows} rows of {columns} columns, expected 1 to {most} of both"))
            }
        }
    }

    fn row_bytes(&self) -> u64 {
        self.columns as u64 / self.ty.block_len() as u64 * self.ty.block_bytes() as u64
    }

    fn params(&self, tokens: usize, panel: usize) -> BlocksParams {
        BlocksParams {
            matrix: 0,
            x: 0,
            y: 0,
            row_bytes: self.row_bytes(),
            rows: self.rows as u32,
            columns: self.columns as u32,
            tokens: tokens as u32,
            panel: panel as u32,
        }
    }

    /// The product with `tokens` rows of `x`.
    pub fn product(&self, x: Element, tokens: usize) -> Result<Launch, CudaError> {
        if !(1..=MAX_TOKENS).contains(&tokens) || x == Element::F16 {
            return Err(CudaError::Unsupported(format!(
                "{tokens} tokens of {x}, expected 1 to {MAX_TOKENS} of bf16 or f32"
            )));
        }
        let most = tokens.next_power_of_two();
        let rows = rows_of_a_warp(most);
        let fit = |warps: &usize| self.rows.div_ceil(warps * rows) >= ENOUGH_BLOCKS;
        let warps = [8, 4, 2].into_iter().filter(|warps| *warps <= most_warps(most));
        let warps = warps.clone().find(fit).unwrap_or(2);
        let panel = self.columns.next_multiple_of(STEP).min(PANEL / most);
        let grid = Grid {
            variant: BlocksVariant::Product { ty: self.ty, x, tokens: most },
            blocks: self.rows.div_ceil(warps * rows),
            warps,
            shared: shared(self.ty, most, warps, panel),
            panel,
        };
        Ok(Launch { grid, params: self.params(tokens, panel) })
    }

    /// All rows as floats.
    pub fn as_floats(&self, out: Element) -> Result<Launch, CudaError> {
        let items = self.rows as u64 * self.columns.div_ceil(STEP) as u64;
        let blocks = items.div_ceil(WRITERS as u64);
        if blocks > i32::MAX as u64 || out == Element::F16 {
            return Err(CudaError::Unsupported(format!(
                "{} rows of {} columns as {out}, expected bf16 or f32, and fewer rows",
                self.rows, self.columns
            )));
        }
        let grid = Grid {
            variant: BlocksVariant::Rows { ty: self.ty, out },
            blocks: blocks as usize,
            warps: WRITERS,
            shared: shared_of_writers(self.ty),
            panel: 0,
        };
        Ok(Launch { grid, params: self.params(0, 0) })
    }
}

impl Launch {
    /// The kernel.
    pub fn variant(&self) -> BlocksVariant {
        self.grid.variant
    }

    /// Puts the call on a stream, without allocating memory or waiting.
    ///
    /// # Safety
    /// `function` is [`Launch::variant`], loaded into the GPU whose context is current and to which the stream belongs. The arrays
    /// are valid until the call, or the graph that it is captured for, has ended: blocks `u8[rows, bytes of a row]`, `x` `[tokens,
    /// columns]` (except for a call of [`Blocks::as_floats`]), and the result, `f32[tokens, rows]` or `[rows, columns]`, which is
    /// not used elsewhere until then.
    pub unsafe fn put(
        &self,
        driver: &Driver,
        function: Function,
        [matrix, x, y]: [u64; 3],
        stream: Stream,
    ) -> Result<(), CudaError> {
        let params = BlocksParams { matrix, x, y, ..self.params };
        // SAFETY: by the contract.
        unsafe { self.grid.put(driver, function, 1, matrix | x | y, stream, &params) }
    }
}

impl Grid {
    /// Puts `count` calls on a stream, in one launch. `addresses` is the bitwise *or* of all values that must be multiples of 16
    /// bytes.
    ///
    /// # Safety
    /// As for [`Driver::launch`], and `function` is this grid's variant.
    pub(super) unsafe fn put<T>(
        &self,
        driver: &Driver,
        function: Function,
        count: usize,
        addresses: u64,
        stream: Stream,
        argument: &T,
    ) -> Result<(), CudaError> {
        if !addresses.is_multiple_of(16) {
            return Err(CudaError::Unsupported(
                "an array, or a matrix in a slot, does not begin at a multiple of 16 bytes".into(),
            ));
        }
        let grid = (self.blocks as u32, count as u32);
        let (threads, shared) = (32 * self.warps as u32, self.shared as u32);
        // SAFETY: by the contract.
        unsafe { driver.launch(function, grid, threads, shared, stream, argument) }
    }
}

/// The kernels' argument: `Params` of the source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct BlocksParams {
    pub(super) matrix: u64,
    pub(super) x: u64,
    pub(super) y: u64,
    pub(super) row_bytes: u64,
    pub(super) rows: u32,
    pub(super) columns: u32,
    pub(super) tokens: u32,
    pub(super) panel: u32,
}

/// For a test of the compiler.
#[cfg(test)]
pub(super) fn an_example() -> Code {
    BlocksVariant::Product { ty: WeightType::Q4_0, x: Element::Bf16, tokens: 1 }.code()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(ty: WeightType, rows: usize, columns: usize, tokens: usize) -> Grid {
        Blocks::new(ty, rows, columns).unwrap().product(Element::Bf16, tokens).unwrap().grid
    }

    #[test]
    fn grids() {
        let of = |rows, tokens| {
            let grid = product(WeightType::Q4_0, rows, 4096, tokens);
            (grid.blocks, grid.warps, grid.panel)
        };
        assert_eq!(of(4096, 1), (256, 8, 4096));
        assert_eq!(of(4095, 1), (256, 8, 4096));
        assert_eq!(of(1024, 1), (256, 2, 4096));
        assert_eq!(of(1, 1), (1, 2, 4096));
        assert_eq!(of(4096, 3), (256, 4, 2048));
        assert_eq!(of(14336, 8), (896, 4, 1024));
        assert_eq!(product(WeightType::Q4_0, 4096, 14336, 1).panel, 8192);
        assert_eq!(product(WeightType::Q4_0, 8, 96, 1).panel, 1024);
    }

    /// A block of compute capability 8.6 or 8.9 has at most 99 KiB; of 8.0, 9.0 and 10.0 more.
    #[test]
    fn shared_memory_suffices() {
        for ty in TYPES {
            for tokens in [1, 2, 4, 8] {
                let grid = product(ty, 1 << 20, 1 << 16, tokens);
                assert!(grid.shared <= grid.variant.code().shared, "{ty}, {tokens}");
                assert!(grid.shared <= 99 << 10, "{ty}, {tokens}: {}", grid.shared);
            }
        }
    }

    #[test]
    fn what_is_refused() {
        for (ty, rows, columns, message) in [
            (WeightType::Q4_K, 1, 255, "255 columns of Q4_K, expected whole blocks of 256"),
            (WeightType::Q4_0, 0, 32, "0 rows"),
            (WeightType::Q4_0, 1, 0, "0 columns"),
            (WeightType::Q5_0, 1, 32, "blocks of Q5_0, the kernels know Q4_0"),
        ] {
            let error = Blocks::new(ty, rows, columns).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        let blocks = Blocks::new(WeightType::Q4_0, 1, 32).unwrap();
        for (x, tokens) in [(Element::F32, 0), (Element::F32, 9), (Element::F16, 1)] {
            assert!(blocks.product(x, tokens).is_err());
        }
        assert!(blocks.as_floats(Element::F16).is_err());
    }
}
