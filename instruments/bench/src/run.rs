//! Runs a load: in this process, or in several that start at the same moment.

use crate::generator::Generator;
use crate::load::Load;
use crate::measurement::Measurement;
use crate::mix::Part;
use crate::pace::machine_now;
use anyhow::Result;
use hedgerow_report::Second;

/// Time between the decision to start and the first request, in nanoseconds.
const LEAD: u64 = 20_000_000;

/// Runs `load` against the cluster at these addresses, whose table [`crate::prepare`] has made. After `stop` it ends soon,
/// with what has been measured until then; `std::future::pending()` never stops it. Calls `on_second` after each second of
/// the measurement.
pub async fn run(
    cluster: &[String],
    load: &Load,
    stop: impl Future<Output = ()>,
    on_second: impl FnMut(&Second),
) -> Result<Measurement> {
    load.check()?;
    if load.processes > 1 {
        return crate::processes::run(cluster, load, stop, on_second).await;
    }
    let generator = Generator::connect(cluster, load.share(0), Part { index: 0, count: 1 }).await?;
    let result = generator.run(machine_now() + LEAD, stop, on_second).await?;
    Ok(Measurement::of(load, vec![result]))
}
