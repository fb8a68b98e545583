//! Memory that the system refuses: one line that says so, and the end of the process with status 1, in place of an abort.
//!
//! The line is written without an allocation, and without a lock of the standard library: the thread may hold any.

use std::fmt::{self, Write};
use std::hint::black_box;
use std::io::stderr;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rusage::{Memory, ReportingAllocator, signals};
use rustix::io::write;
use rustix::process::{Resource, getrlimit};

use crate::terminal;

#[global_allocator]
static ALLOCATOR: ReportingAllocator = ReportingAllocator::new(refused);

/// The process that ends: not one that it has forked, whose parent looks at how it ends.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The number of threads for which a refusal is no reason to end.
static EXPECTED: AtomicU32 = AtomicU32::new(0);

/// Bytes of stack that the main thread may need.
const STACK: usize = 1 << 20;
/// Bytes of address space that remain besides, for the first allocations.
const REST: u64 = 256 << 10;
/// Bytes of address space that are too few for a thread: the reason why the C library aborts.
const NEARLY_NOTHING: u64 = 4 << 20;

/// The beginnings of what the standard library says when there is no memory for the signal stack of a thread that has just begun.
const NO_SIGNAL_STACK: [&str; 2] =
    ["failed to allocate an alternative stack", "failed to set up alternative stack guard page"];

/// Makes refused memory end the process with a message. Called first, by the main thread.
pub fn end_the_process() {
    PROCESS.store(process::id(), Ordering::Relaxed);
    signals::before_abort(aborting);
    reserve_stack();
}

/// Grows the stack of this thread, the main one, to what it may need, if the address space is limited. Once the address space is used
/// up, the stack cannot grow, which is no error but a signal that ends the process.
fn reserve_stack() {
    let Some((limit, used)) = address_space() else { return };
    let needed = used + STACK as u64 + REST;
    if limit < needed {
        end(format_args!(
            "this process may have {limit} bytes of address space (ulimit -v), and needs {needed} to begin with: raise that limit"
        ));
    }
    // Where the stack may not become that large, it is left as it is.
    if getrlimit(Resource::Stack).current.is_none_or(|most| most >= 2 * STACK as u64) {
        touch();
    }
}

#[inline(never)]
fn touch() {
    let stack = [1_u8; STACK];
    black_box(&stack);
}

/// The limit on the address space of this process in bytes, and its use, if there is a limit and the system reports both.
fn address_space() -> Option<(u64, u64)> {
    Some((getrlimit(Resource::As).current?, Memory::address_space_of_self()?))
}

/// Runs work that continues with less where the system refuses memory.
pub fn expecting_refusal<T>(work: impl FnOnce() -> T) -> T {
    EXPECTED.fetch_add(1, Ordering::Relaxed);
    let done = work();
    EXPECTED.fetch_sub(1, Ordering::Relaxed);
    done
}

/// Ends the process if this is the message of a panic for want of memory, which is no bug.
pub fn end_after(panic: &str) {
    if NO_SIGNAL_STACK.iter().any(|beginning| panic.starts_with(beginning)) {
        no_more(format_args!("a thread"));
    }
}

fn refused(bytes: usize) {
    if is_this_process() && EXPECTED.load(Ordering::Relaxed) == 0 {
        no_more(format_args!("{bytes} bytes"));
    }
}

/// The C library aborts if there is no memory for what a thread needs.
fn aborting() {
    let is_used_up = |(limit, used)| limit < used + NEARLY_NOTHING;
    if is_this_process() && address_space().is_some_and(is_used_up) {
        no_more(format_args!("a thread"));
    }
}

fn is_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == process::id()
}

fn no_more(what: fmt::Arguments<'_>) -> ! {
    match getrlimit(Resource::As).current {
        Some(limit) => end(format_args!(
            "the system refuses memory for {what}: this process may have {limit} bytes of address space (ulimit -v): raise that limit"
        )),
        None => end(format_args!(
            "the system refuses memory for {what}: end other programs, or raise the limits on memory of this one"
        )),
    }
}

fn end(message: fmt::Arguments<'_>) -> ! {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if ENDS.swap(true, Ordering::SeqCst) {
        // Another thread writes its message, or this one comes here again while it restores the terminal.
        thread::sleep(Duration::from_secs(1));
    } else {
        let mut line = FixedLine { bytes: [0; 400], len: 0 };
        let _ = writeln!(line, "alight: error: {message}");
        let _ = write(stderr(), &line.bytes[..line.len]);
        terminal::restore();
    }
    signal_hook::low_level::exit(1)
}

/// A line that is made without an allocation. What does not fit is left out.
struct FixedLine {
    bytes: [u8; 400],
    len: usize,
}

impl Write for FixedLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + part].copy_from_slice(&text.as_bytes()[..part]);
        self.len += part;
        Ok(())
    }
}
