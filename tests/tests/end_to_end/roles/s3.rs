//! An S3 service as its owner sets it up: buckets with retention or versions, and an account for
//! each role. The bucket's policy grants the role's rights.

use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_tests::harness::{Answer, Keys, Request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;

const LOCKED: &str = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
    <Rule><DefaultRetention><Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule>\
    </ObjectLockConfiguration>";
const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

/// versitygw, with the runtime that its process belongs to.
pub(crate) struct S3 {
    emulator: Option<Emulator>,
    runtime: tokio::runtime::Runtime,
    pub(crate) directory: tempfile::TempDir,
    /// The statements of each bucket's policy.
    statements: Mutex<BTreeMap<String, Vec<Value>>>,
}

impl Drop for S3 {
    fn drop(&mut self) {
        let emulator = self.emulator.take();
        self.runtime.block_on(async move {
            if let Some(mut emulator) = emulator {
                emulator.stop().await;
            }
        });
    }
}

impl S3 {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let started = Emulator::start(Server::Versitygw, directory.path());
        let emulator = Some(runtime.block_on(started).unwrap());
        Self {
            emulator,
            runtime,
            directory,
            statements: Mutex::default(),
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

    /// A file with the credentials of a new account, which may execute these actions on the objects
    /// below the bucket's prefix and on the bucket.
    pub(crate) fn credentials(
        &self,
        role: &str,
        bucket: &str,
        (object, whole): (&[&str], &[&str]),
    ) -> String {
        let account = format!("{role}-{bucket}");
        let secret = format!("secret-of-{account}");
        let new = format!(
            "<Account><Access>{account}</Access><Secret>{secret}</Secret><Role>user</Role>\
             </Account>"
        );
        self.as_root(Request::new("PATCH", "/create-user").body(new.as_bytes()));

        let principal = json!({"AWS": [account]});
        let allow = |actions: &[&str], resource: String| {
            json!({"Effect": "Allow", "Principal": principal, "Action": actions,
                   "Resource": [resource]})
        };
        let mut statements = self.statements.lock().unwrap();
        let of_bucket = statements.entry(bucket.to_owned()).or_default();
        of_bucket.push(allow(object, format!("arn:aws:s3:::{bucket}/below/*")));
        of_bucket.push(allow(whole, format!("arn:aws:s3:::{bucket}")));
        let policy = json!({"Version": "2012-10-17", "Statement": of_bucket}).to_string();
        let path = format!("/{bucket}");
        let put = Request::new("PUT", &path).query("policy", "");
        self.as_root(put.body(policy.as_bytes()));

        let path = self.directory.path().join(&account);
        let text =
            format!("[default]\naws_access_key_id = {account}\naws_secret_access_key = {secret}\n");
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
