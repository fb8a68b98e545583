//! Waiting for a word to change: a futex on Linux, a mutex and a condition variable elsewhere.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// A word that threads can wait on.
pub(crate) struct Parking {
    /// The word itself.
    pub(crate) word: AtomicU32,
    #[cfg(not(target_os = "linux"))]
    gate: (std::sync::Mutex<()>, std::sync::Condvar),
}

impl Parking {
    pub(crate) fn new(value: u32) -> Parking {
        Parking {
            word: AtomicU32::new(value),
            #[cfg(not(target_os = "linux"))]
            gate: Default::default(),
        }
    }

    /// Sleeps while the word is `expected`, until woken or until the time has elapsed; may wake spuriously.
    #[cfg(target_os = "linux")]
    pub(crate) fn wait(&self, expected: u32, time: Option<Duration>) {
        let time = time.map(|time| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        });
        // SAFETY: the word and the time are alive and aligned for the duration of the call; a null time means no timeout. Every
        // outcome is a return to the caller's loop.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            );
        }
    }

    /// Wakes at most `count` threads waiting on the word.
    #[cfg(target_os = "linux")]
    pub(crate) fn wake(&self, count: u32) {
        // SAFETY: waking touches only the kernel's queue for this address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                count.min(i32::MAX as u32),
            );
        }
    }

    /// Sleeps while the word is `expected`, until woken or until the time has elapsed; may wake spuriously.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn wait(&self, expected: u32, time: Option<Duration>) {
        use std::sync::{PoisonError, atomic::Ordering};
        let guard = self.gate.0.lock().unwrap_or_else(PoisonError::into_inner);
        if self.word.load(Ordering::SeqCst) == expected {
            match time {
                Some(time) => drop(self.gate.1.wait_timeout(guard, time)),
                None => drop(self.gate.1.wait(guard)),
            }
        }
    }

    /// Wakes all threads waiting on the word.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn wake(&self, _count: u32) {
        use std::sync::PoisonError;
        // Taking the lock orders this after the check of a thread that is about to sleep.
        drop(self.gate.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.gate.1.notify_all();
    }
}
