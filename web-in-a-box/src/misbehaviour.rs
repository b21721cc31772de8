//! Sites that misbehave, each in one way, byte for byte as the worst of the web does.
//!
//! Their `/robots.txt` is an ordinary 404 unless it is what they misbehave with.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::{Served, Visit};
use crate::site;

/// A request's head is read up to this.
const REQUEST_MAX: usize = 64 * 1024;

/// How a site misbehaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Every page redirects to another one of the site.
    EndlessRedirects,
    /// Every page redirects to a URL.
    RedirectTo(String),
    /// A body of which a byte comes now and then.
    SlowBytes(Duration),
    /// A head of which a byte comes now and then.
    SlowHead(Duration),
    /// The connection is taken, and nothing ever comes.
    Silent,
    /// The connection is closed before an answer.
    HangsUp,
    /// What comes back is not HTTP.
    Garbage,
    /// Headers without end.
    EndlessHead,
    /// A body without end.
    EndlessBody,
    /// A body that ends this many bytes before its `Content-Length`.
    TooShort(usize),
    /// A body that goes on this many bytes after its `Content-Length`.
    TooLong(usize),
    /// A gzip body that unpacks to this many bytes of nothing.
    GzipBomb(usize),
    /// Bytes that are no gzip, called so.
    BrokenGzip,
    /// A robots file of this many bytes, which forbids `/private/` first.
    HugeRobots(usize),
    /// A robots file that is a web page.
    HtmlRobots,
    /// A robots file that gets this status; pages are well.
    RobotsStatus(u16),
    /// A robots file that redirects to a URL; pages are well.
    RobotsRedirect(String),
    /// A robots file with this text.
    RobotsText(String),
    /// Every page gets this status, with `Retry-After` in seconds.
    Status(u16, Option<u32>),
    /// A picture that is called HTML.
    WrongMime,
    /// A calendar: every day links to the next ones, for ever.
    Calendar,
    /// An XML document whose entities unfold without end.
    EntityBomb,
    /// An XML document whose definition, `/page.dtd`, comes under a type of its own.
    ForeignPart,
    /// An XML document with an external entity that names a file of the reader's machine.
    ExternalEntity,
}

/// Answers one request, badly.
pub(crate) async fn serve(how: Misbehaviour, served: Arc<Served>, mut connection: TcpStream) {
    // However it ends, the other side sees; the box goes on.
    let _ = misbehave(&how, &served, &mut connection).await;
}

async fn misbehave(how: &Misbehaviour, served: &Served, to: &mut TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() > REQUEST_MAX || to.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or("/").to_owned();
    let header = |wanted: &str| {
        let mut lines = request.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim().to_owned())
    };
    let at = served.age();
    let status = match (how, path.as_str()) {
        (
            Misbehaviour::HugeRobots(_)
            | Misbehaviour::HtmlRobots
            | Misbehaviour::RobotsStatus(_)
            | Misbehaviour::RobotsRedirect(_)
            | Misbehaviour::RobotsText(_),
            "/robots.txt",
        ) => robots(how, to).await,
        (_, "/robots.txt") => whole(to, 404, "text/plain", &[], b"none\n").await,
        _ => page(how, &path, to).await,
    };
    served.log(Visit {
        at,
        answered_at: served.age(),
        host: header("host").unwrap_or_default(),
        path,
        status: *status.as_ref().unwrap_or(&0),
        conditional: header("if-none-match").or(header("if-modified-since")).is_some(),
        user_agent: header("user-agent").unwrap_or_default(),
    });
    status.and(to.shutdown().await)
}

/// A whole, well-formed answer.
async fn whole(
    to: &mut TcpStream,
    status: u16,
    mime: &str,
    more: &[(&str, String)],
    body: &[u8],
) -> std::io::Result<u16> {
    let mut head = format!("HTTP/1.1 {status} Something\r\nConnection: close\r\nContent-Type: {mime}\r\n");
    for (name, value) in more {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !more.iter().any(|(name, _)| *name == "Content-Length") {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    to.write_all(head.as_bytes()).await?;
    to.write_all(body).await?;
    Ok(status)
}

async fn robots(how: &Misbehaviour, to: &mut TcpStream) -> std::io::Result<u16> {
    match how {
        Misbehaviour::HugeRobots(bytes) => {
            // Its head and its first rules come at once, however long it is.
            let rules = b"User-agent: *\nDisallow: /private/\n";
            let told = [("Content-Length", bytes.max(&rules.len()).to_string())];
            whole(to, 200, "text/plain", &told, rules).await?;
            let more = b"Disallow: /never/again\n".repeat(1000);
            let mut left = bytes.saturating_sub(rules.len());
            while left > 0 {
                let some = more.get(..left).unwrap_or(&more);
                to.write_all(some).await?;
                left -= some.len();
            }
            Ok(200)
        }
        Misbehaviour::RobotsStatus(status) => whole(to, *status, "text/plain", &[], b"no\n").await,
        Misbehaviour::RobotsRedirect(to_url) => {
            whole(to, 301, "text/plain", &[("Location", to_url.clone())], b"").await
        }
        Misbehaviour::RobotsText(text) => whole(to, 200, "text/plain", &[], text.as_bytes()).await,
        _ => {
            whole(to, 200, "text/html", &[], b"<html><body>Disallow: all of it? No: a page.</body></html>")
                .await
        }
    }
}

async fn page(how: &Misbehaviour, path: &str, to: &mut TcpStream) -> std::io::Result<u16> {
    const HTML: &str = "text/html";
    let some = "<html><body>some text, and some more of it</body></html>";
    match how {
        Misbehaviour::EndlessRedirects => {
            let number: u64 = path.trim_start_matches("/r").parse().unwrap_or(0);
            whole(to, 302, HTML, &[("Location", format!("/r{}", number + 1))], b"").await
        }
        Misbehaviour::RedirectTo(url) => whole(to, 301, HTML, &[("Location", url.clone())], b"").await,
        Misbehaviour::SlowBytes(every) => {
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1000000\r\n\r\n")
                .await?;
            dribble(to, b"x", *every).await
        }
        Misbehaviour::SlowHead(every) => {
            to.write_all(b"HTTP/1.1 200 OK\r\nX: ").await?;
            dribble(to, b"x", *every).await
        }
        Misbehaviour::Silent => std::future::pending().await,
        Misbehaviour::HangsUp => Ok(0),
        Misbehaviour::Garbage => {
            to.write_all(b"220 mail.example ESMTP\r\n\0\x01\xff\r\n\r\n").await.map(|()| 0)
        }
        Misbehaviour::EndlessHead => {
            to.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            loop {
                to.write_all(&b"X-More: and more, and more, and more\r\n".repeat(100)).await?;
            }
        }
        Misbehaviour::EndlessBody => {
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><body>").await?;
            loop {
                to.write_all(&b"<p>and more, and more, and more</p>\n".repeat(1000)).await?;
            }
        }
        Misbehaviour::TooShort(bytes) => {
            let told = (some.len() + bytes).to_string();
            let more = [("Content-Length", told), ("ETag", "\"whole\"".to_owned())];
            whole(to, 200, HTML, &more, some.as_bytes()).await
        }
        Misbehaviour::TooLong(bytes) => {
            let body = format!("{some}{}", "y".repeat(*bytes));
            whole(to, 200, HTML, &[("Content-Length", some.len().to_string())], body.as_bytes()).await
        }
        Misbehaviour::GzipBomb(bytes) => {
            let body = site::gzip(&vec![b' '; *bytes]);
            whole(to, 200, HTML, &[("Content-Encoding", "gzip".to_owned())], &body).await
        }
        Misbehaviour::BrokenGzip => {
            whole(to, 200, HTML, &[("Content-Encoding", "gzip".to_owned())], some.as_bytes()).await
        }
        Misbehaviour::Status(status, retry_after) => {
            let more: Vec<(&str, String)> =
                retry_after.iter().map(|seconds| ("Retry-After", seconds.to_string())).collect();
            whole(to, *status, HTML, &more, some.as_bytes()).await
        }
        Misbehaviour::WrongMime => whole(to, 200, HTML, &[], b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0").await,
        Misbehaviour::Calendar => {
            let day: u64 = path.trim_start_matches("/day/").parse().unwrap_or(0);
            let links: String =
                (1..=5).map(|next| format!("<a href=\"/day/{}\">later</a>\n", day + next)).collect();
            whole(to, 200, HTML, &[], format!("<html><body>{links}</body></html>").as_bytes()).await
        }
        Misbehaviour::EntityBomb => whole(to, 200, "application/xml", &[], entity_bomb().as_bytes()).await,
        Misbehaviour::ForeignPart if path.ends_with(".dtd") => {
            whole(to, 200, "application/xml-dtd", &[], b"<!ELEMENT a (#PCDATA)>\n").await
        }
        Misbehaviour::ForeignPart => {
            let body = "<?xml version=\"1.0\"?>\n<!DOCTYPE a SYSTEM \"/page.dtd\">\n<a>some</a>\n";
            whole(to, 200, "application/xml", &[], body.as_bytes()).await
        }
        Misbehaviour::ExternalEntity => {
            let body = "<?xml version=\"1.0\"?>\n<!DOCTYPE a [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>\n<a>&e;</a>\n";
            whole(to, 200, "application/xml", &[], body.as_bytes()).await
        }
        _ => whole(to, 200, HTML, &[], some.as_bytes()).await,
    }
}

/// A byte, and then another one, for ever.
async fn dribble(to: &mut TcpStream, byte: &[u8], every: Duration) -> std::io::Result<u16> {
    loop {
        to.write_all(byte).await?;
        to.flush().await?;
        tokio::time::sleep(every).await;
    }
}

fn entity_bomb() -> String {
    let mut text = "<?xml version=\"1.0\"?>\n<!DOCTYPE a [\n<!ENTITY e0 \"ha\">\n".to_owned();
    for level in 1..=12 {
        text.push_str(&format!("<!ENTITY e{level} \"{}\">\n", format!("&e{};", level - 1).repeat(10)));
    }
    text.push_str("]>\n<a>&e12;</a>\n");
    text
}
