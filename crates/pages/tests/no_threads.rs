//! No threads to be had, as under `ulimit -u` or a control group's limit: everything continues with the one
//! that there is. The refusal is real, in a child process that has it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::num::NonZero;
use std::ops::{ControlFlow, Range};

use alight_pages::Threads;
use alight_pages::assemble::{Maker, assemble};
use alight_pages::copy;
use alight_pages::transfer::{Piece, TransferMethod};

use crate::common::refuse::{forbid, run};
use crate::common::{compare, contents, on_disk, options};

const LEN: usize = 70_000_001;

/// Bytes of the source as they are.
struct Same<'a>(&'a [u8]);

impl Maker for Same<'_> {
    type Error = std::io::Error;

    fn make(&mut self, range: Range<u64>, out: &mut [u8]) -> Result<(), std::io::Error> {
        out.copy_from_slice(&self.0[range.start as usize..range.end as usize]);
        Ok(())
    }
}

#[test]
#[ignore = "a child of the test below"]
fn child_without_threads() {
    let expected = contents(LEN);
    let (folder, path) = on_disk(&expected);
    for call in [libc::SYS_clone3, libc::SYS_clone] {
        if let Err(error) = forbid(call, libc::EAGAIN) {
            return eprintln!("skipped: no seccomp filters: {error}");
        }
    }
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "threads are refused");
    let pieces = (0..LEN as u64).step_by(500_000);
    let pieces: Vec<Piece> =
        pieces.map(|start| Piece::slot(start..(start + 500_000).min(LEN as u64))).collect();
    for method in [TransferMethod::Direct, TransferMethod::Read] {
        let report = compare(&path, &expected, &pieces, method, &options(true)).unwrap();
        assert!(report.threads.is_short() && report.threads.had == 1, "{report:?}");
    }

    let to = folder.path().join("copy");
    let (source, dest) = (File::open(&path).unwrap(), File::create_new(&to).unwrap());
    let mut last = None;
    let mut go_on = |progress| {
        last = Some(progress);
        ControlFlow::Continue(())
    };
    let report =
        copy::copy((&source, &path), (&dest, &to), &copy::Options::default(), &mut go_on).unwrap();
    // Only around the page cache a copy has threads.
    assert_eq!(report.threads.is_short(), report.method == copy::Method::Direct, "{report:?}");
    assert!(last.is_some() && std::fs::read(&to).unwrap() == expected);

    let to = folder.path().join("made");
    let dest = File::options().read(true).write(true).create_new(true).open(&to).unwrap();
    let mut told = 0;
    let mut go_on = |bytes| {
        told = bytes;
        ControlFlow::Continue(())
    };
    let threads = NonZero::new(4).unwrap();
    let had = assemble(&dest, LEN as u64, threads, || Same(&expected), &mut go_on).unwrap();
    assert_eq!(had, Threads { wanted: 4, had: 1 });
    assert!(told == LEN as u64 && std::fs::read(&to).unwrap() == expected);
}

#[test]
fn without_threads_everything_is_done_by_one() {
    run("no_threads::child_without_threads", "");
}
