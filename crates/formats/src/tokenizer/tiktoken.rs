//! tiktoken's rank files, the format of Meta's `tokenizer.model` for Llama 3: a line for each token, with its
//! bytes in base64, a space, and its rank, which is also its id.
//!
//! Such a file holds neither merges nor special tokens. Every split of a token into two others is a merge:
//! tiktoken joins the neighbours whose joint bytes are the token of lowest rank. Merges are ordered as in
//! Hugging Face's conversion (`TikTokenConverter`), so that they equal those of the published `tokenizer.json`.
//! The special tokens are from `llama3/tokenizer.py` of Meta's package `llama-models`.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::alphabet;
use super::vocabulary::{Model, Special, Token, TokenType, Vocabulary};
use super::{MAX_FILE, TokenizerError as E, count_cuts};

/// The tokens of a file by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// The end of each token in them.
    ends: Vec<u32>,
}

/// Number of ranks in Llama 3's file.
pub const LLAMA3: usize = 128_000;

/// The special tokens of Llama 3 after the ranks; the rest of 256 is reserved.
const LLAMA3_SPECIAL: [&str; 12] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];

/// Reads a file of ranks.
///
/// # Errors
/// A line is not of that form, the ranks do not count up from 0, a token is duplicated, a byte is missing, or
/// tokens are longer than any model's.
pub fn parse(file: &[u8]) -> Result<Ranks, E> {
    if file.len() > MAX_FILE {
        return Err(E::TooLong { len: file.len() });
    }
    let mut ranks = Ranks { bytes: Vec::new(), ends: Vec::new() };
    let mut cuts = 0;
    for (line, text) in (1..).zip(file.split(|byte| *byte == b'\n')) {
        let wrong = |problem| Err(E::Line { line, problem });
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let Some(space) = text.iter().position(|byte| *byte == b' ') else {
            return wrong("expected a token in base64, a space, and its rank");
        };
        let (token, rank) = (&text[..space], &text[space + 1..]);
        let before = ranks.bytes.len();
        if STANDARD.decode_vec(token, &mut ranks.bytes).is_err() {
            return wrong("the token is not base64");
        }
        if ranks.bytes.len() == before {
            return wrong("the token has no bytes");
        }
        // The merges try every split.
        count_cuts(&mut cuts, ranks.bytes.len() - before)?;
        let expected = ranks.ends.len() as u64;
        let digits = std::str::from_utf8(rank).ok().filter(|rank| !rank.starts_with('+'));
        match digits.map(str::parse::<u64>) {
            Some(Ok(found)) if found == expected => {}
            Some(Ok(found)) => return Err(E::Rank { line, found, expected }),
            _ => return wrong("the rank is not a whole number"),
        }
        // The decoded bytes are fewer than the file's.
        ranks.ends.push(ranks.bytes.len() as u32);
    }
    if ranks.ends.is_empty() {
        return Err(E::Empty);
    }
    let ids = ranks.ids()?;
    match (0..=255).find(|byte| !ids.contains_key([*byte].as_slice())) {
        Some(byte) => Err(E::MissingByte { byte }),
        None => Ok(ranks),
    }
}

impl Ranks {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of all tokens by rank.
    pub fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |&end| {
            let token = &self.bytes[from..end as usize];
            from = end as usize;
            token
        })
    }

    fn ids(&self) -> Result<HashMap<&[u8], u32>, E> {
        let mut ids = HashMap::with_capacity(self.len());
        for (id, token) in (0_u32..).zip(self.tokens()) {
            if let Some(first) = ids.insert(token, id) {
                let text = alphabet::spell(token).into();
                return Err(E::DuplicateToken { first: first.into(), second: id.into(), text });
            }
        }
        Ok(ids)
    }

    /// `left right` by rank, see the module documentation.
    pub fn merges(&self) -> Vec<String> {
        // They are unique, or there would be no `Ranks`.
        let ids = self.ids().unwrap_or_default();
        let mut merges = Vec::new();
        let mut ways = Vec::new();
        for token in self.tokens() {
            ways.clear();
            for cut in 1..token.len() {
                let (left, right) = token.split_at(cut);
                if let (Some(l), Some(r)) = (ids.get(left), ids.get(right)) {
                    ways.push((*l, *r, cut));
                }
            }
            ways.sort_unstable();
            for (_, _, cut) in &ways {
                let (left, right) = token.split_at(*cut);
                merges.push(format!("{} {}", alphabet::spell(left), alphabet::spell(right)));
            }
        }
        merges
    }

    /// The vocabulary of Llama 3, with its special tokens.
    ///
    /// # Errors
    /// The file has another number of ranks than Llama 3's.
    pub fn llama3(&self) -> Result<Vocabulary<'static>, E> {
        if self.len() != LLAMA3 {
            return Err(E::NotLlama3 { found: self.len(), expected: LLAMA3 });
        }
        let token = |id: u32, text: Cow<'static, str>, ty| Token { id, text, score: 0.0, ty };
        let mut tokens: Vec<_> = (0..)
            .zip(self.tokens())
            .map(|(id, bytes)| token(id, alphabet::spell(bytes).into(), TokenType::Normal))
            .collect();
        let reserved = (2..246).map(|n| format!("<|reserved_special_token_{n}|>").into());
        let special = LLAMA3_SPECIAL.into_iter().map(Cow::Borrowed).chain(reserved);
        let first = LLAMA3 as u32;
        tokens.extend((first..).zip(special).map(|(id, text)| token(id, text, TokenType::Control)));
        Ok(Vocabulary {
            model: Model::ByteLevel,
            pre: "llama-bpe",
            tokens,
            merges: self.merges().into_iter().map(Cow::Owned).collect(),
            special: Special {
                bos: Some(first),
                eos: Some(first + 1),
                padding: Some(first + 4),
                eom: Some(first + 8),
                eot: Some(first + 9),
                unknown: None,
            },
            add_bos: Some(true),
            add_eos: Some(false),
            add_space_prefix: false,
            remove_extra_whitespaces: false,
            charsmap: Cow::Borrowed(&[]),
            word_piece: None,
            notes: Vec::new(),
        })
    }
}
