//! What is to be imported: the files named, and those in the folders named.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail, ensure};
use reqwest::Url;

/// Folders within folders, at most so deep.
const DEPTH_MAX: usize = 64;

/// One request's worth.
pub(super) enum Input {
    /// An archive.
    Archive { path: PathBuf, bytes: u64 },
    /// Pages as files.
    Pages { folder: PathBuf, pages: Vec<PageFile>, bytes: u64 },
}

/// A file that is a page.
pub(super) struct PageFile {
    pub(super) path: PathBuf,
    pub(super) url: Url,
    pub(super) mime: &'static str,
    /// When the file was changed, which is taken for when the page was fetched.
    pub(super) at_ms: u64,
}

impl Input {
    pub(super) fn name(&self) -> String {
        match self {
            Input::Archive { path, .. } => path.display().to_string(),
            Input::Pages { folder, .. } => folder.display().to_string(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Input::Archive { bytes, .. } | Input::Pages { bytes, .. } => *bytes,
        }
    }
}

/// Finds what the paths name; in folders, in the order of names.
pub(super) fn find(paths: &[PathBuf], base: Option<&Url>) -> Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for path in paths {
        let about = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if !about.is_dir() {
            inputs.push(Input::Archive { path: path.clone(), bytes: about.len() });
            continue;
        }
        let mut files = Vec::new();
        walk(path, 0, &mut files)?;
        match base {
            Some(base) => inputs.push(pages(path, files, base)?),
            None => {
                let before = inputs.len();
                for (file, bytes, _) in files.into_iter().filter(|(file, ..)| is_archive(file)) {
                    inputs.push(Input::Archive { path: file, bytes });
                }
                ensure!(
                    inputs.len() > before,
                    "there is no WARC file in {}; if its files are pages, --base says at which URL they were",
                    path.display()
                );
            }
        }
    }
    Ok(inputs)
}

fn is_archive(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let endings = [".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz"];
    endings.iter().any(|ending| name.ends_with(ending))
}

type Found = (PathBuf, u64, u64);

fn walk(folder: &Path, depth: usize, found: &mut Vec<Found>) -> Result<()> {
    if depth > DEPTH_MAX {
        bail!("{} is nested too deep", folder.display());
    }
    let unreadable = || format!("cannot read {}", folder.display());
    let mut entries = std::fs::read_dir(folder).with_context(unreadable)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        // Links are not followed: they may go round in circles.
        let kind = entry.file_type().with_context(unreadable)?;
        if kind.is_dir() {
            walk(&entry.path(), depth + 1, found)?;
        } else if kind.is_file() {
            let about = entry.metadata().with_context(unreadable)?;
            let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            found.push((entry.path(), about.len(), changed.map_or(0, |since| since.as_millis() as u64)));
        }
    }
    Ok(())
}

fn pages(folder: &Path, files: Vec<Found>, base: &Url) -> Result<Input> {
    ensure!(matches!(base.scheme(), "http" | "https"), "{base} is no address of pages");
    let (mut pages, mut all) = (Vec::new(), 0);
    for (path, bytes, at_ms) in files {
        let mut url = base.clone();
        let within = path.strip_prefix(folder).unwrap_or(&path);
        let mut segments = url.path_segments_mut().map_err(|()| anyhow::anyhow!("{base} has no path"))?;
        segments.pop_if_empty().extend(within.iter().map(|part| part.to_string_lossy()));
        drop(segments);
        pages.push(PageFile { mime: mime(&path), path, url, at_ms });
        all += bytes;
    }
    ensure!(!pages.is_empty(), "there is no file in {}", folder.display());
    Ok(Input::Pages { folder: folder.to_owned(), pages, bytes: all })
}

fn mime(path: &Path) -> &'static str {
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    match &ending[..] {
        "html" | "htm" | "" => "text/html",
        "xhtml" => "application/xhtml+xml",
        "xml" => "application/xml",
        "txt" | "md" => "text/plain",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_hold_archives_or_pages() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        let paths = [folder.path().to_owned()];
        write("a/ä b.html");
        assert!(find(&paths, None).err().unwrap().to_string().contains("--base"));
        let inputs = find(&paths, Some(&"https://h/docs/".parse().unwrap())).unwrap();
        let [Input::Pages { pages, bytes: 1, .. }] = &inputs[..] else { panic!("no pages") };
        assert_eq!(pages[0].url.as_str(), "https://h/docs/a/%C3%A4%20b.html");
        write("b/2.warc.gz");
        write("b/1.WARC");
        let names: Vec<String> = find(&paths, None).unwrap().iter().map(Input::name).collect();
        assert!(names.len() == 2 && names[0].ends_with("1.WARC"), "{names:?}");
        assert!(find(&["/nowhere/at/all".into()], None).is_err());
    }
}
