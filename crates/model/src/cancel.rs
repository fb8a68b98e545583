//! Work that is no longer wanted ends, in the middle of a step as well.

use std::fmt;
use std::sync::Arc;

/// Tells a session or an engine when what it computes is no longer wanted: a step then ends within milliseconds, with
/// [`ModelError::Cancelled`](crate::ModelError::Cancelled), and what it has computed counts as not computed.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let pressed = Arc::new(AtomicBool::new(false));
/// let cancel = alight_model::Cancel::when({
///     let pressed = Arc::clone(&pressed);
///     move || pressed.load(Ordering::Relaxed)
/// });
/// assert!(!cancel.is_cancelled());
/// pressed.store(true, Ordering::Relaxed);
/// assert!(cancel.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct Cancel(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Cancel {
    /// Cancels while `is_cancelled` returns true. Every thread calls it before each small piece of work, so it has to be quick.
    pub fn when(is_cancelled: impl Fn() -> bool + Send + Sync + 'static) -> Cancel {
        Cancel(Some(Arc::new(is_cancelled)))
    }

    /// Returns true if nothing that is computed is wanted now.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|is_cancelled| is_cancelled())
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
