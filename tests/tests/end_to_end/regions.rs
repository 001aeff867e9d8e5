//! Places that are far apart: the network in which they are tested, and a volume that is used from
//! several of them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use quorumfs_tests::harness::{Cluster, Quorumfs};
use quorumfs_tests::regions::Regions;
use quorumfs_tests::regions::endure::{EnduranceScene, EnduranceSizes, endure};
use quorumfs_tests::regions::links::PlaceLink;
use quorumfs_tests::regions::measure::{Measured, Measuring};
use quorumfs_tests::regions::plan::RegionsPlan;
use quorumfs_tests::regions::volume::FarVolume;
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PORT: u16 = 7777;
/// What a busy machine may add to a delay.
const LATE: Duration = Duration::from_millis(150);

/// Sends back whatever comes, on one connection, to its end.
fn echo(regions: &Regions, name: &str) -> JoinHandle<()> {
    let at = SocketAddr::new(regions.address(name), PORT);
    let listener = regions.run_in(name, move || TcpListener::bind(at).unwrap());
    let listener = listener.join().unwrap();
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_nodelay(true).unwrap();
        let mut bytes = vec![0; 1 << 16];
        while let Ok(length) = peer.read(&mut bytes) {
            if length == 0 || peer.write_all(&bytes[..length]).is_err() {
                return;
            }
        }
    })
}

/// The shortest of some round trips.
fn round_trip(stream: &mut TcpStream) -> Duration {
    let once = |stream: &mut TcpStream| {
        let began = Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        began.elapsed()
    };
    (0..5).map(|_| once(stream)).min().unwrap()
}

#[test]
fn packets_take_the_time_that_their_links_say_and_links_change_while_they_are_used() {
    let plan = RegionsPlan::of_regions(&[("here", "frankfurt"), ("there", "virginia")]);
    let regions = Regions::start(plan).unwrap();
    let serving = echo(&regions, "there");
    let at = SocketAddr::new(regions.address("there"), PORT);
    let connected = regions.run_in("here", move || TcpStream::connect(at).unwrap());
    let mut stream = connected.join().unwrap();
    stream.set_nodelay(true).unwrap();

    let far = Duration::from_millis(90);
    let took = round_trip(&mut stream);
    assert!((far..far + LATE).contains(&took), "{took:?}");
    // One direction alone.
    regions
        .change("here", "there", |it| it.delay_ms = 5.0)
        .unwrap();
    let near = Duration::from_millis(50);
    let took = round_trip(&mut stream);
    assert!((near..far).contains(&took), "{took:?}");

    // What is sent into a cut arrives once that is over.
    regions.change("here", "there", |it| it.cut = true).unwrap();
    let short = Some(Duration::from_millis(400));
    stream.set_read_timeout(short).unwrap();
    stream.write_all(b"late").unwrap();
    let nothing = stream.read(&mut [0; 4]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    assert!(regions.carried("here", "there").cut > 0);
    regions
        .change("here", "there", |it| it.cut = false)
        .unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut late = [0; 4];
    stream.read_exact(&mut late).unwrap();
    assert_eq!(&late, b"late");

    // A megabyte takes its time on a link of 8 Mbit/s, and is whole in spite of losses.
    let slow = |link: &mut PlaceLink| {
        link.rate_mbit = Some(8.0);
        link.loss_percent = 1.0;
    };
    regions.change("here", "there", slow).unwrap();
    let sent: Vec<u8> = (0..1_000_000_u32).map(|it| (it % 251) as u8).collect();
    let began = Instant::now();
    let (mut sending, bytes) = (stream.try_clone().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || sending.write_all(&bytes).unwrap());
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).unwrap();
    writing.join().unwrap();
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "{:?}",
        began.elapsed()
    );
    assert!(received == sent, "the content has changed");
    drop(stream);
    serving.join().unwrap();
    assert!(regions.change("here", "nowhere", |_| ()).is_err());
}

const FOUR: &str = "frankfurt,dublin,virginia,oregon";

/// What `doctor` finds of a plan.
fn compared(run: Quorumfs, table: &Path, replicas: &str, from: &str) -> Vec<Value> {
    let run = run.args(["doctor", "--dry-run", "--plan"]).args([table]);
    let run = run.run_with(["--replicas", replicas, "--from", from]);
    let mut found = run.records("finding");
    found.retain(|it| it["about"] == "plan");
    found
}

/// Whether what was measured is as it was predicted, by the bound of `doctor`.
fn is_as_planned(finding: &Value) -> bool {
    let ms = |key: &str| finding[key].as_f64().unwrap();
    ms("measured_ms") <= 1.3 * ms("predicted_ms") + 5.0
}

#[test]
fn a_volume_is_used_from_places_that_are_far_apart_and_without_the_leaders() {
    let measuring = Measuring {
        replicas: ["frankfurt", "dublin", "virginia", "oregon"]
            .map(str::to_owned)
            .to_vec(),
        mounts: ["dublin", "tokyo"].map(str::to_owned).to_vec(),
        repeats: 2,
        authentication: "sig".to_owned(),
    };
    let volume = FarVolume::start(&measuring).unwrap();
    let figures = volume.measure(measuring.repeats).unwrap();
    assert_eq!(figures.len(), 2 * Measured::ALL.len());
    // What is ordered goes to the leader and back at least, and nothing takes for ever.
    for figure in &figures {
        let ordered = matches!(figure.operation, Measured::Mkdir | Measured::Write);
        let least = match figure.mount.as_str() {
            "tokyo" if ordered => 150.0,
            "dublin" if ordered => 25.0,
            _ => 0.0,
        };
        let plausible = (least..20_000.0).contains(&figure.shortest_ms);
        assert!(plausible, "{figure:?}");
    }
    let (dublin, tokyo) = (volume.point("dublin"), volume.point("tokyo"));
    fs::write(tokyo.join("from-tokyo"), "far").unwrap();
    assert_eq!(fs::read(dublin.join("from-tokyo")).unwrap(), b"far");

    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("round-trips");
    fs::write(&table, measuring.plan().table()).unwrap();
    let found = compared(volume.run_at("tokyo"), &table, FOUR, "tokyo");
    assert_eq!(found.len(), 7, "{found:#?}");
    for (finding, least) in found.iter().zip([230.0, 220.0, 150.0, 95.0, 220.0, 320.0]) {
        assert!(
            finding["measured_ms"].as_f64().unwrap() >= least * 0.9,
            "{finding}"
        );
        assert_eq!(
            finding["level"] == "ok",
            is_as_planned(finding),
            "{finding}"
        );
    }
    // With another table each replica is too far, and so is what waits for them.
    fs::write(&table, "tokyo\ntokyo 0\n").unwrap();
    let nearby = ["tokyo"; 4].join(",");
    let found = compared(volume.run_at("tokyo"), &table, &nearby, "tokyo");
    let warned = found.iter().filter(|it| it["level"] == "warning");
    assert_eq!(warned.count(), 6, "{found:#?}");
    let said = found[0].to_string();
    assert!(
        said.contains("replica 0 (tokyo) is 2") && said.contains("ping"),
        "{said}"
    );

    // Another one is chosen to lead, by its number: it has number 0 from then on.
    let replicas = |kind: &str| volume.run_at("dublin").run_with([kind]).records("replica");
    let virginia = replicas("status")[2]["key"].clone();
    volume
        .run_at("dublin")
        .run_with(["cluster", "lead", "2"])
        .ok();
    let again = volume.run_at("dublin").run_with(["cluster", "lead", "0"]);
    assert_eq!(again.ok().records("unchanged").len(), 1);
    let leading = replicas("status");
    assert_eq!(leading[0]["key"], virginia);
    assert!(leading.iter().all(|it| it["leader"] == 0), "{leading:?}");
    fs::write(tokyo.join("led"), "by virginia").unwrap();
    assert_eq!(fs::read(dublin.join("led")).unwrap(), b"by virginia");
    let frankfurt = leading[1]["key"].as_str().unwrap();
    volume
        .run_at("dublin")
        .run_with(["cluster", "lead", frankfurt])
        .ok();

    // The leader's region is cut off: nothing is lost, and the others go on.
    volume
        .regions()
        .change_all("frankfurt", |it| it.cut = true)
        .unwrap();
    fs::write(dublin.join("without"), "frankfurt").unwrap();
    assert_eq!(fs::read(tokyo.join("without")).unwrap(), b"frankfurt");
    assert_eq!(fs::read(tokyo.join("from-tokyo")).unwrap(), b"far");
    volume
        .regions()
        .change_all("frankfurt", |it| it.cut = false)
        .unwrap();
    fs::write(tokyo.join("with"), "frankfurt").unwrap();
    assert_eq!(fs::read(dublin.join("with")).unwrap(), b"frankfurt");
}

const NO_SIZES: EnduranceSizes = EnduranceSizes {
    seconds: 0,
    loss_percent: 1.0,
    rounds: 0,
    beyond: 0,
    batches: 0,
    batch_bytes: 0,
    rate_mbit: 0.0,
    rate_part: 0.0,
    logs: None,
};

/// The flaw: each answer was late over such a link, so that everything was sent again and again,
/// and the replica never had the state.
#[test]
fn a_replica_returns_over_a_link_of_256_kbit() {
    let sizes = EnduranceSizes {
        batches: 300,
        batch_bytes: 2000,
        rate_mbit: 0.256,
        ..NO_SIZES
    };
    let mut findings = Vec::new();
    let tell = &mut |finding: &str| findings.push(finding.to_owned());
    let outcome = endure(EnduranceScene::Return, &sizes, tell);
    assert!(outcome.is_ok(), "{outcome:?} {findings:#?}");
}

/// The program `regions` plays it at length, and asks for a second: here other tests run as well.
#[test]
fn the_leaders_region_is_cut_off_and_is_up_to_date_after_its_return() {
    let sizes = EnduranceSizes {
        rounds: 1,
        beyond: 10,
        ..NO_SIZES
    };
    let mut findings = Vec::new();
    let tell = &mut |finding: &str| findings.push(finding.to_owned());
    endure(EnduranceScene::Cut, &sizes, tell).unwrap();
    let rounds = findings.iter().filter(|it| it.starts_with("round "));
    assert_eq!(rounds.count(), 1, "{findings:#?}");
}

#[test]
fn a_plan_names_the_best_places_and_what_their_loss_costs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("round-trips");
    let table = "frankfurt dublin virginia oregon tokyo\n\
                 frankfurt 0.5 25 90 150 230\n\
                 dublin 25 0.5 70 130 220\n\
                 virginia 90 70 0.5 65 150\n\
                 oregon 150 130 65 0.5 95\n\
                 tokyo 230 220 150 95 0.5\n";
    fs::write(&file, table).unwrap();
    let plan = |more: &[&str]| {
        let plan = Quorumfs::on(directory.path()).args(["cluster", "plan"]);
        plan.args([&file]).args(more).run()
    };
    let found = plan(&["--from", "frankfurt,dublin"])
        .ok()
        .records("placement");
    assert_eq!(found.len(), 3);
    let means: Vec<f64> = found
        .iter()
        .map(|it| it["mean_change_ms"].as_f64().unwrap())
        .collect();
    assert!(means.is_sorted(), "{means:?}");
    assert!(
        found[0]["replicas"]
            .as_array()
            .unwrap()
            .contains(&"dublin".into())
    );
    assert!(
        !found[0]["replicas"]
            .as_array()
            .unwrap()
            .contains(&"tokyo".into())
    );

    let given = plan(&["--replicas", FOUR, "--from", "frankfurt"]).ok();
    let given = given.records("placement").remove(0);
    let from = &given["from"][0];
    // 163 ms were measured, and 151 ms before the nearest replicas were asked.
    assert!(
        (155.0..165.0).contains(&from["change_ms"].as_f64().unwrap()),
        "{from}"
    );
    assert!(
        (from["open_ms"].as_f64().unwrap() - 90.0).abs() < 1.0,
        "{from}"
    );
    assert!(
        (from["near_read_ms"].as_f64().unwrap() - 25.0).abs() < 1.0,
        "{from}"
    );
    let losses = given["losses"].as_array().unwrap();
    assert_eq!(losses[0]["leader"], "dublin");
    assert_eq!(losses.len(), 4);
    // Two in one place.
    let crowded = plan(&["--replicas", "frankfurt,frankfurt,dublin,virginia"]).ok();
    let crowded = crowded.records("placement").remove(0);
    assert!(crowded["losses"][0]["leader"].is_null(), "{crowded}");

    plan(&["--replicas", "frankfurt,atlantis"]).fails(
        2,
        "no place `atlantis`",
        "frankfurt, dublin",
    );
    plan(&["--replicas", "frankfurt,dublin"]).fails(2, "at least 4 are needed", "--failures");
    plan(&["--failures", "2", "--liars", "1"]).fails(2, "6 replicas need", "--replicas");
    fs::write(&file, "a b\na 1 x\nb 1 1\n").unwrap();
    plan(&[]).fails(2, "line 2: `x`", "the first line names the places");
    fs::remove_file(&file).unwrap();
    plan(&[]).fails(1, "cannot read the round trips", "");
}

#[test]
fn a_running_cluster_is_compared_with_its_plan() {
    let mut cluster = Cluster::prepare();
    cluster.start();
    let table = cluster.directory().join("round-trips");
    let here = ["here"; 4].join(",");
    fs::write(&table, "here there\nhere 0 100\nthere 100 0\n").unwrap();
    let found = compared(cluster.quorumfs(), &table, &here, "here");
    assert_eq!(found.len(), 7, "{found:#?}");
    for finding in &found[..6] {
        assert_eq!(finding["predicted_ms"], 0.0, "{finding}");
        assert_eq!(
            finding["level"] == "ok",
            is_as_planned(finding),
            "{finding}"
        );
    }
    assert_eq!(found[6]["check"], "leader");
    assert!(
        found[6]["text"]
            .as_str()
            .unwrap()
            .contains("replica 0 (here) leads")
    );

    // What is claimed to be far is nearer than that. One replica is here: it should lead.
    let far = compared(cluster.quorumfs(), &table, "there,there,there,here", "here");
    for (number, finding) in far.iter().take(3).enumerate() {
        assert_eq!(finding["replica"], number, "{finding}");
        assert_eq!(finding["predicted_ms"], 100.0, "{finding}");
    }
    assert!(
        far[0]["text"]
            .as_str()
            .unwrap()
            .contains("less than the table says")
    );

    // A replica that is down is named, and the others are compared without it.
    cluster.kill_one(2);
    let without = compared(cluster.quorumfs(), &table, &here, "here");
    assert_eq!(without[2]["level"], "warning", "{without:#?}");
    assert_eq!(without[2]["replica"], 2, "{without:#?}");
    assert!(without[2]["measured_ms"].is_null(), "{without:#?}");
    assert_eq!(without.len(), 7, "{without:#?}");

    let doctor = |arguments: &[&str]| {
        let run = cluster.quorumfs().args(["doctor", "--dry-run", "--plan"]);
        run.args([&table]).run_with(arguments)
    };
    doctor(&["--replicas", "here,here", "--from", "here"]).fails(
        2,
        "4 replicas vote",
        "in the order",
    );
    doctor(&["--replicas", &here, "--from", "atlantis"]).fails(2, "no place `atlantis`", "here");
    assert_eq!(doctor(&["--replicas", &here]).code, Some(2));
    fs::write(&table, "here\nhere x\n").unwrap();
    doctor(&["--replicas", &here, "--from", "here"]).fails(2, "line 2: `x`", "the first line");
}
