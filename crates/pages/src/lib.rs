//! Files into memory, and memory into files: maps, transfers, copies, replacements, and the state of the
//! page cache.
//!
//! - [`Map`]: a read-only shared map of one regular file.
//! - [`Incoming`]: a file that is still being received, whose map is read while it comes; [`IncomingQueue`]: what comes next of several.
//! - [`Reservation`]: memory that is allocated as it is written, and that parts of files can be put into.
//! - [`transfer`]: ranges of a file read into memory, around the page cache where that helps; a
//!   [`Region`] is memory made for that.
//! - [`slots`]: pieces of files in a fixed number of slots, read on demand.
//! - [`Replacement`]: a file that appears as a whole or not at all.
//! - [`GuardedFolder`]: files that this program keeps for itself, where other users may write.
//! - [`copy`]: the bytes of one file into another; [`assemble`]: a file built from ranges of others.
//! - [`residency()`]: how much of a file is in the page cache; [`Facts`]: what else matters for reading
//!   it; [`choose`]: the best way to read it, with a reason.
//!
//! This crate touches files, the page cache and one signal handler (SIGBUS, see [`fault`]). It must never
//! know what a tensor is, import another crate of this workspace, or print.
//!
//! **Invariant:** a map is refused if the file is not a regular one, and its size is known before any
//! page is touched. A file that shrinks under its map reads as zeros where pages are gone, and marks the
//! map; [`Map::check`] turns that into an error that names the file. A SIGBUS from anywhere else goes
//! where it would have gone without us.
//!
//! **Invariant:** the contents of a map may change at any time, if another process writes to the file. So
//! its bytes are only computed with; no length, index, offset or text is taken from them. [`Map::read`]
//! copies data that must be checked into the caller's memory. Kernels never use a weight as a length or
//! an offset, and as an index only into a table with an entry for each value; so a weight that is torn by
//! a write gives a different number and nothing worse.
//!
//! **Invariant:** a transfer loads every byte of every piece or returns an error that names the file and
//! the offset: short reads, EINTR and EAGAIN are handled, and a file that ends early is an error. It
//! writes only into slots and the pieces' buffers. Its memory is bounded (threads × slots × largest
//! piece), and reported. Features that are not available (io_uring, registered buffers, O_DIRECT) are
//! replaced by the next best, and the report names the replacement and the reason.
//!
//! **Invariant:** the facts that decide about reading are gathered in under a millisecond, for large
//! files by sampling; [`choose`] is a pure function of them. Only counted results (cachestat, or mincore
//! on overlayfs, where cachestat always returns 0) are called proven. No code requests random access, and
//! no method leaves a network or FUSE file to page faults.
//!
//! **Invariant:** a file is written without a name and gets one when it is complete and on the disk;
//! space is reserved before the first byte. If the process is killed at any moment, the old file is still
//! there. A [`Replacement`] replaces only files that the caller named, not even one that appears at the
//! last moment, and never a device, a pipe or one of its own input files, by whatever name. Its folder is
//! open from the beginning, so a link put in the folder's place leads nowhere else.
//!
//! **Invariant:** in a [`GuardedFolder`] no link is followed, nothing but a regular file of this user's or root's is
//! read, and nothing is replaced or removed that does not begin with the magic number of the program's own files.
//!
//! **Invariant:** users who may not read every input of a new file, or the file that it replaces, may not
//! read the new file. Otherwise it has the permissions of any new file.
//!
//! **Invariant:** a [`Stamp`] shows if a file was changed while it was read, by length, mtime and ctime,
//! which no user can set back. Writes through maps are not detected where the kernel sets no times for
//! them: tmpfs, FUSE, and servers with times of their own.
//!
//! **Invariant:** a copy leaves the page cache as it was: cached pages of the source stay, exactly, and
//! pages that the copy loaded are dropped, including readahead. At most 64 MiB are cached because of it
//! at any moment. Holes stay holes. A method (reflink, direct, copy_file_range, reading and writing) is
//! abandoned for the next only if the system refuses it before it has copied anything.
//! up for the next only if the system refuses it and it has copied nothing yet.

#![cfg(unix)]

mod around;
pub mod assemble;
pub mod copy;
mod error;
mod facts;
pub mod fault;
mod filesystem;
mod folder;
mod guarded;
mod held;
mod incoming;
mod limits;
mod map;
mod mark;
mod open;
pub mod policy;
mod ranges;
mod region;
mod replace;
mod reservation;
mod residency;
pub mod slots;
mod stamp;
mod sys;
mod threads;
pub mod transfer;

pub use error::{FileKind, MapError};
pub use facts::{DirectAlign, Facts};
pub use fault::page_size;
pub use filesystem::{Filesystem, Kind};
pub use folder::Folder;
pub use guarded::{GuardedError, GuardedFile, GuardedFolder, NotOurs};
pub use held::{Held, path_of};
pub use incoming::{BLOCK, Incoming, IncomingQueue, Taken};
pub use limits::{LimitSource, available as available_memory, swap_free};
pub use map::{Advice, HUGE_PAGE, Map};
pub use mark::{is_marked_by_others, mark};
pub use open::{Identity, file_kind, open_file, open_unfollowed};
pub use policy::{Choice, Load, LoadRequest, Prefetch, ReadMethod, choose};
pub use region::{LockError, Region, RegionError, check_lock};
pub use replace::{Destination, Input, New, ReplaceError, Replacement, remove_acls};
pub use reservation::Reservation;
pub use residency::{
    CacheProbe, Residency, evict, give_up, is_cached, residency, start_writing, warm,
};
pub use stamp::{Stamp, times_tell};
pub use threads::Threads;
