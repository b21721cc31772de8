//! cdx_toolkit against `/web/cdx`: it pages until there is nothing more. It waits seconds between requests to one host.

use tokio::process::Command;

use crate::tools::{Repository, run, tool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cdx_toolkit_pages_through_a_prefix() {
    let Some(cdxt) = tool("cdxt") else { return };
    let repository = Repository::start().await;
    let source = format!("{}/web/cdx", repository.base());
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(cdxt);
    command.env("HOME", home.path()).env("NO_PROXY", "*").env("no_proxy", "*");
    let asked =
        run(command.args(["--source", &source, "--limit", "1000", "iter", "http://example.org/docs/*"]))
            .await;
    let text = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    assert_eq!(text.lines().filter(|line| line.contains("example.org/docs/")).count(), 40, "{text}");
}
