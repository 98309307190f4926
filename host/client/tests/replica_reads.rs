//! Reads at any replica, against nodes that pretend: who is asked, what the frames say, what sessions remember.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod fake;

use fake::group::{self, Group, answer, ms, pass, patient};
use fake::{Action, Fake, done, map, metadata, page, refused, value, wire_address};
use hedgerow_client::{
    Client, ClientOptions, ErrorKind, Labels, Observer, Range, ReadLevel, ReadOptions, ReplicaRead, Role, ScanOptions,
    Served, Session, SessionToken, Table,
};
use hedgerow_types::{GroupId, Lag, Refusal, key};
use hedgerow_wire::message::{NodePlace, SCAN_DONE};
use hedgerow_wire::{Body, Extension, Reply, ReplyExtension, Request, Text};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Far more than any test takes.
const LONG: Duration = Duration::from_secs(60);
/// The partition of the hash key `h` in a table of two.
const GROUP: GroupId = GroupId::new(1, 0);
/// The other one.
const OTHER_GROUP: GroupId = GroupId::new(1, 1);

/// A cluster of one leader, two followers and a learner, for a table of two partitions.
struct Cluster {
    nodes: Vec<Fake>,
    /// What each node answers to requests to partitions.
    answers: Arc<Mutex<Vec<Answer>>>,
    /// The nodes that the map names as learners.
    learners: Arc<Mutex<Vec<SocketAddr>>>,
}

type Answer = Arc<dyn Fn(&Request) -> Action + Send + Sync>;

const LEADER: usize = 0;
const FOLLOWER: usize = 1;
const OTHER: usize = 2;
const LEARNER: usize = 3;

impl Cluster {
    /// Each node answers a read with its own number, and a write with success.
    async fn start() -> Self {
        let mut listeners = Vec::new();
        for _ in 0..4 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let learners = Arc::new(Mutex::new(vec![addresses[LEARNER]]));
        let answers: Vec<Answer> = (0..4).map(|index| serving(index, 0)).collect();
        let answers = Arc::new(Mutex::new(answers));
        let node = |(index, listener): (usize, TcpListener)| {
            let (addresses, learners, answers) = (addresses.clone(), learners.clone(), answers.clone());
            Fake::serve_on(listener, move |request| {
                let map = || full_map(&addresses, &learners.lock().unwrap());
                let answer = answers.lock().unwrap()[index].clone();
                metadata(request, map).unwrap_or_else(|| answer(request))
            })
        };
        let nodes = listeners.into_iter().enumerate().map(node).collect();
        Self { nodes, answers, learners }
    }

    fn answer(&self, node: usize, answer: impl Fn(&Request) -> Action + Send + Sync + 'static) {
        self.answers.lock().unwrap()[node] = Arc::new(answer);
    }

    fn refuse(&self, node: usize, refusal: Refusal) {
        self.answer(node, move |_| refused(&refusal));
    }

    fn serve(&self, node: usize, index: u64) {
        self.answers.lock().unwrap()[node] = serving(node, index);
    }

    async fn client(&self, options: ClientOptions) -> Client {
        let seed = self.nodes[LEADER].address.to_string();
        Client::connect_with(&[seed], ClientOptions { operation_timeout: LONG, ..options }).await.unwrap()
    }

    async fn open(&self) -> Table {
        self.client(ClientOptions::default()).await.open_table("t").await.unwrap()
    }

    /// A table that is read so.
    async fn reading(&self, mode: ReplicaRead, level: Option<ReadLevel>) -> Table {
        self.open().await.reading(ReadOptions { level, mode, ..ReadOptions::default() })
    }

    /// How many requests each node was sent.
    fn counts(&self) -> [usize; 4] {
        std::array::from_fn(|index| self.nodes[index].requests().len())
    }

    /// Our fields of every request to a partition.
    fn extensions(&self) -> Vec<Extension> {
        let requests = self.nodes.iter().flat_map(Fake::requests);
        requests.map(|request| request.header.extension.unwrap()).collect()
    }
}

/// A node that serves: reads give its number, and every reply reflects log index `index`.
fn serving(node: usize, index: u64) -> Answer {
    Arc::new(move |request| {
        let reply = match &request.body {
            Body::Get(_) => value(node.to_string().as_bytes()),
            Body::BatchGet(_) => Reply::BatchGet(Default::default()),
            Body::MultiGet(_) => Reply::MultiGet(Default::default()),
            Body::GetScanner(_) => page(&["1"], SCAN_DONE),
            _ => done(),
        };
        Action::ReplyWith(reply, ReplyExtension { index, ..ReplyExtension::default() })
    })
}

fn full_map(nodes: &[SocketAddr], learners: &[SocketAddr]) -> Reply {
    let Reply::QueryConfig(mut reply) = map(&[nodes[LEADER]; 2], &nodes[..LEARNER], 1) else { panic!("it is a map") };
    for partition in &mut reply.partitions {
        partition.learners = Some(learners.iter().map(wire_address).collect());
    }
    let place = |(node, zone): (&SocketAddr, &str)| NodePlace {
        address: wire_address(node).into(),
        labels: vec![Text::from("region=eu"), Text::from(format!("zone={zone}"))],
    };
    reply.nodes = Some(nodes.iter().zip(["a", "b", "c", "c"]).map(place).collect());
    Reply::QueryConfig(reply)
}

fn lagging() -> Refusal {
    Refusal::Lagging(Lag { entries: 5, staleness: Some(Duration::from_secs(3)) })
}

async fn get(table: &Table) -> usize {
    let value = table.get("h", "s").await.unwrap().unwrap();
    std::str::from_utf8(&value).unwrap().parse().unwrap()
}

#[tokio::test]
async fn by_default_reads_go_to_the_leader_and_frames_say_nothing_new() {
    let cluster = Cluster::start().await;
    let table = cluster.open().await;
    for _ in 0..20 {
        assert_eq!(get(&table).await, LEADER);
    }
    table.set("h", "s", "v").await.unwrap();
    for extension in cluster.extensions() {
        let Extension { attempt, deadline_ms, client_id, sequence, .. } = extension.clone();
        assert_eq!(extension, Extension { attempt, deadline_ms, client_id, sequence, ..Extension::default() });
    }
}

#[tokio::test]
async fn each_mode_asks_its_replicas_and_says_that_any_may_serve() {
    let level = ReadLevel::Bounded(Duration::from_secs(2));
    for (mode, expected) in [
        (ReplicaRead::Follower, [false, true, true, true]),
        (ReplicaRead::LeaderAndFollower, [true, true, true, true]),
        (ReplicaRead::PreferLeader, [true, false, false, false]),
        (ReplicaRead::Learner, [false, false, false, true]),
    ] {
        let cluster = Cluster::start().await;
        let table = cluster.reading(mode, Some(level)).await;
        for _ in 0..100 {
            get(&table).await;
        }
        assert_eq!(cluster.counts().map(|count| count > 0), expected, "{mode} {:?}", cluster.counts());
        for extension in cluster.extensions() {
            assert!(extension.any_replica);
            assert_eq!((extension.read_level(), extension.session_token), (Some(level), None));
        }
    }
}

#[tokio::test]
async fn the_level_alone_keeps_a_read_at_the_leader() {
    let cluster = Cluster::start().await;
    let table = cluster.reading(ReplicaRead::Leader, Some(ReadLevel::Eventual)).await;
    assert_eq!(get(&table).await, LEADER);
    let extension = &cluster.extensions()[0];
    assert_eq!((extension.read_level(), extension.any_replica), (Some(ReadLevel::Eventual), false));
}

#[tokio::test]
async fn writes_go_to_the_leader_in_every_mode() {
    let cluster = Cluster::start().await;
    let table = cluster.reading(ReplicaRead::Learner, Some(ReadLevel::Eventual)).await;
    table.set("h", "s", "v").await.unwrap();
    assert_eq!(cluster.counts(), [1, 0, 0, 0]);
    let extension = &cluster.extensions()[0];
    assert_eq!((extension.read_level(), extension.any_replica), (None, false));
}

#[tokio::test]
async fn a_client_that_says_where_it_stands_reads_nearby() {
    let cluster = Cluster::start().await;
    let read = ReadOptions { mode: ReplicaRead::ClosestReplicas, ..ReadOptions::default() };
    let labels = Labels::default().with("region", "eu").with("zone", "b");
    let client = cluster.client(ClientOptions { read, labels, ..ClientOptions::default() }).await;
    let table = client.open_table("t").await.unwrap();
    for _ in 0..20 {
        assert_eq!(get(&table).await, FOLLOWER);
    }
    cluster.refuse(FOLLOWER, lagging());
    assert_ne!(get(&table).await, FOLLOWER);
}

/// Pitfall S5: all followers behind. That there is no pause is tested in `hedgerow-routing`.
#[tokio::test]
async fn s05_followers_that_lag_cost_one_read_at_the_leader() {
    let cluster = Cluster::start().await;
    [FOLLOWER, OTHER, LEARNER].into_iter().for_each(|node| cluster.refuse(node, lagging()));
    let table = cluster.reading(ReplicaRead::Follower, Some(ReadLevel::Linearizable)).await;
    assert_eq!(get(&table).await, LEADER);
    assert_eq!(cluster.counts(), [1, 1, 1, 1]);
}

/// All of many reads at once, and no time passes: a read that paused first would never end.
#[tokio::test(start_paused = true)]
async fn s05_reads_at_followers_that_all_lag_go_to_the_leader_once_each_and_at_once() {
    let group = Group::start(3).await;
    (1..3).for_each(|node| group.refuse(node, lagging()));
    let client = group.client(patient()).await;
    let table = client.open_table("t").await.unwrap().reading(ReadOptions {
        level: Some(ReadLevel::Linearizable),
        mode: ReplicaRead::Follower,
        ..ReadOptions::default()
    });
    let gets: Vec<_> = (0..50)
        .map(|_| {
            let table = table.clone();
            tokio::spawn(async move { group::get(&table).await })
        })
        .collect();
    for get in gets {
        assert_eq!(answer(get).await, LEADER);
    }
    let counts = group.counts();
    assert_eq!(counts[LEADER], 50);
    assert!((2..=100).contains(&(counts[1] + counts[2])), "{counts:?}");
}

/// Pitfalls S9, S10, S12: one replica never has a proof. Bounded reads are served by the others, and no time passes: nobody waits
/// for it. It is asked now and then, and used again as soon as it has one.
#[tokio::test(start_paused = true)]
async fn s10_a_replica_that_never_has_a_proof_freezes_nobody() {
    const PROOFLESS: usize = 2;
    let group = Group::start(3).await;
    group.refuse(PROOFLESS, lagging());
    let client = group.client(patient()).await;
    let table = client.open_table("t").await.unwrap().reading(ReadOptions {
        level: Some(ReadLevel::Bounded(ms(1_000))),
        mode: ReplicaRead::LeaderAndFollower,
        ..ReadOptions::default()
    });
    for _ in 0..200 {
        let table = table.clone();
        let get = tokio::spawn(async move { group::get(&table).await });
        assert_ne!(answer(get).await, PROOFLESS);
    }
    let counts = group.counts();
    assert!((1..=5).contains(&counts[PROOFLESS]), "it steps back: {counts:?}");
    assert!(counts[LEADER] > 20 && counts[1] > 20, "the others share: {counts:?}");
    group.serve(PROOFLESS);
    let mut is_used_again = false;
    for _ in 0..200 {
        pass(ms(100)).await;
        let table = table.clone();
        let get = tokio::spawn(async move { group::get(&table).await });
        is_used_again = answer(get).await == PROOFLESS;
        if is_used_again {
            break;
        }
    }
    assert!(is_used_again, "{:?}", group.counts());
}

#[tokio::test]
async fn s06_every_attempt_says_the_same() {
    let cluster = Cluster::start().await;
    let table = cluster.reading(ReplicaRead::Follower, Some(ReadLevel::Session)).await;
    let session = Session::from_token(SessionToken::of(GROUP, 7));
    cluster.refuse(FOLLOWER, lagging());
    cluster.refuse(OTHER, Refusal::NotLeader { leader: None });
    cluster.refuse(LEARNER, Refusal::NotReady("starting".to_owned()));
    assert_eq!(get(&table.in_session(&session)).await, LEADER);
    let token = SessionToken::of(GROUP, 7).encode();
    let mut attempts = Vec::new();
    for extension in cluster.extensions() {
        assert!(extension.any_replica);
        assert_eq!(extension.read_level(), Some(ReadLevel::Session));
        assert_eq!(extension.session_token.as_deref(), Some(&token[..]));
        attempts.push(extension.attempt.unwrap());
    }
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2, 3, 4]);
}

/// A read of 100 ms, and the replicas that refuse it.
async fn refused_read() -> (Group, JoinHandle<hedgerow_client::Result<Option<bytes::Bytes>>>) {
    let group = Group::start(3).await;
    (0..3).for_each(|node| group.refuse(node, lagging()));
    let options = ClientOptions {
        operation_timeout: ms(100),
        read: ReadOptions { mode: ReplicaRead::Follower, ..ReadOptions::default() },
        ..ClientOptions::default()
    };
    let table = group.client(options).await.open_table("t").await.unwrap();
    let get = tokio::spawn(async move { table.get("h", "s").await });
    (group, get)
}

#[tokio::test(start_paused = true)]
async fn r03_a_read_that_everybody_refuses_ends_at_its_deadline_with_the_reason() {
    let (group, get) = refused_read().await;
    pass(ms(100)).await;
    let error = answer(get).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("5 entries behind"), "{error}");
    assert!(group.counts().iter().all(|count| (1..30).contains(count)), "{:?}", group.counts());
}

/// The last attempt leaves shortly before the deadline, and nobody has the time to answer it.
#[tokio::test(start_paused = true)]
async fn r03_an_attempt_that_the_deadline_cuts_short_hides_no_reason() {
    let (group, get) = refused_read().await;
    pass(ms(60)).await;
    (0..3).for_each(|node| group.silence(node));
    pass(ms(40)).await;
    let error = answer(get).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("5 entries behind"), "{error}");
}

#[tokio::test]
async fn r11_a_node_that_hangs_up_is_left_at_once() {
    let cluster = Cluster::start().await;
    cluster.answer(LEARNER, |_| Action::Close);
    let table = cluster.reading(ReplicaRead::Learner, None).await;
    for _ in 0..10 {
        assert_ne!(get(&table).await, LEADER);
    }
    assert!(cluster.counts()[LEARNER] <= 3, "{:?}", cluster.counts());
}

/// Pitfall R20: the map says that the learner serves, and it has been removed.
#[tokio::test]
async fn r20_a_learner_that_has_gone_costs_one_redirect() {
    let cluster = Cluster::start().await;
    let table = cluster.reading(ReplicaRead::Learner, None).await;
    assert_eq!(get(&table).await, LEARNER);
    cluster.refuse(LEARNER, Refusal::NotHosted);
    cluster.learners.lock().unwrap().clear();
    for _ in 0..20 {
        assert_ne!(get(&table).await, LEARNER);
    }
    assert_eq!(cluster.counts()[LEARNER], 2, "the first one served, the second one was sent on");
    assert_eq!(cluster.counts()[LEADER], 0);
}

#[tokio::test]
async fn a_session_remembers_what_it_wrote_and_read() {
    let cluster = Cluster::start().await;
    let session = Session::new();
    let table = cluster.reading(ReplicaRead::Follower, Some(ReadLevel::Session)).await.in_session(&session);
    cluster.serve(LEADER, 5);
    table.set("h", "s", "v").await.unwrap();
    assert_eq!(session.token(), SessionToken::of(GROUP, 5));
    [FOLLOWER, OTHER, LEARNER].into_iter().for_each(|node| cluster.serve(node, 9));
    get(&table).await;
    assert_eq!(session.token(), SessionToken::of(GROUP, 9));
    let read = cluster.extensions().into_iter().find(|extension| extension.any_replica).unwrap();
    assert_eq!(read.session_token.as_deref(), Some(&SessionToken::of(GROUP, 5).encode()[..]));
}

/// What another partition saw is not sent along, and nothing is sent for one that the session has not seen.
#[tokio::test]
async fn a_token_is_cut_down_to_the_partition() {
    let cluster = Cluster::start().await;
    let mut token = SessionToken::of(OTHER_GROUP, 3);
    token.observe(GroupId::new(7, 1), 3);
    let table = cluster.reading(ReplicaRead::Follower, Some(ReadLevel::Session)).await;
    get(&table.in_session(&Session::from_token(token.clone()))).await;
    token.observe(GROUP, 4);
    get(&table.in_session(&Session::from_token(token))).await;
    let mut tokens: Vec<_> = cluster.extensions().into_iter().map(|extension| extension.session_token).collect();
    tokens.sort();
    assert_eq!(tokens, [None, Some(SessionToken::of(GROUP, 4).encode().into())]);
}

#[tokio::test]
async fn a_session_remembers_a_write_that_was_sent_twice() {
    let cluster = Cluster::start().await;
    let session = Session::new();
    let table = cluster.open().await.in_session(&session);
    let calls = Mutex::new(0);
    cluster.answer(LEADER, move |_| {
        *calls.lock().unwrap() += 1;
        match *calls.lock().unwrap() {
            1 => refused(&Refusal::Unresolved),
            _ => Action::ReplyWith(done(), ReplyExtension { index: 6, ..ReplyExtension::default() }),
        }
    });
    table.set("h", "s", "v").await.unwrap();
    assert_eq!(session.token(), SessionToken::of(GROUP, 6));
}

#[tokio::test]
async fn a_session_remembers_every_partition_of_a_batch_and_the_pages_of_a_scan() {
    let cluster = Cluster::start().await;
    (0..4).for_each(|node| cluster.serve(node, 8));
    let session = Session::new();
    let table = cluster.reading(ReplicaRead::LeaderAndFollower, None).await.in_session(&session);
    let keys: Vec<(String, &str)> = (0..16).map(|index| (format!("h{index}"), "s")).collect();
    table.batch_get(keys).await.unwrap();
    let floors: Vec<_> = session.token().floors().collect();
    assert_eq!(floors, [(GROUP, 8), (OTHER_GROUP, 8)]);
    (0..4).for_each(|node| cluster.serve(node, 9));
    let mut scanner = table.scan("h", &Range::default(), ScanOptions::default()).unwrap();
    while scanner.next().await.unwrap().is_some() {}
    assert_eq!(session.token().floor(GROUP), 9);
    (0..4).for_each(|node| cluster.serve(node, 10));
    table.multi_get("h", ["s"]).await.unwrap();
    assert_eq!(session.token().floor(GROUP), 10);
}

/// Pitfall S14: at a level that looks at no token, another replica shows less than was seen.
#[tokio::test]
async fn s14_a_session_never_goes_back_at_any_level() {
    for level in [ReadLevel::Eventual, ReadLevel::Bounded(Duration::from_secs(5)), ReadLevel::Session] {
        let cluster = Cluster::start().await;
        cluster.serve(LEADER, 9);
        [FOLLOWER, OTHER, LEARNER].into_iter().for_each(|node| cluster.serve(node, 4));
        let session = Session::new();
        let table = cluster.reading(ReplicaRead::Follower, Some(level)).await.in_session(&session);
        table.set("h", "s", "v").await.unwrap();
        assert_eq!(get(&table).await, LEADER, "{level}");
        assert_eq!(session.token().floor(GROUP), 9);
        // Another session may see the older state.
        let other = table.in_session(&Session::new());
        cluster.serve(LEADER, 4);
        get(&other).await;
    }
}

#[tokio::test]
async fn a_handle_keeps_its_session_when_it_is_read_otherwise() {
    let cluster = Cluster::start().await;
    cluster.serve(LEADER, 5);
    let session = Session::new();
    let table = cluster.open().await.in_session(&session).reading(ReadOptions::default());
    assert_eq!(get(&table).await, LEADER);
    assert_eq!(session.token(), SessionToken::of(GROUP, 5));
}

/// Answers the first page of a scan with an open context, and the second from it.
fn paging(request: &Request) -> Action {
    Action::Reply(match &request.body {
        Body::GetScanner(open) if open.start_inclusive => page(&["1", "2"], 7),
        Body::GetScanner(_) | Body::Scan(_) => page(&["3"], SCAN_DONE),
        _ => done(),
    })
}

#[tokio::test]
async fn a_scan_stays_at_the_node_that_holds_it() {
    for _ in 0..10 {
        let cluster = Cluster::start().await;
        (0..4).for_each(|node| cluster.answer(node, paging));
        let level = Some(ReadLevel::Eventual);
        let table = cluster.reading(ReplicaRead::LeaderAndFollower, level).await;
        let mut scanner = table.scan("h", &Range::default(), ScanOptions::default()).unwrap();
        let mut count = 0;
        while scanner.next().await.unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
        let mut counts = cluster.counts();
        counts.sort_unstable();
        assert_eq!(counts, [0, 0, 0, 2]);
        assert!(cluster.extensions().iter().all(|sent| sent.any_replica && sent.read_level() == level));
    }
}

#[tokio::test]
async fn a_scan_whose_node_is_lost_goes_on_elsewhere_behind_the_last_row() {
    for lost in [|| Action::Close, || refused(&Refusal::Stopping("draining".to_owned())), || refused(&lagging())] {
        let cluster = Cluster::start().await;
        (0..4).for_each(|node| {
            cluster.answer(node, move |request| match &request.body {
                Body::Scan(_) => lost(),
                _ => paging(request),
            });
        });
        let session = Session::from_token(SessionToken::of(GROUP, 3));
        let table = cluster.reading(ReplicaRead::Follower, Some(ReadLevel::Session)).await.in_session(&session);
        let mut scanner = table.scan("h", &Range::default(), ScanOptions::default()).unwrap();
        let mut keys = Vec::new();
        while let Some(row) = scanner.next().await.unwrap() {
            keys.push(row.sort_key);
        }
        assert_eq!(keys, ["1", "2", "3"]);
        let requests: Vec<Request> = cluster.nodes.iter().flat_map(Fake::requests).collect();
        let again = requests.iter().find_map(|request| match &request.body {
            Body::GetScanner(open) if !open.start_inclusive => Some((open, request)),
            _ => None,
        });
        let (open, request) = again.unwrap();
        assert_eq!(open.start_key, key::full_key(b"h", b"2"));
        let holders = cluster.nodes.iter().filter(|node| !node.requests().is_empty()).count();
        assert_eq!((holders, cluster.counts()[LEADER]), (2, 0), "the lost one has stepped back");
        assert_eq!(request.header.extension.as_ref().unwrap().read_level(), Some(ReadLevel::Session));
        assert!(request.header.extension.as_ref().unwrap().session_token.is_some());
    }
}

#[tokio::test]
async fn r03_a_scan_that_is_lost_again_and_again_ends() {
    let cluster = Cluster::start().await;
    (0..4).for_each(|node| {
        cluster.answer(node, |request| match &request.body {
            // Nothing matched so far, and then the context is gone.
            Body::GetScanner(_) => Action::Reply(page(&[], 7)),
            _ => refused(&Refusal::Busy("full".to_owned())),
        });
    });
    let table = cluster.reading(ReplicaRead::Follower, None).await;
    let mut scanner = table.scan("h", &Range::default(), ScanOptions::default()).unwrap();
    assert_eq!(scanner.next().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn an_observer_hears_who_served_every_read() {
    let cluster = Cluster::start().await;
    let address = cluster.nodes[LEARNER].address;
    let extension = ReplyExtension {
        served_by: Text::from(address.to_string()),
        index: 12,
        staleness_ms: Some(250),
        queue_us: 30,
        service_us: 7,
        ..ReplyExtension::default()
    };
    let sent = extension.clone();
    cluster.answer(LEARNER, move |request| match &request.body {
        Body::GetScanner(_) => Action::ReplyWith(page(&["1"], SCAN_DONE), sent.clone()),
        Body::BatchGet(_) => Action::ReplyWith(Reply::BatchGet(Default::default()), sent.clone()),
        _ => Action::ReplyWith(value(b"3"), sent.clone()),
    });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let seen = seen.clone();
        Observer::new(move |served: &Served| seen.lock().unwrap().push(served.clone()))
    };
    let options = ReadOptions { mode: ReplicaRead::Learner, observer: Some(observer), ..ReadOptions::default() };
    let table = cluster.open().await.reading(options);
    get(&table).await;
    let expected = Served {
        node: address,
        role: Some(Role::Learner),
        partition: GROUP.partition,
        index: 12,
        staleness: Some(Duration::from_millis(250)),
        attempts: 1,
        queue: Some(Duration::from_micros(30)),
        service: Some(Duration::from_micros(7)),
        level: None,
        kind: hedgerow_client::Kind::First,
        mode: None,
    };
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [expected]);
    table.batch_get([("h", "1"), ("h", "2"), ("a", "1"), ("b", "1"), ("c", "1")]).await.unwrap();
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), 2, "one for each partition");
    while table.scan_all(ScanOptions::default()).next_page().await.unwrap().is_none() {}
    assert_eq!(std::mem::take(&mut *seen.lock().unwrap()).len(), 1);
    table.set("h", "s", "v").await.unwrap();
    assert!(seen.lock().unwrap().is_empty(), "only reads");
    cluster.refuse(LEARNER, lagging());
    get(&table).await;
    let served = seen.lock().unwrap().pop().unwrap();
    assert_eq!((served.attempts, served.role), (2, Some(Role::Follower)));
}
