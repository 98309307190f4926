//! A forwarding proxy for TCP: bytes pass unchanged, but later, slower, or not at all for a while. It knows nothing of what
//! they mean, so that it stands in front of any store.
//!
//! ```text
//! client ──> reader ──> queue, each piece with the time at which it may leave ──> writer ──> server      (forth)
//! client <── writer <── queue <────────────────────────────────────────────────── reader <── server      (back)
//! ```
//!
//! Connections share the bandwidth of a direction. Establishing a connection takes no longer than without a delay.
#![allow(clippy::disallowed_methods, reason = "the one place where the proxy starts its tasks")]

mod alarm;
mod pipe;

use crate::hog::Hog;
use crate::schedule::{Competitor, Event, Switch};
use crate::target::Target;
use alarm::Alarm;
use anyhow::{Context as _, Result, bail};
use hedgerow_env::Clock as _;
use hedgerow_env::fault::{Action, Clients, Command, Shape, Switches};
use hedgerow_env::os::{OsClock, spawn_thread};
use pipe::{Line, carry};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;

/// Time between two attempts to accept after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A direction through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    Forth,
    /// From the server to clients.
    Back,
}

/// A running proxy, on a thread of its own. Dropping it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Shape(Direction, Shape),
    Cut(Direction, bool),
    Stall(Duration),
    CloseAll,
}

impl Proxy {
    /// Listens at `listen` (port 0 = a free one) and forwards every connection to `to`.
    pub fn start(listen: SocketAddr, to: SocketAddr) -> Result<Self> {
        let context = || format!("listening at {listen}");
        let listener = StdTcpListener::bind(listen).with_context(context)?;
        listener.set_nonblocking(true).with_context(context)?;
        let address = listener.local_addr().with_context(context)?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let body = move || {
            if let Err(error) = run(listener, to, inbox) {
                tracing::error!(%error, %address, "a proxy could not go on");
            }
        };
        spawn_thread("proxy", body).context("starting the proxy's thread")?;
        Ok(Self { address, orders })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delay and bandwidth of what comes in from now on.
    pub fn set(&self, direction: Direction, shape: Shape) {
        self.order(Order::Shape(direction, shape));
    }

    /// Lets nothing pass in a direction until it is told otherwise. Connections stay, and so do the bytes on their way.
    pub fn cut(&self, direction: Direction, is_cut: bool) {
        self.order(Order::Cut(direction, is_cut));
    }

    /// Lets nothing pass for `time`, in both directions.
    pub fn stall(&self, time: Duration) {
        self.order(Order::Stall(time));
    }

    /// Breaks all connections; new ones are taken.
    pub fn close_all(&self) {
        self.order(Order::CloseAll);
    }

    fn order(&self, order: Order) {
        // The thread ends before its orders do only if it could not go on, which it has said.
        let _ = self.orders.send(order);
    }

    /// What the switches of a node mean for the proxy in front of it.
    fn switch(&self, switches: &Switches) {
        let to_clients = switches.links.iter().filter(|link| link.clients != Clients::None);
        let (mut forth, mut back) = (Shape::default(), Shape { delay_us: switches.slow_us, bytes_per_second: None });
        for link in to_clients {
            forth = forth.and(link.incoming);
            back = back.and(link.outgoing);
        }
        self.set(Direction::Forth, forth);
        self.set(Direction::Back, back);
    }
}

/// What the proxy's tasks share.
struct State {
    to: SocketAddr,
    forth: Line,
    back: Line,
    alarm: Alarm,
    close_all: Notify,
}

impl State {
    fn line(&self, direction: Direction) -> &Line {
        match direction {
            Direction::Forth => &self.forth,
            Direction::Back => &self.back,
        }
    }

    fn obey(&self, order: Order) {
        match order {
            Order::Shape(direction, shape) => self.line(direction).set(shape),
            Order::Cut(direction, is_cut) => self.line(direction).cut(is_cut),
            Order::Stall(time) => {
                let until = OsClock.now() + time;
                self.forth.stall(until);
                self.back.stall(until);
            }
            Order::CloseAll => self.close_all.notify_waiters(),
        }
    }
}

fn run(listener: StdTcpListener, to: SocketAddr, mut orders: mpsc::UnboundedReceiver<Order>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::from_std(listener)?;
        let (alarm, close_all) = (Alarm::new()?, Notify::new());
        let state = Rc::new(State { to, forth: Line::new(), back: Line::new(), alarm, close_all });
        tokio::task::spawn_local(accept(Rc::clone(&state), listener));
        loop {
            tokio::select! {
                result = state.alarm.serve() => return result,
                order = orders.recv() => match order {
                    Some(order) => state.obey(order),
                    None => return Ok(()),
                },
            }
        }
    })
}

async fn accept(state: Rc<State>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::task::spawn_local(serve(Rc::clone(&state), stream))),
            Err(error) => {
                // Out of descriptors, most likely: others may be closed meanwhile.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(state: Rc<State>, mut client: TcpStream) {
    let mut server = match TcpStream::connect(state.to).await {
        Ok(server) => server,
        Err(error) => {
            tracing::debug!(%error, to = %state.to, "the server of a proxy cannot be reached");
            return reset(&client);
        }
    };
    let result = tokio::select! {
        result = forward(&state, &mut client, &mut server) => result,
        () = state.close_all.notified() => Err(io::ErrorKind::ConnectionAborted.into()),
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a forwarded connection broke");
        reset(&client);
        reset(&server);
    }
}

async fn forward(state: &State, client: &mut TcpStream, server: &mut TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        carry(from_client, to_server, &state.forth, &state.alarm),
        carry(from_server, to_client, &state.back, &state.alarm),
    )
    .map(drop)
}

/// Makes the stream's closing a reset: a stream that broke must not look like one that ended.
fn reset(stream: &TcpStream) {
    // Fails only on a socket that is no longer connected, where there is nothing to be told.
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Proxies as the nodes of a plan: the first stands for node 1. What happens between nodes does not pass through them.
#[derive(Debug)]
pub struct Proxies(pub Vec<Proxy>);

impl Target for Proxies {
    fn nodes(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    fn check(&self, event: &Event) -> Result<()> {
        match event.switch {
            Switch::Stall | Switch::Slow(_) | Switch::Link(..) => Ok(()),
            Switch::Share(_) | Switch::Compete(_) | Switch::Kill => {
                bail!("a proxy can make stall, slow and link only")
            }
        }
    }

    async fn command(&self, command: &Command) -> Result<()> {
        let proxy = command.node.checked_sub(1).and_then(|index| self.0.get(usize::from(index)));
        let proxy = proxy.with_context(|| format!("there is no proxy for node {}", command.node))?;
        command.check().map_err(anyhow::Error::msg)?;
        match &command.action {
            Action::Set(switches) => proxy.switch(switches),
            Action::Stall(stall) => proxy.stall(Duration::from_micros(stall.lasts_us)),
        }
        Ok(())
    }

    async fn kill(&self, _: u16) -> Result<()> {
        bail!("a proxy cannot kill")
    }

    async fn start(&self, _: u16) -> Result<()> {
        bail!("a proxy cannot start a node")
    }

    fn compete(&self, _: u16, _: &Competitor) -> Result<Hog> {
        bail!("a proxy cannot compete")
    }
}
