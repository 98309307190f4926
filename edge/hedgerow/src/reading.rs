//! How commands read: at which level, from which replicas, in which session, and what they say about it.

use crate::any_table::AnyTable;
use crate::cluster::ClusterArguments;
use crate::files;
use crate::hedging::{ReadHedgeArguments, WriteHedgeArguments};
use crate::output::say;
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_client::{Kind, Labels, Observer, ReadLevel, ReadOptions, ReplicaRead, Served, Session, SessionToken};
use hedgerow_faults::units;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// How reads are made.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ReadArguments {
    /// How fresh the read must be: linearizable, session, bounded=2s (or another bound from 1ms to 24h), eventual
    /// [default: session with --session, otherwise what the table's option read_level says]
    #[arg(long = "read", value_name = "LEVEL")]
    level: Option<ReadLevel>,
    /// Which replicas are asked: leader, follower, leader-and-follower, prefer-leader, closest-replicas, closest-adaptive,
    /// learner [default: closest-adaptive where --read or --session says session, bounded or eventual, otherwise leader]
    #[arg(long, value_name = "MODE")]
    replica_read: Option<ReplicaRead>,
    /// Where this client is, such as zone=a,region=eu: replicas with the most equal labels are the closest.
    #[arg(long, value_name = "KEY=VALUE,...")]
    labels: Option<Labels>,
    /// Say on standard error who served the read, at which level and log index, how old it was at most, how the node came to
    /// it, how long it waited there, and which attempt it was.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    hedge: Box<ReadHedgeArguments>,
    #[command(flatten)]
    session: SessionArguments,
}

/// The session that a command is part of.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SessionArguments {
    /// A file that keeps what a session has seen, made if it is not there. Commands that name it are one session: reads at
    /// level session show all that the session wrote and read before, whichever replica serves them.
    #[arg(long, value_name = "FILE")]
    session: Option<PathBuf>,
}

impl ReadArguments {
    /// Opens `name` to be read as the arguments say, in their session.
    pub(crate) async fn open(&self, cluster: &ClusterArguments, name: &str) -> Result<(AnyTable, OpenSession)> {
        let client = cluster.connect_near(self.labels.clone().unwrap_or_default()).await?;
        let session = self.session.open()?;
        let options = self.options();
        let labels = self.labels.as_ref().filter(|labels| !labels.is_empty());
        let of_labels = labels.and_then(|_| remark_on_labels(options.mode));
        self.hedge.remarks_on_one(options.level).iter().chain(&of_labels).for_each(|remark| say(remark));
        let table = AnyTable::open(&client, name).await?.reading(options);
        let table = table.hedging(self.hedge.options(self.explain));
        Ok((session.enter(table), session))
    }

    fn options(&self) -> ReadOptions {
        let level = self.level.or_else(|| self.session.session.is_some().then_some(ReadLevel::Session));
        let is_tables = level.is_none();
        let observer = self.explain.then(|| Observer::new(move |served| say(&explanation(served, is_tables))));
        ReadOptions {
            level,
            mode: self.replica_read.unwrap_or(default_mode(level)),
            observer,
            ..ReadOptions::default()
        }
    }
}

/// Which replicas are asked for reads at `level` where nobody says it; `None` = the table's level.
pub(crate) fn default_mode(level: Option<ReadLevel>) -> ReplicaRead {
    match level {
        None | Some(ReadLevel::Linearizable) => ReplicaRead::Leader,
        Some(_) => ReplicaRead::ClosestAdaptive,
    }
}

/// What to say of labels that can do nothing with reads in `mode`.
pub(crate) fn remark_on_labels(mode: ReplicaRead) -> Option<String> {
    match mode {
        ReplicaRead::ClosestReplicas | ReplicaRead::ClosestAdaptive => None,
        ReplicaRead::Leader
        | ReplicaRead::Follower
        | ReplicaRead::LeaderAndFollower
        | ReplicaRead::PreferLeader
        | ReplicaRead::Learner => Some(format!(
            "--labels does nothing here: the modes closest-replicas and closest-adaptive go by it, and this is {mode}"
        )),
    }
}

impl SessionArguments {
    /// Opens `name` to be written in the session, hedged as `hedge` says.
    pub(crate) async fn open_table(
        &self,
        cluster: &ClusterArguments,
        name: &str,
        hedge: &WriteHedgeArguments,
    ) -> Result<(AnyTable, OpenSession)> {
        let client = cluster.connect().await?;
        let session = self.open()?;
        let table = AnyTable::open(&client, name).await?.hedging(hedge.options());
        Ok((session.enter(table), session))
    }

    fn open(&self) -> Result<OpenSession> {
        let Some(path) = &self.session else { return Ok(OpenSession(None)) };
        let token = read_token(path)?;
        Ok(OpenSession(Some((path.clone(), Session::from_token(token)))))
    }
}

/// The session of a command, and where it is kept; `None` without one.
#[derive(Debug)]
pub(crate) struct OpenSession(Option<(PathBuf, Session)>);

impl OpenSession {
    fn enter(&self, table: AnyTable) -> AnyTable {
        match &self.0 {
            Some((_, session)) => table.in_session(session),
            None => table,
        }
    }

    /// Writes down what the session has seen, beside what other commands wrote there meanwhile.
    pub(crate) fn keep(&self) -> Result<()> {
        let Some((path, session)) = &self.0 else { return Ok(()) };
        session.merge(&read_token(path)?);
        files::replace(path, format!("{}\n", session.token()).as_bytes())
    }
}

fn read_token(path: &Path) -> Result<SessionToken> {
    let Some(bytes) = files::read_if_exists(path)? else { return Ok(SessionToken::default()) };
    let token = String::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<SessionToken>().ok());
    token.with_context(|| {
        format!("{} is not a session file: name another, which is made if it is not there", path.display())
    })
}

/// `is_tables` says that the level was the table's, whose bound is not told.
fn explanation(served: &Served, is_tables: bool) -> String {
    let mut text = format!("partition {} served by {}", served.partition, served.node);
    let mut add = |part: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(part);
    };
    if let Some(role) = served.role {
        add(format_args!(" ({role})"));
    }
    if served.index > 0 {
        add(format_args!(" at index {}", served.index));
    }
    match served.level {
        Some(ReadLevel::Bounded(_)) if is_tables => add(format_args!(", level bounded (the table's)")),
        Some(level) => add(format_args!(", level {level}")),
        None => {}
    }
    let is_linearizable = served.level == Some(ReadLevel::Linearizable);
    if let Some(staleness) = served.staleness.filter(|_| !is_linearizable) {
        add(format_args!(", at most {} ms old", staleness.as_millis()));
    }
    match (&served.mode, served.queue) {
        // The node's own words say how long the read was queued.
        (Some(mode), _) => add(format_args!(" ({mode})")),
        (None, Some(queue)) => add(format_args!(" (queued {})", units::show(queue))),
        (None, None) => {}
    }
    if served.attempts > 1 {
        add(format_args!(", after {} attempts", served.attempts));
    }
    if let Some(why) = cause(served.kind) {
        add(format_args!(", this one {why}"));
    }
    text
}

/// Why an attempt was sent that was not the first.
fn cause(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::First => None,
        Kind::Hedge => Some("hedged, as the first was slow"),
        Kind::Tie => Some("tied to the first"),
        Kind::Retry => Some("sent as another had failed"),
        Kind::Fallback => Some("asked for less, as the first was slow"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn arguments(level: Option<&str>, session: Option<&str>) -> ReadArguments {
        ReadArguments {
            level: level.map(|level| level.parse().unwrap()),
            session: SessionArguments { session: session.map(PathBuf::from) },
            ..ReadArguments::default()
        }
    }

    #[test]
    fn weaker_levels_are_read_at_any_replica_and_a_session_is_a_level() {
        let options = |level, session| arguments(level, session).options();
        assert_eq!((options(None, None).level, options(None, None).mode), (None, ReplicaRead::Leader));
        assert_eq!(options(Some("linearizable"), None).mode, ReplicaRead::Leader);
        assert_eq!(options(Some("bounded=2s"), None).mode, ReplicaRead::ClosestAdaptive);
        let session = options(None, Some("s"));
        assert_eq!((session.level, session.mode), (Some(ReadLevel::Session), ReplicaRead::ClosestAdaptive));
        assert_eq!(options(Some("linearizable"), Some("s")).level, Some(ReadLevel::Linearizable));
    }

    #[test]
    fn labels_are_for_the_modes_that_look_at_them() {
        for mode in ReplicaRead::ALL {
            let is_closest = mode.name().starts_with("closest");
            assert_eq!(remark_on_labels(mode).is_none(), is_closest, "{mode}");
        }
        assert!(remark_on_labels(ReplicaRead::Leader).unwrap().ends_with("and this is leader"));
    }

    #[test]
    fn a_session_is_kept_in_its_file_beside_what_others_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("session");
        let group = |partition| hedgerow_types::GroupId::new(1, partition);
        let open = || SessionArguments { session: Some(path.clone()) }.open().unwrap();
        let (ours, theirs) = (open(), open());
        for (session, partition) in [(&ours, 1), (&theirs, 2)] {
            session.0.as_ref().unwrap().1.merge(&SessionToken::of(group(partition), 7));
            session.keep().unwrap();
        }
        let token = read_token(&path).unwrap();
        assert_eq!((token.floor(group(1)), token.floor(group(2))), (7, 7));
        for secret in [&b"nonsense"[..], b"\xff", b"a=b\nc=d"] {
            files::replace(&path, secret).unwrap();
            let error = format!("{:#}", read_token(&path).unwrap_err());
            assert!(error.contains("is not a session file: name another"), "{error}");
            assert!(!error.contains("nonsense") && !error.contains("a=b"), "{error}");
        }
    }

    #[test]
    fn an_explanation_names_what_is_known() {
        let mut served = Served {
            node: "127.0.0.1:34602".parse().unwrap(),
            role: None,
            partition: 3,
            index: 0,
            staleness: None,
            attempts: 1,
            queue: None,
            service: None,
            level: None,
            kind: Kind::First,
            mode: None,
        };
        assert_eq!(explanation(&served, false), "partition 3 served by 127.0.0.1:34602");
        served.role = Some(hedgerow_client::Role::Follower);
        (served.index, served.staleness, served.attempts) = (17, Some(Duration::from_millis(40)), 2);
        let all = "partition 3 served by 127.0.0.1:34602 (follower) at index 17, at most 40 ms old, after 2 attempts";
        assert_eq!(explanation(&served, false), all);
        served.level = Some(ReadLevel::Session);
        served.queue = Some(Duration::from_micros(250));
        served.kind = Kind::Hedge;
        let all = "partition 3 served by 127.0.0.1:34602 (follower) at index 17, level session, at most 40 ms old (queued \
                   250us), after 2 attempts, this one hedged, as the first was slow";
        assert_eq!(explanation(&served, false), all);
        served.mode = Some("follower index, queued 9 us".to_owned());
        assert!(explanation(&served, false).contains("40 ms old (follower index, queued 9 us), after"));
        served.level = Some(ReadLevel::Linearizable);
        assert!(explanation(&served, false).contains("level linearizable (follower index"));
        served.level = Some(ReadLevel::Bounded(Duration::from_millis(40)));
        assert!(explanation(&served, true).contains("level bounded (the table's), at most 40 ms old"));
    }
}
