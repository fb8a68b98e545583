//! The test of a pre-tokeniser: is it the one that a vocabulary was made with?
//!
//! A merge was learnt within the parts that the pre-tokeniser cuts text into, so none of its results is cut by the same one. Under the
//! name of another pre-tokeniser the text is cut where the model has learnt tokens: answers stay fluent, and become worse and longer.

use super::pre::Pre;
use super::texts::StringArray;
use super::{Algorithm, Tokenizer, alphabet};

/// The number of merges that are tried, evenly spread.
const SAMPLE: usize = 512;
/// The share of them, in percent, from which on the vocabulary is another pre-tokeniser's. None of the vocabularies in llama.cpp's source
/// tree reaches that under its own name. Under names that cost many tokens, those of Llama 3 and Qwen have about 20 %.
const MAX_CUT: usize = 2;
/// The smallest number of merges of which a share says anything: real vocabularies have thousands.
const MIN_SAMPLE: usize = 400;

/// A pre-tokeniser that does not fit the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "metadata \"tokenizer.ggml.pre\" is \"{}\", which does not fit the vocabulary: it cuts {cut} of {of} tokens that were tried, so \
     texts become more tokens than the model was trained with", name.escape_debug()
)]
pub struct PreMisfit {
    /// The name in the file; `default`, if it has none.
    pub name: String,
    /// The tokens that no text can become, because it cuts them.
    pub cut: usize,
    /// The tokens that were tried.
    pub of: usize,
}

impl Tokenizer {
    /// How many tokens the pre-tokeniser cuts, out of how many that were tried; `None`: there is none, or it cuts lines alone.
    pub fn cut_tokens(&self) -> Option<(usize, usize)> {
        match &self.algorithm {
            Algorithm::Bpe { merges, pre, .. } if !pre.raw_bytes => Some(cut_of(*pre, merges)),
            _ => None,
        }
    }

    /// Looks at some of the vocabulary for tokens that the pre-tokeniser cuts. `None`: it fits, or there is none.
    pub fn misfit(&self) -> Option<PreMisfit> {
        let Algorithm::Bpe { name, .. } = &self.algorithm else { return None };
        let (cut, of) = self.cut_tokens()?;
        let fits = of < MIN_SAMPLE || cut * 100 <= of * MAX_CUT;
        (!fits).then(|| PreMisfit { name: name.to_string(), cut, of })
    }
}

/// How many results of merges `pre` cuts, out of how many that were tried.
fn cut_of(pre: Pre, merges: &StringArray) -> (usize, usize) {
    let (mut cut, mut of, mut bytes) = (0, 0, Vec::new());
    let count = merges.len();
    for number in 0..count.min(SAMPLE) {
        let number = (number * count / count.min(SAMPLE)) as u32;
        let Some(merge) = merges.get(number) else { continue };
        bytes.clear();
        merge.split(|byte| *byte == b' ').for_each(|side| alphabet::push_decoded(side, &mut bytes));
        // Parts of characters are never cut from one another.
        let Ok(text) = str::from_utf8(&bytes) else { continue };
        let mut parts = 0;
        pre.split(text, |_| parts += 1);
        of += 1;
        cut += usize::from(parts > 1);
    }
    (cut, of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges of words with a space before them, and of these more.
    fn merges(more: &[&str]) -> StringArray {
        let words = (0..600).map(|i: u32| {
            let letter = |n: u32| char::from(b'a' + (i / 26u32.pow(n) % 26) as u8);
            format!("Ġ{} {}{}", letter(0), letter(1), letter(2))
        });
        let more = more.iter().map(|merge| (*merge).to_owned()).cycle();
        let all: Vec<String> = words.zip(more).flat_map(|(word, more)| [word, more]).collect();
        StringArray::of(&all)
    }

    fn cut(name: &str, merges: &StringArray) -> usize {
        let (cut, of) = cut_of(Pre::by_name(name).unwrap(), merges);
        assert_eq!(of, SAMPLE);
        cut
    }

    #[test]
    fn tokens_that_another_pretokeniser_cuts_are_counted() {
        let llama3 = merges(&["( ab", ". cd", "12 3", "Ċ ĊĊ", "' ll"]);
        assert_eq!(cut("llama-bpe", &llama3), 0);
        assert!(cut("gpt-2", &llama3) > 50, "{}", cut("gpt-2", &llama3));
        assert!(cut("qwen2", &llama3) > 25, "it takes digits one by one");
        let gpt2 = merges(&["Ġ ab", "12 34", "Ġ( [", "' ll"]);
        assert_eq!(cut("gpt-2", &gpt2), 0);
        assert!(cut("llama-bpe", &gpt2) > 25, "it takes three digits at most");
    }
}
