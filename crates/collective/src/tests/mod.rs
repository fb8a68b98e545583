//! Tests that look inside: delays at every phase, protocols with a part taken out, and every order of events under loom.

pub(crate) mod hooks;
#[cfg(loom)]
mod orders;
mod phases;
