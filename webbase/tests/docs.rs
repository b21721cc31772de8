//! What the documents tell people to type is typed: every line that begins with `$` in a `console` block of README.md and docs/ is
//! run in a shell, in order, against a demo, and has to end with exit code 0. Links to files lead to files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// The commands of a document. Those for cargo are what runs this.
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
    all.retain(|command| !command.starts_with("cargo ") && !command.starts_with("benches/"));
    all
}

#[test]
fn what_the_documents_say_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_webbase"));
    let mut command = Command::new(program);
    command.args(["up", "--demo", "--http", "127.0.0.1:0", "--dir"]).arg(folder.path().join("data"));
    let mut up = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(up.stdout.take().unwrap());
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let server =
        said.split_whitespace().find(|word| word.starts_with("http://")).unwrap().trim_end_matches('/');
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let shell = |line: &str, dir: &Path| {
        let mut command = Command::new("bash");
        command.args(["-c", line]).current_dir(dir).stdin(Stdio::null());
        command.env("PATH", &path).env("WEBBASE_SERVER", server).output().unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !shell("webbase get http://laurel-lantern-0.test/", folder.path()).status.success() {
        assert!(Instant::now() < until, "the demo is not filled");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut failed = Vec::new();
    let mut count = 0;
    for document in documents() {
        let dir = tempfile::tempdir().unwrap();
        for line in commands(&std::fs::read_to_string(&document).unwrap()) {
            count += 1;
            let output = shell(&line, dir.path());
            if !output.status.success() {
                failed.push(format!(
                    "{}: {line}\n{}",
                    document.display(),
                    String::from_utf8_lossy(&output.stderr)
                ));
            }
        }
    }
    up.kill().unwrap();
    up.wait().unwrap();
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
