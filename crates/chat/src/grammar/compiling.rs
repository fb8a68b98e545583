//! Compiles untrusted grammars on separate threads, since compiling may take long and recurse deeply.
//!
//! Invariant: only the client that sent a grammar waits for it, at most [`MAX_COMPILE_TIME`] for its turn and as long again for the rest.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Compiler, Grammar, NoGrammar, Wanted};

/// Maximum number of concurrent compilations, and of those that wait for one of them to end.
const AT_ONCE: usize = 2;
const WAITING: usize = 16;
/// Maximum number of compilations that run or wait.
pub const MAX_COMPILED: usize = AT_ONCE + WAITING;
/// Time limit of a compilation.
pub(super) const MAX_COMPILE_TIME: Duration = Duration::from_secs(10);
/// Bytes of the stack. llguidance recurses at each step from schema to schema and from rule to rule, using a few kilobytes per step;
/// the maximum number of steps of the longest schema needs less than a quarter of this. Only the pages that are touched use memory.
const STACK: usize = 512 << 20;

/// The number of compilations.
struct Counts {
    running: usize,
    waiting: usize,
}

static COUNTS: Mutex<Counts> = Mutex::new(Counts { running: 0, waiting: 0 });
static ENDED: Condvar = Condvar::new();

/// A permit to run one compilation.
struct Permit;

impl Permit {
    /// Waits for a permit, unless too many others already wait.
    fn wait() -> Option<Permit> {
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.running == AT_ONCE {
            if counts.waiting == WAITING {
                return None;
            }
            counts.waiting += 1;
            let full = |counts: &mut Counts| counts.running == AT_ONCE;
            let waited = ENDED.wait_timeout_while(counts, MAX_COMPILE_TIME, full);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
            counts.waiting -= 1;
            if counts.running == AT_ONCE {
                return None;
            }
        }
        counts.running += 1;
        Some(Permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        COUNTS.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
        ENDED.notify_one();
    }
}

/// Compiles on a separate thread.
pub(super) fn compile(compiler: &Arc<Compiler>, wanted: Wanted) -> Result<Grammar, NoGrammar> {
    wanted.check()?;
    let permit = Permit::wait().ok_or(NoGrammar::Busy)?;
    let (send, received) = sync_channel(1);
    let compiler = Arc::clone(compiler);
    let work = move || {
        let compiled = compiler.compile(wanted);
        drop(permit);
        // A caller that has timed out no longer needs it.
        let _ = send.send(compiled);
    };
    let thread = thread::Builder::new().name("alight-grammar".into()).stack_size(STACK);
    thread.spawn(work).map_err(|error| NoGrammar::NoThread(error.to_string()))?;
    match received.recv_timeout(MAX_COMPILE_TIME) {
        Ok(compiled) => compiled.map_err(NoGrammar::Wrong),
        Err(RecvTimeoutError::Timeout) => Err(NoGrammar::TooSlow),
        Err(RecvTimeoutError::Disconnected) => Err(NoGrammar::Failed),
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use std::fmt::Write;

    use serde_json::{Value, json};

    use super::super::{GRAMMAR, SCHEMA};
    use super::*;

    /// Compiles a grammar of maximum length, and computes two masks, as other threads do.
    fn try_to_compile(wanted: Wanted) {
        let (bytes, most) = wanted.bytes();
        assert!(bytes <= most && bytes > most / 2, "{bytes} of {most} bytes");
        // A grammar or an error: only termination matters.
        let compiled = compile(&Arc::new(Compiler::of_bytes()), wanted);
        if let Ok(mut grammar) = compiled
            && let Ok(mask) = grammar.mask()
            && let Some(first) = (0..256).find(|byte| mask.allowed.is_allowed(*byte))
        {
            grammar.accept(first);
            let _ = grammar.mask();
        }
    }

    /// The longest schema of definitions that each contain the next, between `before` and `after`.
    fn chain(before: &str, after: &str) -> Wanted {
        let one = before.len() + after.len() + 36;
        let n = (SCHEMA - 1000) / one;
        let mut all = String::from("{");
        for i in 0..n {
            let _ = write!(all, "\"{i}\":{before}{{\"$ref\":\"#/$defs/{}\"}}{after},", i + 1);
        }
        let _ = write!(all, "\"{n}\":{{\"type\":\"string\"}}}}");
        let all: Value = serde_json::from_str(&all).unwrap();
        Wanted::lenient(json!({"$defs": all, "$ref": "#/$defs/0"}))
    }

    /// Each of these is nested as deeply as possible. Too small a stack would end this process.
    #[test]
    fn no_chain_is_too_deep() {
        let nested = "{\"items\":".repeat(100);
        for (before, after) in [
            ("", ""),
            ("{\"items\":", "}"),
            ("{\"properties\":{\"a\":", "}}"),
            ("{\"type\":\"object\",\"properties\":{\"a\":", "}}"),
            ("{\"additionalProperties\":", "}"),
            ("{\"prefixItems\":[", "]}"),
            ("{\"anyOf\":[{},", "]}"),
            ("{\"oneOf\":[{\"type\":\"null\"},", "]}"),
            ("{\"allOf\":[", "]}"),
            ("{\"allOf\":[{\"minLength\":1},", "]}"),
            (&nested, &"}".repeat(100)),
        ] {
            try_to_compile(chain(before, after));
        }
        let rules = |first: &str, name: fn(usize) -> String, last: &str, most: usize| {
            let mut text = first.to_owned();
            let mut i = 0;
            while text.len() + 40 < most {
                let _ = writeln!(text, "{}: {}", name(i), name(i + 1));
                i += 1;
            }
            text + &format!("{}: {last}\n", name(i))
        };
        let lark = "%llguidance {}\nstart: ";
        for name in [|i| format!("a{i}"), |i| format!("A{i}")] as [fn(usize) -> String; 2] {
            let text = rules(&format!("{lark}{}\n", name(0)), name, "\"b\"", GRAMMAR);
            try_to_compile(Wanted::Lark(text));
        }
    }

    #[test]
    fn chains_of_rules_of_gbnf_are_compiled() {
        let compiler = Arc::new(Compiler::of_bytes());
        for between in [" ", "? ", "* \"x\" "] {
            let mut text = String::from("root ::= r0\n");
            (0..997).for_each(|i| writeln!(text, "r{i} ::= \"a\" r{}{between}", i + 1).unwrap());
            text.push_str("r997 ::= \"b\"\n");
            assert!(compile(&compiler, Wanted::Gbnf(text)).is_ok());
        }
    }
}
