//! `serve`: what is shared by links, over HTTP.
//!
//! The server is `quorumfs-http`, which knows no volume; [`links`] is the volume for it. This
//! module joins the two into a process: it opens the volume to read, listens, says where, and keeps
//! the session open. Nothing is mounted, and nothing in the volume is changed, not even a time of
//! access.
//!
//! If the session ends, since the replicas have heard nothing from it for too long, another one is
//! opened. Until then requests are answered with `503`, as they are whenever the replicas do not
//! answer.

mod links;

use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, ServeArguments};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::notify;
use crate::output::Output;
use crate::stop::Stop;
use links::VolumeLinks;
use quorumfs_http::{BaseUrl, LinkServer, Served, ServingOptions, TlsFiles};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;

/// How often to look whether the session has ended.
const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// How long to wait before a session is opened again that could not be opened.
const OPENED_AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct ServingLine {
    listen: SocketAddr,
    /// How links begin, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    https: bool,
    pid: u32,
}

#[derive(Serialize)]
struct ServedLine {
    requests: u64,
    downloads: u64,
    bytes: u64,
    refused: u64,
}

impl From<Served> for ServedLine {
    fn from(served: Served) -> Self {
        Self {
            requests: served.requests,
            downloads: served.downloads,
            bytes: served.bytes,
            refused: served.refused,
        }
    }
}

/// The URL that links begin with: as typed, or as configured.
pub(super) fn base_url(
    typed: Option<&str>,
    configured: &Configured,
) -> CommandResult<Option<BaseUrl>> {
    let configured = configured.configuration().share.url.as_deref();
    let Some(text) = typed.or(configured) else {
        return Ok(None);
    };
    let parsed = text.parse();
    parsed
        .map(Some)
        .map_err(|error: quorumfs_http::NotBaseUrl| {
            Failure::new(Exit::Usage, error.to_string())
                .hint("give it as https://files.example, or with a path behind that")
        })
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &ServeArguments,
    output: Output,
) -> CommandResult {
    let mut stop = Stop::of_a_daemon(arguments.supervised)?;
    let configured = Configured::read(general)?;
    let base = base_url(arguments.url.as_deref(), &configured)?;
    let tls = certificate(arguments)?;
    let listener = listen(arguments.listen).await?;
    let listen = listener
        .local_addr()
        .map_err(|error| not_listening(arguments.listen, &error))?;
    warn_if_open(listen, tls.is_some(), arguments.trust_forwarded_for);
    let opened = Opened::open(&configured, Access::Reading).await?;
    let links = Arc::new(VolumeLinks::new(Arc::new(opened)));
    let options = ServingOptions {
        base: base.as_ref().map_or("", BaseUrl::path).to_owned(),
        trusts_forwarded: arguments.trust_forwarded_for,
        ..ServingOptions::default()
    };
    let line = ServingLine {
        listen,
        url: base.map(|base| base.to_string()),
        https: tls.is_some(),
        pid: std::process::id(),
    };
    output.announce("serving", &line, |line| {
        let scheme = if line.https { "https" } else { "http" };
        let at = match &line.url {
            Some(url) => format!("{url} (listening on {listen})"),
            None => format!("{scheme}://{listen}/"),
        };
        format!("Serving links at {at}, until stopped.")
    });
    notify::ready(&format!("Serving links on {listen}"));
    let server = LinkServer::new(links.clone(), options);
    let stopped = async {
        stop.wanted().await;
        notify::stopping("Letting downloads end");
    };
    let served = tokio::select! {
        served = server.run(listener, tls, stopped) => served,
        () = stay_open(&configured, &links) => Served::default(),
    };
    let closed = links.opened().close().await;
    output.announce("served", &ServedLine::from(served), |line| {
        format!(
            "Answered {} requests, {} of them downloads with {} bytes; refused {}.",
            line.requests, line.downloads, line.bytes, line.refused
        )
    });
    closed.map(|()| Exit::Success)
}

fn certificate(arguments: &ServeArguments) -> CommandResult<Option<TlsFiles>> {
    let files = arguments.certificate.as_deref();
    let Some((certificate, key)) = files.zip(arguments.certificate_key.as_deref()) else {
        return Ok(None);
    };
    warn_if_readable(key);
    let loaded = TlsFiles::load(certificate, key).map_err(|error| {
        Failure::new(Exit::Usage, error.to_string()).hint(
            "both files are PEM: the certificate with its chain, and its key without a passphrase",
        )
    });
    loaded.map(Some)
}

fn warn_if_readable(key: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(key).map_or(0, |it| it.permissions().mode());
    if mode & 0o007 != 0 {
        let path = key.display();
        tracing::warn!(%path, "any user may read the certificate's key: `chmod o= {path}`");
    }
}

async fn listen(address: SocketAddr) -> CommandResult<TcpListener> {
    let listening = TcpListener::bind(address).await;
    listening.map_err(|error| not_listening(address, &error))
}

fn not_listening(address: SocketAddr, error: &std::io::Error) -> Failure {
    let message = format!("cannot listen on {address}: {error}");
    let exit = match error.kind() {
        std::io::ErrorKind::AddrInUse => Exit::Held,
        _ => Exit::Usage,
    };
    Failure::new(exit, message).hint(
        "choose an address of this machine with --listen, and a port \
        that no other process has; ports below 1024 need root, or AmbientCapabilities of systemd",
    )
}

fn warn_if_open(listen: SocketAddr, secured: bool, behind_proxy: bool) {
    if listen.ip().is_loopback() {
        return;
    }
    if !secured {
        tracing::warn!(
            %listen,
            "links, and what they lead to, cross the network unencrypted: give --certificate and \
             --certificate-key, or listen on 127.0.0.1 behind a proxy that has a certificate"
        );
    }
    if behind_proxy {
        tracing::warn!(
            %listen,
            "any client that reaches this address can choose the address that its requests count \
             for: with --trust-forwarded-for let only the proxy reach it"
        );
    }
}

/// Keeps a session open, and what it knows.
async fn stay_open(configured: &Configured, links: &VolumeLinks) {
    loop {
        let opened = links.opened();
        let ended = async {
            while !opened.metadata().is_fenced() {
                sleep(LOOKED_EVERY).await;
            }
        };
        tokio::select! {
            () = opened.remember() => {}
            () = ended => {}
        }
        tracing::warn!("the session has ended: another one is opened");
        loop {
            match Opened::open(configured, Access::Reading).await {
                Ok(new) => {
                    links.reopened(Arc::new(new));
                    break;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "the volume could not be opened again");
                    sleep(OPENED_AGAIN_AFTER).await;
                }
            }
        }
        if let Err(failure) = opened.close().await {
            tracing::debug!(%failure, "the session that had ended was not closed in order");
        }
    }
}
