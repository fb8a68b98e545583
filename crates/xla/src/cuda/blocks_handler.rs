//! `alight_matvec`, `alight_matvec_chosen` and `alight_dequantize`, for the platform CUDA: a matrix of blocks, in the format of a
//! model file, times a few tokens; many such matrices, each token times those chosen for it; and rows as floats.
//!
//! - `alight_matvec`: matrix `u8[rows, bytes of a row]`, x `[T, columns]` of bf16 or f32, `T` from 1 to 8. Result: `f32[T, rows]`.
//! - `alight_matvec_chosen`: matrices `u8[slots, rows, bytes of a row]`, x `[X, columns]` of bf16 or f32, the number of a matrix
//!   for each pair `s32[P]`, `P` a multiple of `X` up to 65535. Result: `f32[P, rows]`, whose row `p` is x `p / (P / X)` times
//!   matrix `numbers[p]`, or zeros if there is no such matrix.
//! - `alight_dequantize`: matrix `u8[rows, bytes of a row]`. Result: bf16 or f32 `[rows, columns]`.
//!
//! Attribute: `block_type` (int64), the type's id in GGUF files.
//!
//! *initialize* compiles the kernel for the GPU and loads it: it is not called while a graph is captured. *execute* only launches,
//! so that it may be captured.

use std::sync::OnceLock;

use alight_collective::Element;
use alight_kernels::WeightType;

use super::blocks::{Blocks, BlocksVariant, Launch};
use super::chosen::CountedProducts;
use super::driver::{Driver, Function, Stream};
use super::error::CudaError;
use super::handler::code_of;
use crate::api::{self, CallFrame, Error, TypeId, TypeInfo, data_type};
use crate::arrays::{dimensions, expect};
use crate::frame::{Array, Frame, Refusal, handle_with};
use crate::state::StateType;
use crate::{Stage, State, Target};

const STATE_OF_ALL: State = State {
    name: "alight_kernels_of_blocks",
    type_id: alight_kernels_of_blocks_type_id,
    type_info: alight_kernels_of_blocks_type_info,
};

pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "alight_matvec",
        platform: "CUDA",
        stages: &[
            (Stage::Instantiate, alight_blocks_cuda_instantiate),
            (Stage::Initialize, alight_matvec_cuda_initialize),
            (Stage::Execute, alight_matvec_cuda_execute),
        ],
        state: Some(STATE_OF_ALL),
    },
    Target {
        name: "alight_matvec_chosen",
        platform: "CUDA",
        stages: &[
            (Stage::Instantiate, alight_blocks_cuda_instantiate),
            (Stage::Initialize, alight_matvec_chosen_cuda_initialize),
            (Stage::Execute, alight_matvec_chosen_cuda_execute),
        ],
        state: Some(STATE_OF_ALL),
    },
    Target {
        name: "alight_dequantize",
        platform: "CUDA",
        stages: &[
            (Stage::Instantiate, alight_blocks_cuda_instantiate),
            (Stage::Initialize, alight_dequantize_cuda_initialize),
            (Stage::Execute, alight_dequantize_cuda_execute),
        ],
        state: Some(STATE_OF_ALL),
    },
];

/// Maximum number of GPUs of a process.
const MAX_DEVICES: usize = 64;

/// The state of a call site: the kernel on each GPU. A call site always launches the same one there.
struct BlocksSite {
    functions: [OnceLock<(BlocksVariant, Function)>; MAX_DEVICES],
}

impl BlocksSite {
    fn ready(&self, ordinal: i64, variant: BlocksVariant) -> Result<Function, CudaError> {
        let place = usize::try_from(ordinal).ok().and_then(|at| self.functions.get(at));
        let place = place.ok_or_else(|| {
            let reason = format!("at most {MAX_DEVICES} GPUs of a process are known");
            CudaError::Device { ordinal, reason }
        })?;
        if let Some((loaded, function)) = place.get()
            && *loaded == variant
        {
            return Ok(*function);
        }
        let driver = Driver::get()?;
        let function = driver.relaxed(|| {
            let function = variant.load(driver, ordinal)?;
            // This query loads the kernel; otherwise the driver would load it at the first launch, which may be captured.
            driver.resident(ordinal, function, 32)?;
            Ok(function)
        })?;
        let _ = place.set((variant, function));
        Ok(function)
    }
}

static STATE: StateType<BlocksSite> = StateType::new();

extern "C" fn alight_kernels_of_blocks_type_id() -> *const TypeId {
    STATE.id()
}

extern "C" fn alight_kernels_of_blocks_type_info() -> *const TypeInfo {
    STATE.info()
}

/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_blocks_cuda_instantiate(frame: *mut CallFrame) -> *mut Error {
    let give = |frame: Frame<'_>| {
        STATE.give(frame, BlocksSite { functions: [const { OnceLock::new() }; MAX_DEVICES] })
    };
    // SAFETY: passed on.
    unsafe { handle_with(frame, STATE.number(), api::COMMAND_BUFFER_COMPATIBLE, give) }
}

/// The function that XLA calls at a stage of one of the custom calls.
macro_rules! stage {
    ($name:ident = $stage:ident of $kind:ident) => {
        /// # Safety
        /// Only XLA may call it, with its frame.
        unsafe extern "C" fn $name(frame: *mut CallFrame) -> *mut Error {
            // SAFETY: passed on.
            unsafe {
                handle_with(frame, 0, api::COMMAND_BUFFER_COMPATIBLE, |frame| $stage(frame, &$kind))
            }
        }
    };
}

stage!(alight_matvec_cuda_initialize = initialize of PRODUCT);
stage!(alight_matvec_cuda_execute = execute of PRODUCT);
stage!(alight_matvec_chosen_cuda_initialize = initialize of CHOSEN);
stage!(alight_matvec_chosen_cuda_execute = execute of CHOSEN);
stage!(alight_dequantize_cuda_initialize = initialize of ROWS);
stage!(alight_dequantize_cuda_execute = execute of ROWS);

/// A launch and the addresses of its arrays.
enum BlocksCall {
    OfOne(Launch, [u64; 3]),
    OfChosen(CountedProducts, [u64; 4]),
}

impl BlocksCall {
    fn variant(&self) -> BlocksVariant {
        match self {
            BlocksCall::OfOne(launch, _) => launch.variant(),
            BlocksCall::OfChosen(products, _) => products.variant(),
        }
    }
}

/// `None` if there is nothing to compute.
type Read = Option<BlocksCall>;

/// One of the custom calls.
struct Kind {
    name: &'static str,
    read: fn(Frame<'_>) -> Result<Read, Refusal>,
}

const PRODUCT: Kind = Kind { name: "alight_matvec", read: product };
const CHOSEN: Kind = Kind { name: "alight_matvec_chosen", read: chosen };
const ROWS: Kind = Kind { name: "alight_dequantize", read: rows };

fn initialize(frame: Frame<'_>, kind: &Kind) -> Result<(), Refusal> {
    kind.named(|| {
        let site = STATE.get(frame)?;
        if let Some(call) = (kind.read)(frame)? {
            site.ready(frame.device()?, call.variant()).map_err(refusal)?;
        }
        Ok(())
    })
}

fn execute(frame: Frame<'_>, kind: &Kind) -> Result<(), Refusal> {
    kind.named(|| {
        let site = STATE.get(frame)?;
        let Some(call) = (kind.read)(frame)? else { return Ok(()) };
        let device = frame.device()?;
        let function = site.ready(device, call.variant()).map_err(refusal)?;
        let stream = Stream(frame.stream()?.addr());
        let driver = Driver::get().map_err(refusal)?;
        // SAFETY: XLA's arrays have the sizes that it states, which `read` has checked, are dense and row-major (the default layout
        // of a custom call) and live until the work on the stream has run; the result overlaps nothing. The stream is the device's.
        let put = || unsafe {
            match call {
                BlocksCall::OfOne(launch, arrays) => launch.put(driver, function, arrays, stream),
                BlocksCall::OfChosen(products, arrays) => {
                    products.put(driver, function, arrays, stream)
                }
            }
        };
        driver.on(device, put).map_err(refusal)
    })
}

impl Kind {
    fn named(&self, run: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
        run().map_err(|Refusal(code, text)| Refusal(code, format!("{}: {text}", self.name)))
    }
}

fn product(frame: Frame<'_>) -> Result<Read, Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([matrix, x], [y]) = (&arguments[..], &results[..]) else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected matrix and x, and one result",
            arguments.len(),
            results.len()
        )));
    };
    let [tokens, columns] = dimensions("x", x)?;
    let [rows, bytes] = dimensions("the matrix", matrix)?;
    let ty = block_type(frame, matrix, columns, bytes)?;
    typed("the result", y, Element::F32)?;
    expect("the result", y, &[tokens, rows])?;
    if tokens == 0 || rows == 0 {
        return Ok(None);
    }
    let launch =
        Blocks::new(ty, rows, columns).and_then(|blocks| blocks.product(element("x", x)?, tokens));
    Ok(Some(BlocksCall::OfOne(launch.map_err(refusal)?, [matrix, x, y].map(address))))
}

fn chosen(frame: Frame<'_>) -> Result<Read, Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([matrices, x, numbers], [y]) = (&arguments[..], &results[..]) else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected matrices, x, a number for each pair, and one result",
            arguments.len(),
            results.len()
        )));
    };
    let [given, columns] = dimensions("x", x)?;
    let [slots, rows, bytes] = dimensions("the stack of matrices", matrices)?;
    let ty = block_type(frame, matrices, columns, bytes)?;
    let [pairs] = dimensions("the array of numbers", numbers)?;
    if numbers.dtype != data_type::S32 {
        return Err(Refusal::argument(format!(
            "the numbers are of XLA's type {}, expected int32",
            numbers.dtype
        )));
    }
    typed("the result", y, Element::F32)?;
    expect("the result", y, &[pairs, rows])?;
    if pairs == 0 || rows == 0 {
        return Ok(None);
    }
    if given == 0 || !pairs.is_multiple_of(given) {
        return Err(Refusal::argument(format!(
            "{pairs} pairs for {given} rows of x, expected as many for each"
        )));
    }
    let products = Blocks::new(ty, rows, columns).and_then(|blocks| {
        CountedProducts::new(&blocks, element("x", x)?, slots, pairs, pairs / given)
    });
    let arrays = [matrices, x, numbers, y].map(address);
    Ok(Some(BlocksCall::OfChosen(products.map_err(refusal)?, arrays)))
}

fn rows(frame: Frame<'_>) -> Result<Read, Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([matrix], [y]) = (&arguments[..], &results[..]) else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected a matrix and one result",
            arguments.len(),
            results.len()
        )));
    };
    let [rows, columns] = dimensions("the result", y)?;
    let [height, bytes] = dimensions("the matrix", matrix)?;
    let ty = block_type(frame, matrix, columns, bytes)?;
    expect("the result", y, &[height, columns])?;
    if rows == 0 {
        return Ok(None);
    }
    let launch = Blocks::new(ty, rows, columns)
        .and_then(|blocks| blocks.as_floats(element("the result", y)?));
    Ok(Some(BlocksCall::OfOne(launch.map_err(refusal)?, [address(matrix), 0, address(y)])))
}

fn address(array: &Array<'_>) -> u64 {
    array.data.addr() as u64
}

/// The type of the blocks, of which `columns` columns take `bytes` bytes.
fn block_type(
    frame: Frame<'_>,
    matrix: &Array<'_>,
    columns: usize,
    bytes: usize,
) -> Result<WeightType, Refusal> {
    let id = frame.integer("block_type")?;
    let ty = u32::try_from(id).ok().and_then(WeightType::from_gguf);
    let ty = ty.ok_or_else(|| Refusal::argument(format!("type {id} of GGUF has no kernels")))?;
    if matrix.dtype != data_type::U8 || ty.row_bytes(columns) != Some(bytes) {
        return Err(Refusal::argument(format!(
            "the matrix is {:?} of XLA's type {}, and {columns} columns of {ty} take {} bytes of uint8",
            matrix.dims,
            matrix.dtype,
            ty.row_bytes(columns).map_or("no whole number of".into(), |bytes| bytes.to_string())
        )));
    }
    Ok(ty)
}

fn element(what: &str, array: &Array<'_>) -> Result<Element, CudaError> {
    match array.dtype {
        data_type::BF16 => Ok(Element::Bf16),
        data_type::F32 => Ok(Element::F32),
        other => Err(CudaError::Unsupported(format!(
            "{what} has elements of XLA's type {other}, expected bfloat16 or float32"
        ))),
    }
}

fn typed(what: &str, array: &Array<'_>, expected: Element) -> Result<(), Refusal> {
    match element(what, array) {
        Ok(found) if found == expected => Ok(()),
        _ => Err(Refusal::argument(format!(
            "{what} has elements of XLA's type {}, expected {expected}",
            array.dtype
        ))),
    }
}

fn refusal(error: CudaError) -> Refusal {
    Refusal(code_of(&error), error.to_string())
}
