//! A SIGBUS that has nothing to do with our maps does what it would have done without us. Each case
//! runs in a child process: this program again, with the case named in the environment.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use alight_pages::{Map, MapError};

const CASE: &str = "ALIGHT_PAGES_TEST_CASE";
const LEN: usize = 1 << 20;

/// Runs the test `name` of this file in a child with `case`. A child that hangs is killed.
fn child(name: &str, case: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("foreign_faults::{name}"), "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("{case}: the child hangs: {:?}", child.wait());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

fn no_core_dump() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid struct.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// A map that is not ours, of a file that has been cut to nothing.
fn foreign_map() -> *const u8 {
    let file = tempfile::tempfile().unwrap();
    file.set_len(LEN as u64).unwrap();
    // SAFETY: a new map at an address that the system chooses.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), LEN, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    file.set_len(0).unwrap();
    start.cast()
}

/// A map of ours that works, so that the handler is installed; and one that was closed. Its file has no name any more, so that a
/// process that is killed leaves none after.
fn our_map() -> (File, Map) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![1; LEN]).unwrap();
    drop(Map::open(file.path()).unwrap());
    let map = Map::open(file.path()).unwrap();
    (file.into_file(), map)
}

fn touch(at: *const u8) -> u8 {
    // SAFETY: `at` is mapped. That the page is missing is what is being tested.
    unsafe { at.read_volatile() }
}

#[test]
fn a_fault_outside_our_maps_still_ends_the_process() {
    if case().is_some() {
        no_core_dump();
        let foreign = foreign_map();
        let (_file, map) = our_map();
        map.check().unwrap();
        touch(foreign);
        return;
    }
    let status = child("a_fault_outside_our_maps_still_ends_the_process", "foreign");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

#[test]
fn a_fault_where_one_of_our_maps_used_to_be_still_ends_the_process() {
    if case().is_some() {
        no_core_dump();
        let (_file, map) = our_map();
        let place = map.bytes().as_ptr();
        drop(map);
        // Put a foreign map exactly there.
        let file = tempfile::tempfile().unwrap();
        // SAFETY: nothing is mapped there now; where something is, EEXIST fails the test.
        let start = unsafe {
            libc::mmap(
                place.cast_mut().cast(),
                LEN,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_eq!(start.cast_const().cast(), place);
        touch(place);
        return;
    }
    let status = child("a_fault_where_one_of_our_maps_used_to_be_still_ends_the_process", "old");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

#[test]
fn a_bus_signal_that_was_sent_still_ends_the_process() {
    if case().is_some() {
        no_core_dump();
        default_action();
        let (_file, map) = our_map();
        // SAFETY: sends a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        map.check().unwrap();
        return;
    }
    let status = child("a_bus_signal_that_was_sent_still_ends_the_process", "sent");
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

/// Takes away the handler that Rust's runtime installs for stack overflows.
fn default_action() {
    // SAFETY: the default action is always valid.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

#[test]
fn an_ignored_signal_stays_ignored_and_a_fault_does_not() {
    match case().as_deref() {
        None => {
            let name = "an_ignored_signal_stays_ignored_and_a_fault_does_not";
            assert!(child(name, "sent").success());
            assert_eq!(child(name, "fault").signal(), Some(libc::SIGBUS));
        }
        Some(case) => {
            no_core_dump();
            // SAFETY: ignoring is always valid.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_IGN) };
            let foreign = foreign_map();
            let (_file, map) = our_map();
            if case == "fault" {
                touch(foreign);
            }
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
            map.check().unwrap();
        }
    }
}

static EXIT: AtomicI32 = AtomicI32::new(42);

extern "C" fn earlier(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes valid information; `_exit` may be called in a handler.
    unsafe {
        let code = if (*info).si_addr().is_null() { 1 } else { EXIT.load(Ordering::SeqCst) };
        libc::_exit(code);
    }
}

extern "C" fn earlier_plain(_: libc::c_int) {
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(43) };
}

#[test]
fn an_earlier_handler_gets_foreign_faults_and_not_ours() {
    let name = "an_earlier_handler_gets_foreign_faults_and_not_ours";
    let Some(case) = case() else {
        assert_eq!(child(name, "info").code(), Some(42));
        assert_eq!(child(name, "plain").code(), Some(43));
        assert_eq!(child(name, "sent").code(), Some(42));
        assert_eq!(child(name, "ours").code(), Some(0));
        return;
    };
    // SAFETY: an all-zero sigaction is valid; the handlers have the signatures the flags promise.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if case == "plain" {
            action.sa_sigaction = earlier_plain as *const () as usize;
        } else {
            action.sa_sigaction = earlier as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
        }
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()), 0);
    }
    let (file, map) = our_map();
    if case == "ours" {
        file.set_len(0).unwrap();
        assert_eq!(map.bytes()[LEN - 1], 0);
        assert!(matches!(map.check(), Err(MapError::FileShrank { .. })));
    } else if case == "sent" {
        // Not a fault, although it comes with an address inside our map.
        send_with_address(map.bytes().as_ptr());
        map.check().unwrap();
    } else {
        touch(foreign_map());
    }
}

/// Sends SIGBUS to this process with `address` where a fault's address would be.
fn send_with_address(address: *const u8) {
    // The start of the kernel's siginfo on 64-bit systems: signal, errno, code, padding, address.
    let mut info = [0_u64; 16];
    info[0] = libc::SIGBUS as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    info[2] = address as u64;
    // SAFETY: `info` has the 128 bytes of a siginfo.
    let status = unsafe {
        libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), libc::SIGBUS, info.as_ptr())
    };
    assert_eq!(status, 0);
}
