//! Schemathesis asks everything that the description says can be asked: answers are of the kinds that are described, and nothing breaks.

use tokio::process::Command;

use crate::tools::{Repository, run, tool};

/// Of each operation.
const EXAMPLES: &str = "8";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_described_is_what_is_answered() {
    let Some(tool) = tool("schemathesis") else { return };
    let repository = Repository::start().await;
    let base = repository.base();
    // It leaves notes where it runs.
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(tool);
    command.current_dir(folder.path());
    command.args(["run", &format!("{base}/openapi.json"), "--url", &base]);
    // Only what changes nothing. Events have no end, and a stream of everything is a long answer.
    command.args(["--include-method", "GET", "--exclude-path", "/console/events"]);
    command.args([
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        EXAMPLES,
        "--seed",
        "7",
        "--workers",
        "2",
    ]);
    // What is sent may make no sense; the answer has to.
    let checks =
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    command.args(["--checks", checks]);
    command.args(["--request-timeout", "20", "--no-color", "--generation-database", "none"]);
    let output = run(&mut command).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
