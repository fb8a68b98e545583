//! What the system may refuse: io_uring as a whole or in part (by a seccomp filter, as containers
//! have it), and locked memory. Each refusal is real, in a child process that has it.
#![cfg(target_os = "linux")]

use alight_pages::transfer::{Engine, Piece, TransferFallback, TransferMethod, TransferReport};
use alight_pages::{Map, Region};

use crate::common::refuse::{forbid, run};
use crate::common::{compare, contents, on_disk, options};

const LEN: usize = 3_000_001;

/// Reads a file directly, to slots and to memory.
fn read() -> TransferReport {
    let expected = contents(LEN);
    let (_folder, path) = on_disk(&expected);
    let image = Region::new(LEN).unwrap();
    let mut pieces = vec![];
    for start in (0..LEN as u64).step_by(50_000) {
        let range = start..(start + 50_000).min(LEN as u64);
        pieces.push(Piece::slot(range.clone()));
        // SAFETY: a part of a region of `LEN` bytes that is used once.
        pieces.push(unsafe { Piece::at(range, image.as_mut_ptr().add(start as usize)) });
    }
    let report =
        compare(&path, &expected, &pieces, TransferMethod::Direct, &options(true)).unwrap();
    assert!(image.bytes() == expected);
    report
}

#[test]
#[ignore = "a child of the tests below"]
fn child_whose_io_uring_is_refused() {
    let argument = std::env::var("REFUSED").unwrap();
    let (call, errno) = argument.split_once(' ').unwrap();
    let (call, errno) = (call.parse().unwrap(), errno.parse().unwrap());
    if let Err(error) = forbid(call, errno) {
        return eprintln!("skipped: no seccomp filters: {error}");
    }
    let report = read();
    assert_eq!(report.fallbacks, [TransferFallback::NoRing { errno }]);
    assert!(report.direct && report.engine == Engine::Threads && !report.registered, "{report:?}");
    assert!(report.fallbacks[0].to_string().starts_with("io_uring is refused"));
}

const URING_REFUSED: &str = "transfer_refusals::child_whose_io_uring_is_refused";

#[test]
fn without_io_uring_threads_read() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        run(URING_REFUSED, &format!("{} {errno}", libc::SYS_io_uring_setup));
    }
}

#[test]
fn with_half_of_io_uring_threads_read() {
    for call in [libc::SYS_io_uring_register, libc::SYS_io_uring_enter] {
        run(URING_REFUSED, &format!("{call} {}", libc::EPERM));
    }
}

/// Takes away what root may do beyond RLIMIT_MEMLOCK, and sets that.
fn limit_locked_memory(bytes: u64) {
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const CAP_IPC_LOCK: u32 = 14;
    // _LINUX_CAPABILITY_VERSION_3, this thread
    let header = [0x2008_0522_u32, 0];
    let mut sets = [Sets::default(); 2];
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the structures are as the calls expect them.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &header, &mut sets), 0);
        sets[0].effective &= !(1 << CAP_IPC_LOCK);
        assert_eq!(libc::syscall(libc::SYS_capset, &header, &sets), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
    }
}

#[test]
#[ignore = "a child of the test below"]
fn child_that_may_not_lock_memory() {
    limit_locked_memory(limit());
    let report = read();
    assert!(report.direct && !report.registered, "{report:?}");
    match report.fallbacks[..] {
        [TransferFallback::NotRegistered { errno: libc::ENOMEM }] => {
            assert_eq!(report.engine, Engine::IoUring);
        }
        // Newer kernels count the ring itself as locked memory.
        [TransferFallback::NoRing { errno: libc::ENOMEM }] if limit() == 0 => {
            assert_eq!(report.engine, Engine::Threads);
        }
        _ => panic!("{report:?}"),
    }

    let (_folder, path) = on_disk(&contents(LEN));
    let map = Map::open(&path).unwrap();
    let errors = [map.lock(0..LEN).unwrap_err(), Region::new(LEN).unwrap().lock().unwrap_err()];
    for error in errors {
        assert_eq!((error.bytes, error.limit), (LEN, Some(limit())));
        let text = error.to_string();
        assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("ulimit -l"), "{text}");
    }
    // Nothing of it is locked now: all can be given back.
    assert_eq!(map.give_back(0..LEN), LEN.next_multiple_of(4096));
}

fn limit() -> u64 {
    std::env::var("REFUSED").unwrap().parse().unwrap()
}

#[test]
fn without_locked_memory_slots_are_used_as_they_are_and_locks_say_what_to_do() {
    for limit in ["0", "131072"] {
        run("transfer_refusals::child_that_may_not_lock_memory", limit);
    }
}
