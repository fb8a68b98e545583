//! The word on which ranks meet: an atomic number that threads can sleep on.
//!
//! A trait, so that the code that runs on futexes also runs under loom, which tries every order of events and every
//! value that the memory model lets a load return.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An atomic `u32` that threads can sleep on.
pub(crate) trait Word: Send + Sync {
    /// Number of times that a waiting rank yields its core before it sleeps.
    const YIELDS: u32;

    fn new(value: u32) -> Self;
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn add(&self, value: u32, order: Ordering) -> u32;
    fn or(&self, bits: u32, order: Ordering) -> u32;
    /// Replaces `current` by `new`, and returns true if the word was `current`. `order` is that of success; failure is
    /// relaxed.
    fn replace(&self, current: u32, new: u32, order: Ordering) -> bool;
    /// Sleeps while the word is `expected`, for at most `time`; may return early without a reason.
    fn wait(&self, expected: u32, time: Duration);
    /// Wakes at most `most` of the threads that sleep on the word.
    fn wake(&self, most: u32);
    /// Yields the core to another thread.
    fn yield_now();
}

/// The two kinds of words: among threads, and among processes that may map it at different addresses.
macro_rules! word {
    ($word:ty, |$self:ident| $atomic:expr, |$value:ident| $new:expr, $private:literal) => {
        impl Word for $word {
            // Ranks share cores: a rank that spins takes the core from the rank that it waits for. A few yields catch
            // ranks that are nearly there, for a tenth of the cost of sleeping and waking.
            const YIELDS: u32 = 20;

            fn new($value: u32) -> $word {
                $new
            }

            fn load(&$self, order: Ordering) -> u32 {
                $atomic.load(order)
            }

            fn store(&$self, value: u32, order: Ordering) {
                $atomic.store(value, order);
            }

            fn add(&$self, value: u32, order: Ordering) -> u32 {
                $atomic.fetch_add(value, order)
            }

            fn or(&$self, bits: u32, order: Ordering) -> u32 {
                $atomic.fetch_or(bits, order)
            }

            fn replace(&$self, current: u32, new: u32, order: Ordering) -> bool {
                $atomic.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
            }

            fn wait(&$self, expected: u32, time: Duration) {
                futex::wait($atomic, expected, time, $private);
            }

            fn wake(&$self, most: u32) {
                futex::wake($atomic, most, $private);
            }

            fn yield_now() {
                std::thread::yield_now();
            }
        }
    };
}

/// A word in memory that processes share.
#[repr(transparent)]
pub(crate) struct Shared(AtomicU32);

word!(AtomicU32, |self| self, |value| AtomicU32::new(value), true);
word!(Shared, |self| &self.0, |value| Shared(AtomicU32::new(value)), false);

#[cfg(target_os = "linux")]
mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    const fn flags(private: bool) -> libc::c_int {
        if private { libc::FUTEX_PRIVATE_FLAG } else { 0 }
    }

    pub(super) fn wait(word: &AtomicU32, expected: u32, time: Duration, private: bool) {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        };
        // SAFETY: the word and the time are alive and aligned for the length of the call. Every outcome returns to the
        // caller's loop, which reads the word again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT | flags(private),
                expected,
                std::ptr::from_ref(&time),
            );
        }
    }

    pub(super) fn wake(word: &AtomicU32, most: u32, private: bool) {
        let most = most.min(i32::MAX as u32);
        // SAFETY: waking touches only the kernel's queue for this address.
        unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | flags(private), most);
        }
    }
}

/// Without a futex that we know of: correct, but slower.
#[cfg(not(target_os = "linux"))]
mod futex {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    pub(super) fn wait(_word: &AtomicU32, _expected: u32, time: Duration, _private: bool) {
        std::thread::sleep(time.min(Duration::from_micros(50)));
    }

    pub(super) fn wake(_word: &AtomicU32, _most: u32, _private: bool) {}
}
