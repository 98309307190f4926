//! A load: which workload, how fast, how long, from where.

use crate::arrivals::{Arrivals, IN_FLIGHT_MAX_DEFAULT, Spacing};
use crate::hedging::Hedging;
use crate::reading::Reading;
use crate::workload::Workload;
use anyhow::{Result, ensure};
use hedgerow_client::ClientTlsFiles;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Connections to each node in an open loop, unless the load says otherwise.
const OPEN_CONNECTIONS: u32 = 16;
/// Most clients, times what each has in flight.
const CLIENTS_MAX: u64 = 1_000_000;
/// Most connections to each node.
const CONNECTIONS_MAX: u32 = 10_000;
/// Most generator processes.
const PROCESSES_MAX: u32 = 64;
/// The longest time that a generator may stay awake for.
const SPIN_MAX: Duration = Duration::from_secs(1);
/// The latency quantile that a run is about unless it says otherwise.
pub(crate) const JUDGED_DEFAULT: f64 = 0.99;
/// The highest rate of an open loop, per second.
const RATE_MAX: f64 = 1e7;

/// A load. Rates, clients, connections and limits are those of all generator processes together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// What is asked.
    pub workload: Workload,
    /// When.
    pub arrivals: Arrivals,
    /// How fresh reads must be, and which replicas are asked; by default the leader, at the table's level.
    pub reading: Reading,
    /// What extra attempts requests get; by default none.
    pub hedging: Hedging,
    /// How long is measured; default 10 s.
    pub duration: Duration,
    /// How long requests are sent before; default 1 s.
    pub warm_up: Duration,
    /// Connections to each node. `None`: one per client in a closed loop, 16 in an open one.
    pub connections: Option<u32>,
    /// Generator processes, 1 to 64; default 1 = this one. Others are started from [`Load::program`].
    pub processes: u32,
    /// The seed of everything that is drawn; default 1.
    pub seed: u64,
    /// Ends a closed loop after so many counted requests.
    pub operations: Option<u64>,
    /// How long one operation may take, repetitions by the client included; default 10 s.
    pub timeout: Duration,
    /// The table; default `bench`.
    pub table: String,
    /// An open loop does not sleep for less than this, so that requests are sent on time; default 0. It costs up to a core
    /// per process, which then says nothing about whether the generator kept up.
    pub spin: Duration,
    /// The latency quantile that the run is about, above 0 and up to 1; default 0.99. An open loop is void if its send lag is
    /// not small beside the latency there; the quantiles below may then be distorted.
    pub judged: f64,
    /// Process ids of the servers on this machine by name, for their CPU time; default none.
    pub server_processes: BTreeMap<String, u32>,
    /// The binary of further generator processes, which must answer `hedgerow bench worker`. `None` = this one.
    pub program: Option<PathBuf>,
    /// What connections are encrypted with; default: they are not.
    pub tls: Option<ClientTlsFiles>,
    /// Who logs in, and the file with the password; default: nobody does.
    pub user: Option<(String, PathBuf)>,
}

impl Load {
    /// A load with the defaults.
    pub fn new(workload: Workload, arrivals: Arrivals) -> Self {
        Self {
            workload,
            arrivals,
            reading: Reading::default(),
            hedging: Hedging::default(),
            duration: Duration::from_secs(10),
            warm_up: Duration::from_secs(1),
            connections: None,
            processes: 1,
            seed: 1,
            operations: None,
            timeout: Duration::from_secs(10),
            table: "bench".to_owned(),
            spin: Duration::ZERO,
            judged: JUDGED_DEFAULT,
            server_processes: BTreeMap::new(),
            program: None,
            tls: None,
            user: None,
        }
    }

    /// Refuses what cannot be run, with what is allowed.
    pub fn check(&self) -> Result<()> {
        self.workload.check()?;
        self.reading.check()?;
        self.hedging.check()?;
        ensure!(!self.duration.is_zero(), "the duration must be above 0");
        ensure!(!self.timeout.is_zero(), "the timeout must be above 0");
        ensure!(self.judged > 0.0 && self.judged <= 1.0, "the judged quantile must be above 0, up to 1");
        let processes = self.processes;
        ensure!((1..=PROCESSES_MAX).contains(&processes), "processes must be 1 to {PROCESSES_MAX}, not {processes}");
        match self.arrivals {
            Arrivals::Closed { clients, in_flight } => {
                let all = u64::from(clients) * u64::from(in_flight);
                ensure!(
                    (1..=CLIENTS_MAX).contains(&all),
                    "clients times requests in flight must be 1 to {CLIENTS_MAX}"
                );
                ensure!(processes <= clients, "{processes} processes need at least as many clients");
                ensure!(self.spin.is_zero(), "a closed loop waits for nothing but replies");
            }
            Arrivals::Open { rate, in_flight_max, .. } => {
                ensure!(rate > 0.0 && rate <= RATE_MAX, "the rate must be above 0, up to {RATE_MAX} per second");
                ensure!(in_flight_max >= processes, "{processes} processes need at least as many requests in flight");
                ensure!(self.spin <= SPIN_MAX, "staying awake for more than a second helps nobody");
                ensure!(self.operations.is_none(), "a number of operations ends only a closed loop");
            }
        }
        let connections = self.connections_or_default();
        ensure!((1..=CONNECTIONS_MAX).contains(&connections), "connections must be 1 to {CONNECTIONS_MAX}");
        ensure!(processes <= connections, "{processes} processes need at least as many connections");
        ensure!(self.operations != Some(0), "the number of operations must be above 0");
        Ok(())
    }

    /// Connections to each node.
    pub fn connections_or_default(&self) -> u32 {
        match (self.connections, self.arrivals) {
            (Some(connections), Arrivals::Closed { clients, .. }) => connections.min(clients),
            (Some(connections), Arrivals::Open { .. }) => connections,
            (None, Arrivals::Closed { clients, .. }) => clients.min(CONNECTIONS_MAX),
            (None, Arrivals::Open { .. }) => OPEN_CONNECTIONS.max(self.processes),
        }
    }

    /// The share of generator `index` of [`Load::processes`].
    pub(crate) fn share(&self, index: u32) -> Self {
        let part = |whole: u32| whole / self.processes + u32::from(index < whole % self.processes);
        let arrivals = match self.arrivals {
            Arrivals::Closed { clients, in_flight } => Arrivals::Closed { clients: part(clients), in_flight },
            Arrivals::Open { rate, spacing, in_flight_max } => {
                Arrivals::Open { rate: rate / f64::from(self.processes), spacing, in_flight_max: part(in_flight_max) }
            }
        };
        let processes = u64::from(self.processes);
        let operations =
            self.operations.map(|all| (all / processes + u64::from(u64::from(index) < all % processes)).max(1));
        Self { arrivals, operations, connections: Some(part(self.connections_or_default())), ..self.clone() }
    }
}

impl Arrivals {
    /// A closed loop with one request in flight per client.
    pub fn clients(clients: u32) -> Self {
        Self::Closed { clients, in_flight: 1 }
    }

    /// An open loop with Poisson arrivals.
    pub fn poisson(rate: f64) -> Self {
        Self::Open { rate, spacing: Spacing::Poisson, in_flight_max: IN_FLIGHT_MAX_DEFAULT }
    }

    /// An open loop with constant gaps.
    pub fn constant(rate: f64) -> Self {
        Self::Open { rate, spacing: Spacing::Constant, in_flight_max: IN_FLIGHT_MAX_DEFAULT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(arrivals: Arrivals) -> Load {
        Load::new(Workload::named("get").unwrap(), arrivals)
    }

    #[test]
    fn shares_add_up_to_the_whole() {
        let closed = Load { processes: 3, operations: Some(100), ..load(Arrivals::clients(64)) };
        let shares: Vec<_> = (0..3).map(|index| closed.share(index)).collect();
        let clients = shares.iter().map(|share| match share.arrivals {
            Arrivals::Closed { clients, .. } => clients,
            Arrivals::Open { .. } => 0,
        });
        assert_eq!(clients.sum::<u32>(), 64);
        assert_eq!(shares.iter().filter_map(|share| share.connections).sum::<u32>(), 64);
        assert_eq!(shares.iter().filter_map(|share| share.operations).sum::<u64>(), 100);
        let open = Load { processes: 4, ..load(Arrivals::constant(1000.0)) };
        assert!(matches!(open.share(3).arrivals, Arrivals::Open { rate: 250.0, in_flight_max: 4096, .. }));
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let refused = |load: Load| load.check().unwrap_err().to_string();
        assert!(refused(load(Arrivals::clients(0))).contains("clients"));
        assert!(refused(load(Arrivals::constant(0.0))).contains("rate"));
        assert!(refused(load(Arrivals::constant(f64::NAN))).contains("rate"));
        assert!(refused(Load { processes: 65, ..load(Arrivals::clients(99)) }).contains("1 to 64"));
        assert!(refused(Load { processes: 2, ..load(Arrivals::clients(1)) }).contains("as many clients"));
        assert!(refused(Load { operations: Some(5), ..load(Arrivals::poisson(1.0)) }).contains("closed loop"));
        assert!(refused(Load { judged: 99.9, ..load(Arrivals::clients(1)) }).contains("quantile"));
        assert!(refused(Load { duration: Duration::ZERO, ..load(Arrivals::clients(1)) }).contains("duration"));
        load(Arrivals::clients(64)).check().unwrap();
    }
}
