//! The command line of `quorumfs people` and `quorumfs join`.

use super::reconcile::time;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Commands for the people of a volume.
#[derive(Debug, Subcommand)]
pub(crate) enum PeopleCommand {
    /// Admit someone who has typed `quorumfs join` on another machine
    Invite(PeopleInviteArguments),
    /// List who may use the volume, and as what
    Ls,
    /// Change someone's role, user number, groups, name or end
    Set(PeopleSetArguments),
    /// Remove someone or a machine, and begin new keys that only the others have
    Remove(PeopleRemoveArguments),
    /// Give someone credentials of clouds, sealed for that person's key, or take them away
    Credentials(PeopleCredentialsArguments),
    /// Give a group number a name
    Group(PeopleGroupArguments),
}

/// What a person may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleSetting {
    /// Read what the files' permissions allow
    Read,
    /// Read and write what the files' permissions allow
    Write,
    /// All that, and admit and remove people, replace clouds, set quotas
    Administer,
}

/// `quorumfs people invite`
#[derive(Debug, Args)]
pub(crate) struct PeopleInviteArguments {
    /// The name under which others will see the person
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The line that `quorumfs join` has printed; otherwise it is read from standard input
    #[arg(long, value_name = "LINE")]
    pub(crate) line: Option<String>,
    /// What the person may do
    #[arg(long, value_enum, default_value_t = RoleSetting::Write)]
    pub(crate) role: RoleSetting,
    /// The user number that the person's files get in the volume, or the next free one
    #[arg(long, value_name = "N")]
    pub(crate) uid: Option<u32>,
    /// A group that the person is in, by number or name; may be repeated
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    /// The person may use the volume for so long: a number and s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) expires: Option<Duration>,
    /// A file with credentials of a cloud for the person, sealed for its key; may be repeated
    #[arg(long, value_name = "CLOUD=FILE")]
    pub(crate) cloud_credentials: Vec<String>,
    /// The file to write for the person, or NAME.volume
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Do not ask whether the fingerprint is the right one
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `quorumfs people set`
#[derive(Debug, Args)]
pub(crate) struct PeopleSetArguments {
    /// The person, as `people ls` shows the name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Another name
    #[arg(long, value_name = "NAME")]
    pub(crate) rename: Option<String>,
    /// What the person may do from now on
    #[arg(long, value_enum)]
    pub(crate) role: Option<RoleSetting>,
    /// Another user number; files keep the one that they have
    #[arg(long, value_name = "N")]
    pub(crate) uid: Option<u32>,
    /// All groups that the person is in from now on, by number or name; may be repeated
    #[arg(long = "group", value_name = "GROUP", conflicts_with = "no_groups")]
    pub(crate) groups: Vec<String>,
    /// The person is in no group from now on
    #[arg(long)]
    pub(crate) no_groups: bool,
    /// The person may use the volume for so long from now on: a number and s, m, h or d
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "forever")]
    pub(crate) expires: Option<Duration>,
    /// The person may use the volume until it is removed
    #[arg(long)]
    pub(crate) forever: bool,
}

/// `quorumfs people remove`
#[derive(Debug, Args)]
pub(crate) struct PeopleRemoveArguments {
    /// The person, as `people ls` shows the name, with all machines; or one machine, PERSON@MACHINE
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Remove only the first machine of the person, which has no name of its own
    #[arg(long)]
    pub(crate) this_machine_only: bool,
}

/// `quorumfs people credentials`
#[derive(Debug, Args)]
pub(crate) struct PeopleCredentialsArguments {
    /// The person, as `people ls` shows the name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// A cloud, and the file with the person's credentials of it
    #[arg(value_name = "CLOUD=FILE", required_unless_present = "without")]
    pub(crate) given: Vec<String>,
    /// A cloud of which the person has none any more; revoke them at the provider too
    #[arg(long, value_name = "CLOUD")]
    pub(crate) without: Vec<String>,
}

/// `quorumfs people group`
#[derive(Debug, Args)]
pub(crate) struct PeopleGroupArguments {
    /// The group's number
    #[arg(value_name = "N")]
    pub(crate) gid: u32,
    /// Its name; without one, the name is taken away
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// `quorumfs join`
#[derive(Debug, Default, Args)]
pub(crate) struct JoinArguments {
    /// The file that the administrator has made after admitting you; without it, the line for the
    /// administrator is printed. With --as-me, the line that your other machine has printed
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Add a machine of your own. Where the volume is, this prints a line; type that on the new
    /// machine
    #[arg(long)]
    pub(crate) as_me: bool,
    /// With --as-me, on the new machine: its name, otherwise that of the host
    #[arg(long, value_name = "NAME", requires = "as_me")]
    pub(crate) name: Option<String>,
    /// With --as-me: do not ask whether the fingerprint is the right one
    #[arg(long, requires = "as_me")]
    pub(crate) yes: bool,
    /// Another place of a cloud than the file says
    #[arg(long = "cloud", value_name = "NAME=LOCATION")]
    pub(crate) clouds: Vec<String>,
    /// A file with your credentials of a cloud
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) cloud_credentials: Vec<String>,
    /// Protect the key with a passphrase
    #[arg(long)]
    pub(crate) protect: bool,
}
