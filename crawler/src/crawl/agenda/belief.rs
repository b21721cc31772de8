//! What sites say of their pages: whether that is true, until when it counts, and when it is read again.
//!
//! ```text
//!   the file `sites`: "WBCS", version 1 4, number of sites 8, of each, in order of their names: length of its name 2, name, truths 4,
//!   lies 4, when its list was last read 8 (0: never); CRC-64 of the above 8
//! ```
//!
//! It is written now and then. After a kill it is as it was then, which costs a few requests. What is damaged is as if it were not
//! there; a file of a later version is refused.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::super::summed_file::{self, summed, unsummed};
use super::DAY_MS;
use crate::frontier::What;
use crate::scheduler::Publication;
use crate::site_metadata::ArchiveName;

/// How often sitemaps and metadata archives are read again, a day.
const SITEMAPS_A_DAY: f64 = 4.0;
/// An archive of pages that last changed longer ago than this is not going to change.
const ARCHIVE_MS: u64 = 3 * 86_400_000;
/// Pages that a site may call changed wrongly before nobody believes it.
const LIES: u32 = 4;

/// Sites of which that is remembered.
const SITES_MAX: usize = 1 << 20;
const MAGIC: [u8; 4] = *b"WBCS";
const VERSION: u32 = 1;

/// What a site says of its pages, and whether that is true.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Belief {
    pub(super) truths: u32,
    pub(super) lies: u32,
    /// When its list of pages was last read, if that has dates.
    pub(super) listed_at_ms: Option<u64>,
}

impl Belief {
    pub(super) fn is_believed(&self) -> bool {
        self.lies < LIES || self.lies <= self.truths
    }
}

/// What is remembered of sites, by host.
#[derive(Debug, Default)]
pub(super) struct Sites(HashMap<String, Belief>);

impl Sites {
    /// Opens what was saved, if anything was that makes sense.
    pub(super) fn open(path: &Path) -> io::Result<Sites> {
        let Some(bytes) = summed_file::read(path)? else { return Ok(Sites::default()) };
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
        Sites::decode(&bytes).map(Option::unwrap_or_default).map_err(wrong)
    }

    /// Writes it beside the file, and then in its place.
    pub(super) fn save(&self, path: &Path) -> io::Result<()> {
        summed_file::replace(path, &self.encode())
    }

    /// What is remembered of a site.
    pub(super) fn of(&self, host: &str) -> Belief {
        self.0.get(host).copied().unwrap_or_default()
    }

    /// The same, to be changed.
    pub(super) fn of_mut(&mut self, host: &str) -> &mut Belief {
        if self.0.len() >= SITES_MAX && !self.0.contains_key(host) {
            self.0.clear();
        }
        self.0.entry(host.to_owned()).or_default()
    }

    fn encode(&self) -> Vec<u8> {
        // A name that is longer than its length can say is none of a host's.
        let mut sites: Vec<_> =
            self.0.iter().filter(|(host, _)| host.len() <= usize::from(u16::MAX)).collect();
        sites.sort_unstable_by_key(|(host, _)| *host);
        let mut bytes = [MAGIC, VERSION.to_le_bytes()].concat();
        bytes.extend_from_slice(&(sites.len() as u64).to_le_bytes());
        for (host, belief) in sites {
            bytes.extend_from_slice(&(host.len() as u16).to_le_bytes());
            bytes.extend_from_slice(host.as_bytes());
            bytes.extend_from_slice(&belief.truths.to_le_bytes());
            bytes.extend_from_slice(&belief.lies.to_le_bytes());
            bytes.extend_from_slice(&belief.listed_at_ms.unwrap_or(0).to_le_bytes());
        }
        summed(bytes)
    }

    /// Reads a file; `None` when it is damaged, or none.
    fn decode(bytes: &[u8]) -> Result<Option<Sites>, String> {
        let Some(body) = unsummed(bytes).and_then(|body| body.strip_prefix(&MAGIC)) else { return Ok(None) };
        let Some((version, body)) = body.split_first_chunk::<4>() else { return Ok(None) };
        match u32::from_le_bytes(*version) {
            VERSION => Ok(sites(body)),
            found => Err(format!(
                "it has version {found}, this program knows {VERSION}: remove it, and what sites are worth believing is found out anew"
            )),
        }
    }
}

/// The number of sites, and each of them.
fn sites(body: &[u8]) -> Option<Sites> {
    let (count, mut rest) = body.split_first_chunk::<8>()?;
    let mut sites = HashMap::new();
    let mut before = None;
    while !rest.is_empty() {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let (host, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        let (truths, after) = after.split_first_chunk::<4>()?;
        let (lies, after) = after.split_first_chunk::<4>()?;
        let (listed, after) = after.split_first_chunk::<8>()?;
        let host = std::str::from_utf8(host).ok().filter(|host| before < Some(*host))?;
        (before, rest) = (Some(host), after);
        let (truths, lies) = (u32::from_le_bytes(*truths), u32::from_le_bytes(*lies));
        let listed_at_ms = Some(u64::from_le_bytes(*listed)).filter(|at| *at > 0);
        sites.insert(host.to_owned(), Belief { truths, lies, listed_at_ms });
    }
    (sites.len() as u64 == u64::from_le_bytes(*count)).then_some(Sites(sites))
}

/// Bytes as the file: what is read is written as it was.
#[cfg(any(fuzzing, test))]
pub(in super::super) fn fuzz(bytes: &[u8]) {
    if let Ok(Some(sites)) = Sites::decode(bytes) {
        assert_eq!(sites.encode(), bytes);
    }
}

/// A file of two sites, without its checksum.
#[cfg(test)]
pub(in super::super) fn fuzz_sample() -> Vec<u8> {
    let mut bytes = two().encode();
    bytes.truncate(bytes.len() - 8);
    bytes
}

#[cfg(test)]
fn two() -> Sites {
    let mut sites = Sites::default();
    *sites.of_mut("b.test") = Belief { truths: 3, lies: 9, listed_at_ms: None };
    *sites.of_mut("a.test") = Belief { truths: 1, lies: 0, listed_at_ms: Some(1_700_000_000_000) };
    sites
}

/// Until when a list of pages that was read at a moment counts: a little longer than to the next one.
pub(super) fn until_listed(at_ms: u64) -> u64 {
    at_ms.saturating_add((1.1 * DAY_MS / SITEMAPS_A_DAY) as u64)
}

/// How often a sitemap or an archive is read again.
pub(super) fn reading_of(what: What, url: &str, read_at_ms: u64) -> Publication {
    let past = |name: ArchiveName| {
        let day: Option<jiff::civil::Date> = name.to.parse().ok();
        let end = day.and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC).ok());
        let end_ms = end.map_or(0, |end| end.timestamp().as_millisecond().max(0) as u64);
        read_at_ms > end_ms.saturating_add(ARCHIVE_MS)
    };
    match what {
        // New archives are found by the robots file.
        What::Archive if ArchiveName::parse(url).is_some_and(past) => Publication::Never,
        _ => Publication::FixedRefresh(SITEMAPS_A_DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sites_said_is_kept_and_damage_is_as_if_nothing_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sites");
        assert!(Sites::open(&path).unwrap().0.is_empty(), "there is none");
        let kept = two();
        kept.save(&path).unwrap();
        assert_eq!(Sites::open(&path).unwrap().0, kept.0);
        assert!(!kept.of("b.test").is_believed() && kept.of("a.test").is_believed());
        assert!(kept.of("unheard-of.test").is_believed());
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Sites::decode(&damaged).unwrap().is_none(), "byte {at} damaged");
            assert!(Sites::decode(&bytes[..at]).unwrap().is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let refused = Sites::decode(&summed(b"WBCS\x02\0\0\0whatever comes then".to_vec())).unwrap_err();
        assert!(refused.contains("it has version 2, this program knows 1"), "{refused}");
    }
}
