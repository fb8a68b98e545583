//! The command `rusage`: runs a command and reports its cost.

// On Linux the C library calls `main` directly: the standard library's own start (signal stacks, a
// check of the standard streams, SIGPIPE) would cost the same as making the child, and leave SIGPIPE
// ignored in it.
#![cfg_attr(all(target_os = "linux", not(test)), no_main)]
// Tests have a `main` of their own.
#![cfg_attr(test, allow(dead_code))]

#[cfg(target_os = "linux")]
mod arena;
mod cli;

#[cfg(all(target_os = "linux", not(test)))]
#[global_allocator]
static ALLOCATOR: arena::Arena = arena::Arena;

#[cfg(all(target_os = "linux", not(test)))]
mod start {
    use std::ffi::{CStr, OsString, c_char, c_int};
    use std::os::unix::ffi::OsStringExt;

    /// Called by the C library with `count` arguments, terminated by null.
    #[unsafe(no_mangle)]
    extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
        let words = (1..usize::try_from(count).unwrap_or(0)).map(|i| {
            // SAFETY: the C library passes this many strings, each terminated by a zero.
            let word = unsafe { CStr::from_ptr(*arguments.add(i)) };
            OsString::from_vec(word.to_bytes().to_vec())
        });
        crate::cli::main(words.collect())
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    std::process::exit(cli::main(std::env::args_os().skip(1).collect()));
}
