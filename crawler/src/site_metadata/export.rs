//! A site's folder, described: archives, sitemaps and the lines of robots.txt.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use url::Url;

use super::archive::partition;
use super::entry::SiteEntry;
use super::sitemap::sitemaps;

/// Where archives are written, below the site's folder.
const FOLDER: &str = "metadata";
const BEGIN: &str = "# begin of what webbase export-site wrote";
const END: &str = "# end of what webbase export-site wrote";

/// What an export did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exported {
    /// Pages described.
    pub pages: usize,
    /// Archives written.
    pub archives: usize,
    /// Their bytes, gzipped.
    pub archive_bytes: u64,
    /// Sitemap files written.
    pub sitemaps: usize,
    /// Files left out, and why: links to elsewhere, names that are no text, unreadable ones.
    pub skipped: Vec<String>,
}

/// Why a site cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The operating system refused something.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// No place of a site on the web.
    #[error(
        "{0:?} is no base: an http or https URL of the folder, without query, such as https://example.org/docs/"
    )]
    Base(String),
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T, ExportError> {
    result.map_err(|source| ExportError::Io { path: path.to_owned(), source })
}

/// Describes the site in `folder`, which is served at `base`. What an earlier export wrote is replaced.
///
/// # Errors
/// A folder that cannot be read or written, or a base that is none.
pub fn export_site(folder: &Path, base: &str) -> Result<Exported, ExportError> {
    let base = base_of(base)?;
    let mut exported = Exported::default();
    let mut entries = Vec::new();
    scan(folder, "", &mut entries, &mut exported.skipped)?;
    exported.pages = entries.len();
    let maps = sitemaps(&base, &entries);
    let archives = partition(entries);
    let place = folder.join(FOLDER);
    // Beside the old ones, and only then in their place: a crawler never finds a half.
    let beside = folder.join(".metadata-new");
    if beside.exists() {
        at(&beside, fs::remove_dir_all(&beside))?;
    }
    at(&beside, fs::create_dir(&beside))?;
    let mut announced = Vec::new();
    for archive in &archives {
        let name = archive.name.file_name();
        let path = beside.join(&name);
        let bytes = at(&path, archive.to_gzip())?;
        exported.archive_bytes += bytes.len() as u64;
        at(&path, fs::write(&path, bytes))?;
        announced.push(format!("Metadata: {base}{FOLDER}/{name}"));
    }
    exported.archives = archives.len();
    if place.exists() {
        at(&place, fs::remove_dir_all(&place))?;
    }
    at(&place, fs::rename(&beside, &place))?;
    for (name, bytes) in at(folder, maps)? {
        if name == "sitemap.xml" {
            announced.insert(0, format!("Sitemap: {base}{name}"));
        }
        exported.sitemaps += 1;
        write_at_once(&folder.join(name), &bytes)?;
    }
    let robots = folder.join("robots.txt");
    let old = match fs::read(&robots) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => at(&robots, read)?,
    };
    let text = with_block(&String::from_utf8_lossy(&old), &announced);
    write_at_once(&robots, text.as_bytes())?;
    Ok(exported)
}

fn base_of(text: &str) -> Result<String, ExportError> {
    let bad = || ExportError::Base(text.to_owned());
    let url = Url::parse(text).map_err(|_| bad())?;
    let is_place = matches!(url.scheme(), "http" | "https") && url.has_host();
    if !is_place || url.query().is_some() || url.fragment().is_some() {
        return Err(bad());
    }
    let text = String::from(url);
    Ok(if text.ends_with('/') { text } else { text + "/" })
}

/// All files below a folder, hidden ones and our own left out. Links are not followed: a site is what its folder holds.
fn scan(
    folder: &Path,
    below: &str,
    entries: &mut Vec<SiteEntry>,
    skipped: &mut Vec<String>,
) -> Result<(), ExportError> {
    let mut files = Vec::new();
    for file in at(folder, fs::read_dir(folder))? {
        files.push(at(folder, file)?);
    }
    files.sort_by_key(fs::DirEntry::file_name);
    for file in files {
        let path = file.path();
        let Some(name) = file.file_name().to_str().map(str::to_owned) else {
            skipped.push(format!("{}: its name is no text", path.display()));
            continue;
        };
        if name.starts_with('.') || below.is_empty() && is_ours(&name) {
            continue;
        }
        let found = match file.metadata() {
            Ok(found) => found,
            Err(e) => {
                skipped.push(format!("{}: {e}", path.display()));
                continue;
            }
        };
        let encoded = format!("{below}{}", encoded(&name));
        if found.is_dir() {
            scan(&path, &format!("{encoded}/"), entries, skipped)?;
        } else if found.is_file() {
            let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let modified_s = modified.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
            // A folder's index page is what the folder's own URL shows.
            let path = if name == "index.html" { below.to_owned() } else { encoded };
            entries.push(SiteEntry { modified_s, path, bytes: found.len() });
        } else {
            skipped.push(format!("{}: a link or no file", path.display()));
        }
    }
    Ok(())
}

fn is_ours(name: &str) -> bool {
    let numbered = name.strip_prefix("sitemap-").and_then(|rest| rest.strip_suffix(".xml.gz"));
    matches!(name, "robots.txt" | "sitemap.xml" | FOLDER)
        || numbered.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
}

/// A file's name as part of a URL.
fn encoded(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$'()*+,;=@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// A robots.txt with our lines at its end, in place of those of the last time.
fn with_block(old: &str, announced: &[String]) -> String {
    let mut text = String::new();
    let mut ours = false;
    for line in old.lines() {
        match line.trim() {
            BEGIN => ours = true,
            END => ours = false,
            _ if !ours => text += &format!("{line}\n"),
            _ => {}
        }
    }
    let lines = announced.iter().map(|line| format!("{line}\n"));
    let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
    text + gap + BEGIN + "\n" + &lines.collect::<String>() + END + "\n"
}

fn write_at_once(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let beside = path.with_file_name(format!(".{name}-new"));
    at(&beside, fs::write(&beside, bytes))?;
    at(path, fs::rename(&beside, path))
}
