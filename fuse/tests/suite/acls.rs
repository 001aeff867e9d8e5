//! Access control lists through the kernel, which passes them on and obeys them.

use crate::common::{MountedVolume, as_user};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A list as Linux encodes it: tags, rights and numbers.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, number) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// A list that names a user, and a group.
fn named(user: u16, group: u16, mask: u16) -> Vec<u8> {
    list(&[
        (OWNER, 6, u32::MAX),
        (USER, user, 1234),
        (OWNING_GROUP, 4, u32::MAX),
        (GROUP, group, 4321),
        (MASK, mask, u32::MAX),
        (OTHER, 0, u32::MAX),
    ])
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 4096];
    let length = getxattr(path, name, value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn reads(path: &Path) -> bool {
    fs::File::open(path).is_ok()
}

fn writes(path: &Path) -> bool {
    OpenOptions::new().append(true).open(path).is_ok()
}

#[test]
fn access_control_lists_let_in_whom_they_name() {
    let mut world = MountedVolume::new();
    world.open_to_all_users();
    let file = world.path("file");
    fs::write(&file, "content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(get(&file, ACCESS), Err(Errno::NODATA));
    set(&file, ACCESS, &named(6, 4, 6)).unwrap();
    assert_eq!(mode(&file), 0o660, "the mask shows as the group's bits");
    for again in 0..2 {
        assert_eq!(get(&file, ACCESS).unwrap(), named(6, 4, 6), "time {again}");
        let mut names = vec![0_u8; 100];
        let length = listxattr(&file, names.as_mut_slice()).unwrap();
        assert_eq!(&names[..length], format!("{ACCESS}\0").as_bytes());
        as_user(1234, &[], || assert!(reads(&file) && writes(&file)));
        as_user(99, &[4321], || assert!(reads(&file) && !writes(&file)));
        as_user(99, &[], || assert!(!reads(&file)));
        world.remount();
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        get(&file, ACCESS).unwrap(),
        named(6, 4, 4),
        "chmod moves the mask"
    );
    as_user(1234, &[], || assert!(reads(&file) && !writes(&file)));
    as_user(1234, &[], || {
        assert_eq!(set(&file, ACCESS, &named(7, 7, 7)), Err(Errno::PERM));
    });
    let plain = list(&[
        (OWNER, 6, u32::MAX),
        (OWNING_GROUP, 4, u32::MAX),
        (OTHER, 4, u32::MAX),
    ]);
    set(&file, ACCESS, &plain).unwrap();
    assert_eq!(mode(&file), 0o644);
    assert_eq!(
        get(&file, ACCESS),
        Err(Errno::NODATA),
        "a mode that says the same"
    );
    // With a mask that grants nothing, a named user has the rights of all others.
    set(&file, ACCESS, &named(6, 4, 0)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    as_user(1234, &[], || {
        assert!(reads(&file) && !writes(&file));
        assert_eq!(set(&file, "user.a", b"value"), Err(Errno::ACCESS));
    });
    set(&file, ACCESS, &named(6, 4, 6)).unwrap();
    removexattr(&file, ACCESS).unwrap();
    as_user(1234, &[], || assert!(!reads(&file)));
    assert_eq!(set(&file, ACCESS, &[2, 0, 0]), Err(Errno::INVAL));
    assert_eq!(set(&file, DEFAULT, &plain), Err(Errno::ACCESS));
}

#[test]
fn a_default_list_stands_in_the_place_of_the_umask() {
    let mut world = MountedVolume::new();
    world.open_to_all_users();
    let directory = world.path("directory");
    fs::create_dir(&directory).unwrap();
    let umask = |of: &Path| {
        let below = of.join("umask");
        let file = OpenOptions::new()
            .mode(0o666)
            .write(true)
            .create_new(true)
            .open(&below);
        file.unwrap();
        let found = mode(&below);
        fs::remove_file(&below).unwrap();
        found
    };
    let usual = umask(&directory);
    assert_ne!(usual, 0o666, "tests run with some umask");
    let default = list(&[
        (OWNER, 7, u32::MAX),
        (USER, 7, 1234),
        (OWNING_GROUP, 5, u32::MAX),
        (MASK, 7, u32::MAX),
        (OTHER, 0, u32::MAX),
    ]);
    set(&directory, DEFAULT, &default).unwrap();
    assert_eq!(umask(&directory), 0o660);
    let (file, below) = (directory.join("file"), directory.join("below"));
    let made = OpenOptions::new()
        .mode(0o644)
        .write(true)
        .create_new(true)
        .open(&file);
    made.unwrap();
    fs::DirBuilder::new().mode(0o755).create(&below).unwrap();
    for again in 0..2 {
        assert_eq!((mode(&file), mode(&below)), (0o640, 0o750), "time {again}");
        assert_eq!(get(&below, DEFAULT).unwrap(), default);
        assert_eq!(get(&file, DEFAULT), Err(Errno::NODATA));
        let own = list(&[
            (OWNER, 6, u32::MAX),
            (USER, 7, 1234),
            (OWNING_GROUP, 5, u32::MAX),
            (MASK, 4, u32::MAX),
            (OTHER, 0, u32::MAX),
        ]);
        assert_eq!(get(&file, ACCESS).unwrap(), own);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        as_user(1234, &[], || assert!(reads(&file) && !writes(&file)));
        world.remount();
    }
    removexattr(&directory, DEFAULT).unwrap();
    removexattr(&directory, DEFAULT).unwrap();
    assert_eq!(umask(&directory), usual);
    assert_eq!(get(&below, DEFAULT).unwrap(), default);
}

#[test]
fn cp_and_tar_keep_access_control_lists() {
    let mut world = MountedVolume::new();
    fs::create_dir(world.path("tree")).unwrap();
    fs::write(world.path("tree/file"), "content").unwrap();
    set(&world.path("tree/file"), ACCESS, &named(6, 4, 6)).unwrap();
    set(&world.path("tree"), DEFAULT, &named(7, 5, 7)).unwrap();
    world.run("cp", &["-a", "tree", "copy"]);
    world.run(
        "sh",
        &[
            "-c",
            "mkdir tar && tar --acls -C tree -cf - . | tar --acls -C tar -xf -",
        ],
    );
    world.remount();
    for place in ["copy", "tar"] {
        let file = world.path(place).join("file");
        assert_eq!(get(&file, ACCESS).unwrap(), named(6, 4, 6), "{place}");
        assert_eq!(
            get(&world.path(place), DEFAULT).unwrap(),
            named(7, 5, 7),
            "{place}"
        );
    }
}
