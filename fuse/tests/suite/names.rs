//! Names, links and listings.

use super::pattern;
use crate::common::MountedVolume;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};

#[test]
fn a_rename_carries_its_content() {
    let mut world = MountedVolume::new();
    fs::write(world.path("config"), "old").unwrap();
    let mut file = File::create(world.path("config.new")).unwrap();
    file.write_all(&pattern(5000, 1)).unwrap();
    // Not closed, not synced: the rename commits the content.
    fs::rename(world.path("config.new"), world.path("config")).unwrap();
    world.crash();
    drop(file);
    world.mount();
    assert!(fs::read(world.path("config")).unwrap() == pattern(5000, 1));
}

#[test]
fn names_are_bytes() {
    let world = MountedVolume::new();
    let names: [&[u8]; 4] = [b"plain", "ümläut ☃".as_bytes(), b"\xff\xfe", &[b'x'; 255]];
    for name in names {
        let path = world.path("").join(std::ffi::OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    let mut found: Vec<_> = fs::read_dir(world.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    found.sort();
    assert_eq!(found.len(), names.len());
    assert!(
        names
            .iter()
            .all(|name| found.iter().any(|found| found.as_bytes() == *name))
    );
    let long = world.path(&"x".repeat(256));
    assert_eq!(
        fs::write(long, "").unwrap_err().raw_os_error(),
        Some(36),
        "ENAMETOOLONG"
    );
}

#[test]
fn a_name_has_any_byte_but_nul_and_the_slash() {
    use std::collections::BTreeSet;
    use std::ffi::{OsStr, OsString};
    let mut world = MountedVolume::new();
    let mut names = BTreeSet::new();
    for byte in (1..=255).filter(|byte| *byte != b'/') {
        // A dot alone is the directory itself.
        if byte != b'.' {
            names.insert(vec![byte]);
        }
        names.insert(vec![b'a', byte, b'b']);
        names.insert([vec![byte; 254], vec![b'z']].concat());
    }
    let renamed = |name: &[u8]| [&name[..name.len().min(254)], b"y"].concat();
    let path = |world: &MountedVolume, name: &[u8]| world.path("").join(OsStr::from_bytes(name));
    let listed = |world: &MountedVolume| -> BTreeSet<OsString> {
        let entries = fs::read_dir(world.path("")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    for name in &names {
        fs::write(path(&world, name), name).unwrap();
    }
    for again in 0..2 {
        let found = listed(&world);
        assert!(
            found.iter().map(|name| name.as_bytes()).eq(&names),
            "time {again}"
        );
        for name in &names {
            let found = fs::metadata(path(&world, name)).unwrap();
            assert_eq!(found.len(), name.len() as u64, "{name:?}");
        }
        world.remount();
    }
    for name in &names {
        let new = path(&world, &renamed(name));
        fs::rename(path(&world, name), &new).unwrap();
        assert_eq!(fs::read(&new).unwrap(), *name);
        assert!(!path(&world, name).exists());
        fs::remove_file(&new).unwrap();
    }
    assert!(listed(&world).is_empty());
}

#[test]
fn a_name_that_is_too_long_is_told_so_whatever_is_done_with_it() {
    let world = MountedVolume::new();
    fs::write(world.path("short"), "").unwrap();
    // The directory is fully listed by now, so every other name is known to be absent.
    for _ in 0..40 {
        assert!(!world.path("absent").exists());
    }
    let long = world.path(&"x".repeat(256));
    let outcomes = [
        fs::metadata(&long).map(drop),
        fs::remove_file(&long),
        fs::remove_dir(&long),
        fs::rename(&long, world.path("other")),
        fs::rename(world.path("short"), &long),
        fs::hard_link(world.path("short"), &long),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(36));
    }
}

#[test]
fn renames_replace_refuse_and_exchange() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let world = MountedVolume::new();
    fs::write(world.path("a"), "a").unwrap();
    fs::write(world.path("b"), "b").unwrap();
    let rename = |flags| renameat_with(CWD, world.path("a"), CWD, world.path("b"), flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    assert_eq!(rename(RenameFlags::WHITEOUT), Err(rustix::io::Errno::INVAL));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(world.path("a")).unwrap(), "b");
    assert_eq!(fs::read_to_string(world.path("b")).unwrap(), "a");
    rename(RenameFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(world.path("b")).unwrap(), "b");
    assert!(!world.path("a").exists());
    fs::create_dir_all(world.path("d/e")).unwrap();
    let error = fs::rename(world.path("d"), world.path("d/e/f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(22), "EINVAL: below itself");
    let error = fs::rename(world.path("b"), world.path("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(21), "EISDIR");
    fs::rename(world.path("d/e"), world.path("e")).unwrap();
    assert_eq!(fs::metadata(world.path("d")).unwrap().nlink(), 2);
    assert!(fs::remove_dir(world.path("e")).is_ok());
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    let world = MountedVolume::new();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(world.path("temporary"))
        .unwrap();
    file.write_all(&pattern(10_000, 3)).unwrap();
    fs::remove_file(world.path("temporary")).unwrap();
    assert!(!world.path("temporary").exists());
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found[..10_000] == pattern(10_000, 3) && &found[10_000..] == b"more");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    drop(file);
    fs::write(world.path("temporary"), "new").unwrap();
    assert_eq!(fs::read_to_string(world.path("temporary")).unwrap(), "new");
}

#[test]
fn hard_links_share_their_content() {
    let mut world = MountedVolume::new();
    fs::write(world.path("one"), pattern(3000, 1)).unwrap();
    fs::hard_link(world.path("one"), world.path("two")).unwrap();
    let mut file = OpenOptions::new()
        .append(true)
        .open(world.path("two"))
        .unwrap();
    file.write_all(b"tail").unwrap();
    drop(file);
    assert_eq!(fs::metadata(world.path("one")).unwrap().len(), 3004);
    assert_eq!(fs::metadata(world.path("one")).unwrap().nlink(), 2);
    world.remount();
    fs::remove_file(world.path("one")).unwrap();
    let found = fs::read(world.path("two")).unwrap();
    assert!(found[..3000] == pattern(3000, 1) && &found[3000..] == b"tail");
    assert_eq!(fs::metadata(world.path("two")).unwrap().nlink(), 1);
    assert!(fs::hard_link(world.path(""), world.path("three")).is_err());
}

#[test]
fn symlinks_are_followed_and_read() {
    let mut world = MountedVolume::new();
    fs::create_dir(world.path("d")).unwrap();
    fs::write(world.path("d/file"), "content").unwrap();
    symlink("d", world.path("to-directory")).unwrap();
    symlink("missing", world.path("dangling")).unwrap();
    let long = "x/".repeat(2000);
    symlink(&long, world.path("long")).unwrap();
    world.remount();
    assert_eq!(
        fs::read_to_string(world.path("to-directory/file")).unwrap(),
        "content"
    );
    assert_eq!(
        fs::read(world.path("dangling")).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        fs::read_link(world.path("long"))
            .unwrap()
            .as_os_str()
            .as_bytes(),
        long.as_bytes()
    );
    assert_eq!(
        fs::symlink_metadata(world.path("long")).unwrap().len(),
        4000
    );
}

#[test]
fn the_target_of_a_symlink_is_any_bytes_but_nul_at_most_4095() {
    use std::ffi::OsStr;
    let mut world = MountedVolume::new();
    let all: Vec<u8> = (1..=255).collect();
    let mut targets = vec![
        b"x".to_vec(),
        vec![b'y'; 4094],
        vec![b'y'; 4095],
        all.clone(),
    ];
    targets.push(all.iter().copied().cycle().take(4095).collect());
    targets.extend(all.into_iter().map(|byte| vec![byte]));
    let make = |target: &[u8], name: &str| symlink(OsStr::from_bytes(target), world.path(name));
    for (target, refused) in [(4096, 36), (5000, 36), (0, 2)] {
        let made = make(&vec![b'y'; target], "refused");
        assert_eq!(made.unwrap_err().raw_os_error(), Some(refused));
    }
    for (number, target) in targets.iter().enumerate() {
        make(target, &format!("link{number}")).unwrap();
    }
    for _ in 0..2 {
        for (number, target) in targets.iter().enumerate() {
            let link = world.path(&format!("link{number}"));
            let found = fs::read_link(&link).unwrap();
            assert_eq!(found.as_os_str().as_bytes(), target);
            let found = fs::symlink_metadata(&link).unwrap();
            assert_eq!(found.len(), target.len() as u64);
        }
        world.remount();
    }
}

#[test]
fn a_file_without_a_name_is_not_made() {
    use rustix::fs::{Mode, OFlags, open};
    let world = MountedVolume::new();
    let nameless = open(
        world.path(""),
        OFlags::TMPFILE | OFlags::RDWR,
        Mode::from_raw_mode(0o600),
    );
    assert_eq!(nameless.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    // Programs that want such a file create a name and remove it.
    let python = "import tempfile; f = tempfile.TemporaryFile(dir='.'); f.write(b'x'); f.flush()";
    world.run("python3", &["-c", python]);
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 0);
}

#[test]
fn listing_goes_on_while_entries_are_deleted() {
    let mut world = MountedVolume::new();
    fs::create_dir(world.path("many")).unwrap();
    for number in 0..2000 {
        File::create(world.path(&format!("many/{number}"))).unwrap();
    }
    world.remount();
    let count = || fs::read_dir(world.path("many")).unwrap().count();
    assert_eq!(count(), 2000);
    let mut seen = std::collections::BTreeSet::new();
    for (at, entry) in fs::read_dir(world.path("many")).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(
            seen.insert(entry.file_name()),
            "{:?} twice",
            entry.file_name()
        );
        if at % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(seen.len(), 2000, "nothing is missed");
    assert_eq!(count(), 1000);
    world.run("rm", &["-r", "many"]);
    assert!(!world.path("many").exists());
}

#[test]
fn special_files_can_be_made() {
    let world = MountedVolume::new();
    world.run("mkfifo", &["pipe"]);
    let said = world.run("sh", &["-c", "echo through > pipe & cat pipe"]);
    assert_eq!(said, "through\n");
    let _socket = std::os::unix::net::UnixListener::bind(world.path("socket")).unwrap();
    world.run("mknod", &["null", "c", "1", "3"]);
    assert_eq!(fs::metadata(world.path("null")).unwrap().rdev(), 259);
}
