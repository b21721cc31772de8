//! The program: a management server, nodes, and what one asks of a repository from a shell.
//!
//! Data goes to stdout, messages to stderr. Exit code 0 means that what was asked was done and is durable.

mod client;
mod cmd;
mod traces;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A repository server for web pages.
#[derive(Parser)]
#[command(name = "webbase", version, after_help = EXAMPLES)]
struct Program {
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
    Stream(cmd::stream::Stream),
    Drain(cmd::drain::Drain),
    RemoveLost(cmd::remove_lost::RemoveLost),
}

fn main() -> ExitCode {
    let program = Program::parse();
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
            Command::Stream(command) => command.run().await,
            Command::Drain(command) => command.run().await,
            Command::RemoveLost(command) => command.run().await,
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run),
        Err(e) => Err(anyhow::Error::new(e).context("cannot start threads")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("webbase: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
