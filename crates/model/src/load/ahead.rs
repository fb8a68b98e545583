//! Maps a cached file before its contents are known.
//!
//! A second processor is idle while the header is read, and mapping takes as long as a tenth of a short prompt. So mapping starts with the first byte
//! of the file, and continues until the plan of the load is known, which has a better order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use alight_pages::{Facts, LoadRequest, Map, Prefetch, ReadMethod, choose};

use super::{Load, Repack};

/// Bytes that are mapped between two checks of the stop flag: some 50 µs, the maximum delay when a file is rejected.
const STEP: usize = 1 << 20;

/// A thread that maps a file from front to back. It ends when this is dropped.
pub(crate) struct Ahead {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts the thread, if all of the file is cached and its weights will be used from the map regardless of the header. `None`: they will not, or
    /// the system provides no more threads.
    pub(crate) fn of(
        map: &Arc<Map>,
        facts: &Facts,
        load: Load,
        repack: Repack,
        memory: Option<u64>,
    ) -> Option<Ahead> {
        let request = LoadRequest { load, copied: false, weights: facts.len };
        let choice = choose(facts, &request);
        let in_place = choice.method == ReadMethod::Mmap && repack != Repack::On;
        let all_cached = choice.prefetch == Prefetch::Populate && facts.cached >= facts.len;
        if !in_place || !all_cached || memory.is_some() {
            return None;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (map, stopped) = (Arc::clone(map), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("alight-ahead".into()).spawn(move || {
            for at in (0..map.len()).step_by(STEP) {
                // An error is reported to the next reader of the page.
                if stopped.load(Ordering::Relaxed) || map.touch(at..at + STEP).is_err() {
                    return;
                }
            }
        });
        Some(Ahead { stop, thread: Some(thread.ok()?) })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file of 64 MiB that has just been written, and so is cached.
    fn cached() -> (tempfile::NamedTempFile, Arc<Map>, Facts) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        (0..64).for_each(|_| file.write_all(&[1; 1 << 20]).unwrap());
        let map = Arc::new(Map::open(file.path()).unwrap());
        let facts = Facts { cached: map.len() as u64, ..Facts::of(map.file()).unwrap() };
        (file, map, facts)
    }

    #[test]
    fn a_file_whose_weights_might_be_used_otherwise_is_left_alone() {
        let (_file, map, facts) = cached();
        let starts = |facts: &Facts, load, repack, memory| {
            Ahead::of(&map, facts, load, repack, memory).is_some()
        };
        assert!(starts(&facts, Load::Auto, Repack::Auto, None));
        assert!(starts(&facts, Load::Mmap, Repack::Off, None));
        assert!(!starts(&facts, Load::Direct, Repack::Auto, None));
        assert!(!starts(&facts, Load::Read, Repack::Auto, None));
        assert!(!starts(&facts, Load::Auto, Repack::On, None));
        assert!(!starts(&facts, Load::Auto, Repack::Auto, Some(1 << 30)));
        let partly = Facts { cached: facts.cached - 4096, ..facts };
        assert!(!starts(&partly, Load::Auto, Repack::Auto, None));
    }

    /// Rejecting a file leaves no thread that still uses the map.
    #[test]
    fn no_thread_outlives_it() {
        let (_file, map, facts) = cached();
        for _ in 0..20 {
            drop(Ahead::of(&map, &facts, Load::Auto, Repack::Auto, None));
            assert_eq!(Arc::strong_count(&map), 1);
        }
    }

    #[test]
    fn a_file_that_is_cut_short_meanwhile_ends_it_and_is_an_error_of_the_map() {
        let (file, map, facts) = cached();
        let ahead = Ahead::of(&map, &facts, Load::Auto, Repack::Auto, None);
        file.as_file().set_len(4096).unwrap();
        drop(ahead);
        assert!(map.check().is_err());
    }
}
