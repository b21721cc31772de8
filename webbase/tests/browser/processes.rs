//! A repository of processes: a management server with a gateway, an update node, two read nodes.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Repository {
    folder: TempDir,
    management: String,
    console: String,
    members: Vec<(&'static str, Child)>,
}

impl Repository {
    pub(crate) fn start() -> Repository {
        let folder = tempfile::tempdir().unwrap();
        let mut command = program();
        command.args(["mgmt", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--replicas", "1"]);
        command
            .args(["--range-bits", "4", "--down-after-ms", "1500", "--dir"])
            .arg(folder.path().join("mgmt"));
        let (child, lines) = spawn(command, 2);
        let told = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
        let (management, console) = (told("listening on "), format!("http://{}/", told("http on ")));
        let mut repository = Repository { folder, management, console, members: vec![("mgmt", child)] };
        for name in ["u1", "r1", "r2"] {
            repository.restart(name);
        }
        repository
    }

    pub(crate) fn console(&self) -> String {
        self.console.clone()
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a node in its folder.
    pub(crate) fn restart(&mut self, name: &'static str) {
        let role = if name.starts_with('u') { "update" } else { "read" };
        let mut command = program();
        command.args(["node", "--mgmt", &self.management, "--role", role, "--heartbeat-ms", "200", "--dir"]);
        command.arg(self.dir(name));
        self.members.push((name, spawn(command, 1).0));
    }

    /// As a power failure would.
    pub(crate) fn kill(&mut self, name: &str) {
        let at = self.members.iter().position(|(member, _)| *member == name).unwrap();
        let (_, mut child) = self.members.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        for (_, child) in self.members.iter_mut().rev() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Starts it and waits for its first lines.
fn spawn(mut command: Command, count: usize) -> (Child, Vec<String>) {
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (said, hear) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..count {
            let mut line = String::new();
            if out.read_line(&mut line).is_err() || said.send(line.trim().to_owned()).is_err() {
                return;
            }
        }
        // Whatever else it says must not block it.
        let _ = out.read_to_end(&mut Vec::new());
    });
    let lines = (0..count).map(|_| hear.recv_timeout(LIMIT).expect("it says where it listens")).collect();
    (child, lines)
}
