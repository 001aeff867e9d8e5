//! What the commands for clouds print.

use super::super::cloud_report::mebibytes;
use super::super::opened::Opened;
use quorumfs_gateway::blocks::Drainage;
use quorumfs_gateway::volume::KnownCloud;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;
use quorumfs_metadata::row::Cloud;
use serde::Serialize;
use std::time::Duration;

/// A cloud that was added.
#[derive(Serialize)]
pub(super) struct AddedLine {
    name: String,
    index: u8,
    failure_domain: String,
    /// Whether it had to be ordered.
    ordered: bool,
}

impl AddedLine {
    pub(super) fn of(cloud: &Cloud, ordered: bool) -> Self {
        Self {
            name: cloud.name.clone(),
            index: cloud.index.0,
            failure_domain: cloud.failure_domain.clone(),
            ordered,
        }
    }

    pub(super) fn text(&self) -> String {
        let (name, index) = (&self.name, self.index);
        match self.ordered {
            true => format!(
                "`{name}` is cloud {index} of this volume, and a spare: it takes nothing yet.\n\
                 `quorumfs cloud replace OLD {name}` lets it take another cloud's place."
            ),
            false => format!("`{name}` is cloud {index} of this volume already"),
        }
    }
}

/// A cloud that was replaced.
#[derive(Serialize)]
pub(super) struct ReplacedLine {
    pub(super) old: String,
    pub(super) new: String,
    /// Whether it had to be ordered.
    pub(super) ordered: bool,
    /// The key epoch that has begun for it.
    pub(super) key_epoch: Option<u32>,
}

impl ReplacedLine {
    pub(super) fn text(&self) -> String {
        let (old, new) = (&self.old, &self.new);
        let mut text = match self.ordered {
            true => format!("`{new}` has taken the place of `{old}`: new data goes there."),
            false => format!("`{new}` has taken the place of `{old}` already."),
        };
        if let Some(number) = self.key_epoch {
            text.push_str(&format!(
                "\nKey epoch {number} has begun: `{old}` holds no share of the newest key."
            ));
        }
        text.push_str(
            "\nAn older recovery kit does not know of this: print a new one, `quorumfs volume \
             renew-kit`.",
        );
        text
    }
}

/// One of the volume's clouds.
#[derive(Serialize)]
pub(super) struct CloudLine {
    index: u8,
    name: String,
    kind: String,
    failure_domain: String,
    /// `active`, `spare`, `draining` or `retired`.
    state: &'static str,
    /// Whether this machine's configuration has a section for it.
    configured: bool,
}

impl CloudLine {
    pub(super) fn of(known: &KnownCloud, configured: bool) -> Self {
        Self {
            index: known.cloud.index.0,
            name: known.cloud.name.clone(),
            kind: known.cloud.kind.clone(),
            failure_domain: known.cloud.failure_domain.clone(),
            state: known.state.name(),
            configured,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:>2}  {:<16} {:<8} {:<9} {}",
            self.index, self.name, self.kind, self.state, self.failure_domain
        );
        if !self.configured {
            text.push_str(
                "; not in quorumfs.toml here: if it needs credentials, add a [[cloud]] section \
                 with this name, its `index` and `location`",
            );
        }
        text
    }
}

/// How far the replaced clouds are emptied.
#[derive(Serialize)]
pub(super) struct DrainLine {
    /// The clouds that are being emptied.
    draining: Vec<String>,
    finished: bool,
    elsewhere: bool,
    percent: u64,
    shards_moved: u64,
    bytes_moved: u64,
    shards_left: u64,
    bytes_left: u64,
    shards_stuck: u64,
    /// Objects of which this process moved shards, and the whole shards that it read.
    objects: u64,
    shards_read: u64,
    /// Seconds until it will be finished, at the present speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<u64>,
    /// Clouds that still hold a share of the newest key.
    holding: Vec<String>,
}

impl DrainLine {
    pub(super) fn of(opened: &Opened, drainage: &Drainage) -> Self {
        let all = opened.volume().known_clouds();
        let name = |index: &CloudIndex| {
            let known = all.iter().find(|it| it.cloud.index == *index);
            known.map_or_else(|| index.to_string(), |it| it.cloud.name.clone())
        };
        let draining = all.iter().filter(|it| it.state == CloudState::Draining);
        let draining = draining.map(|it| it.cloud.name.clone());
        Self {
            draining: match drainage.finished {
                true => Vec::new(),
                false => draining.collect(),
            },
            finished: drainage.finished,
            elsewhere: drainage.elsewhere,
            percent: drainage.percent(),
            shards_moved: drainage.shards_moved,
            bytes_moved: drainage.bytes_moved,
            shards_left: drainage.shards_left,
            bytes_left: drainage.bytes_left,
            shards_stuck: drainage.shards_stuck,
            objects: drainage.objects,
            shards_read: drainage.shards_read,
            seconds_left: drainage.time_left().as_ref().map(Duration::as_secs),
            holding: drainage.holding.iter().map(name).collect(),
        }
    }

    pub(super) fn text(&self) -> String {
        if self.finished {
            return format!(
                "All {} shards have moved; nothing is needed of the replaced clouds any more.",
                self.shards_moved
            );
        }
        let mut text = format!(
            "emptying {}: {} % done, {} shards ({}) moved, {} ({}) left",
            self.draining.join(", "),
            self.percent,
            self.shards_moved,
            mebibytes(self.bytes_moved),
            self.shards_left,
            mebibytes(self.bytes_left),
        );
        if let Some(seconds) = self.seconds_left.filter(|_| self.shards_left > 0) {
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            text.push_str(&match (hours, minutes) {
                (0, 0) => format!(", about {seconds} s to go"),
                (0, _) => format!(", about {minutes} min to go"),
                _ => format!(", about {hours} h {minutes} min to go"),
            });
        }
        if self.elsewhere {
            text.push_str("; another process of the volume does it");
        }
        if self.shards_stuck > 0 {
            text.push_str(&format!(
                "; {} SHARDS CANNOT BE MOVED NOW: `quorumfs status` shows which clouds do not \
                 answer",
                self.shards_stuck
            ));
        }
        if !self.holding.is_empty() {
            text.push_str(&format!(
                "; {} still holds a share of the newest key: run the same command again",
                self.holding.join(", ")
            ));
        }
        text
    }
}
