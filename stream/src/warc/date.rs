//! Dates of WARC and ARC records: `2026-11-16T23:47:56.123Z` and `20261116234756`, as milliseconds since 1970.
//!
//! WARC/1.1 lets a date end early (`2016-07`) and carry up to nine digits of a second; files in the wild have dates of 10, 12,
//! 15, 17 and 18 digits. What is missing is the start of the year, month, day; finer than a millisecond is cut.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Milliseconds since 1970; none when it is no date, or one before 1970.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let (whole, fraction) = text.split_once(['.', ',']).unwrap_or((text, ""));
    let begins_well = whole.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let is_known = |byte: u8| byte.is_ascii_digit() || b"-:TZtz ".contains(&byte);
    if !begins_well || !whole.bytes().all(is_known) {
        // Perhaps it has an offset from UTC.
        let at: Timestamp = text.parse().ok()?;
        return u64::try_from(at.as_millisecond()).ok();
    }
    let mut digits = whole.bytes().filter(u8::is_ascii_digit).map(|byte| i64::from(byte - b'0'));
    let count = whole.bytes().filter(u8::is_ascii_digit).count();
    let mut part = |len: usize| digits.by_ref().take(len).fold(0_i64, |number, digit| number * 10 + digit);
    let year = part(4);
    let [month, day, hour, minute, second] = [part(2), part(2), part(2), part(2), part(2)];
    if count < 4 {
        return None;
    }
    let (month, day) = (if count < 6 { 1 } else { month }, if count < 8 { 1 } else { day });
    let small = |number: i64| i8::try_from(number).ok();
    let at = DateTime::new(
        i16::try_from(year).ok()?,
        small(month)?,
        small(day)?,
        small(hour)?,
        small(minute)?,
        small(second.min(59))?,
        0,
    );
    let at = at.ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp().as_millisecond();
    let ms = fraction.bytes().take_while(u8::is_ascii_digit).chain(*b"000").take(3);
    let ms = ms.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(u64::try_from(at).ok()? + ms)
}

/// Whether a date is finer than what is kept of it.
pub(super) fn is_cut(text: &str) -> bool {
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    fraction.bytes().take_while(u8::is_ascii_digit).skip(3).any(|digit| digit != b'0')
}

/// `2026-11-16T23:47:56Z`, with three digits of the second where they are not zero.
pub(super) fn print(ms: u64, out: &mut Vec<u8>) {
    use std::io::Write;
    let at =
        i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    let at = at.to_zoned(TimeZone::UTC).datetime();
    let (year, month, day) = (at.year(), at.month(), at.day());
    let (hour, minute, second) = (at.hour(), at.minute(), at.second());
    // Writing to memory does not fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if !ms.is_multiple_of(1000) {
        let _ = write!(out, ".{:03}", ms % 1000);
    }
    out.push(b'Z');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_all_lengths_are_read() {
        for (text, ms) in [
            ("2017-03-06T04:03:53Z", 1_488_773_033_000),
            ("2017-03-06T04:03:53.1Z", 1_488_773_033_100),
            ("2017-03-06T04:03:53.123456789Z", 1_488_773_033_123),
            ("2017-03-06T05:03:53+01:00", 1_488_773_033_000),
            ("20170306040353", 1_488_773_033_000),
            ("201703060403531234", 1_488_773_033_000),
            ("2017030604", 1_488_772_800_000),
            ("2017-03", 1_488_326_400_000),
            ("2017", 1_483_228_800_000),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        for bad in ["", "x", "63.241.16.130", "20", "2017-13-01", "201512000000000", "1969-12-31T23:59:59Z"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_printed_is_what_was_read() {
        for text in ["2017-03-06T04:03:53Z", "2024-02-29T23:59:59.007Z", "1970-01-01T00:00:00Z"] {
            let mut out = Vec::new();
            print(parse(text).unwrap(), &mut out);
            assert_eq!(out, text.as_bytes());
        }
        print(u64::MAX, &mut Vec::new());
        assert!(is_cut("2017-03-06T04:03:53.1234Z") && !is_cut("2017-03-06T04:03:53.120000Z"));
    }
}
