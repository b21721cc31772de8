//! Archives: entries cut into segments and groups, their names, and reading them back.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use super::entry::{SiteEntry, day, mime_of};

/// Entries of a segment.
const SEGMENT: usize = 2000;
/// A group with fewer entries is merged with others.
const GROUP_MIN: usize = 50;
/// No archive of ours unpacks to more; a longer one is cut there.
const UNPACKED_BYTES_MAX: u64 = 64 << 20;

/// The name of an archive, which says what is in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ArchiveName {
    /// The segment, from 0 for the oldest pages.
    pub segment: u32,
    /// The first day on which one of its pages was modified, as `2026-01-04`.
    pub from: String,
    /// The last one.
    pub to: String,
    /// The MIME type with `-` for `/`, or `other`.
    pub group: String,
}

impl ArchiveName {
    /// The file's name.
    pub fn file_name(&self) -> String {
        format!("{:04}.{}--{}.{}.gz", self.segment, self.from, self.to, self.group)
    }

    /// Reads a file's name, or a URL's last part; `None` if it is no archive's.
    pub fn parse(name: &str) -> Option<ArchiveName> {
        let name = name.rsplit('/').next()?.strip_suffix(".gz")?;
        let (segment, rest) = name.split_once('.')?;
        let (range, group) = rest.split_once('.')?;
        let (from, to) = range.split_once("--")?;
        let is_day = |text: &str| text.parse::<jiff::civil::Date>().is_ok();
        let is_group = !group.is_empty() && group.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        (is_day(from) && is_day(to) && is_group).then_some(ArchiveName {
            segment: segment.parse().ok()?,
            from: from.to_owned(),
            to: to.to_owned(),
            group: group.to_owned(),
        })
    }

    /// Whether pages of a MIME type can be in it.
    pub fn may_hold(&self, mime: &str) -> bool {
        self.group == "other" || self.group == group_name(mime)
    }
}

/// An archive to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Archive {
    /// Its name.
    pub name: ArchiveName,
    /// Its entries, oldest first.
    pub entries: Vec<SiteEntry>,
}

impl Archive {
    /// Its lines, gzipped.
    pub fn to_gzip(&self) -> std::io::Result<Vec<u8>> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        for entry in &self.entries {
            writeln!(gzip, "{}", entry.line())?;
        }
        gzip.finish()
    }
}

/// Cuts a site's entries into archives.
pub fn partition(mut entries: Vec<SiteEntry>) -> Vec<Archive> {
    entries.sort();
    let mut archives = Vec::new();
    for (segment, entries) in (0..).zip(entries.chunks(SEGMENT)) {
        let mut groups: BTreeMap<String, Vec<SiteEntry>> = BTreeMap::new();
        for entry in entries {
            groups.entry(group_name(mime_of(&entry.path))).or_default().push(entry.clone());
        }
        let (large, small): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(_, group)| group.len() >= GROUP_MIN);
        let mut other: Vec<SiteEntry> = small.into_iter().flat_map(|(_, group)| group).collect();
        other.sort();
        let other = Some(("other".to_owned(), other)).filter(|(_, group)| !group.is_empty());
        for (group, entries) in large.into_iter().chain(other) {
            let days =
                entries.first().zip(entries.last()).map(|(a, b)| (day(a.modified_s), day(b.modified_s)));
            let (from, to) = days.unwrap_or_default();
            archives.push(Archive { name: ArchiveName { segment, from, to, group }, entries });
        }
    }
    archives
}

fn group_name(mime: &str) -> String {
    mime.replace('/', "-")
}

/// Reads an archive, gzipped or plain: its entries, and how many lines were none. Never fails: what is cut off or broken ends
/// it there, and what is readable counts.
pub fn read_archive(bytes: &[u8]) -> (Vec<SiteEntry>, usize) {
    let mut text = Vec::new();
    let gzipped = bytes.starts_with(&[0x1f, 0x8b]);
    let mut unpacked: Box<dyn Read + '_> =
        if gzipped { Box::new(flate2::read::MultiGzDecoder::new(bytes)) } else { Box::new(bytes) };
    // A broken stream still gives what came before.
    let broken = unpacked.by_ref().take(UNPACKED_BYTES_MAX).read_to_end(&mut text).is_err();
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let cut = broken && !text.ends_with('\n') && lines.pop().is_some();
    let entries: Vec<SiteEntry> = lines.iter().filter_map(|line| SiteEntry::from_line(line)).collect();
    let bad = lines.len() - entries.len() + usize::from(cut);
    (entries, bad)
}

/// The URLs of archives that a robots.txt announces.
pub fn archives_in_robots(robots: &str) -> Vec<String> {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let value = value.split('#').next().unwrap_or(value).trim();
        let ours = name.trim().eq_ignore_ascii_case("metadata") && ArchiveName::parse(value).is_some();
        ours.then(|| value.to_owned())
    };
    robots.lines().filter_map(value).collect()
}

/// Which archives a crawler reads that was last here on a day, and wants some MIME types (none: all).
pub fn wanted<'a>(archives: &'a [String], since_day: &str, mimes: &[&str]) -> Vec<&'a str> {
    let useful = |url: &&String| {
        ArchiveName::parse(url).is_some_and(|name| {
            name.to.as_str() >= since_day
                && (mimes.is_empty() || mimes.iter().any(|mime| name.may_hold(mime)))
        })
    };
    archives.iter().filter(useful).map(String::as_str).collect()
}
