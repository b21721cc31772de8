//! The world's clock, which runs fast and stands while nobody runs it: the moment it shows is kept in a file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use webbase_web_in_a_box::Clock;

/// The world's clock is so much faster than ours: ten minutes a second.
const SPEED: f64 = 600.0;
/// Between two moments that are kept.
const KEPT_EVERY: Duration = Duration::from_secs(2);

pub(super) struct KeptClock {
    clock: Clock,
    path: PathBuf,
}

impl KeptClock {
    /// Goes on from the moment in a file, or from the first moment where there is no file.
    pub(super) fn open(path: PathBuf, at_first_ms: u64) -> Result<KeptClock> {
        let from_ms = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().with_context(|| format!("{} has no moment", path.display()))?,
            Err(e) if e.kind() == ErrorKind::NotFound => at_first_ms,
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(KeptClock { clock: Clock::running(from_ms.max(at_first_ms), SPEED), path })
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Keeps the moment, again and again.
    pub(super) async fn keep(self) {
        loop {
            if let Err(e) = write(&self.path, self.clock.now_ms()) {
                tracing::warn!("the demo's clock is not kept in {}: {e}", self.path.display());
            }
            tokio::time::sleep(KEPT_EVERY).await;
        }
    }
}

/// Puts a new file in the place of the old one, so that there is a whole one at any time.
fn write(path: &Path, moment_ms: u64) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, format!("{moment_ms}\n"))?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_goes_on_where_it_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clock");
        let clock = KeptClock::open(path.clone(), 1_000_000).unwrap();
        let shown = clock.clock();
        let keeping = tokio::spawn(clock.keep());
        tokio::time::sleep(Duration::from_secs(5)).await;
        keeping.abort();
        assert_eq!(shown.now_ms(), 1_000_000 + 5 * 600_000);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let again = KeptClock::open(path.clone(), 1_000_000).unwrap().clock().now_ms();
        assert_eq!(again, 1_000_000 + 4 * 600_000, "the last moment that was kept");
        std::fs::write(&path, "noon").unwrap();
        assert!(KeptClock::open(path, 0).is_err());
    }
}
