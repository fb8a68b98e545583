//! The lines of one or more files, or of standard input, as texts.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::batch::lines::{InputLines, LIMIT};
use crate::text_input::{self, NOT_UTF8};

/// The kind of file that is read.
const TEXTS: &str = "a file of texts";

/// A text.
#[derive(Debug, PartialEq)]
pub struct TextLine {
    pub text: String,
    /// Its name in a line of JSON.
    pub id: Option<Value>,
}

/// Reads texts.
pub struct TextLines {
    /// Files that are not read yet, and their names.
    left: VecDeque<PathBuf>,
    current: Option<(String, InputLines<Box<dyn BufRead>>)>,
    json: bool,
    /// Bytes of all files, if they are files.
    len: Option<u64>,
    /// Bytes of the files before the current one, and of the lines of that one.
    before: u64,
    at: u64,
    /// A text that was read and is not returned yet.
    ahead: Option<TextLine>,
}

impl TextLines {
    /// Begins to read files in their order; without any, standard input.
    pub fn open(paths: &[PathBuf], json: bool) -> anyhow::Result<TextLines> {
        let mut left: VecDeque<PathBuf> = paths.iter().cloned().collect();
        if left.is_empty() {
            left.push_back("-".into());
        }
        let mut len = Some(0);
        for path in &left {
            let known = match path.as_path() == Path::new("-") {
                true => None,
                false => {
                    // (A pipe is opened only once, when it is read.)
                    let failed = |error| text_input::cannot_open(path, TEXTS, error);
                    let known = path.metadata().map_err(failed)?;
                    if known.is_dir() {
                        let path = path.display();
                        return Err(anyhow!("'{path}' is a folder: give the path of {TEXTS}"));
                    }
                    known.is_file().then_some(known.len())
                }
            };
            len = len.zip(known).map(|(len, known)| len + known);
        }
        Ok(TextLines { left, current: None, json, len, before: 0, at: 0, ahead: None })
    }

    /// Bytes of all files, if that is known.
    pub fn len(&self) -> Option<u64> {
        self.len
    }

    /// Bytes that were read.
    pub fn read(&self) -> u64 {
        self.before + self.at
    }

    /// Returns true if another text follows, which the next call of `next` returns.
    pub fn has_more(&mut self) -> anyhow::Result<bool> {
        if self.ahead.is_none() {
            self.ahead = self.next()?;
        }
        Ok(self.ahead.is_some())
    }

    /// Returns the next text; `None` after the last.
    pub fn next(&mut self) -> anyhow::Result<Option<TextLine>> {
        if let Some(line) = self.ahead.take() {
            return Ok(Some(line));
        }
        loop {
            if let Some((name, lines)) = &mut self.current {
                if let Some(line) = lines.next_even_blank().with_context(|| name.clone())? {
                    self.at = line.end;
                    let Some(bytes) = line.bytes else {
                        let (number, limit) = (line.number, LIMIT >> 20);
                        return Err(anyhow!("{name}: line {number} is longer than {limit} MiB"));
                    };
                    let parsed = parse(bytes, self.json);
                    return parsed
                        .map(Some)
                        .map_err(|error| error.context(format!("{name}: line {}", line.number)));
                }
                (self.current, self.before, self.at) = (None, self.before + self.at, 0);
            }
            let Some(path) = self.left.pop_front() else { return Ok(None) };
            self.current = Some(open(&path)?);
        }
    }
}

fn open(path: &Path) -> anyhow::Result<(String, InputLines<Box<dyn BufRead>>)> {
    const BUFFER: usize = 1 << 16;
    let (name, reader): (String, Box<dyn BufRead>) = match path == Path::new("-") {
        true => {
            let reader = BufReader::with_capacity(BUFFER, io::stdin());
            ("standard input".to_owned(), Box::new(reader))
        }
        false => {
            let name = format!("'{}'", path.display());
            let file = text_input::open(path, TEXTS)?;
            (name, Box::new(BufReader::with_capacity(BUFFER, file)))
        }
    };
    Ok((name, InputLines::new(reader, LIMIT)))
}

/// Reads a line: as a text, without the end of a line that programs on Windows write, or as JSON.
fn parse(bytes: Vec<u8>, json: bool) -> anyhow::Result<TextLine> {
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("it is not UTF-8; {NOT_UTF8}"))?;
    if !json {
        let text = text.strip_suffix('\r').map(str::to_owned).unwrap_or(text);
        return Ok(TextLine { text, id: None });
    }
    let wrong = || anyhow!("expected a text between quotes, or an object with \"text\"");
    match serde_json::from_str(&text).map_err(|error| anyhow!("it is not JSON: {error}"))? {
        Value::String(text) => Ok(TextLine { text, id: None }),
        Value::Object(mut object) => {
            let text = ["text", "input", "content"].iter().find_map(|name| object.remove(*name));
            let Some(Value::String(text)) = text else { return Err(wrong()) };
            let id = ["id", "custom_id"].iter().find_map(|name| object.remove(*name));
            Ok(TextLine { text, id })
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_json() {
        let of = |line: &str, json| parse(line.into(), json).map(|line| (line.text, line.id));
        assert_eq!(of("a \"b\"\r", false).unwrap(), ("a \"b\"".to_owned(), None));
        assert_eq!(of("", false).unwrap(), (String::new(), None));
        assert_eq!(of("\"a\\nb\"", true).unwrap(), ("a\nb".to_owned(), None));
        let object = of(r#"{"text": "x", "id": 7, "more": []}"#, true).unwrap();
        assert_eq!(object, ("x".to_owned(), Some(7.into())));
        for wrong in ["", "x", "7", "{}", r#"{"text": 1}"#, "[\"a\"]"] {
            assert!(of(wrong, true).is_err(), "{wrong}");
        }
        assert!(parse(vec![0xff], false).is_err());
    }
}
