//! SURT keys: the text under which the archive tools sort and search URLs.
//!
//! A key turns the host around and folds spellings that usually are one document, so that the pages of a site lie
//! together in a sorted index: `http://www.Example.com:80/Path/?b=2&a=1#f` is `com,example)/path?a=1&b=2`. A key
//! *finds* pages, in a list that somebody then looks through; it is never their identity, which is [`crate::url`]'s.
//! Which URLs fold is a [`Profile`], named and versioned, because tools disagree and an index must say by which rules
//! it is sorted. The rules, in order:
//!
//! 1. Outer blanks go, and tabs and newlines anywhere. Without a scheme it is `http`; a name with a port number is a
//!    host, not a scheme: `localhost:8080/x`. In `http`, `https`, `ftp`, `ws`, `wss` and `file`, `\` is `/`.
//! 2. Scheme, userinfo, fragment and the scheme's default port go. The host is read as browsers do (IDNA, numbers as
//!    addresses) and turned around, without empty labels; an IPv6 address stays as it is, without brackets. Any other
//!    port follows the host: `com,example:8080)/`.
//! 3. Path and query are percent-decoded until nothing changes, and encoded once: bytes up to the blank, from 0x7f on,
//!    `#` and `%`, as `%xx`.
//! 4. Dot segments of a path are resolved, then `//` is `/` and the last slash goes, unless it is all there is.
//! 5. Session ids go: of the parameters `sid`, `phpsessid` and `jsessionid` with 32 letters and digits,
//!    `aspsessionid` + 8 letters with 24 letters, `cfid` followed by `cftoken`; of the path a segment like
//!    `(S(24 letters and digits))` if `.aspx` comes later.
//! 6. Parameters are sorted by name, then by value. An empty query goes.
//! 7. A URL without a host (`dns:`, `urn:`, `mailto:`) keeps its scheme, and rules 3, 5 and 6 hold for the rest; a last
//!    slash goes.
//!
//! `surt-ia-1`, the default, does as the Internet Archive's tools do: one leading `www.` or `www` + digits + `.` goes
//! where at least two labels are left, and everything is lower case. `strict-1` keeps both; its hosts are lower
//! case, because they are so to everybody.
//!
//! | URL | `surt-ia-1` | `strict-1` |
//! |---|---|---|
//! | `http://www.Example.com:80/Path/?b=2&a=1#f` | `com,example)/path?a=1&b=2` | `com,example,www)/Path?a=1&b=2` |
//! | `http://example.com/a/./b/../c//d/` | `com,example)/a/c/d` | the same |
//! | `http://example.com/%7Efoo/%2525` | `com,example)/~foo/%25` | the same |
//! | `http://bücher.example/ä?ö=1` | `example,xn--bcher-kva)/%c3%a4?%c3%b6=1` | the same |
//! | `http://1.2.3.4/x`, `http://[::1]:8080/x` | `4,3,2,1)/x`, `::1:8080)/x` | the same |
//! | `dns:Example.com` | `dns:example.com` | `dns:Example.com` |
//!
//! Invariants, for every URL that [`crate::url::canonical`] accepts:
//!
//! 1. There is a key, it has at least one byte, and every byte of it is in 0x21 to 0x7e. So a key with a blank behind
//!    it sorts before every longer key, and `[k, k!)` has the key `k` and nothing else.
//! 2. Two `http` or `https` URLs with one canonical form have one key: what finds the page finds it in the index.
//! 3. The key of a URL with plain characters is made without parsing it, and is the same (`plain.rs`).
//!
//! Where keys differ from Python `surt` 0.3.1 is listed with the reasons in `tests/surt_cases.rs`.

mod parsed;
mod plain;
mod query;

use crate::url::{URL_BYTES_MAX, UrlError};

/// A set of rules by which keys are made; see the [module](self). An index says which one it is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Profile {
    /// `surt-ia-1`: as the Internet Archive's tools, pywb and Common Crawl.
    #[default]
    Ia1,
    /// `strict-1`: keeps `www.` and the case of path and query.
    Strict1,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 2] = [Profile::Ia1, Profile::Strict1];

    /// Returns the profile's name, with its version.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Ia1 => "surt-ia-1",
            Profile::Strict1 => "strict-1",
        }
    }

    /// Finds a profile by its name.
    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name() == name)
    }

    /// Returns the key of a URL.
    ///
    /// # Errors
    ///
    /// [`UrlError`] says what is wrong with the text. A key may be longer than its URL, up to three times.
    ///
    /// ```
    /// use webbase_storage::surt::Profile;
    /// assert_eq!(Profile::Ia1.key("http://www.example.com/B?z&a")?, "com,example)/b?a&z");
    /// assert_eq!(Profile::Strict1.key("http://www.example.com/B?z&a")?, "com,example,www)/B?a&z");
    /// # Ok::<(), webbase_storage::url::UrlError>(())
    /// ```
    pub fn key(self, url: &str) -> Result<String, UrlError> {
        let mut out = String::with_capacity(url.len().min(URL_BYTES_MAX));
        self.key_into(url, &mut out)?;
        Ok(out)
    }

    /// Appends the key of a URL to `out`, for callers who make many and keep the buffer.
    ///
    /// # Errors
    ///
    /// As [`Profile::key`]; `out` is then as it was.
    pub fn key_into(self, url: &str, out: &mut String) -> Result<(), UrlError> {
        if url.len() > URL_BYTES_MAX {
            return Err(crate::url::too_long(url, url.len()));
        }
        let start = out.len();
        if plain::push(self, url, out) {
            return Ok(());
        }
        out.truncate(start);
        parsed::push(self, url, out).inspect_err(|_| out.truncate(start))
    }

    /// Returns the keys that a question about `url` means.
    ///
    /// # Errors
    ///
    /// As [`Profile::key`].
    ///
    /// ```
    /// use webbase_storage::surt::{Match, Profile};
    /// let range = Profile::Ia1.range("http://example.com/a/", Match::Prefix)?;
    /// assert_eq!((range.start.as_str(), range.end.as_str()), ("com,example)/a/", "com,example)/a0"));
    /// # Ok::<(), webbase_storage::url::UrlError>(())
    /// ```
    pub fn range(self, url: &str, by: Match) -> Result<KeyRange, UrlError> {
        let mut key = self.key(url)?;
        let page = url.split_once('#').map_or(url, |(page, _)| page);
        match by {
            Match::Exact => {}
            Match::Prefix => {
                // The key has lost a last `/` or `?` that the asker wants all pages to have.
                let last = page.trim_end().chars().next_back();
                if let Some(last @ ('/' | '?')) = last
                    && !key.ends_with(last)
                {
                    key.push(last);
                }
            }
            Match::Host | Match::Domain => {
                if let Some(at) = key.find(")/") {
                    key.truncate(at);
                }
            }
        }
        Ok(KeyRange::of(&key, by))
    }
}

/// Which keys a question is about, seen from the key of its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Match {
    /// This key.
    #[default]
    Exact,
    /// All keys that begin so.
    Prefix,
    /// All keys of the host, on its default port.
    Host,
    /// All keys of the host and of the hosts below it, on their default ports as far as this host goes.
    Domain,
}

/// The keys from `start` on, before `end`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The first key that belongs to it, if there is such a key.
    pub start: String,
    /// The first key that no longer does.
    pub end: String,
}

impl KeyRange {
    /// Returns the range around a key, or around the turned host `com,example` where a host or domain is asked for.
    pub fn of(key: &str, by: Match) -> KeyRange {
        let (start, end) = match by {
            Match::Exact => (key.to_owned(), format!("{key}!")),
            Match::Prefix => (key.to_owned(), after(key)),
            Match::Host => (format!("{key})/"), format!("{key}*")),
            Match::Domain => (format!("{key})/"), format!("{key}-")),
        };
        KeyRange { start, end }
    }

    /// Returns whether a key is in it.
    pub fn contains(&self, key: &str) -> bool {
        self.start.as_str() <= key && key < self.end.as_str()
    }
}

/// The first text after all that begin with `prefix`. Keys end at 0x7e, so that 0x7f is still a character behind them.
fn after(prefix: &str) -> String {
    let mut end = prefix.to_owned();
    match end.pop() {
        Some(last) if last.is_ascii() && last < '\x7f' => end.push(char::from(last as u8 + 1)),
        Some(last) => end.extend([last, '\x7f']),
        None => end.push('\x7f'),
    }
    end
}

/// Appends a host turned around, with its port.
fn push_host(profile: Profile, host: &str, port: Option<u16>, out: &mut String) {
    let host = if profile == Profile::Ia1 { without_www(host) } else { host };
    let start = out.len();
    for label in host.rsplit('.').filter(|label| !label.is_empty()) {
        if out.len() > start {
            out.push(',');
        }
        push_lower(label, out);
    }
    if let Some(port) = port {
        out.push(':');
        out.push_str(&port.to_string());
    }
}

/// The host without one leading `www`, with digits or not, if two labels are left without it: `www1.com` is a site of
/// its own, not all of `com`.
fn without_www(host: &str) -> &str {
    let Some((first, rest)) = host.split_once('.') else { return host };
    let is_www = first.len() >= 3
        && first.as_bytes().iter().enumerate().all(|(n, byte)| match n {
            0..3 => byte.eq_ignore_ascii_case(&b'w'),
            _ => byte.is_ascii_digit(),
        });
    if is_www && rest.trim_matches('.').contains('.') { rest } else { host }
}

/// Appends `text`, which is ASCII, in lower case.
fn push_lower(text: &str, out: &mut String) {
    let start = out.len();
    out.push_str(text);
    if let Some(new) = out.get_mut(start..) {
        new.make_ascii_lowercase();
    }
}

/// Appends `text` in the case that the profile gives to paths and queries.
fn push_folded(profile: Profile, text: &str, out: &mut String) {
    match profile {
        Profile::Ia1 => push_lower(text, out),
        Profile::Strict1 => out.push_str(text),
    }
}

#[cfg(test)]
mod tests;
