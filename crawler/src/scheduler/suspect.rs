//! Is a URL that nobody has read an XML page? Going by its suffix, and by where the link stood.

/// Suffixes of XML pages.
const XML: [&str; 15] = [
    "xml", "rss", "atom", "wml", "rdf", "xsl", "xslt", "xsd", "svg", "xhtml", "opml", "owl", "smil", "gml",
    "kml",
];
/// Suffixes of pages that are certainly something else.
const OTHER: [&str; 30] = [
    "html", "htm", "shtml", "php", "asp", "aspx", "jsp", "cgi", "txt", "pdf", "ps", "gif", "jpg", "jpeg",
    "png", "webp", "ico", "css", "js", "json", "zip", "gz", "tgz", "exe", "mp3", "mp4", "avi", "doc", "xls",
    "csv",
];

/// Whether a URL is an XML suspect: its suffix is one of XML, or it has an unknown suffix (or none) and the link to it was
/// found in an XML page.
pub fn is_xml_suspect(url: &str, linked_from_xml: bool) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    // The host's name is no path: `http://feeds.xml` is not a suspect.
    let path = path.split_once("://").map_or(path, |(_, rest)| rest);
    let Some((_, path)) = path.split_once('/') else {
        return linked_from_xml;
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((_, suffix)) = name.rsplit_once('.') else {
        return linked_from_xml;
    };
    let suffix = suffix.to_ascii_lowercase();
    XML.contains(&suffix.as_str()) || linked_from_xml && !OTHER.contains(&suffix.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_and_places_make_suspects() {
        for url in ["http://a.org/x.xml", "http://a.org/feed.RSS?x=1", "a.org/b/c.wml#top"] {
            assert!(is_xml_suspect(url, false) && is_xml_suspect(url, true), "{url}");
        }
        for url in ["http://a.org/x.html", "http://a.org/p.jpg"] {
            assert!(!is_xml_suspect(url, false) && !is_xml_suspect(url, true), "{url}");
        }
        for url in ["http://a.org/data", "http://a.org/x.unknown", "http://feeds.xml", "http://a.org/"] {
            assert!(!is_xml_suspect(url, false) && is_xml_suspect(url, true), "{url}");
        }
    }
}
