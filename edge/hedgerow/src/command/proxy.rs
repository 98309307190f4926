//! `hedgerow proxy`: a forwarding proxy that delays, in front of any TCP server.

use crate::command::fault::read_plan;
use crate::duration::seconds;
use crate::exit::Exit;
use crate::output::{print, say};
use anyhow::{Result, ensure};
use clap::Args;
use hedgerow_env::fault::Shape;
use hedgerow_faults::{Direction, Plan, Proxies, Proxy, Target as _, units};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Arguments of `proxy`.
#[derive(Args, Debug)]
pub(crate) struct ProxyArguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true)]
    listen: Vec<SocketAddr>,
    /// The servers that are forwarded to, one for each address in --listen.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true)]
    to: Vec<SocketAddr>,
    /// How much later everything arrives, in each direction, for example 5ms.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    delay: Option<Duration>,
    /// What passes in each direction, for example 297mbit (per second).
    #[arg(long, value_name = "RATE", value_parser = units::bandwidth)]
    bandwidth: Option<u64>,
    /// A fault plan (stall, slow and link): a file or the name of one that comes with the program. The first proxy stands for
    /// node 1.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["delay", "bandwidth"])]
    plan: Option<String>,
    /// Another seed than the plan's own.
    #[arg(long, requires = "plan")]
    seed: Option<u64>,
    /// How long the plan runs [default: a week, or less if its faults are many].
    #[arg(long, value_parser = seconds, requires = "plan")]
    seconds: Option<Duration>,
}

/// Forwards until it is told to stop.
pub(crate) async fn run(arguments: ProxyArguments) -> Result<Exit> {
    let ProxyArguments { listen, to, delay, bandwidth, plan, seed, seconds } = arguments;
    ensure!(listen.len() == to.len(), "--listen and --to need the same number of addresses");
    let shape = Shape {
        delay_us: u64::try_from(delay.unwrap_or_default().as_micros()).unwrap_or(u64::MAX),
        bytes_per_second: bandwidth,
    };
    shape.check().map_err(anyhow::Error::msg)?;
    let plan: Option<Plan> = plan.map(|name| read_plan(&name, seed)).transpose()?;
    let mut proxies = Vec::new();
    for (listen, to) in listen.into_iter().zip(to) {
        let proxy = Proxy::start(listen, to)?;
        proxy.set(Direction::Forth, shape);
        proxy.set(Direction::Back, shape);
        print(&format!("ready: {} forwards to {to}", proxy.address()))?;
        proxies.push(proxy);
    }
    let proxies = Arc::new(Proxies(proxies));
    let is_interrupted = AtomicBool::new(false);
    let interrupted = async {
        // Without a handler for it, an interrupt ends the process, which is as well.
        let _ = tokio::signal::ctrl_c().await;
        is_interrupted.store(true, Ordering::Relaxed);
    };
    if let Some(plan) = plan {
        let duration = seconds.unwrap_or_else(|| plan.duration_max(proxies.nodes()));
        hedgerow_faults::run(&plan, &proxies, duration, &mut |line: &str| say(line), interrupted).await?;
    } else {
        interrupted.await;
    }
    // A plan that is over leaves a proxy without faults.
    if !is_interrupted.load(Ordering::Relaxed) {
        tokio::signal::ctrl_c().await?;
    }
    Ok(Exit::Done)
}
