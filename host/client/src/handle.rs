//! What every table handle holds, and how it runs an operation: as one attempt at a time, or as a race of several.

use crate::call::{Answer, Call};
use crate::error::{Error, Result};
use crate::hedging::{HedgeOptions, TableOptions};
use crate::metrics::Hedging;
use crate::options::Timeouts;
use crate::profile::Profile;
use crate::race;
use crate::reading::{ReadOptions, Reading};
use crate::routes::{Destination, Routes};
use crate::session::Session;
use hedgerow_routing::Address;
use hedgerow_wire::{Body, Reply};
use std::sync::Arc;
use tracing::{Instrument as _, Level, Span, debug, debug_span, enabled};

/// What every table handle holds: the table, and how it is read.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) routes: Arc<Routes>,
    /// `None` = the default, which costs nothing.
    pub(crate) reading: Option<Arc<Reading>>,
    /// `None` = every request has one attempt at a time.
    pub(crate) hedging: Option<Arc<Hedging>>,
    pub(crate) timeouts: Timeouts,
}

impl Handle {
    /// A handle that makes requests as the client's options say.
    pub(crate) fn new(routes: Arc<Routes>) -> Self {
        let (reading, timeouts) = (routes.cluster.reading.clone(), routes.cluster.options.timeouts());
        Self { routes, reading, hedging: None, timeouts }
    }

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
        Self {
            reading: Reading { options: self.read_options(), session: Some(session.clone()) }.shared(),
            ..self.clone()
        }
    }

    /// The same handle with what differs in `profile`.
    pub(crate) fn with(&self, profile: &Profile) -> Self {
        let read = profile.reading(|| self.read_options()).map_or_else(|| self.clone(), |read| self.reading(read));
        let hedging = match profile.hedging(|| self.hedging.as_ref().map(|it| it.options.clone()).unwrap_or_default()) {
            Some(options) => Some(self.hedging.as_ref().unwrap_or_else(|| self.routes.profiled()).with(options)),
            None => read.hedging,
        };
        let options = &self.routes.cluster.options;
        let timeouts = profile.within.map_or(self.timeouts, |timeout| options.timeouts_within(timeout));
        Self { hedging, timeouts, ..read }
    }

    /// The same handle with what differs in the client's profile of the name.
    pub(crate) fn profile(&self, name: &str) -> Result<Self> {
        let profiles = &self.routes.cluster.options.profiles;
        profiles.get(name).map(|profile| self.with(profile)).ok_or_else(|| {
            let known = profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none" } else { &known };
            Error::invalid(format!("there is no profile {name:?}; the client's options have: {known}"))
        })
    }

    fn read_options(&self) -> ReadOptions {
        self.reading.as_ref().map(|reading| reading.options.clone()).unwrap_or_default()
    }

    /// Runs `body` against the partition at `place` until it succeeds, fails for good or reaches the deadline.
    pub(crate) async fn call(&self, place: Destination<'_>, body: &Body) -> Result<Reply> {
        let Answer { reply, .. } = self.answer(place, body).await?;
        Ok(reply)
    }

    /// As [`Handle::call`], and says who answered.
    pub(crate) async fn answer(&self, place: Destination<'_>, body: &Body) -> Result<Answer> {
        let _under_way = self.routes.cluster.begin()?;
        if !enabled!(Level::DEBUG) {
            return self.run(place, body).await;
        }
        let run = async {
            let result = self.run(place, body).await;
            match &result {
                Ok(_) => debug!("answered"),
                Err(error) => debug!(%error, "failed"),
            }
            result
        };
        Box::pin(run.instrument(self.span(place, body))).await
    }

    fn span(&self, place: Destination<'_>, body: &Body) -> Span {
        let partition = self.routes.target(place).partition;
        debug_span!("request", table = self.routes.name(), partition, operation = body.method().short_name())
    }

    async fn run(&self, place: Destination<'_>, body: &Body) -> Result<Answer> {
        let mut call = self.new_call(place, body);
        let target = call.begin().await?;
        // A scan's next page is where the scan is, and nowhere else.
        match self.hedging.as_deref().filter(|hedging| !hedging.is_off && !matches!(body, Body::Scan(_))) {
            Some(hedging) => race::run(&mut call, hedging, target).await,
            None => call.run(target).await,
        }
    }

    /// Runs `body` once, at the replica at `address`; `None` if that one does not serve it.
    pub(crate) async fn answer_at(&self, place: Destination<'_>, body: &Body, address: Address) -> Option<Answer> {
        let _under_way = self.routes.cluster.begin().ok()?;
        if !enabled!(Level::DEBUG) {
            return self.new_call(place, body).run_at(address).await;
        }
        let span = self.span(place, body);
        Box::pin(async { self.new_call(place, body).run_at(address).await }.instrument(span)).await
    }

    fn new_call<'a>(&'a self, place: Destination<'a>, body: &'a Body) -> Call<'a> {
        Call::new(&self.routes, self.reading.as_deref(), self.timeouts, place, body)
    }
}

/// What both kinds of tables say about themselves and how they make requests.
macro_rules! table_handle {
    ($table:ident) => {
        impl $table {
            /// The table's name.
            pub fn name(&self) -> &str {
                self.handle.routes.name()
            }

            /// How many partitions it has.
            pub fn partition_count(&self) -> u32 {
                self.handle.routes.with_map(|map| map.partition_count())
            }

            /// The same table, read as `options` say. What it was read by before is replaced, but for its session.
            #[must_use]
            pub fn reading(&self, options: crate::ReadOptions) -> Self {
                Self { handle: self.handle.reading(options) }
            }

            /// The same table, with requests hedged as `options` say, instead of as before. The handle and its clones learn of latencies
            /// by themselves, beginning with nothing, and may have a budget of their own: keep it. For one request there is [`Self::hedge`].
            #[must_use]
            pub fn hedging(&self, options: crate::HedgeOptions) -> Self {
                Self { handle: self.handle.hedging(options) }
            }

            /// The same table within `session`: no read shows less than the session has seen, and all that is read and written
            /// is added to what it has seen. At the levels below [`crate::ReadLevel::Session`] an older reply counts as a
            /// replica that lags, and the next one is asked.
            #[must_use]
            pub fn in_session(&self, session: &crate::Session) -> Self {
                Self { handle: self.handle.in_session(session) }
            }

            /// The same table, with requests made as before but for what `profile` says. All handles made so share what is known of
            /// latencies, and the budget; it costs a request two small allocations at most, so that each may have its own:
            ///
            /// ```no_run
            #[doc = concat!("# async fn example(users: hedgerow_client::", stringify!($table), ") -> Result<(), Box<dyn std::error::Error>> {")]
            /// # use std::time::Duration;
            /// use hedgerow_client::{Profile, ReadLevel, ReplicaRead};
            ///
            /// let page = users.with(&Profile::default().within(Duration::from_millis(20)).hedge("99p".parse()?));
            /// let stale = page.level(ReadLevel::Bounded(Duration::from_secs(2))).replicas(ReplicaRead::ClosestAdaptive);
            /// # drop(stale);
            /// # Ok(())
            /// # }
            /// ```
            #[must_use]
            pub fn with(&self, profile: &crate::Profile) -> Self {
                Self { handle: self.handle.with(profile) }
            }

            /// As [`Self::with`], by a name of [`crate::ClientOptions::profiles`]. Fails with [`crate::ErrorKind::Invalid`] if there is none
            /// of that name.
            pub fn profile(&self, name: &str) -> $crate::error::Result<Self> {
                Ok(Self { handle: self.handle.profile(name)? })
            }

            /// The same table, where one operation may take so long, retries included; see [`crate::Profile::within`].
            #[must_use]
            pub fn within(&self, timeout: std::time::Duration) -> Self {
                self.with(&crate::Profile::default().within(timeout))
            }

            /// The same table, read as fresh as `level` says, at the leader unless [`Self::replicas`] says otherwise.
            #[must_use]
            pub fn level(&self, level: crate::ReadLevel) -> Self {
                self.with(&crate::Profile::default().level(level))
            }

            /// The same table, whose reads ask these replicas.
            #[must_use]
            pub fn replicas(&self, mode: crate::ReplicaRead) -> Self {
                self.with(&crate::Profile::default().replicas(mode))
            }

            /// The same table, of whose replicas those on these nodes are asked for nothing that another one can answer: no attempt of a
            /// read goes there. What is then with writes, and with partitions that have no other replica, says
            /// [`crate::ReadOptions::excluded`].
            #[must_use]
            pub fn without_hosts(&self, hosts: impl IntoIterator<Item = hedgerow_routing::Address>) -> Self {
                self.with(&crate::Profile::default().without_hosts(hosts))
            }

            /// The same table, whose reads get further attempts as `policy` says; what is known of latencies and the budget stay.
            #[must_use]
            pub fn hedge(&self, policy: crate::Policy) -> Self {
                self.with(&crate::Profile::default().hedge(policy))
            }

            /// The same table, whose requests may have two copies under way, or never have.
            #[must_use]
            pub fn idempotent(&self, is_idempotent: bool) -> Self {
                self.with(&crate::Profile::default().idempotent(is_idempotent))
            }
        }
    };
}

pub(crate) use table_handle;
