//! Fetching alone: the URLs of a file through the web interface, with robots files, turns and limits, and what comes is counted
//! and let go.
//!
//!   fetch URLS CONNECTIONS \[SECONDS\]
//!
//! The list is asked for again and again until the time is over. Prints answers a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use webbase_crawler::fetcher::{Dns, Fetcher, Politeness, Priority, Reach, Settings, Wanted};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, urls, connections, rest @ ..] = arguments.as_slice() else {
        return Err("fetch URLS CONNECTIONS [SECONDS]".into());
    };
    let seconds: u64 = rest.first().map_or(Ok(10), |text| text.parse())?;
    let urls = std::fs::read_to_string(urls)?;
    let urls: Vec<url::Url> = urls.lines().map(str::parse).collect::<Result<_, _>>()?;
    let politeness = Politeness { delay: Duration::ZERO, address_delay: None, ..Politeness::default() };
    let connections = connections.parse()?;
    let settings = Settings { reach: Reach::Loopback, connections, politeness, ..Settings::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (fetcher, mut outcomes) = Fetcher::start(settings, Arc::new(Dns::of_system()?))?;
        let (began, time) = (Instant::now(), Duration::from_secs(seconds));
        let (mut out, mut answers, mut bytes, mut others) = (0, 0_u64, 0_u64, 0_u64);
        let mut next = urls.iter().cycle();
        let mut taken = Vec::new();
        while began.elapsed() < time {
            while out < 20_000
                && let Some(url) = next.next()
            {
                if fetcher.want(Wanted::new(url.clone(), Priority::Discovery)).is_none() {
                    out += 1;
                }
            }
            let count = outcomes.recv_many(&mut taken, 1024).await;
            out -= count;
            for outcome in taken.drain(..) {
                match outcome.result {
                    Ok(answer) if answer.status == 200 => {
                        answers += 1;
                        bytes += answer.body.len() as u64;
                    }
                    _ => others += 1,
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{:.0} pages/s, {:.1} MB/s, {others} others",
            answers as f64 / seconds,
            bytes as f64 / seconds / 1e6
        );
        Ok(())
    })
}
