//! The real program as a process: `webbase up`, and commands for it.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
    command.args(args).stdin(Stdio::null());
    command
}

pub(crate) fn run(args: &[&str]) -> Output {
    program(args).output().unwrap()
}

#[track_caller]
pub(crate) fn done(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `webbase up`, killed when it is dropped.
pub(crate) struct Up {
    child: Child,
    pub(crate) server: String,
    /// Where the management server listens.
    pub(crate) said: String,
}

impl Up {
    pub(crate) fn start(dir: &Path, more: &[&str]) -> Up {
        let mut command = program(&["up", "--http", "127.0.0.1:0", "--dir"]);
        let mut child = command.arg(dir).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        let server = said.split_whitespace().find(|word| word.starts_with("http://")).unwrap_or_default();
        let server = server.to_owned();
        // Whatever else it says must not block it.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        assert!(!server.is_empty(), "{said}");
        Up { child, server, said }
    }

    pub(crate) fn pages(&self) -> u64 {
        let counted = done(&["stream", "--format", "count", "--server", &self.server]);
        counted.split_whitespace().nth(2).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Waits until so many pages are served, or more.
    pub(crate) fn has(&self, pages: u64) {
        let until = Instant::now() + LIMIT;
        while self.pages() < pages {
            assert!(Instant::now() < until, "there are {} pages, not {pages}", self.pages());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&done(&["status", "--json", "--server", &self.server])).unwrap()
    }

    /// As Ctrl-C does.
    pub(crate) fn interrupt(mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
        assert!(self.child.wait().unwrap().success(), "it did not end in good order");
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
