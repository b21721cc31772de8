//! What sites say of their pages: whether that is true, until when it counts, and when it is read again.

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

/// What a site says of its pages, and whether that is true.
#[derive(Debug, Default)]
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
