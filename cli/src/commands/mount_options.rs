//! The options behind `-o`, as written in `/etc/fstab`.
//!
//! Our options are parsed, those for `mount(8)` or systemd are skipped, and all others are refused:
//! an option without its intended effect is worse than a failed mount.

use crate::arguments::TakeoverFrom;
use crate::configuration::TierSetting;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;

/// Options for `mount(8)`, systemd and other programs that decide when to mount; and options that
/// hold anyway.
const PASSED_OVER: &[&str] = &[
    "defaults", "auto", "noauto", "nofail", "fail", "_netdev", "user", "nouser", "users", "owner",
    "group", "rw", "exec", "nodev", "nosuid", "async", "relatime", "loud", "silent", "uhelper",
    "helper", "comment",
];
/// Prefixes of options in `fstab` that are for other programs.
const FOR_OTHERS: &[&str] = &["x-", "X-"];
const KNOWN: &str = "ro, noexec, allow_other, noallow_other, tier=memory|local|clouds, \
                     takeover[=SESSION], exclusive, wait=SECONDS";

/// The options of one mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MountOptions {
    /// Writing through it is refused.
    pub(crate) read_only: bool,
    /// Running programs in it is refused.
    pub(crate) no_exec: bool,
    /// Whether other users may use it, if given.
    pub(crate) allow_other: Option<bool>,
    /// What close and fsync wait for, if given.
    pub(crate) tier: Option<TierSetting>,
    /// Whether other mounts lose the volume.
    pub(crate) takeover: Option<TakeoverFrom>,
    /// Whether other mounts are kept out.
    pub(crate) exclusive: bool,
    /// How many seconds to wait for servers and clouds, if given.
    pub(crate) wait: Option<u32>,
}

impl MountOptions {
    /// Parses options, each as it stands between commas; a later one wins. With `sloppy`, which
    /// `mount -s` sets, unknown options are skipped.
    pub(crate) fn parse(words: &[String], sloppy: bool) -> CommandResult<Self> {
        let mut options = Self::default();
        for word in words.iter().flat_map(|words| words.split(',')) {
            let word = word.trim();
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            match (name, value) {
                ("ro", None) => options.read_only = true,
                ("rw", None) => options.read_only = false,
                ("noexec", None) => options.no_exec = true,
                ("exec", None) => options.no_exec = false,
                ("allow_other", None) => options.allow_other = Some(true),
                ("noallow_other", None) => options.allow_other = Some(false),
                ("takeover", None) => options.takeover = Some(TakeoverFrom::All),
                ("takeover", Some(session)) => {
                    let session = session.parse().map_err(|_| unknown(word))?;
                    options.takeover = Some(session);
                }
                ("exclusive", None) => options.exclusive = true,
                ("tier", Some(tier)) => options.tier = Some(tier_of(tier)?),
                ("wait", Some(seconds)) => {
                    let seconds = seconds.parse().map_err(|_| unknown(word))?;
                    options.wait = Some(seconds);
                }
                ("remount", None) => return Err(remount()),
                ("", None) => {}
                _ if PASSED_OVER.contains(&name) => {}
                _ if FOR_OTHERS.iter().any(|prefix| name.starts_with(prefix)) => {}
                _ if sloppy => {}
                _ => return Err(unknown(word)),
            }
            // `mount(8)` implies all three by it, and two of them hold anyway.
            if matches!(name, "user" | "users" | "owner" | "group") && value.is_none() {
                options.no_exec = true;
            }
        }
        Ok(options)
    }
}

fn tier_of(name: &str) -> CommandResult<TierSetting> {
    let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    TierSetting::deserialize(name).map_err(|error| {
        Failure::new(Exit::Usage, format!("tier: {error}")).hint(format!("known are: {KNOWN}"))
    })
}

/// Only the process that serves the mount could change it, not this one.
fn remount() -> Failure {
    Failure::new(
        Exit::Usage,
        "a mount of quorumfs cannot be changed while it exists: `remount` does nothing",
    )
    .hint("`umount DIR`, then mount it again with the new options")
}

fn unknown(word: &str) -> Failure {
    Failure::new(Exit::Usage, format!("`{word}` is no option of a mount")).hint(format!(
        "known are: {KNOWN}; options for other programs begin with `x-`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::SessionId;

    fn parse(text: &str) -> CommandResult<MountOptions> {
        MountOptions::parse(&[text.to_string()], false)
    }

    #[test]
    fn what_is_ours_is_taken_and_what_is_for_others_passed_over() {
        let ours = parse("rw,allow_other,tier=local").unwrap();
        assert_eq!((ours.allow_other, ours.read_only), (Some(true), false));
        assert_eq!(ours.tier, Some(TierSetting::Local));
        assert_eq!(parse("wait=300").unwrap().wait, Some(300));
        assert_eq!(parse("takeover").unwrap().takeover, Some(TakeoverFrom::All));
        let named = Some(TakeoverFrom::Session(SessionId(12)));
        assert_eq!(parse("takeover=12").unwrap().takeover, named);
        assert!(parse("takeover=the-other").is_err());
        assert!(!ours.exclusive);
        assert!(parse("exclusive").unwrap().exclusive);
        let others =
            "defaults,noauto,nofail,_netdev,x-systemd.automount,x-gvfs-hide,comment=a,nodev";
        assert_eq!(parse(others).unwrap(), MountOptions::default());
        assert_eq!(parse("").unwrap(), MountOptions::default());
        let last = parse("rw,ro,tier=local,tier=memory").unwrap();
        assert!(last.read_only);
        assert_eq!(last.tier, Some(TierSetting::Memory));
        assert!(!parse("ro,rw").unwrap().read_only);
    }

    #[test]
    fn who_lets_users_mount_lets_them_run_nothing_unless_that_is_said() {
        assert!(parse("user").unwrap().no_exec);
        assert!(!parse("user,exec").unwrap().no_exec);
        assert!(!parse("nouser").unwrap().no_exec);
    }

    #[test]
    fn an_unknown_option_is_refused_unless_sloppy() {
        for bad in [
            "allow_root",
            "sync",
            "suid",
            "tier",
            "tier=fast",
            "ro=1",
            "uid=0",
            "wait",
            "wait=long",
            "wait=-1",
        ] {
            let failure = parse(bad).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{bad}");
            assert!(failure.hint.unwrap().contains("tier=memory"), "{bad}");
        }
        let sloppy = MountOptions::parse(&["sync,ro".to_string()], true).unwrap();
        assert!(sloppy.read_only);
    }

    #[test]
    fn a_remount_is_refused_as_such_however_sloppy_one_is() {
        for sloppy in [false, true] {
            let failure = MountOptions::parse(&["rw,remount".to_string()], sloppy).unwrap_err();
            assert!(failure.message.contains("remount"), "{failure}");
            assert!(failure.hint.unwrap().contains("umount DIR"));
        }
    }
}
