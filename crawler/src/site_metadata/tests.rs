//! Sites described and read back.

use super::*;

fn entry(n: u32) -> SiteEntry {
    let path = match n % 40 {
        0 => format!("feed{n}.xml"),
        k if k < 25 => format!("page{n}.html"),
        _ => format!("pictures/p%20{n}.png"),
    };
    SiteEntry { modified_s: 1_700_000_000 + i64::from(n) * 600, path, bytes: u64::from(n) }
}

#[test]
fn every_page_is_in_one_archive_of_a_segment_and_a_group() {
    // In no order.
    let entries: Vec<SiteEntry> = (0..5000).map(|n| entry(n * 7919 % 5000)).collect();
    let archives = partition(entries);
    let names: Vec<String> = archives.iter().map(|archive| archive.name.file_name()).collect();
    // Three segments; 50 feeds make a group of their own, 25 in the last segment go with the others.
    assert_eq!(archives.iter().map(|a| a.name.segment).max(), Some(2));
    assert!(
        names[0].starts_with("0000.2023-11-14--2023-11-28.") && names[0].ends_with(".gz"),
        "{}",
        names[0]
    );
    assert!(names.iter().any(|name| name.starts_with("0000.") && name.contains(".application-xml.")));
    assert!(names.iter().any(|name| name.starts_with("0002.") && name.contains(".other.")));
    let mut all = Vec::new();
    for archive in &archives {
        assert!(archive.entries.len() <= 2000 && archive.entries.is_sorted());
        assert_eq!(ArchiveName::parse(&archive.name.file_name()).as_ref(), Some(&archive.name));
        let (read, bad) = read_archive(&archive.to_gzip().unwrap());
        assert_eq!((&read, bad), (&archive.entries, 0));
        all.extend(read);
    }
    all.sort();
    assert_eq!(all, (0..5000).map(entry).collect::<Vec<_>>());
    let urls: Vec<String> = names.iter().map(|name| format!("http://a.org/metadata/{name}")).collect();
    let recent = wanted(&urls, "2023-12-15", &["image/png"]);
    assert!(recent.iter().all(|url| url.contains("0002.") || url.contains("0001.")) && !recent.is_empty());
    assert!(recent.iter().all(|url| url.contains("image-png") || url.contains("other")));
    assert_eq!(wanted(&urls, "2000-01-01", &[]).len(), urls.len());
    assert!(wanted(&urls, "2999-01-01", &[]).is_empty());
    assert!(partition(Vec::new()).is_empty());
}

#[test]
fn a_folder_is_exported_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    std::fs::create_dir_all(root.join("a b/c")).unwrap();
    for (name, text) in [("index.html", "home"), ("a b/c/d&é.html", "1"), ("x.png", "22"), (".hidden", "no")]
    {
        std::fs::write(root.join(name), text).unwrap();
    }
    std::fs::write(root.join("robots.txt"), "User-agent: *\nDisallow: /private").unwrap();
    std::os::unix::fs::symlink("/etc", root.join("elsewhere")).unwrap();
    let first = export_site(root, "https://example.org/site").unwrap();
    assert_eq!((first.pages, first.archives, first.sitemaps, first.skipped.len()), (3, 1, 1, 1));
    let robots = std::fs::read_to_string(root.join("robots.txt")).unwrap();
    assert!(robots.starts_with("User-agent: *\nDisallow: /private\n"));
    assert!(robots.contains("Sitemap: https://example.org/site/sitemap.xml\n"));
    let archives = archives_in_robots(&robots);
    assert_eq!(archives.len(), 1);
    let name = archives[0].strip_prefix("https://example.org/site/").unwrap();
    let (entries, bad) = read_archive(&std::fs::read(root.join(name)).unwrap());
    let mut paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!((paths, bad), (vec!["", "a%20b/c/d%26%C3%A9.html", "x.png"], 0));
    let sitemap = std::fs::read_to_string(root.join("sitemap.xml")).unwrap();
    assert!(sitemap.contains("<loc>https://example.org/site/a%20b/c/d%26%C3%A9.html</loc><lastmod>20"));
    assert!(!sitemap.contains("x.png"));
    assert_eq!(export_site(root, "https://example.org/site/").unwrap(), first);
    assert_eq!(std::fs::read_to_string(root.join("robots.txt")).unwrap(), robots);
    for base in ["example.org", "ftp://example.org/", "http://example.org/?q", "file:///tmp"] {
        assert!(matches!(export_site(root, base), Err(ExportError::Base(_))), "{base}");
    }
    assert!(export_site(&root.join("nowhere"), "http://a.org/").is_err());
}

#[test]
fn broken_archives_give_what_they_have() {
    let archive = &partition((0..2000).map(entry).collect())[0];
    let whole = archive.to_gzip().unwrap();
    let (all, _) = read_archive(&whole);
    for cut in (0..whole.len()).step_by(97) {
        let (some, _) = read_archive(&whole[..cut]);
        assert!(all.starts_with(&some), "cut at {cut}");
    }
    let text = b"2026-01-01T00:00:00Z a.html 5\nnonsense\n2026-01-01 b 3\n2026-01-01T00:00:00Z /abs 5\n\n";
    let (some, bad) = read_archive(text);
    assert_eq!((some.len(), bad), (1, 3));
    assert_eq!(read_archive(&[0x1f, 0x8b, 0xff]), (Vec::new(), 0));
    for name in [
        "x.gz",
        "0000.2026-01-01--x.html.gz",
        "a.2026-01-01--2026-01-02.html.gz",
        "0000.2026-01-01--2026-01-02..gz",
    ] {
        assert_eq!(ArchiveName::parse(name), None, "{name}");
    }
}
