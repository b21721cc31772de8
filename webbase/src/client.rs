//! A repository over HTTP, for the commands: where it is, who we are, and what went wrong.
//!
//! With `--mgmt` there need be no gateway: the command is its own, on a port and with a token that nobody else knows.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;
use webbase::gateway::{self, Running};
use webbase::keys::{Keys, NAME};
use webbase_node::{Cluster, ClusterSettings, Token};

use crate::exit::Failure;

/// A server that cannot be reached in this time is not there.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Nothing comes for so long: it will not come.
const PAUSE_LIMIT: Duration = Duration::from_secs(120);

/// A longer query is sent in a body.
const QUERY_BYTES_MAX: usize = 4 << 10;

/// Where a repository is.
#[derive(clap::Args)]
pub(crate) struct Server {
    /// Where the repository answers HTTP.
    #[arg(long, value_name = "URL", env = "WEBBASE_SERVER", default_value = "http://127.0.0.1:7700")]
    server: String,
    /// Where its management server listens: asks the repository directly, without a gateway.
    #[arg(long, value_name = "ADDR")]
    mgmt: Option<SocketAddr>,
    #[command(flatten)]
    keys: Keys,
}

/// A repository over HTTP.
pub(crate) struct Repository {
    client: reqwest::Client,
    /// For what takes as long as it takes.
    patient: reqwest::Client,
    base: Url,
    token: Option<String>,
    _own: Option<Running>,
}

impl Server {
    pub(crate) async fn connect(&self) -> Result<Repository> {
        match self.mgmt {
            Some(address) => self.own_gateway(address).await,
            None => self.over_http().await,
        }
    }

    /// The repository by its own protocol. Where the management server listens is told by the gateway, if not by a flag.
    pub(crate) async fn cluster(&self) -> Result<Cluster> {
        let address = match self.mgmt {
            Some(address) => address,
            None => {
                let status = self.over_http().await?.status().await?;
                let told =
                    status.get("management").and_then(Value::as_str).and_then(|text| text.parse().ok());
                told.context("the server does not say where its management server listens; --mgmt does")?
            }
        };
        let mut settings = ClusterSettings::default();
        self.keys.client(&mut settings.client)?;
        Cluster::connect(address, settings).await.map_err(|e| absent(e.into(), address))
    }

    async fn own_gateway(&self, address: SocketAddr) -> Result<Repository> {
        let mut settings = ClusterSettings::default();
        self.keys.client(&mut settings.client)?;
        let cluster = Cluster::connect(address, settings).await.map_err(|e| absent(e.into(), address))?;
        let token = Token::random()?;
        let mut settings = gateway::Settings::on((Ipv4Addr::LOCALHOST, 0).into());
        settings.doors.token = Some(token.clone());
        let running = gateway::start(cluster, settings).await?;
        let base = Url::parse(&format!("http://{}/", running.address())).context("no address")?;
        let (client, patient) = clients(builder)?;
        let token = token.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Repository { client, patient, base, token: Some(token), _own: Some(running) })
    }

    async fn over_http(&self) -> Result<Repository> {
        let no_url = || format!("{} is no address of a server, such as http://127.0.0.1:7700", self.server);
        let mut base = Url::parse(&self.server).with_context(no_url)?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            bail!("{}", no_url());
        }
        let keys = self.keys.http()?;
        let mut known = None;
        if let (Some(keys), "https") = (&keys, base.scheme()) {
            let certificate = reqwest::Certificate::from_pem(&keys.certificate).context("no certificate")?;
            // The certificate is the repository's, on whatever machine.
            let addresses = base.socket_addrs(|| None).with_context(|| format!("{base} is nowhere"))?;
            known = Some((certificate, addresses));
            base.set_host(Some(NAME)).with_context(no_url)?;
        }
        let (client, patient) = clients(|| match &known {
            None => builder(),
            Some((certificate, addresses)) => {
                builder().tls_certs_only([certificate.clone()]).resolve_to_addrs(NAME, addresses)
            }
        })?;
        Ok(Repository { client, patient, base, token: keys.map(|keys| keys.token), _own: None })
    }
}

/// An error: there is nobody.
fn absent(e: anyhow::Error, place: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Failure::Absent(format!("no repository at {place} ({e:#})")))
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
}

/// One client that waits for answers, and one that waits for as long as they take.
fn clients(builder: impl Fn() -> reqwest::ClientBuilder) -> Result<(reqwest::Client, reqwest::Client)> {
    let client = builder().read_timeout(PAUSE_LIMIT).build().context("cannot use HTTP")?;
    Ok((client, builder().build().context("cannot use HTTP")?))
}

impl Repository {
    fn url(&self, path: &str, parameters: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        url.set_path(path);
        if !parameters.is_empty() {
            url.query_pairs_mut().extend_pairs(parameters);
        }
        url
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// A question.
    pub(crate) fn get(&self, path: &str, parameters: &[(&str, &str)]) -> RequestBuilder {
        self.authorized(self.client.get(self.url(path, parameters)))
    }

    /// A question that may be too long for a URL: it is then asked in a body. Servers and proxies differ in what they take, but all
    /// take a few kilobytes.
    pub(crate) fn get_long(&self, path: &str, parameters: &[(&str, &str)]) -> RequestBuilder {
        let url = self.url(path, parameters);
        match url.query() {
            Some(query) if query.len() > QUERY_BYTES_MAX => {
                let form = query.to_owned();
                let request = self.client.post(self.url(path, &[])).body(form);
                self.authorized(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded"))
            }
            _ => self.authorized(self.client.get(url)),
        }
    }

    /// A command.
    pub(crate) fn post(&self, path: &str, parameters: &[(&str, &str)]) -> RequestBuilder {
        self.authorized(self.client.post(self.url(path, parameters)))
    }

    /// A command that may take as long as it takes: the server bounds it.
    pub(crate) fn post_long(&self, path: &str, parameters: &[(&str, &str)]) -> RequestBuilder {
        self.authorized(self.patient.post(self.url(path, parameters)))
    }

    /// Asks; an answer that is no success is an error that says what the server says.
    pub(crate) async fn ask(&self, request: RequestBuilder) -> Result<Response> {
        let answer = request.send().await.map_err(|e| self.failed(e))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let text = answer.text().await.unwrap_or_default();
        let problem: Option<Value> = serde_json::from_str(&text).ok();
        let detail = problem.as_ref().and_then(|problem| problem.get("detail")?.as_str());
        let detail = detail.map_or_else(|| text.chars().take(500).collect(), str::to_owned);
        if status == StatusCode::NOT_FOUND {
            bail!(Failure::NotFound(detail));
        }
        let hint = if status == StatusCode::UNAUTHORIZED { "; --keys names its folder" } else { "" };
        Err(anyhow!("{detail}{hint}"))
    }

    fn failed(&self, e: reqwest::Error) -> anyhow::Error {
        let is_absent = e.is_connect();
        let e = anyhow::Error::new(e.without_url());
        match is_absent {
            true => absent(e, format!("{}; `webbase up` starts one", self.base)),
            false => e.context(format!("{} does not answer", self.base)),
        }
    }

    /// A JSON answer.
    pub(crate) async fn json(&self, request: RequestBuilder) -> Result<Value> {
        let text = self.ask(request).await?.text().await.map_err(|e| self.failed(e))?;
        serde_json::from_str(&text).context("the server answers with something else than JSON")
    }

    /// How things stand.
    pub(crate) async fn status(&self) -> Result<Value> {
        self.json(self.get("/status", &[])).await
    }
}
