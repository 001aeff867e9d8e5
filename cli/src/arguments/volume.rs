//! The command line of `quorumfs volume`.

use super::reconcile::time;
use super::trash::{TrashAge, trash_age};
use crate::configuration::CompressionSetting;
use clap::{Args, Subcommand, ValueEnum};
use quorumfs_bft::authentication::Authentication;
use quorumfs_metadata::identity::{Gid, Uid};
use std::path::PathBuf;
use std::time::Duration;

/// Commands for volumes.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Create a volume: its genesis for the replicas, its key, its recovery kit
    Create(VolumeCreateArguments),
    /// Begin a key epoch: new keys for new content and all names; existing content stays as it is
    Rekey(VolumeRekeyArguments),
    /// Seal anew what is under old keys: names that `rekey` or `people remove` left, and content
    Reseal(VolumeResealArguments),
    /// List the key epochs: what reading each requires, and how much is sealed under it
    Epochs,
    /// Recover the volume with the kit: an owner's state directory on this machine or, with
    /// --new-replica, a volume whose replicas are all lost
    Recover(VolumeRecoverArguments),
    /// Renew the recovery kit after clouds were added or replaced, so that it knows all of them
    RenewKit(RenewKitArguments),
    /// Back the metadata up to the clouds now; `reconcile` and a mount that may delete do it hourly
    Backup(VolumeBackupArguments),
    /// Go on with servers that went back in time; everything written since then is lost
    AcceptRollback(AcceptRollbackArguments),
}

/// `quorumfs volume accept-rollback`
#[derive(Debug, Args)]
pub(crate) struct AcceptRollbackArguments {
    /// Do it: no newer copy of the replicas exists
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What it takes to read content that is sealed under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockSetting {
    /// A member's key.
    Members,
    /// A member's key, and f + 1 clouds.
    Clouds,
}

/// How replicas show each other that a vote is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuthenticationSetting {
    /// Votes are signed: anyone can check them later.
    Sig,
    /// Votes are believed because of the connection that they come through.
    Mac,
}

impl From<AuthenticationSetting> for Authentication {
    fn from(setting: AuthenticationSetting) -> Self {
        match setting {
            AuthenticationSetting::Sig => Self::Sig,
            AuthenticationSetting::Mac => Self::Mac,
        }
    }
}

/// `quorumfs volume reseal`
#[derive(Debug, Args)]
pub(crate) struct VolumeResealArguments {
    /// The content too: all of it that is under old keys is read, and written once more
    #[arg(long)]
    pub(crate) content: bool,
}

/// `quorumfs volume rekey`
#[derive(Debug, Default, Args)]
pub(crate) struct VolumeRekeyArguments {
    /// What reading requires from now on: a member's key alone, or f + 1 clouds as well (default:
    /// as now)
    #[arg(long, value_enum)]
    pub(crate) lock: Option<LockSetting>,
    /// Give the owner a new key, with the recovery kit; the old one is refused from then on
    #[arg(long, requires = "kit")]
    pub(crate) replace_owner: bool,
    /// The file with the kit, for --replace-owner; - is standard input
    #[arg(long, value_name = "FILE", requires = "replace_owner")]
    pub(crate) kit: Option<PathBuf>,
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `quorumfs volume renew-kit`
#[derive(Debug, Args)]
pub(crate) struct RenewKitArguments {
    /// The file with the present kit, as it was written or as typed in; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) kit: PathBuf,
    /// Where the new kit goes; a file that exists is replaced only if it is the present kit
    /// (default: recovery-kit.txt in the state directory)
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
}

/// `quorumfs volume backup`
#[derive(Debug, Args)]
pub(crate) struct VolumeBackupArguments {
    /// Go on until stopped, with a backup every so often: a number and s, m, h or d (default: one
    /// backup)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) every: Option<Duration>,
}

/// `quorumfs volume recover`
#[derive(Debug, Args)]
pub(crate) struct VolumeRecoverArguments {
    /// The file with the kit, as `volume create` wrote it or as typed in; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) kit: PathBuf,
    /// The current address of a replica, if it was moved or replaced; once for each
    #[arg(long = "replica", value_name = "KEY@HOST:PORT")]
    pub(crate) replicas: Vec<String>,
    /// All replicas are lost: a new one's public key and address, in the order of their numbers;
    /// once for each. The metadata come from the newest backup on the clouds
    #[arg(
        long = "new-replica",
        value_name = "KEY@HOST:PORT",
        conflicts_with = "replicas"
    )]
    pub(crate) new_replicas: Vec<String>,
    /// With --new-replica: how many of them may fail in any way while the cluster stays live (u)
    #[arg(long, value_name = "U", default_value_t = 1, requires = "new_replicas")]
    pub(crate) failures: u16,
    /// With --new-replica: how many of them may lie while answers stay right (r)
    #[arg(long, value_name = "R", default_value_t = 1, requires = "new_replicas")]
    pub(crate) liars: u16,
    /// With --new-replica: how long to wait until the new replicas run; a number and s, m, h or d
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1h",
        value_parser = time,
        requires = "new_replicas"
    )]
    pub(crate) wait: Duration,
    /// The current place of a cloud, if it differs from the kit; once for each
    #[arg(long = "cloud", value_name = "NAME=LOCATION")]
    pub(crate) clouds: Vec<String>,
    /// A cloud's credentials in its provider's own form, if they are not in their usual place
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) cloud_credentials: Vec<String>,
    /// The same for listing, which --new-replica takes, if the other credentials may not
    #[arg(long, value_name = "NAME=FILE", requires = "new_replicas")]
    pub(crate) collector_credentials: Vec<String>,
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
    /// The same for listing and deleting, if the other credentials may not: to check that the place
    /// is empty, and to clean it up if the volume cannot be created. Not stored here
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) collector_credentials: Vec<String>,
    /// The failure domain of a cloud, if its location does not tell: who could lose all of it at
    /// once
    #[arg(long = "cloud-domain", value_name = "NAME=WHO")]
    pub(crate) cloud_domains: Vec<String>,
    /// How many replicas may fail in any way while the cluster stays live (u)
    #[arg(long, value_name = "U", default_value_t = 1)]
    pub(crate) failures: u16,
    /// How many replicas may lie while answers stay right (r)
    #[arg(long, value_name = "R", default_value_t = 1)]
    pub(crate) liars: u16,
    /// How replicas show each other that a vote is theirs, for good: signed; or by their
    /// connections, which takes less processor time, and leaves no proof of a vote to others
    #[arg(long, value_enum, default_value = "sig")]
    pub(crate) authentication: AuthenticationSetting,
    /// How many clouds may vanish, lie or collude (f)
    #[arg(long, value_name = "F", default_value_t = 1)]
    pub(crate) faulty_clouds: u8,
    /// How many shards rebuild the content (k)
    #[arg(long, value_name = "K", default_value_t = 2)]
    pub(crate) data_shards: u8,
    /// What reading requires: a member's key alone, or f + 1 clouds as well
    #[arg(long, value_enum, default_value = "clouds")]
    pub(crate) lock: LockSetting,
    /// The owner of the root directory, as numbers (default: the user who runs this)
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    pub(crate) owner: Option<(Uid, Gid)>,
    /// Seal the key under a passphrase from the start, so that its secret is never on the disk in
    /// the clear; `quorumfs key protect` does it later
    #[arg(long)]
    pub(crate) protect: bool,
    /// Whether to compress content before encrypting it, which makes lengths reveal more
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) compression: CompressionSetting,
    /// For how many days what is removed stays in the trash; or `off`
    #[arg(long, value_name = "DAYS", default_value = "7", value_parser = trash_age)]
    pub(crate) trash: TrashAge,
}

fn owner(text: &str) -> Result<(Uid, Gid), String> {
    let numbers = text.split_once(':');
    let parsed = numbers.and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let (uid, gid) = parsed.ok_or("two numbers are expected, like 1000:1000 (`id` shows yours)")?;
    Ok((Uid(uid), Gid(gid)))
}
