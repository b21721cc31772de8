//! One page of a site, as a line.

use jiff::Timestamp;

/// A page as its site describes it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SiteEntry {
    /// When it was last modified.
    pub modified_s: i64,
    /// Its path below the site's base, percent-encoded, without a leading slash.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
}

impl SiteEntry {
    /// The line of an archive, without its end.
    pub fn line(&self) -> String {
        // The site's own first page has an empty path, which a line cannot show.
        let path = if self.path.is_empty() { "./" } else { &self.path };
        format!("{} {path} {}", date_time(self.modified_s), self.bytes)
    }

    /// Reads a line; `None` if it is none.
    pub fn from_line(line: &str) -> Option<SiteEntry> {
        let mut parts = line.split_ascii_whitespace();
        let modified: Timestamp = parts.next()?.parse().ok()?;
        let path = parts.next()?;
        let path = path.strip_prefix("./").unwrap_or(path).to_owned();
        let bytes = parts.next()?.parse().ok()?;
        let sound = parts.next().is_none() && !path.starts_with('/') && !path.contains("://");
        sound.then_some(SiteEntry { modified_s: modified.as_second(), path, bytes })
    }
}

/// A moment as archives and sitemaps write it.
pub(super) fn date_time(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// Its day.
pub(super) fn day(seconds: i64) -> String {
    let mut text = date_time(seconds);
    if let Some(at) = text.find('T') {
        text.truncate(at);
    }
    text
}

/// The MIME type that a path's suffix says.
pub fn mime_of(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let suffix = name.rsplit_once('.').map_or("", |(_, suffix)| suffix).to_ascii_lowercase();
    match suffix.as_str() {
        // A folder is served by its index page.
        "" if name.is_empty() => "text/html",
        "html" | "htm" | "shtml" => "text/html",
        "xhtml" => "application/xhtml+xml",
        "xml" | "rss" | "atom" | "rdf" | "xsl" | "xsd" => "application/xml",
        "txt" | "md" => "text/plain",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "svg" => "image/svg+xml",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "pdf" => "application/pdf",
        "ps" => "application/postscript",
        "mp3" => "audio/mpeg",
        "mp4" => "video/mp4",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "woff" | "woff2" | "ttf" => "font/ttf",
        _ => "application/octet-stream",
    }
}
