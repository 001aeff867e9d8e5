//! `quorumfs demo`: the whole of quorumfs on one machine.
//!
//! Four metadata replicas and a gateway run as child *processes* (they can be killed one by one)
//! over four directories that stand for clouds (they can be moved away or damaged), or over servers
//! of three providers' protocols. This process only supervises: it restarts children that die, and
//! on Ctrl-C it unmounts, stops the replicas and ends. Everything is stored in the state directory
//! and found again at the next start.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`supervisor`] | one child process, kept running |
//! | [`cluster`] | the five children together |
//! | [`layout`] | the layout of the state directory, made at the first start |
//! | [`places`] | the clouds: directories, or servers of the providers' protocols |
//! | [`check`] | the unattended check: copies, compares, breaks things, compares again |
//! | [`damage`] | the damage that the check does to clouds |
//! | [`observe`] | what the check observes of the cluster |
//! | [`tree`] | the real files that the check copies |

mod check;
mod cluster;
mod damage;
mod layout;
mod observe;
mod places;
mod supervisor;
mod tree;

use crate::arguments::{DemoArguments, General};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::CommandResult;
use crate::output::Output;
use crate::stop::Stop;
use cluster::DemoCluster;
use serde::Serialize;

/// Runs the demo until it is stopped, or its check to the end.
pub(crate) async fn run(
    general: &General,
    arguments: DemoArguments,
    output: Output,
) -> CommandResult {
    if arguments.check {
        return check::run(general, &arguments, output).await;
    }
    let state = StateDirectory::find(general.state.as_deref(), "demo")?;
    let mut stop = Stop::of_a_command()?;
    let demo = layout::Demo::open(&state, arguments.mount.as_deref(), arguments.clouds).await?;
    let cluster = DemoCluster::new(&demo)?;
    output.print_text(if demo.is_new {
        "Creating a volume…"
    } else {
        "Starting where we left off…"
    })?;
    let started = tokio::select! {
        started = cluster.start() => started.map(|()| true),
        () = stop.wanted() => Ok(false),
    };
    match started {
        Err(failure) => {
            let _ = cluster.stop().await;
            demo.end().await;
            return Err(failure);
        }
        Ok(true) => {
            let ready = Ready::of(&demo, &cluster).await;
            // A closed terminal ends the demo too, and then takes no more output.
            output.announce("ready", &ready, Ready::text);
            stop.wanted().await;
        }
        Ok(false) => {}
    }
    let printed = output.print_text("\nUnmounting and stopping…");
    let stopped = tokio::select! {
        stopped = cluster.stop() => stopped,
        () = stop.wanted() => return Ok(Exit::Cancelled),
    };
    demo.end().await;
    stopped?;
    printed?;
    output.print_text(&format!(
        "Stopped. Everything is stored in {}.",
        state.path().display()
    ))?;
    Ok(Exit::Success)
}

#[derive(Serialize)]
struct Ready {
    mount: String,
    state: String,
    clouds: Vec<String>,
    replicas: Vec<Option<u32>>,
    #[serde(skip)]
    what_clouds_are: &'static str,
    #[serde(skip)]
    program: String,
}

impl Ready {
    async fn of(demo: &layout::Demo, cluster: &DemoCluster) -> Self {
        let mut clouds = Vec::new();
        for place in &demo.clouds {
            clouds.push(place.data().await.display().to_string());
        }
        let what_clouds_are = match demo.clouds.iter().any(places::DemoCloud::freezes) {
            true => "an S3, an Azure and a Google server and a directory",
            false => "four directories that stand for clouds",
        };
        Self {
            clouds,
            what_clouds_are,
            mount: demo.mount.display().to_string(),
            state: demo.state.path().display().to_string(),
            replicas: cluster.replica_pids(),
            program: layout::program_for_people(),
        }
    }

    fn text(&self) -> String {
        let (mount, state, program) = (&self.mount, &self.state, &self.program);
        let replica = self
            .replicas
            .iter()
            .flatten()
            .next()
            .copied()
            .unwrap_or_default();
        // The last is a directory, whatever the others are.
        let cloud = self.clouds.last().cloned().unwrap_or_default();
        let what_clouds_are = self.what_clouds_are;
        let clouds = self.clouds.join(" ");
        format!(
            "\
A file system is mounted at

    {mount}

over four metadata replicas and {what_clouds_are}. Try, in another terminal:

    cp -r /usr/share/doc {mount}/         copy something in
    {program} status --state {state}
                                          who leads, which clouds answer, what waits
    du -sh {clouds}
                                          four clouds, none of which can read any of it
    mv {cloud} {cloud}.away
                                          lose a cloud: everything is still there (move it back)
    kill -9 {replica}                     kill a replica: it is started again, work goes on

Ctrl-C unmounts and stops everything; the next start finds it again."
        )
    }
}
