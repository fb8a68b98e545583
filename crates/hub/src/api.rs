//! The hub's answers: the files of a repository, and the properties of one file. Both are validated here, and callers do not
//! validate them again.

use std::io::Read;

use serde::Deserialize;

use crate::client::{self, Answer, Client, Method, Trouble};
use crate::name::is_path;
use crate::{HubError, Name};

/// Maximum number of bytes of a listing: that of a repository with a hundred thousand files.
const LISTING: u64 = 64 << 20;
/// Maximum number of bytes of a file.
const MAX_FILE_BYTES: u64 = 1 << 44;

/// The contents of a repository at a revision.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit: 40 digits.
    pub commit: String,
    pub files: Vec<Listed>,
}

impl Listing {
    /// Its files and their sizes.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, Option<u64>)> + Clone {
        self.files.iter().map(|file| (file.path.as_str(), file.size))
    }
}

/// A file of a listing.
#[derive(Debug)]
pub(crate) struct Listed {
    /// A path below a folder.
    pub path: String,
    pub size: Option<u64>,
    /// SHA-256 of its bytes, for a file that is stored outside the git repository.
    pub sha256: Option<String>,
}

/// Properties of a file that are needed before it is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileInfo {
    /// The name of its bytes in the cache: letters, digits, `-`, `_` and `.`.
    pub etag: String,
    pub size: u64,
    /// The URL of its bytes.
    pub location: String,
}

impl FileInfo {
    /// The SHA-256 of its bytes, if the etag is one, as for every file that is stored outside the git repository, such as weights.
    pub fn sha256(&self) -> Option<&str> {
        Some(self.etag.as_str()).filter(|etag| is_hex(etag, 64))
    }
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Requests the listing of a repository.
pub(crate) fn listing(
    client: &Client,
    name: &Name,
    stop: &dyn Fn() -> bool,
) -> Result<Listing, HubError> {
    let url = client.url(&["api/models", &name.repo, "revision"]);
    // A branch with a '/' in its name is one part here.
    let revision = name.revision().replace('/', "%2F");
    let url = format!("{url}/{revision}?blobs=true");
    read_listing(&client.patiently(stop, || (0, text_of(client, name, &url)))?, &url)
}

/// Parses a listing from `url`. Names in the result stay below the folder of the repository, for any input.
fn read_listing(text: &[u8], url: &str) -> Result<Listing, HubError> {
    let wrong = |problem: &str| client::answer(url, problem);
    if text.trim_ascii_start().starts_with(b"<") {
        return Err(wrong(
            "it is a web page, as a proxy has, or a network that wants you to sign in first",
        ));
    }
    let model: ModelInfo =
        serde_json::from_slice(text).map_err(|error| wrong(&error.to_string()))?;
    if !is_hex(&model.sha, 40) {
        return Err(wrong("it names no commit"));
    }
    let files = model.siblings.into_iter().map(|file| {
        if !is_path(&file.rfilename) {
            return Err(wrong("the name of a file leads outside its folder"));
        }
        let (sha256, size) = file.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let sha256 = sha256.map(in_small_letters);
        Ok(Listed { path: file.rfilename, size: size.or(file.size), sha256 })
    });
    Ok(Listing { commit: model.sha, files: files.collect::<Result<_, _>>()? })
}

fn text_of(client: &Client, name: &Name, url: &str) -> Result<Vec<u8>, Trouble> {
    let answer = client.send(Method::Get, url, None)?;
    if answer.status() != 200 {
        return Err(refused(client, name, None, &answer));
    }
    let mut text = Vec::new();
    let url = answer.url.clone();
    let mut body = answer.response.into_body().into_reader().take(LISTING + 1);
    match body.read_to_end(&mut text) {
        Ok(_) if text.len() as u64 > LISTING => Err(client::answer(&url, "it is too large").into()),
        Ok(_) => Ok(text),
        Err(error) => Err(Trouble::Again(client::connection(&url, &error), None)),
    }
}

/// Requests the properties of files of a listing.
pub(crate) fn files<'l>(
    client: &Client,
    name: &Name,
    listing: &'l Listing,
    paths: &[String],
    stop: &dyn Fn() -> bool,
) -> Result<Vec<(&'l Listed, FileInfo)>, HubError> {
    let info = |path: &String| {
        let none = || HubError::NoSuchFile { repo: name.repo.clone(), file: path.clone() };
        let listed = listing.files.iter().find(|file| file.path == *path).ok_or_else(none)?;
        Ok((listed, file(client, name, &listing.commit, listed, stop)?))
    };
    paths.iter().map(info).collect()
}

/// Requests the properties of a file of a listing.
fn file(
    client: &Client,
    name: &Name,
    commit: &str,
    file: &Listed,
    stop: &dyn Fn() -> bool,
) -> Result<FileInfo, HubError> {
    client.patiently(stop, || (0, head_of(client, name, commit, file)))
}

pub(crate) fn head_of(
    client: &Client,
    name: &Name,
    commit: &str,
    file: &Listed,
) -> Result<FileInfo, Trouble> {
    let url = client.url(&[&name.repo, "resolve", commit, &file.path]);
    let answer = client.send(Method::Head, &url, None)?;
    let wrong = |problem: &str| Trouble::Final(client::answer(&url, problem));
    let is_redirect = matches!(answer.status(), 301 | 302 | 303 | 307 | 308);
    if answer.status() != 200 && !is_redirect {
        return Err(refused(client, name, Some(&file.path), &answer));
    }
    if answer.header("x-repo-commit").is_some_and(|found| found != commit) {
        return Err(wrong("it is about another commit"));
    }
    let etag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
    let etag = etag.unwrap_or_default().trim_start_matches("W/").trim_matches('"');
    let etag = in_small_letters(etag.to_owned());
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if !(1..=200).contains(&etag.len()) || !etag.bytes().all(allowed) || etag.starts_with('.') {
        return Err(wrong("the file has no etag, or one that is no name of a file"));
    }
    if etag.ends_with(".incomplete") {
        return Err(wrong("the file has the etag of one that is incomplete"));
    }
    let own_size = || answer.header("content-length").filter(|_| !is_redirect);
    let size = answer.header("x-linked-size").or_else(own_size).map(str::parse::<u64>);
    let size = match (size, file.size) {
        (Some(Ok(size)), Some(listed)) if size != listed => {
            return Err(wrong("the file has another size than in the listing"));
        }
        (Some(Ok(size)), _) | (None, Some(size)) => size,
        _ => return Err(wrong("it does not say how large the file is")),
    };
    if size > MAX_FILE_BYTES {
        return Err(wrong("the file is larger than any model"));
    }
    if file.sha256.as_ref().is_some_and(|listed| *listed != etag) {
        return Err(wrong("the file has another SHA-256 than in the listing"));
    }
    Ok(FileInfo { etag, size, location: answer.url.clone() })
}

/// The error for a refusal by the hub.
pub(crate) fn refused(
    client: &Client,
    name: &Name,
    file: Option<&str>,
    answer: &Answer,
) -> Trouble {
    let (repo, with_token, status) = (name.repo.clone(), client.has_token(), answer.status());
    let code = answer.header("x-error-code").unwrap_or_default();
    Trouble::Final(match (status, code) {
        (_, "GatedRepo") => HubError::Gated { url: client.url(&[&repo]), repo, with_token },
        (404, "RevisionNotFound") => {
            HubError::NoSuchRevision { repo, revision: name.revision().to_owned() }
        }
        (404, "EntryNotFound") if file.is_some() => {
            HubError::NoSuchFile { repo, file: file.unwrap_or_default().to_owned() }
        }
        // To clients it does not know, the hub answers 401 for anything that does not exist.
        (404, _) if file.is_none() => HubError::NoSuchRepo { repo, with_token },
        (404, _) => HubError::NoSuchFile { repo, file: file.unwrap_or_default().to_owned() },
        (401, _) => HubError::NoSuchRepo { repo, with_token },
        (403, _) => HubError::Refused { repo, status, with_token },
        _ => return client::status(answer),
    })
}

/// A SHA-256 in lower case, as the hub writes it; some mirrors write upper case. Other texts are returned unchanged.
fn in_small_letters(text: String) -> String {
    let small = text.to_ascii_lowercase();
    if is_hex(&small, 64) { small } else { text }
}

/// True if this is exactly `digits` hexadecimal digits, as git and the hub write them.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use serde_json::{Value, json};

    use super::*;
    use crate::cache::RepoFolder;
    use crate::select;

    /// A small generator of pseudo-random numbers (xorshift64*).
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
        }

        fn one<T: Clone>(&mut self, of: &[T]) -> T {
            of[self.below(of.len())].clone()
        }
    }

    /// Parts that names of models are made of, and parts that lead elsewhere.
    const USUAL: [&str; 10] = [
        "m",
        "-Q4_K_M",
        "-q8_0",
        "UD-Q4_K_XL",
        ".gguf",
        ".gguf",
        ".GGUF",
        "-00001-of-00002",
        "-00002-of-00002",
        "a/",
    ];
    const ODD: [&str; 12] = [
        "-00000-of-00001",
        "-99999-of-99999",
        "/",
        "//",
        ".",
        "..",
        "../",
        "\\",
        "\0",
        "\u{202e}",
        "C:",
        " ",
    ];

    fn name(random: &mut Random) -> Value {
        let odd = random.below(8) == 0;
        let piece = |random: &mut Random| match odd && random.below(2) == 0 {
            true => random.one(&ODD),
            false => random.one(&USUAL),
        };
        let text = (0..1 + random.below(6)).map(|_| piece(random)).collect::<String>();
        match random.below(60) {
            0 => Value::Null,
            1 => json!("x".repeat(1 << random.below(12))),
            2 => json!(7),
            3..33 => json!(format!("{text}.gguf")),
            _ => json!(text),
        }
    }

    fn listing(random: &mut Random) -> Vec<u8> {
        let sizes =
            [json!(1), json!(0), json!(-1), json!(1.5), json!(u64::MAX), json!("7"), Value::Null];
        let hashes = [json!("a".repeat(64)), json!("../../etc"), json!(""), Value::Null];
        let siblings: Vec<Value> = (0..random.below(6))
            .map(|_| match random.below(3) {
                0 => json!({"rfilename": name(random), "size": random.one(&sizes)}),
                1 => json!({"rfilename": name(random), "lfs": {"sha256": random.one(&hashes), "size": random.one(&sizes)}}),
                _ => json!({"rfilename": name(random)}),
            })
            .collect();
        let commits =
            ["0".repeat(40), "0".repeat(40), "0".repeat(39), "../".repeat(13) + "x", String::new()];
        let mut text =
            json!({"sha": random.one(&commits), "siblings": siblings}).to_string().into_bytes();
        if random.below(8) == 0 {
            for _ in 0..1 + random.below(3) {
                let at = random.below(text.len());
                text[at] = random.below(256) as u8;
            }
            text.truncate(1 + random.below(2 * text.len()));
        }
        text
    }

    #[test]
    fn hashes_in_capitals_are_hashes() {
        let capitals = "0123456789ABCDEF".repeat(4);
        assert_eq!(in_small_letters(capitals.clone()), capitals.to_ascii_lowercase());
        // A text of another length is no SHA-256, and stays as it is.
        assert_eq!(in_small_letters("ABCDEF".to_owned()), "ABCDEF");
        let info = |etag: &str| FileInfo {
            etag: in_small_letters(etag.to_owned()),
            size: 1,
            location: String::new(),
        };
        assert!(info(&capitals).sha256().is_some() && info("ABCDEF").sha256().is_none());
    }

    #[test]
    fn whatever_a_listing_says_names_stay_in_the_cache() {
        let mut random = Random(1);
        let folder = RepoFolder::new(Path::new("/cache"), "org/m");
        let (mut read, mut models) = (0, 0);
        for _ in 0..20_000 {
            let text = listing(&mut random);
            let Ok(listing) = read_listing(&text, "https://hub/api") else { continue };
            read += 1;
            let shown = || String::from_utf8_lossy(&text).into_owned();
            for file in &listing.files {
                let path = folder.file(&listing.commit, &file.path);
                let inside = path.strip_prefix("/cache/models--org--m/snapshots").unwrap();
                let normal = inside.components().all(|part| matches!(part, Component::Normal(_)));
                assert!(normal && inside.components().count() >= 2, "{path:?} of {}", shown());
                assert!(!file.path.contains(char::is_control), "{path:?} of {}", shown());
            }
            let found = select::models(listing.sizes());
            for model in &found {
                models += 1;
                // A chosen model is listed, and can be named.
                let listed = |path: &String| listing.files.iter().any(|file| file.path == *path);
                assert!(
                    !model.files.is_empty() && model.files.iter().all(listed),
                    "{model:?} of {}",
                    shown()
                );
                match select::choose("org/m", &found, Some(model.tag())) {
                    Ok(chosen) => assert_eq!(chosen.tag(), model.tag(), "{}", shown()),
                    Err(HubError::Several { .. } | HubError::ShardMissing { .. }) => {}
                    Err(other) => panic!("{other} of {}", shown()),
                }
            }
            let _ = select::choose("org/m", &found, None);
        }
        // Not all of them are refused.
        assert!(read > 2000 && models > 2000, "{read} {models}");
    }
}
