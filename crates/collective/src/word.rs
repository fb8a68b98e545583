//! The word on which ranks meet: an atomic number that threads can sleep on.
//!
//! A trait, so that the very code that runs on futexes also runs under loom, which tries every order of events and every
//! value that the memory model lets a load return.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An atomic `u32` that threads can sleep on.
pub(crate) trait Word: Send + Sync {
    /// How often a waiting rank gives its core away before it sleeps.
    const YIELDS: u32;

    fn new(value: u32) -> Self;
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn add(&self, value: u32, order: Ordering) -> u32;
    fn or(&self, bits: u32, order: Ordering) -> u32;
    /// Whether the word was `current` and is `new` now. `order` is that of success; failure is relaxed.
    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool;
    /// Sleeps while the word is `expected`, at most for `time`; may return early for no reason.
    fn wait(&self, expected: u32, time: Duration);
    /// Wakes everybody who sleeps on the word.
    fn wake(&self);
    /// Lets another thread have the core.
    fn yield_now();
}

impl Word for AtomicU32 {
    // Ranks share cores: whoever spins takes the core from the rank that it waits for. A few yields catch ranks that
    // are nearly there, for a tenth of what sleeping and waking costs.
    const YIELDS: u32 = 20;

    fn new(value: u32) -> AtomicU32 {
        AtomicU32::new(value)
    }

    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        AtomicU32::store(self, value, order);
    }

    fn add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    fn or(&self, bits: u32, order: Ordering) -> u32 {
        self.fetch_or(bits, order)
    }

    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool {
        self.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
    }

    #[cfg(target_os = "linux")]
    fn wait(&self, expected: u32, time: Duration) {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        // SAFETY: the word and the time are alive and aligned for the length of the call. Every outcome is a return to
        // the caller's loop, which looks at the word again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                std::ptr::from_ref(&time),
            );
        }
    }

    #[cfg(target_os = "linux")]
    fn wake(&self) {
        // SAFETY: waking touches only the kernel's queue for this address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
    }

    /// Without a futex that we know: correct, and slower.
    #[cfg(not(target_os = "linux"))]
    fn wait(&self, _expected: u32, time: Duration) {
        std::thread::sleep(time.min(Duration::from_micros(50)));
    }

    #[cfg(not(target_os = "linux"))]
    fn wake(&self) {}

    fn yield_now() {
        std::thread::yield_now();
    }
}
