//! `webbase keys`: the token and the certificate of a repository.

use std::path::PathBuf;

use anyhow::Result;
use webbase::keys;

/// Make a token and a certificate, by which the members of a repository know each other.
///
/// Copy the folder to every machine and name it with --keys everywhere; clients can do without key.pem. Whatever listens
/// beyond this machine needs it.
#[derive(clap::Args)]
#[command(after_help = "Example, a repository on several machines:
  webbase keys /etc/webbase/keys                                   (once; then copy the folder)
  webbase mgmt --dir /srv/mgmt --listen 10.0.0.1:7701 --http 10.0.0.1:7700 --keys /etc/webbase/keys
  webbase node --dir /srv/r1 --listen 10.0.0.2:7702 --mgmt 10.0.0.1:7701 --role read --keys /etc/webbase/keys
  webbase status --server https://10.0.0.1:7700 --keys /etc/webbase/keys")]
pub(crate) struct Keys {
    /// The folder to make.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

impl Keys {
    pub(crate) async fn run(self) -> Result<()> {
        keys::make(&self.dir)?;
        eprintln!(
            "{}: token, read-token, cert.pem and key.pem are made; use them with --keys",
            self.dir.display()
        );
        Ok(())
    }
}
