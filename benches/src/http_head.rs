//! HTTP response heads for pages that come from files: realistic in size and content, always the same for one URL.

use crate::corpus::Random;

const DAY_NAMES: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTH_NAMES: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const SERVERS: [&str; 4] = [
    "Apache/2.4.62 (Debian)",
    "nginx/1.26.2",
    "Apache/2.4.57 (Unix) OpenSSL/3.0.11",
    "nginx/1.22.1 (Ubuntu)",
];
/// 1 January 2026.
const CRAWL_STARTED_AT_S: u64 = 1_767_225_600;
const CRAWL_SECONDS: u64 = 90 * 86_400;

/// When the page was fetched: a moment of one three-month crawl, in milliseconds since 1970.
pub fn fetched_at_ms(url: &str) -> u64 {
    random(url).below(CRAWL_SECONDS * 1000) + CRAWL_STARTED_AT_S * 1000
}

/// A response head of some 250 to 350 bytes.
pub fn synthesise(url: &str, body_bytes: usize, fetched_at_ms: u64) -> Vec<u8> {
    let mut random = random(url);
    let fetched_at_s = fetched_at_ms / 1000;
    let modified_at_s = fetched_at_s - random.below(5 * 365 * 86_400);
    let server = SERVERS[random.below(SERVERS.len() as u64) as usize];
    let charset = if random.below(8) == 0 { "iso-8859-1" } else { "UTF-8" };
    let caching = match random.below(3) {
        0 => "Cache-Control: max-age=3600, public\r\nVary: Accept-Encoding\r\n",
        1 => "Vary: Accept-Encoding\r\n",
        _ => "",
    };
    format!(
        "HTTP/1.1 200 OK\r\nDate: {}\r\nServer: {server}\r\nLast-Modified: {}\r\nETag: \"{body_bytes:x}-{:013x}\"\r\n\
         Accept-Ranges: bytes\r\nContent-Length: {body_bytes}\r\n{caching}Connection: close\r\n\
         Content-Type: text/html; charset={charset}\r\n\r\n",
        date(fetched_at_s),
        date(modified_at_s),
        modified_at_s * 1_000_000,
    )
    .into_bytes()
}

fn random(url: &str) -> Random {
    let hash = blake3::hash(url.as_bytes());
    let seed = hash.as_bytes().iter().take(8).fold(0, |seed, &byte| seed << 8 | u64::from(byte));
    Random(seed)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(at_s: u64) -> String {
    let (days, seconds) = (at_s / 86_400, at_s % 86_400);
    let mut year = 1970;
    let mut day = days;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let month_days = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= month_days[month] {
        day -= month_days[month];
        month += 1;
    }
    format!(
        "{}, {:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAY_NAMES[(days % 7) as usize],
        day + 1,
        MONTH_NAMES[month],
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_rfc_9110() {
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
    }

    #[test]
    fn heads_are_realistic_and_repeatable() {
        let head = synthesise("http://a.docs.example/x.html", 12_345, 1_770_000_000_000);
        assert_eq!(head, synthesise("http://a.docs.example/x.html", 12_345, 1_770_000_000_000));
        assert!((230..=360).contains(&head.len()), "{} bytes", head.len());
    }
}
