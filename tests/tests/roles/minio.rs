//! MinIO as its owner sets it up: buckets with retention or versions, and credentials that are
//! restricted by a policy.

use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_tests::harness::{Answer, Keys, Request};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

const LOCKED: &str = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
    <Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule>\
    </ObjectLockConfiguration>";
const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

/// MinIO, with a runtime that keeps it.
pub(crate) struct Minio {
    emulator: Option<Emulator>,
    runtime: tokio::runtime::Runtime,
    pub(crate) directory: tempfile::TempDir,
}

impl Drop for Minio {
    fn drop(&mut self) {
        let emulator = self.emulator.take();
        self.runtime.block_on(async move {
            if let Some(mut emulator) = emulator {
                emulator.stop().await;
            }
        });
    }
}

impl Minio {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let started = Emulator::start(Server::Minio, directory.path());
        let emulator = Some(runtime.block_on(started).unwrap());
        Self {
            emulator,
            runtime,
            directory,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.emulator.as_ref().unwrap().address()
    }

    pub(crate) fn location(&self, bucket: &str) -> String {
        self.emulator.as_ref().unwrap().location(bucket, "below")
    }

    pub(crate) fn root_file(&self) -> PathBuf {
        self.emulator.as_ref().unwrap().credentials().unwrap()
    }

    pub(crate) fn root(&self) -> Keys {
        Keys::read(&self.root_file())
    }

    #[track_caller]
    pub(crate) fn as_root(&self, request: Request<'_>) -> Answer {
        let answer = request.send(self.address(), &self.root());
        assert!(answer.status < 300, "{}: {}", answer.status, answer.text());
        answer
    }

    pub(crate) fn bucket(&self, name: &str) {
        self.as_root(Request::new("PUT", &format!("/{name}")));
    }

    pub(crate) fn locked_bucket(&self, name: &str) {
        let path = format!("/{name}");
        let create = Request::new("PUT", &path).header("x-amz-bucket-object-lock-enabled", "true");
        self.as_root(create);
        let lock = Request::new("PUT", &path).query("object-lock", "");
        self.as_root(lock.body(LOCKED.as_bytes()));
    }

    pub(crate) fn versioned_bucket(&self, name: &str) {
        self.bucket(name);
        let path = format!("/{name}");
        let versions = Request::new("PUT", &path).query("versioning", "");
        self.as_root(versions.body(ENABLED.as_bytes()));
    }

    /// A file with credentials of a role.
    pub(crate) fn credentials(
        &self,
        role: &str,
        bucket: &str,
        (object, whole): (&[&str], &[&str]),
    ) -> String {
        let policy = serde_json::json!({
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Action": object,
                 "Resource": [format!("arn:aws:s3:::{bucket}/below/*")]},
                {"Effect": "Allow", "Action": whole,
                 "Resource": [format!("arn:aws:s3:::{bucket}")]},
            ],
        });
        let text = self.root().restricted(self.address(), &policy.to_string());
        let path = self.directory.path().join(format!("{role}-{bucket}"));
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The objects' keys with their versions, newest first.
    pub(crate) fn versions(&self, bucket: &str) -> BTreeMap<String, Vec<String>> {
        let path = format!("/{bucket}");
        let listing = self.as_root(Request::new("GET", &path).query("versions", ""));
        let text = listing.text();
        let between = |text: &str, name: &str| {
            let rest = text.split_once(&format!("<{name}>"))?.1;
            Some(rest.split_once('<')?.0.to_owned())
        };
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in text.split("<Version>").skip(1) {
            let key = between(entry, "Key").unwrap();
            let version = between(entry, "VersionId").unwrap();
            versions.entry(key).or_default().push(version);
        }
        versions
    }
}
