//! Slots under loom, where threads read: every order of events, up to a number of preemptions. `make loom` runs it.
//!
//! The code is that of [`super`] itself, with loom's locks and threads, and it reads a real file. In every order, the bytes that a
//! visit gets are those of the piece that it wants, were written before that, and are not written again while the visit lasts; no
//! thread waits for ever, which loom would report as a deadlock; and the readers end.
//!
//! With a ring there is nothing to test: only the thread that visits accesses it, which the `&mut` of the visit's lock proves.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Groups, HeldGroup, SlotOptions, Slots, Span};

/// Bytes of a span. A piece has two, so that both readers may work on one slot.
const SPAN: u64 = 16;
const PIECES: usize = 4;

fn byte_of(piece: usize, span: usize) -> u8 {
    (1 + 2 * piece + span) as u8
}

/// Two groups of two pieces.
fn groups() -> Groups {
    let span = |i: usize| Span { file: 0, range: i as u64 * SPAN..(i as u64 + 1) * SPAN };
    let piece = |piece: usize| vec![span(2 * piece), span(2 * piece + 1)];
    (0..PIECES).map(piece).collect::<Vec<_>>().chunks(2).map(<[_]>::to_vec).collect()
}

/// Runs `visits` in every order of events with at most `preemptions` preemptions, with slots for `capacity` pieces.
fn every_order(preemptions: usize, capacity: u64, visits: fn(&Arc<Slots>)) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for i in 0..2 * PIECES {
        file.write_all(&[byte_of(i / 2, i % 2); SPAN as usize]).unwrap();
    }
    let file = Arc::new(file);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let open: &File = file.as_file();
        let options = SlotOptions { direct: false, ring: false, ..SlotOptions::default() };
        let files = [(open, PathBuf::from("pieces"))];
        let slots = Arc::new(Slots::new(&files, &groups(), capacity * 2 * SPAN, options).unwrap());
        assert_eq!(slots.sizes().slots as u64, capacity);
        visits(&slots);
        assert!(slots.failure().is_none());
    });
}

/// Checks the bytes that a visit gets, as they arrive.
fn look(held: &mut HeldGroup<'_>, group: usize, wanted: &[usize]) {
    loop {
        for piece in wanted.iter().filter(|piece| held.is_here(**piece)) {
            for span in 0..2 {
                let right = byte_of(2 * group + piece, span);
                let bytes = held.bytes(*piece, span);
                assert!(bytes.iter().all(|byte| *byte == right), "piece {piece}: {bytes:?}");
            }
        }
        if held.all_here() {
            return;
        }
        held.wait_for_more();
    }
}

fn visit(slots: &Slots, group: usize, wanted: &[usize]) {
    look(&mut slots.hold(group, wanted.iter().copied()), group, wanted);
}

#[test]
fn a_visit_of_all_slots_and_another() {
    every_order(2, 2, |slots| {
        visit(slots, 0, &[0, 1]);
        visit(slots, 1, &[1]);
    });
}

/// The next visit needs the slots of pieces that are still being read.
#[test]
fn a_visit_that_does_not_wait() {
    every_order(2, 2, |slots| {
        drop(slots.hold(0, [0].into_iter()));
        visit(slots, 1, &[0, 1]);
    });
}

/// The second visit wants a piece that was read ahead, which a reader may still be reading.
#[test]
fn what_is_read_ahead_and_comes_late() {
    every_order(2, 3, |slots| {
        let mut held = slots.hold(0, [0].into_iter());
        look(&mut held, 0, &[0]);
        held.read_ahead(1, [0].into_iter());
        drop(held);
        visit(slots, 1, &[0, 1]);
    });
}

/// One waits for the other, and any thread may query which pieces are resident.
#[test]
fn two_that_visit() {
    every_order(1, 2, |slots| {
        let theirs = Arc::clone(slots);
        let other = loom::thread::spawn(move || visit(&theirs, 1, &[0, 1]));
        visit(slots, 0, &[0, 1]);
        assert_eq!(slots.here(0).len(), 2);
        other.join().unwrap();
    });
}

/// The readers are stopped in the middle of their work.
#[test]
fn an_end_before_anything_has_come() {
    every_order(2, 2, |slots| drop(slots.hold(0, [0, 1].into_iter())));
}
