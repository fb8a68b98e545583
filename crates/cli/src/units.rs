//! Numbers for people: shares, times and exact counts, and bytes as they type them.

use std::fmt::Display;

pub use alight_types::units::{bytes, count, digits};

/// Formats an exact count: `6,845`.
pub fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 chunk`, `2 chunks`.
pub fn so_many<N: Display + PartialEq + From<u8>>(n: N, what: &str) -> String {
    let end = if n == N::from(1) { "" } else { "s" };
    format!("{n} {what}{end}")
}

/// Formats a share as a percentage; 0 means exactly none and 100 exactly all.
pub fn percent(bytes: u64, of: u64) -> String {
    match (bytes, of) {
        (b, of) if b >= of => "100 %".to_owned(),
        (0, _) => "0 %".to_owned(),
        (b, of) => format!("{:.0} %", (100.0 * b as f64 / of as f64).clamp(1.0, 99.0)),
    }
}

/// Formats milliseconds: `4.27 ms`, `1.85 s`.
pub fn ms(ms: f64) -> String {
    if ms >= 1000.0 { format!("{} s", digits(ms / 1000.0)) } else { format!("{} ms", digits(ms)) }
}

/// Formats whole seconds, for a remaining duration: `4 s`, `6 min 40 s`, `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    let s = seconds.clamp(0.0, 1e9).ceil() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}

/// Formats an age in one unit: `5 min`, `3 days`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => "now".to_owned(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        86_400..5_184_000 => so_many(seconds / 86_400, "day"),
        _ => so_many(seconds / 2_592_000, "month"),
    }
}

/// A plain number of bytes below this lacks its unit: `8` for `8G`.
const MIN_WITHOUT_UNIT: f64 = 1024.0 * 1024.0;

/// Parses bytes that a user typed: `8G`, `512MB` (decimal), `8GiB` (binary), or a plain number.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let has_unit = !unit.trim().is_empty();
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) => (letter, 1024f64),
        None => (unit, 1000.0),
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == letter);
    let bytes = number.parse::<f64>().ok().zip(power).map(|(n, power)| n * base.powi(power as i32));
    match bytes.filter(|bytes| (1.0..1e18).contains(bytes)) {
        Some(bytes) if !has_unit && bytes < MIN_WITHOUT_UNIT => {
            Err(format!("give a unit, such as {number}G, or {number}B for bytes"))
        }
        Some(bytes) => Ok(bytes as u64),
        None => Err("expected a size such as 8G, 512M or 8GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_unless_it_is_large() {
        for (text, bytes) in [
            ("8G", 8_000_000_000),
            ("8GiB", 8 << 30),
            ("7B", 7),
            ("1048576", 1 << 20),
            ("1.5k", 1500),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert!(parse_bytes("8").unwrap_err().contains("such as 8G"));
        for text in ["", "8X", "-1G", "G", "1048575"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn as_people_write_them() {
        assert_eq!([7, 999, 1000, 1_234_567].map(grouped), ["7", "999", "1,000", "1,234,567"]);
        assert_eq!(ms(4.273), "4.27 ms");
        assert_eq!(ms(1850.0), "1.85 s");
        assert_eq!(duration(3.2), "4 s");
        assert_eq!(duration(400.0), "6 min 40 s");
        assert_eq!(duration(7500.0), "2 h 5 min");
        assert_eq!(
            [5, 300, 7200, 86_400, 259_200, 5_184_000].map(age),
            ["now", "5 min", "2 h", "1 day", "3 days", "2 months"]
        );
        assert_eq!(percent(0, 7), "0 %");
        assert_eq!(percent(1, 100_000), "1 %");
        assert_eq!(percent(99_999, 100_000), "99 %");
        assert_eq!(percent(7, 7), "100 %");
        assert_eq!(percent(0, 0), "100 %");
    }
}
