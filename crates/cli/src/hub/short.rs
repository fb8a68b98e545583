//! Short names: a part of the name of a model in the hub's cache, where a model is expected and there is no such path.

use std::collections::BTreeSet;
use std::path::Path;

use alight_hub::{Cached, Hub, Name};
use anyhow::anyhow;

use super::{failed, full_name, hub};
use crate::outcome::{Outcome, Stop};
use crate::say;

/// Maximum number of models that an error lists.
const SHOWN: usize = 10;

/// Returns the model in the cache that this text is a part of the name of, and prints which one; `None` if the text is a path, or
/// nothing in the cache has such a name.
///
/// # Errors
/// Several repositories have such a name.
pub fn name(path: &Path) -> Outcome<Option<Name>> {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return Ok(None) };
    // Without a cache, or with one that cannot be read, nothing in it has a name.
    let Ok(hub) = hub(true) else { return Ok(None) };
    let Some(name) = in_cache(&hub, text)? else { return Ok(None) };
    // Only what was fetched has a short name.
    let cached = hub.find(&name).map_err(failed)?;
    let cached = cached.ok_or_else(|| failed(hub.not_there(&name)))?;
    say::note(&format!("'{text}' is {}", full_name(&cached.repo, &cached.tag)));
    Ok(Some(Name { tag: Some(cached.tag), ..name }))
}

/// Returns the name of the repository in the cache that this text is a part of the name of, with the text's tag if it has one; `None` if
/// nothing in the cache has such a name.
///
/// # Errors
/// Several repositories have such a name.
pub fn in_cache(hub: &Hub, text: &str) -> Outcome<Option<Name>> {
    if !may_be_short(text) {
        return Ok(None);
    }
    let all = hub.list().unwrap_or_default();
    let (word, tag) = text.split_once(':').map_or((text, None), |(word, tag)| (word, Some(tag)));
    let repos = named(word, &all);
    let found = match repos[..] {
        [] => return Ok(None),
        [repo] => repo,
        _ => {
            let mut names: Vec<String> = repos.iter().map(|repo| format!("hf.co/{repo}")).collect();
            let more = names.len().saturating_sub(SHOWN);
            names.truncate(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(Stop::Failed(anyhow!(
                "'{text}' is part of several names in the cache: {}{more}; give a longer part of one of them",
                names.join(", ")
            )));
        }
    };
    let name = match tag {
        Some(tag) => Name::parse(&format!("{found}:{tag}")),
        None => Name::parse(found),
    };
    name.map(Some).map_err(failed)
}

/// True if a text could be a short name, and not a misspelt path.
fn may_be_short(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.:/".contains(c);
    !text.is_empty()
        && text.chars().all(is_of_name)
        && !text.starts_with(['.', '/', '-'])
        && text.matches('/').count() <= 1
        && !text.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns the repositories with a complete model whose names contain this word, in any case; only those that have it as their whole
/// name, with or without the user and `-GGUF`, if there are any.
fn named<'c>(word: &str, all: &'c [Cached]) -> Vec<&'c str> {
    let word = word.to_ascii_lowercase();
    let complete = all.iter().filter(|one| one.missing.is_none());
    let repos: BTreeSet<&str> = complete.map(|one| one.repo.as_str()).collect();
    let is_whole = |repo: &&str| {
        let repo = repo.to_ascii_lowercase();
        let own = repo.rsplit('/').next().unwrap_or_default();
        [&repo, own, own.trim_end_matches("-gguf")].contains(&word.as_str())
    };
    let whole: Vec<&str> = repos.iter().copied().filter(|repo| is_whole(repo)).collect();
    if !whole.is_empty() {
        return whole;
    }
    repos.into_iter().filter(|repo| repo.to_ascii_lowercase().contains(&word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(names: &[&str]) -> Vec<Cached> {
        let one = |name: &&str| {
            let (repo, tag) = name.split_once(':').unwrap();
            Cached {
                repo: repo.to_owned(),
                tag: tag.to_owned(),
                commit: "0".repeat(40),
                revisions: vec![],
                paths: vec![],
                bytes: 1,
                modified: None,
                missing: tag.ends_with('!').then(|| "a part".to_owned()),
                original: None,
            }
        };
        names.iter().map(one).collect()
    }

    #[test]
    fn a_word_is_the_repository_that_has_it_in_its_name() {
        let all = cached(&[
            "org/Qwen3-4B-GGUF:Q4_K_M",
            "org/Qwen3-4B-GGUF:Q8_0",
            "org/Qwen3-4B-Thinking-GGUF:Q4_K_M",
            "other/SmolLM2:F16",
            "other/Half:Q4_0!",
        ]);
        assert_eq!(named("smol", &all), ["other/SmolLM2"]);
        assert_eq!(named("qwen3-4b", &all), ["org/Qwen3-4B-GGUF"], "the whole name wins");
        assert_eq!(named("org/qwen3-4b-gguf", &all), ["org/Qwen3-4B-GGUF"]);
        assert_eq!(named("qwen", &all).len(), 2);
        assert_eq!(named("half", &all), [""; 0], "not complete");
        assert_eq!(named("llama", &all), [""; 0]);
    }

    #[test]
    fn a_misspelt_path_is_no_short_name() {
        for text in ["smol", "Qwen3-4B:Q8_0", "org/m", "qwen3.5"] {
            assert!(may_be_short(text), "{text}");
        }
        for text in ["", "./m", "/m", "a/b/c", "m.gguf", "a b", "../m", "~/m", "-m"] {
            assert!(!may_be_short(text), "{text}");
        }
    }
}
