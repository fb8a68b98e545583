//! The splitters: each cuts a piece of text into smaller ones, as one regular expression of a
//! tokenizer's definition does, written by hand over character classes.
//!
//! Every splitter yields the ends of its parts in order; the last end is the end of the piece, and
//! the parts are not empty and, joined, are the piece. The comment on each states the expression,
//! with leftmost, first-alternative matching; the text between two matches is a part of its own.
//! All run in one pass; the only backtracking is over a run already passed once.

use super::classes::{END, LETTER, MARK, NEWLINE, NUMBER, PUNCTUATION, Piece, SPACE, SYMBOL};

/// Collects the ends of parts, leaving out empty ones.
pub(crate) struct PartEnds<'a> {
    /// Where the piece begins in the text.
    base: usize,
    /// The end of the last part, from the beginning of the piece.
    last: usize,
    out: &'a mut Vec<u32>,
}

impl<'a> PartEnds<'a> {
    pub(crate) fn new(base: usize, out: &'a mut Vec<u32>) -> PartEnds<'a> {
        PartEnds { base, last: 0, out }
    }

    #[inline]
    fn cut(&mut self, at: usize) {
        if at > self.last {
            self.out.push((self.base + at) as u32);
            self.last = at;
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, in any ASCII case if `any_case`: the position after the match.
fn contraction(piece: Piece<'_>, at: usize, any_case: bool) -> Option<usize> {
    if piece.char(at) != '\'' {
        return None;
    }
    let letter = |at| {
        let c = piece.char(at);
        if any_case { c.to_ascii_lowercase() } else { c }
    };
    match (letter(at + 1), letter(at + 2)) {
        ('s' | 't' | 'm' | 'd', _) => Some(at + 2),
        ('r' | 'v', 'e') | ('l', 'l') => Some(at + 3),
        _ => None,
    }
}

/// The end of the longest part that leaves the last space before a word to the word.
fn white_space_in_powers(piece: Piece<'_>, at: usize) -> usize {
    let end = piece.skip(at, SPACE);
    let count = if end == piece.len() { end - at } else { (end - at - 1).max(1) };
    let longest = if count < 4 { count.min(2) } else { 1usize << count.ilog2().min(9) };
    at + longest
}

/// `\s+(?!\S)|\s+` at a position that holds white space: the position after the match. White space
/// before another character leaves its last character to that, unless it is the only one.
fn white_space(piece: Piece<'_>, at: usize) -> usize {
    let end = piece.skip(at, SPACE);
    if end - at > 1 && end < piece.len() { end - 1 } else { end }
}

/// `\s*[\r\n]+` at a position that holds white space: the position after the match, which is the
/// one after the last newline in the run of white space.
fn to_last_newline(piece: Piece<'_>, at: usize) -> Option<usize> {
    let end = piece.skip(at, SPACE);
    (at..end).rev().find(|&i| piece.is(i, NEWLINE)).map(|i| i + 1)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(crate) fn gpt2(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let mut at = 0;
    while at < piece.len() {
        if let Some(end) = contraction(piece, at, false) {
            at = end;
        } else {
            let from = at + usize::from(piece.char(at) == ' ');
            let class = piece.class(from);
            at = if class & (LETTER | NUMBER) != 0 {
                piece.skip(from, class & (LETTER | NUMBER))
            } else if class & (SPACE | END) == 0 {
                skip_others(piece, from)
            } else {
                white_space(piece, at)
            };
        }
        ends.cut(at);
    }
}

/// `[^\s\p{L}\p{N}]+` from a position that matches it.
fn skip_others(piece: Piece<'_>, mut at: usize) -> usize {
    while !piece.is(at, SPACE | LETTER | NUMBER | END) {
        at += 1;
    }
    at
}

/// The way words with capitals are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WordCase {
    /// Not at all: `\p{L}+`.
    Any,
    /// A word is capitals and then small letters, `U*L+|U+L*`, where U is a letter but not
    /// `a`–`z` and L a letter but not `A`–`Z`.
    Cut,
}

/// The differences between the members of the family that began with cl100k and llama 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Words {
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)` as the first alternative.
    pub(crate) contractions: bool,
    /// The same, optional at the end of a word.
    pub(crate) suffix: bool,
    /// Runs of letters: `[\p{L}\p{M}]` instead of `\p{L}`.
    pub(crate) marks: bool,
    /// Runs of letters also include U+200C and U+200D.
    pub(crate) joiners: bool,
    /// … and a space before a letter, and begin with a letter: `(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`.
    pub(crate) spaces: bool,
    /// Han characters form runs of their own, and do not count as letters.
    pub(crate) han: bool,
    /// The alternative of other characters does not match `\p{M}`.
    pub(crate) no_marks_in_others: bool,
    /// Determines whether capitals begin a word.
    pub(crate) case: WordCase,
    /// `\p{N}{1,digits}`; 0 is `\p{N}+`.
    pub(crate) digits: usize,
    /// The maximum number of newlines that the alternative of other characters matches after it.
    pub(crate) newlines_after: usize,
    /// Slashes count like these newlines.
    pub(crate) slashes_after: bool,
    /// White space is cut into parts of 512, 256, 128, … 4, 2 or 1 characters: `\s{512}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`.
    pub(crate) spaces_in_powers: bool,
}

/// The expression of llama 3: `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(crate) const LLAMA3: Words = Words {
    contractions: true,
    suffix: false,
    marks: false,
    joiners: false,
    spaces: false,
    han: false,
    no_marks_in_others: false,
    case: WordCase::Any,
    digits: 3,
    newlines_after: usize::MAX,
    slashes_after: false,
    spaces_in_powers: false,
};

/// A member of the family of [`LLAMA3`].
pub(crate) fn words(piece: Piece<'_>, rules: &Words, ends: &mut PartEnds<'_>) {
    let mut at = 0;
    while at < piece.len() {
        let contracted = if rules.contractions { contraction(piece, at, true) } else { None };
        let class = piece.class(at);
        if let Some(end) = contracted {
            at = end;
        } else if rules.han && is_han(piece.char(at)) {
            while is_han(piece.char(at)) {
                at += 1;
            }
        } else if let Some(end) = word(piece, at, rules) {
            at = end;
        } else if class & NUMBER != 0 {
            let end = piece.skip(at, NUMBER);
            if rules.digits > 0 {
                while end - at > rules.digits {
                    at += rules.digits;
                    ends.cut(at);
                }
            }
            at = end;
        } else if let Some(end) = others(piece, at, rules) {
            at = end;
        } else if class & SPACE != 0 {
            at = to_last_newline(piece, at).unwrap_or_else(|| {
                if rules.spaces_in_powers {
                    white_space_in_powers(piece, at)
                } else {
                    white_space(piece, at)
                }
            });
        } else {
            // A mark that no alternative matches.
            at += 1;
        }
        ends.cut(at);
    }
}

/// `[^\r\n\p{L}\p{N}]?` followed by the run of letters.
fn word(piece: Piece<'_>, at: usize, rules: &Words) -> Option<usize> {
    let class = piece.class(at);
    let bare = letters(piece, at, rules);
    if class & (NEWLINE | LETTER | NUMBER) != 0 {
        return bare.map(|run| run.end);
    }
    // The character before the word, if a word follows; otherwise it may itself be one (a mark or a joiner). If both are
    // possible, the alternative that comes first in the expression decides, and only then the character.
    match (letters(piece, at + 1, rules), bare) {
        (Some(Run { first: false, .. }), Some(Run { first: true, end })) => Some(end),
        (Some(run), _) | (None, Some(run)) => Some(run.end),
        (None, None) => None,
    }
}

/// A run of letters.
struct Run {
    end: usize,
    /// True if it matched the first alternative, where [`WordCase::Cut`] makes two of them.
    first: bool,
}

fn is_letter(piece: Piece<'_>, at: usize, rules: &Words) -> bool {
    let class = piece.class(at);
    if rules.han && is_han(piece.char(at)) {
        return false;
    }
    class & LETTER != 0
        || (rules.marks && class & MARK != 0)
        || (rules.joiners && matches!(piece.char(at), '\u{200c}' | '\u{200d}'))
}

fn letters(piece: Piece<'_>, at: usize, rules: &Words) -> Option<Run> {
    if !is_letter(piece, at, rules) || (rules.spaces && !piece.is(at, LETTER)) {
        return None;
    }
    let Run { end, first } = match rules.case {
        WordCase::Any => {
            let mut end = at + 1;
            loop {
                if is_letter(piece, end, rules) {
                    end += 1;
                } else if rules.spaces && piece.char(end) == ' ' && piece.is(end + 1, LETTER) {
                    end += 2;
                } else {
                    break Run { end, first: true };
                }
            }
        }
        WordCase::Cut => cased(piece, at, rules),
    };
    let end = if rules.suffix { contraction(piece, end, true).unwrap_or(end) } else { end };
    Some(Run { end, first })
}

/// `U*L+|U+L*` at a letter, see [`WordCase::Cut`].
fn cased(piece: Piece<'_>, at: usize, rules: &Words) -> Run {
    let upper = |i| is_letter(piece, i, rules) && !piece.char(i).is_ascii_lowercase();
    let lower = |i| is_letter(piece, i, rules) && !piece.char(i).is_ascii_uppercase();
    let mut capitals = at;
    while upper(capitals) {
        capitals += 1;
    }
    if lower(capitals) {
        let mut end = capitals;
        while lower(end) {
            end += 1;
        }
        return Run { end, first: true };
    }
    // U* matched every letter, so it backtracks until L+ has one: the last that is both.
    match (at..capitals).rev().find(|&i| lower(i)) {
        Some(last) => Run { end: last + 1, first: true },
        None => Run { end: capitals, first: false },
    }
}

/// ` ?[^\s\p{L}\p{N}]+` and its optional suffix.
fn others(piece: Piece<'_>, at: usize, rules: &Words) -> Option<usize> {
    let none = SPACE | LETTER | NUMBER | END | if rules.no_marks_in_others { MARK } else { 0 };
    let from = at + usize::from(piece.char(at) == ' ');
    let mut end = from;
    while !piece.is(end, none) {
        end += 1;
    }
    if end == from {
        return None;
    }
    let after = |at| piece.is(at, NEWLINE) || (rules.slashes_after && piece.char(at) == '/');
    let mut taken = 0;
    while taken < rules.newlines_after && after(end) {
        end += 1;
        taken += 1;
    }
    Some(end)
}

/// `\p{N}{1,max}` (0: `\p{N}+`) as parts of their own.
pub(crate) fn numbers(piece: Piece<'_>, max: usize, ends: &mut PartEnds<'_>) {
    runs(piece, max, |i| piece.is(i, NUMBER), ends);
}

/// `(?=(\d{3})+(?!\d))`: runs of ASCII digits cut into three from the right.
pub(crate) fn ascii_triples_from_right(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let mut at = 0;
    while at < piece.len() {
        let from = at;
        while piece.char(at).is_ascii_digit() {
            at += 1;
        }
        if at == from {
            at += 1;
            continue;
        }
        (1..=(at - from) / 3).rev().for_each(|triples| ends.cut(at - 3 * triples));
    }
    ends.cut(at);
}

/// Runs of numbers cut into three from the right, the first of one to three. The text before a run is in one part with
/// its first cut, as in llama.cpp.
pub(crate) fn numbers_from_right(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let mut at = 0;
    while at < piece.len() {
        let end = piece.skip(at, NUMBER);
        if end == at {
            at += 1;
            continue;
        }
        (0..(end - at).div_ceil(3)).rev().for_each(|triples| ends.cut(end - 3 * triples));
        at = end;
    }
    ends.cut(at);
}

/// `[0-9][0-9][0-9]` as parts of their own.
pub(crate) fn ascii_triples(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let digit = |i| piece.char(i).is_ascii_digit();
    let mut at = 0;
    while at < piece.len() {
        if digit(at) && digit(at + 1) && digit(at + 2) {
            ends.cut(at);
            at += 3;
            ends.cut(at);
        } else {
            at += 1;
        }
    }
    ends.cut(at);
}

/// `[\p{P}$+<=>^~|]+` as parts of their own; with `backtick` also that character.
pub(crate) fn punctuation(piece: Piece<'_>, backtick: bool, ends: &mut PartEnds<'_>) {
    let wanted = |i| {
        piece.is(i, PUNCTUATION)
            || matches!(piece.char(i), '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|')
            || (backtick && piece.char(i) == '`')
    };
    runs(piece, 0, wanted, ends);
}

/// `[^\n]+|[\n]+`
pub(crate) fn lines(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    runs(piece, 0, |i| piece.char(i) == '\n', ends);
}

/// `[\r\n]` as parts of their own, one by one.
pub(crate) fn newlines(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    runs(piece, 1, |i| piece.is(i, NEWLINE), ends);
}

/// `[一-龥぀-ゟ゠-ヿ]+` as parts of their own.
pub(crate) fn han_and_kana(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let wanted = |i| matches!(piece.char(i), '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}');
    runs(piece, 0, wanted, ends);
}

/// `[一-龥ࠀ-一가-퟿]+` as parts of their own, except for the white space in those ranges (U+3000 and
/// others): llama.cpp replaces it before it matches.
pub(crate) fn han_and_hangul(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let wanted = |i| {
        matches!(piece.char(i), '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}')
            && !piece.is(i, SPACE)
    };
    runs(piece, 0, wanted, ends);
}

/// `\s?[class]+` as parts of their own.
pub(crate) fn spaced(piece: Piece<'_>, class: u8, ends: &mut PartEnds<'_>) {
    spaced_runs(piece, |at| piece.is(at, class), ends);
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+` as parts of their own, except for the white space in it (as in [`han_and_hangul`]).
pub(crate) fn spaced_signs(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let signs = |at| matches!(piece.char(at), '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '、' | '。');
    spaced_runs(piece, signs, ends);
}

/// `\s?[CASED]+` as parts of their own, where [`CASED`] are the letters of scripts with capitals.
pub(crate) fn spaced_cased(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let cased = |at| {
        let c = piece.char(at) as u32;
        let after = CASED.partition_point(|&(first, _)| first <= c);
        after > 0 && c <= CASED[after - 1].1
    };
    spaced_runs(piece, cased, ends);
}

/// `\s+$` as a part of its own.
pub(crate) fn space_at_end(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let mut at = piece.len();
    while at > 0 && piece.is(at - 1, SPACE) {
        at -= 1;
    }
    ends.cut(at);
    ends.cut(piece.len());
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+` as parts of their own.
pub(crate) fn no_punctuation(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let wanted = |at: usize| {
        at < piece.len() && !piece.is(at, SPACE) && !"(|.,!?…。，、।۔،)".contains(piece.char(at))
    };
    runs_after(piece, |at| piece.char(at) == ' ', wanted, ends);
}

/// `\s?` and a run of wanted characters as parts of their own.
fn spaced_runs(piece: Piece<'_>, wanted: impl Fn(usize) -> bool, ends: &mut PartEnds<'_>) {
    runs_after(piece, |at| piece.is(at, SPACE), wanted, ends);
}

/// Runs of wanted characters as parts of their own, with the character before them if it is one of those that `space` takes.
fn runs_after(
    piece: Piece<'_>,
    space: impl Fn(usize) -> bool,
    wanted: impl Fn(usize) -> bool,
    ends: &mut PartEnds<'_>,
) {
    let mut at = 0;
    while at < piece.len() {
        let from = at + usize::from(space(at) && wanted(at + 1));
        if wanted(from) {
            ends.cut(at);
            at = from;
            while wanted(at) {
                at += 1;
            }
            ends.cut(at);
        } else {
            at += 1;
        }
    }
    ends.cut(at);
}

/// The runs that AFMoE separates: Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese. (Where the model's own expression
/// begins at U+F900, llama.cpp's has U+8C48, into which Unicode normalises it.)
pub(crate) fn asian(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let wanted = |at| {
        matches!(piece.char(at) as u32, 0xe40..=0xe7f | 0xe80..=0xeff | 0x1000..=0x109f
            | 0x1100..=0x11ff | 0x1780..=0x17ff | 0x2f00..=0x2fdf | 0x3040..=0x30ff
            | 0x3400..=0x4dbf | 0x4e00..=0xfaff | 0xff65..=0xff9f)
    };
    runs(piece, 0, wanted, ends);
}

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+` as parts of their own.
pub(crate) fn youtu(piece: Piece<'_>, ends: &mut PartEnds<'_>) {
    let kind = |at| match piece.char(at) {
        '가'..='힣' | 'ㄱ'..='ㆎ' => 1,
        '！' | '…' | '“' | '”' | '‘' | '’' | '—' | '：' | '；' | '，' => 2,
        '、'..='\u{303f}' | '︰'..='﹏' => 2,
        'ㄅ'..='ㄯ' => 3,
        '一'..='龥' | '\u{3040}'..='\u{30ff}' => 4,
        _ => 0,
    };
    let mut at = 0;
    while at < piece.len() {
        let here = kind(at);
        if here != 0 {
            ends.cut(at);
            while kind(at) == here {
                at += 1;
            }
            ends.cut(at);
        } else {
            at += 1;
        }
    }
    ends.cut(at);
}

/// The characters that llama.cpp treats as Han where Kimi K2's expression has `\p{Han}`.
fn is_han(c: char) -> bool {
    matches!(c as u32, 0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2ebef
        | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

/// Runs of wanted characters as parts of their own, each cut after every `max` (0: not cut).
fn runs(piece: Piece<'_>, max: usize, wanted: impl Fn(usize) -> bool, ends: &mut PartEnds<'_>) {
    let mut at = 0;
    while at < piece.len() {
        if !wanted(at) {
            at += 1;
            continue;
        }
        ends.cut(at);
        let mut taken = 0;
        while at < piece.len() && wanted(at) && (max == 0 || taken < max) {
            at += 1;
            taken += 1;
        }
        ends.cut(at);
    }
    ends.cut(at);
}

/// The main expression of DeepSeek 3: `[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where the first class is ASCII punctuation
/// and symbols. `newlines_apart`: `| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+` at the end (Spark X2.5).
pub(crate) fn deepseek3(piece: Piece<'_>, newlines_apart: bool, ends: &mut PartEnds<'_>) {
    let letters = LETTER | MARK;
    let signs = PUNCTUATION | SYMBOL;
    let mut at = 0;
    while at < piece.len() {
        let class = piece.class(at);
        let before_word = class & (NEWLINE | LETTER | signs) == 0 && piece.is(at + 1, letters);
        let from = at + usize::from(piece.char(at) == ' ');
        let end =
            if piece.char(at).is_ascii_punctuation() && piece.char(at + 1).is_ascii_alphabetic() {
                let mut end = at + 2;
                while piece.char(end).is_ascii_alphabetic() {
                    end += 1;
                }
                end
            } else if before_word || class & letters != 0 {
                piece.skip(at + usize::from(before_word), letters)
            } else if piece.is(from, signs) {
                let end = piece.skip(from, signs);
                if newlines_apart { end } else { piece.skip(end, NEWLINE) }
            } else if newlines_apart && class & NEWLINE != 0 {
                at + 1
            } else if newlines_apart && class & SPACE != 0 {
                white_space(piece, at)
            } else if class & SPACE != 0 {
                to_last_newline(piece, at).unwrap_or_else(|| white_space(piece, at))
            } else {
                // Nothing matches here: it becomes part of the text between two matches.
                at += 1;
                continue;
            };
        ends.cut(at);
        at = end;
        ends.cut(at);
    }
    ends.cut(at);
}

/// `[A-Za-zµÀ-ÖØ-öø-ƺ…]`: the letters of scripts with capitals in DeepSeek LLM's expression, `(first, last)` in order.
#[rustfmt::skip]
const CASED: [(u32, u32); 87] = [
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf),
    (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377), (0x37b, 0x37d), (0x37f, 0x37f),
    (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f),
    (0x531, 0x556), (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf),
    (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45),
    (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d),
    (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3),
    (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107),
    (0x210a, 0x2113), (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128),
    (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e),
    (0x2183, 0x2183), (0x2184, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf2),
    (0x2cf3, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b), (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e),
    (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f),
    (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df),
    (0x1e900, 0x1e943),
];
