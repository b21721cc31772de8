//! The program: a management server, nodes, and what one asks of a repository from a shell.
//!
//! Data goes to stdout, messages to stderr. Exit code 0 means that what was asked was done and is durable; `exit.rs` has the others.

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};

use crate::{cmd, config, exit, traces};

/// A repository server for web pages.
#[derive(Parser)]
#[command(name = "webbase", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", exit::CODES))]
pub(crate) struct Program {
    #[command(flatten)]
    traces: traces::Traces,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  webbase up --demo                              a whole repository in ./webbase-data, with pages to look at
  webbase status
  webbase import crawl.warc.gz
  webbase crawl --contact https://example.org/bot https://www.debian.org/
  webbase get http://example.org/
  webbase stream --format jsonl

A repository of one update node and one read node, as processes of their own:
  webbase mgmt --dir /srv/mgmt --listen 127.0.0.1:7701 --http 127.0.0.1:7700 --replicas 1
  webbase node --dir /srv/u1 --mgmt 127.0.0.1:7701 --role update
  webbase node --dir /srv/r1 --mgmt 127.0.0.1:7701 --role read --organization hash";

#[derive(Subcommand)]
enum Command {
    Up(cmd::up::Up),
    Mgmt(cmd::mgmt::Mgmt),
    Node(cmd::node::Node),
    Status(cmd::status::Status),
    Cycle(cmd::cycle::Cycle),
    Crawl(Box<cmd::crawl::Crawl>),
    Keys(cmd::keys::Keys),
    Get(cmd::get::Get),
    Import(cmd::import::Import),
    Stream(Box<cmd::stream::Stream>),
    Schedule(cmd::schedule::Schedule),
    ExportSite(cmd::export_site::ExportSite),
    Rank(Box<cmd::rank::Rank>),
    #[command(hide = true)]
    RankWorker(cmd::rank::RankWorker),
    Drain(cmd::drain::Drain),
    RemoveLost(cmd::remove_lost::RemoveLost),
    Verify(cmd::verify::Verify),
    Repair(cmd::verify::Repair),
    Backup(cmd::backup::Backup),
    Restore(cmd::restore::Restore),
    Config(cmd::config::Config),
    Completions(cmd::completions::Completions),
    Man(cmd::completions::Man),
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            if !exit::is_reader_gone(&e) {
                eprintln!("webbase: {e:#}");
            }
            exit::code(&e)
        }
    }
}

fn run() -> Result<()> {
    let args =
        config::expand(std::env::args_os().collect(), Program::command(), |name| std::env::var_os(name))?;
    let program = Program::parse_from(args);
    program.traces.start();
    let run = async {
        match program.command {
            Command::Up(command) => command.run().await,
            Command::Mgmt(command) => command.run().await,
            Command::Node(command) => command.run().await,
            Command::Status(command) => command.run().await,
            Command::Cycle(command) => command.run().await,
            Command::Crawl(command) => command.run().await,
            Command::Keys(command) => command.run().await,
            Command::Get(command) => command.run().await,
            Command::Import(command) => command.run().await,
            Command::Stream(command) => command.run().await,
            Command::Schedule(command) => command.run().await,
            Command::ExportSite(command) => command.run(),
            Command::Rank(command) => command.run().await,
            Command::RankWorker(command) => command.run().await,
            Command::Drain(command) => command.run().await,
            Command::RemoveLost(command) => command.run().await,
            Command::Verify(command) => command.run().await,
            Command::Repair(command) => command.run().await,
            Command::Backup(command) => command.run().await,
            Command::Restore(command) => command.run().await,
            Command::Config(command) => command.run().await,
            Command::Completions(command) => command.run().await,
            Command::Man(command) => command.run().await,
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.context("cannot start threads")?.block_on(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Program::command().debug_assert();
    }

    #[test]
    fn addresses_and_roles_are_checked() {
        let parse = |line: &str| Program::try_parse_from(line.split_whitespace());
        assert!(
            parse("webbase node --dir d --mgmt 127.0.0.1:1 --role update --organization hashed-log").is_ok()
        );
        assert!(parse("webbase node --dir d --mgmt 127.0.0.1:1 --role reader").is_err());
        assert!(parse("webbase node --dir d --mgmt nowhere --role read").is_err());
        assert!(parse("webbase mgmt --dir d --range-bits 17").is_err());
        assert!(parse("webbase drain 00000000000000ff").is_ok());
        assert!(parse("webbase drain 12").is_err());
        assert!(parse("webbase up --demo --http 127.0.0.1:0 --log json").is_ok());
        assert!(parse("webbase up --read-nodes 0").is_err());
    }
}
