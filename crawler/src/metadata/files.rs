//! Files whose errors name them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::{MetadataError, Result};

/// Attaches a path to an error of the operating system.
pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|source| MetadataError::Io { path: path.to_owned(), source })
}

pub(super) fn corrupt<T>(path: &Path, offset: u64, what: &'static str) -> Result<T> {
    Err(MetadataError::Corrupt { path: path.to_owned(), offset, what })
}

/// Replaces a small file: old or new after a crash, nothing between.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside: PathBuf = path.with_extension("new");
    at(&beside, std::fs::write(&beside, bytes))?;
    at(&beside, File::open(&beside).and_then(|file| file.sync_all()))?;
    at(path, std::fs::rename(&beside, path))?;
    sync_folder_of(path)
}

/// Makes a name durable.
pub(super) fn sync_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    at(folder, File::open(folder).and_then(|file| file.sync_all()))
}
