//! A key that a passphrase protects: what opens it, what does not, and what a thief of the disk can
//! read.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_gateway::keys::{HostKey, KeyFile, Passphrase, ShareCache, StoredKey};
use quorumfs_metadata::identity::RealmId;
use quorumfs_tests::harness::{Cluster, Needle, Quorumfs, kill_mount, mount_in_background, search};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const RIGHT: &str = "correct horse battery staple";
const VARIABLE: &str = "QUORUMFS_PASSPHRASE_FILE";

/// A file that only its owner can read.
fn secret_file(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.directory().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn key(cluster: &Cluster, command: &[&str]) -> Quorumfs {
    cluster.quorumfs().args(["key"]).args(command)
}

fn protect(cluster: &Cluster, file: &Path) {
    let protect = key(cluster, &["protect", "--from"]).args([file]).run();
    let report = protect.ok().records("key").remove(0);
    assert_eq!(report["protected"], true, "{report}");
    assert_eq!(report["argon2id"]["memory_kib"], 64 << 10, "{report}");
    assert!(report["recovery_kit"].is_string(), "{report}");
}

/// Removes the test's key from this user's keyring, however the test ends.
struct Locked<'a>(&'a Cluster);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = key(self.0, &["lock"]).run();
    }
}

#[test]
fn a_protected_key_opens_with_its_passphrase_from_any_source() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let _locked = Locked(&cluster);
    let right = secret_file(&cluster, "right", &format!("{RIGHT}\n"));
    let wrong = secret_file(&cluster, "wrong", "incorrect\n");
    protect(&cluster, &right);
    let ls = || cluster.quorumfs().args(["ls"]);
    let from = || {
        let status = key(&cluster, &["status"]).run().ok();
        status.records("key")[0]["passphrase_from"].clone()
    };
    ls().run().fails(12, "no source of it", "key unlock");
    assert!(from().is_null());

    // A file that a variable names; its mode is checked.
    ls().env(VARIABLE, &right).run().ok();
    let refused = ls().env(VARIABLE, &wrong).run();
    refused.fails(12, "does not open the key file", "put the right one there");
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o640)).unwrap();
    let exposed = ls().env(VARIABLE, &wrong).run();
    exposed.fails(12, "mode 0640", "chmod 600");
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o600)).unwrap();
    let none = ls().env(VARIABLE, "/nothing/of/this/name").run();
    none.fails(12, "/nothing/of/this/name", "");
    // The secret itself is not read from any variable.
    ls().env("QUORUMFS_PASSPHRASE", RIGHT)
        .run()
        .fails(12, "no source of it", "");

    // A command; a file has precedence over it.
    let cat = format!("passphrase_command = [\"cat\", \"{}\"]", right.display());
    cluster.configure(&format!("[keys]\n{cat}\n"));
    assert_eq!(from(), "command");
    ls().run().ok();
    ls().env(VARIABLE, &wrong)
        .run()
        .fails(12, "does not open", "the file");

    // The keyring; only systemd's credential has precedence over it.
    let unlock = |seconds: &str| key(&cluster, &["unlock", "--seconds", seconds]);
    let failed = unlock("60").env(VARIABLE, &wrong).run();
    failed.fails(12, "does not open", "the file");
    assert_eq!(from(), "command", "a wrong one is not stored");
    unlock("60").run().ok();
    assert_eq!(from(), "keyring");
    ls().env(VARIABLE, &wrong).run().ok();
    let credentials = cluster.directory().join("credentials");
    fs::create_dir(&credentials).unwrap();
    fs::copy(&wrong, credentials.join("quorumfs.passphrase")).unwrap();
    let with_credentials = || ls().env("CREDENTIALS_DIRECTORY", &credentials);
    let refused = with_credentials().run();
    refused.fails(12, "does not open the key file", "credential");
    fs::copy(&right, credentials.join("quorumfs.passphrase")).unwrap();
    with_credentials().env(VARIABLE, &wrong).run().ok();
    let forgotten = key(&cluster, &["lock"]).run().ok().records("locked");
    assert_eq!(forgotten[0]["forgotten"], true);
    assert_eq!(from(), "command");
    unlock("1").run().ok();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(from(), "command", "its time has run out");

    // Another passphrase: the old one no longer opens the key, and the keyring no longer holds it.
    unlock("60").run().ok();
    let second = secret_file(&cluster, "second", "another");
    protect(&cluster, &second);
    ls().run().fails(12, "does not open", "cat");
    ls().env(VARIABLE, &second).run().ok();
    let open = key(&cluster, &["unprotect"]).env(VARIABLE, &second).run();
    assert_eq!(open.ok().records("key")[0]["protected"], false);
    ls().env(VARIABLE, &wrong).run().ok();
    assert_eq!(from(), serde_json::Value::Null);
    unlock("60")
        .run()
        .fails(2, "is not protected", "key protect");
}

#[test]
fn a_prompt_on_a_terminal_shows_no_input_and_allows_typing_errors() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let _locked = Locked(&cluster);
    let line = format!("{RIGHT}\n");
    let on_terminal = |run: Quorumfs, typed: &[&str]| {
        let (finished, seen) = run.run_on_terminal(typed);
        for typed in typed {
            assert!(!seen.contains(typed.trim_end()), "{seen}");
        }
        finished
    };
    let protect = || key(&cluster, &["protect"]);
    let differ = on_terminal(protect(), &[&line, "something else\n"]);
    differ.fails(2, "passphrases differ", "nothing was changed");
    assert!(KeyFile::load(&cluster.volume().join("principal.key")).is_ok());
    on_terminal(protect(), &[&line, &line]).ok();
    let ls = || cluster.quorumfs().args(["ls"]);
    on_terminal(ls(), &["wrong\n", &line]).ok();
    let refused = on_terminal(ls(), &["a wrong one\n", "and another\n", "a third\n"]);
    refused.fails(12, "does not open", "recovery kit");
    assert_eq!(on_terminal(ls(), &["never mind\x03"]).code, Some(130));

    // A background mount asks while the command has a terminal, and then continues without one.
    let point = cluster.mount_point();
    let mount = cluster
        .quorumfs()
        .args(["mount", "--background"])
        .args([&point]);
    mount.run().fails(12, "no source of it", "key unlock");
    let ready = on_terminal(mount, &["not this\n", &line])
        .ok()
        .records("ready");
    let pid = ready[0]["pid"].as_u64().unwrap();
    for part in ["cmdline", "environ"] {
        let shown = fs::read(format!("/proc/{pid}/{part}")).unwrap();
        assert!(!String::from_utf8_lossy(&shown).contains(RIGHT), "{part}");
    }
    fs::write(point.join("file"), "content").unwrap();
    cluster.quorumfs().run_with(["umount"]).ok();
    let unlock = key(&cluster, &["unlock"]);
    on_terminal(unlock, &[&line]).ok();
    assert_eq!(
        cluster.quorumfs().run_with(["cat", "/file"]).ok().stdout,
        b"content"
    );
}

#[test]
fn a_key_that_is_protected_from_the_start_is_never_stored_readable() {
    let passphrase = |cluster: &Cluster| cluster.directory().join("passphrase");
    let create = |cluster: &Cluster, volume: &str| {
        let clouds = cluster.directory().join(format!("clouds of {volume}"));
        let state = cluster.directory().join(volume);
        cluster.create(&state, &clouds).args(["--protect"])
    };
    let mut cluster = Cluster::prepare_with(|cluster| {
        // There is no terminal to ask on: nothing is created, on no cloud.
        create(cluster, "none")
            .run()
            .fails(2, "no terminal", "--from");
        assert!(!cluster.directory().join("clouds of none").exists());
        secret_file(cluster, "passphrase", RIGHT);
        let clouds = cluster.directory().join("clouds");
        let create = cluster.create(&cluster.volume(), &clouds);
        create
            .args(["--protect"])
            .env(VARIABLE, passphrase(cluster))
    });
    cluster.start();
    let path = cluster.volume().join("principal.key");
    let stored = StoredKey::load(&path).unwrap();
    assert!(matches!(stored, StoredKey::Sealed(_)), "{stored:?}");
    cluster
        .quorumfs()
        .run_with(["ls"])
        .fails(12, "no source of it", "");
    let ls = cluster.quorumfs().args(["ls"]);
    ls.env(VARIABLE, passphrase(&cluster)).run().ok();
}

const PLANTED: &[(&str, &str)] = &[
    ("name", "needle-the-name-of-a-file"),
    ("directory", "needle-the-name-of-a-directory"),
    ("content", "a needle that a file holds, again and again"),
    ("attribute", "a needle that is the value of an attribute"),
];

fn text(kind: &str) -> &'static str {
    PLANTED
        .iter()
        .find(|(planted, _)| *planted == kind)
        .unwrap()
        .1
}

/// Everything that must not be readable in the state directory.
fn needles(cluster: &Cluster, key: &KeyFile) -> Vec<Needle> {
    let mut needles: Vec<_> = PLANTED
        .iter()
        .map(|(kind, text)| (*kind, text.as_bytes().to_vec()))
        .collect();
    let mut secret = |kind, bytes: &[u8; 32]| needles.push((kind, bytes.to_vec()));
    let seed = fs::read_to_string(cluster.directory().join("plain.key")).unwrap();
    secret("principal", &seed_in(&seed));
    secret("signing key", key.principal.signing_secret().expose());
    let host = cluster.volume().join("host.key");
    let host = HostKey::open_or_create(&host, key.volume(), &key.principal).unwrap();
    secret("cache key", host.cache().expose());
    secret("journal key", host.journal().expose());
    secret("kept shares key", host.share_cache().expose());
    let volume = quorumfs_tests::harness::unlocked(cluster, key);
    let epoch = volume.current_epoch().unwrap();
    secret("epoch key", volume.epoch_key(epoch).unwrap().expose());
    let kept = cluster.volume().join("clouds.shares");
    let kept = ShareCache::new(kept, host.share_cache(), key.volume());
    let shares = kept.load(RealmId::ROOT, epoch).unwrap().unwrap();
    for (_, share) in &shares {
        secret("share", share.expose());
    }
    let slices = quorumfs_tests::harness::slice_keys(cluster, &volume, 16);
    assert!(!slices.is_empty());
    for slice in &slices {
        secret("slice key", slice.expose());
    }
    for (_, cloud) in volume.clouds() {
        secret("cloud secret", cloud.expose());
    }
    let needle = |(kind, bytes)| Needle { kind, bytes };
    needles.into_iter().map(needle).collect()
}

/// The secret in the text of an unprotected key file.
fn seed_in(text: &str) -> [u8; 32] {
    let line = text
        .lines()
        .find(|line| line.starts_with("principal "))
        .unwrap();
    let digits = line
        .trim_start_matches("principal")
        .split(':')
        .next()
        .unwrap();
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).unwrap();
        u8::from_str_radix(pair, 16).unwrap()
    });
    pairs.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn the_disk_of_a_killed_mount_with_a_protected_key_reveals_nothing() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let _locked = Locked(&cluster);
    let configuration = cluster.volume().join("quorumfs.toml");
    let cached = fs::read_to_string(&configuration).unwrap();
    let cached = cached.replace("size_mib = 0", "size_mib = 64\nfree_space_floor_mib = 0");
    fs::write(&configuration, cached).unwrap();
    cluster.set_tier("local");
    // As `volume create` advises: print it, delete it here.
    let kit = cluster.volume().join("recovery-kit.txt");
    fs::rename(&kit, cluster.directory().join("printed")).unwrap();
    let path = cluster.volume().join("principal.key");
    fs::copy(&path, cluster.directory().join("plain.key")).unwrap();
    let right = secret_file(&cluster, "right", RIGHT);
    let protect = key(&cluster, &["protect", "--from"]).args([&right]).run();
    assert!(protect.ok().records("key")[0]["recovery_kit"].is_null());
    let unlock = key(&cluster, &["unlock"]);
    unlock.env(VARIABLE, &right).run().ok();

    let point = cluster.mount_point();
    let process = mount_in_background(&cluster, &point, &["--log", "debug"]);
    let content = text("content").repeat(100_000);
    let directory = point.join(text("directory"));
    let write = |name: &str| {
        fs::write(directory.join(name), &content).unwrap();
        fs::File::open(directory.join(name))
            .unwrap()
            .sync_all()
            .unwrap();
    };
    fs::create_dir(&directory).unwrap();
    write("committed");
    cluster.quorumfs().args(["sync"]).args([&point]).run().ok();
    assert!(fs::read_to_string(directory.join("committed")).unwrap() == content);
    // With two clouds of four gone, the rest stays in the journal.
    for index in [0, 1] {
        let cloud = cluster.cloud(index);
        fs::rename(&cloud, cloud.with_extension("gone")).unwrap();
    }
    write(text("name"));
    let attribute = ("user.needle", text("attribute"));
    let flags = rustix::fs::XattrFlags::empty();
    let written = directory.join("committed");
    rustix::fs::setxattr(&written, attribute.0, attribute.1.as_bytes(), flags).unwrap();
    write("more");
    kill_mount(process, &point);
    cluster
        .quorumfs()
        .args(["umount"])
        .args([&point])
        .run()
        .ok();
    for index in [0, 1] {
        let cloud = cluster.cloud(index);
        fs::rename(cloud.with_extension("gone"), &cloud).unwrap();
    }

    let lengths = |directory: &str| -> u64 {
        let mut waiting = vec![cluster.volume().join(directory)];
        let mut bytes = 0;
        while let Some(path) = waiting.pop() {
            match fs::read_dir(&path) {
                Ok(entries) => waiting.extend(entries.map(|entry| entry.unwrap().path())),
                Err(_) => bytes += path.metadata().unwrap().len(),
            }
        }
        bytes
    };
    assert!(lengths("journal") > 1 << 20 && lengths("cache") > 1 << 20);
    for name in ["host.key", "clouds.shares", "mount.log", "principal.key"] {
        assert!(cluster.volume().join(name).exists(), "{name}");
    }
    let passphrase = Passphrase::from_bytes(RIGHT.as_bytes().to_vec().into()).unwrap();
    let StoredKey::Sealed(sealed) = StoredKey::load(&path).unwrap() else {
        panic!("it is not sealed");
    };
    let opened = sealed.open(&passphrase).unwrap();
    let mut needles = needles(&cluster, &opened);
    let phrase = RIGHT.as_bytes().to_vec();
    let kind = "passphrase";
    needles.push(Needle {
        kind,
        bytes: phrase,
    });
    let found = search(&[cluster.volume()], &needles);
    assert!(
        found.is_empty(),
        "readable on this machine's disk: {found:#?}"
    );

    // The same search finds the key where it is unprotected.
    let open = key(&cluster, &["unprotect"]).run();
    open.ok();
    let found = search(&[cluster.volume()], &needles);
    let kinds: Vec<_> = found.iter().map(|found| (found.kind, found.form)).collect();
    assert_eq!(kinds, [("principal", "in groups of digits")], "{found:#?}");
}
