//! pywb replays pages straight from the repository: the index by two dialects and as XML with records from `/warcs/`, and
//! records from `/web/resource`.

use std::time::Duration;

use tokio::process::Command;

use crate::tools::{HOME, Repository, TIME, curl, run, tool};

fn configuration(base: &str) -> String {
    let host = base.strip_prefix("http://").unwrap();
    let index = format!("http://{host}/web/cdx?url={{url}}&closest={{closest}}&sort=closest");
    format!(
        "collections:\n\
         \x20 ob:\n    index_paths: cdx+http://{host}/web\n    archive_paths: http://{host}/warcs/\n\
         \x20 cdxj:\n    index: {{type: cdx, api_url: \"{index}\", replay_url: \"\"}}\n    archive_paths: http://{host}/warcs/\n\
         \x20 wsrv:\n    index: {{type: cdx, api_url: \"{index}\", replay_url: \"http://{host}/web/resource?url={{url}}&closest={{timestamp}}\"}}\n\
         \x20 xml:\n    index_paths: xmlquery+http://{host}/web\n    archive_paths: http://{host}/warcs/\n"
    )
}

/// A port that was free a moment ago.
fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pywb_replays_in_four_configurations() {
    let (Some(wayback), Some(_)) = (tool("wayback"), tool("curl")) else { return };
    let repository = Repository::start().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.yaml"), configuration(&repository.base())).unwrap();
    let port = port().to_string();
    let errors = std::fs::File::create(folder.path().join("errors")).unwrap();
    let mut pywb = Command::new(wayback)
        .args(["-b", "127.0.0.1", "-p", &port])
        .current_dir(folder.path())
        .env("NO_PROXY", "*")
        .env("no_proxy", "*")
        .stdout(std::process::Stdio::null())
        .stderr(errors)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let site = format!("http://127.0.0.1:{port}");
    let mut up = false;
    for _ in 0..300 {
        // Whether it listens cannot be waited for otherwise.
        tokio::time::sleep(Duration::from_millis(100)).await;
        up = run(Command::new("curl").args(["-sf", "-o", "/dev/null", &site])).await.status.success();
        if up {
            break;
        }
    }
    let said = || std::fs::read_to_string(folder.path().join("errors")).unwrap_or_default();
    assert!(up, "pywb did not start: {}", said());
    for collection in ["ob", "cdxj", "wsrv", "xml"] {
        let page = curl(&[&format!("{site}/{collection}/{TIME}mp_/http://example.org/")]).await;
        let text = String::from_utf8_lossy(&page);
        assert!(text.contains("<p>the home page</p>"), "{collection}: {text}\n{}", said());
        let raw = curl(&[&format!("{site}/{collection}/{TIME}id_/http://example.org/")]).await;
        assert_eq!(String::from_utf8_lossy(&raw), HOME, "{collection}");
        let image = curl(&[&format!("{site}/{collection}/{TIME}id_/http://example.org/image.png")]).await;
        assert_eq!(image.len(), 200_000, "{collection}: found by another spelling");
        let bare = curl(&[&format!("{site}/{collection}/{TIME}id_/http://example.org/bare.txt")]).await;
        assert_eq!(String::from_utf8_lossy(&bare), "no head", "{collection}: a resource record");
        let status = ["-o", "/dev/null", "-w", "%{http_code}"];
        let none = format!("{site}/{collection}/{TIME}mp_/http://example.org/never");
        let status = curl(&[&status[..], &[&none]].concat()).await;
        assert_eq!(String::from_utf8_lossy(&status), "404", "{collection}");
    }
    pywb.kill().await.unwrap();
}
