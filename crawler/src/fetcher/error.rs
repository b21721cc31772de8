//! Why a page was not had.

use std::net::IpAddr;
use std::time::Duration;

/// Why a page was not had. Each has a short name to be counted under.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum FetchError {
    /// Not a URL that can be fetched.
    #[error("{url} is no http or https URL with a host")]
    Scheme {
        /// What it is.
        url: String,
    },
    /// The site's robots file forbids it.
    #[error("the robots file forbids it")]
    Robots,
    /// The site's robots file could not be had, so nothing may be read.
    #[error("the robots file could not be had: {0}")]
    RobotsUnreachable(String),
    /// The host's name has no address.
    #[error("no address: {0}")]
    Dns(String),
    /// The host's address is not public.
    #[error(
        "{0} is not a public address; `--allow-private` and `--allow-loopback` say that such may be read"
    )]
    Private(IpAddr),
    /// Only this machine may be read by a crawler that does not say whose it is.
    #[error(
        "{0} is not on this machine: a crawler of others' sites has to say whose it is (`--contact URL`)"
    )]
    NoContact(IpAddr),
    /// The site has more URLs waiting than there is room for.
    #[error("too many URLs of this site wait")]
    Crowded,
    /// The fetcher has ended.
    #[error("the fetcher has ended")]
    Ended,
    /// No connection.
    #[error("no connection: {0}")]
    Connect(String),
    /// No trustworthy connection.
    #[error("TLS: {0}")]
    Tls(String),
    /// What came is not HTTP, or breaks its rules.
    #[error("not HTTP: {0}")]
    Protocol(String),
    /// The head is too long.
    #[error("the head is longer than {0} bytes")]
    LongHead(usize),
    /// It took too long before there was a head.
    #[error("no head within {} s", .0.as_secs_f32())]
    Time(Duration),
    /// Its type is none that is wanted.
    #[error("{0} is not wanted")]
    Mime(String),
    /// Too many redirects in a row.
    #[error("more than {0} redirects")]
    Redirects(usize),
}

impl FetchError {
    /// The name it is counted under.
    pub fn kind(&self) -> &'static str {
        match self {
            FetchError::Scheme { .. } => "scheme",
            FetchError::Robots => "robots",
            FetchError::RobotsUnreachable(_) => "robots-unreachable",
            FetchError::Dns(_) => "dns",
            FetchError::Private(_) => "private-address",
            FetchError::NoContact(_) => "no-contact",
            FetchError::Crowded => "crowded",
            FetchError::Ended => "ended",
            FetchError::Connect(_) => "connect",
            FetchError::Tls(_) => "tls",
            FetchError::Protocol(_) => "protocol",
            FetchError::LongHead(_) => "long-head",
            FetchError::Time(_) => "time",
            FetchError::Mime(_) => "mime",
            FetchError::Redirects(_) => "redirects",
        }
    }

    /// Whether another try later may go better.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            FetchError::RobotsUnreachable(_)
                | FetchError::Crowded
                | FetchError::Ended
                | FetchError::Dns(_)
                | FetchError::Connect(_)
                | FetchError::Protocol(_)
                | FetchError::Time(_)
        )
    }
}
