//! What a volume costs: a plan against real files, the counts of real processes, and what stops
//! when a budget is spent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use quorumfs_tests::harness::{Cluster, binary, mount_in_background, noise, require_fuse};
use rustix::io::Errno;
use serde_json::Value;
use std::fs;
use std::ops::Sub;
use std::path::Path;
use std::process::Command;

/// What is counted, of all clouds together.
#[derive(Clone, Copy, Debug)]
struct CountedRequests {
    puts: u64,
    gets: u64,
    sent: u64,
    received: u64,
}

impl Sub for CountedRequests {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            puts: self.puts - before.puts,
            gets: self.gets - before.gets,
            sent: self.sent - before.sent,
            received: self.received - before.received,
        }
    }
}

fn sum(records: &[Value], key: &str) -> u64 {
    assert_eq!(records.len(), 4, "{records:?}");
    records.iter().map(|it| it[key].as_u64().unwrap()).sum()
}

/// What all processes of the volume have counted so far.
fn counted(cluster: &Cluster) -> CountedRequests {
    let clouds = cluster.quorumfs().args(["cost"]).run().ok();
    let clouds = clouds.records("cost_cloud");
    CountedRequests {
        puts: sum(&clouds, "puts"),
        gets: sum(&clouds, "gets"),
        sent: sum(&clouds, "bytes_sent"),
        received: sum(&clouds, "bytes_received"),
    }
}

/// A plan for so many files of this length over four directories, each read once.
fn planned(cluster: &Cluster, files: u64, length: u64) -> Vec<Value> {
    let size = (files * length).to_string();
    let plan = ["cost", "plan", "--prefer", "cheap", "--size", &size];
    let reads = ["--reads", &size, "--files", &files.to_string()];
    let clouds = ["--cloud", "local"].repeat(4);
    let plan = cluster.quorumfs().args(plan).args(reads).args(clouds);
    plan.run().ok().records("cost_planned")
}

/// A plan is at most one such part of the real number off.
const A_TENTH: u64 = 10;
const A_THIRD: u64 = 3;

/// A plan that is more than this part off, if it is.
fn off(what: &str, planned: u64, real: u64, part: u64) -> Option<String> {
    let text = format!("{what}: {planned} planned, {real} real");
    println!("{text}");
    (planned.abs_diff(real) * part > real).then_some(text)
}

/// Writes and reads files of one length, and compares that with the plan; the number of puts with
/// a precision of its own.
fn compare(
    cluster: &Cluster,
    name: &str,
    (files, length): (u64, u64),
    puts_within: u64,
) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join(name);
    fs::create_dir(&tree).unwrap();
    for number in 0..files {
        let content = noise(number + length, usize::try_from(length).unwrap());
        fs::write(tree.join(number.to_string()), content).unwrap();
    }
    let plan = planned(cluster, files, length);
    // What opening the volume takes has no place in a plan.
    let before = counted(cluster);
    cluster.quorumfs().args(["ls", "/"]).run().ok();
    let empty = counted(cluster);
    let opening = empty - before;
    let put = cluster.quorumfs().args(["put"]).args([&tree]).args(["/"]);
    put.run().ok();
    let written = counted(cluster);
    let into = directory.path().join("copy");
    let get = cluster.quorumfs().args(["get", &format!("/{name}")]);
    get.args([&into]).run().ok();
    let read = counted(cluster) - written - opening;
    let written = written - empty - opening;
    let compared = [
        ("puts", "filling_puts", written.puts, puts_within),
        ("bytes sent", "filling_bytes_sent", written.sent, A_TENTH),
        ("gets", "gets", read.gets, A_TENTH),
        ("bytes received", "bytes_received", read.received, A_TENTH),
    ];
    let wrong = compared.into_iter().filter_map(|(what, key, real, part)| {
        off(&format!("{name}: {what}"), sum(&plan, key), real, part)
    });
    wrong.collect()
}

#[test]
fn a_plan_counts_what_a_real_copy_and_a_real_reading_take() {
    let mut cluster = Cluster::prepare();
    // Which clouds are busy, and bypassed, depends on the machine.
    cluster.configure("[data]\nprefer = \"cheap\"\n");
    cluster.start();
    let mut wrong = compare(&cluster, "large", (24, 5_000_000), A_TENTH);
    wrong.extend(compare(&cluster, "middle", (60, 1_500_000), A_TENTH));
    wrong.extend(compare(&cluster, "small", (600, 100_000), A_THIRD));
    // All that is there together: its bytes are estimated from the quota.
    let clouds = cluster.quorumfs().args(["cost"]).run().ok();
    let stored = sum(&clouds.records("cost_cloud"), "stored_bytes");
    let content = 24 * 5_000_000 + 60 * 1_500_000 + 600 * 100_000;
    wrong.extend(off("stored", stored, 2 * content, A_TENTH));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Prices at which each put costs one unit, and nothing else does.
const PRICES: &str = r#"
version = 1
currency = "EUR"
as_of = "2025-11-01"
[[price]]
name = "dear"
provider = "local"
gigabyte = 1_000_000_000
storage_per_gb_month = 0
put_per_1000 = 1000
"#;

fn with_budget(budget: &str) -> Cluster {
    let mut cluster = Cluster::prepare();
    cluster.start();
    fs::write(cluster.volume().join("own.toml"), PRICES).unwrap();
    cluster.configure(&format!(
        "[cost]\nprices = \"own.toml\"\n[budget]\n{budget}"
    ));
    cluster
}

fn put(cluster: &Cluster, name: &str) -> quorumfs_tests::harness::Finished {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, noise(1, 5_000)).unwrap();
    cluster
        .quorumfs()
        .args(["put"])
        .args([&file])
        .args([name])
        .run()
}

fn month(cluster: &Cluster) -> Value {
    let cost = cluster.quorumfs().args(["cost"]).run().ok();
    cost.records("cost_month").remove(0)
}

#[test]
fn past_the_soft_budget_scrubs_wait_and_past_the_hard_one_writes_stop_if_asked() {
    let budget = "soft = \"4 EUR\"\nhard = \"8 EUR\"\npast_hard = \"stop writes\"\n";
    let cluster = with_budget(budget);
    assert_eq!(month(&cluster)["budget"], "within");
    put(&cluster, "/one").ok();
    let now = month(&cluster);
    assert_eq!(
        (&now["so_far"], &now["currency"]),
        (&4.0.into(), &"EUR".into()),
        "{now}"
    );
    assert_eq!(now["budget"], "past soft");
    let scrub = cluster.quorumfs().args(["scrub", "--full"]);
    scrub
        .run()
        .fails(8, "the budget of this month is spent", "--over-budget");
    cluster
        .quorumfs()
        .args(["scrub", "--full", "--over-budget"])
        .run()
        .ok();
    put(&cluster, "/two").ok();
    let now = month(&cluster);
    assert_eq!(
        (&now["budget"], &now["writes_stopped"]),
        (&"past hard".into(), &true.into())
    );
    put(&cluster, "/three").fails(8, "the hard budget of this month is spent", "quorumfs cost");
    let read = cluster.quorumfs().args(["cat", "/one"]).run().ok();
    assert!(read.stdout == noise(1, 5_000), "reads never stop");
    cluster.quorumfs().args(["rm", "/two"]).run().ok();

    require_fuse();
    let point = cluster.mount_point();
    let _mount = mount_in_background(&cluster, &point, &[]);
    let refused = fs::write(point.join("three"), noise(1, 5_000)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::DQUOT.raw_os_error()));
    assert!(fs::read(point.join("one")).unwrap() == noise(1, 5_000));
    let status = cluster.quorumfs().args(["status"]).run().ok();
    let mount = status.records("mount").remove(0);
    assert_eq!(mount["budget"]["level"], "past hard", "{mount}");
    assert_eq!(mount["budget"]["writes_stopped"], true);
    cluster.quorumfs().args(["umount"]).run().ok();
}

#[test]
fn past_a_hard_budget_that_only_warns_writes_go_on() {
    let cluster = with_budget("hard = \"1 EUR\"\n");
    put(&cluster, "/one").ok();
    put(&cluster, "/two").ok();
    let now = month(&cluster);
    assert_eq!(
        (&now["budget"], &now["writes_stopped"]),
        (&"past hard".into(), &false.into())
    );
    assert_eq!(now["hard"], 1.0);
}

#[test]
fn a_budget_or_prices_that_make_no_sense_are_refused_with_their_place() {
    let cluster = Cluster::prepare();
    let refused = |more: &str, said: &str| {
        let path = cluster.volume().join("quorumfs.toml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}\n{more}")).unwrap();
        cluster.quorumfs().args(["cost"]).run().fails(2, said, "");
        fs::write(&path, text).unwrap();
    };
    refused("[budget]\nsoft = \"20\"\n", "`soft` of [budget]");
    refused("[budget]\nsoft = \"20 EUR\"\n", "not in USD");
    refused("[budget]\nsofter = \"20 USD\"\n", "unknown key `softer`");
    let plan = ["cost", "plan", "--size", "1GB", "--files", "10"];
    let plan = |more: &[&str]| cluster.quorumfs().args(plan).args(more).run();
    plan(&["--cloud", "frobnicate"]).fails(2, "no prices of `frobnicate`", "cloudflare-r2");
    plan(&["--cloud", "amazon"]).fails(2, "cannot work together", "3f + 1");
    plan(&["--faulty-clouds", "2"]).fails(2, "of 6 providers", "--cloud");
    plan(&["--prices", "/nowhere/prices.toml"]).fails(1, "read the prices", "");
}

/// The plans of the page on costs, as they are typed.
fn typed(page: &str) -> Vec<Vec<String>> {
    let blocks = page.split("```console\n").skip(1);
    let typed = blocks.filter_map(|block| {
        let block = block.split("```").next().unwrap().replace("\\\n", "");
        let command = block.strip_prefix("$ quorumfs ")?.lines().next()?;
        Some(
            command
                .split_whitespace()
                .map(ToString::to_string)
                .collect(),
        )
    });
    typed.collect()
}

#[test]
fn the_plans_of_the_page_on_costs_need_no_volume() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("docs/COST.md")).unwrap();
    let typed = typed(&page);
    assert!(typed.len() >= 2, "the page has no plans");
    for words in typed {
        let mut command = Command::new(binary());
        let done = command.args(&words).env_remove("HOME").output().unwrap();
        assert!(done.status.success(), "{words:?}: {done:?}");
        let printed = String::from_utf8(done.stdout).unwrap();
        assert!(
            printed.contains("alone: backblaze-b2"),
            "{words:?}: {printed}"
        );
        assert!(
            printed.lines().all(|line| line.len() <= 100),
            "{words:?}: {printed}"
        );
    }
}
