//! What a site lets crawlers read: robots.txt by RFC 9309, over `robotxt`, with what that misses.
//!
//! - *Product tokens.* `User-agent: name/1.2` and `User-agent: name (text)` mean `name` (2.2.1): lines are cut to the token first.
//! - *Paths.* A rule's value begins with `/` or `*` (2.2.2); `Disallow: a` is no rule, where `robotxt` would read `/a`.
//! - *Groups.* Several user agents share the rules that follow, whatever other lines stand between them (2.2).
//! - *Crawl-delay* is a limit that sites ask for, not part of the RFC. It is kept, but capped, and the cap is told.
//!
//! What a status means (2.3.1): 2xx is a file to read, 4xx is no file and no limits, except 429, which like 5xx and a site
//! that does not answer means: nothing may be read for now. A site that has not answered for 30 days is read as without a file. More
//! than five redirects count as no file. Files are read up to 500 KiB; what lies behind is not there.

use std::time::Duration;

use url::Url;

/// A robots file is read up to here.
pub const ROBOTS_BYTES_MAX: usize = robotxt::BYTE_LIMIT;
/// How many redirects to a robots file are followed.
pub const ROBOTS_REDIRECTS_MAX: usize = 5;
/// How long a robots file counts, at most.
pub const ROBOTS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long one counts that could not be had.
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// A site that has not answered for this long counts as without a robots file.
const UNREACHABLE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// More sitemaps in one file are not listed.
const SITEMAPS_MAX: usize = 1000;

/// How a site's robots file was had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is one, and it counts.
    Read,
    /// There is none (the status says so): all may be read.
    Absent(u16),
    /// The site did not answer, or with 429 or 5xx: nothing may be read for now. Since when, in milliseconds since 1970.
    Unreachable {
        /// What came instead.
        reason: String,
        /// Since when.
        since_ms: u64,
    },
}

/// What a site lets this crawler do.
#[derive(Clone, Debug)]
pub struct Robots {
    rules: robotxt::Robots,
    /// How it was had.
    pub standing: Standing,
    /// How long the site asks to wait between two requests, as it stands in the file.
    pub crawl_delay: Option<Duration>,
    /// Sitemaps that the file names; at most a thousand.
    pub sitemaps: Vec<Url>,
    /// Metadata archives that the file names; at most a thousand.
    pub archives: Vec<Url>,
    /// How long it counts.
    pub good_for: Duration,
}

impl Robots {
    /// A robots file, as far as it concerns the crawler with this product token. `base` is where it was, for relative sitemaps.
    pub fn parse(text: &[u8], token: &str, base: Option<&Url>) -> Robots {
        let text = text.get(..ROBOTS_BYTES_MAX + 1).unwrap_or(text);
        let text = clean(text);
        // For `robotxt` a Crawl-delay ends a list of user agents; by the RFC only rules do.
        let crawl_delay = robotxt::Robots::parse(text.as_bytes(), token).crawl_delay();
        let undelayed: String = text.split_inclusive('\n').filter(|line| !is_delay(line)).collect();
        let rules = robotxt::Robots::parse(undelayed.as_bytes(), token);
        let sitemaps = text.lines().filter_map(|line| {
            let (Key::Sitemap, value) = directive(line)? else { return None };
            match base {
                Some(base) => base.join(value).ok(),
                None => Url::parse(value).ok(),
            }
        });
        let sitemaps = sitemaps.filter(|url| matches!(url.scheme(), "http" | "https")).take(SITEMAPS_MAX);
        let archives = crate::site_metadata::archives_in_robots(&text);
        let archives = archives.iter().filter_map(|url| match base {
            Some(base) => base.join(url).ok(),
            None => Url::parse(url).ok(),
        });
        let archives = archives.filter(|url| matches!(url.scheme(), "http" | "https")).take(SITEMAPS_MAX);
        Robots {
            crawl_delay,
            sitemaps: sitemaps.collect(),
            archives: archives.collect(),
            rules,
            standing: Standing::Read,
            good_for: ROBOTS_AGE_MAX,
        }
    }

    /// What the answer to a request for a robots file means, after at most five redirects.
    pub fn answered(
        status: u16,
        body: &[u8],
        token: &str,
        base: Option<&Url>,
        before: Option<&Robots>,
        now_ms: u64,
    ) -> Robots {
        match status {
            200..300 => Robots::parse(body, token, base),
            429 | 500.. => Robots::unreachable(format!("status {status}"), before, now_ms),
            _ => Robots::without(status),
        }
    }

    /// A site without a robots file: all may be read.
    pub fn without(status: u16) -> Robots {
        Robots {
            rules: robotxt::Robots::allow_all(),
            standing: Standing::Absent(status),
            crawl_delay: None,
            sitemaps: Vec::new(),
            archives: Vec::new(),
            good_for: ROBOTS_AGE_MAX,
        }
    }

    /// A site whose robots file could not be had. `before` is what was known of it.
    pub fn unreachable(reason: String, before: Option<&Robots>, now_ms: u64) -> Robots {
        let since_ms = match before.map(|robots| &robots.standing) {
            Some(Standing::Unreachable { since_ms, .. }) => *since_ms,
            _ => now_ms,
        };
        let given_up = now_ms.saturating_sub(since_ms) > UNREACHABLE_MAX.as_millis() as u64;
        Robots {
            rules: if given_up { robotxt::Robots::allow_all() } else { robotxt::Robots::disallow_all() },
            standing: Standing::Unreachable { reason, since_ms },
            crawl_delay: before.and_then(|robots| robots.crawl_delay),
            sitemaps: Vec::new(),
            archives: Vec::new(),
            good_for: RETRY_AFTER,
        }
    }

    /// Whether a URL of the site may be read.
    pub fn allows(&self, url: &Url) -> bool {
        self.rules.is_url_allowed(url)
    }

    /// The `Crawl-delay` that is kept: no longer than `cap`. The second is what the file asked for, where that was more.
    pub fn delay(&self, cap: Duration) -> (Duration, Option<Duration>) {
        let asked = self.crawl_delay.unwrap_or(Duration::ZERO);
        (asked.min(cap), (asked > cap).then_some(asked))
    }
}

enum Key {
    UserAgent,
    Rule,
    CrawlDelay,
    Sitemap,
    Other,
}

/// The key and the value of a line, the way `robotxt` takes them apart: a colon, or only a space, between them.
fn directive(line: &str) -> Option<(Key, &str)> {
    let line = line.split('#').next()?.trim();
    let (key, value) = match line.split_once(':') {
        Some((key, value)) => (key.trim(), value.trim()),
        None => line.split_once([' ', '\t']).map(|(key, value)| (key, value.trim()))?,
    };
    let key = match key.to_ascii_lowercase().as_str() {
        "user-agent" | "user agent" | "useragent" => Key::UserAgent,
        "sitemap" | "site-map" | "site map" => Key::Sitemap,
        "crawl-delay" | "crawl delay" | "crawldelay" => Key::CrawlDelay,
        "allow" | "alow" | "allaw" | "disallow" | "dissallow" | "dissalow" | "disalow" | "diasllow"
        | "disallaw" => Key::Rule,
        _ => Key::Other,
    };
    Some((key, value))
}

fn is_delay(line: &str) -> bool {
    matches!(directive(line), Some((Key::CrawlDelay, _)))
}

/// A file without what would be misread: user agents cut to their tokens, rules that are no paths left out.
fn clean(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_start_matches('\u{feff}');
    let mut out = String::with_capacity(text.len());
    for line in text.split(['\n', '\r', '\0']) {
        match directive(line) {
            Some((Key::UserAgent, agent)) => {
                out.push_str("user-agent: ");
                out.push_str(token(agent));
            }
            Some((Key::Rule, value)) if !value.is_empty() && !value.starts_with(['/', '*']) => {
                // It is no rule, but it ends the list of user agents before it.
                out.push_str("disallow:");
            }
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// The product token that a user agent begins with; `*` is all of them.
fn token(agent: &str) -> &str {
    match agent.strip_prefix('*') {
        Some(rest) if rest.is_empty() || rest.starts_with([' ', '\t']) => "*",
        _ => {
            let end = agent.find(|c: char| !(c.is_ascii_alphabetic() || matches!(c, '-' | '_')));
            agent.get(..end.unwrap_or(agent.len())).unwrap_or(agent)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(text: &str, url: &str) -> bool {
        Robots::parse(text.as_bytes(), "webbase", None).allows(&Url::parse(url).unwrap())
    }

    #[test]
    fn what_robotxt_misses() {
        assert!(!allows("User-agent: WebBase/1.2\nDisallow: /", "http://a/x"));
        assert!(!allows("User-agent: webbase (a crawler)\nDisallow: /", "http://a/x"));
        assert!(allows("User-agent: webbaser\nDisallow: /", "http://a/x"));
        assert!(allows("User-agent: *\nDisallow: a", "http://a/a"));
        assert!(!allows("User-agent: *\nDisallow: *a", "http://a/ba"));
        assert!(!allows("User-agent: webbase\nCrawl-delay: 1\nUser-agent: b\nDisallow: /", "http://a/a"));
        assert!(!allows("User-agent: a\nDisallow: x\nUser-agent: *\nDisallow: /", "http://a/a"));
    }

    #[test]
    fn statuses_mean_what_the_rfc_says() {
        let url = Url::parse("http://a.example/x").unwrap();
        let get = |status| Robots::answered(status, b"User-agent: *\nDisallow: /", "webbase", None, None, 5);
        for (status, allowed) in [
            (200, false),
            (204, false),
            (301, true),
            (401, true),
            (403, true),
            (404, true),
            (410, true),
            (429, false),
            (500, false),
            (503, false),
        ] {
            assert_eq!(get(status).allows(&url), allowed, "{status}");
        }
        assert!(get(503).good_for < get(404).good_for);
    }

    #[test]
    fn a_site_that_is_away_for_a_month_has_no_limits() {
        let (url, day) = (Url::parse("http://a.example/x").unwrap(), 86_400_000);
        let first = Robots::unreachable("no answer".to_owned(), None, day);
        let later = Robots::unreachable("no answer".to_owned(), Some(&first), 20 * day);
        let last = Robots::unreachable("no answer".to_owned(), Some(&later), 32 * day);
        assert_eq!([&first, &later, &last].map(|robots| robots.allows(&url)), [false, false, true]);
    }

    #[test]
    fn delays_are_capped_and_sitemaps_found() {
        let text = b"\xef\xbb\xbfUser-agent: *\nCrawl-delay: 90\nSitemap: /map.xml\nsitemap: ftp://a/\nSitemap: http://b/s.gz #x\n";
        let base = Url::parse("http://a.example/robots.txt").unwrap();
        let robots = Robots::parse(text, "webbase", Some(&base));
        let (second, minute_and_half) = (Duration::from_secs(30), Duration::from_secs(90));
        assert_eq!(robots.delay(second), (second, Some(minute_and_half)));
        assert_eq!(robots.delay(minute_and_half), (minute_and_half, None));
        let sitemaps: Vec<&str> = robots.sitemaps.iter().map(Url::as_str).collect();
        assert_eq!(sitemaps, ["http://a.example/map.xml", "http://b/s.gz"]);
    }

    #[test]
    fn a_huge_file_and_a_web_page_are_read_without_harm() {
        let mut huge = b"User-agent: *\nDisallow: /private/\n".to_vec();
        huge.resize(ROBOTS_BYTES_MAX * 4, b'x');
        let robots = Robots::parse(&huge, "webbase", None);
        assert!(!robots.allows(&Url::parse("http://a/private/1").unwrap()));
        assert!(robots.allows(&Url::parse("http://a/else").unwrap()));
        assert!(allows("<html><body>Disallow: all of it</body></html>", "http://a/x"));
    }
}
