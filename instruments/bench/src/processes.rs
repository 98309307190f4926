//! Several generator processes: the parent starts them from its own binary, has all of them start at the same moment of the
//! machine's clock, and merges their histograms.
//!
//! ```text
//! parent                     worker
//!   job (what to do)    ──>    connects
//!                       <──  ready
//!   start (when)        ──>    runs
//!                       <──  second ... second
//!   stop, if interrupted──>
//!                       <──  done (what was counted) or failed (why)
//! ```
//!
//! Each message is a line of JSON. A worker whose input ends has lost its parent, and ends too.

use crate::engine::Times;
use crate::generator::{Generator, Meter, PartResult, Usage};
use crate::load::Load;
use crate::measurement::Measurement;
use crate::mix::Part;
use crate::pace::machine_now;
use crate::parcel::Parcel;
use anyhow::{Context as _, Result, bail};
use hedgerow_report::Second;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

/// Time between telling the workers when to start and that moment, in nanoseconds.
const LEAD: u64 = 200_000_000;
/// How long workers may take to connect.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// What the parent tells a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    /// What to do.
    Job { cluster: Vec<String>, load: Box<Load>, index: u32, count: u32 },
    /// When to start, in nanoseconds of the machine's clock.
    Start(u64),
    /// End soon.
    Stop,
}

/// What a worker tells its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum News {
    Ready,
    Second(Second),
    Done(Box<Parcel>),
    Failed(String),
}

/// What a worker process does: everything that its parent says on `input`, until that ends.
pub async fn worker(input: impl AsyncRead + Unpin, mut output: impl AsyncWrite + Unpin) -> Result<()> {
    let mut orders = BufReader::new(input).lines();
    let news = match work(&mut orders, &mut output).await {
        Ok(result) => News::Done(Box::new(Parcel::of(&result)?)),
        Err(error) => News::Failed(format!("{error:#}")),
    };
    write_line(&mut output, &news).await
}

async fn work(
    orders: &mut Lines<BufReader<impl AsyncRead + Unpin>>,
    output: &mut (impl AsyncWrite + Unpin),
) -> Result<PartResult> {
    let Order::Job { cluster, load, index, count } = read_order(orders).await? else {
        bail!("the first order is no job")
    };
    let generator = Generator::connect(&cluster, *load, Part { index, count }).await?;
    write_line(output, &News::Ready).await?;
    let Order::Start(start) = read_order(orders).await? else { bail!("the second order is no start") };
    let (seconds, mut passed) = mpsc::unbounded_channel();
    // A parent that is gone, like one that says so, has the worker stop; the rest of its words cannot matter.
    let stop = async { drop(read_order(orders).await) };
    let run = generator.run(start, stop, |second| drop(seconds.send(second.clone())));
    let mut run = pin!(run);
    let result = loop {
        tokio::select! {
            result = &mut run => break result,
            Some(second) = passed.recv() => write_line(output, &News::Second(second)).await?,
        }
    };
    while let Ok(second) = passed.try_recv() {
        write_line(output, &News::Second(second)).await?;
    }
    result
}

async fn read_order(orders: &mut Lines<BufReader<impl AsyncRead + Unpin>>) -> Result<Order> {
    let line = orders.next_line().await.context("reading an order")?.context("the parent is gone")?;
    serde_json::from_str(&line).context("an order is not understood")
}

async fn write_line(output: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message).context("writing a message")?;
    line.push(b'\n');
    output.write_all(&line).await.context("writing a message")?;
    output.flush().await.context("writing a message")
}

/// A worker as its parent hears it. It is killed when this is dropped.
struct Worker {
    _process: Child,
    news: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a worker and gives it its job; further orders go to its input.
    async fn start(cluster: &[String], load: &Load, index: u32) -> Result<(ChildStdin, Self)> {
        let program = match &load.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("finding the own binary")?,
        };
        let mut process = Command::new(&program)
            .args(["bench", "worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let mut orders = process.stdin.take().context("a worker has no input")?;
        let news = BufReader::new(process.stdout.take().context("a worker has no output")?).lines();
        let share = Load { server_processes: BTreeMap::new(), program: None, ..load.share(index) };
        let job = Order::Job { cluster: cluster.to_vec(), load: Box::new(share), index, count: load.processes };
        write_line(&mut orders, &job).await?;
        Ok((orders, Self { _process: process, news }))
    }

    async fn next(&mut self) -> Result<News> {
        let line = self.news.next_line().await.context("reading from a worker")?;
        let line = line.context("a worker ended without a result")?;
        match serde_json::from_str(&line).context("a worker's words are not understood")? {
            News::Failed(why) => bail!("a worker failed: {why}"),
            news => Ok(news),
        }
    }

    /// Passes on what the worker says, up to its result or a failure.
    async fn listen(mut self, listener: mpsc::UnboundedSender<Result<News>>) {
        loop {
            let news = self.next().await;
            let is_last = !matches!(news, Ok(News::Second(_)));
            if listener.send(news).is_err() || is_last {
                return;
            }
        }
    }
}

/// Runs the generators of `load`, each in a process of its own.
pub(crate) async fn run(
    cluster: &[String],
    load: &Load,
    stop: impl Future<Output = ()>,
    mut on_second: impl FnMut(&Second),
) -> Result<Measurement> {
    let (mut orders, workers) = start_all(cluster, load).await?;
    let start = machine_now() + LEAD;
    for worker in &mut orders {
        write_line(worker, &Order::Start(start)).await?;
    }
    let (sender, mut news) = mpsc::unbounded_channel();
    for worker in workers {
        tokio::spawn(worker.listen(sender.clone()));
    }
    drop(sender);
    let mut meter = Meter::new(load.server_processes.clone(), || None);
    let times = Times::of(load, start);
    let mut seconds = Seconds { count: load.processes as usize, waiting: BTreeMap::new() };
    let mut results = Vec::new();
    let mut stop = pin!(stop);
    let mut is_stopped = false;
    while results.len() < load.processes as usize {
        tokio::select! {
            message = news.recv() => match message.context("a worker ended without a result")?? {
                News::Second(second) => seconds.add(second, &mut on_second),
                News::Done(parcel) => results.push(parcel.open()?),
                News::Ready | News::Failed(_) => bail!("a worker said something out of turn"),
            },
            () = &mut stop, if !is_stopped => {
                is_stopped = true;
                meter.finish();
                for worker in &mut orders {
                    write_line(worker, &Order::Stop).await?;
                }
            }
            () = meter.follow(times), if !is_stopped => {}
        }
    }
    let Usage { servers: server_cpu_s, .. } = meter.finish();
    let mut measurement = Measurement::of(load, results);
    measurement.set_server_cpu(server_cpu_s);
    Ok(measurement)
}

/// Starts all workers and waits until they are connected.
async fn start_all(cluster: &[String], load: &Load) -> Result<(Vec<ChildStdin>, Vec<Worker>)> {
    let (mut orders, mut workers) = (Vec::new(), Vec::new());
    for index in 0..load.processes {
        let (worker_orders, worker) = Worker::start(cluster, load, index).await?;
        orders.push(worker_orders);
        workers.push(worker);
    }
    let ready = async {
        for worker in &mut workers {
            let News::Ready = worker.next().await? else { bail!("a worker began too early") };
        }
        Ok(())
    };
    tokio::time::timeout(READY_WITHIN, ready).await.context("the workers took too long to connect")??;
    Ok((orders, workers))
}

/// Seconds of the workers, until all have told theirs.
struct Seconds {
    count: usize,
    waiting: BTreeMap<u32, Vec<Second>>,
}

impl Seconds {
    fn add(&mut self, second: Second, on_second: &mut impl FnMut(&Second)) {
        let index = second.second;
        let parts = self.waiting.entry(index).or_default();
        parts.push(second);
        if parts.len() == self.count
            && let Some(parts) = self.waiting.remove(&index)
        {
            on_second(&merged(index, &parts));
        }
    }
}

/// One second of all workers, to show while they run: percentiles cannot be merged, so the highest stand for all. The
/// result's come from merged histograms.
fn merged(second: u32, parts: &[Second]) -> Second {
    let highest = |of: fn(&Second) -> f64| parts.iter().map(of).fold(0.0, f64::max);
    Second {
        second,
        count: parts.iter().map(|part| part.count).sum(),
        errors: parts.iter().map(|part| part.errors).sum(),
        p50_us: highest(|part| part.p50_us),
        p99_us: highest(|part| part.p99_us),
        max_us: highest(|part| part.max_us),
    }
}
