//! What carries changes between two clusters, beside each of their nodes: it comes and goes with the node's process.

use crate::echo::client;
use crate::machine::address_of;
use crate::owner::OWNER;
use crate::world::World;
use hedgerow_client::simulation::Task;
use hedgerow_duplication::{Connect, Duplicator};
use hedgerow_types::random::Random;
use std::sync::Arc;

/// More than a cluster has.
const MACHINES_MAX: usize = 16;
const CLUSTERS: u8 = 2;

/// The carriers of one cluster.
#[derive(Debug)]
pub(crate) struct Carriers {
    own: Arc<[String]>,
    other: Arc<[String]>,
    random: Random,
}

/// The executor's number for what is beside a node. Clients have small numbers.
const fn caller_of(cluster: u8, machine: usize) -> usize {
    OWNER - 1 - (cluster as usize * MACHINES_MAX + machine)
}

/// In which cluster the node is beside which `caller` is, if it is beside one.
pub(crate) fn cluster_of_caller(caller: usize) -> Option<u8> {
    let number = (OWNER - 1).checked_sub(caller)? / MACHINES_MAX;
    u8::try_from(number).ok().filter(|cluster| *cluster < CLUSTERS)
}

/// The addresses of so many machines of a cluster.
pub(crate) fn addresses_of(cluster: u8, machine_count: usize) -> Arc<[String]> {
    (0..machine_count).map(|machine| address_of((cluster, machine))).collect()
}

impl Carriers {
    /// From the cluster with the addresses `own` to the one with the addresses `other`.
    pub(crate) const fn new(own: Arc<[String]>, other: Arc<[String]>, random: Random) -> Self {
        Self { own, other, random }
    }

    fn task(&mut self, machine: usize) -> Task {
        let (own, id) = (self.own[machine].clone(), self.random.next_u64() | 1);
        let (here, there) = (Arc::clone(&self.own), Arc::clone(&self.other));
        Box::pin(async move {
            let source = client(&here, Some(id));
            let connect: Connect = Arc::new(move |_| {
                let told = client(&there, None);
                Box::pin(async move { Ok(told) })
            });
            Duplicator::new(Box::new(move || Ok(source.clone())), own, connect).run().await;
        })
    }
}

impl World {
    /// The node of `machine` has started.
    pub(crate) fn start_carriers(&mut self, machine: usize) {
        let (cluster, is_clone) = (self.plan.cluster, machine >= self.plan.machine_count);
        if let Some(carriers) = self.carriers.as_mut().filter(|_| !is_clone) {
            self.executor.spawn(caller_of(cluster, machine), carriers.task(machine));
            self.run_clients();
        }
    }

    /// The node of `machine` has ended.
    pub(crate) fn stop_carriers(&self, machine: usize) {
        if self.carriers.is_some() {
            self.executor.end(caller_of(self.plan.cluster, machine));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_number_tells_its_cluster() {
        for cluster in 0..CLUSTERS {
            for machine in [0, 5] {
                assert_eq!(cluster_of_caller(caller_of(cluster, machine)), Some(cluster));
            }
        }
        assert_eq!([0, 1_000, OWNER].map(cluster_of_caller), [None; 3]);
    }
}
