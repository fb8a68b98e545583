//! Products with matrices in blocks, and their rows as floats: against 64-bit sums of what `alight-kernels` makes of the same blocks. Products of pairs
//! of a token and one of several matrices: against those of the token with all of them.

use std::sync::OnceLock;

use alight_collective::Element;
use alight_kernels::half::{bf16_to_f32, f32_to_bf16, f32_to_f16};
use alight_kernels::{ScaleField, WeightType, dequantize_row};
use alight_xla::cuda::blocks::{Blocks, BlocksVariant, Launch, MAX_TOKENS, Pairs, TYPES};
use alight_xla::cuda::chosen::CountedProducts;
use alight_xla::cuda::{CudaError, Driver, Function, Memory, Stream};

use super::{Checked, said};

/// The largest error, in units of the sum of |x| times the largest weight of its 32: see [`Case::check`].
const TOLERANCE: f64 = 1.0 / (1 << 22) as f64;
/// Bytes after a result that nobody may write.
const GUARD: usize = 64;

/// Numbers that look random, always the same (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// From −1 to 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Blocks of all codes, with scales between 2⁻⁸ and 2⁻⁴ of either sign.
pub fn random_blocks(ty: WeightType, bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut blocks: Vec<u8> =
        (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_ne_bytes()).collect();
    blocks.truncate(bytes);
    for block in blocks.chunks_exact_mut(ty.block_bytes()) {
        for field in ty.scale_fields() {
            let bits = random.bits();
            match *field {
                ScaleField::F16(at) => {
                    let size = f32::exp2(-8.0 + (bits >> 8 & 0xffff) as f32 / 16384.0);
                    let scale = if bits & 1 == 0 { size } else { -size };
                    block[at..at + 2].copy_from_slice(&f32_to_f16(scale).to_le_bytes());
                }
                ScaleField::Exponent(at) => block[at] = 119 + (bits % 5) as u8,
                _ => unreachable!("no type of the kernels"),
            }
        }
    }
    blocks
}

/// A matrix on the GPU, and here as floats.
struct Case {
    blocks: Blocks,
    bytes: Vec<u8>,
    weights: Vec<f32>,
    matrix: Memory,
    stream: Stream,
}

impl Case {
    fn new(
        ty: WeightType,
        rows: usize,
        columns: usize,
        change: impl Fn(&mut Vec<u8>),
    ) -> Result<Case, String> {
        let driver = Driver::get().map_err(said)?;
        let blocks = Blocks::new(ty, rows, columns).map_err(said)?;
        let pitch = ty.row_bytes(columns).unwrap();
        let mut bytes = random_blocks(ty, rows * pitch, (rows * 7919 + columns) as u64);
        change(&mut bytes);
        let mut weights = vec![0.0; rows * columns];
        for (bytes, out) in bytes.chunks_exact(pitch).zip(weights.chunks_exact_mut(columns)) {
            dequantize_row(ty, bytes, out);
        }
        let matrix = held(&bytes)?;
        // One for all cases, since streams stay.
        static STREAM: OnceLock<Result<Stream, CudaError>> = OnceLock::new();
        let stream = STREAM.get_or_init(|| driver.stream(0)).clone().map_err(said)?;
        Ok(Case { blocks, bytes, weights, matrix, stream })
    }

    fn what(&self) -> String {
        format!("{} [{}, {}]", self.blocks.ty, self.blocks.rows, self.blocks.columns)
    }

    /// The result of a call of one matrix, of so many bytes.
    fn run(
        &self,
        launch: &Launch,
        x: &Memory,
        bytes: usize,
        mistake: Option<&str>,
    ) -> Result<Vec<u8>, String> {
        self.run_any(launch.variant(), bytes, mistake, &|driver, function, y| {
            let arrays = [self.matrix.address(), x.address(), y];
            // SAFETY: the arrays are there until the stream is empty, and have the sizes of the call.
            unsafe { launch.put(driver, function, arrays, self.stream) }
        })
    }

    /// The result of what `put` puts on the stream, which gets its address.
    fn run_any(
        &self,
        variant: BlocksVariant,
        bytes: usize,
        mistake: Option<&str>,
        put: &dyn Fn(&Driver, Function, u64) -> Result<(), CudaError>,
    ) -> Result<Vec<u8>, String> {
        let driver = Driver::get().map_err(said)?;
        let out = driver.allocate(0, bytes + GUARD).map_err(said)?;
        out.fill(0xa5).map_err(said)?;
        let function = match mistake {
            None => variant.load(driver, 0),
            Some(mistake) => variant.load_broken(driver, 0, mistake),
        };
        let function = function.map_err(said)?;
        let put = driver.on(0, || put(driver, function, out.address()));
        let waited = driver.wait(0, self.stream);
        put.and(waited).map_err(said)?;
        let mut found = vec![0; bytes + GUARD];
        out.read(0, &mut found).map_err(said)?;
        match found.split_off(bytes).iter().all(|byte| *byte == 0xa5) {
            true => Ok(found),
            false => Err(format!("{}: bytes after the result are written", self.what())),
        }
    }

    /// Products with `tokens` rows of x, `[tokens, rows]`.
    fn product(
        &self,
        x: &X,
        tokens: std::ops::Range<usize>,
        mistake: Option<&str>,
    ) -> Result<Vec<f32>, String> {
        let launch = self.blocks.product(x.element, tokens.len()).map_err(said)?;
        let pitch = x.bytes.len() / x.tokens;
        let memory = held(&x.bytes[tokens.start * pitch..tokens.end * pitch])?;
        self.run(&launch, &memory, 4 * tokens.len() * self.blocks.rows, mistake).map(floats)
    }

    /// Products of pairs, whose matrices are `slots` parts of the whole, with all rows of x: each pair has the bits of `product` with that token
    /// alone, or zeros.
    fn check_pairs(&self, x: &X, slots: usize, numbers: &[i32], mistake: Option<&str>) -> Checked {
        let one = Blocks { rows: self.blocks.rows / slots, ..self.blocks };
        let (pairs, share) = (numbers.len(), numbers.len() / x.tokens);
        let call = CountedProducts::new(&one, x.element, slots, pairs, share).map_err(said)?;
        let given = held(&x.bytes)?;
        let chosen = held(&numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<_>>())?;
        let found =
            self.run_any(call.variant(), 4 * pairs * one.rows, mistake, &|driver, function, y| {
                let arrays = [self.matrix.address(), given.address(), chosen.address(), y];
                // SAFETY: the arrays are there until the stream is empty, and have the sizes of the call.
                unsafe { call.put(driver, function, arrays, self.stream) }
            });
        let found = floats(found?);
        // A kernel with a mistake is beside the right one.
        let all: Result<Vec<_>, _> =
            (0..x.tokens).map(|t| self.product(x, t..t + 1, None)).collect();
        let all = all?;
        for (pair, found) in found.chunks_exact(one.rows).enumerate() {
            let zeros = vec![0.0; one.rows];
            let expected = match usize::try_from(numbers[pair]) {
                Ok(number) if number < slots => &all[pair / share][number * one.rows..][..one.rows],
                _ => &zeros[..],
            };
            let both = found.iter().zip(expected);
            if let Some(row) = both.map(|(a, b)| a.to_bits() != b.to_bits()).position(|is| is) {
                return Err(format!(
                    "{} in {slots} slots: pair {pair} of {pairs}, matrix {}, row {row}: {} instead of {}",
                    self.what(),
                    numbers[pair],
                    found[row],
                    expected[row]
                ));
            }
        }
        Ok(())
    }

    /// Each token alone within the tolerance, and with the same bits among others. Gives the largest error.
    fn check(&self, x: &X, counts: &[usize], mistake: Option<&str>) -> Result<f64, String> {
        let alone: Result<Vec<_>, _> =
            (0..x.tokens).map(|t| self.product(x, t..t + 1, mistake)).collect();
        let alone = alone?;
        let worst = std::thread::scope(|scope| {
            let errors: Vec<_> = (alone.iter().enumerate())
                .map(|(t, found)| scope.spawn(move || self.error(x.row(t), found)))
                .collect();
            errors.into_iter().try_fold(0.0f64, |worst, thread| {
                Ok::<_, String>(worst.max(thread.join().unwrap()?))
            })
        })?;
        for count in counts {
            // The last ones, so that a token has another place than alone.
            let first = x.tokens - count;
            let found = self.product(x, first..x.tokens, mistake)?;
            for (t, found) in found.chunks_exact(self.blocks.rows).enumerate() {
                let pairs = found.iter().zip(&alone[first + t]);
                let other = pairs.map(|(a, b)| a.to_bits() != b.to_bits()).position(|other| other);
                if let Some(row) = other {
                    let what = self.what();
                    return Err(format!(
                        "{what}: token {t} of {count} has other bits than alone, in row {row}"
                    ));
                }
            }
        }
        Ok(worst)
    }

    /// The largest error of a token's products.
    fn error(&self, x: &[f32], found: &[f32]) -> Result<f64, String> {
        let mut worst: f64 = 0.0;
        let columns = self.blocks.columns;
        for (row, (weights, found)) in self.weights.chunks_exact(columns).zip(found).enumerate() {
            let (mut sum, mut size) = (0.0, 0.0);
            for (w, x) in weights.chunks_exact(32).zip(x.chunks_exact(32)) {
                let largest = w.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                let absolute: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
                sum += w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
                size += f64::from(largest) * absolute;
            }
            let error = (f64::from(*found) - sum).abs() / size;
            if error.is_nan() || error > TOLERANCE {
                let what = self.what();
                return Err(format!(
                    "{what}, row {row}: {found} instead of {sum}, an error of {error:.2e}"
                ));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }

    /// The rows as floats, to the bit.
    fn check_rows(&self, out: Element) -> Checked {
        let launch = self.blocks.as_floats(out).map_err(said)?;
        let expected: Vec<u8> = match out {
            Element::F32 => self.weights.iter().flat_map(|w| w.to_ne_bytes()).collect(),
            _ => self.weights.iter().flat_map(|w| f32_to_bf16(*w).to_ne_bytes()).collect(),
        };
        let found = self.run(&launch, &self.matrix, expected.len(), None)?;
        let size = out.size();
        let wrong = found.chunks(size).zip(expected.chunks(size)).position(|(a, b)| a != b);
        match wrong {
            None => Ok(()),
            Some(at) => {
                let (row, column) = (at / self.blocks.columns, at % self.blocks.columns);
                Err(format!("{} as {out}: row {row}, column {column} has other bits", self.what()))
            }
        }
    }
}

fn floats(bytes: Vec<u8>) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|x| x.to_bits()).collect()
}

/// These bytes on the GPU.
fn held(bytes: &[u8]) -> Result<Memory, String> {
    let memory = Driver::get().and_then(|driver| driver.allocate(0, bytes.len())).map_err(said)?;
    memory.write(0, bytes).map_err(said)?;
    Ok(memory)
}

/// Activations, `[tokens, columns]`: as bytes, and as floats.
struct X {
    element: Element,
    tokens: usize,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl X {
    fn new(element: Element, tokens: usize, columns: usize) -> X {
        let mut random = Random(columns as u64);
        let mut values: Vec<f32> = (0..tokens * columns).map(|_| random.number()).collect();
        let bytes = match element {
            Element::F32 => values.iter().flat_map(|x| x.to_ne_bytes()).collect(),
            _ => {
                let halves: Vec<u16> = values.iter().map(|x| f32_to_bf16(*x)).collect();
                values = halves.iter().map(|x| bf16_to_f32(*x)).collect();
                halves.iter().flat_map(|x| x.to_ne_bytes()).collect()
            }
        };
        X { element, tokens, bytes, values }
    }

    fn row(&self, token: usize) -> &[f32] {
        let columns = self.values.len() / self.tokens;
        &self.values[token * columns..][..columns]
    }
}

/// Shapes with tails of every kind: one row, fewer rows than a block of the grid has, columns of one block of weights, of a part of a step and
/// of several, more than shared memory has at a time.
fn shapes(ty: WeightType, large: bool) -> Vec<(usize, usize)> {
    let block = ty.block_len();
    let mut shapes = vec![
        (1, block),
        (5, 3 * block),
        (2, 1024),
        (19, 1024 + block),
        (7, 2048 + 256),
        (3, 9 * 1024 + block),
    ];
    if large {
        shapes.extend([(576, 1536), (4099, 4096), (1025, 14336), (14336, 512)]);
    }
    shapes
}

/// What [`products`], [`pairs`] and [`rows`] need of large extent.
pub fn variants() -> Vec<BlocksVariant> {
    let mut variants = vec![];
    // The ones that take longest come first.
    for (tokens, x) in [
        (8, Element::F32),
        (8, Element::Bf16),
        (4, Element::Bf16),
        (2, Element::Bf16),
        (1, Element::F32),
        (1, Element::Bf16),
    ] {
        variants.extend(TYPES.map(|ty| BlocksVariant::Product { ty, x, tokens }));
    }
    for element in [Element::Bf16, Element::F32] {
        variants.extend(TYPES.map(|ty| BlocksVariant::Chosen {
            ty,
            x: element,
            pairs: Pairs::Counted,
        }));
        variants.extend(TYPES.map(|ty| BlocksVariant::Rows { ty, out: element }));
    }
    variants
}

/// Compiles kernels, as many at a time as there are cores.
pub fn compiled(variants: &[BlocksVariant]) -> Checked {
    let driver = Driver::get().map_err(said)?;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let take = || {
        while let Some(variant) =
            variants.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
        {
            variant.load(driver, 0).map_err(said)?;
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        all.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// Products of a type in all shapes.
pub fn products(ty: WeightType, large: bool) -> Checked {
    let mut worst: f64 = 0.0;
    for (rows, columns) in shapes(ty, large) {
        let case = Case::new(ty, rows, columns, |_| ())?;
        let all: Vec<usize> = (2..=MAX_TOKENS).collect();
        for element in [Element::Bf16, Element::F32] {
            // What takes long: here to compare large ones, there to compile.
            let few = large && (rows * columns > 1 << 20 || element == Element::F32);
            let counts = if few { &all[6..] } else { &all[..] };
            worst = worst.max(case.check(&X::new(element, MAX_TOKENS, columns), counts, None)?);
        }
    }
    println!("  {ty}: the largest error is {worst:.2e}, {:.2} of what may be", worst / TOLERANCE);
    Ok(())
}

/// Matrices that pairs choose from.
const SLOTS: usize = 5;
/// Of pairs: some twice, one of none beside the other, and what is none, for tokens with 1 and with 3 of them.
const NUMBERS: [&[i32]; 2] = [&[3, -1, 3, 0], &[0, 4, 4, 4, -1, 2, 2, i32::MAX, 5, i32::MIN, 3, 1]];
const TOKENS_OF_PAIRS: usize = 4;

/// Products of pairs of a type in all shapes.
pub fn pairs(ty: WeightType, large: bool) -> Checked {
    for (rows, columns) in shapes(ty, large) {
        let case = Case::new(ty, SLOTS * rows, columns, |_| ())?;
        for element in [Element::Bf16, Element::F32] {
            let x = X::new(element, TOKENS_OF_PAIRS, columns);
            NUMBERS.iter().try_for_each(|numbers| case.check_pairs(&x, SLOTS, numbers, None))?;
        }
    }
    Ok(())
}

/// A matrix more than 4 GiB after the first, which is not there: nobody reads it.
pub fn far_away() -> Checked {
    const NUMBER: usize = 1 << 28;
    let case = Case::new(WeightType::Q4_0, 1, 32, |_| ())?;
    let x = X::new(Element::F32, 1, 32);
    let call = CountedProducts::new(&case.blocks, Element::F32, NUMBER + 1, 1, 1).map_err(said)?;
    let (given, chosen) = (held(&x.bytes)?, held(&(NUMBER as i32).to_ne_bytes())?);
    let first = case.matrix.address().wrapping_sub(NUMBER as u64 * 18);
    let found = case.run_any(call.variant(), 4, None, &|driver, function, y| {
        let arrays = [first, given.address(), chosen.address(), y];
        // SAFETY: what is read of the arrays is there until the stream is empty.
        unsafe { call.put(driver, function, arrays, case.stream) }
    });
    match bits(&floats(found?)) == bits(&case.product(&x, 0..1, None)?) {
        true => Ok(()),
        false => Err("a matrix beyond 4 GiB: other bits".into()),
    }
}

/// Mistakes that the checks of pairs have to find.
pub const MISTAKES_OF_PAIRS: [&str; 2] = ["ALIGHT_ANY_SLOT", "ALIGHT_ONE_X"];

/// That they do.
pub fn broken_pairs() -> Checked {
    let case = Case::new(WeightType::Q4_0, SLOTS * 70, 4096 + 32, |_| ())?;
    let x = X::new(Element::F32, TOKENS_OF_PAIRS, 4096 + 32);
    let check = |mistake| {
        NUMBERS.iter().try_for_each(|numbers| case.check_pairs(&x, SLOTS, numbers, mistake))
    };
    check(None).map_err(|error| format!("the right kernel fails: {error}"))?;
    for how in MISTAKES_OF_PAIRS {
        must_fail(how, "instead of", check(Some(how)))?;
    }
    Ok(())
}

/// Rows of a type as floats in all shapes, among them those that large and small exponents make.
pub fn rows(ty: WeightType, large: bool) -> Checked {
    let extremes = |bytes: &mut Vec<u8>| {
        for (n, block) in bytes.chunks_exact_mut(ty.block_bytes()).enumerate() {
            for field in ty.scale_fields() {
                match *field {
                    // Zeros, the smallest numbers, the largest ones.
                    ScaleField::F16(at) => {
                        let scale = [0u16, 0x8000, 1, 0x83ff, 0x400, 0x7bff, 0xfbff][n % 7];
                        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                    ScaleField::Exponent(at) => block[at] = [0, 1, 2, 3, 253, 254, 255][n % 7],
                    _ => unreachable!("no type of the kernels"),
                }
            }
        }
    };
    for (rows, columns) in shapes(ty, large) {
        for element in [Element::Bf16, Element::F32] {
            Case::new(ty, rows, columns, |_| ())?.check_rows(element)?;
            Case::new(ty, rows, columns, extremes)?.check_rows(element)?;
        }
    }
    Ok(())
}

/// Mistakes that the checks have to find, on any GPU.
pub const MISTAKES: [(&str, &str); 2] =
    [("ALIGHT_SWAPPED", "instead of"), ("ALIGHT_BY_TOKENS", "other bits than alone")];
/// One that the emulated GPU shows, where a copy comes as late as it may. On another it may have come by chance.
pub const NO_WAIT: (&str, &str) = ("ALIGHT_NO_WAIT", "instead of");

/// That a check has found a mistake, and said this word.
fn must_fail(how: &str, word: &str, found: Checked) -> Checked {
    match found {
        Err(error) if error.contains(word) => println!("  {how} fails, as it must: {error}"),
        Err(error) => return Err(format!("{how} fails otherwise than it should: {error}")),
        Ok(()) => return Err(format!("{how} passes: the check shows nothing")),
    }
    Ok(())
}

/// That the checks find mistakes.
pub fn broken(mistakes: &[(&str, &str)]) -> Checked {
    let case = Case::new(WeightType::Q4_0, 70, 4096 + 32, |_| ())?;
    let x = X::new(Element::F32, MAX_TOKENS, 4096 + 32);
    case.check(&x, &[MAX_TOKENS], None)
        .map_err(|error| format!("the right kernel fails: {error}"))?;
    for (how, word) in mistakes {
        must_fail(how, word, case.check(&x, &[MAX_TOKENS], Some(how)).map(drop))?;
    }
    Ok(())
}

/// Calls that are captured into a graph, replayed with other activations and other choices.
pub fn captured() -> Checked {
    const TOKENS: usize = 2;
    let driver = Driver::get().map_err(said)?;
    let (slots, rows, columns) = (3, 37, 2048);
    let case = Case::new(WeightType::Q4_K, slots * rows, columns, |_| ())?;
    let one = Blocks { rows, ..case.blocks };
    let product = case.blocks.product(Element::F32, TOKENS).map_err(said)?;
    let pairs = CountedProducts::new(&one, Element::F32, slots, TOKENS, 1).map_err(said)?;
    let memory = |bytes| driver.allocate(0, bytes).map_err(said);
    let (given, chosen) = (memory(TOKENS * columns * 4)?, memory(TOKENS * 4)?);
    let (all, some) = (memory(4 * TOKENS * slots * rows)?, memory(4 * TOKENS * rows)?);
    let [of_one, of_pairs] = [product.variant(), pairs.variant()].map(|v| v.load(driver, 0));
    let (of_one, of_pairs) = (of_one.map_err(said)?, of_pairs.map_err(said)?);
    let [matrix, x] = [&case.matrix, &given].map(Memory::address);
    let graph = driver.on(0, || {
        driver.capture(case.stream, || {
            // SAFETY: the arrays are there as long as the graph is used.
            unsafe {
                product.put(driver, of_one, [matrix, x, all.address()], case.stream)?;
                let arrays = [matrix, x, chosen.address(), some.address()];
                pairs.put(driver, of_pairs, arrays, case.stream)
            }
        })
    });
    let graph = graph.map_err(said)?;
    let x = X::new(Element::F32, 2 * TOKENS, columns);
    for (turn, numbers) in [[0, 2], [1, 1]].into_iter().enumerate() {
        let bytes = &x.bytes[turn * TOKENS * columns * 4..][..TOKENS * columns * 4];
        given.write(0, bytes).map_err(said)?;
        let numbers: [i32; TOKENS] = numbers;
        chosen.write(0, &numbers.map(i32::to_ne_bytes).concat()).map_err(said)?;
        driver.on(0, || driver.replay(graph, case.stream)).map_err(said)?;
        driver.wait(0, case.stream).map_err(said)?;
        let read = |memory: &Memory| {
            let mut bytes = vec![0; memory.bytes()];
            memory.read(0, &mut bytes).map_err(said).map(|()| floats(bytes))
        };
        let (all, some) = (read(&all)?, read(&some)?);
        for (t, number) in numbers.into_iter().enumerate() {
            let all = &all[t * slots * rows..][..slots * rows];
            case.error(x.row(turn * TOKENS + t), all)?;
            let found = bits(&some[t * rows..][..rows]);
            if found != bits(&all[number as usize * rows..][..rows]) {
                return Err(format!("replay {turn}, pair {t}: other bits than matrix {number}"));
            }
        }
    }
    Ok(())
}
