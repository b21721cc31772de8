//! What members of a repository know each other by, in one folder: made once by `webbase keys`, copied to every machine, named
//! by `--keys`.
//!
//! ```text
//!   token       64 hexadecimal digits: whoever has it belongs to the repository
//!   read-token  likewise: whoever has it may read over HTTP, and nothing else
//!   cert.pem    the certificate that servers show, and that clients trust
//!   key.pem     its private key; clients don't need it
//! ```

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use webbase_node::{ClientSettings, ClientTls, ServerTls, Settings, Token};

use crate::gateway;

/// Who the certificate is for: the repository, on whatever machine.
pub const NAME: &str = "webbase";

const TOKEN: &str = "token";
const READ_TOKEN: &str = "read-token";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// Where the keys are.
#[derive(clap::Args, Clone, Debug)]
pub struct Keys {
    /// The folder that `webbase keys` made: its token and TLS are used then, by everybody alike. Needed for whatever can
    /// be reached from other machines.
    #[arg(long, value_name = "DIR", env = "WEBBASE_KEYS")]
    keys: Option<PathBuf>,
}

fn read(dir: &Path, name: &str) -> Result<Vec<u8>> {
    let path = dir.join(name);
    let what = || format!("cannot read {}: `webbase keys` makes such a folder", path.display());
    std::fs::read(&path).with_context(what)
}

fn token(dir: &Path, name: &str) -> Result<Token> {
    let text = String::from_utf8(read(dir, name)?).unwrap_or_default();
    text.parse().with_context(|| format!("no token in {}", dir.join(name).display()))
}

fn hex(token: &Token) -> String {
    token.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a client over HTTP needs.
pub struct HttpKeys {
    /// The token, as it is shown.
    pub token: String,
    /// The certificate to trust, PEM.
    pub certificate: Vec<u8>,
}

impl Keys {
    /// Has a client show and trust them.
    ///
    /// # Errors
    /// When the folder is not as it should be.
    pub fn client(&self, settings: &mut ClientSettings) -> Result<()> {
        let Some(dir) = &self.keys else { return Ok(()) };
        settings.token = Some(token(dir, TOKEN)?);
        let tls = ClientTls::from_pem(&read(dir, CERTIFICATE)?, NAME);
        settings.tls =
            Some(tls.with_context(|| format!("{} is of no use", dir.join(CERTIFICATE).display()))?);
        Ok(())
    }

    /// What a client over HTTP shows and trusts, if there is a folder.
    ///
    /// # Errors
    /// When the folder is not as it should be.
    pub fn http(&self) -> Result<Option<HttpKeys>> {
        let Some(dir) = &self.keys else { return Ok(None) };
        Ok(Some(HttpKeys { token: hex(&token(dir, TOKEN)?), certificate: read(dir, CERTIFICATE)? }))
    }

    /// Has a gateway ask for and show them.
    ///
    /// # Errors
    /// When the folder is not as it should be.
    pub fn gateway(&self, settings: &mut gateway::Settings) -> Result<()> {
        let Some(dir) = &self.keys else { return Ok(()) };
        settings.doors.token = Some(token(dir, TOKEN)?);
        if dir.join(READ_TOKEN).exists() {
            settings.doors.read_token = Some(token(dir, READ_TOKEN)?);
        }
        let tls = ServerTls::from_pem(&read(dir, CERTIFICATE)?, &read(dir, KEY)?);
        settings.tls = Some(tls.with_context(|| format!("{} is of no use", dir.display()))?);
        Ok(())
    }

    /// Has a server ask for and show them.
    ///
    /// # Errors
    /// When the folder is not as it should be.
    pub fn server(&self, settings: &mut Settings) -> Result<()> {
        let Some(dir) = &self.keys else { return Ok(()) };
        settings.token = Some(token(dir, TOKEN)?);
        let tls = ServerTls::from_pem(&read(dir, CERTIFICATE)?, &read(dir, KEY)?);
        settings.tls = Some(tls.with_context(|| format!("{} is of no use", dir.display()))?);
        Ok(())
    }
}

/// Makes new ones in a folder that has none.
///
/// # Errors
/// When there are some already, or they cannot be written.
pub fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for name in [TOKEN, READ_TOKEN, CERTIFICATE, KEY] {
        let path = dir.join(name);
        ensure!(!path.exists(), "{} is there already, and is left alone", path.display());
    }
    let (token, read_token) = (hex(&Token::random()?), hex(&Token::random()?));
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("cannot make a certificate")?;
    write(&dir.join(KEY), made.signing_key.serialize_pem().as_bytes())?;
    write(&dir.join(CERTIFICATE), made.cert.pem().as_bytes())?;
    write(&dir.join(READ_TOKEN), format!("{read_token}\n").as_bytes())?;
    write(&dir.join(TOKEN), format!("{token}\n").as_bytes())
}

/// Writes a new file that only its owner may read.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
