//! Extended attributes through the kernel.

use crate::common::{MountedVolume, as_user};
use crate::pattern;
use rustix::fs::{
    XattrFlags, getxattr, getxattr_query, listxattr, listxattr_query, removexattr, setxattr,
};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 1 << 16];
    let length = getxattr(path, name, value.as_mut_slice())?;
    value.truncate(length);
    Ok(value)
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0_u8; 1 << 16];
    let length = listxattr(path, names.as_mut_slice()).unwrap();
    let text = String::from_utf8(names[..length].to_vec()).unwrap();
    let mut names: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn extended_attributes_are_kept() {
    let mut world = MountedVolume::new();
    let (file, directory) = (world.path("file"), world.path("directory"));
    fs::write(&file, "content").unwrap();
    fs::create_dir(&directory).unwrap();
    for (at, path) in [&file, &directory].into_iter().enumerate() {
        assert_eq!(get(path, "user.none"), Err(Errno::NODATA));
        assert_eq!(list(path), Vec::<String>::new());
        set(path, "user.mime_type", b"text/plain").unwrap();
        set(path, "user.empty", b"").unwrap();
        set(path, "user.long", &pattern(1 << 16, at as u64)).unwrap();
        set(path, "trusted.overlay", b"y").unwrap();
        set(path, "security.label", b"label").unwrap();
    }
    for again in 0..2 {
        for (at, path) in [&file, &directory].into_iter().enumerate() {
            assert_eq!(get(path, "user.mime_type").unwrap(), b"text/plain");
            assert_eq!(get(path, "user.empty").unwrap(), b"");
            assert_eq!(get(path, "user.long").unwrap(), pattern(1 << 16, at as u64));
            let names = [
                "security.label",
                "trusted.overlay",
                "user.empty",
                "user.long",
                "user.mime_type",
            ];
            assert_eq!(list(path), names, "time {again}");
        }
        world.remount();
    }
    removexattr(&file, "user.long").unwrap();
    assert_eq!(removexattr(&file, "user.long"), Err(Errno::NODATA));
    assert_eq!(get(&file, "user.long"), Err(Errno::NODATA));
    assert_eq!(list(&file).len(), 4);
    fs::rename(&file, world.path("moved")).unwrap();
    assert_eq!(
        get(&world.path("moved"), "user.mime_type").unwrap(),
        b"text/plain"
    );
}

#[test]
fn buffers_flags_and_bounds_are_those_of_the_system_calls() {
    let world = MountedVolume::new();
    let file = world.path("file");
    fs::write(&file, "content").unwrap();
    let with = |value: &[u8], flags| setxattr(&file, "user.a", value, flags);
    assert_eq!(with(b"0", XattrFlags::REPLACE), Err(Errno::NODATA));
    with(b"123456", XattrFlags::CREATE).unwrap();
    assert_eq!(with(b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    with(b"654321", XattrFlags::REPLACE).unwrap();
    assert_eq!(getxattr_query(&file, "user.a"), Ok(6));
    assert_eq!(listxattr_query(&file), Ok(7));
    let mut small = [0_u8; 5];
    assert_eq!(getxattr(&file, "user.a", &mut small[..]), Err(Errno::RANGE));
    assert_eq!(listxattr(&file, &mut small[..]), Err(Errno::RANGE));
    assert_eq!(
        set(&file, "user.b", &[0; (1 << 16) + 1]),
        Err(Errno::TOOBIG)
    );
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(set(&file, &long, b""), Err(Errno::RANGE));
    set(&file, &long[..255], b"").unwrap();
    assert_eq!(set(&file, "system.other", b""), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&file, "nothing", b""), Err(Errno::OPNOTSUPP));
    set(&file, "user.first", &[1; 60 << 10]).unwrap();
    set(&file, "user.second", &[2; 60 << 10]).unwrap();
    assert_eq!(set(&file, "user.third", &[3; 60 << 10]), Err(Errno::NOSPC));
    let before = fs::metadata(&file).unwrap();
    set(&file, "user.first", b"short").unwrap();
    set(&file, "user.third", &[3; 60 << 10]).unwrap();
    let after = fs::metadata(&file).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    let ctime = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
    assert!(ctime(&after) > ctime(&before));
}

#[test]
fn namespaces_have_their_own_permissions() {
    let world = MountedVolume::new();
    world.open_to_all_users();
    let file = world.path("file");
    fs::write(&file, "content").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    for name in ["user.a", "trusted.b", "security.c"] {
        set(&file, name, b"value").unwrap();
    }
    as_user(1234, &[], || {
        assert_eq!(get(&file, "user.a").unwrap(), b"value");
        assert_eq!(get(&file, "security.c").unwrap(), b"value");
        assert_eq!(
            list(&file),
            ["security.c", "user.a"],
            "trusted ones are not shown"
        );
        assert_eq!(get(&file, "trusted.b"), Err(Errno::NODATA));
        assert_eq!(set(&file, "trusted.b", b""), Err(Errno::PERM));
        assert_eq!(set(&file, "user.a", b""), Err(Errno::ACCESS));
        assert_eq!(set(&file, "security.c", b""), Err(Errno::PERM));
    });
    fs::set_permissions(&file, fs::Permissions::from_mode(0o602)).unwrap();
    as_user(1234, &[], || {
        assert_eq!(get(&file, "user.a"), Err(Errno::ACCESS));
        set(&file, "user.a", b"theirs").unwrap();
    });
    assert_eq!(get(&file, "user.a").unwrap(), b"theirs");
    let directory = world.path("sticky");
    fs::create_dir(&directory).unwrap();
    for (mode, outcome) in [(0o777, Ok(())), (0o1777, Err(Errno::PERM))] {
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        as_user(1234, &[], || {
            assert_eq!(set(&directory, "user.a", b""), outcome)
        });
    }
    symlink("file", world.path("link")).unwrap();
    let of_link = rustix::fs::lsetxattr(world.path("link"), "user.a", b"", XattrFlags::empty());
    assert_eq!(of_link, Err(Errno::PERM));
}

#[test]
fn a_write_removes_the_capabilities_of_a_file() {
    let mut world = MountedVolume::new();
    let file = world.path("file");
    fs::write(&file, "program").unwrap();
    // VFS_CAP_REVISION_2 with cap_net_bind_service, effective.
    let mut capability = vec![0_u8; 20];
    capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1_u32 << 10).to_le_bytes());
    set(&file, "security.capability", &capability).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    world.remount();
    assert_eq!(get(&file, "security.capability").unwrap(), capability);
    let open = fs::OpenOptions::new().append(true).open(&file).unwrap();
    std::io::Write::write_all(&mut &open, b"more").unwrap();
    assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA));
    drop(open);
    world.remount();
    assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA));
    assert_eq!(list(&file), Vec::<String>::new());
}

#[test]
fn who_owns_a_file_with_capabilities_writes_to_it() {
    let mut world = MountedVolume::new();
    world.open_to_all_users();
    let file = world.path("file");
    fs::write(&file, "program").unwrap();
    rustix::fs::chown(&file, Some(rustix::fs::Uid::from_raw(1234)), None).unwrap();
    let mut capability = vec![0_u8; 20];
    capability[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
    capability[4..8].copy_from_slice(&(1_u32 << 10).to_le_bytes());
    set(&file, "security.capability", &capability).unwrap();
    as_user(1234, &[], || {
        let removed = removexattr(&file, "security.capability");
        assert_eq!(removed, Err(Errno::PERM));
        fs::write(&file, "another").unwrap();
    });
    assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA));
    world.remount();
    assert_eq!(fs::read(&file).unwrap(), b"another");
    assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA));
}

#[test]
fn a_file_without_attributes_is_not_asked_about() {
    let world = MountedVolume::new();
    let (file, other) = (world.path("file"), world.path("other"));
    fs::write(&file, "content").unwrap();
    fs::write(&other, "content").unwrap();
    set(&other, "user.a", b"value").unwrap();
    assert_eq!(get(&other, "user.a").unwrap(), b"value");
    let before = world.embedded.counters();
    let started = std::time::Instant::now();
    for _ in 0..100 {
        assert_eq!(get(&file, "security.capability"), Err(Errno::NODATA));
        assert_eq!(get(&other, "user.a").unwrap(), b"value");
    }
    let after = world.embedded.counters();
    // Only attributes are asked for, once a second.
    let most = 4 * (1 + started.elapsed().as_secs());
    assert_eq!(after.0, before.0);
    assert!(after.1 - before.1 <= most, "{} queries", after.1 - before.1);
}

#[test]
fn tar_and_cp_keep_extended_attributes() {
    let mut world = MountedVolume::new();
    fs::create_dir(world.path("tree")).unwrap();
    for number in 0..20_u8 {
        let path = world.path(&format!("tree/f{number}"));
        fs::write(&path, pattern(usize::from(number) * 500, 1)).unwrap();
        set(&path, "user.number", &[number]).unwrap();
    }
    set(&world.path("tree"), "user.tree", b"yes").unwrap();
    world.run("cp", &["-a", "--preserve=xattr", "tree", "copy"]);
    world.run(
        "sh",
        &[
            "-c",
            "mkdir tar && tar --xattrs -C tree -cf - . | tar --xattrs -C tar -xf -",
        ],
    );
    world.remount();
    for place in ["copy", "tar"] {
        assert_eq!(
            get(&world.path(place), "user.tree").unwrap(),
            b"yes",
            "{place}"
        );
        for number in 0..20_u8 {
            let path = world.path(&format!("{place}/f{number}"));
            assert_eq!(get(&path, "user.number").unwrap(), [number], "{place}");
            assert_eq!(
                fs::read(&path).unwrap(),
                pattern(usize::from(number) * 500, 1)
            );
        }
    }
}
