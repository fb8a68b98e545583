//! What the system may refuse while a file is copied: each refusal is real, by a seccomp filter (as
//! containers have it) in a child process. A way of copying is given up for the next only when it is
//! refused, not when something is broken, and only before it has copied anything.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::ops::ControlFlow;

use alight_pages::copy::{Fallback, Method, Options, Report};
use alight_pages::evict;

use crate::common::copying::{assert_same, by, copy, copy_and, stays_half_warm};
use crate::common::refuse::{forbid, run};
use crate::common::{self, on_disk};

const LEN: usize = (20 << 20) + 777;

/// The environment has three parts: calls that are forbidden with these errors from the beginning; calls
/// that are half way through; the first way to try. This forbids what one part names.
fn forbid_all(part: usize) {
    let argument = std::env::var("REFUSED").unwrap();
    let part = argument.split(';').nth(part).unwrap_or_default();
    for one in part.split(',').filter(|one| !one.is_empty()) {
        let (call, errno) = one.split_once(' ').unwrap();
        if let Err(error) = forbid(call.parse().unwrap(), errno.parse().unwrap()) {
            eprintln!("skipped: no seccomp filters: {error}");
            println!("1 passed");
            std::process::exit(0);
        }
    }
}

fn method() -> Option<Method> {
    let argument = std::env::var("REFUSED").unwrap();
    match argument.split(';').nth(2).unwrap_or_default() {
        "direct" => Some(Method::Direct),
        "range" => Some(Method::CopyFileRange),
        "read/write" => Some(Method::ReadWrite),
        _ => None,
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.method = method();
    options
}

/// Copies a file under the refusals of the first part: whatever is refused, the bytes are the same.
/// Then says how it went.
#[test]
#[ignore = "a child of the tests below"]
fn child_that_copies_all_the_same() {
    let (folder, from) = on_disk(&common::contents(LEN));
    let to = folder.path().join("to");
    forbid_all(0);
    let report = copy(&from, &to, &options()).unwrap();
    println!("method {:?} {:?} end", report.method, report.fallbacks);
    assert_same(&from, &to);
}

/// The same of a half-warm file, which is as half warm afterwards, to the page.
#[test]
#[ignore = "a child of the tests below"]
fn child_whose_cache_stays_as_it_was() {
    let (folder, from) = on_disk(&common::contents(LEN));
    let to = folder.path().join("to");
    if evict(&File::open(&from).unwrap()).map_or(true, |left| left.cached > 0) {
        return eprintln!("skipped: what is cached of files here cannot be told");
    }
    forbid_all(0);
    let report = stays_half_warm(&from, || copy(&from, &to, &options()).unwrap());
    println!("method {:?} {:?} end", report.method, report.fallbacks);
}

/// Forbids the calls of the second part after the first window.
#[test]
#[ignore = "a child of the tests below"]
fn child_that_is_refused_half_way() {
    let (folder, from) = on_disk(&common::contents(LEN));
    let to = folder.path().join("to");
    forbid_all(0);
    let (mut done, mut forbidden) = (0, false);
    let result = copy_and(&from, &to, &options(), &mut |progress| {
        done += 1;
        if done > 1 && !forbidden {
            assert!(progress.total > 0);
            forbid_all(1);
            forbidden = true;
        }
        ControlFlow::Continue(())
    });
    match result {
        Ok(Report { method: Method::Reflink, .. }) => eprintln!("skipped: bytes are shared here"),
        other => println!("half way {other:?} end"),
    }
}

/// Runs a child; the line in which it says how it went, unless it was skipped.
fn child(name: &str, refused: &str) -> Option<String> {
    run(&format!("copy_refusals::{name}"), refused)
        .lines()
        .find(|line| line.ends_with(" end"))
        .map(str::to_owned)
}

/// True if copies of this folder go around the page cache by themselves (and are not shared).
fn is_direct_here() -> bool {
    let (folder, from) = on_disk(&common::contents(LEN));
    let report = copy(&from, &folder.path().join("to"), &Options::default()).unwrap();
    let direct = report.method == Method::Direct;
    if !direct {
        eprintln!("skipped: direct copies are not to be had here: {report:?}");
    }
    direct
}

fn is_shared_here() -> bool {
    let (folder, from) = on_disk(&common::contents(1000));
    copy(&from, &folder.path().join("to"), &Options::default()).unwrap().method == Method::Reflink
}

#[test]
fn copy_file_range_that_is_refused_is_followed_by_reads_and_writes() {
    if is_shared_here() {
        return eprintln!("skipped: bytes are shared here");
    }
    for errno in [
        libc::EXDEV,
        libc::EOPNOTSUPP,
        libc::EINVAL,
        libc::EPERM,
        libc::ENOSYS,
        libc::ENOENT,
        // What /proc does: nothing, and no error.
        0,
    ] {
        let refused = format!("{} {errno};;range", libc::SYS_copy_file_range);
        let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
        assert!(said.contains("method ReadWrite"), "{errno}: {said}");
        let why = match errno {
            0 => "NothingCopied".to_owned(),
            _ => format!("Refused {{ method: CopyFileRange, errno: {errno} }}"),
        };
        assert!(said.contains(&why), "{errno}: {said}");
    }
}

#[test]
fn what_is_broken_or_full_is_an_error_and_no_reason_to_try_another_way() {
    if is_shared_here() {
        return eprintln!("skipped: bytes are shared here");
    }
    for (errno, error) in [(libc::EIO, "Err(Copy {"), (libc::ENOSPC, "Err(Write {")] {
        let refused = format!("{} {errno};;range", libc::SYS_copy_file_range);
        let Some(said) = child("child_that_is_refused_half_way", &refused) else { return };
        assert!(said.contains(error), "{errno}: {said}");
    }
}

#[test]
fn after_the_first_byte_there_is_no_way_back() {
    if is_shared_here() {
        return eprintln!("skipped: bytes are shared here");
    }
    for errno in [libc::EXDEV, libc::EOPNOTSUPP, libc::EINVAL, libc::EPERM, libc::ENOSYS] {
        let refused = format!(";{} {errno};range", libc::SYS_copy_file_range);
        let Some(said) = child("child_that_is_refused_half_way", &refused) else { return };
        assert!(said.contains("Err(Copy {"), "{errno}: {said}");
    }
    // And nothing where there should be something is an end that came too early.
    let refused = format!(";{} 0;range", libc::SYS_copy_file_range);
    let Some(said) = child("child_that_is_refused_half_way", &refused) else { return };
    assert!(said.contains("Err(CutShort {"), "{said}");
}

#[test]
fn what_cannot_be_shared_is_copied() {
    for errno in [libc::EPERM, libc::ENOTTY, libc::EXDEV, libc::ENOSYS] {
        let refused = format!("{} {errno};;", libc::SYS_ioctl);
        let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
        assert!(said.contains(&format!("Refused {{ method: Reflink, errno: {errno} }}")), "{said}");
    }
}

#[test]
fn direct_writes_that_are_refused_are_followed_by_copy_file_range() {
    if !is_direct_here() {
        return;
    }
    let refused = format!("{} {};;direct", libc::SYS_pwrite64, libc::EINVAL);
    let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
    assert!(said.contains("method CopyFileRange"), "{said}");
    assert!(said.contains("Refused { method: Direct, errno: 22 }"), "{said}");
    // A full disk is not a refusal.
    let refused = format!("{} {};;direct", libc::SYS_pwrite64, libc::ENOSPC);
    let Some(said) = child("child_that_is_refused_half_way", &refused) else { return };
    assert!(said.contains("Err(Write {"), "{said}");
}

#[test]
fn reads_and_writes_that_leave_nothing_cached_may_be_refused() {
    if is_shared_here() {
        return eprintln!("skipped: bytes are shared here");
    }
    for (call, why) in
        [(libc::SYS_preadv2, "ReadsAreCached"), (libc::SYS_pwritev2, "WritesAreCached")]
    {
        for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EPERM] {
            let refused = format!("{call} {errno};;read/write");
            let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
            assert!(said.contains(&format!("{why} {{ errno: {errno} }}")), "{said}");
        }
    }
}

#[test]
fn parts_that_cannot_be_synced_are_synced_with_the_whole() {
    if is_shared_here() {
        return eprintln!("skipped: bytes are shared here");
    }
    for method in ["range", "read/write"] {
        let refused = format!("{} {};;{method}", libc::SYS_sync_file_range, libc::ENOSYS);
        let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
        assert!(said.contains("WholeSyncs { errno: 38 }"), "{said}");
    }
    let refused = format!("{} {};;range", libc::SYS_sync_file_range, libc::EIO);
    let Some(said) = child("child_that_is_refused_half_way", &refused) else { return };
    assert!(said.contains("Err(Write {"), "{said}");
}

#[test]
fn without_room_set_aside_or_holes_told_it_is_copied() {
    let refused = format!("{} {};;", libc::SYS_fallocate, libc::EOPNOTSUPP);
    child("child_that_copies_all_the_same", &refused);
    let refused = format!("{} {};;", libc::SYS_lseek, libc::EINVAL);
    let Some(said) = child("child_that_copies_all_the_same", &refused) else { return };
    assert!(said.contains("HolesUnknown { errno: 22 }"), "{said}");
}

#[test]
fn without_cachestat_mincore_tells_and_what_was_cached_stays() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        for method in ["range", "read/write", "direct"] {
            let refused = format!("451 {errno};;{method}");
            let Some(said) = child("child_whose_cache_stays_as_it_was", &refused) else { continue };
            // It is known by mincore, and not given up as unknown.
            assert!(!said.contains("CacheUnknown"), "{said}");
        }
    }
}

#[test]
fn without_io_uring_it_is_copied_around_the_page_cache_all_the_same() {
    if !is_direct_here() {
        return;
    }
    let refused = format!("{} {};;direct", libc::SYS_io_uring_setup, libc::EPERM);
    let Some(said) = child("child_whose_cache_stays_as_it_was", &refused) else { return };
    assert!(said.contains("method Direct"), "{said}");
}

/// The kernel does not tell what is cached of another user's file: only methods without traces are used.
#[test]
fn somebody_elses_file_leaves_no_traces_either() {
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become somebody else");
    }
    let (folder, from) = on_disk(&common::contents(LEN));
    let to = folder.path().join("to");
    let made = File::create(&to).unwrap();
    let source = File::open(&from).unwrap();
    std::os::unix::fs::chown(&to, Some(65534), None).unwrap();
    std::fs::set_permissions(&from, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    // Without RWF_DONTCACHE (before Linux 6.14) reading leaves traces; direct reads never do.
    let plain = copy(&from, &to, &by(Method::ReadWrite)).unwrap();
    let refused = |why: &Fallback| matches!(why, Fallback::ReadsAreCached { .. });
    let dontcache = !plain.fallbacks.iter().any(refused);
    if !dontcache {
        eprintln!("skipped: no RWF_DONTCACHE here: what is cached is not looked at");
    }
    for method in [Some(Method::CopyFileRange), Some(Method::Direct), None] {
        let mut options = Options::default();
        options.method = method;
        // The process that looks is the owner, and not the one that copies.
        let copied = || {
            made.set_len(0).unwrap();
            std::thread::scope(|scope| {
                let copied = scope.spawn(|| {
                    // SAFETY: takes numbers; the plain system call changes this thread alone.
                    let status = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
                    assert_eq!(status, 0);
                    alight_pages::copy::copy((&source, &from), (&made, &to), &options, &mut |_| {
                        ControlFlow::Continue(())
                    })
                });
                copied.join().unwrap().unwrap()
            })
        };
        let report = match dontcache {
            true => stays_half_warm(&from, copied),
            false => copied(),
        };
        let told = !report.fallbacks.contains(&Fallback::CacheUnknown);
        if method == Some(Method::CopyFileRange) && report.method != Method::Reflink {
            assert!(report.method == Method::ReadWrite && !told, "{report:?}");
        }
    }
}
