//! Names to addresses, without blocking anybody.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use hickory_resolver::TokioResolver;

/// The addresses of a host, to come.
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, String>> + Send + 'a>>;

/// What knows where hosts are.
pub trait Resolve: Send + Sync {
    /// The addresses of a host, with the port to connect to.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a>;
}

/// DNS: asynchronous, with a cache that keeps answers as long as they say.
#[derive(Clone)]
pub struct Dns(Arc<TokioResolver>);

impl Dns {
    /// As this system is set up.
    ///
    /// # Errors
    /// When the system's settings cannot be used.
    pub fn of_system() -> Result<Dns, String> {
        let builder =
            TokioResolver::builder_tokio().map_err(|e| format!("the system's DNS settings: {e}"))?;
        Ok(Dns(Arc::new(builder.build().map_err(|e| format!("DNS: {e}"))?)))
    }
}

impl Resolve for Dns {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move {
            let found = self.0.lookup_ip(host).await.map_err(|e| e.to_string())?;
            Ok(found.iter().map(|address| SocketAddr::new(address, port)).collect())
        })
    }
}

/// Hosts whose addresses are given by hand (as in /etc/hosts, but with a port); others have none.
#[derive(Clone, Debug, Default)]
pub struct Given(pub HashMap<String, SocketAddr>);

impl Resolve for Given {
    fn resolve<'a>(&'a self, host: &'a str, _port: u16) -> Resolving<'a> {
        let found = self.0.get(host).copied();
        Box::pin(async move {
            found.map(|address| vec![address]).ok_or_else(|| format!("{host} is not known here"))
        })
    }
}

/// A function as a resolver: `None` is "no such host".
pub struct By<F>(pub F);

impl<F: Fn(&str, u16) -> Option<SocketAddr> + Send + Sync> Resolve for By<F> {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a> {
        let found = (self.0)(host, port);
        Box::pin(async move {
            found.map(|address| vec![address]).ok_or_else(|| format!("{host} is not known here"))
        })
    }
}

/// The address that a host is itself, if it is no name.
pub(super) fn literal(host: &url::Host<&str>) -> Option<IpAddr> {
    match host {
        url::Host::Domain(_) => None,
        url::Host::Ipv4(four) => Some(IpAddr::V4(*four)),
        url::Host::Ipv6(six) => Some(IpAddr::V6(*six)),
    }
}
