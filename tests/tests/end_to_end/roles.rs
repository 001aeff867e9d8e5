//! Separate credentials for each role, and `doctor`, which tests what they allow; against
//! versitygw, which enforces policies and retention, and Azurite, where a token may create and not
//! overwrite.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod azure;
pub(crate) mod s3;

use quorumfs_tests::harness::{Cluster, Finished, Keys, Quorumfs, Request, noise};
use s3::S3;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

/// The rights of each role, as in docs/CLOUDS.md for services that cannot require `If-None-Match`.
const READER: (&[&str], &[&str]) = (&["s3:GetObject"], &SETTINGS);
const WRITER: (&[&str], &[&str]) = (&["s3:GetObject", "s3:PutObject"], &SETTINGS);
const COLLECTOR: (&[&str], &[&str]) = (&["s3:DeleteObject"], &SETTINGS);
const SETTINGS: [&str; 3] = [
    "s3:ListBucket",
    "s3:GetBucketVersioning",
    "s3:GetBucketObjectLockConfiguration",
];

const SUSPENDED: &str =
    "<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";

/// A cluster whose volume uses these buckets, as `a`, `b`, …, and directories; each bucket has a
/// failure domain of its own.
fn cluster(s3: &S3, buckets: &[&str], credentials: &[String]) -> Cluster {
    Cluster::prepare_with(|cluster| {
        let mut clouds = Vec::new();
        for (index, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            let location = match buckets.get(index) {
                Some(bucket) => s3.location(bucket),
                None => cluster.cloud(index).display().to_string(),
            };
            clouds.push(format!("{name}={location}"));
        }
        let mut create = cluster.create_over(&cluster.volume(), &clouds);
        for (name, file) in ["a", "b", "c", "d"].into_iter().zip(credentials) {
            create = create
                .args(["--cloud-credentials", &format!("{name}={file}")])
                .args(["--cloud-domain", &format!("{name}=owner-{name}")]);
        }
        create
    })
}

fn put(cluster: &Cluster, name: &str, content: &[u8]) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(name);
    fs::write(&file, content).unwrap();
    cluster
        .quorumfs()
        .args(["put"])
        .args([&file])
        .run_with(["/"])
}

#[track_caller]
fn assert_holds(cluster: &Cluster, files: &[(&str, Vec<u8>)]) {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let into = directory.path().join(name);
        let get = cluster.quorumfs().args(["get", &format!("/{name}")]);
        get.args([&into]).run().ok();
        assert!(fs::read(&into).unwrap() == *content, "/{name} is changed");
    }
}

/// Changes a cloud's section of the configuration.
pub(super) fn configure(cluster: &Cluster, cloud: &str, key: &str, file: &str) {
    let path = cluster.volume().join("quorumfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    let mut table: toml::Table = text.parse().unwrap();
    for section in table["cloud"].as_array_mut().unwrap() {
        let section = section.as_table_mut().unwrap();
        if section["name"].as_str() == Some(cloud) {
            section.insert(key.to_owned(), file.into());
        }
    }
    fs::write(&path, table.to_string()).unwrap();
}

/// The finding on a cloud with a role's credentials, or without a role.
#[track_caller]
fn finding(finished: &Finished, cloud: &str, role: Option<&str>, check: &str) -> Value {
    let findings = finished.records("finding");
    let found = findings
        .iter()
        .find(|it| it["about"] == cloud && it["role"].as_str() == role && it["check"] == check);
    let none = || panic!("nothing on {check} of {cloud}: {finished:?}");
    found.cloned().unwrap_or_else(none)
}

#[track_caller]
fn assert_levels(finished: &Finished, cloud: &str, role: &str, expected: &[(&str, &str)]) {
    for (check, level) in expected {
        let found = finding(finished, cloud, Some(role), check);
        assert_eq!(found["level"], *level, "{found}");
    }
}

fn summary(finished: &Finished) -> Value {
    finished.records("doctor").remove(0)
}

/// The attempts of an attacker with all of the gateway's credentials, on one object.
fn refused_to_the_thief(address: SocketAddr, thief: &Keys, bucket: &str, key: &str, version: &str) {
    let (whole, object) = (format!("/{bucket}"), format!("/{bucket}/{key}"));
    let bypass = ("x-amz-bypass-governance-retention", "true");
    let everything = format!(
        "{{\"Version\":\"2012-10-17\",\"Statement\":[{{\"Effect\":\"Allow\",\"Principal\":\
         {{\"AWS\":[\"*\"]}},\"Action\":[\"s3:*\"],\"Resource\":[\"arn:aws:s3:::{bucket}/*\"]}}]}}"
    );
    let expire = "<LifecycleConfiguration><Rule><ID>x</ID><Status>Enabled</Status><Filter>\
        <Prefix></Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>\
        </LifecycleConfiguration>";
    let shorter = "<Retention><Mode>GOVERNANCE</Mode>\
        <RetainUntilDate>2099-01-01T00:00:00Z</RetainUntilDate></Retention>";
    let unlocked = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
        </ObjectLockConfiguration>";
    for request in [
        Request::new("DELETE", &object),
        Request::new("DELETE", &object).query("versionId", version),
        Request::new("DELETE", &object)
            .query("versionId", version)
            .header(bypass.0, bypass.1),
        Request::new("PUT", &object)
            .query("retention", "")
            .query("versionId", version)
            .header(bypass.0, bypass.1)
            .body(shorter.as_bytes()),
        Request::new("DELETE", &whole),
        Request::new("PUT", &whole)
            .query("policy", "")
            .body(everything.as_bytes()),
        Request::new("PUT", &whole)
            .query("versioning", "")
            .body(SUSPENDED.as_bytes()),
        Request::new("PUT", &whole)
            .query("object-lock", "")
            .body(unlocked.as_bytes()),
    ] {
        let answer = request.clone().send(address, thief);
        let text = answer.text();
        // By the policy, or by the retention if the server checks it first.
        let refused = text.contains("AccessDenied");
        assert!(answer.status >= 400 && refused, "{request:?}: {text}");
    }
    // This server has no lifecycle rules, and answers so for these requests alone.
    let request = Request::new("PUT", &whole).query("lifecycle", "");
    let answer = request.body(expire.as_bytes()).send(address, thief);
    let text = answer.text();
    let refused = text.contains("AccessDenied") || text.contains("NotImplemented");
    assert!(answer.status >= 400 && refused, "{text}");
    let many = format!(
        "<Delete><Object><Key>{key}</Key></Object>\
         <Object><Key>{key}</Key><VersionId>{version}</VersionId></Object></Delete>"
    );
    let request = Request::new("POST", &whole).query("delete", "");
    let answer = request.body(many.as_bytes()).send(address, thief);
    let text = answer.text();
    let denied = text.matches("<Code>AccessDenied</Code>").count();
    assert!(denied == 2 && !text.contains("<Deleted>"), "{text}");
}

#[test]
fn a_thief_of_a_gateways_credentials_destroys_nothing_that_is_retained() {
    let s3 = S3::start();
    let buckets = ["first-bucket", "second-bucket"];
    for bucket in buckets {
        s3.locked_bucket(bucket);
    }
    let writers = buckets.map(|bucket| s3.credentials("writer", bucket, WRITER));
    let mut cluster = cluster(&s3, &buckets, &writers);
    cluster.start();
    let mut files = vec![("one", noise(1, 300_000)), ("two", noise(2, 5_000_000))];
    for (name, content) in &files {
        put(&cluster, name, content).ok();
    }
    assert_holds(&cluster, &files);

    // As it should be; that its policies cannot require If-None-Match is a warning.
    let well = cluster.quorumfs().run_with(["doctor"]).ok();
    assert_eq!(summary(&well)["too_much"], 0, "{well:?}");
    for cloud in ["a", "b"] {
        let limits = [
            ("creates", "ok"),
            ("gets", "ok"),
            ("deletes", "ok"),
            ("overwrites", "warning"),
        ];
        assert_levels(&well, cloud, "writer", &limits);
        assert_eq!(finding(&well, cloud, None, "retention")["level"], "ok");
        let trial = finding(&well, cloud, None, "trial");
        assert!(
            trial["text"]
                .as_str()
                .unwrap()
                .contains("of the trial stay"),
            "{trial}"
        );
    }

    let before: Vec<_> = buckets.map(|bucket| s3.versions(bucket)).into();
    for (bucket, (file, objects)) in buckets.iter().zip(writers.iter().zip(&before)) {
        let thief = Keys::read(Path::new(file));
        assert!(objects.len() >= 4, "the marker and the shards: {objects:?}");
        for (key, versions) in objects {
            refused_to_the_thief(s3.address(), &thief, bucket, key, &versions[0]);
            // The only right that it has.
            let path = format!("/{bucket}/{key}");
            let put = Request::new("PUT", &path).body(b"your files are ours now");
            assert_eq!(put.send(s3.address(), &thief).status, 200);
        }
    }
    // Two of four clouds lie now, and the others suffice; the two are refused because their markers
    // were overwritten too.
    assert_holds(&cluster, &files);
    let robbed = cluster.quorumfs().run_with(["doctor"]);
    assert_eq!(robbed.code, Some(15), "{robbed:?}");
    assert_eq!(
        finding(&robbed, "a", Some("writer"), "marker")["level"],
        "problem"
    );

    // The old versions still exist, and the bucket's owner makes them current again.
    for (bucket, objects) in buckets.iter().zip(&before) {
        for (key, versions) in objects {
            let path = format!("/{bucket}/{key}");
            let oldest = versions.last().unwrap();
            let source = format!("{path}?versionId={oldest}");
            let copy = Request::new("PUT", &path)
                .header("x-amz-copy-source", &source)
                .header("x-amz-metadata-directive", "REPLACE");
            s3.as_root(copy);
        }
    }
    for directory in [cluster.cloud(2), cluster.cloud(3)] {
        fs::rename(&directory, directory.with_extension("away")).unwrap();
    }
    assert_holds(&cluster, &files);
    for directory in [cluster.cloud(2), cluster.cloud(3)] {
        fs::rename(directory.with_extension("away"), &directory).unwrap();
    }
    files.push(("three", noise(3, 100_000)));
    put(&cluster, "three", &files[2].1).ok();
    assert_holds(&cluster, &files);
}

#[test]
fn doctor_reports_which_role_has_too_many_rights() {
    let s3 = S3::start();
    s3.bucket("plain-bucket");
    let writer = s3.credentials("writer", "plain-bucket", WRITER);
    let reader = s3.credentials("reader", "plain-bucket", READER);
    let collector = s3.credentials("collector", "plain-bucket", COLLECTOR);
    let root = s3.root_file().display().to_string();
    let mut cluster = cluster(&s3, &["plain-bucket"], std::slice::from_ref(&writer));
    cluster.start();
    let objects = || s3.versions("plain-bucket").len();

    // Without retention an overwrite destroys, and this service cannot be configured to refuse it.
    let doctor = |options: &[&str]| cluster.quorumfs().args(["doctor"]).run_with(options);
    let alone = doctor(&["--cloud", "a"]);
    assert_eq!(alone.code, Some(17), "{alone:?}");
    let limits = [
        ("creates", "ok"),
        ("deletes", "ok"),
        ("overwrites", "too_much"),
    ];
    assert_levels(&alone, "a", "writer", &limits);
    let remedy = finding(&alone, "a", Some("writer"), "overwrites")["remedy"].clone();
    assert!(
        remedy.as_str().unwrap().contains("If-None-Match"),
        "{remedy}"
    );
    let why = "the marker, a share of the second lock, and what cannot be deleted";
    assert_eq!(objects(), 3, "{why}");

    // All three roles have the right rights, except the writer.
    configure(&cluster, "a", "reader_credentials", &reader);
    configure(&cluster, "a", "collector_credentials", &collector);
    let all = doctor(&["--cloud", "a"]);
    let reads = [
        ("gets", "ok"),
        ("creates", "ok"),
        ("overwrites", "ok"),
        ("deletes", "ok"),
    ];
    assert_levels(&all, "a", "reader", &reads);
    let collects = [
        ("lists", "ok"),
        ("deletes", "ok"),
        ("gets", "ok"),
        ("creates", "ok"),
    ];
    assert_levels(&all, "a", "collector", &collects);
    assert_levels(
        &all,
        "a",
        "collector",
        &[("collector", "warning"), ("credentials", "warning")],
    );
    assert_eq!(objects(), 3, "its objects are removed");
    let listed = doctor(&["--cloud", "a", "--no-list"]);
    assert_levels(&listed, "a", "writer", &[("lists", "too_much")]);

    // Credentials with all rights have too many in each role, and leave no objects behind.
    for (key, role) in [
        ("credentials", "writer"),
        ("reader_credentials", "reader"),
        ("collector_credentials", "collector"),
    ] {
        configure(&cluster, "a", key, &root);
        let found = doctor(&[]);
        assert_eq!(found.code, Some(17), "{found:?}");
        assert_levels(&found, "a", role, &[("overwrites", "too_much")]);
    }
    let found = doctor(&[]);
    assert_levels(&found, "a", "writer", &[("deletes", "too_much")]);
    assert_levels(
        &found,
        "a",
        "reader",
        &[("deletes", "too_much"), ("creates", "too_much")],
    );
    assert_levels(
        &found,
        "a",
        "collector",
        &[("gets", "too_much"), ("creates", "too_much")],
    );
    assert_eq!(objects(), 3, "{found:?}");
    let looked = doctor(&["--dry-run"]).ok();
    assert!(
        looked
            .records("finding")
            .iter()
            .all(|it| it["check"] != "creates")
    );

    // A cloud that is gone has another exit code, and the rest is still checked.
    drop(s3);
    let gone = cluster.quorumfs().run_with(["doctor"]);
    assert_eq!(gone.code, Some(6), "{gone:?}");
    assert_eq!(finding(&gone, "b", None, "marker")["level"], "ok");
}

#[test]
fn commands_that_only_read_need_only_a_readers_credentials() {
    let s3 = S3::start();
    s3.bucket("plain-bucket");
    s3.bucket("other-bucket");
    let buckets = ["plain-bucket", "other-bucket"];
    let writers = buckets.map(|bucket| s3.credentials("writer", bucket, WRITER));
    let readers = buckets.map(|bucket| s3.credentials("reader", bucket, READER));
    let mut cluster = cluster(&s3, &buckets, &writers);
    cluster.start();
    let files = [("one", noise(1, 300_000))];
    put(&cluster, "one", &files[0].1).ok();
    // Without the directories both buckets are needed.
    for directory in [cluster.cloud(2), cluster.cloud(3)] {
        fs::rename(&directory, directory.with_extension("away")).unwrap();
    }
    for (cloud, reader) in ["a", "b"].into_iter().zip(&readers) {
        configure(&cluster, cloud, "credentials", "/nowhere");
        configure(&cluster, cloud, "reader_credentials", reader);
    }
    assert_holds(&cluster, &files);
    cluster.quorumfs().run_with(["ls"]).ok();
    let content = cluster.quorumfs().run_with(["cat", "/one"]);
    assert!(content.stdout == files[0].1, "{content:?}");
    let status = cluster.quorumfs().run_with(["status"]);
    assert_eq!(status.code, Some(6), "writing does not work: {status:?}");
}

#[test]
fn a_volume_that_could_not_be_created_leaves_nothing_where_writers_may_not_delete() {
    let s3 = S3::start();
    s3.bucket("plain-bucket");
    let writer = s3.credentials("writer", "plain-bucket", WRITER);
    let collector = s3.credentials("collector", "plain-bucket", COLLECTOR);
    let cluster = Cluster::prepare();
    let state = cluster.directory().join("another");
    let occupied = cluster.cloud(1);
    let clouds = [
        format!("a={}", s3.location("plain-bucket")),
        format!("b={}", occupied.display()),
        format!("c={}", cluster.directory().join("x").display()),
        format!("d={}", cluster.directory().join("y").display()),
    ];
    let create = || {
        let create = cluster.create_over(&state, &clouds);
        create.args(["--cloud-credentials", &format!("a={writer}")])
    };
    let with_collector = ["--collector-credentials", &format!("a={collector}")];
    create().run_with(with_collector).fails(15, "cloud `b`", "");
    assert!(s3.versions("plain-bucket").is_empty());
    // Without a collector the marker stays, and the place is refused from then on.
    create().run().fails(15, "cloud `b`", "");
    assert_eq!(s3.versions("plain-bucket").len(), 1);
    create().run().fails(15, "cloud `a`", "empty place");
}

/// Runs `volume create` with this cloud as `sky`.
fn creates(cluster: &Cluster, location: &str, credentials: &str) -> Finished {
    let state = cluster.directory().join("another");
    let mut clouds = vec![format!("sky={location}")];
    for name in ["x", "y", "z"] {
        clouds.push(format!(
            "{name}={}",
            cluster.directory().join(name).display()
        ));
    }
    let create = cluster.create_over(&state, &clouds);
    create.run_with(["--cloud-credentials", &format!("sky={credentials}")])
}

#[test]
fn an_unusable_bucket_is_reported_with_a_hint() {
    let s3 = S3::start();
    let root = s3.root_file().display().to_string();
    let cluster = Cluster::prepare();
    let file = |name: &str, text: &str| {
        let path = s3.directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let wrong = file(
        "wrong",
        "[default]\naws_access_key_id = quorumfs-test\naws_secret_access_key = not-it-at-all\n",
    );
    s3.bucket("plain-bucket");
    let account = s3.credentials("session", "plain-bucket", WRITER);
    let account = fs::read_to_string(account).unwrap();
    let stale = file(
        "stale",
        &format!("{account}aws_session_token = not-of-today\n"),
    );
    s3.bucket("holds-something");
    s3.as_root(Request::new("PUT", "/holds-something/below/photo").body(b"of the sea"));

    let at = |bucket: &str| s3.location(bucket);
    for credentials in [&wrong, &stale] {
        let created = creates(&cluster, &at("plain-bucket"), credentials);
        let failed = created.fails(6, "cloud `sky`", "whether they expired");
        assert!(!failed.stderr.contains("not-it-at-all"), "{failed:?}");
    }
    creates(&cluster, &at("no-such-bucket"), &root).fails(
        6,
        "cloud `sky`",
        "or create it at the provider",
    );
    creates(&cluster, &at("holds-something"), &root).fails(15, "cloud `sky`", "empty place");

    // These are accepted, with a notice of the consequences.
    s3.locked_bucket("locked-bucket");
    s3.versioned_bucket("versioned-bucket");
    for (bucket, says) in [
        ("locked-bucket", "younger than its retention"),
        ("versioned-bucket", "keeps old versions"),
    ] {
        let created = creates(&cluster, &at(bucket), &root).ok();
        let notices = created.records("volume")[0]["notices"].to_string();
        assert!(
            notices.contains("cloud `sky`") && notices.contains(says),
            "{notices}"
        );
        let state = cluster.directory().join("another");
        let looked = Quorumfs::on(&state).run_with(["doctor", "--cloud", "sky", "--dry-run"]);
        let check = if bucket == "locked-bucket" {
            "retention"
        } else {
            "versions"
        };
        let found = finding(&looked.ok(), "sky", None, check);
        assert!(found["text"].as_str().unwrap().contains(says), "{found}");
        for directory in ["another", "x", "y", "z"] {
            fs::remove_dir_all(cluster.directory().join(directory)).unwrap();
        }
    }
}
