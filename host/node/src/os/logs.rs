//! The logs' committers: one for each device, so that what their logs have to sync is at the device together, and a device that stalls
//! holds up no log of another one.

use super::Arrival;
use crate::{Event, LogId};
use hedgerow_env::Disk;
use hedgerow_wal::{Committer, Log, OnRound, Submission};
use std::collections::BTreeMap;
use std::io;
use tokio::sync::mpsc::UnboundedSender;

/// All committers of a node.
pub(super) struct Committers {
    all: Vec<Committer>,
    /// Which one has a log.
    by_log: BTreeMap<LogId, usize>,
}

impl Committers {
    /// Starts those of `logs`, which are in the order of their ids. What they tell is an event.
    pub(super) fn start(logs: Vec<Log>, disk: &dyn Disk, arrivals: &UnboundedSender<Arrival>) -> io::Result<Self> {
        let mut committers = Self { all: Vec::new(), by_log: BTreeMap::new() };
        for logs in by_device(logs, disk) {
            committers.by_log.extend(logs.keys().map(|number| (LogId(*number), committers.all.len())));
            let arrivals = arrivals.clone();
            let tell = move |log, round| drop(arrivals.send(Arrival::Event(Event::Round(LogId(log), round))));
            let on_round: OnRound = Box::new(tell);
            committers.all.push(Committer::start(logs, on_round)?);
        }
        Ok(committers)
    }

    /// Hands a submission to the committer of log `log`.
    pub(super) fn submit(&self, log: LogId, submission: Submission) {
        let committer = self.by_log.get(&log).map(|place| &self.all[*place]);
        // A log that takes nothing has failed, and the node is told so by its last round.
        _ = committer.map(|committer| committer.submit(log.0, submission));
    }

    /// Commits what waits and ends all threads.
    pub(super) fn stop(&self) {
        self.all.iter().for_each(Committer::stop);
    }
}

/// The logs with their numbers, those of one device together. One of which that cannot be told has a device of its own: it holds up nothing.
fn by_device(logs: Vec<Log>, disk: &dyn Disk) -> Vec<BTreeMap<usize, Log>> {
    let mut devices: Vec<(Option<u64>, BTreeMap<usize, Log>)> = Vec::new();
    for (number, log) in logs.into_iter().enumerate() {
        let device = disk.device(log.dir()).ok();
        match devices.iter_mut().find(|(other, _)| device.is_some() && *other == device) {
            Some((_, logs)) => _ = logs.insert(number, log),
            None => devices.push((device, BTreeMap::from([(number, log)]))),
        }
    }
    devices.into_iter().map(|(_, logs)| logs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hedgerow_env::sim::SimDisk;
    use hedgerow_wal::Options;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn logs_of_one_device_have_one_committer() {
        let disk = SimDisk::new();
        let open = |name: &str| {
            let dir = Path::new("/").join(name).join("log");
            Log::open(Arc::new(disk.clone()), &dir, Options::default()).expect("a sound disk").0
        };
        let names = ["one/a", "two/a", "one/b", "three", "two/b", "gone"];
        let logs: Vec<Log> = names.into_iter().map(open).collect();
        disk.set_mounted(Path::new("/one"), true);
        disk.set_mounted(Path::new("/two"), true);
        disk.remove_dir_all(Path::new("/gone")).expect("a sound disk");
        let devices = by_device(logs, &disk);
        let numbers: Vec<Vec<usize>> = devices.iter().map(|logs| logs.keys().copied().collect()).collect();
        assert_eq!(numbers, [vec![0, 2], vec![1, 4], vec![3], vec![5]]);
        let dirs = devices.iter().flatten().map(|(number, log)| (*number, log.dir().to_path_buf()));
        assert!(dirs.into_iter().all(|(number, dir)| dir == Path::new("/").join(names[number]).join("log")));
    }
}
