//! What is allowed in a plan, and the defaults of what it leaves out.

use crate::draw::Draw;
use crate::plan::{CLIENTS, Fault, Kind, Nodes, PlanError, RawFault, RawKind, RawNodes, RawNodesWord, Zone, node_name};
use crate::units;
use hedgerow_env::fault::{Clients, DELAY_MAX};
use std::time::Duration;

/// The least time between two occurrences, as far as the plan fixes it.
const EVERY_MIN: Duration = Duration::from_millis(10);
/// Bytes between two calls of fsync, where a plan says nothing.
const WRITE_SIZE: u64 = 1 << 20;
/// The most bytes between two calls of fsync.
const WRITE_SIZE_MAX: u64 = 64 << 20;
/// The most threads of a process that competes for the CPU.
const THREADS_MAX: u16 = 256;

/// Each node, and the clients that are not named by address, are at one place only.
pub(crate) fn places(places: &[Zone]) -> Result<(), PlanError> {
    for (index, place) in places.iter().enumerate() {
        let refused = |reason: String| Err(PlanError::Zone { name: place.name.clone(), reason });
        if place.name.is_empty() || place.name == CLIENTS || node_name(&place.name).is_some() {
            return refused(format!(
                "a place cannot be called so: `{CLIENTS}` and `node N` name those without a place"
            ));
        }
        for other in &places[..index] {
            if other.name == place.name {
                return refused("there are two places of this name".to_owned());
            }
            if let Some(node) = place.nodes.iter().find(|node| other.nodes.contains(node)) {
                return refused(format!("node {node} is at {:?} already", other.name));
            }
            if place.clients == Clients::Others && other.clients == Clients::Others {
                return refused(format!("all other clients are at {:?} already", other.name));
            }
        }
    }
    Ok(())
}

impl RawFault {
    pub(crate) fn check(mut self, places: &[Zone]) -> Result<Fault, String> {
        let kind = self.take_kind(places)?;
        self.refuse_leftovers(&kind)?;
        let nodes = match self.nodes {
            None | Some(RawNodes::Word(RawNodesWord::Every)) => Nodes::Every,
            Some(RawNodes::Word(RawNodesWord::Any)) => Nodes::Any,
            Some(RawNodes::These(these)) if these.is_empty() => return Err("nodes: the list is empty".to_owned()),
            Some(RawNodes::These(these)) => Nodes::These(these),
        };
        let time = |name: &str, text: Option<String>| {
            text.map(|text| units::duration(&text)).transpose().map_err(|reason| format!("{name}: {reason}"))
        };
        let begin = time("begin", self.begin)?.unwrap_or_default();
        let end = time("end", self.end)?;
        if end.is_some_and(|end| end <= begin) {
            return Err("end: it must be after begin".to_owned());
        }
        let needs_lasts = self.every.is_some() || matches!(kind, Kind::Stall | Kind::Kill);
        if needs_lasts && self.lasts.is_none() {
            return Err("lasts is missing: how long it goes on each time".to_owned());
        }
        if self.every.is_some_and(|every| every.middle() < EVERY_MIN) {
            return Err(format!("every: at least {} are needed", units::show(EVERY_MIN)));
        }
        if let (Kind::Stall, Some(lasts)) = (&kind, self.lasts)
            && lasts.min() > DELAY_MAX
        {
            return Err(format!("lasts: a stall of at most {} is allowed", units::show(DELAY_MAX)));
        }
        Ok(Fault { kind, nodes, begin, end, every: self.every, lasts: self.lasts })
    }

    fn take_kind(&mut self, places: &[Zone]) -> Result<Kind, String> {
        let delay = |delay: Option<Draw>| match delay {
            Some(delay) if delay.min() > DELAY_MAX => {
                Err(format!("delay: at most {} are allowed", units::show(DELAY_MAX)))
            }
            Some(delay) => Ok(delay),
            None => Err("delay is missing, for example \"5ms\"".to_owned()),
        };
        Ok(match self.kind {
            RawKind::Stall => Kind::Stall,
            RawKind::Slow => Kind::Slow { delay: delay(self.delay.take())? },
            RawKind::Kill => Kind::Kill,
            RawKind::Disk => Kind::Disk {
                write_size: match self.write_size.take() {
                    Some(text) => units::size(&text).and_then(check_write_size)?,
                    None => WRITE_SIZE,
                },
                pause: self.pause.take().unwrap_or(Draw::Constant(Duration::ZERO)),
            },
            RawKind::Cpu => {
                let (threads, percent) = (self.threads.take().unwrap_or(1), self.percent.take().unwrap_or(100));
                if !(1..=THREADS_MAX).contains(&threads) {
                    return Err(format!("threads: allowed are 1 to {THREADS_MAX}"));
                }
                Kind::Cpu { threads, percent: check_percent(percent)? }
            }
            RawKind::Share => {
                let percent = self.percent.take().ok_or("percent is missing: how much of one core, 1 to 100")?;
                Kind::Share { percent: check_percent(percent)? }
            }
            RawKind::Link => {
                if self.nodes.is_some() {
                    return Err("nodes: a link has `between` instead, two places".to_owned());
                }
                let between =
                    self.between.take().ok_or("between is missing: two places, for example [\"east\", \"west\"]")?;
                check_place(&between.0, places)?;
                check_place(&between.1, places)?;
                let bandwidth = self.bandwidth.take().map(|text| units::bandwidth(&text)).transpose()?;
                let plain = bandwidth.map(|_| Draw::Constant(Duration::ZERO));
                let is_one_way = self.one_way.take().unwrap_or(false);
                Kind::Link { between, delay: delay(self.delay.take().or(plain))?, bandwidth, is_one_way }
            }
        })
    }

    /// Whatever the kind has not taken does not belong to it.
    fn refuse_leftovers(&self, kind: &Kind) -> Result<(), String> {
        let left = [
            ("delay", self.delay.is_some()),
            ("between", self.between.is_some()),
            ("bandwidth", self.bandwidth.is_some()),
            ("one_way", self.one_way.is_some()),
            ("write_size", self.write_size.is_some()),
            ("pause", self.pause.is_some()),
            ("threads", self.threads.is_some()),
            ("percent", self.percent.is_some()),
        ];
        let own = match kind {
            Kind::Stall | Kind::Kill => "",
            Kind::Slow { .. } => ", delay",
            Kind::Link { .. } => ", between, delay, bandwidth, one_way",
            Kind::Disk { .. } => ", write_size, pause",
            Kind::Cpu { .. } => ", threads, percent",
            Kind::Share { .. } => ", percent",
        };
        match left.iter().find(|(_, is_there)| *is_there) {
            Some((field, _)) => {
                let kind = kind.name();
                Err(format!("{field} means nothing for {kind}; it has nodes, begin, end, every, lasts{own}"))
            }
            None => Ok(()),
        }
    }
}

fn check_percent(percent: u8) -> Result<u8, String> {
    if (1..=100).contains(&percent) { Ok(percent) } else { Err("percent: allowed are 1 to 100".to_owned()) }
}

fn check_write_size(size: u64) -> Result<u64, String> {
    if (512..=WRITE_SIZE_MAX).contains(&size) {
        Ok(size)
    } else {
        Err("write_size: allowed are 512B to 64MiB".to_owned())
    }
}

fn check_place(name: &str, places: &[Zone]) -> Result<(), String> {
    if places.iter().any(|place| place.name == name) {
        return Ok(());
    }
    if name == CLIENTS {
        return match places.iter().find(|place| place.clients == Clients::Others) {
            Some(place) => Err(format!("between: the clients are at {:?}", place.name)),
            None => Ok(()),
        };
    }
    match node_name(name) {
        Some(node) => match places.iter().find(|place| place.nodes.contains(&node)) {
            Some(place) => Err(format!("between: node {node} is at {:?}", place.name)),
            None => Ok(()),
        },
        None => Err(format!("between: there is no place {name:?}; `clients` and `node N` need none")),
    }
}
