//! White-box tests: delays at every phase, protocols with a part removed, and every order of events under loom.

pub(crate) mod hooks;
#[cfg(loom)]
mod orders;
mod phases;
