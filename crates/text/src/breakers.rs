//! Texts that break sequences, as the tokens in which they come: a repetition counts only from the last of them on (the DRY sampler).

use crate::tokenizer::{EncodeOptions, Tokenizer};

/// Maximum number of tokens after the one in which a text begins.
const MAX_TAIL: usize = 20;

/// The tokens of texts that break sequences: in one token, with other text around them, or as the end of a token and the tokens after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceBreakers {
    /// Tokens that contain such a text, or end with its beginning, with the index of the tokens that then follow. Ascending.
    heads: Vec<(u32, u32)>,
    /// The first is empty.
    tails: Vec<Vec<u32>>,
}

impl Default for SequenceBreakers {
    /// No text breaks a sequence.
    fn default() -> SequenceBreakers {
        SequenceBreakers { heads: Vec::new(), tails: vec![Vec::new()] }
    }
}

impl SequenceBreakers {
    /// Finds the tokens of `texts`. The time is that of a search for each text in all tokens; empty texts are ignored.
    pub fn new(tokenizer: &Tokenizer, texts: &[impl AsRef<str>]) -> SequenceBreakers {
        let mut breakers = SequenceBreakers::default();
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).filter(|t| !t.is_empty()).collect();
        if texts.is_empty() {
            return breakers;
        }
        // For each text, the tail after each of its bytes, once it is known.
        let mut rests: Vec<Vec<Option<Rest>>> =
            texts.iter().map(|text| vec![None; text.len()]).collect();
        let mut token = Vec::new();
        for id in 0..tokenizer.vocab_size() as u32 {
            token.clear();
            tokenizer.decode_special(id, &mut token);
            for (text, rests) in texts.iter().zip(&mut rests) {
                if contains(&token, text.as_bytes()) {
                    breakers.heads.push((id, 0));
                    continue;
                }
                for (cut, rest) in rests.iter_mut().enumerate().skip(1).take(token.len()) {
                    if !token.ends_with(&text.as_bytes()[..cut]) {
                        continue;
                    }
                    let rest =
                        rest.get_or_insert_with(|| breakers.tail(rest_of(tokenizer, text, cut)));
                    breakers.heads.extend(rest.map(|tail| (id, tail)));
                }
            }
        }
        breakers.heads.sort_unstable();
        breakers.heads.dedup();
        breakers
    }

    /// Returns the index of a tail, which is added if it is new.
    fn tail(&mut self, mut tail: Vec<u32>) -> Rest {
        tail.truncate(MAX_TAIL);
        if tail.is_empty() {
            return None;
        }
        let known = self.tails.iter().position(|other| *other == tail);
        Some(known.unwrap_or_else(|| {
            self.tails.push(tail);
            self.tails.len() - 1
        }) as u32)
    }

    /// Returns the tails after this token.
    fn after(&self, id: u32) -> impl Iterator<Item = &[u32]> {
        let from = self.heads.partition_point(|head| head.0 < id);
        let heads = self.heads[from..].iter().take_while(move |head| head.0 == id);
        heads.map(|head| &*self.tails[head.1 as usize])
    }

    /// Returns true if the token alone breaks a sequence.
    pub fn has(&self, id: u32) -> bool {
        self.heads.binary_search(&(id, 0)).is_ok()
    }

    /// Returns the number of tokens after the last text that breaks the sequence of the last `n` tokens; `n` if there is none. `back` returns the
    /// tokens from the last one backwards.
    pub fn since(&self, n: usize, back: impl Fn(usize) -> u32) -> usize {
        if self.heads.is_empty() {
            return n;
        }
        let follows = |at: usize, tail: &[u32]| {
            tail.len() <= at && tail.iter().enumerate().all(|(i, id)| *id == back(at - 1 - i))
        };
        // Of several texts that begin in one token, the longest counts.
        let longest = |at: usize| {
            let tails = self.after(back(at)).filter(|tail| follows(at, tail));
            tails.map(<[u32]>::len).max().map(|length| at - length)
        };
        (0..n).find_map(longest).unwrap_or(n)
    }
}

/// The index of the tokens of the rest of a text; `None` if it has no tokens.
type Rest = Option<u32>;

/// Returns the tokens of `text` from the byte `cut` on; none if there are no such tokens.
fn rest_of(tokenizer: &Tokenizer, text: &str, cut: usize) -> Vec<u32> {
    let options = EncodeOptions { add_bos: Some(false), parse_special: false };
    if let Some(rest) = text.get(cut..) {
        return tokenizer.encode(rest, options).unwrap_or_default();
    }
    // Within a character: the tokens of the text itself may be cut there.
    let mut ids = tokenizer.encode(text, options).unwrap_or_default();
    let mut bytes = Vec::new();
    let first = ids.iter().position(|id| {
        let is_cut = bytes.len() == cut;
        tokenizer.decode_special(*id, &mut bytes);
        is_cut
    });
    ids.split_off(first.unwrap_or(ids.len()))
}

fn contains(token: &[u8], text: &[u8]) -> bool {
    match text {
        [byte] => token.contains(byte),
        text => token.windows(text.len()).any(|part| part == text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alight_formats::gguf::{self, write::Builder};

    /// A SentencePiece vocabulary of these tokens and of all bytes, which come after them.
    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        let mut all: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
        all.extend(tokens.iter().map(|token| (*token).to_owned()));
        all.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let mut types: Vec<i32> = vec![2, 3, 3];
        types.extend(tokens.iter().map(|_| 1));
        types.extend([6; 256]);
        let mut metadata = Builder::new();
        metadata.str("tokenizer.ggml.model", "llama");
        metadata.strs("tokenizer.ggml.tokens", &all);
        metadata.f32s("tokenizer.ggml.scores", &vec![0.0; all.len()]);
        metadata.i32s("tokenizer.ggml.token_type", &types);
        metadata.bool("tokenizer.ggml.add_space_prefix", false);
        Tokenizer::from_gguf(&gguf::parse(&metadata.header()).unwrap()).unwrap()
    }

    const TOKENS: [&str; 5] = ["a:", "ab", "b", "xa", "c"];

    fn since(breakers: &SequenceBreakers, ids: &[u32]) -> usize {
        breakers.since(ids.len(), |i| ids[ids.len() - 1 - i])
    }

    #[test]
    fn a_text_may_be_part_of_a_token() {
        let tokenizer = tokenizer(&TOKENS);
        let breakers = SequenceBreakers::new(&tokenizer, &[":", ""]);
        let colon = 3 + TOKENS.len() as u32 + u32::from(b':');
        let alone: Vec<u32> =
            (0..tokenizer.vocab_size() as u32).filter(|id| breakers.has(*id)).collect();
        assert_eq!(alone, [3, colon]);
        assert_eq!(since(&breakers, &[4, 5, 6]), 3);
        assert_eq!(since(&breakers, &[3, colon, 5, 6]), 2);
        assert_eq!(since(&breakers, &[5, 3]), 0);
        assert_eq!(since(&breakers, &[]), 0);
        // Control tokens by their spelling, as in llama.cpp.
        let breakers = SequenceBreakers::new(&tokenizer, &["</s>"]);
        assert_eq!(since(&breakers, &[5, 2, 5, 5, 5]), 3);
    }

    #[test]
    fn a_text_may_begin_in_a_token_and_end_in_others() {
        let tokenizer = tokenizer(&TOKENS);
        // "xa" and "b" are "abc" after an "x"; so are "ab" and "c" without it.
        let breakers = SequenceBreakers::new(&tokenizer, &["abc"]);
        assert!((0..tokenizer.vocab_size() as u32).all(|id| !breakers.has(id)));
        assert_eq!(since(&breakers, &[4, 7, 3, 3]), 2, "ab, c");
        assert_eq!(since(&breakers, &[4, 3, 7]), 3, "ab, a:, c");
        assert_eq!(since(&breakers, &[3, 3, 4]), 3, "it is not whole");
        let rest = tokenizer.encode("bc", EncodeOptions::default()).unwrap();
        let rest: Vec<u32> = rest.into_iter().filter(|id| *id != 1).collect();
        assert_eq!(rest.len(), 2);
        assert_eq!(since(&breakers, &[6, rest[0], rest[1], 3]), 1, "xa, b, c");
        // The longer of two that begin in one token.
        let breakers = SequenceBreakers::new(&tokenizer, &["ab", "abc"]);
        assert_eq!(since(&breakers, &[3, 4, 7]), 0);
        assert_eq!(since(&breakers, &[3, 4, 5]), 1);
    }

    #[test]
    fn a_text_may_be_cut_within_a_character() {
        let tokenizer = tokenizer(&TOKENS);
        let breakers = SequenceBreakers::new(&tokenizer, &["…"]);
        let ids = tokenizer.encode("b…b", EncodeOptions::default()).unwrap();
        assert!(ids.len() >= 5, "{ids:?}");
        assert_eq!(since(&breakers, &ids), 1);
        assert_eq!(since(&breakers, &ids[..ids.len() - 2]), ids.len() - 2, "without its end");
    }

    #[test]
    fn no_text_breaks_nothing() {
        let breakers = SequenceBreakers::new(&tokenizer(&TOKENS), &[""; 2]);
        assert_eq!(breakers, SequenceBreakers::default());
        assert_eq!(since(&breakers, &[1, 2, 3]), 3);
    }
}
