//! Errors as clients see them: a file is named by its name alone. Where a server's files are concerns its operator alone,
//! and the log has the whole path.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use crate::Log;

/// The folders that errors do not name to clients, and the log that has them.
pub(crate) struct ClientErrors {
    /// With a `/` at the end, the longest first.
    folders: Vec<String>,
    log: Log,
}

impl ClientErrors {
    /// Hides the folders of these files and folders, and the folders around these.
    pub(crate) fn new<'p>(paths: impl IntoIterator<Item = &'p Path>, log: Log) -> ClientErrors {
        let all = paths.into_iter().flat_map(Path::ancestors);
        let named = all.filter(|path| path.file_name().is_some());
        let folders: BTreeSet<String> = named.map(|path| format!("{}/", path.display())).collect();
        let mut folders = Vec::from_iter(folders);
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        ClientErrors { folders, log }
    }

    /// The text of an error for a client.
    pub(crate) fn text(&self, error: &dyn Display) -> String {
        self.folders.iter().fold(error.to_string(), |text, folder| text.replace(folder, ""))
    }

    /// The text of an error of the server for a client. If it hides a folder, the log gets the whole text.
    pub(crate) fn logged(&self, error: &dyn Display) -> String {
        let (text, whole) = (self.text(error), error.to_string());
        if text != whole {
            (self.log)(&format!("a request has failed: {whole}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn files_are_named_and_their_folders_are_not() {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let log: Log = {
            let logged = Arc::clone(&logged);
            Arc::new(move |text: &str| logged.lock().unwrap().push(text.to_owned()))
        };
        let paths = ["/srv/my models/a/m.gguf", "/srv/slots", "here.gguf", "/top.gguf"];
        let errors = ClientErrors::new(paths.map(Path::new), log);
        for (whole, expected) in [
            ("/srv/my models/a/m.gguf: was cut short", "m.gguf: was cut short"),
            ("/srv/my models/a/m-00002-of-00002.gguf: bad", "m-00002-of-00002.gguf: bad"),
            ("/srv/slots/one: no space", "one: no space"),
            ("/srv/slots: cannot open", "slots: cannot open"),
            ("here.gguf: a/b", "here.gguf: a/b"),
            ("the context is full", "the context is full"),
        ] {
            let before = logged.lock().unwrap().len();
            assert_eq!(
                (errors.text(&whole), errors.logged(&whole)),
                (expected.into(), expected.into())
            );
            let logged = logged.lock().unwrap();
            assert_eq!(logged.len() > before, whole != expected, "{whole}");
            assert!(logged.last().is_none_or(|text| text.contains(whole)) || whole == expected);
        }
    }
}
