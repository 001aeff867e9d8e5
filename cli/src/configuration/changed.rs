//! Truncated, mistyped or damaged files: each is read, or explained with its path.

use super::*;
use std::fmt::Debug;

/// How many changed texts are made of each file.
const CHANGED: usize = 4_000;

const VOLUME: &str = r#"# A volume.
version = 1
[volume]
genesis = "volume.genesis"
key = "principal.key"
[keys]
passphrase_command = ["pass", "show", "quorumfs"]
keep_cloud_secret = false
[mount]
point = "/mnt/files"
allow_other = true
tier = "local"
[limits]
connections = 64
[data]
prefer = "cheap"
memory_mib = 512
compression = "zstd"
[cache]
path = "cache"
size_mib = 4096
free_space_floor_mib = 100
[journal]
always = true
size_mib = 128
[cost]
prices = "prices.toml"
[budget]
soft = "20 USD"
hard = "40 USD"
past_hard = "stop writes"
[[replica]]
address = "127.0.0.1:7000"
key = "00ff"
[[replica]]
address = "[::1]:7001"
key = "01"
[[cloud]]
name = "a"
index = 4
location = "s3://bucket/prefix"
credentials = "a.credentials"
domain = "provider"
read_price_per_gib = 0.09
price = "aws-s3-standard-us-east-1"
[cloud.budget]
soft = "5 USD"
[cloud.limits]
requests_per_second = 100
upload_mib_per_second = 10
"#;

const REPLICA: &str = r#"version = 1
listen = "0.0.0.0:7000"
key = "replica.key"
free_space_floor_mib = 1024
[[replica]]
address = "127.0.0.1:7000"
key = "00"
"#;

/// A deterministic sequence that looks random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides.max(1)
    }
}

/// The same text with up to three changes: cut, a bit flipped, a sign put in, a line moved.
fn changed(text: &str, dice: &mut Dice) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=dice.roll(3) {
        let at = dice.roll(bytes.len());
        match dice.roll(8) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => {
                bytes.remove(at);
            }
            2 | 3 => bytes.insert(at, b"[]{}\"'=#.,\n\\-9e"[dice.roll(15)]),
            4 => {
                let line = text.lines().nth(dice.roll(text.lines().count()));
                let line = line.unwrap().bytes().chain(*b"\n");
                drop(bytes.splice(at..at, line));
            }
            _ if at < bytes.len() => bytes[at] ^= 1 << dice.roll(7),
            _ => {}
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read_or_explained<T: DeserializeOwned + Serialize + Debug>(text: &str, dice: &mut Dice) {
    let path = Path::new("somewhere/a.toml");
    assert!(parse::<T>(text, path).is_ok());
    let (mut good, mut bad) = (0, 0);
    for _ in 0..CHANGED {
        let text = changed(text, dice);
        match parse::<T>(&text, path) {
            Ok(value) => {
                let again = toml::to_string(&value).unwrap();
                let again: T = parse(&again, path).unwrap();
                assert_eq!(format!("{again:?}"), format!("{value:?}"), "{text}");
                good += 1;
            }
            Err(failure) => {
                assert!(failure.message.contains("somewhere/a.toml"), "{failure}");
                bad += 1;
            }
        }
    }
    assert!(good > CHANGED / 50 && bad > CHANGED / 4, "{good} {bad}");
}

#[test]
fn whatever_was_changed_in_a_file_it_is_read_or_explained() {
    let mut dice = Dice(1);
    read_or_explained::<VolumeConfiguration>(VOLUME, &mut dice);
    read_or_explained::<ReplicaConfiguration>(REPLICA, &mut dice);
}
