//! What the documents tell people to type is typed: every line that begins with `$` in a `console` block of README.md and docs/ is
//! run in a shell, in order, against a demo, and has to end with exit code 0. Links to files lead to files.
//!
//! Some lines are done in another way to the same end: cargo has built what it is told to build, its examples are run as it has
//! built them (with the rest of the workspace); a repository that a document starts, in one process or in many, gets ports that the
//! system chooses; and where people take a moment between starting nodes and using them, it is waited until they are there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn documents() -> Vec<PathBuf> {
    let mut all = vec![root().join("README.md")];
    all.extend(std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    all.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    all.sort();
    all
}

/// The commands of a document.
fn commands(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if inside => all.extend(line.strip_prefix("$ ").map(str::to_owned)),
            _ => {}
        }
    }
    all
}

/// A repository in a process.
struct Up {
    child: Child,
    server: String,
    management: String,
}

impl Up {
    fn start(command: &mut Command) -> Up {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        // Whatever else it says must not block it.
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        let server = said.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        let management = said.split("management server at ").nth(1).unwrap();
        let management = management.trim().trim_end_matches(')').to_owned();
        Up { child, server: server.trim_end_matches('/').to_owned(), management }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A repository of processes: lines that end with `&`.
#[derive(Default)]
struct Fleet {
    /// What the document calls the management server's address, and where it is.
    management: Option<(String, String)>,
    /// Shells, each with its own group of processes.
    shells: Vec<Child>,
    nodes: usize,
}

impl Fleet {
    fn start(&mut self, line: &str, mut shell: Command) {
        use std::os::unix::process::CommandExt;
        let line = self.meant(line);
        shell.stdin(Stdio::null()).stderr(Stdio::null()).process_group(0);
        if !line.contains("webbase mgmt") {
            // `for n in 1 2; do … & done` starts two.
            let listed = line.strip_prefix("for n in ").and_then(|rest| rest.split(';').next());
            self.nodes += listed.map_or(1, |listed| listed.split_whitespace().count());
            let shell = shell.args(["-c", &format!("{line}\nwait")]).stdout(Stdio::null());
            self.shells.push(shell.spawn().unwrap());
            return;
        }
        let named = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap().to_owned();
        let free = line.replace(&named, "127.0.0.1:0");
        let mut child = shell.args(["-c", &format!("{free}\nwait")]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
        let address =
            said.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line} said {said:?}"));
        self.management = Some((named, address.to_owned()));
        self.shells.push(child);
    }

    /// A line with the address that is meant.
    fn meant(&self, line: &str) -> String {
        self.management
            .as_ref()
            .map_or_else(|| line.to_owned(), |(named, address)| line.replace(named, address))
    }

    /// Waits until all nodes are there.
    fn joined(&self) {
        let Some((_, address)) = &self.management else { return };
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let mut status = Command::new(env!("CARGO_BIN_EXE_webbase"));
            let told = status.args(["status", "--json", "--mgmt", address]).output().unwrap();
            let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
            if told["nodes"].as_array().is_some_and(|nodes| nodes.len() == self.nodes)
                && told["ranges"]["unread"] == 0
                && told["ranges"]["unwritten"] == 0
            {
                return;
            }
            assert!(Instant::now() < until, "the nodes do not come: {told}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for shell in &mut self.shells {
            // They may have ended already.
            let _ = rustix::process::kill_process_group(
                rustix::process::Pid::from_child(shell),
                rustix::process::Signal::KILL,
            );
            let _ = shell.wait();
        }
    }
}

/// Runs the lines of one document.
struct Reader<'a> {
    dir: TempDir,
    demo: &'a Up,
    /// What the document has started.
    own: Option<Up>,
    fleet: Fleet,
    /// Whether it said that its own is meant from now on.
    moved: bool,
}

impl Reader<'_> {
    /// The exit code and what stderr has; nothing where there is nothing to do.
    fn run(&mut self, line: &str) -> Option<Output> {
        let program = Path::new(env!("CARGO_BIN_EXE_webbase"));
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(args) = line.strip_prefix("webbase up ") {
            let mut command = Command::new(program);
            command.arg("up").current_dir(self.dir.path());
            for word in args.trim_end_matches('&').split_whitespace() {
                command.arg(if word.starts_with("127.0.0.1:") { "127.0.0.1:0" } else { word });
            }
            self.own = Some(Up::start(&mut command));
            return None;
        }
        if line.starts_with("export WEBBASE_SERVER=") {
            self.moved = true;
            return None;
        }
        if let Some(at) = words.iter().position(|word| *word == "--example").filter(|_| words[0] == "cargo") {
            let example = program.parent().unwrap().join("examples").join(words[at + 1]);
            if !example.is_file() {
                eprintln!("SKIPPED: {} is not built (cargo test --workspace does)", example.display());
                return None;
            }
            let management = &self.own.as_ref().unwrap_or(self.demo).management;
            let args = words[at + 2..].iter().filter(|word| **word != "--");
            let args = args.map(|word| if word.starts_with("127.0.0.1:") { management } else { *word });
            return Some(Command::new(example).args(args).output().unwrap());
        }
        if line.starts_with("cargo ") {
            return None;
        }
        if line.starts_with("curl ") && Command::new("curl").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no curl for {line}");
            return None;
        }
        let server = match &self.own {
            Some(own) if self.moved => &own.server,
            _ => &self.demo.server,
        };
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.current_dir(self.dir.path()).env("PATH", &path).env("WEBBASE_SERVER", server);
        if line.ends_with('&') || line.ends_with("& done") {
            self.fleet.start(line, command);
            return None;
        }
        if line.contains("--mgmt") {
            self.fleet.joined();
        }
        Some(command.args(["-c", &self.fleet.meant(line)]).stdin(Stdio::null()).output().unwrap())
    }
}

#[test]
fn what_the_documents_say_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_webbase"));
    command.args(["up", "--demo", "--http", "127.0.0.1:0", "--dir"]).arg(folder.path().join("data"));
    let demo = Up::start(&mut command);
    let reader = || Reader {
        dir: tempfile::tempdir().unwrap(),
        demo: &demo,
        own: None,
        fleet: Fleet::default(),
        moved: false,
    };
    let until = Instant::now() + Duration::from_secs(60);
    // The crawl has to have got somewhere before there is something to read.
    let enough = "test $(webbase stream --format jsonl --domain test --mime text/html | wc -l) -gt 150";
    while !reader().run(enough).unwrap().status.success() {
        assert!(Instant::now() < until, "the demo does not fill");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut failed = Vec::new();
    let mut count = 0;
    for document in documents() {
        let mut reader = reader();
        for line in commands(&std::fs::read_to_string(&document).unwrap()) {
            let Some(output) = reader.run(&line) else { continue };
            count += 1;
            if !output.status.success() {
                let stderr = String::from_utf8_lossy(&output.stderr);
                failed.push(format!("{}: {line}\n{stderr}", document.display()));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count > 20, "only {count} commands were found");
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.contains("://") {
                let path = document.parent().unwrap().join(file);
                assert!(path.exists(), "{} links to {link}", document.display());
            }
        }
    }
}
