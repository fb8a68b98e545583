//! Lines of a report, such as `answer       24 tokens, …`, in which a line that is too long continues below its text.

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use super::width;

/// Returns the text with its lines broken between words so that they fit into `columns`. A word that is longer than a line stays whole,
/// so that a path can be copied.
pub fn fit(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        match width(line) <= columns {
            true => out.push_str(line),
            false => out.push_str(&broken(line, columns)),
        }
        out.push_str(end);
    }
    out
}

fn broken(line: &str, columns: usize) -> String {
    let indent = " ".repeat(hanging_indent(line, columns));
    let options = Options::new(columns)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(line, options)
}

/// Returns the column where the text of a line begins: after its label, which two or more blanks end, or after the blanks at its
/// beginning; two, if that is too far to the right.
fn hanging_indent(line: &str, columns: usize) -> usize {
    let begun = line.trim_start();
    let text = match begun.find("  ") {
        Some(end_of_label) => begun[end_of_label..].trim_start(),
        None => begun,
    };
    let at = width(&line[..line.len() - text.len()]);
    if at <= columns / 2 { at } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_continues_below_its_text() {
        let text = "prompt   9 tokens in 3 ms\n  one two three four\nshort\n";
        assert_eq!(fit(text, None), text);
        assert_eq!(fit(text, Some(80)), text);
        let shown = "prompt   9 tokens\n         in 3 ms\n  one two three\n  four\nshort\n";
        assert_eq!(fit(text, Some(18)), shown);
    }

    #[test]
    fn a_word_stays_whole_and_the_indent_leaves_half_of_the_width() {
        assert_eq!(fit("saved in /a/very/long/path", Some(10)), "saved in\n/a/very/long/path");
        assert_eq!(fit("a label  and text", Some(12)), "a label  and\n  text");
    }
}
