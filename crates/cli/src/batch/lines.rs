//! Lines of a file or a pipe, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Maximum bytes of a line. Its parsed JSON may need some forty times as much memory.
pub const LIMIT: usize = 8 << 20;

/// Maximum bytes to skip in a line that is longer than the limit: beyond, it may never end.
const PASSED: u64 = 1 << 30;

/// A line that is not blank.
#[derive(Debug, PartialEq, Eq)]
pub struct InputLine {
    /// From 1; blank lines count.
    pub number: u64,
    /// Its offset in bytes.
    pub start: u64,
    /// The offset after it and its newline.
    pub end: u64,
    /// Without its newline; `None` if it is longer than the limit.
    pub bytes: Option<Vec<u8>>,
    /// True if it has a newline.
    pub is_whole: bool,
}

/// Returns the number of lines in a file that are not blank.
///
/// # Errors
/// It cannot be read.
pub fn count(path: &Path) -> io::Result<u64> {
    let mut lines = InputLines::new(BufReader::with_capacity(1 << 20, File::open(path)?), LIMIT);
    let mut count = 0;
    while lines.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Reads lines one by one.
pub struct InputLines<R> {
    reader: R,
    limit: usize,
    passed: u64,
    /// Lines and bytes read so far.
    number: u64,
    at: u64,
}

impl<R: BufRead> InputLines<R> {
    /// Reads from the beginning, lines of at most `limit` bytes.
    pub fn new(reader: R, limit: usize) -> InputLines<R> {
        InputLines { reader, limit, passed: PASSED, number: 0, at: 0 }
    }

    /// Returns the next line that is not blank.
    ///
    /// # Errors
    /// The system's, or a line that does not end.
    pub fn next(&mut self) -> io::Result<Option<InputLine>> {
        let is_blank = |line: &InputLine| {
            line.bytes.as_ref().is_some_and(|bytes| bytes.iter().all(u8::is_ascii_whitespace))
        };
        loop {
            match self.next_even_blank()? {
                Some(line) if is_blank(&line) => {}
                line => return Ok(line),
            }
        }
    }

    /// Returns the next line, which may be blank.
    ///
    /// # Errors
    /// As [`next`](InputLines::next).
    pub fn next_even_blank(&mut self) -> io::Result<Option<InputLine>> {
        let Some(mut line) = self.any()? else { return Ok(None) };
        if let Some(bytes) = &mut line.bytes
            && line.number == 1
            && bytes.starts_with(b"\xef\xbb\xbf")
        {
            // A byte order mark, which programs on Windows write.
            bytes.drain(..3);
        }
        Ok(Some(line))
    }

    /// Appends everything that follows the lines that were read. Returns false if that is longer than a line may be.
    ///
    /// # Errors
    /// The system's.
    pub fn rest(&mut self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        let left = self.limit.saturating_sub(bytes.len()) as u64 + 1;
        self.reader.by_ref().take(left).read_to_end(bytes)?;
        Ok(bytes.len() <= self.limit)
    }

    fn any(&mut self) -> io::Result<Option<InputLine>> {
        let (start, mut bytes, mut is_whole) = (self.at, Some(Vec::new()), false);
        while !is_whole {
            let piece = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                piece => piece?,
            };
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let text = &piece[..end.unwrap_or(piece.len())];
            match &mut bytes {
                Some(line) if line.len() + text.len() <= self.limit => line.extend_from_slice(text),
                _ => bytes = None,
            }
            let taken = text.len() + usize::from(end.is_some());
            is_whole = end.is_some();
            self.reader.consume(taken);
            self.at += taken as u64;
            if self.at - start > self.passed {
                let (line, limit) = (self.number + 1, self.passed >> 20);
                return Err(io::Error::other(format!(
                    "line {line} does not end within {limit} MiB"
                )));
            }
        }
        if self.at == start {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(InputLine { number: self.number, start, end: self.at, bytes, is_whole }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], limit: usize, buffer: usize) -> Vec<(u64, Option<String>, bool)> {
        let mut lines = InputLines::new(io::BufReader::with_capacity(buffer, text), limit);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            let bytes = &text[line.start as usize..line.end as usize];
            assert_eq!(bytes.ends_with(b"\n"), line.is_whole);
            let text = line.bytes.map(|bytes| String::from_utf8(bytes).unwrap());
            all.push((line.number, text, line.is_whole));
        }
        all
    }

    #[test]
    fn lines_have_their_numbers_and_blank_ones_are_left_out() {
        for buffer in [1, 2, 3, 100] {
            let line = |number, text: &str| (number, Some(text.to_owned()), true);
            let found = all(b"\xef\xbb\xbfa\n\n \t\r\nbc\r\ndef", 100, buffer);
            assert_eq!(
                found,
                [line(1, "a"), line(4, "bc\r"), (5, Some("def".to_owned()), false)],
                "{buffer}"
            );
            assert_eq!(all(b"", 100, buffer), []);
            assert_eq!(all(b"\n\n", 100, buffer), []);
        }
    }

    #[test]
    fn a_line_beyond_the_limit_is_passed_over_and_the_next_one_is_read() {
        for buffer in [1, 4, 100] {
            let found = all(b"abcde\nabcd\nabcdefghijklmnop", 4, buffer);
            let told = [(1, None, true), (2, Some("abcd".to_owned()), true), (3, None, false)];
            assert_eq!(found, told);
        }
    }

    #[test]
    fn the_rest_is_as_long_as_a_line_may_be() {
        for (limit, fits) in [(11, true), (10, true), (9, false)] {
            let mut lines = InputLines::new(&b"abc\nde\nfgh"[..], limit);
            let mut bytes = lines.next().unwrap().unwrap().bytes.unwrap();
            bytes.push(b'\n');
            assert_eq!(lines.rest(&mut bytes).unwrap(), fits, "{limit}");
            assert_eq!(bytes, b"abc\nde\nfgh"[..bytes.len()]);
        }
    }

    #[test]
    fn a_line_that_does_not_end_is_an_error() {
        let mut lines = InputLines::new(io::BufReader::with_capacity(10, io::repeat(b'a')), 4);
        lines.passed = 1 << 20;
        let error = lines.next().unwrap_err().to_string();
        assert_eq!(error, "line 1 does not end within 1 MiB");
    }
}
