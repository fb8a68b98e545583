//! Conditions that end an answer where the model would continue: a text, a line that is indented
//! less, or the time.

use std::time::{Duration, Instant};

/// Conditions that end an answer, in addition to its stop texts and its number of tokens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The minimum number of blanks and tabs at the beginning of each line except the first. A line with fewer ends the answer after
    /// those blanks; so does an empty line.
    pub indent: usize,
    /// The time after which the answer ends, counted from its first token, once a line of it has ended.
    pub time: Option<Duration>,
}

/// Looks for the end of an answer that arrives in pieces. The text passed on does not depend on how the answer is cut into pieces.
#[derive(Debug, Default)]
pub struct Stops {
    texts: Vec<String>,
    /// Text that may be the beginning of a stop text.
    held: String,
    /// Bytes that were passed on.
    given: usize,
    lines: Lines,
    /// The time limit, and when the first piece arrived.
    time: Option<Duration>,
    began: Option<Instant>,
    ended: bool,
    /// The text that ended the answer.
    found: Option<String>,
}

impl Stops {
    /// Creates a search for `texts`, any of which ends the answer; empty ones are ignored.
    pub fn new(texts: &[String], limits: Limits) -> Stops {
        let texts = texts.iter().filter(|text| !text.is_empty()).cloned().collect();
        let lines = Lines { indent: limits.indent, ..Lines::default() };
        Stops { texts, lines, time: limits.time, ..Stops::default() }
    }

    /// Takes the next piece: passes on all that is certainly before the end. Returns whether the
    /// answer has ended.
    pub fn push(&mut self, piece: &str, each: &mut dyn FnMut(&str)) -> bool {
        if self.ended {
            return true;
        }
        self.held.push_str(piece);
        let found =
            self.texts.iter().filter_map(|text| Some((self.held.find(text.as_str())?, text)));
        // Of those that begin at the same offset, the longer one.
        let found = found.min_by_key(|(at, text)| (*at, usize::MAX - text.len()));
        let (len, text) = match found {
            Some((at, text)) => (at, Some(text.clone())),
            None => (self.certain(), None),
        };
        let limit = self.lines.end(&self.held[..len]);
        let began = *self.began.get_or_insert_with(Instant::now);
        let late = self.lines.any && self.time.is_some_and(|time| began.elapsed() > time);
        self.ended = limit.is_some() || text.is_some() || late;
        match (limit, text) {
            (Some(at), _) => self.give(at, each),
            (None, None) if late => self.give(self.held.len(), each),
            (None, text) => {
                self.found = text;
                self.give(len, each);
            }
        }
        if self.ended {
            self.held.clear();
        }
        self.ended
    }

    /// Ends the answer: passes on the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(&str)) {
        if !std::mem::replace(&mut self.ended, true) {
            let end = self.lines.end(&self.held).unwrap_or(self.held.len());
            self.give(end, each);
            self.held.clear();
        }
    }

    fn give(&mut self, len: usize, each: &mut dyn FnMut(&str)) {
        if len > 0 {
            each(&self.held[..len]);
            self.held.drain(..len);
            self.given += len;
        }
    }

    /// The text that ended the answer, if one did.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// The bytes of text that have arrived, and how many of them were passed on.
    pub fn bytes(&self) -> [usize; 2] {
        [self.given + self.held.len(), self.given]
    }

    /// The number of held bytes before anything that may be the beginning of a stop text.
    fn certain(&self) -> usize {
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.floor_char_boundary(self.held.len().saturating_sub(longest));
        let begins = |at: &usize| self.texts.iter().any(|text| text.starts_with(&self.held[*at..]));
        let mut places = self.held[from..].char_indices().map(|(at, _)| from + at);
        places.find(begins).unwrap_or(self.held.len())
    }
}

/// The lines of an answer so far.
#[derive(Debug, Default)]
struct Lines {
    /// The minimum number of blanks at the beginning of each line except the first.
    indent: usize,
    /// True if one has ended.
    any: bool,
    /// Blanks at the beginning of the current line, if it has only blanks so far.
    blanks: Option<usize>,
}

impl Lines {
    /// Returns the offset at which the answer ends in the next piece of its text.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, c) in text.char_indices() {
            match (c, self.blanks) {
                (' ' | '\t', Some(blanks)) => self.blanks = Some(blanks + 1),
                (_, Some(blanks)) if blanks < self.indent => return Some(at),
                ('\n', _) => (self.any, self.blanks) = (true, Some(0)),
                _ => self.blanks = None,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text passed on for these pieces, and whether a stop was found.
    fn all(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let texts: Vec<_> = stops.iter().map(|text| (*text).to_owned()).collect();
        let mut stops = Stops::new(&texts, Limits::default());
        let mut out = String::new();
        for piece in pieces {
            stops.push(piece, &mut |text| out.push_str(text));
        }
        stops.finish(&mut |text| out.push_str(text));
        (out, stops.found().is_some())
    }

    #[test]
    fn a_stop_ends_the_text_however_it_is_cut_and_its_beginning_does_not() {
        assert_eq!(all(&["end"], &["the e", "n", "d."]), ("the ".to_owned(), true));
        assert_eq!(all(&["end"], &["the e", "n", "x end"]), ("the enx ".to_owned(), true));
        assert_eq!(all(&["end"], &["the e", "n"]), ("the en".to_owned(), false));
        assert_eq!(all(&["b", "ab"], &["a", "b"]), (String::new(), true));
        assert_eq!(all(&["é."], &["né", "!é", "."]), ("né!".to_owned(), true));
        assert_eq!(all(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
        assert_eq!(all(&[], &["a", "b"]), ("ab".to_owned(), false));
        assert_eq!(all(&[""], &["a", "b"]), ("ab".to_owned(), false));
    }

    #[test]
    fn what_may_become_a_stop_is_held_back() {
        for (text, wanted) in [
            ("the", 2),
            ("the e", 4),
            ("the en", 4),
            ("the enx", 7),
            ("né", 1),
            ("né!", 4),
            ("", 0),
        ] {
            let mut stops = Stops::new(&["end".to_owned(), "é.".to_owned()], Limits::default());
            assert!(!stops.push(text, &mut |_| {}));
            assert_eq!(stops.bytes(), [text.len(), wanted], "{text}");
        }
        // Of two that begin at the same offset, the longer one has arrived.
        let mut stops = Stops::new(&["a".to_owned(), "ab".to_owned()], Limits::default());
        assert!(stops.push("xab", &mut |_| {}));
        assert_eq!(stops.found(), Some("ab"));
    }

    #[test]
    fn a_line_that_is_indented_less_ends_the_answer_however_it_is_cut() {
        let text = "a\n  b\n\t  c\n d\n  e";
        for (indent, wanted) in [(0, text), (1, text), (2, "a\n  b\n\t  c\n "), (3, "a\n  ")] {
            for piece in 1..text.len() {
                let (mut lines, mut at) = (Lines { indent, ..Lines::default() }, 0);
                let mut pieces = text.as_bytes().chunks(piece).map(|piece| {
                    let end = lines.end(str::from_utf8(piece).unwrap());
                    at += end.unwrap_or(piece.len());
                    end
                });
                let ended = pieces.any(|end| end.is_some());
                assert_eq!((&text[..at], ended), (wanted, wanted != text), "{indent} {piece}");
            }
        }
        // So does an empty line.
        assert_eq!(Lines { indent: 1, ..Lines::default() }.end("a\n\n b"), Some(2));
    }
}
