//! `strftime` for templates that give the model the date. In UTC: a time zone would need a database
//! or a call into the C library, for a line that only states the day.

use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The civil date of a day counted from 1970-01-01 (Howard Hinnant's algorithm): year, month from
/// 1, day from 1.
fn civil(days: u64) -> (u64, usize, u64) {
    // Counted from 0000-03-01, so that the leap day is the last of its year.
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month as usize, day)
}

/// Formats seconds since 1970 as Python's `strftime` does in the C locale. Unknown directives are
/// left unchanged.
pub(super) fn format_utc(seconds: u64, format: &str) -> String {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // 1970-01-01 was a Thursday.
    let weekday = ((days + 3) % 7) as usize;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month - 1];
    let day_of_year = before + day + u64::from(leap && month > 2);
    let month_name = MONTHS[month - 1];
    let hour12 = (hour + 11) % 12 + 1;
    let half = if hour < 12 { "AM" } else { "PM" };

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // `%-d`: without padding.
        let mut rest = chars.clone();
        let mut directive = rest.next();
        let bare = directive == Some('-');
        if bare {
            directive = rest.next();
        }
        let mut number = |value: u64, width: usize| {
            let width = if bare { 0 } else { width };
            write!(out, "{value:0width$}")
        };
        let _ = match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month as u64, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(day_of_year, 3),
            Some('u') => number(weekday as u64 + 1, 1),
            Some('w') => number((weekday as u64 + 1) % 7, 1),
            Some('s') => number(seconds, 1),
            Some('e') => write!(out, "{day:2}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
            Some('A') => write!(out, "{}", DAYS[weekday]),
            Some('a') => write!(out, "{}", &DAYS[weekday][..3]),
            Some('p') => write!(out, "{half}"),
            Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
            Some('T' | 'X') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('R') => write!(out, "{hour:02}:{minute:02}"),
            Some('D' | 'x') => write!(out, "{month:02}/{day:02}/{:02}", year % 100),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('n') => out.write_char('\n'),
            Some('t') => out.write_char('\t'),
            Some('%') => out.write_char('%'),
            _ => {
                out.push('%');
                continue;
            }
        };
        chars = rest;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn dates_that_matter() {
        // From `date -u -d @N`.
        for (seconds, expected) in [
            (0, "1970-01-01 Thu 001 00:00:00"),
            (951_782_399, "2000-02-28 Mon 059 23:59:59"),
            (951_782_400, "2000-02-29 Tue 060 00:00:00"),
            (951_868_800, "2000-03-01 Wed 061 00:00:00"),
            (1_795_268_220, "2026-11-21 Sat 325 13:37:00"),
            (4_107_542_400, "2100-03-01 Mon 060 00:00:00"),
        ] {
            assert_eq!(format_utc(seconds, "%F %a %j %T"), expected);
        }
    }

    #[test]
    fn directives() {
        let at = |format| format_utc(1_780_326_065, format); // 2026-06-01 15:01:05
        assert_eq!(at("%d %b %Y"), "01 Jun 2026");
        assert_eq!(at("%B %-d, %Y"), "June 1, 2026");
        assert_eq!(at("%A %e/%m/%y"), "Monday  1/06/26");
        assert_eq!(at("%I:%M %p %-I"), "03:01 PM 3");
        assert_eq!(at("100%% %Q %"), "100% %Q %");
    }
}
