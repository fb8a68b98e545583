//! The limit on the address space of this process (`ulimit -v`), and the stack, which grows into it.

use std::hint::black_box;
use std::mem::MaybeUninit;

/// Bytes of stack that the main thread may need.
const STACK: usize = 1 << 20;
/// Bytes of address space that remain besides: for the allocations of the first lines.
const REST: u64 = 256 << 10;

/// An address space that is too small to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall {
    /// The limit in bytes.
    pub limit: u64,
    /// The limit that is needed, at least.
    pub needed: u64,
}

/// The limit on the address space of this process in bytes, if there is one. Allocates nothing.
pub fn limit() -> Option<u64> {
    soft_limit(libc::RLIMIT_AS)
}

/// Grows the stack of this thread, the main one, to what it may need, if the address space is limited. Once the address space is used
/// up, the stack cannot grow, which is no error but a signal that ends the process.
///
/// # Errors
/// The address space is too small for that.
pub fn reserve_stack() -> Result<(), TooSmall> {
    let (Some(limit), Some(used)) = (limit(), used()) else { return Ok(()) };
    let needed = used + STACK as u64 + REST;
    if limit < needed {
        return Err(TooSmall { limit, needed });
    }
    // Where the stack may not become that large, it is left as it is.
    if soft_limit(libc::RLIMIT_STACK).is_none_or(|most| most >= 2 * STACK as u64) {
        touch();
    }
    Ok(())
}

#[inline(never)]
fn touch() {
    black_box([1_u8; STACK]);
}

/// Bytes of address space in use, where the system reports them.
fn used() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    pages.checked_mul(alight_pages::page_size() as u64)
}

/// A limit of this process. Limits are wider than 64 bits on no system, and signed or narrower on some.
#[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
fn soft_limit(resource: ResourceId) -> Option<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: `limit` is valid for a write of this type.
    if unsafe { libc::getrlimit(resource, limit.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so it has written.
    let current = unsafe { limit.assume_init() }.rlim_cur;
    (current != libc::RLIM_INFINITY).then_some(current as u64)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type ResourceId = libc::__rlimit_resource_t;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type ResourceId = libc::c_int;
