//! The small files next to the weights: configuration, tokenizer, settings.

use std::cell::RefCell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use alight_pages::{Input, MapError, Stamp, open_file};
use serde_json::{Map, Value};

use crate::ConvertError;

/// Maximum length of a JSON file that is read into a tree, in bytes.
const MAX_JSON: u64 = 16 << 20;

/// The places of the files that accompany the weights. The two are never mixed: the network is described
/// by the folder of the weights alone, and the tokenizer by one folder as a whole.
#[derive(Clone, Debug)]
pub(crate) struct SideFiles {
    /// Files that describe the network, in the folder of the weights.
    pub(crate) network: Folder,
    /// Files that describe the tokenizer: in the folder given by the user, or in that of the weights.
    pub(crate) tokenizer: Folder,
    /// The file of the tokens, if the user gave one.
    file: Option<PathBuf>,
    /// The reader for all of them.
    pub(crate) small: SmallFiles,
}

impl SideFiles {
    /// The files of `folder`. If `tokenizer` is a folder, all files of the tokenizer are there; if it is a
    /// file, it has the tokens, whatever its name. All are read with `small`.
    pub(crate) fn new(folder: &Path, tokenizer: Option<&Path>, small: &SmallFiles) -> SideFiles {
        let is_folder = tokenizer.is_some_and(Path::is_dir);
        let place = tokenizer.filter(|_| is_folder).unwrap_or(folder);
        SideFiles {
            network: Folder(folder.into(), small.clone()),
            tokenizer: Folder(place.into(), small.clone()),
            file: tokenizer.filter(|_| !is_folder).map(PathBuf::from),
            small: small.clone(),
        }
    }

    /// Returns the tokenizer file given by the user, if it was a file.
    pub(crate) fn tokenizer_file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

/// A folder of small files.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf, SmallFiles);

impl Folder {
    /// Returns the path of the file `name`, which need not exist.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Reads the file `name`, of at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, is not a regular file, or is longer.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, ConvertError> {
        self.1.read(&self.path(name), limit)
    }

    /// As [`read`](Folder::read), for an optional file: being too long is no error.
    pub(crate) fn find(&self, name: &str, limit: u64) -> Result<SideFile, ConvertError> {
        self.1.find(&self.path(name), limit)
    }

    /// Reads the object in the JSON file `name`; `None` if there is none.
    ///
    /// # Errors
    /// As for [`read`](Folder::read), and it is not JSON, or not an object.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Map<String, Value>>, ConvertError> {
        let Some(bytes) = self.read(name, MAX_JSON)? else { return Ok(None) };
        let wrong = |problem| ConvertError::Side { path: self.path(name), problem };
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            Ok(_) => Err(wrong("holds no JSON object; is it the right file?".into())),
            Err(error) => Err(wrong(format!("is not the JSON that it should be: {error}"))),
        }
    }
}

/// The result of looking for a small file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SideFile {
    /// Nothing.
    Nothing,
    /// A file longer than the limit: at least this number of bytes.
    TooLong(u64),
    /// The whole file.
    Bytes(Vec<u8>),
}

/// Reads small files and records them: like the weights, they are inputs of the new file, so it must not replace one of them,
/// nor be readable by more users.
#[derive(Clone, Debug, Default)]
pub(crate) struct SmallFiles(Rc<RefCell<Vec<Input>>>);

impl SmallFiles {
    /// Returns all files read so far.
    pub(crate) fn inputs(&self) -> Vec<Input> {
        self.0.borrow().clone()
    }

    /// Reads a file of at most `limit` bytes; `None` if there is none.
    pub(crate) fn read(&self, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ConvertError> {
        match self.find(path, limit)? {
            SideFile::Nothing => Ok(None),
            SideFile::Bytes(bytes) => Ok(Some(bytes)),
            SideFile::TooLong(len) => {
                let problem =
                    format!("has {len} bytes, more than the {limit} that such a file may have");
                Err(ConvertError::Side { path: path.into(), problem })
            }
        }
    }

    fn find(&self, path: &Path, limit: u64) -> Result<SideFile, ConvertError> {
        let failed = |source: io::Error| ConvertError::Read { path: path.into(), at: 0, source };
        let wrong = |problem: String| ConvertError::Side { path: path.into(), problem };
        let file = match open_file(path) {
            Ok((file, _)) => file,
            Err(MapError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(SideFile::Nothing);
            }
            Err(MapError::NotAFile { kind, .. }) => {
                return Err(wrong(format!("is a {kind}, not a regular file")));
            }
            Err(error) => return Err(error.into()),
        };
        self.0.borrow_mut().push(Input::of(&file).map_err(failed)?);
        let stamp = Stamp::before_reading(&file).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        if len > limit {
            return Ok(SideFile::TooLong(len));
        }
        let mut bytes = Vec::new();
        // It may grow in the meantime.
        (&file).take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > limit {
            return Ok(SideFile::TooLong(bytes.len() as u64));
        }
        match stamp.still_holds(&file).map_err(failed)? {
            true => Ok(SideFile::Bytes(bytes)),
            false => Err(MapError::Changed { path: path.into() }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_side_file_is_there_or_not_or_wrong_in_a_way_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let side = Folder(folder.path().into(), SmallFiles::default());
        assert_eq!(side.read("a", 10).unwrap(), None);
        fs::write(folder.path().join("a"), "0123456789").unwrap();
        assert_eq!(side.read("a", 10).unwrap().unwrap(), b"0123456789");
        let error = side.read("a", 9).unwrap_err().to_string();
        assert!(error.contains("10 bytes") && error.contains('9'), "{error}");
        assert_eq!(side.find("a", 9).unwrap(), SideFile::TooLong(10));
        let error = side.json("a").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
        fs::write(folder.path().join("b"), "[1]").unwrap();
        assert!(side.json("b").unwrap_err().to_string().contains("object"));
        fs::write(folder.path().join("b"), "{\"x\": 1}").unwrap();
        assert_eq!(side.json("b").unwrap().unwrap()["x"], 1);
        fs::create_dir(folder.path().join("c")).unwrap();
        assert!(side.read("c", 9).unwrap_err().to_string().contains("regular"));
    }

    #[test]
    fn a_folder_given_for_the_tokenizer_is_for_the_tokenizer_alone() {
        let (model, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(model.path().join("tokenizer.json"), "one").unwrap();
        fs::write(model.path().join("config.json"), "model").unwrap();
        fs::write(other.path().join("tokenizer.json"), "two").unwrap();
        let side = SideFiles::new(model.path(), Some(other.path()), &SmallFiles::default());
        assert_eq!(side.tokenizer.read("tokenizer.json", 9).unwrap().unwrap(), b"two");
        assert_eq!(side.network.read("config.json", 9).unwrap().unwrap(), b"model");
        assert_eq!(side.tokenizer.read("config.json", 9).unwrap(), None);
        assert_eq!(side.tokenizer_file(), None);
        let file = other.path().join("tokenizer.json");
        assert_eq!(
            SideFiles::new(model.path(), Some(&file), &SmallFiles::default()).tokenizer_file(),
            Some(&*file)
        );
    }
}
