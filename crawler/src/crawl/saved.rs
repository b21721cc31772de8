//! How a crawl's bandwidth is shared out, kept in its folder: for whoever asks while it does not run, and for the next run.
//!
//! The file `schedule.json` is `{"version": 1, "settings": {…}}`, replaced as a whole.

use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CrawlError;
use crate::scheduler::Settings;

const NAME: &str = "schedule.json";
const VERSION: u32 = 1;

#[derive(Deserialize)]
struct Head {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    settings: Settings,
}

/// The settings that the last run of the crawl in a folder had; `None` where none had a bandwidth.
///
/// # Errors
/// When the file cannot be read, or is of another version.
pub fn saved_schedule(dir: &Path) -> Result<Option<Settings>, CrawlError> {
    let wrong = |why: String| CrawlError::Saved { path: dir.join(NAME).display().to_string(), why };
    let bytes = match std::fs::read(dir.join(NAME)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| wrong(e.to_string()))?,
    };
    let head: Head = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
    if head.version != VERSION {
        return Err(wrong(format!("it has version {}, this program knows {VERSION}", head.version)));
    }
    let saved: Saved = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
    saved.settings.check()?;
    Ok(Some(saved.settings))
}

/// Keeps settings: old or new after a crash, nothing between.
pub(super) fn save_schedule(dir: &Path, settings: &Settings) -> Result<(), CrawlError> {
    let path = dir.join(NAME);
    let written = || -> io::Result<()> {
        let saved = Saved { version: VERSION, settings: settings.clone() };
        let beside = path.with_extension("new");
        std::fs::write(&beside, serde_json::to_vec_pretty(&saved).map_err(io::Error::other)?)?;
        File::open(&beside)?.sync_all()?;
        std::fs::rename(beside, &path)?;
        File::open(dir)?.sync_all()
    };
    written().map_err(|e| CrawlError::Saved { path: path.display().to_string(), why: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::{BuiltIn, Chi};

    #[test]
    fn settings_are_kept_and_other_versions_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(saved_schedule(dir.path()).unwrap(), None);
        let policy = BuiltIn::Xyleme { alpha: 0.5 };
        let (chi, longest_wait_days) = (Chi::Share(0.25), None);
        let settings = Settings { bandwidth: 17.5, policy, chi, longest_wait_days, ..Settings::default() };
        save_schedule(dir.path(), &settings).unwrap();
        assert_eq!(saved_schedule(dir.path()).unwrap(), Some(settings));
        for bad in ["", "{}", r#"{"version": 2}"#, r#"{"version": 1, "settings": {}}"#] {
            std::fs::write(dir.path().join(NAME), bad).unwrap();
            assert!(saved_schedule(dir.path()).is_err(), "{bad}");
        }
    }
}
