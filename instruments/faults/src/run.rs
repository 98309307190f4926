//! Carries a plan out: tells each node at its time what to do, and notes when it was done.
//!
//! Every node has a lane of its own, since a node that stands still answers late and must not hold up the others. What a
//! lane could not do is reported, and the run goes on. At the end, however it comes, everything is switched off again.
#![allow(clippy::disallowed_methods, reason = "the one place of this crate that reads the clock and starts tasks")]

use crate::plan::Plan;
use crate::schedule::{Competitor, Event, Switch};
use crate::state::switches;
use crate::target::Target;
use anyhow::{Context as _, Result, bail, ensure};
use hedgerow_env::Clock as _;
use hedgerow_env::fault::{Action, Command, Stall, Switches};
use hedgerow_env::os::OsClock;
use hedgerow_report::FaultMark;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What happened when, in seconds from the beginning of the run.
    pub marks: Vec<FaultMark>,
    /// What could not be done.
    pub failures: Vec<String>,
}

impl Report {
    /// The marks in seconds from a moment `origin` after the beginning of the run: that of a measurement after its warm-up.
    pub fn marks_from(&self, origin: Duration) -> Vec<FaultMark> {
        let shift = |mark: &FaultMark| FaultMark {
            label: mark.label.clone(),
            begin_s: mark.begin_s - origin.as_secs_f64(),
            end_s: mark.end_s - origin.as_secs_f64(),
        };
        self.marks.iter().map(shift).collect()
    }
}

/// A plan that is carried out on a thread of its own, so that a busy caller does not delay it.
#[derive(Debug)]
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: JoinHandle<Result<Report>>,
}

impl Running {
    /// Ends it, if it has not ended by itself, switches everything off, and tells what happened. Blocks.
    pub fn finish(mut self) -> Result<Report> {
        // The receiver is gone only if the plan has ended by itself.
        self.stop.take().map(|stop| stop.send(()));
        self.thread.join().unwrap_or_else(|_| bail!("the thread of the fault plan panicked"))
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Carries `plan` out on a thread of its own, for `duration` at most. `say` gets a line for each thing that is done.
pub fn start<T: Target>(
    plan: &Plan,
    target: &Arc<T>,
    duration: Duration,
    mut say: impl FnMut(&str) + Send + 'static,
) -> Result<Running> {
    check(plan, target.as_ref(), duration)?;
    let (stop, stopped) = oneshot::channel();
    let (plan, target) = (plan.clone(), Arc::clone(target));
    let body = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("starting the runtime of the fault plan")?;
        runtime.block_on(run(&plan, &target, duration, &mut say, async { drop(stopped.await) }))
    };
    let thread = std::thread::Builder::new().name("faults".to_owned()).spawn(body);
    Ok(Running { stop: Some(stop), thread: thread.context("starting the thread of the fault plan")? })
}

/// Whether `target` can do all that `plan` wants within `duration`; the error says what it cannot.
pub fn check(plan: &Plan, target: &impl Target, duration: Duration) -> Result<()> {
    plan.check_nodes(target.nodes())?;
    let longest = plan.duration_max(target.nodes());
    ensure!(duration <= longest, "the fault plan {:?} can run for {} at most", plan.name, crate::units::show(longest));
    let events = plan.schedule(target.nodes(), duration);
    events.iter().try_for_each(|event| {
        let checked = target.check(event);
        checked.with_context(|| format!("the fault plan {:?} cannot be carried out: {}", plan.name, event.label()))
    })
}

/// Carries `plan` out until `duration` is over or `stop` is ready, then switches everything off. `say` gets a line for
/// each thing that is done.
pub async fn run<T: Target>(
    plan: &Plan,
    target: &Arc<T>,
    duration: Duration,
    say: &mut (dyn FnMut(&str) + Send),
    stop: impl Future<Output = ()> + Send,
) -> Result<Report> {
    check(plan, target.as_ref(), duration)?;
    let events = plan.schedule(target.nodes(), duration);
    let mut conductor = Conductor::new(plan, target, &events);
    tokio::pin!(stop);
    for (at, edge) in edges(&events, duration) {
        let due = conductor.begin + at;
        let is_stopped = loop {
            tokio::select! {
                biased;
                () = &mut stop => break true,
                done = conductor.done.recv() => conductor.note(done, say),
                () = tokio::time::sleep_until(due) => break false,
            }
        };
        if is_stopped {
            break;
        }
        if let Some(edge) = edge {
            conductor.switch(edge);
        }
    }
    Ok(conductor.end(say).await)
}

/// One end of an event, by its place in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    End(usize),
    Begin(usize),
}

impl Edge {
    fn event(self) -> usize {
        match self {
            Self::Begin(event) | Self::End(event) => event,
        }
    }
}

/// What is to be done when, ends before beginnings, and `None` for the end of it all.
fn edges(events: &[Event], duration: Duration) -> Vec<(Duration, Option<Edge>)> {
    let mut edges: Vec<(Duration, Option<Edge>)> = Vec::with_capacity(2 * events.len() + 1);
    for (index, event) in events.iter().enumerate() {
        edges.push((event.at, Some(Edge::Begin(index))));
        // A stall ends by itself.
        if event.switch != Switch::Stall {
            edges.push((event.end(), Some(Edge::End(index))));
        }
    }
    edges.sort();
    // What ends with the run is ended by its end.
    edges.retain(|(at, _)| *at < duration);
    edges.push((duration, None));
    edges
}

/// What a lane is to do, and for which end of which event.
#[derive(Debug)]
struct Order {
    edge: Option<Edge>,
    task: Task,
    given: Instant,
}

#[derive(Debug)]
enum Task {
    Stall(Duration),
    Set(Switches),
    Kill,
    Return,
    Compete(usize, Competitor),
    EndCompeting(usize),
}

/// How an order went.
struct Done {
    edge: Option<Edge>,
    at: Instant,
    result: Result<()>,
}

/// The state of a run.
struct Conductor<'a> {
    plan: &'a Plan,
    events: &'a [Event],
    begin: Instant,
    active: Vec<usize>,
    /// What each node was told last.
    told: BTreeMap<u16, Switches>,
    /// How many faults want each node dead.
    kills: BTreeMap<u16, usize>,
    lanes: BTreeMap<u16, mpsc::UnboundedSender<Order>>,
    tasks: JoinSet<()>,
    done: mpsc::UnboundedReceiver<Done>,
    spans: BTreeMap<usize, (Instant, Option<Instant>)>,
    report: Report,
}

impl<'a> Conductor<'a> {
    fn new<T: Target>(plan: &'a Plan, target: &Arc<T>, events: &'a [Event]) -> Self {
        let (finished, done) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        let mut lanes = BTreeMap::new();
        for node in 1..=target.nodes() {
            let (orders, inbox) = mpsc::unbounded_channel();
            tasks.spawn(Lane::new(Arc::clone(target), node).serve(inbox, finished.clone()));
            lanes.insert(node, orders);
        }
        Self {
            plan,
            events,
            begin: Instant::now(),
            active: Vec::new(),
            told: BTreeMap::new(),
            kills: BTreeMap::new(),
            lanes,
            tasks,
            done,
            spans: BTreeMap::new(),
            report: Report::default(),
        }
    }

    fn order(&self, node: u16, edge: Option<Edge>, task: Task) {
        if let Some(lane) = self.lanes.get(&node) {
            // A lane ends only after its sender has been dropped.
            let _ = lane.send(Order { edge, task, given: Instant::now() });
        }
    }

    fn switch(&mut self, edge: Edge) {
        let event = &self.events[edge.event()];
        let is_begin = matches!(edge, Edge::Begin(_));
        match is_begin {
            true => self.active.push(edge.event()),
            false => self.active.retain(|active| *active != edge.event()),
        }
        match (&event.switch, event.node()) {
            (Switch::Stall, Some(node)) => self.order(node, Some(edge), Task::Stall(event.lasts)),
            (Switch::Kill, Some(node)) => {
                let wanted = self.kills.entry(node).or_default();
                *wanted = if is_begin { *wanted + 1 } else { wanted.saturating_sub(1) };
                match (is_begin, *wanted) {
                    (true, 1) => self.order(node, Some(edge), Task::Kill),
                    (false, 0) => self.order(node, Some(edge), Task::Return),
                    _ => {}
                }
            }
            (Switch::Compete(competitor), Some(node)) => {
                let task = match is_begin {
                    true => Task::Compete(edge.event(), competitor.clone()),
                    false => Task::EndCompeting(edge.event()),
                };
                self.order(node, Some(edge), task);
            }
            _ => self.tell(Some(edge)),
        }
    }

    /// Tells every node whose switches have changed.
    fn tell(&mut self, edge: Option<Edge>) {
        let nodes: Vec<u16> = self.lanes.keys().copied().collect();
        for node in nodes {
            let active = self.active.iter().map(|index| &self.events[*index]);
            let wanted = switches(self.plan, node, active);
            let told = self.told.entry(node).or_default();
            if *told != wanted {
                told.clone_from(&wanted);
                self.order(node, edge, Task::Set(wanted));
            }
        }
    }

    /// Notes how an order went.
    fn note(&mut self, done: Option<Done>, say: &mut (dyn FnMut(&str) + Send)) {
        let Some(Done { edge, at, result }) = done else { return };
        let time = at.saturating_duration_since(self.begin).as_secs_f64();
        let Some(edge) = edge else {
            if let Err(error) = result {
                self.fail(format!("{time:.3} s: switching off: {error:#}"), say);
            }
            return;
        };
        let event = &self.events[edge.event()];
        let label = event.label();
        if let Err(error) = result {
            return self.fail(format!("{time:.3} s: {label}: {error:#}"), say);
        }
        match edge {
            Edge::Begin(index) if !self.spans.contains_key(&index) => {
                let ends_itself = (event.switch == Switch::Stall).then(|| at + event.lasts);
                self.spans.insert(index, (at, ends_itself));
                say(&format!("{time:.3} s: {label}: {} for {}", event.switch, crate::units::show(event.lasts)));
            }
            Edge::Begin(_) => {}
            Edge::End(index) => {
                if let Some((_, end)) = self.spans.get_mut(&index) {
                    if end.is_none() {
                        say(&format!("{time:.3} s: {label}: over"));
                    }
                    *end = Some(end.map_or(at, |end| end.max(at)));
                }
            }
        }
    }

    fn fail(&mut self, failure: String, say: &mut (dyn FnMut(&str) + Send)) {
        say(&failure);
        self.report.failures.push(failure);
    }

    /// Switches everything off, waits for it, and tells what happened.
    async fn end(mut self, say: &mut (dyn FnMut(&str) + Send)) -> Report {
        let left: Vec<usize> = self.active.clone();
        for index in left {
            if self.events[index].switch != Switch::Stall {
                self.switch(Edge::End(index));
            }
        }
        self.lanes.clear();
        while let Some(done) = self.done.recv().await {
            self.note(Some(done), say);
        }
        while self.tasks.join_next().await.is_some() {}
        let seconds = |at: Instant| at.saturating_duration_since(self.begin).as_secs_f64();
        for (index, (begin, end)) in &self.spans {
            let end_s = end.map_or_else(|| seconds(Instant::now()), seconds);
            let label = self.events[*index].label();
            self.report.marks.push(FaultMark { label, begin_s: seconds(*begin), end_s });
        }
        self.report.marks.sort_by(|a, b| a.begin_s.total_cmp(&b.begin_s));
        self.report
    }
}

/// What tells one node, one thing after the other.
struct Lane<T> {
    target: Arc<T>,
    node: u16,
    is_dead: bool,
    switches: Switches,
    stalls: u64,
    competitors: BTreeMap<usize, crate::hog::Hog>,
}

impl<T: Target> Lane<T> {
    fn new(target: Arc<T>, node: u16) -> Self {
        // The node remembers the highest number that it has seen, also from runs before this one.
        let stalls = OsClock.unix_micros();
        Self { target, node, is_dead: false, switches: Switches::default(), stalls, competitors: BTreeMap::new() }
    }

    async fn serve(mut self, mut inbox: mpsc::UnboundedReceiver<Order>, done: mpsc::UnboundedSender<Done>) {
        while let Some(Order { edge, task, given }) = inbox.recv().await {
            // A node cannot stall while it is dead, and stalls that wait for its return would all come at once.
            if matches!(&task, Task::Stall(lasts) if self.is_dead || given.elapsed() > *lasts) {
                continue;
            }
            let result = self.carry_out(task).await;
            // The receiver waits for all lanes.
            let _ = done.send(Done { edge, at: Instant::now(), result });
        }
    }

    async fn carry_out(&mut self, task: Task) -> Result<()> {
        match task {
            Task::Stall(lasts) => {
                self.stalls += 1;
                let lasts_us = u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX);
                self.command(Action::Stall(Stall { number: self.stalls, lasts_us })).await
            }
            Task::Set(switches) => {
                self.switches = switches.clone();
                // A dead node is told when it is back.
                if self.is_dead { Ok(()) } else { self.command(Action::Set(switches)).await }
            }
            Task::Kill => {
                self.target.kill(self.node).await?;
                self.is_dead = true;
                Ok(())
            }
            Task::Return => {
                self.target.start(self.node).await?;
                self.is_dead = false;
                if self.switches.is_off() { Ok(()) } else { self.command(Action::Set(self.switches.clone())).await }
            }
            Task::Compete(event, competitor) => {
                self.competitors.insert(event, self.target.compete(self.node, &competitor)?);
                Ok(())
            }
            Task::EndCompeting(event) => {
                let hog = self.competitors.remove(&event);
                hog.map_or(Ok(()), crate::hog::Hog::end)
            }
        }
    }

    async fn command(&self, action: Action) -> Result<()> {
        self.target.command(&Command { node: self.node, action }).await
    }
}

/// Runs what blocks beside the lanes.
pub(crate) async fn blocking<R: Send + 'static>(work: impl FnOnce() -> Result<R> + Send + 'static) -> Result<R> {
    tokio::task::spawn_blocking(work).await.context("a thread ended")?
}
