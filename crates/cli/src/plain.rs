//! Messages of the parser and the standard library about invalid values, reworded for the user.

/// Returns true or false if a word switches something on or off: in `config.toml`, in the environment and after `--cache=`.
pub fn switch(word: &str) -> Option<bool> {
    match word.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// Returns the reason why a value is invalid, from the original message `said`.
pub fn why(said: &str, value: &str) -> String {
    // Unsigned types do not report negative values as such.
    let negative = value.parse::<i64>().is_ok_and(|number| number < 0);
    match said {
        "invalid digit found in string" if negative => "expected 0 or more".to_owned(),
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "expected a whole number".to_owned()
        }
        "number too large to fit in target type" => "that is too large".to_owned(),
        "number too small to fit in target type" => "that is too small".to_owned(),
        _ => out_of_range(said).unwrap_or_else(|| said.to_owned()),
    }
}

/// Rewords `7 is not in 1..=4`; the parser writes an open range with the largest number as its end.
fn out_of_range(said: &str) -> Option<String> {
    let (value, range) = said.split_once(" is not in ")?;
    let (from, to) = range.split_once("..")?;
    let to = to.strip_prefix('=').unwrap_or(to);
    Some(if to == i64::MAX.to_string() {
        format!("{value} is not {from} or more")
    } else {
        format!("{value} is not in {from} to {to}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_of_in_plain_words() {
        for (said, value, plain) in [
            ("-3 is not in -2..9223372036854775807", "-3", "-3 is not -2 or more"),
            ("99999 is not in 0..=65535", "99999", "99999 is not in 0 to 65535"),
            ("invalid digit found in string", "many", "expected a whole number"),
            ("invalid digit found in string", "-1", "expected 0 or more"),
            (
                "expected 1..=2, which 'is not in' a range",
                "x",
                "expected 1..=2, which 'is not in' a range",
            ),
        ] {
            assert_eq!(why(said, value), plain);
        }
    }
}
