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

/// Breaks a line. Its text continues below where it begins; if that is too far to the right, it begins in the line below its labels.
fn broken(line: &str, columns: usize) -> String {
    let blanks = line.len() - line.trim_start().len();
    let start = text_start(line, columns);
    let (labels, text) = line.split_at(start);
    match width(labels) {
        at if at <= columns / 2 => filled(text, columns, labels, &" ".repeat(at)),
        _ if start == blanks => filled(text, columns, labels, "  "),
        _ => {
            let below = " ".repeat((blanks + 2).min(columns / 2));
            format!("{}\n{}", labels.trim_end(), filled(text, columns, &below, &below))
        }
    }
}

fn filled(text: &str, columns: usize, first: &str, others: &str) -> String {
    let options = Options::new(columns)
        .initial_indent(first)
        .subsequent_indent(others)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::fill(text, options)
}

/// Returns where the text of a line begins: after its labels, each of which two or more blanks end, as far as they fit into a line;
/// without a label, after the blanks at the beginning.
fn text_start(line: &str, columns: usize) -> usize {
    let mut start = line.len() - line.trim_start().len();
    while let Some(end) = line[start..].find("  ") {
        let text = line[start + end..].trim_start();
        if text.is_empty() || width(line[..start + end].trim_end()) > columns {
            break;
        }
        start = line.len() - text.len();
    }
    start
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
        assert_eq!(fit("a label  and text", Some(12)), "a label\n  and text");
        assert_eq!(fit("          a text", Some(12)), "          a\n  text");
    }

    #[test]
    fn the_text_after_several_labels_continues_below_itself() {
        let text = "top-k  40  Keep the K most likely";
        let below = "top-k  40  Keep the K\n           most likely";
        assert_eq!(fit(text, Some(22)), below);
        assert_eq!(fit(text, Some(20)), "top-k  40\n  Keep the K most\n  likely");
        // A label alone fits, and both do not.
        assert_eq!(
            fit("a label  another label  text", Some(12)),
            "a label\n  another\n  label\n  text"
        );
    }
}
