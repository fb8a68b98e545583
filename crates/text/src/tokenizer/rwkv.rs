//! The tokenizer of RWKV: at each place of a text, the longest token that the text continues with. Its tokens are bytes, which files have as Python writes them
//! (`repr` of `bytes`, without the quotation marks).
//!
//! Invariant: a token is at most as long as the longest of the vocabulary, so a byte of text costs at most that many look-ups.

use super::stop::StopCheck;
use super::vocab::Lookup;

/// Maximum number of bytes of a token that is looked for.
const MAX_BYTES: usize = 256;

/// The spellings of the beginnings of a text.
#[derive(Default)]
pub(crate) struct Spellings {
    /// As Python writes it where there are not both quotation marks, and where there are, which escapes the single ones.
    plain: Vec<u8>,
    both: Vec<u8>,
    /// For each beginning, by its number of bytes less one, the lengths of the two, and whether it has both quotation marks.
    ends: Vec<([usize; 2], bool)>,
}

impl Spellings {
    /// Spells the beginnings of `text` of up to `most` bytes.
    fn spell(&mut self, text: &[u8], most: usize) {
        self.plain.clear();
        self.both.clear();
        self.ends.clear();
        let (mut single, mut double) = (false, false);
        for &byte in text.iter().take(most) {
            (single, double) = (single || byte == b'\'', double || byte == b'"');
            push_escaped(byte, &mut self.plain);
            if byte == b'\'' {
                self.both.push(b'\\');
            }
            push_escaped(byte, &mut self.both);
            self.ends.push(([self.plain.len(), self.both.len()], single && double));
        }
    }

    /// Returns the spelling of the first `len` bytes.
    fn of(&self, len: usize) -> &[u8] {
        let ([plain, both], quoted) = self.ends[len - 1];
        if quoted { &self.both[..both] } else { &self.plain[..plain] }
    }
}

/// Appends the spelling of a byte.
fn push_escaped(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'\t' => out.extend(b"\\t"),
        b'\n' => out.extend(b"\\n"),
        b'\r' => out.extend(b"\\r"),
        b'\\' => out.extend(b"\\\\"),
        b' '..=b'~' => out.push(byte),
        _ => out.extend(format!("\\x{byte:02x}").bytes()),
    }
}

/// Appends the bytes that `spelling` stands for.
pub(crate) fn push_unescaped(spelling: &[u8], out: &mut Vec<u8>) {
    let mut rest = spelling;
    while let Some((&first, after)) = rest.split_first() {
        let digit = |i: usize| after.get(i).and_then(|digit| char::from(*digit).to_digit(16));
        let (byte, used) = match (first, after.first()) {
            (b'\\', Some(b't')) => (b'\t', 1),
            (b'\\', Some(b'n')) => (b'\n', 1),
            (b'\\', Some(b'r')) => (b'\r', 1),
            (b'\\', Some(b'x')) => match (digit(1), digit(2)) {
                (Some(high), Some(low)) => ((16 * high + low) as u8, 3),
                _ => (first, 0),
            },
            (b'\\', Some(other)) => (*other, 1),
            _ => (first, 0),
        };
        out.push(byte);
        rest = &after[used..];
    }
}

/// Calls `each` with everything that may be looked up for `text`.
pub(crate) fn spellings(text: &str, mut each: impl FnMut(&[u8])) {
    let mut all = Spellings::default();
    all.spell(text.as_bytes(), text.len());
    each(&all.plain);
    each(&all.both);
}

/// Appends the tokens of `text`. A byte that begins no token becomes `unknown`.
pub(crate) fn encode(
    text: &str,
    vocab: Lookup<'_>,
    unknown: Option<u32>,
    spellings: &mut Spellings,
    check: &mut StopCheck,
    out: &mut Vec<u32>,
) {
    let most = vocab.vocab.texts().longest().min(MAX_BYTES);
    let mut rest = text.as_bytes();
    while !rest.is_empty() && !check.stopped() {
        spellings.spell(rest, most);
        let longest = spellings.ends.len();
        let found = (1..=longest).rev().find_map(|len| {
            if check.step() {
                return None;
            }
            Some((len, vocab.plain_id(spellings.of(len))?))
        });
        match found {
            Some((len, id)) => {
                out.push(id);
                rest = &rest[len..];
            }
            None => {
                out.extend(unknown);
                rest = &rest[1..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_are_those_of_python() {
        let mut all = Spellings::default();
        let text = "a\n'\"\\é\x7f".as_bytes();
        all.spell(text, 99);
        let spelled = |len| String::from_utf8_lossy(all.of(len)).into_owned();
        assert_eq!([1, 2, 3].map(spelled), ["a", "a\\n", "a\\n'"]);
        assert_eq!(spelled(4), "a\\n\\'\"");
        assert_eq!(spelled(text.len()), "a\\n\\'\"\\\\\\xc3\\xa9\\x7f");
        for len in 1..=text.len() {
            let mut bytes = Vec::new();
            push_unescaped(all.of(len), &mut bytes);
            assert_eq!(bytes, text[..len]);
        }
        let mut odd = Vec::new();
        push_unescaped(b"\\xg\\", &mut odd);
        assert_eq!(odd, b"\\xg\\");
    }
}
