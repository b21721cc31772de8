//! Everything here that parses foreign bytes or bytes of a disk, for the fuzz targets in `fuzz/` and for a short run in the ordinary
//! tests.

use url::Url;

use crate::robots::Robots;
use crate::site_metadata::{SiteEntry, read_archive};
use crate::sitemap::{SITEMAP_ENTRIES_MAX, Sitemap};

/// Bytes as what a site says of itself: a robots file, a sitemap or feed, a metadata archive.
pub fn site(data: &[u8]) {
    let Ok(base) = Url::parse("http://a.example/b/") else { return };
    let robots = Robots::parse(data, "webbase", Some(&base));
    robots.allows(&base);
    robots.delay(std::time::Duration::from_secs(60));
    let sitemap = Sitemap::read(data, &base);
    assert!(sitemap.pages.len() + sitemap.sitemaps.len() <= SITEMAP_ENTRIES_MAX);
    for entry in read_archive(data).0 {
        assert!(!entry.path.starts_with('/') && SiteEntry::from_line(&entry.line()).is_some(), "{entry:?}");
    }
}

/// Bytes as files of a crawl and as parts of a link matrix; as they are, and with a checksum that holds.
pub fn crawl_files(data: &[u8]) {
    let mut summed = data.to_vec();
    summed.extend_from_slice(&webbase_storage::crc64(data).to_le_bytes());
    for bytes in [data, &summed] {
        crate::crawl::fuzz_files(bytes);
        crate::link_matrix::fuzz_parts(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SITES: [&[u8]; 4] = [
        b"User-agent: *\nDisallow: /a*b$\nCrawl-delay: 3\nSitemap: /s.xml\n",
        b"<?xml version=\"1.0\"?><urlset><url><loc>http://a.example/1</loc><lastmod>2020-01-02</lastmod></url></urlset>",
        b"<rss><channel><item><link>http://a.example/2</link></item></channel></rss>",
        b"http://a.example/3\nhttp://a.example/4\n",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_harm_nobody(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            site(&data);
            crawl_files(&data);
        }

        #[test]
        fn damaged_files_harm_nobody(at in any::<usize>(), mask in any::<u8>(), cut in 0..60_usize) {
            let samples = crate::crawl::fuzz_samples().into_iter().chain(crate::link_matrix::fuzz_samples());
            for mut data in samples.chain(SITES.map(<[u8]>::to_vec)) {
                let len = data.len();
                data[at % len] ^= mask;
                data.truncate(len - cut.min(len));
                site(&data);
                crawl_files(&data);
            }
        }
    }
}
