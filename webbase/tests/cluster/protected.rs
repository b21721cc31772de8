//! A repository that strangers could reach: members know each other by their keys, and nobody else gets in.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::fleet::{Fleet, program};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_know_each_other_by_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys = |name: &str| folder.path().join(name).display().to_string();
    let (ours, others) = (keys("ours"), keys("others"));
    for dir in [&ours, &others] {
        assert!(program(&["keys", dir]).status.success());
    }
    let again = program(&["keys", &ours]);
    assert!(!again.status.success() && text(&again.stderr).contains("left alone"), "{again:?}");
    let mode = std::fs::metadata(Path::new(&ours).join("key.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "nobody else may read it");

    let mut fleet = Fleet::new(1, &["--keys", &ours]);
    let reached = ["--listen", "0.0.0.0:0", "--advertise", "127.0.0.1:0"];
    fleet.node("b0", &[&["--role", "both", "--keys", &ours], &reached[..]].concat());
    let cycle = fleet.command(&["cycle", "--keys", &ours]);
    assert!(cycle.status.success(), "{cycle:?}");
    let status = fleet.command(&["status", "--json", "--keys", &ours]);
    assert!(status.status.success() && text(&status.stdout).contains("127.0.0.1:"), "{status:?}");

    for strangers in [&[][..], &["--keys", &others]] {
        let refused = fleet.command(&[&["status"], strangers].concat());
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    }
    let dir = keys("node");
    for (args, why) in [
        (&["--listen", "0.0.0.0:0"][..], "token"),
        (&["--listen", "0.0.0.0:0", "--keys", &ours], "advertise"),
        (&["--keys", &dir], "webbase keys"),
    ] {
        let node = program(&[&["node", "--role", "both", "--dir", &dir], args].concat());
        assert!(!node.status.success() && text(&node.stderr).contains(why), "{why}: {node:?}");
    }
}
