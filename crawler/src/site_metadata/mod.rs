//! Metadata that a site publishes about its own pages, so that crawlers read only what changed: written and read.
//!
//! ```text
//!   metadata/0002.2026-01-04--2026-01-22.text-html.gz     an archive: segment, first and last day, MIME group
//!     2026-01-04T16:01:30Z people/pics/colorbars.gif 99999     a line a page: modified, path (percent-encoded), bytes
//!   sitemap.xml, or an index with sitemap-N.xml.gz          the same for everybody else
//!   robots.txt                                              names them all:  Sitemap: URL,  Metadata: URL
//! ```
//!
//! Entries are sorted by modification date and cut into segments of 2000; each segment is split by MIME type, groups of fewer
//! than 50 are merged into `other`, and every group is gzipped into a file of its own. Every page is in exactly one archive.
//! A crawler that was last here on some day reads the archives whose range ends on that day or later, and of these only the
//! groups it wants; it knows the bytes of every page before it asks for one.

mod archive;
mod entry;
mod export;
mod sitemap;
#[cfg(test)]
mod tests;

pub use archive::{Archive, ArchiveName, archives_in_robots, partition, read_archive, wanted};
pub use entry::{SiteEntry, mime_of};
pub use export::{ExportError, Exported, export_site};
