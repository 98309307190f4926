//! One generator: connects, runs the engine on this process' runtime, and watches it.

use crate::arrivals::Arrivals;
use crate::cluster::Connections;
use crate::cpu;
use crate::engine::{Engine, Source, Times, Watched};
use crate::hedging::Counts;
use crate::load::Load;
use crate::mix::{Mix, Part};
use crate::pace::{OsPace, machine_now};
use crate::record::Record;
use anyhow::{Context as _, Result};
use hedgerow_env::os::PreferredThread;
use hedgerow_report::Second;
use hedgerow_types::random::Random;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How much longer than the operations' timeout replies are waited for: the client reports a timeout a little late.
const PATIENCE_BEYOND_TIMEOUT: Duration = Duration::from_secs(1);

const SECOND: u64 = 1_000_000_000;

/// A generator that is connected and can start at once.
pub(crate) struct Generator {
    load: Load,
    part: Part,
    connections: Connections,
}

/// What one generator measured.
#[derive(Clone, Debug)]
pub(crate) struct PartResult {
    pub(crate) record: Record,
    /// How long it measured.
    pub(crate) duration: Duration,
    pub(crate) generator_cpu_s: f64,
    pub(crate) server_cpu_s: BTreeMap<String, f64>,
}

impl Times {
    /// The times of a load that starts at `start`.
    pub(crate) fn of(load: &Load, start: u64) -> Self {
        let begin = start + nanos(load.warm_up);
        let patience = nanos(load.timeout + PATIENCE_BEYOND_TIMEOUT);
        Self { start, begin, end: begin + nanos(load.duration), patience }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

impl Generator {
    /// Connects. `load` is this generator's own share.
    pub(crate) async fn connect(cluster: &[String], load: Load, part: Part) -> Result<Self> {
        let connections = Connections::open(cluster, &load, load.connections_or_default()).await?;
        Ok(Self { load, part, connections })
    }

    /// Runs from the moment `start` of the machine's clock until all is over, or soon after `stop`. Calls `on_second` after
    /// each second of the measurement.
    pub(crate) async fn run(
        self,
        start: u64,
        stop: impl Future<Output = ()>,
        mut on_second: impl FnMut(&Second),
    ) -> Result<PartResult> {
        let Self { load, part, connections } = self;
        let times = Times::of(&load, start);
        let watched = Watched::new();
        let mut random = Random::new(load.seed);
        let seed = (0..=part.index).map(|_| random.next_u64()).last().unwrap_or(load.seed);
        let phase = f64::from(part.index) / f64::from(part.count);
        let source = Source::new(load.arrivals, load.operations, phase, seed);
        let mix = Mix::new(&load.workload, load.seed, part);
        let pace = OsPace::new(load.spin).context("making a timer")?;
        connections.count_from(times.begin);
        let (counter, reads_sent) = (connections.counter(), connections.reads_sent());
        let hedge_counts = connections.hedge_counts();
        let call = move |client, request| connections.call(client, request);
        // A closed loop waits its turn like everybody, or it would take from the servers what it measures.
        let _preferred = matches!(load.arrivals, Arrivals::Open { .. }).then(PreferredThread::new);
        sleep_until(start).await;
        let engine = Engine::new(call, pace, times, mix, source, watched.clone());
        let mut engine = tokio::spawn(tokio::task::unconstrained(engine));
        let mut meter = Meter::new(load.server_processes, hedge_counts);
        let mut stop = pin!(stop);
        let mut is_stopped = false;
        let mut seconds = 0;
        let mut pass_second = || {
            let second = watched.record().second(seconds);
            on_second(&second);
            seconds += 1;
            times.begin + u64::from(seconds + 1) * SECOND
        };
        let mut next_second = times.begin + SECOND;
        let end = loop {
            tokio::select! {
                end = &mut engine => break end.context("the generator ended")?,
                () = &mut stop, if !is_stopped => {
                    is_stopped = true;
                    meter.finish();
                    watched.stop();
                }
                () = meter.follow(times), if !is_stopped => {}
                () = sleep_until(next_second), if !is_stopped && next_second <= times.end => next_second = pass_second(),
            }
        };
        while next_second <= end {
            next_second = pass_second();
        }
        let Usage { own: generator_cpu_s, servers: server_cpu_s, hedging } = meter.finish();
        let mut record = std::mem::replace(&mut *watched.record(), Record::new());
        record.reads = counter.reads();
        record.hedging = hedging;
        record.reads_sent = reads_sent.load(Ordering::Relaxed);
        let duration = Duration::from_nanos(end.saturating_sub(times.begin));
        Ok(PartResult { record, duration, generator_cpu_s, server_cpu_s })
    }
}

/// Waits for a moment of the machine's clock, to a millisecond.
pub(crate) async fn sleep_until(at: u64) {
    tokio::time::sleep(Duration::from_nanos(at.saturating_sub(machine_now()))).await;
}

/// CPU time of this process and of the servers over the measurement, and what the clients counted meanwhile.
pub(crate) struct Meter<H> {
    processes: BTreeMap<String, u32>,
    hedging: H,
    before: Option<Usage>,
    used: Option<Usage>,
}

/// What a [`Meter`] reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU seconds of this process.
    pub(crate) own: f64,
    /// Those of each server.
    pub(crate) servers: BTreeMap<String, f64>,
    /// Extra attempts; `None` where the load sends none.
    pub(crate) hedging: Option<Counts>,
}

impl<H: Fn() -> Option<Counts>> Meter<H> {
    /// `hedging` is asked for the counts so far.
    pub(crate) fn new(processes: BTreeMap<String, u32>, hedging: H) -> Self {
        Self { processes, hedging, before: None, used: None }
    }

    fn read(&self) -> Usage {
        let (own, servers) = (cpu::of_this_process(), cpu::of_processes(&self.processes));
        Usage { own, servers, hedging: (self.hedging)() }
    }

    /// Reads at the beginning and at the end of the measurement; never ends. May be dropped and called again.
    pub(crate) async fn follow(&mut self, times: Times) {
        if self.before.is_none() {
            sleep_until(times.begin).await;
            self.before = Some(self.read());
        }
        if self.used.is_none() {
            sleep_until(times.end).await;
            self.finish();
        }
        std::future::pending().await
    }

    /// What was used; up to now if the end has not been reached.
    pub(crate) fn finish(&mut self) -> Usage {
        if let Some(used) = &self.used {
            return used.clone();
        }
        let now = self.read();
        let used = match &self.before {
            Some(before) => Usage {
                own: now.own - before.own,
                servers: cpu::between(&before.servers, &now.servers),
                hedging: now.hedging.map(|counts| counts.since(&before.hedging.clone().unwrap_or_default())),
            },
            None => Usage::default(),
        };
        self.used = Some(used.clone());
        used
    }
}
