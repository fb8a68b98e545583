//! The newest part of a conversation that fits into the context.
//!
//! Rendering and tokenizing a conversation takes time and memory in proportion to its text, and a conversation that was loaded may
//! be a thousand times longer than the context. So what cannot fit is left out by its bytes, and of the rest the number of exchanges
//! that fit is found with some `2·log2(n)` renderings, none of them of much more than twice the text that fits.

use alight_text::prompt::TooLong;
use alight_text::{Encoder, Message, PromptError, Style};
use anyhow::{anyhow, bail};

/// Bytes of text that one token usually represents. This is only where the search begins.
const USUAL_BYTES: usize = 4;
/// Bytes that a template usually writes around the two messages of an exchange. As above.
const USUAL_MARKS: usize = 64;
/// The end of thinking within a message: most templates leave out what precedes it in an answer.
const END_OF_THINKING: &str = "</think>";

/// The positions of a context.
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    /// All of them.
    pub context: usize,
    /// The most that the context may have, for a message that does not fit alone.
    pub max_context: usize,
    /// Those that are left for the answer while there is an exchange to drop instead.
    pub answer: usize,
}

/// The tokens of a conversation that fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Fit {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The number of exchanges that they are of: the newest ones.
    pub kept: usize,
}

/// The number of newest exchanges of a conversation that may fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// More of them cannot fit.
    pub max: usize,
    /// This number probably fits.
    pub usual: usize,
}

impl Bounds {
    /// Finds the bounds by bytes, without rendering anything. `fixed`: the bytes of text that is never dropped; `exchanges`: those
    /// of each exchange that a template writes at least, and those of all its texts, the newest first; `check(bytes, context)` refuses a
    /// number of bytes that has more tokens than a context.
    ///
    /// # Errors
    /// The text that is never dropped cannot fit.
    pub fn of(
        fixed: usize,
        exchanges: impl Iterator<Item = (usize, usize)>,
        Positions { context, max_context, .. }: Positions,
        check: impl Fn(usize, usize) -> Result<(), TooLong>,
    ) -> Result<Bounds, TooLong> {
        check(fixed, max_context)?;
        let mut bounds = Bounds { max: 0, usual: 0 };
        let (mut bytes, mut all_bytes) = (fixed, fixed);
        // Each exchange has a token at least.
        for (written, all) in exchanges.take(context) {
            bytes += written;
            all_bytes += all;
            if check(bytes, context).is_err() {
                break;
            }
            bounds.max += 1;
            if all_bytes + USUAL_MARKS * bounds.max <= USUAL_BYTES * context {
                bounds.usual = bounds.max;
            }
        }
        Ok(bounds)
    }
}

/// Returns the bytes of a message that a template writes at least: templates trim texts, and leave out thinking.
pub fn written_bytes(message: &Message) -> usize {
    let content = match message.role.as_str() {
        "assistant" => message.content.rsplit(END_OF_THINKING).next().unwrap_or_default(),
        _ => &message.content,
    };
    content.trim().len()
}

/// Returns the bytes of all texts of a message.
pub fn all_bytes(message: &Message) -> usize {
    message.content.len() + message.thinking.as_ref().map_or(0, String::len)
}

/// Finds the largest number of newest exchanges that fit, and returns their tokens. `encode` returns the tokens with a given number
/// of them, or refuses a text that has more than the context may hold whatever they are, before it looks for them: what a template
/// writes besides the contents of messages, such as thinking, is known only then.
///
/// The number is that of dropping exchanges one by one, because fewer exchanges never have more tokens: a template writes each
/// exchange in its place, the oldest of them right after the text that is never dropped, so one exchange less is the same text with
/// a piece cut out. The two ends that meet at the cut may be tokenized differently by a token or two, and the piece has at least its
/// two messages' marks. (And without any exchange the answer gets fewer positions, so more tokens fit.) Should a template behave
/// differently, the result still fits, and one exchange more still does not, or was excluded by its bytes.
///
/// The tokens without any exchange may have more positions than the context, up to the most that it may have.
///
/// # Errors
/// Those of `encode`; the conversation does not fit without any exchange, either.
pub fn newest(
    bounds: Bounds,
    positions: Positions,
    mut encode: impl FnMut(usize) -> anyhow::Result<Result<Vec<u32>, TooLong>>,
) -> anyhow::Result<Fit> {
    let Positions { context, max_context, answer } = positions;
    // Fewer exchanges than `low` fit, and `high` or more do not.
    let (mut low, mut high) = (0, bounds.max + 1);
    let (mut best, mut shortest) = (None, Vec::new());
    let mut kept = bounds.usual.min(bounds.max);
    while low < high {
        // If nothing is left to drop, the prompt may use the whole context, less one token for the answer.
        let answer = if kept == 0 { 1 } else { answer };
        match encode(kept)? {
            Ok(tokens) if tokens.len() + answer <= context => {
                best = Some(Fit { tokens, kept });
                low = kept + 1;
            }
            Ok(tokens) => {
                shortest = tokens;
                high = kept;
            }
            Err(problem) if kept == 0 => bail!(problem),
            Err(_) => high = kept,
        }
        // While everything fits, twice as many; so nothing much longer than what fits is rendered.
        kept =
            if high > bounds.max { (2 * kept + 1).min(bounds.max) } else { low + (high - low) / 2 };
    }
    let (shortest, tokens) = (shortest.len(), shortest);
    // (If nothing fits, the last attempt was without any exchange.)
    let alone = (shortest < max_context).then_some(Fit { tokens, kept: 0 });
    best.or(alone).ok_or_else(|| {
        anyhow!(
            "this message takes {shortest} tokens and the context holds {max_context}: shorten it, or \
             start again with a larger -c"
        )
    })
}

/// A conversation that ends with a message to be answered.
#[derive(Debug)]
pub struct Asked {
    /// The system message.
    pub system: Option<Message>,
    /// User and assistant in turn.
    pub turns: Vec<Message>,
    /// The message.
    pub line: Message,
}

impl Asked {
    /// Returns the tokens with this number of its newest exchanges, as [`newest`] takes them.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn tokens(
        &self,
        kept: usize,
        encoder: &Encoder<'_>,
    ) -> anyhow::Result<Result<Vec<u32>, TooLong>> {
        if encoder.style() == Style::Raw {
            return Ok(Ok(encoder.raw(&self.line.content)?));
        }
        let newest = &self.turns[self.turns.len() - 2 * kept..];
        let all = self.system.iter().chain(newest).chain([&self.line]);
        match encoder.chat(&all.cloned().collect::<Vec<_>>(), true) {
            Ok(tokens) => Ok(Ok(tokens)),
            Err(PromptError::TooLong(problem)) => Ok(Err(problem)),
            Err(problem) => bail!(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POSITIONS: Positions = Positions { context: 1000, max_context: 1000, answer: 100 };

    /// A check of bytes whose tokens have two bytes at most.
    fn check(bytes: usize, context: usize) -> Result<(), TooLong> {
        let longest = 2;
        let most = context * longest;
        if bytes <= most { Ok(()) } else { Err(TooLong { bytes, context, most, longest }) }
    }

    /// Fits the newest of exchanges that have these numbers of tokens, the newest first, each of one byte. Returns the fit and the
    /// number of tokens of each conversation that was rendered for it.
    fn fitted(fixed: usize, exchanges: &[usize]) -> (anyhow::Result<Fit>, Vec<usize>) {
        fitted_in(POSITIONS, fixed, exchanges)
    }

    fn fitted_in(
        positions: Positions,
        fixed: usize,
        exchanges: &[usize],
    ) -> (anyhow::Result<Fit>, Vec<usize>) {
        let mut rendered = Vec::new();
        let encode = |kept: usize| {
            let tokens = fixed + exchanges[..kept].iter().sum::<usize>();
            rendered.push(tokens);
            Ok(Ok(vec![7; tokens]))
        };
        let exchanges = exchanges.iter().map(|&bytes| (bytes, bytes));
        let bounds = Bounds::of(fixed, exchanges, positions, check);
        let fit =
            bounds.map_err(|e| anyhow!(e)).and_then(|bounds| newest(bounds, positions, encode));
        (fit, rendered)
    }

    /// The same, by dropping the oldest exchanges one by one.
    fn one_by_one(fixed: usize, exchanges: &[usize]) -> Option<(usize, usize)> {
        (0..=exchanges.len()).rev().find_map(|kept| {
            let tokens = fixed + exchanges[..kept].iter().sum::<usize>();
            let answer = if kept == 0 { 1 } else { POSITIONS.answer };
            (tokens + answer <= POSITIONS.context).then_some((tokens, kept))
        })
    }

    #[test]
    fn as_many_are_kept_as_by_dropping_one_by_one() {
        let mut state = 1_u32;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % limit
        };
        for round in 0..3000 {
            let (fixed, number, most) =
                (below(1050), below(60), [3, 30, 400, 1200][round % 4].max(2));
            let exchanges: Vec<usize> = (0..number).map(|_| 1 + below(most)).collect();
            let (fit, rendered) = fitted(fixed, &exchanges);
            let got = fit.ok().map(|fit| (fit.tokens.len(), fit.kept));
            assert_eq!(got, one_by_one(fixed, &exchanges), "{fixed} {exchanges:?}");
            assert!(rendered.len() <= 13, "{fixed} {exchanges:?}: {rendered:?}");
        }
    }

    #[test]
    fn little_more_is_rendered_than_fits_however_long_a_conversation_is() {
        for (each, kept) in [(1, 897), (8, 112), (890, 1)] {
            let (fit, rendered) = fitted(3, &vec![each; 1_000_000]);
            assert_eq!(fit.unwrap().kept, kept);
            assert!(rendered.len() <= 20 && rendered.iter().all(|n| *n <= 2000), "{rendered:?}");
        }
        // All of it, at once.
        let (fit, rendered) = fitted(3, &[2; 10]);
        assert_eq!((fit.unwrap().kept, rendered), (10, vec![23]));
    }

    #[test]
    fn without_an_exchange_the_context_is_all_used_and_beyond_it_is_an_error() {
        let (fit, _) = fitted(999, &[1; 5]);
        assert_eq!(fit.unwrap().kept, 0);
        let (fit, _) = fitted(1000, &[1; 5]);
        assert!(fit.unwrap_err().to_string().contains("takes 1000 tokens"));
        let (fit, rendered) = fitted(2001, &[1; 5]);
        assert!(fit.unwrap_err().to_string().contains("2001 bytes"));
        assert!(rendered.is_empty());
    }

    /// Texts beside the contents, each exchange's in bytes, the newest first: a template writes them, or leaves them out.
    #[test]
    fn texts_beside_the_contents_are_bounded_before_their_tokens_are_sought() {
        let fitted = |others: &[usize], writes: bool| {
            let mut rendered = Vec::new();
            let exchanges = others.iter().map(|other| (1, 1 + other));
            let bounds = Bounds::of(3, exchanges, POSITIONS, check).unwrap();
            let fit = newest(bounds, POSITIONS, |kept| {
                let other = if writes { others[..kept].iter().sum() } else { 0 };
                let bytes = 3 + kept + other;
                rendered.push(bytes);
                Ok(check(bytes, POSITIONS.max_context).map(|()| vec![7; bytes]))
            });
            (fit.unwrap().kept, rendered)
        };
        let long = [1_000_000; 1000];
        // The first that is written is refused, and no second one is.
        assert_eq!(fitted(&long, true), (0, vec![3, 1_000_004]));
        assert_eq!(fitted(&long, false).0, 897);
        let some = [[100; 3].as_slice(), &long].concat();
        let (kept, rendered) = fitted(&some, true);
        // Between what fits and twice as many exchanges, each half is refused before its tokens are sought.
        assert_eq!((kept, rendered.iter().filter(|bytes| **bytes > 2000).count()), (3, 3));
        // Nothing is left to drop.
        let bounds = Bounds { max: 0, usual: 0 };
        let problem = check(5000, 1000).unwrap_err();
        let error = newest(bounds, POSITIONS, |_| Ok(Err(problem))).unwrap_err();
        assert_eq!(error.to_string(), problem.to_string());
    }

    #[test]
    fn a_message_alone_may_have_more_than_the_context() {
        let positions = Positions { max_context: 4000, ..POSITIONS };
        let kept = |fixed| fitted_in(positions, fixed, &[1; 5]).0.map(|fit| fit.kept).ok();
        assert_eq!([900, 990, 1000, 3999].map(kept), [Some(0), Some(0), Some(0), Some(0)]);
        assert_eq!(kept(895), Some(5), "within the context");
        assert_eq!(kept(4000), None);
    }

    #[test]
    fn all_texts_of_a_message_are_counted_where_the_search_begins() {
        let thinking = Some("Hm.".to_owned());
        assert_eq!(all_bytes(&Message { thinking, ..Message::assistant(" Yes.\n") }), 9);
        assert_eq!(all_bytes(&Message::user("<think>a</think>b")), 17);
    }

    #[test]
    fn bytes_that_a_template_leaves_out_do_not_count() {
        for (message, bytes) in [
            (Message::user(" a </think> b "), 12),
            (Message::assistant("<think>Hm.</think>\n\nYes.\n"), 4),
            (Message::assistant(" \n"), 0),
            (Message::system("日"), 3),
        ] {
            assert_eq!(written_bytes(&message), bytes, "{message:?}");
        }
    }
}
