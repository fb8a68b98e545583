//! Experts in slots of a GPU: products with those that were chosen have the bits that they have with all matrices in the GPU's memory: for
//! every number of slots, every order of arrival, and every delay.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use alight_collective::Element;
use alight_kernels::WeightType;
use alight_pages::slots::replay::{Rule, Visited, replay};
use alight_pages::slots::{Groups, SlotOptions, Slots, SlotsError, Span, join};
use alight_xla::cuda::blocks::Blocks;
use alight_xla::cuda::chosen::{Pair, Products};
use alight_xla::cuda::pool::{ALIGN, DeviceStack, Held, NOWHERE, Pool, PoolError};
use alight_xla::cuda::{Driver, Function, Memory, Stream};

use super::blocks::{Random, random_blocks};
use super::{Checked, said};

pub const LAYERS: usize = 3;
pub const EXPERTS: usize = 6;
/// Tokens, and experts of each.
const TOKENS: usize = 3;
const USED: usize = 2;
/// Gate, up and down.
const PARTS: usize = 3;
const PAGE: u64 = 4096;
const NEAR: u64 = 128;

/// The bits of rows of floats.
type Rows = Vec<Vec<u32>>;

/// What a test does to streams: `late(stream, yes)` has it do nothing that nobody waits for.
pub type Late<'a> = &'a dyn Fn(Stream, bool);

/// A model's file, and what its experts' products are.
pub struct Case {
    gpu: i64,
    path: PathBuf,
    pub groups: Groups,
    /// By layer: the span of an expert that each part is in, and where in it.
    places: Vec<Vec<(usize, usize)>>,
    blocks: [Blocks; PARTS],
    products: [(Products, Function); PARTS],
    x: [Memory; PARTS],
    /// By layer, expert, part and token: the bits of the product.
    expected: Vec<Vec<[Rows; PARTS]>>,
    pub stream: Stream,
}

impl Case {
    /// For a GPU, with the parts of an expert side by side, or in three stacks.
    pub fn new(gpu: i64, ty: WeightType, side_by_side: bool, x: Element) -> Result<Case, String> {
        let driver = Driver::get().map_err(said)?;
        let block = ty.block_len();
        let shapes = [(5, 3 * block), (5, 3 * block), (7, block)];
        let blocks = shapes.map(|(rows, columns)| Blocks::new(ty, rows, columns));
        let [gate, up, down] = blocks;
        let blocks = [gate.map_err(said)?, up.map_err(said)?, down.map_err(said)?];
        let bytes = blocks.map(|b| (b.rows * ty.row_bytes(b.columns).unwrap()) as u64);
        let (mut at, mut groups, mut places) = (5 * PAGE, Vec::new(), Vec::new());
        for _ in 0..LAYERS {
            let mut of_layer = Vec::new();
            let mut spans_of_layer = Vec::new();
            for expert in 0..EXPERTS as u64 {
                let mut start = at + 32;
                let stride = (bytes.iter().sum::<u64>() + 3 * NEAR).next_multiple_of(PAGE);
                let mut inside = at + expert * stride;
                let parts = bytes.map(|bytes| {
                    // In stacks not where blocks of a disk begin, nor at multiples of 16.
                    let from = if side_by_side { inside } else { start + expert * bytes };
                    start += EXPERTS as u64 * bytes + 64;
                    inside += bytes.next_multiple_of(64);
                    (Span { file: 0, range: from..from + bytes }, side_by_side)
                });
                let (spans, places) = join(&parts, NEAR);
                spans_of_layer.push(spans);
                of_layer = places;
            }
            groups.push(spans_of_layer);
            places.push(of_layer);
            at = (at + 8 * EXPERTS as u64 * (bytes.iter().sum::<u64>() + PAGE))
                .next_multiple_of(PAGE);
        }
        let file = random_blocks(ty, at as usize, 11);
        // Every case has a file of its own, which a test may spoil.
        static FILES: AtomicU64 = AtomicU64::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = format!("alight-pool-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(path);
        std::fs::write(&path, &file).map_err(|error| error.to_string())?;
        let stream = driver.stream(gpu).map_err(said)?;
        let product = |blocks: &Blocks| {
            let products = Products::new(blocks, x)?;
            Ok((products, products.variant().load(driver, gpu)?))
        };
        let numbers = |blocks: &Blocks| {
            let mut random = Random(blocks.columns as u64);
            let values = (0..TOKENS * blocks.columns).map(|_| random.number());
            let bytes: Vec<u8> = match x {
                Element::F32 => values.flat_map(f32::to_ne_bytes).collect(),
                _ => values
                    .flat_map(|x| alight_kernels::half::f32_to_bf16(x).to_ne_bytes())
                    .collect(),
            };
            let memory = driver.allocate(gpu, bytes.len())?;
            memory.write(0, &bytes)?;
            Ok(memory)
        };
        let mut case = Case {
            gpu,
            path,
            groups,
            places,
            blocks,
            products: all(&blocks, product)?,
            x: all(&blocks, numbers)?,
            expected: Vec::new(),
            stream,
        };
        case.expected = case.whole(ty, &file, x)?;
        Ok(case)
    }

    /// All products, with all matrices in the self.gpu's memory.
    fn whole(
        &self,
        ty: WeightType,
        file: &[u8],
        x: Element,
    ) -> Result<Vec<Vec<[Rows; PARTS]>>, String> {
        let driver = Driver::get().map_err(said)?;
        let one = |layer: usize, expert: usize, part: usize| {
            let blocks = self.blocks[part];
            let bytes = blocks.rows * ty.row_bytes(blocks.columns).unwrap();
            let (span, at) = self.places[layer][part];
            let from = self.groups[layer][expert][span].range.start as usize + at;
            let matrix = driver.allocate(self.gpu, bytes)?;
            matrix.write(0, &file[from..from + bytes])?;
            let y = driver.allocate(self.gpu, 4 * TOKENS * blocks.rows)?;
            let launch = blocks.product(x, TOKENS)?;
            let function = launch.variant().load(driver, self.gpu)?;
            let arrays = [matrix.address(), self.x[part].address(), y.address()];
            // SAFETY: the arrays are there until the stream is empty, and have the sizes of the call.
            driver.on(self.gpu, || unsafe { launch.put(driver, function, arrays, self.stream) })?;
            driver.wait(self.gpu, self.stream)?;
            rows(&y, blocks.rows)
        };
        let parts = |layer, expert| all(&[0, 1, 2], |part: &usize| one(layer, expert, *part));
        (0..LAYERS).map(|layer| (0..EXPERTS).map(|expert| parts(layer, expert)).collect()).collect()
    }

    pub fn slots(&self, memory: u64, options: SlotOptions) -> Result<Slots, SlotsError> {
        let file = File::open(&self.path).unwrap();
        Slots::new(&[(&file, self.path.clone())], &self.groups, memory, options)
    }

    /// The file, for tests that spoil it.
    pub fn file(&self) -> &PathBuf {
        &self.path
    }

    /// The least and the most bytes of slots of the host, and of the GPU, and of a slot there.
    pub fn budgets(&self) -> ([u64; 2], [u64; 2], u64) {
        let host = Slots::least(&self.groups, PAGE as usize);
        let slots = self.slots(host, SlotOptions::default()).unwrap();
        let all = slots.layout().elsewhere(ALIGN, u64::MAX / 4).unwrap();
        let slot = all.slots_for(0).2 as u64;
        ([host, LAYERS as u64 * host], [EXPERTS as u64 * slot, all.bytes() as u64], slot)
    }

    pub fn stack(&self, held: &Held<'_>, layer: usize, part: usize) -> DeviceStack {
        let (span, at) = self.places[layer][part];
        held.stack(span, at)
    }

    /// Puts products with `experts` of a layer on the stream: of the tokens that have chosen them.
    pub fn put(
        &self,
        part: usize,
        stack: &DeviceStack,
        chosen: &[usize],
        experts: &dyn Fn(usize) -> bool,
        y: &Memory,
    ) -> Checked {
        let driver = Driver::get().map_err(said)?;
        let pairs = chosen.iter().enumerate().filter(|(_, expert)| experts(**expert));
        let pairs: Vec<Pair> = pairs
            .map(|(at, expert)| Pair { piece: *expert as u32, x: (at / USED) as u32, y: at as u32 })
            .collect();
        let (products, function) = &self.products[part];
        let arrays = [self.x[part].address(), y.address()];
        // SAFETY: all arrays are there until the stream is empty, and have the sizes of the call; the visit has not ended.
        driver
            .on(self.gpu, || unsafe {
                products.put(driver, *function, stack, &pairs, arrays, self.stream)
            })
            .map_err(said)
    }

    /// Memory for what a visit computes: by part, NaN.
    pub fn outputs(&self) -> Result<[Memory; PARTS], String> {
        let driver = Driver::get().map_err(said)?;
        all(&self.blocks, |blocks| {
            let memory = driver.allocate(self.gpu, 4 * TOKENS * USED * blocks.rows)?;
            memory.fill(0xff)?;
            Ok(memory)
        })
    }

    /// A visit, whose products may still be computed when this returns.
    pub fn visit(
        &self,
        pool: &Pool,
        layer: usize,
        chosen: &[usize],
        y: &[Memory; PARTS],
    ) -> Result<(), PoolError> {
        let mut held = pool.hold(layer, chosen.iter().copied(), self.stream)?;
        let mut done = [false; EXPERTS];
        loop {
            let now: Vec<bool> =
                (0..EXPERTS).map(|e| chosen.contains(&e) && held.is_here(e) && !done[e]).collect();
            for (part, y) in y.iter().enumerate() {
                let stack = self.stack(&held, layer, part);
                self.put(part, &stack, chosen, &|expert| now[expert], y).unwrap();
            }
            now.iter().zip(&mut done).for_each(|(now, done)| *done |= now);
            if held.all_here() {
                break;
            }
            held.wait_for_more()?;
        }
        assert!(chosen.iter().all(|expert| done[*expert]));
        Ok(())
    }

    /// Whether what a visit has computed is what it is with all matrices in the GPU's memory.
    pub fn check(&self, layer: usize, chosen: &[usize], y: &[Memory; PARTS]) -> Checked {
        for (part, y) in y.iter().enumerate() {
            let found = rows(y, self.blocks[part].rows).map_err(said)?;
            for (at, (expert, found)) in chosen.iter().zip(found).enumerate() {
                if found != self.expected[layer][*expert][part][at / USED] {
                    return Err(format!(
                        "part {part} of expert {expert} of layer {layer}: other bits, pair {at}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Visits of the layers in turn, of which several are put on the stream before any is looked at.
    pub fn visits(&self, pool: &Pool, rounds: usize, seed: u64) -> Result<Vec<Visited>, String> {
        let driver = Driver::get().map_err(said)?;
        let (mut random, mut all) = (Random(seed), Vec::new());
        for _ in 0..rounds {
            let mut made = Vec::new();
            for layer in 0..LAYERS {
                let chosen = chosen(&mut random);
                let y = self.outputs()?;
                self.visit(pool, layer, &chosen, &y).map_err(|error| error.to_string())?;
                made.push((layer, chosen, y));
            }
            driver.wait(self.gpu, self.stream).map_err(said)?;
            for (layer, chosen, y) in &made {
                self.check(*layer, chosen, y)?;
            }
            all.extend(made.into_iter().map(|(group, chosen, _)| {
                let mut wanted = Vec::new();
                chosen.into_iter().for_each(|expert| {
                    if !wanted.contains(&expert) {
                        wanted.push(expert)
                    }
                });
                Visited { group, wanted }
            }));
        }
        Ok(all)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Of each token; the two of a token differ, and one expert of three comes often.
pub fn chosen(random: &mut Random) -> Vec<usize> {
    let mut of_token = || {
        let first = [0, random.bits() as usize % EXPERTS][random.bits() as usize % 2];
        [first, (first + 1 + random.bits() as usize % (EXPERTS - 1)) % EXPERTS]
    };
    (0..TOKENS).flat_map(|_| of_token()).collect()
}

fn all<A, B>(
    from: &[A; PARTS],
    make: impl Fn(&A) -> Result<B, alight_xla::cuda::CudaError>,
) -> Result<[B; PARTS], String> {
    let [a, b, c] = from.each_ref().map(make);
    Ok([a.map_err(said)?, b.map_err(said)?, c.map_err(said)?])
}

fn rows(y: &Memory, columns: usize) -> Result<Rows, alight_xla::cuda::CudaError> {
    let mut bytes = vec![0; y.bytes()];
    y.read(0, &mut bytes)?;
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect();
    Ok(words.chunks_exact(columns).map(<[u32]>::to_vec).collect())
}

/// Ways in which pieces come to the host.
pub fn ways(seed: u64) -> SlotOptions {
    let usual = SlotOptions::default();
    match seed % 4 {
        0 => usual,
        1 => SlotOptions { ring: false, ..usual },
        2 => SlotOptions { direct: false, ring: false, ..usual },
        _ => SlotOptions { shuffled: Some(seed), ..usual },
    }
}

/// Every number of slots on the GPU, beside some number in the host, and every combination of late streams.
pub fn every_budget(case: &Case, step: usize, late: Late<'_>) -> Checked {
    let ([host_least, host_most], [least, most], slot) = case.budgets();
    for extra in (0..=((most - least) / slot) as usize).step_by(step) {
        for (way, [copies_late, kernels_late]) in
            [[false, false], [true, false], [false, true], [true, true]].into_iter().enumerate()
        {
            let seed = (extra * 4 + way) as u64;
            let budget = host_least + (host_most - host_least) * (seed % 3) / 2;
            let slots = case.slots(budget, ways(seed / 2)).map_err(|error| error.to_string())?;
            let pool = Pool::new(slots, case.gpu, least + extra as u64 * slot)
                .map_err(|error| error.to_string())?;
            let what = format!("{} slots, {budget} bytes in the host, way {way}", pool.slots());
            if pool.slots() != EXPERTS + extra {
                return Err(format!("{what}: expected {}", EXPERTS + extra));
            }
            late(pool.copies(), copies_late);
            late(case.stream, kernels_late);
            let visits = case.visits(&pool, 6, seed);
            late(pool.copies(), false);
            late(case.stream, false);
            let visits = visits.map_err(|error| format!("{what}: {error}"))?;
            let counts = pool.counts();
            let replayed = replay(&[EXPERTS; LAYERS], &visits, pool.slots(), Rule::Expected, 0);
            if (counts.wanted, counts.hits) != (replayed.wanted, replayed.hits)
                || counts.copied != counts.wanted - counts.hits
            {
                return Err(format!("{what}: {counts:?}, by the rule {replayed:?}"));
            }
        }
    }
    Ok(())
}

/// Tables that say something wrong: their products are not what is expected, and those of no slot are no numbers.
pub fn wrong_tables(case: &Case) -> Checked {
    let driver = Driver::get().map_err(said)?;
    let (_, [least, most], _) = case.budgets();
    for (budget, chosen) in [(least, [1, 4, 4, 1, 1, 4]), (most, [0, 5, 5, 0, 0, 5])] {
        let slots =
            case.slots(1 << 22, SlotOptions::default()).map_err(|error| error.to_string())?;
        let pool = Pool::new(slots, case.gpu, budget).map_err(|error| error.to_string())?;
        let mut held =
            pool.hold(1, chosen.into_iter(), case.stream).map_err(|error| error.to_string())?;
        while !held.all_here() {
            held.wait_for_more().map_err(|error| error.to_string())?;
        }
        let right = case.stack(&held, 1, 0);
        let mut table = [NOWHERE; EXPERTS];
        let [a, b] = [chosen[0], chosen[1]];
        // The slots are given in the order of the pieces.
        (table[a], table[b]) = (0, 1);
        let computed = |table: [i32; EXPERTS], pieces: u32| {
            let memory = driver.allocate(case.gpu, 4 * EXPERTS).map_err(said)?;
            let bytes: Vec<u8> = table.into_iter().flat_map(i32::to_ne_bytes).collect();
            memory.write(0, &bytes).map_err(said)?;
            let y = case.outputs()?;
            let stack = DeviceStack { table: memory.address(), pieces, ..right };
            case.put(0, &stack, &chosen, &|_| true, &y[0])?;
            driver.wait(case.gpu, case.stream).map_err(said)?;
            rows(&y[0], case.blocks[0].rows).map_err(said)
        };
        let expected = |of: &dyn Fn(usize) -> usize| -> Rows {
            let one =
                |(at, expert): (usize, &usize)| case.expected[1][of(*expert)][0][at / USED].clone();
            chosen.iter().enumerate().map(one).collect()
        };
        let same = |found: Rows, expected: Rows, what: &str| match found == expected {
            true => Ok(()),
            false => Err(format!("{what}: other bits than expected")),
        };
        same(computed(table, EXPERTS as u32)?, expected(&|e| e), "the right table")?;
        let mut swapped = table;
        swapped.swap(a, b);
        let others = expected(&|e| if e == a { b } else { a });
        if others == expected(&|e| e) {
            return Err("the experts are alike: this shows nothing".into());
        }
        same(
            computed(swapped, EXPERTS as u32)?,
            others,
            "a table with two slots the wrong way round",
        )?;
        for entry in [NOWHERE, right.slots as i32, i32::MIN, i32::MAX] {
            let found = computed([entry; EXPERTS], EXPERTS as u32)?;
            if !found.iter().flatten().all(|bits| f32::from_bits(*bits).is_nan()) {
                return Err(format!("a table that says slot {entry} gives numbers"));
            }
        }
        let found = computed(table, b as u32)?;
        let of_b = chosen.iter().zip(&found).filter(|(expert, _)| **expert == b);
        if !of_b.flat_map(|(_, row)| row).all(|bits| f32::from_bits(*bits).is_nan()) {
            return Err("a piece after the table gives numbers".into());
        }
    }
    Ok(())
}

/// Bytes of part 0 of an expert on the GPU, where kernels that take one matrix find it.
pub fn address(case: &Case, pool: &Pool) -> Checked {
    let driver = Driver::get().map_err(said)?;
    let mut held =
        pool.hold(2, [3, 1].into_iter(), case.stream).map_err(|error| error.to_string())?;
    while !held.all_here() {
        held.wait_for_more().map_err(|error| error.to_string())?;
    }
    let (blocks, (span, at)) = (case.blocks[0], case.places[2][0]);
    let y = driver.allocate(case.gpu, 4 * TOKENS * blocks.rows).map_err(said)?;
    for expert in [3, 1] {
        let launch = blocks.product(Element::F32, TOKENS).map_err(said)?;
        let function = launch.variant().load(driver, case.gpu).map_err(said)?;
        let arrays = [held.address(expert, span) + at as u64, case.x[0].address(), y.address()];
        // SAFETY: the arrays are there until the stream is empty, and have the sizes of the call.
        let put = || unsafe { launch.put(driver, function, arrays, case.stream) };
        driver.on(case.gpu, put).map_err(said)?;
        driver.wait(case.gpu, case.stream).map_err(said)?;
        if rows(&y, blocks.rows).map_err(said)? != case.expected[2][expert][0] {
            return Err(format!("expert {expert}: other bits"));
        }
    }
    Ok(())
}
