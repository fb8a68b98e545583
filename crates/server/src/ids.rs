//! Names of answers, seeds, and the time: what differs from request to request.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// 64 bits that nobody has seen before.
pub(crate) fn random() -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    STATE.hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A name that begins so.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
