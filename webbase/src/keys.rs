//! What members of a repository know each other by, in one folder: made once by `webbase keys`, copied to every machine, named
//! by `--keys`.
//!
//! ```text
//!   token      64 hexadecimal digits: whoever has it belongs to the repository
//!   cert.pem   the certificate that servers show, and that clients trust
//!   key.pem    its private key; clients don't need it
//! ```

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use webbase_node::{ClientSettings, ClientTls, ServerTls, Settings, Token};

/// Who the certificate is for: the repository, on whatever machine.
const NAME: &str = "webbase";

const TOKEN: &str = "token";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// Where the keys are.
#[derive(clap::Args, Clone)]
pub(crate) struct Keys {
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

fn token(dir: &Path) -> Result<Token> {
    let text = String::from_utf8(read(dir, TOKEN)?).unwrap_or_default();
    text.parse().with_context(|| format!("no token in {}", dir.join(TOKEN).display()))
}

impl Keys {
    /// Has a client show and trust them.
    pub(crate) fn client(&self, settings: &mut ClientSettings) -> Result<()> {
        let Some(dir) = &self.keys else { return Ok(()) };
        settings.token = Some(token(dir)?);
        let tls = ClientTls::from_pem(&read(dir, CERTIFICATE)?, NAME);
        settings.tls =
            Some(tls.with_context(|| format!("{} is of no use", dir.join(CERTIFICATE).display()))?);
        Ok(())
    }

    /// Has a server ask for and show them.
    pub(crate) fn server(&self, settings: &mut Settings) -> Result<()> {
        let Some(dir) = &self.keys else { return Ok(()) };
        settings.token = Some(token(dir)?);
        let tls = ServerTls::from_pem(&read(dir, CERTIFICATE)?, &read(dir, KEY)?);
        settings.tls = Some(tls.with_context(|| format!("{} is of no use", dir.display()))?);
        Ok(())
    }
}

/// Makes new ones in a folder that has none.
pub(crate) fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for name in [TOKEN, CERTIFICATE, KEY] {
        let path = dir.join(name);
        ensure!(!path.exists(), "{} is there already, and is left alone", path.display());
    }
    let token = Token::random()?.bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("cannot make a certificate")?;
    write(&dir.join(KEY), made.signing_key.serialize_pem().as_bytes())?;
    write(&dir.join(CERTIFICATE), made.cert.pem().as_bytes())?;
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
