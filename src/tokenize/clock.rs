//! Today's date for templates that tell it to the model (`strftime_now`).
//!
//! Engines use their local time. Homing uses UTC, as containers do; an engine in another time zone gives other ids for
//! some hours of the day, which costs cache hits, not correctness.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
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

/// Python's `strftime` in the C locale, for the codes that templates use; others stay as they are.
pub(super) fn strftime(form: &str, seconds: u64) -> String {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let second = seconds % 86_400;
    let weekday = DAYS[(days % 7) as usize];
    let name = MONTHS[month as usize - 1];
    let hour = second / 3600;
    let mut out = String::new();
    let mut chars = form.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('-') => match chars.next() {
                Some('d') => out += &day.to_string(),
                Some('m') => out += &month.to_string(),
                other => out.extend(['%', '-'].into_iter().chain(other)),
            },
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &format!("{:02}", second / 60 % 60),
            Some('S') => out += &format!("{:02}", second % 60),
            Some('%') => out.push('%'),
            other => out.extend(['%'].into_iter().chain(other)),
        }
    }
    out
}

/// Year, month (1-12) and day (1-31) of a day counted from 1970-01-01, by the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years are counted from March here, so that the leap day is the last day of a year, in cycles of 400 years.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "Thu 1970-01-01 00:00:00 01 January 1970"),
            (951_782_400 - 1, "Mon 2000-02-28 23:59:59 28 February 2000"),
            (951_782_400, "Tue 2000-02-29 00:00:00 29 February 2000"),
            (1_735_689_599, "Tue 2024-12-31 23:59:59 31 December 2024"),
            (4_107_542_400, "Mon 2100-03-01 00:00:00 01 March 2100"),
        ] {
            assert_eq!(strftime("%a %Y-%m-%d %H:%M:%S %d %B %Y", seconds), want);
        }
        assert_eq!(strftime("%-d %b %y %% %I%p %Q", 951_782_400), "29 Feb 00 % 12AM %Q");
    }
}
