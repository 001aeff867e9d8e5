//! Permissions, and setting attributes.

use crate::common::MountedVolume;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

#[test]
fn permissions_are_enforced_for_other_users() {
    let world = MountedVolume::new();
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(world.path("secret"), "secret").unwrap();
    fs::set_permissions(world.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(world.path("team"), "team").unwrap();
    std::os::unix::fs::chown(world.path("team"), Some(0), Some(4321)).unwrap();
    fs::set_permissions(world.path("team"), fs::Permissions::from_mode(0o640)).unwrap();
    let as_user = |groups: &str, script: &str| {
        let output = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", groups, "sh", "-c", script])
            .current_dir(world.path(""))
            .output()
            .unwrap();
        output.status.success()
    };
    assert!(!as_user("--clear-groups", "cat secret"));
    assert!(!as_user("--clear-groups", "cat team"));
    assert!(as_user("--groups=4321", "cat team"));
    assert!(!as_user("--groups=4321", "echo x >> team"));
    assert!(!as_user("--clear-groups", "chmod 644 secret"));
    assert!(as_user(
        "--clear-groups",
        "echo mine > mine && chmod 600 mine && rm mine"
    ));
    fs::create_dir(world.path("sticky")).unwrap();
    fs::set_permissions(world.path("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(world.path("sticky/roots"), "").unwrap();
    assert!(!as_user("--clear-groups", "rm -f sticky/roots"));
}

#[test]
fn a_read_only_file_is_written_by_who_created_it() {
    let world = MountedVolume::new();
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = "use Fcntl; sysopen(my $f, 'object', O_CREAT|O_EXCL|O_WRONLY, 0444) or die;\
        syswrite($f, 'x' x 5000) == 5000 or die; truncate($f, 4000) or die; close($f) or die";
    let output = Command::new("setpriv")
        .args([
            "--reuid=1234",
            "--regid=1234",
            "--clear-groups",
            "perl",
            "-e",
            program,
        ])
        .current_dir(world.path(""))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let found = fs::metadata(world.path("object")).unwrap();
    assert_eq!(
        (found.len(), found.mode() & 0o777, found.uid()),
        (4000, 0o444, 1234)
    );
}

#[test]
fn a_mode_set_on_an_open_file_rides_with_its_commit() {
    let mut world = MountedVolume::new();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(world.path("file"))
        .unwrap();
    file.write_all_at(b"content", 0).unwrap();
    let (before, _) = world.embedded.counters();
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000))
        .unwrap();
    assert_eq!(
        world.embedded.counters().0,
        before,
        "nothing is ordered yet"
    );
    assert_eq!(
        file.metadata().unwrap().mode() & 0o777,
        0o755,
        "and all users see it"
    );
    drop(file);
    assert_eq!(world.embedded.counters().0, before + 1);
    world.remount();
    let found = fs::metadata(world.path("file")).unwrap();
    assert_eq!((found.mode() & 0o777, found.mtime()), (0o755, 1_000_000));
}

#[test]
fn a_writer_who_is_not_the_owner_takes_the_set_id_bits_off() {
    let world = MountedVolume::new();
    fs::set_permissions(world.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(world.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, script) in [
        ("written", "echo more >> written"),
        ("cut", "truncate --size=2 cut"),
        ("replaced", "echo new > replaced"),
    ] {
        fs::write(world.path(name), "program").unwrap();
        fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o4777)).unwrap();
        let user = ["--reuid=1234", "--regid=1234", "--clear-groups"];
        let output = Command::new("setpriv")
            .args(user)
            .args(["sh", "-c", script])
            .current_dir(world.path(""))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let mode = fs::metadata(world.path(name)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o777, "{name}");
    }
}

#[test]
fn set_id_bits_and_devices_in_a_mount_grant_no_rights() {
    use crate::common::as_user;
    use rustix::fs::StatVfsMountFlags;
    let world = MountedVolume::new();
    world.open_to_all_users();
    let flags = rustix::fs::statvfs(world.path("")).unwrap().f_flag;
    let expected = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    assert!(flags.contains(expected), "{flags:?}");
    world.run("sh", &["-c", "cp \"$(command -v id)\" id && chmod 6755 id"]);
    as_user(1234, &[], || {
        assert_eq!(world.run("./id", &["-u"]), "1234\n");
        assert_eq!(world.run("./id", &["-g"]), "1234\n");
    });
    world.run("mknod", &["-m", "666", "null", "c", "1", "3"]);
    for user in [0, 1234] {
        let opened = as_user(user, &[], || fs::read(world.path("null")));
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(13), "EACCES");
    }
}
