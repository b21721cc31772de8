//! `webbase completions` and `webbase man`: what shells and `man` want to know.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

/// Write what a shell needs to complete commands and flags to stdout.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  webbase completions bash > /etc/bash_completion.d/webbase
  webbase completions fish > ~/.config/fish/completions/webbase.fish")]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Completions {
    pub(crate) async fn run(self) -> Result<()> {
        clap_complete::generate(
            self.shell,
            &mut crate::Program::command(),
            "webbase",
            &mut std::io::stdout(),
        );
        Ok(())
    }
}

/// Write manual pages, one for each command, into a folder.
#[derive(clap::Args)]
#[command(after_help = "Example:
  webbase man /usr/local/share/man/man1")]
pub(crate) struct Man {
    /// The folder; made if it is not there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Man {
    pub(crate) async fn run(self) -> Result<()> {
        let dir = self.dir.display().to_string();
        std::fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {dir}"))?;
        let program = crate::Program::command().disable_help_subcommand(true);
        clap_mangen::generate_to(program, &self.dir).with_context(|| format!("cannot write to {dir}"))?;
        eprintln!("the pages are in {dir}; `man -l {dir}/webbase.1` shows the first");
        Ok(())
    }
}
