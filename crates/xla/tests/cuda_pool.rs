//! Experts in slots of an emulated GPU, whose copies and kernels come as late as they may: the bits that they have with all matrices in its
//! memory; and errors, after which everything continues or says so.
#![cfg(target_os = "linux")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;

use alight_collective::Element;
use alight_kernels::WeightType;
use alight_pages::slots::{SlotOptions, Slots};
use alight_xla::cuda::blocks::TYPES;
use alight_xla::cuda::pool::{Pool, PoolError};
use alight_xla::cuda::{Driver, chosen};

use crate::cuda_checks::blocks::Random;
use crate::cuda_checks::pool::{Case, EXPERTS, LAYERS, address, every_budget, wrong_tables};
use crate::emulator::{self, be_late, emulated, fail_after, only_locked};

const GPU: i64 = 2;

fn case(ty: WeightType, side_by_side: bool, x: Element) -> Case {
    Case::new(GPU, ty, side_by_side, x).unwrap()
}

fn four_bits() -> Case {
    case(WeightType::Q4_0, false, Element::F32)
}

#[test]
fn bits_do_not_depend_on_what_is_on_the_gpu() {
    if !emulated() {
        return;
    }
    for (ty, side_by_side, x) in
        [(WeightType::Q4_0, false, Element::F32), (WeightType::Q8_0, true, Element::Bf16)]
    {
        every_budget(&case(ty, side_by_side, x), 1, &be_late).unwrap();
    }
}

#[test]
fn every_type() {
    if !emulated() {
        return;
    }
    for (i, ty) in TYPES.into_iter().enumerate() {
        let x = [Element::Bf16, Element::F32][i % 2];
        every_budget(&case(ty, i % 3 == 0, x), 6, &be_late).unwrap();
    }
}

#[test]
fn wrong_tables_are_seen() {
    if emulated() {
        wrong_tables(&four_bits()).unwrap();
    }
}

#[test]
fn one_matrix_is_found_by_its_address() {
    if emulated() {
        let case = four_bits();
        let slots = case.slots(1 << 22, SlotOptions::default()).unwrap();
        address(&case, &Pool::new(slots, GPU, 1 << 22).unwrap()).unwrap();
    }
}

/// As large as the kernels take them to be: what says the pairs is after everything else.
#[test]
fn host_and_kernels_have_the_same_arguments() {
    if emulated() {
        assert_eq!(emulator::sizes_of_pairs(), chosen::BYTES);
    }
}

/// That what comes late would be seen: products that do not wait are wrong.
#[test]
fn products_that_do_not_wait_are_wrong() {
    if !emulated() {
        return;
    }
    let case = four_bits();
    let driver = Driver::get().unwrap();
    let slots = case.slots(1 << 22, SlotOptions::default()).unwrap();
    let pool = Pool::new(slots, GPU, 1 << 22).unwrap();
    be_late(pool.copies(), true);
    let wanted = [0, 3, 3, 0, 3, 0];
    let y = case.outputs().unwrap();
    let held = pool.hold(0, wanted.into_iter(), case.stream).unwrap();
    assert!(!held.is_here(0) && !held.is_here(3));
    for (part, y) in y.iter().enumerate() {
        case.put(part, &case.stack(&held, 0, part), &wanted, &|_| true, y).unwrap();
    }
    driver.wait(GPU, case.stream).unwrap();
    assert!(case.check(0, &wanted, &y).unwrap_err().contains("other bits"));
    drop(held);
    be_late(pool.copies(), false);
}

/// A visit of a layer's experts, all of them where `all`.
fn visit(case: &Case, pool: &Pool, layer: usize, all: bool) -> Result<(), PoolError> {
    let wanted = if all { [0, 1, 2, 3, 4, 5] } else { [1, 0, 0, 1, 1, 0] };
    let y = case.outputs().unwrap();
    let result = case.visit(pool, layer, &wanted, &y);
    Driver::get().unwrap().wait(GPU, case.stream).unwrap();
    if result.is_ok() {
        case.check(layer, &wanted, &y).unwrap();
    }
    result
}

#[test]
fn what_the_driver_refuses_names_the_gpu_and_pins_nothing() {
    if !emulated() {
        return;
    }
    let case = four_bits();
    let (_, [least, _], _) = case.budgets();
    let (mut refused, mut calls) = (0, 0);
    loop {
        let slots = case.slots(1 << 22, SlotOptions::default()).unwrap();
        let pool = Pool::new(slots, GPU, least).unwrap();
        // The host has all that the visit wants, and the GPU nothing: it makes the same calls each time.
        visit(&case, &pool, 1, true).unwrap();
        visit(&case, &pool, 0, true).unwrap();
        fail_after(calls);
        let result = visit(&case, &pool, 1, true);
        fail_after(-1);
        // All slots are needed. Where the order of streams is lost, the pool says so for ever, and otherwise continues.
        let after = [1, 0, 2].map(|layer| visit(&case, &pool, layer, true));
        let Err(error) = result else {
            // What ends a visit has failed.
            match after.iter().all(Result::is_ok) {
                true => break,
                false => {
                    let text = after[0].as_ref().unwrap_err().to_string();
                    assert!(text.starts_with("slots on GPU 2: cu"), "{text}");
                    refused += 1;
                }
            }
            calls += 1;
            continue;
        };
        let text = error.to_string();
        assert!(text.starts_with("slots on GPU 2: cu") && text.contains("719"), "{text}");
        let refuses = after.iter().all(Result::is_err);
        assert!(refuses || after.iter().all(Result::is_ok), "{calls}: {after:?}");
        refused += usize::from(refuses);
        calls += 1;
    }
    // Waits and the table, 3 copies for each of 6 experts, what is recorded and waited for around them, and the end; without the record of the
    // copies, or one of both calls of the end, the order of streams is lost.
    assert_eq!((calls, refused), (27, 3));
}

#[test]
fn files_that_cannot_be_read_are_named_and_pin_nothing() {
    if !emulated() {
        return;
    }
    let case = four_bits();
    let (_, [least, _], _) = case.budgets();
    for options in [
        SlotOptions::default(),
        SlotOptions { direct: false, ring: false, ..SlotOptions::default() },
    ] {
        let pool = Pool::new(case.slots(1 << 22, options).unwrap(), GPU, least).unwrap();
        visit(&case, &pool, 0, false).unwrap();
        let whole = std::fs::read(case.file()).unwrap();
        File::options().write(true).open(case.file()).unwrap().set_len(4096).unwrap();
        let text = visit(&case, &pool, 1, true).unwrap_err().to_string();
        assert!(text.contains(&case.file().display().to_string()), "{text}");
        std::fs::write(case.file(), whole).unwrap();
        // What is on the GPU is right, also after that; all else says what went wrong.
        let again = visit(&case, &pool, 0, true).unwrap_err().to_string();
        assert_eq!(again, text);
        let counts = pool.counts();
        visit(&case, &pool, 0, false)
            .map_or_else(|error| assert_eq!(error.to_string(), text), drop);
        assert_eq!(pool.counts().copied, counts.copied);
    }
    // Memory of a process is a file whose first byte cannot be read.
    let path = std::path::PathBuf::from("/proc/self/mem");
    let file = File::open(&path).unwrap();
    let options = SlotOptions { direct: false, ring: false, ..SlotOptions::default() };
    let slots = Slots::new(&[(&file, path)], &case.groups, 1 << 22, options).unwrap();
    let pool = Pool::new(slots, GPU, least).unwrap();
    let text = visit(&case, &pool, 0, true).unwrap_err().to_string();
    let error = std::io::Error::from_raw_os_error(libc::EIO).to_string();
    assert!(text.contains("/proc/self/mem") && text.contains(&error), "{text}");
}

#[test]
fn what_has_no_room_is_refused() {
    if !emulated() {
        return;
    }
    let case = four_bits();
    let (_, [least, _], _) = case.budgets();
    let slots = || case.slots(1 << 22, SlotOptions::default()).unwrap();
    let text = Pool::new(slots(), GPU, least - 1).map(drop).unwrap_err().to_string();
    assert!(
        text.starts_with("slots on GPU 2:") && text.contains(&format!("{least} are needed")),
        "{text}"
    );
    let text = Pool::new(slots(), 99, least).map(drop).unwrap_err().to_string();
    assert!(text.starts_with("slots on GPU 99:") && text.contains("this process sees 8"), "{text}");
    let mut groups = case.groups.clone();
    groups[1][2][0].range.end -= 1;
    let file = File::open(case.file()).unwrap();
    let odd = Slots::new(&[(&file, case.file().clone())], &groups, 1 << 22, SlotOptions::default());
    let text = Pool::new(odd.unwrap(), GPU, 1 << 22).map(drop);
    // A span that is one byte shorter has slots of the same size, because sizes are rounded up.
    assert!(text.is_ok());
    groups[1][2][0].range.end -= 256;
    let odd = Slots::new(&[(&file, case.file().clone())], &groups, 1 << 22, SlotOptions::default());
    let text = Pool::new(odd.unwrap(), GPU, 1 << 22).map(drop).unwrap_err().to_string();
    assert!(text.contains("group 1 are of several sizes"), "{text}");
}

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|count| count.set(count.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn visits_allocate_nothing_and_copy_page_locked_memory_alone() {
    if !emulated() {
        return;
    }
    let case = four_bits();
    let ([host, _], [least, _], _) = case.budgets();
    for ring in [true, false] {
        let options = SlotOptions { ring, ..SlotOptions::default() };
        let pool = Pool::new(case.slots(host, options).unwrap(), GPU, least).unwrap();
        let mut random = Random(5);
        only_locked(true);
        let before = ALLOCATED.with(Cell::get);
        for turn in 0..60 {
            let wanted = [0, 1, 2].map(|_| random.bits() as usize % EXPERTS);
            let mut held = pool.hold(turn % LAYERS, wanted.into_iter(), case.stream).unwrap();
            // A visit may end before all has come.
            while turn % 5 != 3 && !held.all_here() {
                held.wait_for_more().unwrap();
            }
        }
        let after = ALLOCATED.with(Cell::get);
        only_locked(false);
        assert_eq!(after, before, "ring {ring}");
        assert!(pool.counts().hits > 0 && pool.counts().copied > 40, "{:?}", pool.counts());
    }
}
