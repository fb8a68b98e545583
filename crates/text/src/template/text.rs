//! Python's methods on strings, as functions.

use super::budget::{Budget, Result, fail};
use super::names::{Case, Is, Side, StrippedEnds};
use super::print::printable;
use super::value::{Buffer, ListBuilder, Text, Value};

use std::rc::Rc;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// White space as defined by Python's `str.isspace`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Returns true for a line end of `str.splitlines`.
fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The lines of a text; with `ends`, each with its line end.
pub(super) fn lines(text: &str, ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find(is_line_end) else {
            return Some(std::mem::take(&mut rest));
        };
        let end = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        let line = &rest[..if ends { end } else { at }];
        rest = &rest[end..];
        Some(line)
    })
}

/// `str.strip`; `chars` are the characters to remove.
pub(super) fn strip<'t>(
    text: &'t str,
    chars: Option<&Text>,
    ends: StrippedEnds,
    budget: &Rc<Budget>,
) -> Result<&'t str> {
    let trimmed = |is: &dyn Fn(char) -> bool| {
        let text = if ends == StrippedEnds::Right { text } else { text.trim_start_matches(is) };
        if ends == StrippedEnds::Left { text } else { text.trim_end_matches(is) }
    };
    budget.bytes(text.len())?;
    let Some(chars) = chars else { return Ok(trimmed(&is_space)) };
    // Many characters are looked up in sorted order, so that the time is not the product of the lengths.
    let _lease = budget.lease(4 * chars.chars_len())?;
    budget.steps(chars.chars_len())?;
    let mut set: Vec<char> = chars.chars().collect();
    set.sort_unstable();
    Ok(trimmed(&|c| set.binary_search(&c).is_ok()))
}

/// Escapes the text's special characters of HTML.
pub(super) fn escape(text: &str, out: &mut Buffer) -> Result<()> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '\'' => out.push_str("&#39;")?,
            '"' => out.push_str("&#34;")?,
            c => out.push(c)?,
        }
    }
    Ok(())
}

/// `str.replace`.
pub(super) fn replace(
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
    budget: &Rc<Budget>,
) -> Result<Value> {
    budget.bytes(text.len() + old.len())?;
    let mut out = Buffer::new(budget)?;
    let mut from = 0;
    for (at, found) in text.match_indices(old).take(count.unwrap_or(usize::MAX)) {
        out.push_str(&text[from..at])?;
        out.push_str(new)?;
        from = at + found.len();
    }
    out.push_str(&text[from..])?;
    out.into_value()
}

/// `str.split` and `str.rsplit`: at a separator, or at white space.
pub(super) fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<usize>,
    from_right: bool,
    budget: &Rc<Budget>,
) -> Result<Value> {
    budget.bytes(text.len() + separator.map_or(0, str::len))?;
    let mut list = ListBuilder::new(budget)?;
    let most = most.unwrap_or(usize::MAX - 1);
    match (separator, from_right) {
        (Some(""), _) => return fail("a separator cannot be empty"),
        (Some(separator), false) => {
            for part in text.splitn(most + 1, separator) {
                list.text(part)?;
            }
        }
        (Some(separator), true) => {
            for part in text.rsplitn(most + 1, separator) {
                list.text(part)?;
            }
        }
        (None, false) => {
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if list.len() == most { None } else { rest.find(is_space) };
                let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
                list.text(part)?;
                rest = after.trim_start_matches(is_space);
            }
        }
        (None, true) => {
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let begin = if list.len() == most { None } else { rest.rfind(is_space) };
                let begin =
                    begin.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                let (before, part) = rest.split_at(begin);
                list.text(part)?;
                rest = before.trim_end_matches(is_space);
            }
        }
    }
    let parts = list.finish()?;
    if !from_right {
        return Ok(Value::List(parts));
    }
    let mut turned = ListBuilder::new(budget)?;
    for part in parts.iter().rev() {
        turned.push(part.clone())?;
    }
    turned.list()
}

/// `str.partition` and `str.rpartition`.
pub(super) fn partition(
    text: &str,
    separator: &str,
    from_right: bool,
    budget: &Rc<Budget>,
) -> Result<Value> {
    if separator.is_empty() {
        return fail("a separator cannot be empty");
    }
    budget.bytes(text.len() + separator.len())?;
    let found = if from_right { text.rfind(separator) } else { text.find(separator) };
    let parts = match found {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    let mut tuple = ListBuilder::new(budget)?;
    for part in parts {
        tuple.text(part)?;
    }
    tuple.tuple()
}

/// The text in another case.
pub(super) fn case(text: &str, case: Case, budget: &Rc<Budget>) -> Result<Value> {
    budget.bytes(4 * text.len())?;
    let mut out = Buffer::new(budget)?;
    if case == Case::Lower || (case == Case::Upper && text.is_ascii()) {
        // Whole texts: the lower case of a sigma depends on its context.
        let _lease = budget.lease(3 * text.len())?;
        out.push_str(&if case == Case::Lower { text.to_lowercase() } else { text.to_uppercase() })?;
        return out.into_value();
    }
    let mut in_word = false;
    for (i, c) in text.chars().enumerate() {
        let upper = match case {
            Case::Upper => true,
            Case::Lower => false,
            Case::Capitalize => i == 0,
            Case::Title => !in_word,
            Case::Swap => c.is_lowercase(),
        };
        in_word = c.is_lowercase() || c.is_uppercase() || is_title(c);
        if upper && matches!(case, Case::Capitalize | Case::Title) {
            // If the upper case of a character is several characters, only the first of them is upper.
            for (i, c) in c.to_uppercase().enumerate() {
                if i == 0 {
                    out.push(c)?;
                } else {
                    c.to_lowercase().try_for_each(|c| out.push(c))?;
                }
            }
        } else if upper {
            c.to_uppercase().try_for_each(|c| out.push(c))?;
        } else {
            c.to_lowercase().try_for_each(|c| out.push(c))?;
        }
    }
    out.into_value()
}

fn is_title(c: char) -> bool {
    !c.is_ascii() && get_general_category(c) == Category::TitlecaseLetter
}

/// The filter `title`: words begin after white space, `-`, `(`, `{`, `[` and `<`.
pub(super) fn filter_title(text: &str, budget: &Rc<Budget>) -> Result<Value> {
    budget.bytes(4 * text.len())?;
    let mut out = Buffer::new(budget)?;
    let breaks = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let in_word = !breaks(first);
        let end = rest.find(|c| breaks(c) == in_word).unwrap_or(rest.len());
        first.to_uppercase().try_for_each(|c| out.push(c))?;
        out.push_str(&rest[first.len_utf8()..end].to_lowercase())?;
        rest = &rest[end..];
    }
    out.into_value()
}

/// `str.ljust`, `str.rjust`, `str.center`.
pub(super) fn justify(
    text: &Text,
    width: i128,
    fill: char,
    side: Side,
    budget: &Rc<Budget>,
) -> Result<Value> {
    let missing = width.saturating_sub(text.chars_len() as i128).max(0);
    let missing = usize::try_from(missing).unwrap_or(usize::MAX / 8);
    let width = usize::try_from(width).unwrap_or(0);
    let left = match side {
        Side::Left => 0,
        Side::Right => missing,
        // As in CPython.
        Side::Center => missing / 2 + (missing & width & 1),
    };
    let fill = fill.encode_utf8(&mut [0; 4]).to_owned();
    let mut out = Buffer::new(budget)?;
    out.repeat(&fill, left)?;
    out.push_str(text)?;
    out.repeat(&fill, missing - left)?;
    out.into_value()
}

/// `str.expandtabs`.
pub(super) fn expand_tabs(text: &str, width: usize, budget: &Rc<Budget>) -> Result<Value> {
    let mut out = Buffer::new(budget)?;
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if width == 0 => {}
            '\t' => {
                let spaces = width - column % width;
                out.repeat(" ", spaces)?;
                column += spaces;
            }
            c => {
                out.push(c)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out.into_value()
}

fn is_alpha(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    matches!(
        get_general_category(c),
        Category::UppercaseLetter
            | Category::LowercaseLetter
            | Category::TitlecaseLetter
            | Category::ModifierLetter
            | Category::OtherLetter
    )
}

fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || (!c.is_ascii() && get_general_category(c) == Category::DecimalNumber)
}

/// Returns whether the text has the property `question`.
pub(super) fn is(text: &str, question: Is, budget: &Budget) -> Result<bool> {
    budget.bytes(2 * text.len())?;
    let all = |is: &dyn Fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = |c: char| c.is_uppercase() || c.is_lowercase() || is_title(c);
    // Superscripts are digits, fractions are numeric.
    let digit = |c: char| is_decimal(c) || matches!(c, '²' | '³' | '¹' | '\u{2070}'..='\u{2089}');
    Ok(match question {
        Is::Alpha => all(&is_alpha),
        Is::Decimal => all(&is_decimal),
        Is::Digit => all(&digit),
        Is::Numeric => all(&char::is_numeric),
        Is::Alnum => all(&|c| is_alpha(c) || c.is_numeric()),
        Is::Space => all(&is_space),
        Is::Upper => text.chars().any(cased) && text.chars().all(|c| !cased(c) || c.is_uppercase()),
        Is::Lower => text.chars().any(cased) && text.chars().all(|c| !cased(c) || c.is_lowercase()),
        Is::Title => {
            let (mut any, mut in_word, mut right) = (false, false, true);
            for c in text.chars() {
                let upper = c.is_uppercase() || is_title(c);
                right &= (!upper || !in_word) && (!c.is_lowercase() || in_word);
                in_word = cased(c);
                any |= in_word;
            }
            any && right
        }
        Is::Ascii => text.is_ascii(),
        Is::Printable => text.chars().all(printable),
        Is::Identifier => {
            text.chars().next().is_some_and(|c| c == '_' || is_alpha(c))
                && text.chars().all(|c| c == '_' || c.is_alphanumeric())
        }
    })
}

/// Python's `int(text, base)`.
pub(super) fn parse_int(text: &str, base: i128) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(digits) => (text.starts_with('-'), digits),
        None => (false, text),
    };
    let mut base = u32::try_from(base).ok().filter(|b| *b == 0 || (2..=36).contains(b))?;
    let mut digits = digits;
    let guess = base == 0;
    for (prefix, value) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        let has = digits.get(..2).is_some_and(|p| p.eq_ignore_ascii_case(prefix));
        if has && (guess || base == value) {
            (base, digits) = (value, &digits[2..]);
            digits = digits.strip_prefix('_').unwrap_or(digits);
        }
    }
    if guess && base == 0 {
        base = 10;
        if digits.starts_with('0') && digits.bytes().any(|b| !matches!(b, b'0' | b'_')) {
            return None;
        }
    }
    let digits = without_underscores(digits)?;
    let mut value: i128 = 0;
    for c in digits.chars() {
        let digit = i128::from(c.to_digit(base)?);
        value = value.checked_mul(i128::from(base))?.checked_add(digit)?;
    }
    Some(if negative { -value } else { value })
}

/// Python's `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    // Rust accepts what Python accepts, except for underscores between digits.
    let text = without_underscores(text)?;
    if text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'-')) {
        text.parse().ok()
    } else {
        None
    }
}

/// `None` if the text is empty, or an underscore is not between two digits.
fn without_underscores(text: &str) -> Option<std::borrow::Cow<'_, str>> {
    if text.is_empty() {
        return None;
    }
    if !text.contains('_') {
        return Some(text.into());
    }
    let bytes = text.as_bytes();
    let between = |at: usize| {
        let is = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        at > 0 && is(bytes.get(at - 1)) && is(bytes.get(at + 1))
    };
    if !text.match_indices('_').all(|(at, _)| between(at)) {
        return None;
    }
    Some(text.replace('_', "").into())
}
