//! Parts of a body: `Range: bytes=…` (RFC 9110, section 14).
//!
//! A suffix longer than the body is the whole body, an end behind the last byte is the last byte, and ranges that touch or
//! overlap are sent as one. What is no range is ignored, as the RFC wants it.

use std::ops::Range;

/// A request with more ranges is answered with the whole body.
const RANGES_MAX: usize = 64;

/// What a request wants of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Whole,
    /// These parts, at least one, in ascending order, apart from each other.
    Parts(Vec<Range<u64>>),
    /// Something that is not there.
    Nothing,
}

/// What a `Range` header wants of `len` bytes.
pub(super) fn wanted(header: &str, len: u64) -> Wanted {
    let Some((unit, list)) = header.split_once('=') else { return Wanted::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return Wanted::Whole;
    }
    let mut parts = Vec::new();
    let mut count = 0;
    for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        count += 1;
        match part(one, len) {
            Err(()) => return Wanted::Whole,
            Ok(_) if count > RANGES_MAX => return Wanted::Whole,
            Ok(part) => parts.extend(part),
        }
    }
    if count == 0 {
        return Wanted::Whole;
    }
    parts.sort_by_key(|part: &Range<u64>| part.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(parts.len());
    for part in parts {
        match merged.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => merged.push(part),
        }
    }
    if merged.is_empty() { Wanted::Nothing } else { Wanted::Parts(merged) }
}

/// One range; none if it is not within the body; an error if it is no range at all.
fn part(text: &str, len: u64) -> Result<Option<Range<u64>>, ()> {
    let (first, last) = text.split_once('-').ok_or(())?;
    let number = |text: &str| -> Result<Option<u64>, ()> {
        match text.trim() {
            "" => Ok(None),
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                // More digits than a number has are beyond every body.
                Ok(Some(digits.parse().unwrap_or(u64::MAX)))
            }
            _ => Err(()),
        }
    };
    let range = match (number(first)?, number(last)?) {
        (None, None) => return Err(()),
        (None, Some(suffix)) => len.saturating_sub(suffix)..len,
        (Some(first), None) => first..len,
        (Some(first), Some(last)) if first > last => return Err(()),
        (Some(first), Some(last)) => first..last.saturating_add(1).min(len),
    };
    Ok((range.start < range.end).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
    fn ranges_are_cut_to_the_body() {
        let parts = |parts: &[Range<u64>]| Wanted::Parts(parts.to_vec());
        for (header, expected) in [
            ("bytes=0-0", parts(&[0..1])),
            ("bytes=2-5", parts(&[2..6])),
            ("bytes=5-", parts(&[5..10])),
            ("bytes=-3", parts(&[7..10])),
            ("bytes=-65558", parts(&[0..10])),
            ("bytes=8-99999999999999999999999", parts(&[8..10])),
            ("BYTES = 1-2 , 5-6", parts(&[1..3, 5..7])),
            ("bytes=5-6,1-2,3-3", parts(&[1..4, 5..7])),
            ("bytes=0-9,3-4", parts(&[0..10])),
            ("bytes=4-5,90-99", parts(&[4..6])),
            ("bytes=10-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=a-b", Wanted::Whole),
            ("bytes=1--2", Wanted::Whole),
            ("items=0-1", Wanted::Whole),
            ("nonsense", Wanted::Whole),
        ] {
            assert_eq!(wanted(header, 10), expected, "{header}");
        }
        assert_eq!(wanted(&format!("bytes={}", "1-1,".repeat(65)), 10), Wanted::Whole);
        assert_eq!(wanted("bytes=0-", 0), Wanted::Nothing);
    }
}
