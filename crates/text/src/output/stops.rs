//! Texts that end an answer where the model writes them.

/// Looks for such texts in an answer that comes in pieces.
#[derive(Debug, Default)]
pub struct Stops {
    texts: Vec<String>,
    /// What has come and may be the beginning of one.
    held: String,
    found: bool,
}

impl Stops {
    /// Any of `texts` ends the answer; empty ones do not.
    pub fn new(texts: &[String]) -> Stops {
        let texts = texts.iter().filter(|text| !text.is_empty()).cloned().collect();
        Stops { texts, ..Stops::default() }
    }

    /// The next piece: hands on what is certainly before any of the texts.
    pub fn push(&mut self, piece: &str, each: &mut dyn FnMut(&str)) {
        if self.texts.is_empty() {
            return each(piece);
        }
        if self.found {
            return;
        }
        self.held.push_str(piece);
        let first = self.texts.iter().filter_map(|text| self.held.find(text.as_str())).min();
        self.found = first.is_some();
        let certain = first.unwrap_or_else(|| self.certain());
        each(&self.held[..certain]);
        self.held.drain(..certain);
    }

    /// The answer ends here, without one of them: hands on the rest.
    pub fn finish(&mut self, each: &mut dyn FnMut(&str)) {
        if !self.found && !self.held.is_empty() {
            each(&std::mem::take(&mut self.held));
        }
    }

    /// Whether one of them was found.
    pub fn found(&self) -> bool {
        self.found
    }

    /// Bytes at whose end nothing begins that may become one of them.
    fn certain(&self) -> usize {
        let begins = |at: &usize| self.texts.iter().any(|text| text.starts_with(&self.held[*at..]));
        let mut places = self.held.char_indices().map(|(at, _)| at);
        places.find(begins).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is handed on of these pieces, and whether a stop was found.
    fn all(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut stops =
            Stops::new(&stops.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let mut out = String::new();
        for piece in pieces {
            stops.push(piece, &mut |text| out.push_str(text));
        }
        stops.finish(&mut |text| out.push_str(text));
        (out, stops.found())
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
}
