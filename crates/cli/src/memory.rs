//! Memory that the system refuses: one line that says so, and the end of the process with status 1, in place of an abort.
//!
//! Nothing here allocates, and no lock of the standard library is taken: the thread may hold any.

use std::fmt::{self, Write};
use std::io::stderr;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rusage::ReportingAllocator;
use rusage::address_space::{self, TooSmall};
use rustix::io::write;

use crate::terminal;

#[global_allocator]
static ALLOCATOR: ReportingAllocator = ReportingAllocator::new(refused);

/// The process that ends: not one that it has forked, whose parent looks at how it ends.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The number of threads for which a refusal is no reason to end.
static EXPECTED: AtomicU32 = AtomicU32::new(0);

/// The beginnings of what the standard library says when there is no memory for the signal stack of a thread that has just begun.
const NO_SIGNAL_STACK: [&str; 2] =
    ["failed to allocate an alternative stack", "failed to set up alternative stack guard page"];

/// Makes refused memory end the process with a message. Called first, by the main thread.
pub fn end_the_process() {
    PROCESS.store(process::id(), Ordering::Relaxed);
    if let Err(TooSmall { limit, needed }) = address_space::reserve_stack() {
        end(format_args!(
            "this process may have {limit} bytes of address space (ulimit -v), and needs {needed} to begin with: raise that limit"
        ));
    }
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
        no_more(format_args!("the stack of a thread"));
    }
}

fn refused(bytes: usize) {
    if PROCESS.load(Ordering::Relaxed) == process::id() && EXPECTED.load(Ordering::Relaxed) == 0 {
        no_more(format_args!("{bytes} bytes"));
    }
}

fn no_more(what: fmt::Arguments<'_>) -> ! {
    match address_space::limit() {
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
        let mut line = Line { bytes: [0; 400], len: 0 };
        let _ = writeln!(line, "alight: error: {message}");
        let _ = write(stderr(), &line.bytes[..line.len]);
        terminal::restore();
    }
    signal_hook::low_level::exit(1)
}

/// A line that is made without an allocation. What does not fit is left out.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + part].copy_from_slice(&text.as_bytes()[..part]);
        self.len += part;
        Ok(())
    }
}
