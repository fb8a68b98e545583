//! SIGBUS: the signal that the kernel sends when a mapped page no longer exists in its file.
//!
//! A handler is installed once, when the first map is opened. When a fault is inside a registered map,
//! the handler marks that map as poisoned, replaces the map with zero pages from the faulting page to its
//! end, and returns: the interrupted code continues, reading zeros, until a caller calls
//! [`Map::check`](crate::Map::check). [`Map::try_again`](crate::Map::try_again) puts the file's pages back. (To the end, because when a file shrinks, everything after the
//! first missing page is missing too; and replacing a large file page by page would use up the mappings
//! that a process may have.) Any other SIGBUS goes to the previously installed handler, or has the effect
//! it would have had without us. A library that installs its own handler after ours and does not pass
//! faults on disables this protection.
//!
//! The handler is async-signal-safe: it reads atomics, calls `mmap` and, for a foreign fault, `sigaction`
//! and `raise`. It takes no lock and allocates nothing.
//!
//! The registry is a list of slots that only grows. Slots are reused and never freed, so a handler may
//! walk it at any time. Each slot carries a sequence number, odd while the slot is being changed. The
//! handler skips slots that change while it reads them. This loses nothing: a thread that faults inside a
//! map holds a reference to it, so that map's slot does not change meanwhile.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// The entry of one map in the registry.
pub(crate) struct MapEntry {
    /// The next slot of the list, or null. Fixed before the slot is published.
    next: AtomicPtr<MapEntry>,
    /// Some map owns this slot.
    taken: AtomicBool,
    /// Odd while `start` and `len` are being changed.
    sequence: AtomicUsize,
    start: AtomicUsize,
    /// Bytes, a multiple of the page size; 0 when the slot has no map.
    len: AtomicUsize,
    /// Lowest faulting address since the pages were last mapped, or `usize::MAX`.
    fault: AtomicUsize,
    /// The last faulting address, and the number of faults, of the present map.
    last: AtomicUsize,
    faults: AtomicUsize,
    /// The protection of the map's pages, also given to the pages that replace them.
    protection: AtomicI32,
}

static SLOTS: AtomicPtr<MapEntry> = AtomicPtr::new(ptr::null_mut());
/// Bytes of a page; set before the handler is installed.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The previous action for SIGBUS; set before the handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

impl fmt::Debug for MapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "poisoned: {:?}", self.poisoned())
    }
}

impl MapEntry {
    /// Registers `start..start + len`, whole pages with this protection.
    pub(crate) fn register(start: usize, len: usize, protection: libc::c_int) -> &'static MapEntry {
        let slot = free_slot().unwrap_or_else(new_slot);
        slot.fault.store(usize::MAX, SeqCst);
        // A slot is reused, and the faults of the map that had it before are none of this map's.
        slot.last.store(0, SeqCst);
        slot.faults.store(0, SeqCst);
        slot.protection.store(protection, SeqCst);
        slot.set(start, len);
        slot
    }

    /// Removes the map from the registry. The memory must still be mapped, because after unmapping the
    /// address may belong to something else.
    pub(crate) fn unregister(&'static self) {
        self.set(0, 0);
        self.taken.store(false, SeqCst);
    }

    fn set(&self, start: usize, len: usize) {
        self.sequence.fetch_add(1, SeqCst);
        self.start.store(start, SeqCst);
        self.len.store(len, SeqCst);
        self.sequence.fetch_add(1, SeqCst);
    }

    /// Start and length, if they are not being changed right now.
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.sequence.load(SeqCst);
        let range = (self.start.load(SeqCst), self.len.load(SeqCst));
        let after = self.sequence.load(SeqCst);
        (before == after && before.is_multiple_of(2)).then_some(range)
    }

    /// Marks the map as unreliable.
    pub(crate) fn poison(&self, address: usize) {
        self.last.store(address, SeqCst);
        self.faults.fetch_add(1, SeqCst);
        self.fault.fetch_min(address, SeqCst);
    }

    /// Takes the mark back. The caller then maps the file's pages again from the marked address on.
    pub(crate) fn heal(&self) {
        self.fault.store(usize::MAX, SeqCst);
    }

    /// The number of times that the map was marked.
    pub(crate) fn faults(&self) -> usize {
        self.faults.load(SeqCst)
    }

    /// The address that was marked last.
    pub(crate) fn last(&self) -> usize {
        self.last.load(SeqCst)
    }

    /// Lowest address that could not be read.
    pub(crate) fn poisoned(&self) -> Option<usize> {
        let address = self.fault.load(SeqCst);
        (address != usize::MAX).then_some(address)
    }
}

/// All slots, newest first.
fn slots() -> impl Iterator<Item = &'static MapEntry> {
    let mut next = SLOTS.load(SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: the list holds null or pointers to slots that were leaked, hence live for ever.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next.load(SeqCst);
        Some(slot)
    })
}

fn free_slot() -> Option<&'static MapEntry> {
    slots().find(|slot| slot.taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok())
}

fn new_slot() -> &'static MapEntry {
    let slot: &'static mut MapEntry = Box::leak(Box::new(MapEntry {
        next: AtomicPtr::new(ptr::null_mut()),
        taken: AtomicBool::new(true),
        sequence: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        fault: AtomicUsize::new(usize::MAX),
        last: AtomicUsize::new(0),
        faults: AtomicUsize::new(0),
        protection: AtomicI32::new(libc::PROT_READ),
    }));
    let new = ptr::from_mut(slot);
    let mut head = SLOTS.load(SeqCst);
    loop {
        // SAFETY: `new` was leaked just now; all its fields are atomic.
        unsafe { &*new }.next.store(head, SeqCst);
        match SLOTS.compare_exchange(head, new, SeqCst, SeqCst) {
            // SAFETY: as above.
            Ok(_) => return unsafe { &*new },
            Err(now) => head = now,
        }
    }
}

/// Bytes of a page.
pub fn page_size() -> usize {
    match PAGE.load(SeqCst) {
        0 => {
            // SAFETY: reads a constant of the system.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let size = usize::try_from(size).unwrap_or(4096);
            PAGE.store(size, SeqCst);
            size
        }
        size => size,
    }
}

/// The whole pages around a range. They may extend past the end of a file.
pub(crate) fn pages_around(range: &Range<u64>) -> Range<u64> {
    let page = page_size() as u64;
    range.start / page * page..range.end.next_multiple_of(page)
}

/// This thread's page faults so far that did not read from a disk; 0 where the system does not report
/// them.
pub(crate) fn of_this_thread() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes the struct, and all zeros is a valid value of it in any case.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        usage.ru_minflt as u64
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    0
}

/// Installs the handler on the first call.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        page_size();
        sigaction_now(None).and_then(|previous| {
            // The first and only `set`: this closure runs once.
            let _ = PREVIOUS.set(previous);
            // SAFETY: an all-zero sigaction is a valid value of this plain C struct.
            let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            action.sa_sigaction = on_sigbus as *const () as usize;
            // On the alternative stack, if there is one: some systems report stack overflow as SIGBUS,
            // and the previous handler may want to report it.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            sigaction_now(Some(&action)).map(drop)
        })
    });
    result.map_err(io::Error::from_raw_os_error)
}

/// Sets the action for SIGBUS, if given, and returns the previous one. An error is an errno.
fn sigaction_now(new: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: an all-zero sigaction is a valid value of this plain C struct.
    let mut old: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: `new` is null or a valid action whose handler has the signature its flags promise;
    // `old` is valid to write to.
    if unsafe { libc::sigaction(libc::SIGBUS, new, &mut old) } != 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
    }
    Ok(old)
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
type PlainHandler = extern "C" fn(libc::c_int);

/// The handler.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let errno = errno();
    // SAFETY: the system passes valid information to a handler installed with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Codes up to 0 mean that a process sent the signal; there is no address then.
    if code <= 0 || !replace(address) {
        chain(signal, info, context, code);
    }
    set_errno(errno);
}

/// If `address` is in a registered map, poisons the map and puts zero pages there. Runs inside the signal
/// handler.
fn replace(address: usize) -> bool {
    for slot in slots() {
        let Some((start, len)) = slot.range() else { continue };
        if address.wrapping_sub(start) >= len {
            continue;
        }
        // First the mark, then the zeros: a thread that sees zeros also sees the mark.
        slot.poison(address);
        let page = address - (address - start) % page_size();
        // SAFETY: replaces pages of a map that we own, from `page` to its end, by pages of the same
        // protection. References into them stay valid.
        let placed = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                start + len - page,
                slot.protection.load(SeqCst),
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        // Once more: meanwhile another thread may have taken the mark back, before these zeros came.
        slot.poison(address);
        return placed != libc::MAP_FAILED;
    }
    false
}

/// Applies the effect that SIGBUS would have had without us. Runs inside the signal handler.
fn chain(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    code: libc::c_int,
) {
    let previous = PREVIOUS.get();
    let action = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    match (action, previous) {
        // A signal that was sent can be ignored. A fault cannot.
        (libc::SIG_IGN, _) if code <= 0 => {}
        (libc::SIG_DFL | libc::SIG_IGN, _) | (_, None) => {
            // SAFETY: an all-zero sigaction is a valid value of this plain C struct and means the
            // default action.
            let mut default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
            default.sa_sigaction = libc::SIG_DFL;
            let _ = sigaction_now(Some(&default));
            // A fault recurs as soon as we return. A signal that was sent must be raised again; it is
            // blocked until we return.
            if code <= 0 {
                // SAFETY: async-signal-safe, no memory involved.
                unsafe { libc::raise(signal) };
            }
        }
        (handler, Some(previous)) if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the code that installed this handler promised this signature by SA_SIGINFO.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        (handler, Some(_)) => {
            // SAFETY: the code that installed this handler promised this signature by not setting
            // SA_SIGINFO.
            let handler = unsafe { std::mem::transmute::<usize, PlainHandler>(handler) };
            handler(signal);
        }
    }
}

/// The address of this thread's errno.
fn errno_place() -> *mut libc::c_int {
    #[cfg(any(target_os = "linux", target_os = "emscripten"))]
    // SAFETY: returns the address of a thread-local variable.
    return unsafe { libc::__errno_location() };
    #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
    // SAFETY: returns the address of a thread-local variable.
    return unsafe { libc::__errno() };
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    // SAFETY: returns the address of a thread-local variable.
    return unsafe { libc::__error() };
    #[cfg(not(any(
        target_os = "linux",
        target_os = "emscripten",
        target_os = "android",
        target_os = "netbsd",
        target_os = "openbsd",
        target_vendor = "apple",
        target_os = "freebsd"
    )))]
    return ptr::null_mut();
}

fn errno() -> libc::c_int {
    // SAFETY: null or the address of a thread-local variable.
    unsafe { errno_place().as_ref() }.copied().unwrap_or(0)
}

fn set_errno(value: libc::c_int) {
    // SAFETY: null or the address of a thread-local variable that has no references to it.
    if let Some(place) = unsafe { errno_place().as_mut() } {
        *place = value;
    }
}
