//! Chooses how best to read the weights of a file: a pure function of facts, with a reason.
//!
//! It never requests MADV_RANDOM (dense weights are read from front to back: 0.06 GB/s with it, measured,
//! against 1.8), leaves a network file to page faults, or copies weights that do not fit.

use std::fmt;
use std::str::FromStr;

use crate::facts::Facts;
use crate::filesystem::Kind;

/// A file with at least this share in the page cache counts as cached. Touching a cached map costs 26–30
/// ms per GiB and reading a cold one 500, so a missing tenth costs more than all the rest; but direct
/// reads would read all of it again.
pub const WARM_SHARE: f64 = 0.9;
/// Threads that read ahead of a map on a local disk: one reads while the other waits. (Measured cold on
/// 1.9 GB, 8 MiB at a time in huge pages: 2 threads 0.92 and 1.25 s, 4 threads 1.72 and 1.43 s.)
pub const LOCAL_THREADS: usize = 2;
/// Threads that read over a network or from a user-space filesystem. ServerlessLLM reports 4–8 as enough
/// for its fastest storage; each request waits longer than on a disk, so the upper end.
pub const REMOTE_THREADS: usize = 8;
/// The share of the available memory that weights may use: the KV cache, the buffers and other programs
/// need some as well. Inferred, not measured.
pub const FITS_SHARE: f64 = 0.9;

/// The user's choice of how to read weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Load {
    /// The best method for the facts.
    #[default]
    Auto,
    /// A map of the file.
    Mmap,
    /// Reads that bypass the page cache.
    Direct,
    /// Reads through the page cache.
    Read,
}

impl Load {
    /// All values, in the order of the documentation.
    pub const ALL: [Load; 4] = [Load::Auto, Load::Mmap, Load::Direct, Load::Read];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Load::Auto => "auto",
            Load::Mmap => "mmap",
            Load::Direct => "direct",
            Load::Read => "read",
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Load, String> {
        let all = Load::ALL;
        all.into_iter()
            .find(|load| load.name() == text)
            .ok_or_else(|| format!("expected one of {}", all.map(Load::name).join(", ")))
    }
}

/// A file to read, and the use of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadRequest {
    /// The user's choice.
    pub load: Load,
    /// The weights will be copied into another layout anyway (repacked).
    pub copied: bool,
    /// Bytes of weights in this file.
    pub weights: u64,
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadMethod {
    /// Through a map: in place, or copied from it.
    Mmap,
    /// Bypassing the page cache, into our own memory (with fallbacks, see the transfer).
    Direct,
    /// Through the page cache into our own memory.
    Read,
}

impl ReadMethod {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ReadMethod::Mmap => "mmap",
            ReadMethod::Direct => "direct",
            ReadMethod::Read => "read",
        }
    }
}

/// Preparation of a map before it is used, in the order of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefetch {
    /// Its pages are cached: fill the page tables ahead of the forward pass.
    Populate,
    /// Its pages are on the disk: this many threads read large pieces into the page cache ahead of the
    /// forward pass, which waits for pages that are not loaded yet.
    ReadThreads(usize),
    /// No preparation.
    None,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How the bytes are read.
    pub method: ReadMethod,
    /// Preparation of the map; `None` where there is no map.
    pub prefetch: Prefetch,
    /// The reason, in one sentence with the numbers that decided.
    pub reason: String,
}

/// Decides how to read a file. Pure function.
pub fn choose(facts: &Facts, request: &LoadRequest) -> Choice {
    let forced = match request.load {
        Load::Auto => return by_facts(facts, request),
        Load::Mmap => ReadMethod::Mmap,
        Load::Direct => ReadMethod::Direct,
        Load::Read => ReadMethod::Read,
    };
    let prefetch =
        if forced == ReadMethod::Mmap { prefetch(facts, request) } else { Prefetch::None };
    Choice { method: forced, prefetch, reason: format!("--load {} was given.", request.load) }
}

fn by_facts(facts: &Facts, request: &LoadRequest) -> Choice {
    let name = &facts.filesystem.name;
    let weights = gigabytes(request.weights);
    let cached = percent(facts.cached_share());
    let map = |reason| by_map(facts, request, reason);

    if facts.filesystem.kind == Kind::Memory {
        return if request.copied {
            copy(
                ReadMethod::Read,
                format!("The file is in memory ({name}) and is copied anyway, so it is read."),
            )
        } else {
            map(format!("The file is in memory ({name}), so it is used in place."))
        };
    }
    // The pages are cached: reading them from the disk again is worse in every case.
    if is_warm(facts) {
        return if request.copied {
            // Not from a map: filling page tables and emptying them again after the copying threads
            // interrupts every core (3B, packed, warm: 0.75 s from a map, 0.46 s read).
            copy(
                ReadMethod::Read,
                format!(
                    "{cached} of the file is in the page cache and the {weights} are copied anyway, so \
                     they are read from there."
                ),
            )
        } else {
            map(format!("{cached} of the file is in the page cache, so it is used in place."))
        };
    }
    // A copy that does not fit would be killed or swapped out; the pages of a map can be reclaimed.
    if !fits(facts, request) && !request.copied {
        return map(format!(
            "The {weights} of weights do not fit into the {} that are available ({}), so they stay \
             in the file: the kernel drops mapped pages when it must, a copy it could only swap out \
             or kill.",
            gigabytes(facts.available),
            facts.limit_source
        ));
    }
    by_file_system(facts, request)
}

/// Decides for a file that is not cached, and whose copy fits or is needed anyway.
fn by_file_system(facts: &Facts, request: &LoadRequest) -> Choice {
    let name = &facts.filesystem.name;
    let weights = gigabytes(request.weights);
    let cached = percent(facts.cached_share());
    let map = |reason| by_map(facts, request, reason);
    match (facts.filesystem.kind, request.copied) {
        (Kind::Network | Kind::Fuse, _) => copy(
            ReadMethod::Read,
            format!(
                "Only {cached} of the file is in the page cache and {name} answers each request \
                 slowly, so it is read in large pieces at once, never fault by fault."
            ),
        ),
        (_, false) => map(format!(
            "Only {cached} of the file is in the page cache, it is on a local disk ({name}) and \
             the {weights} fit into the {} available: {LOCAL_THREADS} threads read it in the order \
             of use, and it is used in place.",
            gigabytes(facts.available)
        )),
        (Kind::CopyOnWrite, true) => copy(
            ReadMethod::Read,
            format!(
                "Only {cached} of the file is in the page cache and it is copied anyway, but {name} \
                 checks or unpacks what it reads, where direct reads lose: it is read through the \
                 page cache."
            ),
        ),
        (Kind::Local, true) if !facts.direct_refused => copy(
            ReadMethod::Direct,
            format!(
                "Only {cached} of the file is in the page cache and the {weights} are copied anyway, \
                 so they are read past it ({name}{}).",
                facts
                    .direct
                    .map_or(String::new(), |d| format!(", direct reads aligned to {}", d.offset))
            ),
        ),
        (Kind::Local, true) => copy(
            ReadMethod::Read,
            format!(
                "Only {cached} of the file is in the page cache and it is copied anyway, but {name} \
                 refuses direct reads of it: it is read through the page cache."
            ),
        ),
        (_, true) => copy(
            ReadMethod::Read,
            format!(
                "Only {cached} of the file is in the page cache, it is copied anyway, and nothing is \
                 known of direct reads on {name}: it is read through the page cache."
            ),
        ),
    }
}

fn by_map(facts: &Facts, request: &LoadRequest, reason: String) -> Choice {
    Choice { method: ReadMethod::Mmap, prefetch: prefetch(facts, request), reason }
}

fn copy(method: ReadMethod, reason: String) -> Choice {
    Choice { method, prefetch: Prefetch::None, reason }
}

/// Prefetch for a map, chosen here or by the user.
fn prefetch(facts: &Facts, request: &LoadRequest) -> Prefetch {
    if is_warm(facts) || facts.filesystem.kind == Kind::Memory {
        // The threads that copy touch the pages themselves and release them afterwards. If they were
        // populated in advance, they would all count as ours at once.
        return if request.copied { Prefetch::None } else { Prefetch::Populate };
    }
    if !fits(facts, request) {
        // The pages read first would be evicted by those read last before they are used.
        return Prefetch::None;
    }
    Prefetch::ReadThreads(match facts.filesystem.kind {
        Kind::Network | Kind::Fuse => REMOTE_THREADS,
        _ => LOCAL_THREADS,
    })
}

fn is_warm(facts: &Facts) -> bool {
    facts.cached_share() >= WARM_SHARE
}

fn fits(facts: &Facts, request: &LoadRequest) -> bool {
    request.weights as f64 <= FITS_SHARE * facts.available as f64
}

fn percent(share: f64) -> String {
    // Rounded down: "100 %" means all of it.
    format!("{:.0} %", (100.0 * share).floor())
}

fn gigabytes(bytes: u64) -> String {
    match bytes {
        u64::MAX => "unknown amount".to_owned(),
        0..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::DirectAlign;
    use crate::filesystem::Filesystem;
    use crate::limits::LimitSource;
    use crate::residency::CacheProbe;
    use std::time::Duration;

    const MB: u64 = 1_000_000;

    /// A file of 1000 MB of which `cached` MB are cached, on `name`, with `available` MB of memory.
    fn facts(name: &str, cached: u64, available: u64) -> Facts {
        let filesystem = Filesystem::named(name);
        let direct =
            (filesystem.kind == Kind::Local).then_some(DirectAlign { memory: 4, offset: 512 });
        Facts {
            len: 1000 * MB,
            cached: cached * MB,
            cached_probe: Some(CacheProbe::Cachestat),
            filesystem,
            direct,
            direct_refused: false,
            available: available * MB,
            limit_source: LimitSource::System,
            took: Duration::ZERO,
        }
    }

    fn request(load: Load, copied: bool) -> LoadRequest {
        LoadRequest { load, copied, weights: 990 * MB }
    }

    #[test]
    fn the_rules() {
        use Prefetch::{None, Populate, ReadThreads};
        use ReadMethod::{Direct, Mmap, Read};
        const LOCAL: Prefetch = ReadThreads(LOCAL_THREADS);
        const LITTLE: u64 = 1000; // 990 MB of weights do not fit with the reserve
        const MUCH: u64 = 10_000;
        // file system, MB cached of 1000, MB available; used in place: method, prefetch, part of the
        // reason; copied: the same.
        type Expected = (ReadMethod, Prefetch, &'static str);
        #[rustfmt::skip]
        let table: &[(&str, u64, u64, Expected, Expected)] = &[
            // 1. cached
            ("ext2/3/4", 1000, MUCH, (Mmap, Populate, "100 % of the file"), (Read, None, "100 % of the file")),
            ("ext2/3/4", 900, MUCH, (Mmap, Populate, "90 % of the file"), (Read, None, "90 % of the file")),
            ("xfs", 1000, LITTLE, (Mmap, Populate, "page cache"), (Read, None, "page cache")),
            ("nfs", 950, MUCH, (Mmap, Populate, "95 %"), (Read, None, "95 %")),
            ("btrfs", 999, MUCH, (Mmap, Populate, "99 %"), (Read, None, "990 MB")),
            // 2. cold and local
            ("ext2/3/4", 899, MUCH, (Mmap, LOCAL, "89 %"), (Direct, None, "aligned to 512")),
            ("ext2/3/4", 0, MUCH, (Mmap, LOCAL, "10.00 GB"), (Direct, None, "Only 0 %")),
            ("xfs", 0, MUCH, (Mmap, LOCAL, "2 threads"), (Direct, None, "copied anyway")),
            ("overlay", 0, MUCH, (Mmap, LOCAL, "overlay"), (Direct, None, "overlay")),
            // 3. larger than memory: weights used in place stay in the file
            ("ext2/3/4", 0, LITTLE, (Mmap, None, "1.00 GB that are available (MemAvailable)"), (Direct, None, "copied anyway")),
            ("nfs", 0, LITTLE, (Mmap, None, "do not fit"), (Read, None, "never fault by fault")),
            // 4. networks and user-space filesystems
            ("nfs", 0, MUCH, (Read, None, "nfs"), (Read, None, "large pieces")),
            ("lustre", 500, MUCH, (Read, None, "50 %"), (Read, None, "50 %")),
            ("9p", 0, MUCH, (Read, None, "9p"), (Read, None, "9p")),
            ("fuse", 0, MUCH, (Read, None, "never fault by fault"), (Read, None, "fuse")),
            // memory
            ("tmpfs", 1000, MUCH, (Mmap, Populate, "is in memory (tmpfs)"), (Read, None, "copied anyway")),
            ("tmpfs", 0, LITTLE, (Mmap, Populate, "tmpfs"), (Read, None, "tmpfs")),
            // copy on write, compressed
            ("btrfs", 0, MUCH, (Mmap, LOCAL, "btrfs"), (Read, None, "direct reads lose")),
            ("zfs", 0, MUCH, (Mmap, LOCAL, "zfs"), (Read, None, "zfs")),
            ("squashfs", 0, MUCH, (Mmap, LOCAL, "squashfs"), (Read, None, "squashfs")),
            // unknown
            ("0xabcd", 0, MUCH, (Mmap, LOCAL, "0xabcd"), (Read, None, "nothing is known")),
        ];
        for &(name, cached, available, in_place, copied) in table {
            let facts = facts(name, cached, available);
            for (is_copied, (method, prefetch, part)) in [(false, in_place), (true, copied)] {
                let got = choose(&facts, &request(Load::Auto, is_copied));
                let case =
                    format!("{name}, {cached} cached, {available}, copied {is_copied}: {got:?}");
                assert_eq!((got.method, got.prefetch), (method, prefetch), "{case}");
                assert!(got.reason.contains(part), "{part:?}: {case}");
                assert!(got.reason.ends_with('.') && !got.reason.contains('\n'), "{case}");
                assert_eq!(got.reason.matches(". ").count(), 0, "one sentence: {case}");
            }
        }
    }

    #[test]
    fn direct_reads_that_the_file_system_refuses_are_not_tried() {
        let mut facts = facts("ext2/3/4", 0, 10_000);
        (facts.direct, facts.direct_refused) = (None, true);
        let got = choose(&facts, &request(Load::Auto, true));
        assert_eq!(got.method, ReadMethod::Read);
        assert!(got.reason.contains("refuses"), "{got:?}");
        // A kernel that does not report it: try, the transfer falls back.
        facts.direct_refused = false;
        assert_eq!(choose(&facts, &request(Load::Auto, true)).method, ReadMethod::Direct);
    }

    #[test]
    fn what_the_user_says_is_done() {
        for name in ["ext2/3/4", "nfs", "tmpfs", "btrfs"] {
            for cached in [0, 1000] {
                let facts = facts(name, cached, 10_000);
                for (load, how) in [
                    (Load::Mmap, ReadMethod::Mmap),
                    (Load::Direct, ReadMethod::Direct),
                    (Load::Read, ReadMethod::Read),
                ] {
                    let got = choose(&facts, &request(load, false));
                    assert_eq!(got.method, how);
                    assert_eq!(got.reason, format!("--load {load} was given."));
                    assert_eq!(load.to_string().parse(), Ok(load));
                    if how != ReadMethod::Mmap {
                        assert_eq!(got.prefetch, Prefetch::None);
                    }
                }
            }
        }
        let cold = |name| choose(&facts(name, 0, 10_000), &request(Load::Mmap, false)).prefetch;
        // Even for a forced map: never fault by fault over a network.
        assert_eq!(cold("nfs"), Prefetch::ReadThreads(REMOTE_THREADS));
        assert_eq!(cold("ext2/3/4"), Prefetch::ReadThreads(LOCAL_THREADS));
        assert!("random".parse::<Load>().unwrap_err().contains("auto, mmap, direct, read"));
    }

    #[test]
    fn memory_that_nobody_knows_is_enough() {
        let mut facts = facts("apfs", 0, 0);
        (facts.available, facts.limit_source) = (u64::MAX, LimitSource::Unknown);
        let got = choose(&facts, &request(Load::Auto, false));
        assert_eq!(got.method, ReadMethod::Mmap);
        assert!(got.reason.contains("unknown amount"), "{got:?}");
    }
}
