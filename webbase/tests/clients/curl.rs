//! curl: ranges, and downloads that go on where they ended.

use crate::tools::{Repository, curl, tool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_fetches_ranges_and_goes_on() {
    if tool("curl").is_none() {
        return;
    }
    let repository = Repository::start().await;
    let base = repository.base();
    let line = curl(&[&format!("{base}/cdx?url=www.example.org/image.png&output=json")]).await;
    let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
    let file = format!("{base}/warcs/{}", line["filename"].as_str().unwrap());
    let whole = curl(&[&file]).await;
    assert_eq!(whole.len().to_string(), line["length"].as_str().unwrap());
    assert_eq!(curl(&["-r", "100-199", &file]).await, whole[100..200]);
    assert_eq!(curl(&["-r", "-50", &file]).await, whole[whole.len() - 50..]);
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("part.warc.gz");
    std::fs::write(&part, &whole[..70_000]).unwrap();
    curl(&["-C", "-", "-o", part.to_str().unwrap(), &file]).await;
    assert!(std::fs::read(&part).unwrap() == whole);
}
