//! The date that templates give to the model, in the local time zone as in llama.cpp and `transformers`: `strftime`, and
//! the one call into the C library that knows the zone.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

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

/// The last second of the year 9999, so that years have four digits.
const MAX_SECONDS: u64 = 253_402_300_799;
/// The maximum distance of a time zone from UTC in seconds, as POSIX has it.
const MAX_OFFSET: i32 = 25 * 3600 - 1;

/// A moment in a time zone. A rendering knows one, so that its dates agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Since 1970 in UTC.
    seconds: u64,
    /// Seconds by which the zone is ahead of UTC.
    offset: i32,
}

impl Time {
    /// The present in the local time zone. (On Windows in UTC.)
    pub fn now() -> Time {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Time::new(seconds, local_offset(seconds))
    }

    /// The moment `seconds` after the beginning of 1970 in UTC, in a zone that is `offset` seconds ahead of UTC. What is
    /// after the year 9999, or in a zone more than a day from UTC, becomes the nearest that is not.
    pub fn new(seconds: u64, offset: i32) -> Time {
        Time { seconds: seconds.min(MAX_SECONDS), offset: offset.clamp(-MAX_OFFSET, MAX_OFFSET) }
    }

    /// Formats it as Python's `strftime` does in the C locale. Unknown directives are left unchanged.
    pub(super) fn format(self, format: &str) -> String {
        let local = self.seconds.saturating_add_signed(self.offset.into()).min(MAX_SECONDS);
        format_local(local, self, format)
    }

    /// Hours, and minutes of an hour, by which the zone is ahead of UTC (`+`) or not (`-`).
    fn zone(self) -> (char, u32, u32) {
        let minutes = self.offset.unsigned_abs() / 60;
        (if self.offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
    }
}

/// Seconds by which the local time zone is ahead of UTC at this moment. Zero if the zone is not known.
#[cfg(unix)]
fn local_offset(seconds: u64) -> i32 {
    let Ok(seconds) = seconds.try_into() else { return 0 };
    let mut local = std::mem::MaybeUninit::zeroed();
    // SAFETY: both pointers are valid for the call, which keeps neither. Zeroes are a valid `tm` (numbers and a pointer),
    // so it may be read if the call leaves something out. The call reads `TZ`; code that changes the environment has to
    // exclude readers in other threads (`std::env::set_var`).
    let local: libc::tm = unsafe {
        if libc::localtime_r(&seconds, local.as_mut_ptr()).is_null() {
            return 0;
        }
        local.assume_init()
    };
    local.tm_gmtoff.try_into().unwrap_or(0)
}

#[cfg(not(unix))]
fn local_offset(_seconds: u64) -> i32 {
    0
}

/// Formats `seconds`, which `time` is in its own zone.
fn format_local(seconds: u64, time: Time, format: &str) -> String {
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
    let (sign, zone_hours, zone_minutes) = time.zone();

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
            Some('s') => number(time.seconds, 1),
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
            // Zones other than UTC have the names of those without letters at IANA.
            Some('Z') => match (zone_hours, zone_minutes) {
                (0, 0) => write!(out, "UTC"),
                (hours, 0) => write!(out, "{sign}{hours:02}"),
                (hours, minutes) => write!(out, "{sign}{hours:02}{minutes:02}"),
            },
            Some('z') => write!(out, "{sign}{zone_hours:02}{zone_minutes:02}"),
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
    use super::{MAX_SECONDS, Time};

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
            assert_eq!(Time::new(seconds, 0).format("%F %a %j %T"), expected);
        }
    }

    #[test]
    fn directives() {
        let at = |format| Time::new(1_780_326_065, 0).format(format); // 2026-06-01 15:01:05
        assert_eq!(at("%d %b %Y"), "01 Jun 2026");
        assert_eq!(at("%B %-d, %Y"), "June 1, 2026");
        assert_eq!(at("%A %e/%m/%y"), "Monday  1/06/26");
        assert_eq!(at("%I:%M %p %-I"), "03:01 PM 3");
        assert_eq!(at("100%% %Q %"), "100% %Q %");
        assert_eq!(at("%Z %z %s"), "UTC +0000 1780326065");
        // A Monday, and a Sunday.
        assert_eq!(at("%u %w %D %x%n%t"), "1 1 06/01/26 06/01/26\n\t");
        assert_eq!(Time::new(1_780_326_065 - 86_400, 0).format("%u %w"), "7 0");
    }

    #[test]
    fn a_zone_has_its_own_date() {
        let at = |offset, format| Time::new(1_780_326_065, offset).format(format);
        assert_eq!(at(9 * 3600, "%d %b %Y %R %Z %z %s"), "02 Jun 2026 00:01 +09 +0900 1780326065");
        assert_eq!(at(5 * 3600 + 1800, "%R %Z %z"), "20:31 +0530 +0530");
        assert_eq!(at(-12_600, "%F %R %Z %z"), "2026-06-01 11:31 -0330 -0330");
        // There is no time before 1970 and none after 9999, and no zone further away than a day.
        assert_eq!(Time::new(5, -3600).format("%F %T"), "1970-01-01 00:00:00");
        assert_eq!(Time::new(u64::MAX, i32::MAX).format("%F %T %z"), "9999-12-31 23:59:59 +2459");
        assert_eq!(Time::new(u64::MAX, i32::MIN).format("%F %z"), "9999-12-30 -2459");
        assert_eq!(Time::new(u64::MAX, 0), Time::new(MAX_SECONDS, 0));
    }

    /// A zone that needs no database.
    const ZONE: &str = "AHEAD-5:30";

    /// The environment is the process's, so the zone is set for a process of its own, which runs the test below.
    #[cfg(unix)]
    #[test]
    fn the_present_is_in_the_local_zone() {
        let own = std::env::current_exe().unwrap();
        let test = "template::clock::tests::the_present_in_a_zone";
        let run = std::process::Command::new(own)
            .args(["--exact", test])
            .env("TZ", ZONE)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn the_present_in_a_zone() {
        let time = Time::now();
        assert!(time.seconds > 1_700_000_000);
        if std::env::var("TZ").is_ok_and(|zone| zone == ZONE) {
            assert_eq!(time.offset, 5 * 3600 + 1800);
        }
    }
}
