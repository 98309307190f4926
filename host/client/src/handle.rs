//! What every table handle holds, and how it runs an operation: as one attempt at a time, or as a race of several.

use crate::call::{Answer, Call};
use crate::error::Result;
use crate::hedging::{HedgeOptions, TableOptions};
use crate::metrics::Hedging;
use crate::race;
use crate::reading::{ReadOptions, Reading};
use crate::routes::{Destination, Routes};
use crate::session::Session;
use hedgerow_routing::Address;
use hedgerow_wire::{Body, Reply};
use std::sync::Arc;

/// What every table handle holds: the table, and how it is read.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) routes: Arc<Routes>,
    /// `None` = the default, which costs nothing.
    pub(crate) reading: Option<Arc<Reading>>,
    /// `None` = every request has one attempt at a time.
    pub(crate) hedging: Option<Arc<Hedging>>,
}

impl Handle {
    pub(crate) fn reading(&self, options: ReadOptions) -> Self {
        let session = self.reading.as_ref().and_then(|reading| reading.session.clone());
        Self { reading: Reading { options, session }.shared(), ..self.clone() }
    }

    pub(crate) fn opened_with(&self, options: TableOptions) -> Self {
        let read = options.read.map_or_else(|| self.clone(), |read| self.reading(read));
        read.hedging(options.hedge)
    }

    pub(crate) fn hedging(&self, options: HedgeOptions) -> Self {
        Self { hedging: self.routes.cluster.hedging(options), ..self.clone() }
    }

    pub(crate) fn in_session(&self, session: &Session) -> Self {
        let options = self.reading.as_ref().map(|reading| reading.options.clone()).unwrap_or_default();
        Self { reading: Reading { options, session: Some(session.clone()) }.shared(), ..self.clone() }
    }

    /// Runs `body` against the partition at `place` until it succeeds, fails for good or reaches the deadline.
    pub(crate) async fn call(&self, place: Destination<'_>, body: &Body) -> Result<Reply> {
        let Answer { reply, .. } = self.answer(place, body).await?;
        Ok(reply)
    }

    /// As [`Handle::call`], and says who answered.
    pub(crate) async fn answer(&self, place: Destination<'_>, body: &Body) -> Result<Answer> {
        let mut call = self.new_call(place, body);
        let target = call.begin().await?;
        // A scan's next page is where the scan is, and nowhere else.
        match self.hedging.as_deref().filter(|_| !matches!(body, Body::Scan(_))) {
            Some(hedging) => race::run(&mut call, hedging, target).await,
            None => call.run(target).await,
        }
    }

    /// Runs `body` once, at the replica at `address`; `None` if that one does not serve it.
    pub(crate) async fn answer_at(&self, place: Destination<'_>, body: &Body, address: Address) -> Option<Answer> {
        self.new_call(place, body).run_at(address).await
    }

    fn new_call<'a>(&'a self, place: Destination<'a>, body: &'a Body) -> Call<'a> {
        Call::new(&self.routes, self.reading.as_deref(), place, body)
    }
}
