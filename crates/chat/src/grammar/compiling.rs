//! Compiles untrusted grammars on separate threads, since compiling may take long and recurse deeply.
//!
//! Invariant: a compilation is first tried in a process of its own ([`trial`]), within [`MAX_TRIAL_TIME`] and [`MAX_GRAMMAR_MEMORY`]. One that
//! does not fit is ended there, and what it took is given back; this process compiles only what has been seen to end.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::trial::{self, Limits, Outcome};
use super::{Compiler, Grammar, NoGrammar, Wanted};

/// The number of compilations at the same time, and of those that wait for their turn.
const AT_ONCE: usize = 2;
const WAITING: usize = 16;
/// The number of requests that can be waiting for a compilation.
pub const MAX_COMPILED: usize = AT_ONCE + WAITING;
/// How long a compilation waits for its turn.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// How long its client then waits for it, on a busy machine. It is tried first and then repeated.
pub(super) const MAX_COMPILE_TIME: Duration = Duration::from_secs(60);
/// Processor time of a trial.
pub(super) const MAX_TRIAL_TIME: Duration = Duration::from_secs(if cfg!(fuzzing) { 1 } else { 5 });
/// Bytes that a compilation, and the grammar that it makes, may take.
pub const MAX_GRAMMAR_MEMORY: usize = 256 << 20;
/// Bytes of all grammars in use.
pub(super) const MAX_GRAMMARS_MEMORY: usize = 1 << 30;
/// How soon a client that has left is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of the stack. llguidance recurses at each step from schema to schema and from rule to rule, using a few kilobytes per step;
/// the maximum number of steps of the longest schema needs less than a quarter of this. Only the pages that are touched use memory.
const STACK: usize = 512 << 20;

/// The number of compilations.
struct CompileCounts {
    running: usize,
    waiting: usize,
}

impl CompileCounts {
    fn busy(&self) -> NoGrammar {
        NoGrammar::Busy { running: self.running, waiting: self.waiting }
    }
}

static COUNTS: Mutex<CompileCounts> = Mutex::new(CompileCounts { running: 0, waiting: 0 });
static ENDED: Condvar = Condvar::new();

/// A permit to run one compilation.
struct Permit;

impl Permit {
    /// Waits for a permit, unless too many others already wait.
    fn wait(cancelled: Cancelled) -> Result<Permit, NoGrammar> {
        let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.running == AT_ONCE {
            if counts.waiting == WAITING {
                return Err(counts.busy());
            }
            counts.waiting += 1;
            let deadline = Instant::now() + MAX_WAIT;
            while counts.running == AT_ONCE && Instant::now() < deadline && !cancelled() {
                let waited = ENDED.wait_timeout(counts, POLL_INTERVAL);
                counts = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            counts.waiting -= 1;
            if counts.running == AT_ONCE {
                return Err(if cancelled() { NoGrammar::Cancelled } else { counts.busy() });
            }
        }
        counts.running += 1;
        Ok(Permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        COUNTS.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
        ENDED.notify_one();
    }
}

/// Returns true once the client that waits for a compilation no longer needs it.
pub type Cancelled = fn() -> bool;

/// Compiles on a thread of its own, if it fits the limits.
pub(super) fn compile(
    compiler: &Arc<Compiler>,
    wanted: Wanted,
    cancelled: Cancelled,
) -> Result<Grammar, NoGrammar> {
    wanted.check()?;
    let permit = Permit::wait(cancelled)?;
    let (send, received) = sync_channel(1);
    let (compiler, end) = (Arc::clone(compiler), Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&end);
    let work = move || {
        let compiled = compile_within_limits(&compiler, wanted, &ended);
        drop(permit);
        // A caller that has timed out no longer needs it.
        let _ = send.send(compiled);
    };
    let thread = thread::Builder::new().name("alight-grammar".into()).stack_size(STACK);
    thread.spawn(work).map_err(|error| NoGrammar::NoThread(error.to_string()))?;
    let deadline = Instant::now() + MAX_COMPILE_TIME;
    loop {
        match received.recv_timeout(POLL_INTERVAL) {
            Ok(compiled) => return compiled,
            Err(RecvTimeoutError::Disconnected) => return Err(NoGrammar::Failed),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let late = Instant::now() >= deadline;
        if late || cancelled() {
            end.store(true, Ordering::Relaxed);
            return Err(if late { NoGrammar::Late } else { NoGrammar::Cancelled });
        }
    }
}

fn compile_within_limits(
    compiler: &Compiler,
    wanted: Wanted,
    end: &AtomicBool,
) -> Result<Grammar, NoGrammar> {
    let key = compiler.tried().key(&wanted);
    let bytes = match compiler.tried().find(key) {
        Some(bytes) => bytes,
        None => {
            let limits = Limits { time: MAX_TRIAL_TIME, memory: MAX_GRAMMAR_MEMORY };
            // Kept until the process has reported its size.
            let try_it = || compiler.compile(wanted.clone()).map(std::mem::forget);
            let outcome = trial::run(limits, end, try_it);
            match outcome.map_err(|error| NoGrammar::NoThread(error.to_string()))? {
                Outcome::Compiles(bytes) => {
                    compiler.tried().insert(key, bytes);
                    bytes
                }
                Outcome::Refused(why) => return Err(NoGrammar::Wrong(why)),
                Outcome::TooSlow => return Err(NoGrammar::TooSlow),
                Outcome::TooLarge => return Err(NoGrammar::TooLarge),
                Outcome::Cancelled => return Err(NoGrammar::Cancelled),
                Outcome::Failed => return Err(NoGrammar::Failed),
            }
        }
    };
    let memory = GrammarMemory::take(bytes)?;
    let mut grammar = compiler.compile(wanted).map_err(NoGrammar::Wrong)?;
    grammar.account(memory);
    Ok(grammar)
}

/// The bytes of all grammars in use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The memory of a grammar, counted while it is in use.
#[derive(Debug, Default)]
pub(super) struct GrammarMemory(usize);

impl GrammarMemory {
    fn take(bytes: usize) -> Result<GrammarMemory, NoGrammar> {
        let add =
            |in_use: usize| in_use.checked_add(bytes).filter(|sum| *sum <= MAX_GRAMMARS_MEMORY);
        match IN_USE.try_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(GrammarMemory(bytes)),
            Err(in_use) => Err(NoGrammar::Full { in_use }),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0
    }
}

impl Clone for GrammarMemory {
    fn clone(&self) -> GrammarMemory {
        IN_USE.fetch_add(self.0, Ordering::Relaxed);
        GrammarMemory(self.0)
    }
}

impl Drop for GrammarMemory {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// The grammars that have been tried and fit, with their bytes. An agent sends the same tools with each request.
#[derive(Default)]
pub(super) struct Tried {
    /// Keyed at random, so that no client can make one grammar pass for another.
    state: [RandomState; 2],
    fitting: Mutex<VecDeque<([u64; 2], usize)>>,
}

impl Tried {
    const MAX: usize = 1024;

    fn key(&self, wanted: &Wanted) -> [u64; 2] {
        let what = (std::mem::discriminant(wanted), wanted.is_strict(), wanted.text());
        [self.state[0].hash_one(&what), self.state[1].hash_one(&what)]
    }

    /// Returns the bytes of one, which is the last used then.
    fn find(&self, key: [u64; 2]) -> Option<usize> {
        let mut fitting = self.fitting();
        let at = fitting.iter().position(|(known, _)| *known == key)?;
        let found = fitting.remove(at)?;
        fitting.push_back(found);
        Some(found.1)
    }

    fn fitting(&self) -> MutexGuard<'_, VecDeque<([u64; 2], usize)>> {
        self.fitting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one, in place of the one that has not been used for longest if there are too many.
    fn insert(&self, key: [u64; 2], bytes: usize) {
        let mut fitting = self.fitting();
        if fitting.len() == Self::MAX {
            fitting.pop_front();
        }
        fitting.push_back((key, bytes));
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use std::fmt::Write;

    use serde_json::{Value, json};

    use alight_testing::models::everything;

    use super::super::{GRAMMAR, SCHEMA};
    use super::*;

    /// Compiles a grammar of maximum length, and computes two masks, as other threads do.
    fn try_to_compile(wanted: Wanted) {
        let (bytes, most) = wanted.bytes();
        assert!(bytes <= most && bytes > most / 2, "{bytes} of {most} bytes");
        // A grammar or an error: only termination matters.
        let compiled = compile(&Arc::new(Compiler::of_bytes()), wanted, || false);
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
        let all = [
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
        ];
        // Every third: one that is plain, one of properties, one of alternatives, one of conjunctions.
        for (before, after) in all.into_iter().step_by(if everything() { 1 } else { 3 }) {
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
            assert!(compile(&compiler, Wanted::Gbnf(text), || false).is_ok());
        }
    }

    /// The compiler checks none of its own limits while it compiles these.
    fn hostile() -> Vec<Wanted> {
        let pattern = |i: usize| json!({"pattern": format!("(a|b)*{}(a|b){{{i}}}", if i.is_multiple_of(2) { 'a' } else { 'b' })});
        let patterns: Vec<Value> = (1..60).map(pattern).collect();
        vec![
            Wanted::lenient(json!({"type": "integer", "multipleOf": 62_615_533})),
            Wanted::lenient(json!({"type": "string", "allOf": patterns})),
        ]
    }

    #[test]
    fn what_does_not_end_is_ended_and_others_are_compiled_meanwhile() {
        let compiler = Arc::new(Compiler::of_bytes());
        let begun = Instant::now();
        thread::scope(|scope| {
            let all: Vec<_> = hostile()
                .into_iter()
                .map(|wanted| scope.spawn(|| compile(&compiler, wanted, || false)))
                .collect();
            let simple = compile(&compiler, Wanted::lenient(json!({"type": "boolean"})), || false);
            assert!(simple.is_ok(), "{:?}", simple.err());
            for one in all {
                let outcome = one.join().unwrap().err();
                assert!(
                    matches!(outcome, Some(NoGrammar::TooSlow | NoGrammar::TooLarge)),
                    "{outcome:?}"
                );
            }
        });
        assert!(begun.elapsed() < MAX_COMPILE_TIME, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_client_that_leaves_is_not_compiled_for() {
        let compiler = Arc::new(Compiler::of_bytes());
        let begun = Instant::now();
        let wanted = hostile().swap_remove(0);
        assert_eq!(compile(&compiler, wanted, || true).err(), Some(NoGrammar::Cancelled));
        assert!(begun.elapsed() < MAX_TRIAL_TIME, "{:?}", begun.elapsed());
    }

    #[test]
    fn a_grammar_takes_no_more_than_there_is() {
        assert!(matches!(
            GrammarMemory::take(MAX_GRAMMARS_MEMORY + 1),
            Err(NoGrammar::Full { .. })
        ));
        let regex = Wanted::Regex("a+".to_owned());
        let grammar = compile(&Arc::new(Compiler::of_bytes()), regex, || false).unwrap();
        assert!(grammar.bytes() < MAX_GRAMMAR_MEMORY / 16, "{}", grammar.bytes());
        assert_eq!(grammar.clone().bytes(), grammar.bytes());
    }
}
