//! The prompts that an [`Engine`](super::Engine) keeps, in memory and in files, and their reuse by requests.

use std::path::{Path, PathBuf};

use super::active::{ActiveRequest, salt};
use super::runner::{Runner, SNAPSHOT_EVERY};
use crate::cache::Indexed;
use crate::positions::{POSITIONS, common};
use crate::prompts::{
    IgnoredPrompt, PromptFile, PromptFileError, PromptFolder, PromptWriteError, RestoreError,
    in_folder,
};

/// Maximum number of ignored files that are remembered until they are queried.
const MAX_IGNORED: usize = 64;
/// States of recurrent layers are saved at the end of a prompt if at least this number of its tokens was computed: they are large, and the prompt has
/// to be split there.
const MIN_KEPT: usize = 256;
/// Of a long prompt, places are kept in which layers with a window can continue, so that at most about this part of it has to be computed again.
const PLACES_BETWEEN: usize = 4;

/// Lookup and storage of prompts, in addition to the index of the cache.
pub(super) struct PromptStore {
    folder: Option<PromptFolder>,
    ignored: Vec<IgnoredPrompt>,
}

impl PromptStore {
    /// Creates a store with a folder of files, or with the index alone.
    pub(super) fn new(folder: Option<PromptFolder>) -> PromptStore {
        PromptStore { folder, ignored: Vec::new() }
    }

    /// Writes the indexed beginning of a prompt to the folder. See [`Engine::keep`](super::Engine::keep).
    pub(super) fn keep(
        &self,
        runner: &mut Runner<'_>,
        user: &str,
        prompt: &[u32],
    ) -> Result<Option<PathBuf>, PromptWriteError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let long = runner.is_long(prompt.len());
        let (key, name) = (runner.key(long, user), runner.model.name());
        match runner.cache.indexed_contents(&salt(user, long), key, name, prompt) {
            Some(contents) => folder.write(&contents),
            None => Ok(None),
        }
    }

    /// Takes the files that are waiting to be reported.
    pub(super) fn take_ignored(&mut self) -> Vec<IgnoredPrompt> {
        std::mem::take(&mut self.ignored)
    }

    /// Assigns to a request the stored part of its prompt beyond what it has computed.
    pub(super) fn look_up(&mut self, runner: &mut Runner<'_>, active: &mut ActiveRequest) {
        adopt(runner, active);
        self.look_up_file(runner, active);
        let (recurrent, windowed) = (runner.cache.is_recurrent(), runner.cache.is_windowed());
        if !(recurrent || windowed) {
            return;
        }
        let tokens = active.sequence.reusable();
        let (end, from) = (tokens.len(), active.sequence.computed());
        let attended = runner.cache.attended(&active.salt, tokens);
        // Where one prompt diverged from this one, others will; and the next turn begins with all of it.
        if recurrent {
            let ends = [attended, end].map(|end| end / POSITIONS * POSITIONS);
            let ends = ends.into_iter().filter(|end| *end >= from + MIN_KEPT);
            let between = (0..end).step_by(SNAPSHOT_EVERY).filter(|at| *at > from);
            active.marks.extend(ends.chain(between));
        } else {
            // The end is kept anyway. A place has the pages of a window, so there are few of them.
            let every = (end / PLACES_BETWEEN).next_multiple_of(POSITIONS).max(SNAPSHOT_EVERY);
            let between = (every..end).step_by(every).filter(|at| *at > from);
            let parted = Some(attended).filter(|at| *at >= from + MIN_KEPT);
            active.marks.extend(parted.into_iter().chain(between));
        }
    }

    /// Restores a prompt from a file, if that yields at least a page more than was computed.
    fn look_up_file(&mut self, runner: &mut Runner<'_>, active: &mut ActiveRequest) {
        let (Some(folder), true) = (&self.folder, runner.cache.has_index()) else { return };
        // A file is found if it has more tokens than this: engines write whole pages, and one more page is already useful.
        let least = active.sequence.computed() + POSITIONS - 1;
        let restored = runner.restore(&mut active.sequence, folder, &active.request.salt, least);
        self.ignored.extend(restored.ignored);
        self.ignored.truncate(MAX_IGNORED);
        if restored.positions > 0 {
            active.indexed = Indexed::default();
            index(runner, active, false);
        } else if active.sequence.computed() == 0 {
            // The index still has its part of the prompt.
            adopt(runner, active);
        }
    }
}

/// Writes the indexed beginning of a prompt to a file. See [`Engine::save`](super::Engine::save).
pub(super) fn save(
    runner: &mut Runner<'_>,
    user: &str,
    prompt: &[u32],
    path: &Path,
) -> Result<Option<(usize, u64)>, PromptWriteError> {
    let long = runner.is_long(prompt.len());
    let (key, name) = (runner.key(long, user), runner.model.name());
    let contents = runner.cache.indexed_contents(&salt(user, long), key, name, prompt);
    let Some(contents) = contents else { return Ok(None) };
    let (folder, name) = in_folder(path)?;
    contents.write(&folder, name)?;
    Ok(Some((contents.tokens.len(), contents.len())))
}

/// Adds the contents of a file to the index, via a free sequence of the cache. See [`Engine::restore`](super::Engine::restore).
pub(super) fn restore(
    runner: &mut Runner<'_>,
    free: Option<usize>,
    user: &str,
    path: &Path,
) -> Result<(Vec<u32>, u64), RestoreError> {
    let (Some(sequence), true) = (free, runner.cache.has_index()) else {
        return Err(RestoreError::NoRoom);
    };
    let (folder, name) = in_folder(path).map_err(PromptFileError::from)?;
    let file = PromptFile::open(&folder, name)?;
    let mut tokens = file.header.tokens.clone();
    let long = runner.is_long(tokens.len());
    if file.header.key != runner.key(long, user) {
        return Err(PromptFileError::Foreign.into());
    }
    let sizes = runner.cache.sizes();
    file.check_shape(&sizes)?;
    let positions = file.usable(&tokens, &sizes);
    if positions == 0 || positions > runner.context() {
        return Err(PromptFileError::Foreign.into());
    }
    let cache = &mut runner.cache;
    if !cache.restore(sequence, &file, positions)? {
        return Err(RestoreError::NoRoom);
    }
    tokens.truncate(positions);
    let mut indexed = Indexed::default();
    cache.add(sequence, &salt(user, long), &tokens, true, &mut indexed);
    cache.keep_states(sequence, &indexed);
    cache.keep_windows(sequence, &indexed, indexed.last_page(), tokens.len());
    cache.clear(sequence);
    Ok((tokens, file.map.len() as u64))
}

/// Drops the indexed beginning of a prompt, except for what is shared. Returns the number of tokens dropped.
pub(super) fn forget(runner: &mut Runner<'_>, user: &str, prompt: &[u32]) -> usize {
    let salt = salt(user, runner.is_long(prompt.len()));
    runner.cache.forget_prompt(&salt, prompt)
}

/// Assigns to a request the indexed pages and states of its prompt, if they cover more than it has computed.
fn adopt(runner: &mut Runner<'_>, active: &mut ActiveRequest) {
    let ActiveRequest { sequence, salt, indexed, .. } = active;
    let (tokens, computed) = (sequence.reusable(), sequence.computed());
    if let Some((found, of)) = runner.cache.adopt(sequence.index, salt, tokens, computed) {
        sequence.reuse(found.positions);
        *indexed = of;
    }
}

/// Adds the computed part of a request's prompt to the index: whole pages, or the `rest` as well, after which nothing more of it may be computed.
pub(super) fn index(runner: &mut Runner<'_>, active: &mut ActiveRequest, rest: bool) {
    let ActiveRequest { sequence, salt, indexed, marks, cold, .. } = active;
    if *cold {
        return;
    }
    let cache = &mut runner.cache;
    let windowed = cache.is_windowed();
    let recurrent = cache.is_recurrent();
    // Another prompt may continue after the last token. The pages for that are there now, and are given back while the answer is computed.
    let ends = windowed && !recurrent && (rest || sequence.unread() == 0);
    let before = indexed.pages();
    cache.add(sequence.index, salt, sequence.read(), rest || ends, indexed);
    if recurrent && !rest && marks.contains(&sequence.computed()) {
        cache.keep_states(sequence.index, indexed);
    }
    if windowed && indexed.pages() > before {
        let last = indexed.last_page();
        let is_new = |page: &usize| (before..=last).contains(page);
        let marked = marks.iter().map(|mark| mark.saturating_sub(1) / POSITIONS).filter(is_new);
        for page in marked.chain(ends.then_some(last)) {
            cache.keep_windows(sequence.index, indexed, page, sequence.read().len());
        }
    }
}

/// Makes a prompt wait for one of `others` that begins alike and is being read, if that one will get further.
pub(super) fn follow(
    runner: &Runner<'_>,
    others: &mut [Option<ActiveRequest>],
    active: &mut ActiveRequest,
) {
    if !runner.cache.has_index() {
        return;
    }
    let mut best = active.sequence.computed() + POSITIONS - 1;
    let mut leader = None;
    for other in others.iter_mut().flatten() {
        if other.sequence.unread() == 0 || other.salt != active.salt {
            continue;
        }
        let alike = common(other.sequence.tokens(), active.sequence.reusable());
        let alike = alike / POSITIONS * POSITIONS;
        if alike > best && alike > other.sequence.computed() {
            best = alike;
            leader = Some(other);
        }
    }
    let Some(leader) = leader else { return };
    active.after = Some((leader.id, best));
    if runner.cache.is_recurrent() || runner.cache.is_windowed() {
        leader.marks.push(best);
    }
}
