//! Numbers for people: bytes and counts with a unit and three significant digits.

/// Formats bytes in decimal units: `97.8 MB`.
///
/// ```
/// assert_eq!(alight_types::units::bytes(97_812_345), "97.8 MB");
/// ```
pub fn bytes(n: u64) -> String {
    scaled(n as f64, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats two numbers of bytes that are compared: exactly, if they would read the same.
///
/// ```
/// assert_eq!(alight_types::units::compared(2_000_000, 1_000_000), ["2.00 MB", "1.00 MB"]);
/// assert_eq!(alight_types::units::compared(2_000_001, 2_000_000), ["2000001 B", "2000000 B"]);
/// ```
pub fn compared(a: u64, b: u64) -> [String; 2] {
    let both = [a, b].map(bytes);
    if both[0] == both[1] && a != b { [a, b].map(|n| format!("{n} B")) } else { both }
}

/// Formats a count in decimal units: `135 M`.
pub fn count(n: u64) -> String {
    scaled(n as f64, &["", "k", "M", "G", "T", "P", "E"]).trim_end().to_owned()
}

/// Formats a number with three significant digits, but never fewer than its whole part: `4.27`, `42.7`, `427`, `4273`.
pub fn digits(x: f64) -> String {
    let places = match x.abs() {
        a if a >= 99.95 => 0,
        a if a >= 9.995 => 1,
        a if a > 0.0 => 2,
        _ => 0,
    };
    format!("{x:.places$}")
}

fn scaled(mut x: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while x >= 999.5 && unit + 1 < units.len() {
        x /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{x:.0} {}", units[0])
    } else {
        format!("{} {}", digits(x), units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(98_149_000), "98.1 MB");
        assert_eq!(bytes(999_600), "1.00 MB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(count(134_515_008), "135 M");
        assert_eq!(count(7), "7");
        assert_eq!(digits(99.96), "100");
        assert_eq!(digits(0.123), "0.12");
    }
}
