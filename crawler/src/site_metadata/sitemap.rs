//! A site's sitemaps (sitemaps.org, protocol 0.9), from the same entries.

use std::io::Write;

use super::entry::{SiteEntry, date_time, mime_of};

/// URLs of one sitemap.
const URLS_MAX: usize = 50_000;
const NAMESPACE: &str = "http://www.sitemaps.org/schemas/sitemap/0.9";

/// The files to write: names and contents, the one to announce first.
pub(super) fn sitemaps(base: &str, entries: &[SiteEntry]) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let listed: Vec<&SiteEntry> = entries.iter().filter(|entry| is_page(&entry.path)).collect();
    if listed.len() <= URLS_MAX {
        return Ok(vec![("sitemap.xml".into(), url_set(base, &listed))]);
    }
    let mut index =
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<sitemapindex xmlns=\"{NAMESPACE}\">\n");
    let mut files = Vec::new();
    for (number, part) in listed.chunks(URLS_MAX).enumerate() {
        let name = format!("sitemap-{number}.xml.gz");
        let newest = part.iter().map(|entry| entry.modified_s).max().unwrap_or(0);
        index += &format!(
            "<sitemap><loc>{}</loc><lastmod>{}</lastmod></sitemap>\n",
            escaped(&format!("{base}{name}")),
            date_time(newest)
        );
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&url_set(base, part))?;
        files.push((name, gzip.finish()?));
    }
    index += "</sitemapindex>\n";
    files.insert(0, ("sitemap.xml".into(), index.into_bytes()));
    Ok(files)
}

fn url_set(base: &str, entries: &[&SiteEntry]) -> Vec<u8> {
    let mut text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<urlset xmlns=\"{NAMESPACE}\">\n");
    for entry in entries {
        text += &format!(
            "<url><loc>{}</loc><lastmod>{}</lastmod></url>\n",
            escaped(&format!("{base}{}", entry.path)),
            date_time(entry.modified_s)
        );
    }
    text += "</urlset>\n";
    text.into_bytes()
}

/// Pages that people look for; not what pages are made of.
fn is_page(path: &str) -> bool {
    let mime = mime_of(path);
    matches!(
        mime,
        "text/html" | "application/xhtml+xml" | "application/pdf" | "text/plain" | "application/xml"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&apos;")
}
