//! The command line of `quorumfs serve`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `quorumfs serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8480")]
    pub(crate) listen: SocketAddr,
    /// The URL under which others reach it (default: `url` of `[share]`)
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Serve HTTPS with this certificate and its chain, as PEM; new files are noticed
    #[arg(long, value_name = "FILE", requires = "certificate_key")]
    pub(crate) certificate: Option<PathBuf>,
    /// The certificate's key, as PEM
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) certificate_key: Option<PathBuf>,
    /// Count requests by the last address in `X-Forwarded-For`: only behind a proxy that writes it
    #[arg(long)]
    pub(crate) trust_forwarded_for: bool,
    /// Stop in an orderly way when standard input ends
    #[arg(long, hide = true)]
    pub(crate) supervised: bool,
}
