//! Who may connect: a shared token, TLS, and the rule that nothing unprotected is reachable from other machines.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use subtle::ConstantTimeEq;

use crate::error::{NodeError, Result};

/// A shared secret of 256 bits. Compared in constant time, printed never.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// The token with these bytes, which should be random.
    pub fn new(bytes: [u8; 32]) -> Token {
        Token(bytes)
    }

    /// A new random token, from the operating system's generator.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn random() -> Result<Token> {
        use std::io::Read;
        let mut bytes = [0; 32];
        let source = "the system's random numbers";
        let mut file = std::fs::File::open("/dev/urandom").map_err(|e| NodeError::io("open", source, e))?;
        file.read_exact(&mut bytes).map_err(|e| NodeError::io("read", source, e))?;
        Ok(Token(bytes))
    }

    /// The secret itself, to be handed on.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Whether two tokens are the same, in constant time.
    pub fn matches(&self, other: &Token) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl FromStr for Token {
    type Err = NodeError;

    /// Reads 64 hexadecimal digits.
    fn from_str(text: &str) -> Result<Token> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(NodeError::Token { what: format!("found {} characters", text.chars().count()) });
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            let digits = text.get(at..at + 2).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = digits
                .and_then(|d| u8::from_str_radix(d, 16).ok())
                .ok_or_else(|| NodeError::Token { what: "found something else".into() })?;
        }
        Ok(Token(bytes))
    }
}

/// Refuses to listen where strangers could come in without a token and TLS.
///
/// # Errors
/// When `address` is not a loopback address and one of the two is missing.
pub fn check_listen(address: SocketAddr, has_token: bool, has_tls: bool) -> Result<()> {
    if address.ip().is_loopback() || (has_token && has_tls) {
        return Ok(());
    }
    Err(NodeError::Unprotected { address })
}

#[cfg(feature = "tls")]
pub use tls::{ClientTls, ServerTls};

#[cfg(feature = "tls")]
mod tls {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, ServerConfig};
    use tokio::io::{AsyncRead, AsyncWrite};

    use crate::error::{NodeError, Result};

    fn failed(e: impl std::fmt::Display) -> NodeError {
        NodeError::Tls { what: e.to_string() }
    }

    fn provider() -> Arc<rustls::crypto::CryptoProvider> {
        Arc::new(rustls::crypto::aws_lc_rs::default_provider())
    }

    fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
        let all: Vec<_> =
            CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<_, _>>().map_err(failed)?;
        if all.is_empty() {
            return Err(failed("there is no certificate in the PEM text"));
        }
        Ok(all)
    }

    /// A server's certificate and key.
    #[derive(Clone)]
    pub struct ServerTls(pub(crate) tokio_rustls::TlsAcceptor);

    impl ServerTls {
        /// Takes a certificate chain and its private key, both PEM.
        ///
        /// # Errors
        /// When they are none, or do not belong together.
        pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<ServerTls> {
            let key = PrivateKeyDer::from_pem_slice(key).map_err(failed)?;
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(failed)?
                .with_no_client_auth()
                .with_single_cert(certificates(chain)?, key)
                .map_err(failed)?;
            Ok(ServerTls(Arc::new(config).into()))
        }

        /// Takes a connection, for servers of other protocols than this crate's.
        pub fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> tokio_rustls::Accept<S> {
            self.0.accept(socket)
        }
    }

    /// What a client trusts.
    #[derive(Clone)]
    pub struct ClientTls {
        pub(crate) connector: tokio_rustls::TlsConnector,
        pub(crate) name: ServerName<'static>,
    }

    impl ClientTls {
        /// Trusts servers called `name` whose certificate comes from one of these authorities, PEM.
        ///
        /// # Errors
        /// When the authorities or the name are none.
        pub fn from_pem(authorities: &[u8], name: &str) -> Result<ClientTls> {
            let mut roots = RootCertStore::empty();
            for authority in certificates(authorities)? {
                roots.add(authority).map_err(failed)?;
            }
            let config = ClientConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(failed)?
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::try_from(name.to_owned()).map_err(failed)?;
            Ok(ClientTls { connector: Arc::new(config).into(), name })
        }
    }

    impl std::fmt::Debug for ServerTls {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("ServerTls")
        }
    }

    impl std::fmt::Debug for ClientTls {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "ClientTls({:?})", self.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_goes_unprotected() {
        for (address, token, tls, fine) in [
            ("127.0.0.1:0", false, false, true),
            ("[::1]:7", false, false, true),
            ("0.0.0.0:7", false, false, false),
            ("10.0.0.1:7", true, false, false),
            ("10.0.0.1:7", false, true, false),
            ("[::]:7", true, true, true),
        ] {
            let checked = check_listen(address.parse().unwrap(), token, tls);
            assert_eq!(checked.is_ok(), fine, "{address} {token} {tls}");
        }
    }

    #[test]
    fn tokens_parse_and_do_not_print() {
        let token: Token = "0f".repeat(32).parse().unwrap();
        assert!(token.matches(&Token::new([15; 32])) && !token.matches(&Token::new([14; 32])));
        assert_eq!(format!("{token:?}"), "Token(…)");
        for bad in ["", "0f", &"zz".repeat(32), &"+f".repeat(32), &"é".repeat(32)] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
    }
}
