//! Copies out of page-locked memory, and streams that wait for one another, on the emulated GPU: what is copied, what is refused, and that a
//! copy comes when somebody waits for it and not before.
#![cfg(target_os = "linux")]

use std::ops::Range;

use alight_pages::Region;
use alight_xla::cuda::{CudaError, Driver, LockedPages, Memory, Stream};

use crate::alone::is_alone;
use crate::emulator::{be_late, contexts, copy, emulated, only_locked};

/// What is locked by one call.
const PIECE: usize = 1 << 30;
const BYTES: usize = 10_000;

/// Memory of the host, page-locked; a byte says where it is.
struct Locked {
    // Goes first.
    pages: LockedPages,
    region: Region,
}

/// Of so many bytes, of which those of some ranges are not zeros. The others take no memory.
fn region(bytes: usize, written: &[Range<usize>]) -> Region {
    let mut region = Region::new(bytes).unwrap();
    for range in written {
        let bytes = region.bytes_mut()[range.clone()].iter_mut().zip(range.clone());
        bytes.for_each(|(byte, i)| *byte = (i * 7 % 251) as u8);
    }
    region
}

fn lock(region: &Region, range: Range<usize>) -> Result<LockedPages, CudaError> {
    let driver = Driver::get().unwrap();
    // SAFETY: every region of this file goes after its lock.
    unsafe { driver.lock_pages(3, region.as_mut_ptr().wrapping_add(range.start), range.len()) }
}

fn locked(bytes: usize, written: &[Range<usize>]) -> Locked {
    let region = region(bytes, written);
    Locked { pages: lock(&region, 0..bytes).unwrap(), region }
}

fn put(
    to: &Memory,
    offset: usize,
    from: &Locked,
    range: Range<usize>,
    stream: Stream,
) -> Result<(), CudaError> {
    // SAFETY: nobody writes to regions after they were made, and they are there until streams are empty.
    unsafe { to.copy_locked_later(offset, &from.pages, &from.region.bytes()[range], stream) }
}

fn found(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.bytes()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_copied_is_what_was_locked_also_where_two_pieces_meet() {
    if !emulated() {
        return;
    }
    let driver = Driver::get().unwrap();
    let around = [1, 2].map(|piece| piece * PIECE - BYTES..piece * PIECE + 5 * BYTES);
    let from = locked(2 * PIECE + 5 * BYTES, &around);
    let stream = driver.stream(3).unwrap();
    let memory = driver.allocate(3, 3 * BYTES).unwrap();
    for start in [PIECE - 5000, PIECE, PIECE - 1, 2 * PIECE - 5000, 2 * PIECE + 4 * BYTES] {
        memory.fill(0).unwrap();
        only_locked(true);
        put(&memory, BYTES, &from, start..start + BYTES, stream).unwrap();
        only_locked(false);
        driver.wait(3, stream).unwrap();
        let expected =
            [&[0; BYTES][..], &from.region.bytes()[start..start + BYTES], &[0; BYTES]].concat();
        assert!(found(&memory) == expected, "from {start}");
    }
}

#[test]
fn what_is_refused() {
    if !emulated() {
        return;
    }
    let driver = Driver::get().unwrap();
    let (from, other) = (locked(2 * BYTES, &[0..BYTES, BYTES..2 * BYTES]), region(BYTES, &[]));
    let stream = driver.stream(1).unwrap();
    let memory = driver.allocate(1, BYTES).unwrap();
    let said = |result: Result<(), CudaError>| result.unwrap_err().to_string();
    // SAFETY: nothing is copied.
    let text = said(unsafe { memory.copy_locked_later(0, &from.pages, other.bytes(), stream) });
    assert_eq!(text, "GPU 1: 10000 bytes are to be copied out of memory that is not page-locked");
    // SAFETY: the region has whole pages.
    let beyond =
        unsafe { std::slice::from_raw_parts(from.region.as_mut_ptr().add(BYTES), BYTES + 1) };
    // SAFETY: nothing is copied.
    let text = said(unsafe { memory.copy_locked_later(0, &from.pages, beyond, stream) });
    assert!(text.contains("not page-locked"), "{text}");
    for (offset, count) in [(1, BYTES), (0, BYTES + 1), (usize::MAX, 2)] {
        let text = said(put(&memory, offset, &from, 0..count, stream));
        assert!(
            text.contains(&format!(
                "{count} bytes are to be copied to byte {offset} of memory that has 10000"
            )),
            "{text}"
        );
    }
    // What the emulated driver says by itself: bytes that are locked in part, or by two calls; those that overrun the GPU's memory.
    const OK: i32 = 0;
    const INVALID: i32 = 1;
    let (to, bytes) = (memory.address(), from.region.bytes());
    assert_eq!(copy(to, &bytes[..BYTES], stream), OK);
    assert_eq!(copy(to + 1, &bytes[..BYTES], stream), INVALID);
    assert_eq!(copy(to - 1, &bytes[..1], stream), INVALID);
    assert_eq!(copy(to, other.bytes(), stream), OK, "staged, as CUDA does");
    only_locked(true);
    assert_eq!(copy(to, other.bytes(), stream), INVALID);
    only_locked(false);
    let halves = region(2 * 4096, &[]);
    let first = lock(&halves, 0..4096).unwrap();
    assert_eq!(copy(to, &halves.bytes()[4095..4097], stream), INVALID, "locked in part");
    let second = lock(&halves, 4096..8192).unwrap();
    assert_eq!(copy(to, &halves.bytes()[4095..4097], stream), INVALID, "locked by two calls");
    drop((first, second));
    only_locked(true);
    assert_eq!(copy(to, &halves.bytes()[..4096], stream), INVALID, "not locked any more");
    only_locked(false);
    driver.wait(1, stream).unwrap();
}

#[test]
fn pages_are_locked_once_and_all_or_none() {
    if !emulated() {
        return;
    }
    let region = region(2 * PIECE, &[]);
    let second = lock(&region, PIECE + 4096..PIECE + 8192).unwrap();
    let text = lock(&region, 0..2 * PIECE).map(drop).unwrap_err().to_string();
    assert!(text.contains("cuMemHostRegister") && text.contains("712"), "{text}");
    // The first piece is not left locked.
    drop(lock(&region, 0..PIECE).unwrap());
    drop(second);
    drop(lock(&region, 0..2 * PIECE).unwrap());
}

/// Each takes memory of its GPU.
#[test]
fn pages_are_locked_without_a_context_on_another_gpu() {
    let name = "cuda_copies::pages_are_locked_without_a_context_on_another_gpu";
    if !emulated() || !is_alone(name) {
        return;
    }
    let locked = locked(BYTES, &[]);
    assert_eq!(contexts(), 0b1000);
    drop(locked);
    assert_eq!(contexts(), 0b1000);
}

#[test]
fn copies_come_late_and_streams_wait_for_events() {
    if !emulated() {
        return;
    }
    let driver = Driver::get().unwrap();
    let from = locked(2 * BYTES, &[0..BYTES, BYTES..2 * BYTES]);
    let (first, second) = from.region.bytes().split_at(BYTES);
    let [copies, kernels] = [0, 1].map(|_| driver.stream(2).unwrap());
    let [early, later, out] = [0, 1, 2].map(|_| driver.allocate(2, BYTES).unwrap());
    let event = driver.mark(2).unwrap();
    let on = |run: &dyn Fn() -> Result<(), CudaError>| driver.on(2, run).unwrap();
    // An event that was never recorded is waited for by nobody.
    on(&|| driver.wait_for(kernels, event));
    on(&|| driver.reached(event));
    be_late(copies, true);
    put(&early, 0, &from, 0..BYTES, copies).unwrap();
    // Another stream does not wait for it by itself.
    out.copy_later(0, &early, BYTES, kernels).unwrap();
    driver.wait(2, kernels).unwrap();
    assert!(found(&out) == [0; BYTES] && found(&early) == [0; BYTES]);
    // Once it waits for the event, it does, and for nothing after it, also if the event is recorded again.
    on(&|| driver.record(event, copies));
    on(&|| driver.wait_for(kernels, event));
    put(&later, 0, &from, BYTES..2 * BYTES, copies).unwrap();
    on(&|| driver.record(event, copies));
    out.copy_later(0, &early, BYTES, kernels).unwrap();
    driver.wait(2, kernels).unwrap();
    assert!(found(&out) == first);
    assert!(found(&later) == [0; BYTES], "another stream's copy came first");
    on(&|| driver.reached(event));
    assert!(found(&later) == second);
    // What is put on a late stream comes in its order, and at once when it is late no more.
    put(&later, 0, &from, 0..BYTES, copies).unwrap();
    put(&later, 0, &from, BYTES..2 * BYTES, copies).unwrap();
    be_late(copies, false);
    driver.wait(2, copies).unwrap();
    assert!(found(&later) == second);
}
