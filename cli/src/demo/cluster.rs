//! The demo's children together: four replicas and a gateway, started and stopped in order.

use super::layout::Demo;
use super::supervisor::{Recipe, State, Supervisor};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use std::ffi::OsString;

/// Four replicas and a gateway.
#[derive(Debug)]
pub(crate) struct DemoCluster {
    replicas: Vec<Supervisor>,
    gateway: Supervisor,
}

impl DemoCluster {
    /// Creates the supervisors of children that do not run yet.
    pub(crate) fn new(demo: &Demo) -> CommandResult<Self> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(
                Exit::Error,
                format!("cannot find this program itself: {error}"),
            )
        })?;
        let supervisor = |name: String, mut arguments: Vec<OsString>| {
            let log = demo.log(&name);
            arguments.extend(["--log-file".into(), log.clone().into_os_string()]);
            Supervisor::new(Recipe {
                name,
                program: program.clone(),
                arguments,
                log,
            })
        };
        let replicas = demo.replicas.iter().enumerate().map(|(number, state)| {
            let state = state.path().as_os_str().to_os_string();
            let arguments = vec![
                "replica".into(),
                "run".into(),
                "--supervised".into(),
                "--json".into(),
                "--state".into(),
                state,
                "--genesis".into(),
                demo.genesis().into_os_string(),
            ];
            supervisor(format!("replica-{number}"), arguments)
        });
        let arguments = vec![
            "mount".into(),
            "--supervised".into(),
            "--json".into(),
            "--state".into(),
            demo.state.path().as_os_str().to_os_string(),
            demo.mount.as_os_str().to_os_string(),
        ];
        Ok(Self {
            replicas: replicas.collect(),
            gateway: supervisor("gateway".into(), arguments),
        })
    }

    /// Starts the replicas, then the gateway.
    pub(crate) async fn start(&self) -> CommandResult<()> {
        for replica in &self.replicas {
            replica.start().await?;
        }
        self.gateway.start().await
    }

    /// Unmounts, then stops the replicas.
    pub(crate) async fn stop(&self) -> CommandResult<()> {
        self.gateway.stop().await?;
        for replica in &self.replicas {
            replica.stop().await?;
        }
        Ok(())
    }

    /// The gateway.
    pub(crate) fn gateway(&self) -> &Supervisor {
        &self.gateway
    }

    /// One replica.
    pub(crate) fn replica(&self, number: usize) -> CommandResult<&Supervisor> {
        self.replicas
            .get(number)
            .ok_or_else(|| Failure::new(Exit::Error, format!("there is no replica {number}")))
    }

    /// The process ids of the replicas that run.
    pub(crate) fn replica_pids(&self) -> Vec<Option<u32>> {
        let pid = |supervisor: &Supervisor| match *supervisor.watch().borrow() {
            State::Running { pid } => Some(pid),
            _ => None,
        };
        self.replicas.iter().map(pid).collect()
    }
}
