//! Connections: accepted while there is room, each with its own task, ended in good order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::middleware::AddExtension;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower::Layer;
use webbase_node::{Cluster, ConnectionThreads, check_listen};

use super::clients::Peer;
use super::patient::Patient;
use super::{Gateway, Limits, Settings, console, links, router};

/// After an accept that failed, because there are no more files, say.
const PAUSE: Duration = Duration::from_millis(50);

/// A gateway that serves. Dropping it ends it at once.
pub struct Running {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, and lets those under way come to their end within the limit.
    pub async fn shutdown(mut self) {
        // Whoever does not hear it has ended already.
        let _ = self.stop.send(true);
        let _ended = (&mut self.accepting).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Settings {
    /// Refuses to listen where strangers could come without a token and TLS.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(check_listen(self.listen, self.doors.token.is_some(), self.tls.is_some())?)
    }
}

/// Serves a repository over HTTP.
///
/// # Errors
/// When the address is not free, or could be reached by strangers without a token and TLS.
pub async fn start(cluster: Cluster, settings: Settings) -> Result<Running> {
    settings.check()?;
    let listener = TcpListener::bind(settings.listen).await;
    let listener = listener.with_context(|| format!("cannot listen on {}", settings.listen))?;
    let address = listener.local_addr().context("cannot tell where it listens")?;
    let (router, gateway) = router(cluster, &settings);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(console::sample(gateway.clone(), stopped.clone()));
    tokio::spawn(links::keep(gateway.clone(), stopped.clone()));
    let threads = ConnectionThreads::start(settings.connection_threads)
        .context("cannot start threads for connections")?;
    let accepting = tokio::spawn(accept(listener, threads, router, gateway, settings, stopped));
    Ok(Running { address, stop, accepting })
}

async fn accept(
    listener: TcpListener,
    threads: ConnectionThreads,
    router: Router,
    gateway: Arc<Gateway>,
    settings: Settings,
    mut stopped: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(settings.limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let accepting = async {
            // The semaphore is never closed.
            let permit = room.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            _ = stopped.changed() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accepting => accepted,
        };
        let accepted = accepted.and_then(|(socket, peer)| Ok((socket.into_std()?, peer)));
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (router, gateway, settings) = (router.clone(), gateway.clone(), settings.clone());
        let stopped = stopped.clone();
        let serving = async move {
            let _permit = permit;
            let Ok(socket) = TcpStream::from_std(socket) else { return };
            gateway.metrics.connections.inc();
            connection(socket, Peer(peer), router, &settings, stopped).await;
            gateway.metrics.connections.dec();
        };
        connections.spawn_on(serving, &threads.next());
    }
    drop(listener);
    let ending = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(settings.limits.end_time, ending).await.is_err() {
        tracing::warn!(connections = connections.len(), "connections are cut off");
    }
    connections.shutdown().await;
}

async fn connection(
    socket: TcpStream,
    peer: Peer,
    router: Router,
    settings: &Settings,
    stopped: watch::Receiver<bool>,
) {
    // Answers are written whole; waiting for more would only delay them.
    let _slower = socket.set_nodelay(true);
    let limits = &settings.limits;
    let router = Extension(peer).layer(router);
    match &settings.tls {
        None => serve(Patient::new(socket, limits.write_pause), router, limits, stopped).await,
        Some(tls) => {
            let Ok(Ok(socket)) = tokio::time::timeout(limits.head_time, tls.accept(socket)).await else {
                return;
            };
            serve(Patient::new(socket, limits.write_pause), router, limits, stopped).await;
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    router: AddExtension<Router, Peer>,
    limits: &Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_header_size(limits.head_bytes_max)
        .half_close(false)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(e) = ended {
                tracing::debug!(why = %e, "a connection ended early");
            }
            return;
        }
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    if let Err(e) = connection.await {
        tracing::debug!(why = %e, "a connection ended early");
    }
}
