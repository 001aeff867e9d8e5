//! What can be typed after `quorumfs volume`.

use crate::configuration::CompressionSetting;
use clap::{Args, Subcommand, ValueEnum};
use quorumfs_metadata::identity::{Gid, Uid};
use std::path::PathBuf;

/// What can be done with volumes.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume: its genesis for the replicas, its key, its recovery kit
    Create(VolumeCreateArguments),
    /// Seal what is written from now on under a new key; what is there stays as it is
    Rekey(VolumeRekeyArguments),
    /// The key epochs: what each takes to read, and how much is sealed under it
    Epochs,
    /// Make an owner's state directory on this machine from the recovery kit
    Recover(VolumeRecoverArguments),
    /// Go on with servers that have gone back in time; what was written since then is lost
    AcceptRollback(AcceptRollbackArguments),
}

/// `quorumfs volume accept-rollback`
#[derive(Debug, Args)]
pub(crate) struct AcceptRollbackArguments {
    /// Do it: no newer copy of the replicas is left
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What it takes to read what is sealed under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockSetting {
    /// A member's key.
    Members,
    /// A member's key, and f + 1 clouds.
    Clouds,
}

/// `quorumfs volume rekey`
#[derive(Debug, Args)]
pub(crate) struct VolumeRekeyArguments {
    /// What it takes to read from now on: a member's key alone, or f + 1 clouds as well (default:
    /// what it takes now)
    #[arg(long, value_enum)]
    pub(crate) lock: Option<LockSetting>,
    /// Give the owner a new key, with the recovery kit; the old one is refused everything
    #[arg(long, requires = "kit")]
    pub(crate) replace_owner: bool,
    /// The file with the kit, for --replace-owner; - for standard input
    #[arg(long, value_name = "FILE", requires = "replace_owner")]
    pub(crate) kit: Option<PathBuf>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `quorumfs volume recover`
#[derive(Debug, Args)]
pub(crate) struct VolumeRecoverArguments {
    /// The file with the kit, as `volume create` wrote it or as it was typed in; - for standard
    /// input
    #[arg(long, value_name = "FILE")]
    pub(crate) kit: PathBuf,
    /// Where a replica is now, if it was moved or replaced; once for each
    #[arg(long = "replica", value_name = "KEY@HOST:PORT")]
    pub(crate) replicas: Vec<String>,
    /// Where a cloud is now, if it is elsewhere than the kit says; once for each
    #[arg(long = "cloud", value_name = "NAME=LOCATION")]
    pub(crate) clouds: Vec<String>,
    /// A cloud's credentials in its provider's own form, if they are not in their usual place
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) cloud_credentials: Vec<String>,
    /// Seal the key under a passphrase
    #[arg(long)]
    pub(crate) protect: bool,
}

/// `quorumfs volume create`
#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArguments {
    /// A replica's public key and address, in the order of their numbers; once for each
    #[arg(long = "replica", value_name = "KEY@HOST:PORT", required = true)]
    pub(crate) replicas: Vec<String>,
    /// A cloud: s3://BUCKET/PREFIX, azure://ACCOUNT/CONTAINER, gs://BUCKET, or a directory that
    /// stands for one; once for each
    #[arg(long = "cloud", value_name = "NAME=LOCATION", required = true)]
    pub(crate) clouds: Vec<String>,
    /// A cloud's credentials in its provider's own form, if they are not in their usual place
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) cloud_credentials: Vec<String>,
    /// The same for commands that only read
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) reader_credentials: Vec<String>,
    /// The same for listing and deleting, if the others may not: to see that the place is empty,
    /// and to leave it so if the volume cannot be created. Not kept here
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) collector_credentials: Vec<String>,
    /// Who could lose all of a cloud at once, if its location does not tell
    #[arg(long = "cloud-domain", value_name = "NAME=WHO")]
    pub(crate) cloud_domains: Vec<String>,
    /// How many replicas may fail in any way while work goes on (u)
    #[arg(long, value_name = "U", default_value_t = 1)]
    pub(crate) failures: u16,
    /// How many replicas may lie while what is answered stays right (r)
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) liars: u16,
    /// How many clouds may vanish, lie or collude (f)
    #[arg(long, value_name = "F", default_value_t = 1)]
    pub(crate) faulty_clouds: u8,
    /// How many shards give the content back (k)
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub(crate) data_shards: u8,
    /// What it takes to read: a member's key alone, or f + 1 clouds as well
    #[arg(long, value_enum, default_value = "clouds")]
    pub(crate) lock: LockSetting,
    /// Whom the root directory belongs to, as numbers (default: who runs this)
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub(crate) owner: Option<(Uid, Gid)>,
    /// Seal the key under a passphrase from the start, so that its secret never lies on the disk as
    /// it is; `quorumfs key protect` does it later
    #[arg(long)]
    pub(crate) protect: bool,
    /// Whether content is compressed before it is encrypted, which lets lengths tell more
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) compression: CompressionSetting,
}

fn owner(text: &str) -> Result<(Uid, Gid), String> {
    let numbers = text.split_once(':');
    let parsed = numbers.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let (uid, gid) = parsed.ok_or("two numbers are expected, like 1000:1000 (`id` shows yours)")?;
    Ok((Uid(uid), Gid(gid)))
}
