//! Values on the command line that several commands take: a replica's key and address, a cloud's
//! name and location, a file with credentials.

use crate::clouds;
use crate::configuration::{CloudSection, ReplicaSection};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::location::Location;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_runtime::address::{Address, NoAddress};
use std::path::{Path, PathBuf};

/// A replica's public key, as people pass it on.
pub(crate) fn public_key(digits: &str) -> CommandResult<PublicKey> {
    digits.parse().map_err(|_| {
        Failure::new(
            Exit::Usage,
            format!("`{digits}` is not the public key of a replica"),
        )
        .hint("it is 64 hexadecimal digits; `quorumfs replica init` printed it")
    })
}

/// A cloud's part of the configuration.
pub(crate) fn cloud(name: &str, location: &str) -> CloudSection {
    CloudSection::at(name.to_string(), location.to_string())
}

/// The address at which a replica is reached.
pub(crate) fn place(text: &str) -> CommandResult<Address> {
    let address: Address = text
        .parse()
        .map_err(|error: NoAddress| Failure::new(Exit::Usage, error.to_string()))?;
    if address.is_unspecified() {
        let message = format!("{address} is only for listening: others cannot reach it there");
        return Err(Failure::new(Exit::Usage, message)
            .hint("name the machine by the address or name at which the others reach it"));
    }
    Ok(address)
}

/// A replica's key and address, as people pass them on.
pub(crate) fn replica(text: &str) -> CommandResult<ReplicaSection> {
    let wrong = || {
        Failure::new(Exit::Usage, format!("`{text}` is not KEY@HOST:PORT"))
            .hint("`quorumfs replica init` printed it, like 4f…c2@replica.example:7000")
    };
    let (key, address) = text.split_once('@').ok_or_else(wrong)?;
    let address = place(address)?;
    Ok(ReplicaSection {
        address,
        key: key.to_string(),
    })
}

/// A cloud as it is named on the command line; a directory's path is made absolute.
pub(crate) fn named(text: &str) -> CommandResult<CloudSection> {
    let wrong = || {
        Failure::new(Exit::Usage, format!("`{text}` is not NAME=LOCATION"))
            .hint("name each cloud, like --cloud first=/mnt/first or --cloud aws=s3://bucket/below")
    };
    let (name, location) = text.split_once('=').ok_or_else(wrong)?;
    if name.is_empty() || location.is_empty() {
        return Err(wrong());
    }
    let section = cloud(name, location);
    match clouds::location(&section, Path::new(""))? {
        Location::Local(path) => {
            let path = std::path::absolute(&path)
                .map_err(|error| Failure::file("use the cloud", &path, &error))?;
            let path = path.to_str().ok_or_else(wrong)?;
            Ok(cloud(name, path))
        }
        Location::Remote(_) => Ok(section),
    }
}

/// An error if one of `named` has the name of no cloud of the volume.
pub(crate) fn refuse_other_clouds(
    named: &[CloudSection],
    clouds: &[CloudSection],
) -> CommandResult<()> {
    let is_known = |it: &&CloudSection| clouds.iter().any(|known| known.name == it.name);
    let Some(other) = named.iter().find(|it| !is_known(it)) else {
        return Ok(());
    };
    let names: Vec<_> = clouds.iter().map(|it| it.name.as_str()).collect();
    let message = format!("the volume has no cloud `{}`", other.name);
    let hint = format!("its clouds are {}", names.join(", "));
    Err(Failure::new(Exit::Usage, message).hint(hint))
}

/// A file with credentials, as the configuration names it: relative if it is in the state
/// directory, so that a copy of that directory works on another machine.
pub(crate) fn credentials_file(state: &StateDirectory, path: &str) -> CommandResult<PathBuf> {
    let failed = |error| Failure::file("use the credentials", path.as_ref(), &error);
    let absolute = std::path::absolute(path).map_err(failed)?;
    let base = std::path::absolute(state.path()).map_err(failed)?;
    Ok(absolute
        .strip_prefix(&base)
        .map_or_else(|_| absolute.clone(), Path::to_path_buf))
}

/// Applies the values of `--cloud-…=NAME=VALUE` to the clouds.
pub(crate) fn apply_values(
    clouds: &mut [CloudSection],
    option: &str,
    texts: &[String],
    set: impl Fn(&mut CloudSection, &str) -> CommandResult<()>,
) -> CommandResult<()> {
    for text in texts {
        let none = || {
            Failure::new(
                Exit::Usage,
                format!("{option} `{text}` names none of the clouds"),
            )
            .hint(format!(
                "the form is {option} NAME=VALUE, with the NAME of a --cloud"
            ))
        };
        let (name, value) = text.split_once('=').ok_or_else(none)?;
        let cloud = clouds.iter_mut().find(|cloud| cloud.name == name);
        set(cloud.ok_or_else(none)?, value)?;
    }
    Ok(())
}
