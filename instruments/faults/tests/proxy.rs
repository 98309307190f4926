//! The proxy in front of small servers on loopback: what passes, when, and how it ends.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that measures with the real clock and runs servers on threads"
)]

use hedgerow_env::fault::Shape;
use hedgerow_faults::{Direction, Plan, Proxies, Proxy};
use proptest::prelude::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const ANYWHERE: &str = "127.0.0.1:0";
/// Ends what would otherwise hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that does `work` with each connection.
fn server(work: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(ANYWHERE).unwrap();
    let address = listener.local_addr().unwrap();
    let work = Arc::new(work);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let work = Arc::clone(&work);
            thread::spawn(move || work(stream.unwrap()));
        }
    });
    address
}

/// Sends back whatever comes, and ends when the client does.
fn echo(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(size @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..size]).is_err() {
            return;
        }
    }
}

fn proxy(to: SocketAddr) -> Proxy {
    Proxy::start(ANYWHERE.parse().unwrap(), to).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The shortest of `count` round trips of one byte.
fn round_trip(stream: &mut TcpStream, count: usize) -> Duration {
    let one = |_| {
        let begin = Instant::now();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        begin.elapsed()
    };
    (0..count).map(one).min().unwrap()
}

/// Waits for a round trip that is shorter than `delay`: while the delay is there none is, and without it one will be, however busy
/// the machine is.
fn expect_sooner_than(stream: &mut TcpStream, delay: Duration) {
    let begin = Instant::now();
    while round_trip(stream, 1) >= delay {
        assert!(begin.elapsed() < PATIENCE, "nothing comes sooner than in {delay:?}");
    }
}

fn delay(micros: u64) -> Shape {
    Shape { delay_us: micros, bytes_per_second: None }
}

/// Whether a byte comes within a time in which it surely would, if nothing held it up.
fn comes(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let result = stream.read_exact(&mut [0]);
    stream.set_read_timeout(None).unwrap();
    result.is_ok()
}

#[test]
fn a_delay_of_5_ms_each_way_adds_10_ms_to_a_round_trip() {
    let proxy = proxy(server(echo));
    let mut stream = connect(proxy.address());
    proxy.set(Direction::Forth, delay(5_000));
    let one_way = round_trip(&mut stream, 20);
    expect_sooner_than(&mut stream, Duration::from_millis(10));
    proxy.set(Direction::Back, delay(5_000));
    let both_ways = round_trip(&mut stream, 20);
    // Never less than what was asked for, and some hardly more.
    assert!(one_way >= Duration::from_millis(5) && both_ways >= Duration::from_millis(10), "{one_way:?} {both_ways:?}");
    expect_sooner_than(&mut stream, Duration::from_millis(15));
    proxy.set(Direction::Forth, Shape::default());
    proxy.set(Direction::Back, Shape::default());
    expect_sooner_than(&mut stream, Duration::from_millis(5));
}

#[test]
fn a_delay_below_a_millisecond_is_one() {
    let proxy = proxy(server(echo));
    let mut stream = connect(proxy.address());
    proxy.set(Direction::Forth, delay(200));
    let delayed = round_trip(&mut stream, 500);
    assert!(delayed >= Duration::from_micros(200), "{delayed:?}");
    expect_sooner_than(&mut stream, Duration::from_millis(1));
}

#[test]
fn bandwidth_is_kept_and_shared() {
    let proxy = proxy(server(echo));
    proxy.set(Direction::Forth, Shape { delay_us: 0, bytes_per_second: Some(1_000_000) });
    let begin = Instant::now();
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect(proxy.address());
            thread::spawn(move || {
                let bytes = vec![7; 100_000];
                stream.write_all(&bytes).unwrap();
                let mut back = vec![0; bytes.len()];
                stream.read_exact(&mut back).unwrap();
                assert_eq!(back, bytes);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    // 200,000 bytes at 1,000,000 a second.
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
}

#[test]
fn a_half_closed_connection_still_answers() {
    let proxy = proxy(server(|mut stream: TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).unwrap();
    }));
    proxy.set(Direction::Forth, delay(2_000));
    let mut stream = connect(proxy.address());
    stream.write_all(&[1; 300_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "300000 bytes");
}

#[test]
fn a_connection_that_breaks_does_not_look_like_one_that_ends() {
    let proxy = proxy(server(|stream: TcpStream| {
        // Closing with unread bytes is a reset.
        (&stream).write_all(b"x").unwrap();
        let _ = stream.peek(&mut [0]);
    }));
    let mut stream = connect(proxy.address());
    stream.read_exact(&mut [0]).unwrap();
    stream.write_all(b"never read").unwrap();
    let error = loop {
        match stream.read(&mut [0]) {
            Ok(0) => panic!("it looks like an orderly end"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_server_that_is_not_there_resets() {
    // As long as the port is bound, nobody else listens there.
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    bound.bind(&ANYWHERE.parse::<SocketAddr>().unwrap().into()).unwrap();
    let nobody = bound.local_addr().unwrap().as_socket().unwrap();
    let mut stream = connect(proxy(nobody).address());
    // The proxy is gone with the statement above, or says that nobody is there: both end the connection.
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
    let proxy = proxy(nobody);
    let mut stream = connect(proxy.address());
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn nothing_passes_a_cut_and_everything_comes_when_it_heals() {
    let proxy = proxy(server(echo));
    let mut stream = connect(proxy.address());
    assert!(round_trip(&mut stream, 1) > Duration::ZERO);
    for direction in [Direction::Forth, Direction::Back] {
        proxy.cut(direction, true);
        stream.write_all(b"x").unwrap();
        assert!(!comes(&mut stream));
        proxy.cut(direction, false);
        stream.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn closing_all_breaks_connections_and_takes_new_ones() {
    let proxy = proxy(server(echo));
    let mut stream = connect(proxy.address());
    round_trip(&mut stream, 1);
    proxy.close_all();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    round_trip(&mut connect(proxy.address()), 1);
}

#[test]
fn a_dropped_proxy_closes_its_connections() {
    let proxy = proxy(server(echo));
    let mut stream = connect(proxy.address());
    round_trip(&mut stream, 1);
    drop(proxy);
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
}

#[test]
fn a_plan_is_carried_out_by_proxies() {
    let proxies = Arc::new(Proxies(vec![proxy(server(echo))]));
    let mut stream = connect(proxies.0[0].address());
    let plan = "name = \"test\"\nseed = 1
        [[fault]]\nkind = \"slow\"\ndelay = \"3ms\"\n[[fault]]\nkind = \"link\"\nbetween = [\"clients\", \"node 1\"]\ndelay = \"2ms\"";
    let plan = Plan::parse(plan).unwrap();
    let (said, lines) = std::sync::mpsc::channel();
    let say = move |line: &str| drop(said.send(line.to_owned()));
    let running = hedgerow_faults::start(&plan, &proxies, Duration::from_secs(60), say).unwrap();
    for _ in 0..2 {
        assert!(lines.recv_timeout(Duration::from_secs(10)).unwrap().contains("later"));
    }
    let delayed = round_trip(&mut stream, 20);
    assert!(delayed >= Duration::from_millis(7), "{delayed:?}");
    let report = running.finish().unwrap();
    assert_eq!(report.marks.len(), 2);
    expect_sooner_than(&mut stream, Duration::from_millis(7));
    let refused = hedgerow_faults::start(&Plan::named("kill").unwrap(), &proxies, Duration::from_secs(60), |_| {});
    assert!(format!("{:#}", refused.unwrap_err()).contains("stall, slow and link only"));
}

fn shapes() -> impl Strategy<Value = Shape> {
    let rate = prop_oneof![Just(None), (5_000_000_u64..50_000_000).prop_map(Some)];
    (0_u64..3_000, rate).prop_map(|(delay_us, bytes_per_second)| Shape { delay_us, bytes_per_second })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the shapes are and however they change, the bytes are the same and in their order.
    #[test]
    fn bytes_pass_unchanged(
        pieces in prop::collection::vec((1_usize..40_000, any::<u8>()), 1..12),
        changes in prop::collection::vec((any::<bool>(), shapes()), 1..6),
    ) {
        let proxy = proxy(server(echo));
        let mut stream = connect(proxy.address());
        let mut sent = Vec::new();
        for (size, byte) in &pieces {
            sent.extend((0..*size).map(|index| byte.wrapping_add((index % 251) as u8)));
        }
        let mut back = stream.try_clone().unwrap();
        let size = sent.len();
        let reader = thread::spawn(move || {
            let mut all = Vec::with_capacity(size);
            back.read_to_end(&mut all).unwrap();
            all
        });
        let mut changes = changes.into_iter().cycle();
        let mut rest = &sent[..];
        for (size, _) in pieces {
            let (is_forth, shape) = changes.next().unwrap();
            proxy.set(if is_forth { Direction::Forth } else { Direction::Back }, shape);
            stream.write_all(&rest[..size]).unwrap();
            rest = &rest[size..];
        }
        stream.shutdown(Shutdown::Write).unwrap();
        prop_assert!(reader.join().unwrap() == sent);
    }
}
