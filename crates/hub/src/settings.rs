//! Settings from the environment, with the variable names of Hugging Face's own tools.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::HubError;

/// The default address of the hub.
const ENDPOINT: &str = "https://huggingface.co";
/// Maximum number of bytes of a token file.
const TOKEN: u64 = 4096;

/// The locations of the cache and the hub, the token, and whether the network may be used.
#[derive(Clone)]
pub struct Settings {
    /// The folder of models: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `huggingface` in `XDG_CACHE_HOME` or `~/.cache`.
    pub cache: PathBuf,
    /// The hub, without a `/` at the end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// `HF_TOKEN`, or the token that `hf auth login` has written.
    pub token: Option<String>,
    /// True if nothing may be fetched: `HF_HUB_OFFLINE`.
    pub offline: bool,
}

impl std::fmt::Debug for Settings {
    /// Omits the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { cache, endpoint, token, offline } = self;
        let with_token = token.is_some();
        write!(f, "Settings {{ {cache:?}, {endpoint:?}, token: {with_token}, offline: {offline} }}")
    }
}

impl Settings {
    /// The settings of this process.
    ///
    /// # Errors
    /// A variable has an invalid value, or none gives the location of the cache.
    pub fn of_environment() -> Result<Settings, HubError> {
        Settings::of(&|name| std::env::var_os(name))
    }

    /// The settings from the given variables.
    pub(crate) fn of(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Settings, HubError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let user = variable("HOME").map(PathBuf::from);
        let path = |name: &str| {
            let path = PathBuf::from(variable(name)?);
            // A shell does not expand `~` in the middle of a word, so the tools do.
            Some(match (path.strip_prefix("~"), &user) {
                (Ok(rest), Some(user)) => user.join(rest),
                _ => path,
            })
        };
        let caches = || path("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")));
        let home = path("HF_HOME").or_else(|| Some(caches()?.join("huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")));
        let problem =
            "none of HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME says where models are kept";
        let Some(cache) = cache else {
            return Err(HubError::Setting {
                variable: "HF_HUB_CACHE",
                value: String::new(),
                problem,
            });
        };
        let text =
            |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            let problem = "the address of a hub begins with https:// or http://";
            return Err(HubError::Setting { variable: "HF_ENDPOINT", value: endpoint, problem });
        }
        let is_true = |name| {
            let value = text(name).unwrap_or_default().to_ascii_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        let token = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN"));
        let file = || path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
        let token = match is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            true => None,
            false => token.or_else(|| token_in(&file()?)),
        };
        // The token becomes a line of a request.
        let unusual =
            |token: &String| token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic());
        if token.as_ref().is_some_and(unusual) {
            let problem = "a token is letters, digits and '_'";
            return Err(HubError::Setting {
                variable: "HF_TOKEN", value: "…".to_owned(), problem
            });
        }
        let offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
        Ok(Settings { cache, endpoint, token, offline })
    }
}

/// The token in a file.
fn token_in(file: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(file).ok()?.take(TOKEN).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
        Settings::of(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_cache_is_where_other_tools_have_it() {
        for (variables, expected) in [
            (&[("HOME", "/u")][..], "/u/.cache/huggingface/hub"),
            (&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "/h")], "/h/hub"),
            (&[("HOME", "/u"), ("HF_HOME", "~/h")], "/u/h/hub"),
            (&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")], "/new"),
            (&[("HOME", "/u"), ("HF_HUB_CACHE", "")], "/u/.cache/huggingface/hub"),
        ] {
            assert_eq!(of(variables).unwrap().cache, Path::new(expected), "{variables:?}");
        }
        assert!(of(&[]).is_err());
    }

    #[test]
    fn endpoint_token_and_network() {
        let usual = of(&[("HOME", "/nobody")]).unwrap();
        assert_eq!(usual.endpoint, "https://huggingface.co");
        assert!(usual.token.is_none() && !usual.offline);
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let home = home.path().to_str().unwrap();
        assert_eq!(of(&[("HF_HOME", home)]).unwrap().token.as_deref(), Some("hf_file"));
        let given = of(&[
            ("HF_HOME", home),
            ("HF_TOKEN", "hf_given"),
            ("HF_ENDPOINT", "http://localhost:1/"),
            ("HF_HUB_OFFLINE", "yes"),
        ]);
        let given = given.unwrap();
        assert_eq!(given.token.as_deref(), Some("hf_given"));
        assert_eq!(given.endpoint, "http://localhost:1");
        assert!(given.offline && !format!("{given:?}").contains("hf_given"));
        let none = of(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap();
        assert_eq!(none.token, None);
        assert!(of(&[("HF_HOME", home), ("HF_ENDPOINT", "ftp://x")]).is_err());
        let error = of(&[("HF_HOME", home), ("HF_TOKEN", "a\r\nHost: b")]).unwrap_err().to_string();
        assert!(error.starts_with("HF_TOKEN") && !error.contains("Host"), "{error}");
    }
}
