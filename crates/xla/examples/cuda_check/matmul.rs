//! Products with blocks of weights: whether they are right on this GPU, and how long they take.

use alight_collective::Element;
use alight_kernels::WeightType;
use alight_xla::cuda::blocks::{Blocks, BlocksVariant, Launch, TYPES};
use alight_xla::cuda::{CudaError, Driver, Graph, Memory, Stream};

use crate::cuda_checks::{Checked, blocks, pool, said};

/// Memory that matrices are taken from in turn: much more than a second-level cache.
const ROOM: usize = 512 << 20;
const SHAPES: [(usize, usize); 4] = [(4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096)];
const TOKENS: [usize; 3] = [1, 4, 8];
const TURNS: usize = 21;

/// All checks.
pub fn test() -> bool {
    let mut passed = true;
    let mut check = |name: String, run: &dyn Fn() -> Checked| {
        passed &= crate::linux::holds(&name, run);
    };
    check("all kernels compile".into(), &|| blocks::compiled(&blocks::variants()));
    for ty in TYPES {
        check(format!("products with {ty}"), &|| blocks::products(ty, true));
        check(format!("pairs with {ty}"), &|| blocks::pairs(ty, true));
        check(format!("rows of {ty} as floats"), &|| blocks::rows(ty, true));
    }
    check("a matrix beyond 4 GiB".into(), &blocks::far_away);
    check("products in a graph".into(), &blocks::captured);
    check("mistakes are found".into(), &|| blocks::broken(&blocks::MISTAKES));
    check("mistakes of pairs are found".into(), &blocks::broken_pairs);
    passed
}

/// Products with experts in slots, of which some are copied when they are chosen.
pub fn pool() -> bool {
    let mut passed = true;
    for (i, ty) in TYPES.into_iter().enumerate() {
        let x = [Element::Bf16, Element::F32][i % 2];
        passed &= crate::linux::holds(&format!("experts of {ty} in slots, every budget"), || {
            // A stream comes when it comes.
            pool::every_budget(&pool::Case::new(0, ty, i % 3 == 0, x)?, 1, &|_, _| ())
        });
    }
    let case = || pool::Case::new(0, WeightType::Q4_0, false, Element::F32);
    passed & crate::linux::holds("wrong tables", || pool::wrong_tables(&case()?))
}

/// How long products take, beside a copy.
pub fn bench() -> bool {
    match measure() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("{error}");
            false
        }
    }
}

/// What is measured with: memory for matrices, and for everything else.
struct Bench {
    driver: &'static Driver,
    stream: Stream,
    matrices: Memory,
    x: Memory,
    out: Memory,
}

impl Bench {
    fn time(&self, graph: Graph, calls: usize) -> Result<[f64; 3], CudaError> {
        let Bench { driver, stream, .. } = *self;
        driver.on(0, || crate::linux::replays(driver, stream, graph, calls, TURNS))
    }

    /// Gigabytes per second that a copy within the GPU reads and writes.
    fn copy(&self) -> Result<f64, CudaError> {
        let Bench { driver, stream, .. } = *self;
        let half = ROOM / 2;
        let graph = driver.on(0, || {
            driver.capture(stream, || {
                (0..4)
                    .try_for_each(|_| self.matrices.copy_later(half, &self.matrices, half, stream))
            })
        })?;
        let [_, median, _] = self.time(graph, 4)?;
        Ok(2.0 * half as f64 / median / 1e3)
    }

    /// The time of a call that reads another matrix each time. They begin so many bytes apart.
    fn call(&self, launch: &Launch, apart: usize) -> Result<[f64; 3], CudaError> {
        let Bench { driver, stream, .. } = *self;
        let function = launch.variant().load(driver, 0)?;
        let count = ROOM / apart;
        let calls = count * 64usize.div_ceil(count);
        let graph = driver.on(0, || {
            driver.capture(stream, || {
                (0..calls).try_for_each(|call| {
                    let at = (call % count * apart) as u64;
                    let arrays =
                        [self.matrices.address() + at, self.x.address(), self.out.address()];
                    // SAFETY: the arrays are there as long as the graph is used, and large enough.
                    unsafe { launch.put(driver, function, arrays, stream) }
                })
            })
        })?;
        self.time(graph, calls)
    }
}

fn measure() -> Checked {
    let mut variants = vec![];
    for ty in TYPES {
        variants.extend(TOKENS.map(|tokens| BlocksVariant::Product {
            ty,
            x: Element::Bf16,
            tokens,
        }));
        variants.push(BlocksVariant::Rows { ty, out: Element::Bf16 });
    }
    blocks::compiled(&variants)?;
    let driver = Driver::get().map_err(said)?;
    let memory = |bytes| driver.allocate(0, bytes).map_err(said);
    let bench = Bench {
        driver,
        stream: driver.stream(0).map_err(said)?,
        matrices: memory(ROOM)?,
        x: memory(8 * 14336 * 4)?,
        out: memory(14336 * 4096 * 2)?,
    };
    let copy = bench.copy().map_err(said)?;
    println!(
        "µs per call in a graph, median (quartiles) of {TURNS}; each reads another of the matrices in {} MB. A copy reads and writes {copy:.0} GB/s.",
        ROOM >> 20
    );
    println!("\n| type | rows × columns | tokens | µs | GB/s of blocks | share of a copy's |");
    println!("|---|---|---|---|---|---|");
    for ty in TYPES {
        fill(&bench, ty)?;
        for (rows, columns) in SHAPES {
            let bytes = rows * ty.row_bytes(columns).unwrap_or(0);
            let matrix = Blocks::new(ty, rows, columns).map_err(said)?;
            for tokens in TOKENS {
                let launch = matrix.product(Element::Bf16, tokens).map_err(said)?;
                let [low, median, high] =
                    bench.call(&launch, bytes.next_multiple_of(piece(ty))).map_err(said)?;
                let speed = bytes as f64 / median / 1e3;
                println!(
                    "| {ty} | {rows} × {columns} | {tokens} | {median:.2} ({low:.2}–{high:.2}) | {speed:.0} | {:.0} % |",
                    100.0 * speed / copy
                );
            }
        }
        let (rows, columns) = SHAPES[1];
        let launch = Blocks::new(ty, rows, columns).and_then(|m| m.as_floats(Element::Bf16));
        let bytes = rows * ty.row_bytes(columns).unwrap_or(0);
        let [low, median, high] =
            bench.call(&launch.map_err(said)?, bytes.next_multiple_of(piece(ty))).map_err(said)?;
        let speed = (bytes + 2 * rows * columns) as f64 / median / 1e3;
        println!(
            "| {ty} | {rows} × {columns} | to bf16 | {median:.2} ({low:.2}–{high:.2}) | {speed:.0}, with what is written | {:.0} % |",
            100.0 * speed / copy
        );
    }
    Ok(())
}

/// Bytes of whole blocks that are a multiple of 256: matrices begin at multiples of these.
fn piece(ty: WeightType) -> usize {
    256 * ty.block_bytes()
}

/// Blocks of the type all over the memory: what arithmetic and memory take may depend on what there is.
fn fill(bench: &Bench, ty: WeightType) -> Checked {
    let bytes = blocks::random_blocks(ty, (8 << 20) / piece(ty) * piece(ty), 1);
    for start in (0..ROOM).step_by(bytes.len()) {
        let count = bytes.len().min(ROOM - start);
        bench.matrices.write(start, &bytes[..count]).map_err(said)?;
    }
    Ok(())
}
