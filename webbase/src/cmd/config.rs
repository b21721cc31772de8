//! `webbase config`: look at a file of settings before somebody depends on it.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::CommandFactory;

use crate::config;

/// Check a file of settings.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase config check /etc/webbase/webbase.toml

Exit code 0: the commands would start with it; 2: it names the setting that makes no sense.")]
pub(crate) struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Say whether every section and every setting is one, and has a value that makes sense.
    Check {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl Config {
    pub(crate) async fn run(self) -> Result<()> {
        let What::Check { file } = self.what;
        let found = config::check(&file, &crate::Program::command())?;
        ensure!(!found.is_empty(), "{} has no sections", file.display());
        eprintln!("{}: [{}] would start", file.display(), found.join("], ["));
        Ok(())
    }
}
