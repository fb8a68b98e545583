//! The records of a file: one document of JSON, or one on each line, in bounded memory.

use std::io::{self, BufRead, BufReader};
use std::path::Path;

use alight_chat::body::json::JsonBudget;
use anyhow::Context;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::batch::lines::{InputLines, LIMIT};
use crate::text_input;

/// The name of standard input in place of a file.
const STDIN: &str = "-";

/// A file of records.
pub struct Records {
    name: String,
    lines: InputLines<Box<dyn BufRead>>,
    /// True before the first line was read.
    is_first: bool,
    /// True once a document of several lines was read, after which there is nothing else.
    is_document: bool,
}

/// A line, or the whole file.
pub struct RecordLine {
    /// From 1; `None` if the file is one document.
    pub line: Option<u64>,
    /// The parsed text, or why it is none.
    pub content: Result<Value, String>,
}

impl Records {
    /// Opens the file at `path`, or standard input.
    ///
    /// # Errors
    /// It cannot be opened; the error names it.
    pub fn open(path: &Path) -> anyhow::Result<Records> {
        if path == Path::new(STDIN) {
            let reader = Box::new(BufReader::new(io::stdin()));
            return Ok(Records::of("standard input".to_owned(), reader));
        }
        let name = format!("'{}'", path.display());
        let file = text_input::open(path, "a file with a record")?;
        Ok(Records::of(name, Box::new(BufReader::new(file))))
    }

    fn of(name: String, reader: Box<dyn BufRead>) -> Records {
        Records { name, lines: InputLines::new(reader, LIMIT), is_first: true, is_document: false }
    }

    /// Returns the file's name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the next record.
    ///
    /// # Errors
    /// The file cannot be read; the error names it.
    pub fn next(&mut self) -> anyhow::Result<Option<RecordLine>> {
        if self.is_document {
            return Ok(None);
        }
        let is_first = std::mem::take(&mut self.is_first);
        let read = self.lines.next().with_context(|| self.name.clone())?;
        let Some(line) = read else { return Ok(None) };
        let Some(mut bytes) = line.bytes else {
            return Ok(Some(RecordLine { line: Some(line.number), content: Err(too_long()) }));
        };
        // The first line of a document of several is no document.
        let cut = |bytes: &[u8]| {
            serde_json::from_slice::<IgnoredAny>(bytes).is_err_and(|error| error.is_eof())
        };
        if !is_first || !cut(&bytes) {
            return Ok(Some(RecordLine { line: Some(line.number), content: parsed(&bytes) }));
        }
        self.is_document = true;
        bytes.push(b'\n');
        let fits = self.lines.rest(&mut bytes).with_context(|| self.name.clone())?;
        let content = if fits { parsed(&bytes) } else { Err(too_long()) };
        Ok(Some(RecordLine { line: None, content }))
    }
}

fn too_long() -> String {
    format!("it is longer than {} MiB, the most that alight reads", LIMIT >> 20)
}

fn parsed(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 text: see byte {}", error.valid_up_to()))?;
    let expected = "expected a record of `alight run --json` or `alight batch --record`";
    JsonBudget::default()
        .parse(text)
        .map_err(|error| format!("it is no record: {error}; {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(Option<u64>, Result<Value, String>)> {
        let reader = Box::new(io::Cursor::new(text.to_owned().into_bytes()));
        let mut records = Records::of("x".to_owned(), reader);
        let mut all = Vec::new();
        while let Some(RecordLine { line, content }) = records.next().unwrap() {
            all.push((line, content));
        }
        all
    }

    #[test]
    fn a_file_is_one_document_or_has_one_on_each_line() {
        let value = |text: &str| Ok(serde_json::from_str(text).unwrap());
        assert_eq!(all(""), []);
        assert_eq!(all("{\"a\": 1}"), [(Some(1), value("{\"a\":1}"))]);
        assert_eq!(all("1\n\n2\n"), [(Some(1), value("1")), (Some(3), value("2"))]);
        assert_eq!(all("\n{\n \"a\":\n [1]}\n"), [(None, value("{\"a\":[1]}"))]);
        let wrong = all("{\n\"a\": 1}\n{}\n");
        assert!(matches!(&wrong[..], [(None, Err(why))] if why.contains("trailing")), "{wrong:?}");
        let mixed = all("{}\n{\"a\"\n{}\n");
        assert!(matches!(&mixed[..], [(Some(1), Ok(_)), (Some(2), Err(_)), (Some(3), Ok(_))]));
    }

    #[test]
    fn what_is_too_much_is_not_parsed() {
        for (text, part) in [
            ("[".repeat(1 << 20), "in one another"),
            (format!("[{}", "1,".repeat(1 << 20)), "values"),
            (format!("{{\n\"a\": \"{}\"}}", "a".repeat(LIMIT)), "longer than 8 MiB"),
            (format!("\"{}\"", "a".repeat(LIMIT)), "longer than 8 MiB"),
            ("{\"a\": NaN}".to_owned(), "expected value"),
            ("{\"a\": 1e999}".to_owned(), "out of range"),
        ] {
            let found = all(&text);
            assert!(
                matches!(&found[..], [(_, Err(why))] if why.contains(part)),
                "{part}: {found:?}"
            );
        }
    }
}
