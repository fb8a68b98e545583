//! Ranges of a file into memory.
//!
//! [`Map`] is a read-only shared map of one regular file. It refuses what is not a regular
//! file without blocking on it, and it survives the file's being cut short underneath it: the
//! program keeps running and [`Map::check`] names the file. [`transfer`] copies ranges of a file into
//! memory, around the page cache where that helps; a [`Region`] is memory made for that.
//! A [`Replacement`] writes a file so that it is there as a whole or not at all.
//!
//! [`residency()`] says how much of a file is in the page cache, [`Facts`] what else matters for reading
//! it, and [`choose`] how that is best done, with a reason.
//!
//! This crate touches files, the page cache and one signal handler (SIGBUS, see [`fault`]); it knows
//! nothing of tensors. It is the only room besides the kernels and the pool that uses `unsafe`.

#![cfg(unix)]

mod around;
pub mod assemble;
pub mod copy;
mod error;
mod facts;
pub mod fault;
mod filesystem;
mod folder;
mod limits;
mod map;
mod open;
pub mod policy;
mod ranges;
mod region;
mod replace;
mod residency;
mod stamp;
pub mod transfer;

pub use error::{FileKind, MapError};
pub use facts::{DirectAlign, Facts};
pub use fault::page_size;
pub use filesystem::{Filesystem, Kind};
pub use folder::Folder;
pub use limits::{LimitSource, swap_free};
pub use map::{Advice, Map};
pub use open::{Identity, open_file};
pub use policy::{Choice, How, Load, Prefetch, Wish, choose};
pub use region::{LockError, Region, RegionError, check_lock};
pub use replace::{Input, New, Place, ReplaceError, Replacement, remove_acls};
pub use residency::{Residency, Source, evict, give_up, residency, warm};
pub use stamp::{Stamp, times_tell};
