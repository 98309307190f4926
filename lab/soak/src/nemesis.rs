//! Carries out what a plan draws, against real processes.
#![allow(clippy::disallowed_methods, reason = "it removes data directories, and waits")]

use crate::gate::Gates;
use crate::plan::{Kind, Party, Step};
use crate::whole::wait_until_whole;
use crate::worker::{Shared, lock};
use anyhow::{Context as _, Result, ensure};
use hedgerow_testkit::{Cluster, Node};
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often it is looked whether a wait is to be cut short.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The nodes and the gates in front of them.
pub(crate) struct Nemesis {
    pub(crate) cluster: Cluster,
    pub(crate) gates: Gates,
    pub(crate) shared: Arc<Shared>,
    /// The processes of nodes 1 to n, for those who watch them.
    pub(crate) pids: Arc<Mutex<Vec<Option<u32>>>>,
}

impl Nemesis {
    /// Makes the fault of `step`, waits, and ends it. Afterwards all nodes run and serve.
    pub(crate) fn make(&mut self, step: &Step) -> Result<()> {
        let Step { kind, node, other, lasts, .. } = *step;
        match kind {
            Kind::Kill => self.kill_and_restart(node, lasts, |_| Ok(())),
            Kind::KillAll => {
                self.numbers().into_iter().try_for_each(|number| self.kill(number))?;
                self.wait(lasts / 4);
                self.restart(&self.numbers())
            }
            Kind::KillWithoutMajority => {
                self.gates.hold(self.around(other));
                self.kill(node)?;
                self.wait(lasts);
                self.gates.open();
                self.restart(&[node])
            }
            Kind::Pause => {
                self.cluster.node(node)?.pause()?;
                self.wait(lasts);
                self.cluster.node(node)?.resume()
            }
            Kind::PauseEach => self.pause_each(lasts),
            Kind::CutPair => self.hold(vec![(node, other), (other, node)], lasts),
            Kind::CutPairOneWay => self.hold(vec![(node, other)], lasts),
            Kind::Isolate => {
                self.gates.hold(self.around(node));
                self.wait(lasts);
                self.gates.open();
                Ok(())
            }
            Kind::Deaf => self.hold(self.others(node).map(|other| (other, node)).collect(), lasts),
            Kind::Mute => self.hold(self.others(node).map(|other| (node, other)).collect(), lasts),
            Kind::Break => {
                self.gates.sever(self.around(node));
                self.wait(lasts);
                self.gates.open();
                Ok(())
            }
            Kind::CutClients => {
                let (clients, node) = (Party::Clients, Party::Node(node));
                self.gates.hold([(clients, node), (node, clients)]);
                self.wait(lasts);
                self.gates.open();
                Ok(())
            }
            Kind::Wipe => self.wipe(node, lasts, usize::MAX),
            Kind::WipeOne => self.wipe(node, lasts, 1),
            Kind::RollingRestart => self.numbers().into_iter().try_for_each(|number| {
                let status = self.cluster.terminate(number)?;
                self.note_pid(number);
                ensure!(status.success(), "node {number} was asked to stop and ended with {status}");
                self.restart(&[number])
            }),
        }
    }

    /// Waits, unless the run is to end.
    pub(crate) fn wait(&self, time: Duration) {
        let until = self.shared.now() + time.as_nanos() as u64;
        while self.shared.now() < until && !self.shared.must_stop() && self.shared.book().failure().is_none() {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Fails if a node has ended that nobody ended.
    pub(crate) fn check_running(&mut self) -> Result<()> {
        for number in self.numbers() {
            let node = self.cluster.node(number)?;
            ensure!(node.is_running()?, "node {number} has ended by itself; it printed:\n{}", node.output());
        }
        Ok(())
    }

    fn numbers(&self) -> Vec<usize> {
        self.cluster.numbers().collect()
    }

    fn others(&self, node: usize) -> impl Iterator<Item = usize> + use<> {
        self.cluster.numbers().filter(move |other| *other != node)
    }

    /// Both directions between a node and all others.
    fn around(&self, node: usize) -> Vec<(Party, Party)> {
        let both = |other| [(Party::Node(node), Party::Node(other)), (Party::Node(other), Party::Node(node))];
        self.others(node).flat_map(both).collect()
    }

    fn hold(&self, pairs: Vec<(usize, usize)>, time: Duration) -> Result<()> {
        self.gates.hold(pairs.into_iter().map(|(from, to)| (Party::Node(from), Party::Node(to))));
        self.wait(time);
        self.gates.open();
        Ok(())
    }

    fn pause_each(&mut self, time: Duration) -> Result<()> {
        let mut before = None;
        for number in self.numbers() {
            self.cluster.node(number)?.pause()?;
            self.wait(time / 4);
            if let Some(before) = before.replace(number) {
                self.cluster.node(before)?.resume()?;
            }
            self.wait(time / 4);
        }
        before.map_or(Ok(()), |last| self.cluster.node(last)?.resume())
    }

    fn kill(&mut self, node: usize) -> Result<()> {
        self.cluster.kill(node)?;
        self.note_pid(node);
        Ok(())
    }

    fn restart(&mut self, numbers: &[usize]) -> Result<()> {
        self.cluster.restart_all(numbers)?;
        numbers.iter().for_each(|number| self.note_pid(*number));
        Ok(())
    }

    pub(crate) fn note_pid(&mut self, number: usize) {
        let running = |node: &mut Node| matches!(node.is_running(), Ok(true)).then(|| node.id());
        lock(&self.pids)[number - 1] = self.cluster.node(number).ok().and_then(running);
    }

    fn kill_and_restart(&mut self, node: usize, time: Duration, change: impl Fn(&Cluster) -> Result<()>) -> Result<()> {
        self.kill(node)?;
        self.wait(time);
        change(&self.cluster)?;
        self.restart(&[node])
    }

    /// Removes up to `count` data directories of a node. What the cluster promises holds as long as the other nodes have all data,
    /// so that it is waited for before, and for the repair afterwards.
    fn wipe(&mut self, node: usize, time: Duration, count: usize) -> Result<()> {
        wait_until_whole(&self.shared)?;
        self.kill_and_restart(node, time, |cluster| {
            for directory in cluster.data_directories(node).iter().take(count) {
                let context = || format!("removing {}", directory.display());
                fs::remove_dir_all(directory).with_context(context)?;
                fs::create_dir_all(directory).with_context(context)?;
            }
            Ok(())
        })?;
        wait_until_whole(&self.shared)
    }
}
