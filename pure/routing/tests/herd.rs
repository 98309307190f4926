//! Many clients with a selector each, and servers with queues, in simulated time: nobody is flooded, and work goes
//! where it is done.

use bytes::Bytes;
use hedgerow_routing::{Address, Choice, Labels, PartitionRoute, ReplicaLoad, ReplicaRead, Selector};
use hedgerow_types::random::Random;
use hedgerow_types::{GroupId, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const GROUP: GroupId = GroupId::new(1, 0);

fn at(port: u16) -> Address {
    Address::from(([10, 0, 0, 1], port))
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// A server that serves one request after the other.
#[derive(Clone)]
struct Server {
    service: Duration,
    labels: Labels,
    queue: VecDeque<Request>,
    is_serving: bool,
}

#[derive(Clone, Copy)]
struct Request {
    client: usize,
    sent: Instant,
    arrived: Instant,
}

struct Client {
    selector: Selector,
    labels: Labels,
    random: Random,
    /// Mean time between its requests.
    pause: Duration,
}

#[derive(Clone, Copy)]
enum Event {
    Issue(usize),
    Arrive { server: usize, request: Request },
    Served { server: usize },
    Reply { server: usize, request: Request, load: ReplicaLoad },
}

/// What happens in a run.
struct World {
    mode: ReplicaRead,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// One way between a client and a server with the same labels, and with others.
    near: Duration,
    far: Duration,
    events: BTreeMap<(Instant, u64), Event>,
    count: u64,
    /// Requests that arrived at each server in each window.
    arrivals: Vec<Vec<u32>>,
    window: Duration,
    /// Time from sending to reply, of requests sent after the warm-up.
    latencies: Vec<Duration>,
    queue_max: usize,
}

impl World {
    fn new(mode: ReplicaRead, servers: &[(Duration, &str)], clients: &[(Duration, &str)]) -> Self {
        let labels = |zone: &str| Labels::default().with("zone", zone);
        let servers: Vec<Server> = servers
            .iter()
            .map(|(service, zone)| Server {
                service: *service,
                labels: labels(zone),
                queue: VecDeque::new(),
                is_serving: false,
            })
            .collect();
        let client = |(seed, (pause, zone)): (u64, &(Duration, &str))| {
            let mut selector = Selector::new(labels(zone));
            for (index, server) in servers.iter().enumerate() {
                selector.set_node_labels(at(index as u16), &server.labels);
            }
            Client { selector, labels: labels(zone), random: Random::new(seed), pause: *pause }
        };
        let clients = (1..).zip(clients).map(client).collect();
        let (near, far) = (us(250), us(250));
        let arrivals = vec![Vec::new(); servers.len()];
        let (window, latencies) = (Duration::from_millis(100), Vec::new());
        let events = BTreeMap::new();
        Self { mode, servers, clients, near, far, events, count: 0, arrivals, window, latencies, queue_max: 0 }
    }

    fn schedule(&mut self, when: Instant, event: Event) {
        self.count += 1;
        self.events.insert((when, self.count), event);
    }

    fn way(&self, client: usize, server: usize) -> Duration {
        if self.clients[client].labels == self.servers[server].labels { self.near } else { self.far }
    }

    fn run(&mut self, time: Duration) {
        for client in 0..self.clients.len() {
            self.schedule(Instant::ZERO + us(37) * client as u32, Event::Issue(client));
        }
        let end = Instant::ZERO + time;
        while let Some(((now, _), event)) = self.events.pop_first().filter(|((now, _), _)| *now < end) {
            self.handle(event, now);
        }
    }

    fn handle(&mut self, event: Event, now: Instant) {
        match event {
            Event::Issue(client) => self.issue(client, now),
            Event::Arrive { server, request } => {
                let window = (now.since(Instant::ZERO).as_nanos() / self.window.as_nanos()) as usize;
                let arrivals = &mut self.arrivals[server];
                arrivals.resize(arrivals.len().max(window + 1), 0);
                arrivals[window] += 1;
                self.servers[server].queue.push_back(request);
                self.queue_max = self.queue_max.max(self.servers[server].queue.len());
                self.serve(server, now);
            }
            Event::Served { server } => {
                let state = &mut self.servers[server];
                state.is_serving = false;
                let request = state.queue.pop_front().expect("it is being served");
                let queue = now.since(request.arrived).saturating_sub(state.service);
                let load = ReplicaLoad { in_flight: state.queue.len() as u32, service: state.service, queue };
                let arrives = now + self.way(request.client, server);
                self.schedule(arrives, Event::Reply { server, request, load });
                self.serve(server, now);
            }
            Event::Reply { server, request, load } => {
                let latency = now.since(request.sent);
                let selector = &mut self.clients[request.client].selector;
                selector.note_reply(GROUP, at(server as u16), latency, Some(load), now);
                if request.sent > Instant::ZERO + Duration::from_millis(500) {
                    self.latencies.push(latency);
                }
            }
        }
    }

    fn issue(&mut self, client: usize, now: Instant) {
        let ports = 0..self.servers.len() as u16;
        let route = PartitionRoute {
            ballot: 1,
            leader: Some(at(0)),
            followers: ports.skip(1).map(at).collect(),
            learners: Vec::new(),
            start: Bytes::new(),
        };
        let choice = Choice {
            group: GROUP,
            route: &route,
            leader: route.leader,
            mode: self.mode,
            tried: &[],
            excluded: &[],
            size_hint: 0,
        };
        let Client { selector, random, pause, .. } = &mut self.clients[client];
        let address = selector.choose(&choice, now, random).expect("there are replicas");
        selector.note_sent(address, now);
        // Sums of uniform times are close enough to how requests come.
        let pause = (*pause * random.below(1_000) as u32 + *pause * random.below(1_000) as u32) / 1_000;
        let server = usize::from(address.port());
        let arrives = now + self.way(client, server);
        self.schedule(arrives, Event::Arrive { server, request: Request { client, sent: now, arrived: arrives } });
        self.schedule(now + pause, Event::Issue(client));
    }

    fn serve(&mut self, server: usize, now: Instant) {
        let state = &mut self.servers[server];
        if !state.is_serving && !state.queue.is_empty() {
            state.is_serving = true;
            let done = now + state.service;
            self.schedule(done, Event::Served { server });
        }
    }

    /// The largest share of a window's requests that one server got, as a multiple of the mean, after a warm-up.
    fn imbalance(&self) -> f64 {
        let windows = self.arrivals.iter().map(Vec::len).min().unwrap_or(0);
        let ratio = |window: usize| {
            let counts: Vec<u32> = self.arrivals.iter().map(|counts| counts[window]).collect();
            let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
            f64::from(counts.into_iter().max().unwrap_or(0)) / mean
        };
        // The last window is cut off.
        (5..windows - 1).map(ratio).fold(0.0, f64::max)
    }

    fn share(&self, server: usize) -> f64 {
        let count = |server: usize| self.arrivals[server].iter().skip(5).sum::<u32>();
        f64::from(count(server)) / f64::from((0..self.servers.len()).map(count).sum::<u32>())
    }

    fn percentile(&mut self, permille: usize) -> Duration {
        self.latencies.sort_unstable();
        self.latencies[(self.latencies.len() - 1) * permille / 1_000]
    }
}

#[test]
fn r13_sixteen_clients_with_stale_feedback_do_not_move_as_a_herd() {
    // 80 % load; a reply is as old as the way back, in the second run as old as 250 requests of a server.
    for way in [us(250), us(25_000)] {
        let servers = [(us(100), "a"); 3];
        let clients = [(us(666), "a"); 16];
        let mut world = World::new(ReplicaRead::LeaderAndFollower, &servers, &clients);
        (world.near, world.far) = (way, way);
        world.run(Duration::from_secs(4));
        let imbalance = world.imbalance();
        assert!(imbalance <= 1.3, "{imbalance}");
    }
}

/// One server in zone a, two in zone b, and three quarters of the clients in zone a, which alone would overload theirs.
fn uneven(mode: ReplicaRead) -> World {
    let servers = [(us(100), "a"), (us(100), "b"), (us(100), "b")];
    let clients: Vec<_> = (0..16).map(|index| (us(800), if index < 12 { "a" } else { "b" })).collect();
    let mut world = World::new(mode, &servers, &clients);
    world.far = us(1_000);
    world.run(Duration::from_secs(4));
    world
}

#[test]
fn r07_a_zone_with_too_few_servers_shares_its_work_with_the_next() {
    for (mode, p99_max) in [(ReplicaRead::ClosestReplicas, 60), (ReplicaRead::ClosestAdaptive, 15)] {
        let mut world = uneven(mode);
        let p99 = world.percentile(990);
        assert!(
            (0.4..0.52).contains(&world.share(0)),
            "{mode}: the near server works at its limit: {}",
            world.share(0)
        );
        assert!(p99 < Duration::from_millis(p99_max), "{mode}: {p99:?}");
    }
}

#[test]
fn r07_a_zone_that_has_room_is_not_left() {
    for mode in [ReplicaRead::ClosestReplicas, ReplicaRead::ClosestAdaptive] {
        let servers = [(us(100), "a"), (us(100), "b"), (us(100), "b")];
        let clients: Vec<_> = (0..12).map(|index| (us(2_000), if index < 4 { "a" } else { "b" })).collect();
        let mut world = World::new(mode, &servers, &clients);
        world.far = us(1_000);
        world.run(Duration::from_secs(2));
        assert!((0.32..0.35).contains(&world.share(0)), "{mode}: {}", world.share(0));
    }
}

#[test]
fn a_slow_server_gets_what_it_can_do() {
    let servers = [(us(100), "a"), (us(100), "a"), (us(1_000), "a")];
    let mut world = World::new(ReplicaRead::LeaderAndFollower, &servers, &[(us(1_000), "a"); 16]);
    world.run(Duration::from_secs(4));
    assert!(world.share(2) < 0.06, "{}", world.share(2));
}
