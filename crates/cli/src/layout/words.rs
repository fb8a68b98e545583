//! Wraps the words of an answer at the width of a terminal.
//!
//! A word is shown as it arrives. If it reaches the edge, it is removed there and moved to the next line, so that the terminal
//! never breaks it.

use unicode_width::UnicodeWidthChar;

/// The cursor's column on a terminal, and the last word written.
#[derive(Debug)]
pub struct Wrap {
    /// Number of columns that are written to.
    width: usize,
    /// Number of columns written in this line; `word_width` of them belong to the last word.
    column: usize,
    word: String,
    word_width: usize,
}

impl Wrap {
    /// Starts at the beginning of a line of a terminal of which this number of columns is written to.
    pub fn new(columns: usize) -> Wrap {
        Wrap { width: columns, column: 0, word: String::new(), word_width: 0 }
    }

    /// Writes to this number of columns from now on. If it has changed, the terminal may have moved what is there already, which is left
    /// as it is.
    pub fn resize(&mut self, columns: usize) {
        if columns != self.width {
            (self.width, self.column) = (columns, self.column % columns);
            (self.word_width, self.word) = (0, String::new());
        }
    }

    /// Appends the output for the next piece of the text to `out`. It contains no control characters other than line breaks and
    /// tabs.
    pub fn push(&mut self, piece: &str, out: &mut String) {
        for c in piece.chars() {
            match c {
                '\n' => {
                    out.push('\n');
                    (self.column, self.word_width) = (0, 0);
                    self.word.clear();
                }
                ' ' | '\t' => self.blank(c, out),
                c => self.letter(c, out),
            }
        }
    }

    fn blank(&mut self, c: char, out: &mut String) {
        self.word.clear();
        self.word_width = 0;
        let next = if c == '\t' { (self.column / 8 + 1) * 8 } else { self.column + 1 };
        // At the edge it would only produce an empty line.
        if next < self.width {
            out.push(c);
            self.column = next;
        } else {
            self.column = self.width;
        }
    }

    fn letter(&mut self, c: char, out: &mut String) {
        let wide = c.width().unwrap_or(0);
        if self.column + wide > self.width {
            let whole = self.word_width == self.column.min(self.width);
            if !whole && self.word_width > 0 {
                // Moves the cursor back, and clears the rest of the line.
                out.push_str(&format!("\x1b[{}D\x1b[K", self.word_width));
            }
            out.push('\n');
            self.column = 0;
            if whole {
                // A word longer than a line has to be broken.
                self.word.clear();
                self.word_width = 0;
            } else {
                out.push_str(&self.word);
                self.column = self.word_width;
            }
        }
        out.push(c);
        self.column += wide;
        // Wide characters do not form words: a line may be broken between any of them.
        if wide > 1 {
            self.word.clear();
            self.word_width = 0;
        } else {
            self.word.push(c);
            self.word_width += wide;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that a terminal of this width shows for the pieces.
    fn shown(width: usize, pieces: &[&str]) -> Vec<String> {
        let (mut wrap, mut out) = (Wrap::new(width), String::new());
        pieces.iter().for_each(|piece| wrap.push(piece, &mut out));
        let mut lines = vec![String::new()];
        let mut rest = out.as_str();
        while let Some(c) = rest.chars().next() {
            let last = lines.last_mut().unwrap();
            if let Some(back) = rest.strip_prefix("\x1b[") {
                let (count, after) = back.split_once('D').unwrap();
                let kept = last.chars().count() - count.parse::<usize>().unwrap();
                *last = last.chars().take(kept).collect();
                rest = after.strip_prefix("\x1b[K").unwrap();
                continue;
            }
            rest = &rest[c.len_utf8()..];
            if c == '\n' { lines.push(String::new()) } else { last.push(c) }
        }
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
        lines
    }

    #[test]
    fn another_width_counts_from_the_next_piece_on() {
        let (mut wrap, mut out) = (Wrap::new(20), String::new());
        wrap.push("one two thr", &mut out);
        wrap.resize(20);
        wrap.push("ee", &mut out);
        // The cursor is in the fourth column of the second line, if the terminal has moved the end of the line there.
        wrap.resize(9);
        wrap.push(" four five", &mut out);
        assert_eq!(
            out,
            "one two three four\nfive".replace("four\n", "four \u{8}").replace(" \u{8}", "\n")
        );
    }

    #[test]
    fn words_are_not_broken_and_lines_of_the_text_stay() {
        assert_eq!(shown(8, &["one two", " three"]), ["one two", "three"]);
        assert_eq!(shown(8, &["one t", "wo", "3456 x"]), ["one ", "two3456", "x"]);
        assert_eq!(shown(8, &["a\n\nb"]), ["a", "", "b"]);
        assert_eq!(shown(4, &["abcdefghij"]), ["abcd", "efgh", "ij"]);
        assert_eq!(shown(4, &["abcd efgh"]), ["abcd", "efgh"]);
        assert_eq!(shown(6, &["ab cdefghij"]), ["ab ", "cdefgh", "ij"]);
    }
}
