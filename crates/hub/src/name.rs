//! Names of models: `user/repo`, `user/repo:Q4_K_M`, `user/repo:FILE.gguf`, with or without the hub's address before them, and URLs
//! as shown in an address bar.

use std::fmt;
use std::path::Path;

use crate::HubError;

/// Prefixes that mark a name of the hub where it could also be a path.
const HUBS: [&str; 5] =
    ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/", "hf://"];
/// Maximum number of bytes of a part of a repository's name, as on the hub.
const MAX_PART_BYTES: usize = 96;

/// A model, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// `user/repo`.
    pub repo: String,
    /// The selection among its files: a quantization or a file's name.
    pub tag: Option<String>,
    /// Branch, tag or commit; `None` is the repository's main branch.
    pub revision: Option<String>,
}

impl Name {
    /// The text after the hub's address, if `text` begins with it and so is not a path.
    pub fn without_hub(text: &str) -> Option<&str> {
        HUBS.iter().find_map(|hub| text.strip_prefix(hub))
    }

    /// The hub model that this text names, where a path is expected. `None` if it is a path: it does not begin with the address of
    /// the hub or of another server, or a file of that name exists.
    ///
    /// # Errors
    /// It begins with an address, and no name of a model follows.
    pub fn of_path(path: &Path) -> Result<Option<Name>, HubError> {
        let is_address = |text: &&str| Name::without_hub(text).is_some() || is_elsewhere(text);
        match path.to_str().filter(is_address) {
            Some(text) if !path.exists() => Name::parse(text).map(Some),
            _ => Ok(None),
        }
    }

    /// Parses a name.
    ///
    /// # Errors
    /// The text is not a name.
    pub fn parse(text: &str) -> Result<Name, HubError> {
        let wrong = |problem| HubError::Name { text: text.to_owned(), problem };
        if is_elsewhere(text) {
            return Err(wrong(
                "other servers than the hub are not asked: fetch the file first (curl -LO URL), and give its path",
            ));
        }
        let rest = Name::without_hub(text).unwrap_or(text);
        let rest = rest.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
        let (repo, tag) = match rest.split_once(':') {
            Some((repo, tag)) => (repo, Some(tag)),
            None => (rest, None),
        };
        let mut parts = repo.splitn(4, '/');
        let (Some(user), Some(name)) = (parts.next(), parts.next()) else {
            return Err(wrong("the user or the repository is missing"));
        };
        let repo = format!("{user}/{name}");
        if ![user, name].iter().all(|part| is_part(part)) {
            return Err(wrong("user and repository have letters, digits, '-', '_' and '.'"));
        }
        // The form shown in an address bar: …/blob/main/model-Q4_K_M.gguf
        let (revision, tag) = match (parts.next(), parts.next(), tag) {
            (None, ..) => (None, tag),
            (Some("tree"), Some(revision), tag) => (Some(revision), tag),
            (Some("blob" | "resolve"), Some(place), None) => match place.split_once('/') {
                Some((revision, file)) if is_gguf(file) => (Some(revision), Some(file)),
                _ => return Err(wrong("that is not the address of a .gguf file")),
            },
            _ => return Err(wrong("there are too many '/' in it")),
        };
        // Ollama's tag for the default model.
        let tag = tag.filter(|tag| !tag.eq_ignore_ascii_case("latest"));
        if tag.is_some_and(|tag| !is_path(tag)) {
            return Err(wrong("after ':' a quantization or a file's name is expected"));
        }
        let name = Name { repo, tag: tag.map(str::to_owned), revision: None };
        match revision {
            Some(revision) => name.at(revision),
            None => Ok(name),
        }
    }

    /// The same model at this branch, tag or commit.
    ///
    /// # Errors
    /// `revision` cannot be the name of one.
    pub fn at(mut self, revision: &str) -> Result<Name, HubError> {
        let problem = "a revision is a branch, a tag or a commit";
        if !is_path(revision) || revision.bytes().any(|b| b == b':' || b == b' ') {
            return Err(HubError::Name { text: revision.to_owned(), problem });
        }
        self.revision = Some(revision.to_owned());
        Ok(self)
    }

    /// The revision, or the main branch.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, " at {revision}")?;
        }
        Ok(())
    }
}

/// True if this is the address of a file on another server than the hub.
fn is_elsewhere(text: &str) -> bool {
    let is_address = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    is_address && Name::without_hub(text).is_none()
}

/// True if this is a user or a repository, by the hub's own rule. `--` separates the two in the cache.
fn is_part(part: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let ends = [part.bytes().next(), part.bytes().last()];
    (1..=MAX_PART_BYTES).contains(&part.len())
        && part.bytes().all(allowed)
        && !ends.iter().any(|b| matches!(b, Some(b'-' | b'.')))
        && !part.contains("--")
        && !part.contains("..")
}

/// True if this is a valid path below a folder, on any system, and stays below it.
pub(crate) fn is_path(path: &str) -> bool {
    let part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.len() <= 255;
    path.len() <= 1024
        && path.split('/').all(part)
        && !path.chars().any(|c| c.is_control() || c == '\\')
}

/// True if the file's name is that of a GGUF file.
pub(crate) fn is_gguf(file: &str) -> bool {
    file.len() > 5 && file.to_ascii_lowercase().ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(repo: &str, tag: Option<&str>, revision: Option<&str>) -> Name {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Name { repo: repo.to_owned(), tag: own(tag), revision: own(revision) }
    }

    #[test]
    fn names_are_taken_apart() {
        for (text, expected) in [
            ("a/b", name("a/b", None, None)),
            ("a/b:Q4_K_M", name("a/b", Some("Q4_K_M"), None)),
            ("a/b:latest", name("a/b", None, None)),
            ("hf.co/a/b-GGUF:sub/x.gguf", name("a/b-GGUF", Some("sub/x.gguf"), None)),
            ("hf://a/b_1.5", name("a/b_1.5", None, None)),
            ("https://huggingface.co/a/b/", name("a/b", None, None)),
            ("https://huggingface.co/a/b/tree/v1", name("a/b", None, Some("v1"))),
            (
                "https://huggingface.co/a/b/resolve/main/Q8/x-Q8_0.gguf?download=true",
                name("a/b", Some("Q8/x-Q8_0.gguf"), Some("main")),
            ),
        ] {
            assert_eq!(Name::parse(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_would_leave_its_folder_is_no_name() {
        let long = "x".repeat(97);
        for text in [
            "",
            "a",
            "a/",
            "/b",
            "../b",
            "a/..",
            "a/b/c",
            "a/b:../c.gguf",
            "a/b:/etc/x.gguf",
            "a/b:",
            "a--b/c",
            "a b/c",
            "-a/b",
            "a/b.",
            "a/b:x\ny",
            &format!("a/{long}"),
            "hf.co/a/b/blob/main/README.md",
            "hf.co/a/b/blob/../x.gguf",
            "hf.co/a/b/blob/main/../../x.gguf",
            "https://example.com/x.gguf",
        ] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
        assert!(name("a/b", None, None).at("../x").is_err());
        assert!(name("a/b", None, None).at("refs/pr/1").is_ok());
    }
}
