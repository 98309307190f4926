//! A client of the simulated cluster: an application that does one operation after the other through the real
//! [`hedgerow_client`], on the simulation's executor.
//!
//! What the application is told goes into the history. That it is what a node has answered is judged by what was read on the
//! way (`tap.rs`).

use crate::foreign::ForeignRead;
use crate::history::{Answer, Call, Content, Operation, Outcome, Seen, Time};
use crate::machine::{address_of_machine, label_of};
use crate::protocol::{self, ROWS, SORT_KEY, TABLE_NAME, Table};
use crate::reading::{Manner, Wish};
use crate::session::Sessions;
use crate::survey::{Survey, Surveyed};
use crate::tap::Heard;
use crate::workload::{FLEETING_KEYS, Workload, life_of};
use hedgerow_client::simulation::{self, Task};
use hedgerow_client::{Check, ClientOptions, Error, Expiry, Labels, ReadLevel, ReadOptions, ReplicaRead};
use hedgerow_client::{Checked, HedgeOptions, Mutation, Retry, Select};
use hedgerow_hedge::BudgetOptions;
use hedgerow_types::limit::SESSION_AHEAD_MICROS;
use hedgerow_types::random::Random;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a client's extra attempts may cost: enough that there are many, and not so much that none is ever refused.
pub const BUDGET: BudgetOptions = BudgetOptions { ratio: 0.7, burst: Some(10.0) };
/// One operation in so many reads many records.
const SURVEY_INTERVAL: u64 = 24;
/// The pause after a failure to open the table.
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// How the clients of a run behave.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Longest pause between two operations.
    pub think_max: Time,
    /// How long one attempt is waited for.
    pub attempt_timeout: Time,
    /// How long an operation is tried.
    pub deadline: Time,
}

/// Where a client goes with reads that any replica may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// As this mode says.
    Mode(ReplicaRead),
    /// To this machine, as long as it answers.
    Near(usize),
}

impl Preference {
    /// Draws one.
    pub fn drawn(machine_count: usize, random: &mut Random) -> Self {
        let modes = [
            ReplicaRead::LeaderAndFollower,
            ReplicaRead::LeaderAndFollower,
            ReplicaRead::Follower,
            ReplicaRead::Learner,
            ReplicaRead::ClosestAdaptive,
            ReplicaRead::PreferLeader,
        ];
        if random.chance(2, 5) {
            return Self::Near(random.below(machine_count as u64) as usize);
        }
        Self::Mode(modes[random.below(modes.len() as u64) as usize])
    }
}

/// Why an operation has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaveUp {
    /// It is a write that may have taken effect, or may still.
    pub is_unknown: bool,
    /// There was no time for another attempt. Otherwise a node said something that is final.
    pub is_late: bool,
}

impl From<Error> for GaveUp {
    fn from(error: Error) -> Self {
        Self { is_unknown: error.is_outcome_unknown(), is_late: error.may_retry() }
    }
}

/// The end of a client's task.
#[derive(Debug)]
enum Ended {
    /// The table is open.
    Opened(hedgerow_client::Table),
    /// The operation has ended.
    Operation(Result<Answer, GaveUp>),
    /// Many records were read, or not.
    Survey(Surveyed),
}

/// What the application has been told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The operation, as the history has it.
    pub operation: Operation,
    /// The answer that it rests on, if there was one.
    pub heard: Option<Heard>,
    /// Whether there was no time for another attempt.
    pub is_late: bool,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    /// Its number in the history.
    pub number: u32,
    id: u64,
    machine_count: usize,
    table: Table,
    preference: Preference,
    /// The session that it is in.
    session: usize,
    pace: Pace,
    random: Random,
    /// `None` = it is being opened.
    opened: Option<hedgerow_client::Table>,
    ended: Arc<Mutex<Option<Ended>>>,
    current: Option<Current>,
    /// Whether it reads many records, instead.
    is_surveying: bool,
    surveyed: Option<Surveyed>,
    /// What is to be done before anything from the workload; `None` = draw from it.
    script: Option<Vec<Wish>>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Current {
    wish: Wish,
    start: Time,
    /// What its session had seen, if it is in one.
    floor: u64,
    /// Answers to it so far.
    heard: Vec<Heard>,
    /// Whether it may end without an answer although there is time.
    may_fail: bool,
}

impl Client {
    /// Client `number` with identity `id` (not 0), over machines `0..machine_count`.
    pub fn new(number: u32, id: u64, machine_count: usize, table: Table, pace: Pace, mut random: Random) -> Self {
        Self {
            number,
            id,
            machine_count,
            table,
            preference: Preference::drawn(machine_count, &mut random),
            session: number as usize,
            pace,
            random,
            opened: None,
            ended: Arc::default(),
            current: None,
            is_surveying: false,
            surveyed: None,
            script: None,
            is_stopped: false,
        }
    }

    /// Makes the client do these operations one after the other and then stop.
    pub fn with_script(mut self, mut script: Vec<Wish>) -> Self {
        script.reverse();
        self.script = Some(script);
        self
    }

    /// Sends the client there with reads that any replica may answer.
    pub fn with_preference(self, preference: Preference) -> Self {
        Self { preference, ..self }
    }

    /// How wrong its wall clock is, microseconds.
    pub const fn clock_offset(&self) -> i64 {
        match self.id % 16 {
            1 => 2 * SESSION_AHEAD_MICROS as i64,
            3 | 5 => -10_000_000,
            _ => 0,
        }
    }

    /// Begins nothing new from now on.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether it waits for nothing any more.
    pub fn is_done(&self) -> bool {
        self.current.is_none()
            && !self.is_surveying
            && (self.is_stopped || self.script.as_ref().is_some_and(Vec::is_empty))
    }

    /// The task that connects and opens the table.
    pub fn open(&mut self) -> Task {
        let labels = match self.preference {
            Preference::Near(machine) => Labels::from_iter([label_of(machine)]),
            Preference::Mode(_) => Labels::default(),
        };
        let options = ClientOptions {
            operation_timeout: Duration::from_nanos(self.pace.deadline),
            attempt_timeout: Some(Duration::from_nanos(self.pace.attempt_timeout)),
            connections_per_node: if self.random.chance(1, 4) { 2 } else { 1 },
            client_id: Some(self.id),
            budget: BUDGET,
            labels,
            ..ClientOptions::default()
        };
        let addresses: Vec<String> = (0..self.machine_count).map(address_of_machine).collect();
        let ended = self.ended.clone();
        Box::pin(async move {
            loop {
                let opened = async {
                    let client = hedgerow_client::Client::connect_with(&addresses, options.clone()).await?;
                    client.open_table(TABLE_NAME).await
                };
                match opened.await {
                    Ok(table) => return put(&ended, Ended::Opened(table)),
                    Err(_) => simulation::sleep(OPEN_PAUSE).await,
                }
            }
        })
    }

    /// The task of the next operation; `None` = the table is not open yet, or there is nothing more to do.
    pub fn begin(&mut self, now: Time, workload: &mut Workload) -> Option<Task> {
        let opened = self.opened.clone().filter(|_| self.current.is_none() && !self.is_surveying)?;
        if self.script.is_none() && !self.is_stopped && self.random.chance(1, SURVEY_INTERVAL) {
            return Some(self.survey(opened, now, workload));
        }
        let wish = match &mut self.script {
            _ if self.is_stopped => None,
            Some(script) => script.pop(),
            None => Some(workload.draw()),
        }?;
        self.session = workload.sessions.next(self.session, &mut self.random);
        let hedge = wish.hedging.map(|hedging| hedging.options(&mut self.random)).unwrap_or_default();
        let may_fail = matches!(hedge.retry, Retry::Rethrow) || hedge.is_idempotent == Some(false);
        let (task, floor) = self.task_of(wish, hedge, opened, &workload.sessions);
        self.current = Some(Current { wish, start: now, floor, heard: Vec::new(), may_fail });
        Some(task)
    }

    /// The task that reads many records, each of which is to be as it is.
    fn survey(&mut self, opened: hedgerow_client::Table, start: Time, workload: &Workload) -> Task {
        let keys = workload.keys().filter(|key| !FLEETING_KEYS.contains(key)).collect();
        let survey = Survey::drawn(keys, &mut self.random);
        let manner = if self.random.chance(1, 2) { Manner::Leader } else { Manner::AnyReplica };
        let handle = opened.reading(self.read_options(manner, ReadLevel::Linearizable));
        let ended = self.ended.clone();
        self.is_surveying = true;
        Box::pin(async move {
            let (kind, found) = (survey.kind(), survey.run(handle).await);
            put(&ended, Ended::Survey(Surveyed { kind, start, found }));
        })
    }

    /// What it has read of many records, if it just has.
    pub fn take_surveyed(&mut self) -> Option<Surveyed> {
        self.surveyed.take()
    }

    fn task_of(
        &mut self,
        wish: Wish,
        hedge: HedgeOptions,
        opened: hedgerow_client::Table,
        sessions: &Sessions,
    ) -> (Task, u64) {
        let Wish { key, call, manner, .. } = wish;
        let ended = self.ended.clone();
        if !manner.is_extended() {
            let read = ForeignRead {
                key,
                call,
                manner,
                table: self.table,
                machine: self.random.below(self.machine_count as u64) as usize,
                machine_count: self.machine_count,
                attempt_timeout: Duration::from_nanos(self.pace.attempt_timeout),
                deadline: Duration::from_nanos(self.pace.deadline),
            };
            return (Box::pin(async move { put(&ended, Ended::Operation(read.run().await)) }), 0);
        }
        let mut handle = match call {
            Call::Get(level) => opened.reading(self.read_options(manner, level)),
            Call::Put(_) | Call::Remove | Call::Incr(_) | Call::Swap { .. } => opened,
        };
        handle = handle.hedging(hedge);
        // A session may read at other levels too, and must not see less than before then either (pitfall S14).
        let is_in_session = call == Call::Get(ReadLevel::Session) || self.random.chance(1, 2);
        let mut floor = 0;
        if is_in_session {
            let session = sessions.at(self.session);
            handle = handle.in_session(session);
            floor = session.token().floor(self.table.group_of(key));
        }
        let is_range = self.random.chance(1, 2);
        let task = async move {
            let result = if protocol::is_wide(key) {
                operate_wide(handle, key, call, is_range).await
            } else {
                operate(handle, key, call).await
            };
            put(&ended, Ended::Operation(result));
        };
        (Box::pin(task), floor)
    }

    fn read_options(&self, manner: Manner, level: ReadLevel) -> ReadOptions {
        let mode = match (manner, self.preference) {
            (Manner::Leader, _) => ReplicaRead::Leader,
            (_, Preference::Near(_)) => ReplicaRead::ClosestReplicas,
            (_, Preference::Mode(mode)) => mode,
        };
        ReadOptions { level: (manner != Manner::TableLevel).then_some(level), mode, ..ReadOptions::default() }
    }

    /// An answer has come over one of its connections: to an attempt of the operation that is on, or of one before.
    pub fn hear(&mut self, heard: Heard) {
        let Some(current) = &mut self.current else { return };
        let (Operation { key, call, start, .. }, wish) = (heard.operation, current.wish);
        let is_alike = if wish.call.is_write() { call == wish.call } else { !call.is_write() };
        if is_alike && key == wish.key && start >= current.start {
            current.heard.push(heard);
        }
    }

    /// What has happened since the last look: what the application was told, and after which pause it goes on.
    pub fn look(&mut self, now: Time, workload: &mut Workload) -> Option<(Option<Told>, Time)> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let pause = self.random.below(self.pace.think_max + 1);
        let result = match ended {
            Ended::Opened(table) => {
                self.opened = Some(table);
                return Some((None, pause));
            }
            Ended::Survey(surveyed) => {
                (self.is_surveying, self.surveyed) = (false, Some(surveyed));
                self.close_if_done();
                return Some((None, pause));
            }
            Ended::Operation(result) => result,
        };
        let current = self.current.take()?;
        self.close_if_done();
        Some((Some(self.told(&current, result, now, workload)), pause))
    }

    /// With the last handle its connections end.
    fn close_if_done(&mut self) {
        if self.is_done() {
            self.opened = None;
        }
    }

    fn told(&self, current: &Current, result: Result<Answer, GaveUp>, now: Time, workload: &mut Workload) -> Told {
        let Current { wish: Wish { key, call, .. }, start, floor, .. } = *current;
        let of = |answer| move |heard: &&Heard| heard.operation.outcome == Outcome::Ok(answer);
        let heard = result.ok().and_then(|answer| current.heard.iter().rfind(of(answer)).copied());
        let outcome = match result {
            Ok(answer) => Outcome::Ok(answer),
            Err(GaveUp { is_unknown: true, .. }) => Outcome::Unknown,
            Err(_) => Outcome::Failed,
        };
        if let Ok(answer) = &result {
            workload.note(key, &call, answer);
        }
        // With a fallback the application has agreed to less.
        let call = heard.filter(|heard| heard.is_fallback).map_or(call, |heard| heard.operation.call);
        let floor = if call.is_write() { 0 } else { floor };
        let seen = heard.map(|heard| Seen { floor, ..heard.seen });
        let operation = Operation { client: self.number, key, call, start, end: now, outcome, seen };
        Told { operation, heard, is_late: result.is_err_and(|why| why.is_late && !current.may_fail) }
    }
}

fn put(place: &Mutex<Option<Ended>>, ended: Ended) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
}

/// Does `call` on record `key` through `table`.
async fn operate(table: hedgerow_client::Table, key: u32, call: Call) -> Result<Answer, GaveUp> {
    let hash_key = protocol::hash_key(key);
    Ok(match call {
        Call::Get(_) => {
            let value = table.get(&hash_key, SORT_KEY).await?;
            Answer::Content(value.as_deref().and_then(protocol::number))
        }
        Call::Put(value) => {
            let text = protocol::text(value);
            match life(key, value) {
                Some(life) => table.set_with_ttl(&hash_key, SORT_KEY, text, life).await?,
                None => table.set(&hash_key, SORT_KEY, text).await?,
            }
            Answer::Done
        }
        Call::Remove => {
            table.del(&hash_key, SORT_KEY).await?;
            Answer::Done
        }
        Call::Incr(by) => Answer::Sum(table.incr(&hash_key, SORT_KEY, by, Expiry::Keep).await?),
        Call::Swap { expected, new } => {
            let check = check_of(SORT_KEY, expected);
            swapped(table.check_and_set(&hash_key, check, SORT_KEY, protocol::text(new), None).await?)
        }
    })
}

/// The same on a record of several rows, which are written and read together: by their names, or as all that there is.
async fn operate_wide(table: hedgerow_client::Table, key: u32, call: Call, is_range: bool) -> Result<Answer, GaveUp> {
    let hash_key = protocol::hash_key(key);
    Ok(match call {
        Call::Get(_) => {
            let found = if is_range {
                table.multi_get_range(&hash_key, &Select::default()).await?
            } else {
                table.multi_get(&hash_key, ROWS).await?
            };
            Answer::Content(protocol::content_of_rows(found.rows.iter().map(|row| &row.value[..])).flatten())
        }
        Call::Put(value) => {
            table.multi_set(&hash_key, ROWS.map(|row| (row, protocol::text(value))), life(key, value)).await?;
            Answer::Done
        }
        Call::Remove => {
            table.multi_del(&hash_key, ROWS).await?;
            Answer::Done
        }
        Call::Incr(by) => Answer::Sum(table.incr(&hash_key, ROWS[0], by, Expiry::Keep).await?),
        Call::Swap { expected, new } => {
            let set = |row: &'static [u8]| Mutation::Set {
                sort_key: row.into(),
                value: protocol::text(new),
                time_to_live: None,
            };
            swapped(table.check_and_mutate(&hash_key, check_of(ROWS[0], expected), ROWS.map(set)).await?)
        }
    })
}

/// How long `value` lives in record `key`, if not for ever.
fn life(key: u32, value: i64) -> Option<Duration> {
    FLEETING_KEYS.contains(&key).then(|| Duration::from_secs(life_of(value)))
}

/// That the row holds this now.
fn check_of(row: &'static [u8], expected: Content) -> Check {
    let equal = |value| Check::equals(row, protocol::text(value));
    expected.map_or_else(|| Check::absent(row), equal).and_return_value()
}

fn swapped(checked: Checked) -> Answer {
    let previous = checked.before.value().and_then(|value| protocol::number(value));
    Answer::Swapped { is_applied: checked.is_applied, previous }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
