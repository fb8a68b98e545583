//! Computes masks in parallel with the forward pass: on their own thread, between the choice of a token and that of the next one.
//!
//! Invariant: the mask of one grammar never delays an answer with another. If the thread has not started on a mask when the engine
//! needs it, the engine computes it itself; otherwise it waits for that one mask.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use alight_model::Constraint;

use super::{Held, Mask};

/// The mask being computed, shared by the thread and the engine.
type Shared = Arc<Mutex<Finding>>;

/// A thread that computes masks. It ends when the last handle that can send it work is dropped.
pub struct Masks {
    /// `None` if the system could not start a thread; each constraint then computes its own masks.
    wanted: Option<Sender<Shared>>,
}

impl Masks {
    /// Starts the thread, if the system allows it.
    pub fn start() -> Masks {
        let (wanted, received) = channel();
        let find = move || find_all(&received);
        let thread = thread::Builder::new().name("alight-masks".into()).spawn(find);
        Masks { wanted: thread.is_ok().then_some(wanted) }
    }

    /// Returns the constraint of one answer. Its first mask is computed while the prompt is read.
    pub fn hold(&self, held: Held) -> Beside {
        let finding = Finding { held, token: None, found: None };
        let beside = Beside { shared: Arc::new(Mutex::new(finding)), wanted: self.wanted.clone() };
        beside.begin();
        beside
    }
}

fn find_all(wanted: &Receiver<Shared>) {
    while let Ok(shared) = wanted.recv() {
        // A panic poisons the lock and so ends the answer, but not the thread.
        let _ = std::panic::catch_unwind(|| {
            if let Ok(mut finding) = shared.lock() {
                finding.find();
            }
        });
    }
}

/// The grammar of an answer, its state, and its next mask.
struct Finding {
    held: Held,
    /// The chosen token, if the grammar has not accepted it yet.
    token: Option<u32>,
    found: Option<Result<Option<Mask>, Box<str>>>,
}

impl Finding {
    /// Computes the mask of the next token, unless it is already computed.
    fn find(&mut self) -> &Result<Option<Mask>, Box<str>> {
        if let Some(token) = self.token.take() {
            self.held.accept(token);
            self.found = None;
        }
        self.found.get_or_insert_with(|| self.held.mask())
    }
}

/// The constraint that holds one answer to its grammar.
pub struct Beside {
    shared: Shared,
    wanted: Option<Sender<Shared>>,
}

impl Beside {
    fn begin(&self) {
        if let Some(wanted) = &self.wanted {
            // Without the thread, the mask is computed when it is needed.
            let _ = wanted.send(Arc::clone(&self.shared));
        }
    }
}

impl Constraint for Beside {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>> {
        let mut finding = self.shared.lock().map_err(|_| "what finds its masks has panicked")?;
        if let Some(mask) = finding.find().as_ref().map_err(Clone::clone)? {
            mask.apply(logits);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        if let Ok(mut finding) = self.shared.lock()
            && let Some(before) = finding.token.replace(token)
        {
            finding.held.accept(before);
        }
        self.begin();
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use super::super::{Compiler, Part, Wanted};
    use super::*;

    fn held() -> Held {
        let compiler = Compiler::of_bytes();
        Held(Part::Whole(compiler.compile(Wanted::Regex("(yes|no) [0-9]{3}".to_owned())).unwrap()))
    }

    fn allowed(constraint: &mut dyn Constraint) -> Vec<u32> {
        let mut logits = [0.0; 257];
        constraint.mask(&mut logits).unwrap();
        (0..257).filter(|&id| logits[id as usize] == 0.0).collect()
    }

    const EXPECTED: [(&[u8], &str); 4] =
        [(b"ny", "n"), (b"o", "o"), (b" ", " "), (b"0123456789", "7")];

    fn write_no_7(constraint: &mut Beside) {
        for (may_come, comes) in EXPECTED {
            let may_come: Vec<u32> = may_come.iter().map(|byte| u32::from(*byte)).collect();
            assert_eq!(allowed(constraint), may_come);
            assert_eq!(allowed(constraint), may_come, "asked once more");
            constraint.accept(u32::from(comes.as_bytes()[0]));
        }
    }

    #[test]
    fn the_thread_finds_them_before_they_are_needed() {
        let masks = Masks::start();
        let mut beside = masks.hold(held());
        for (may_come, comes) in EXPECTED {
            while beside.shared.lock().unwrap().found.is_none()
                || beside.shared.lock().unwrap().token.is_some()
            {
                thread::yield_now();
            }
            assert_eq!(allowed(&mut beside).len(), may_come.len());
            beside.accept(u32::from(comes.as_bytes()[0]));
        }
    }

    #[test]
    fn they_are_the_same_without_the_thread() {
        write_no_7(&mut Masks { wanted: None }.hold(held()));
        write_no_7(&mut Masks::start().hold(held()));
    }

    #[test]
    fn nobody_waits_for_the_mask_of_another() {
        let masks = Masks::start();
        let slow = masks.hold(held());
        // As if the thread were computing this one's mask.
        let _finding = slow.shared.lock().unwrap();
        write_no_7(&mut masks.hold(held()));
    }

    #[test]
    fn a_panic_ends_one_answer() {
        let masks = Masks::start();
        let (mut broken, mut other) = (masks.hold(held()), masks.hold(held()));
        let shared = Arc::clone(&broken.shared);
        let panicked = thread::spawn(move || {
            let _finding = shared.lock().unwrap();
            panic!("as a grammar may");
        });
        assert!(panicked.join().is_err());
        broken.accept(0);
        assert!(broken.mask(&mut [0.0; 257]).is_err());
        write_no_7(&mut other);
    }
}
