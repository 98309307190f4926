//! Reads and writes that do not wait for a slow node. Needs a cluster: `hedgerow dev` starts one.
//!
//! ```text
//! cargo run -p hedgerow-client --example hedging -- --cluster 127.0.0.1:34601
//! ```
//!
//! To see hedges, stop a node for a while: `kill -STOP PID`, then `kill -CONT PID`.

use hedgerow_client::{
    Attempt, AttemptEvent, AttemptObserver, BudgetOptions, Client, ClientOptions, Expiry, Fallback, HedgeOptions, Kind,
    Observer, ReadOptions, TableSpec, TieMode,
};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Over all tables and all kinds: at most 5 extra attempts per 100 requests, and 20 at once.
    let budget = BudgetOptions { ratio: 0.05, burst: Some(20.0) };
    let client = Client::connect_with(&cluster(), ClientOptions { budget, ..ClientOptions::default() }).await?;
    client.create_table("hedging", &TableSpec { if_not_exists: true, ..TableSpec::default() }).await?;

    // As Pegasus' clients do it: a read without a reply after 10 ms goes to one more replica. 0 or less is off.
    let simple = client.open_table_with("hedging", 10).await?;
    simple.set("user-17", "name", "Ada").await?;
    println!("name: {:?}", simple.get("user-17", "name").await?);

    // As fast as 2 % of extra reads can make it; writes too, each of which is applied once.
    let told = AttemptObserver::new(|attempt: &Attempt<'_>| {
        if attempt.kind != Kind::First && matches!(attempt.event, AttemptEvent::Start) {
            println!("attempt {} at {}: {:?}", attempt.number, attempt.node, attempt.kind);
        }
    });
    let options = HedgeOptions {
        reads: "adaptive=2%".parse()?,
        writes: "50ms".parse()?,
        tie: TieMode::Auto,
        observer: Some(told),
        ..HedgeOptions::default()
    };
    let table = simple.hedging(options);
    for _ in 0..1_000 {
        table.incr("user-17", "visits", 1, Expiry::Keep).await?;
        table.get("user-17", "name").await?;
    }

    // The latest value within 20 ms, or else one that is at most a second old; and which of the two it was.
    let fallback = Some(Fallback { after: Duration::from_millis(20), bound: Duration::from_secs(1) });
    let level = Observer::new(|served| println!("served at level {:?} by {}", served.level, served.node));
    let page = simple
        .hedging(HedgeOptions { fallback, ..HedgeOptions::default() })
        .reading(ReadOptions { observer: Some(level), ..ReadOptions::default() });
    println!("visits: {:?}", page.get("user-17", "visits").await?);

    let metrics = client.hedge_metrics();
    println!("{:?}", metrics.counters);
    for (node, host) in metrics.hosts {
        println!("{node}: {} attempts, {} of them extra, {} given up", host.attempts, host.extra, host.cancelled);
    }
    Ok(())
}

/// The addresses behind `--cluster`, or those of `hedgerow dev`.
fn cluster() -> Vec<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--cluster").skip(1);
    let addresses = arguments.next().unwrap_or_else(|| "127.0.0.1:34601,127.0.0.1:34602,127.0.0.1:34603".to_owned());
    addresses.split(',').map(str::to_owned).collect()
}
