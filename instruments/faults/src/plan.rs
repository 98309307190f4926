//! A fault plan: a TOML file that says what goes wrong, where, when and how much. docs/faults.md has every field.

use crate::draw::Draw;
use hedgerow_env::fault::Clients;
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;

/// A plan of faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// Where everything that is drawn comes from.
    pub seed: u64,
    /// Which nodes and clients are where, as far as `link` faults need it.
    pub places: Vec<Zone>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    text: String,
}

/// Nodes and clients that are near each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// The nodes there.
    pub nodes: Vec<u16>,
    /// The clients there.
    pub clients: Clients,
}

/// One `[[fault]]` of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: Kind,
    /// Which nodes it happens to; of no meaning for links.
    pub nodes: Nodes,
    /// When it can begin, from the beginning of the run.
    pub begin: Duration,
    /// When it is over at the latest; `None` = with the run.
    pub end: Option<Duration>,
    /// Time between the beginnings of two occurrences; `None` = it happens once, at `begin`.
    pub every: Option<Draw>,
    /// How long an occurrence lasts; `None` = until the end.
    pub lasts: Option<Draw>,
}

/// Which nodes a fault happens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Every one, each independently of the others.
    Every,
    /// One that is drawn for each occurrence.
    Any,
    /// These, each independently of the others.
    These(Vec<u16>),
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// The node stops serving; its sockets stay open.
    Stall,
    /// Everything that the node sends leaves later.
    Slow {
        /// How much.
        delay: Draw,
    },
    /// Delay and bandwidth between two places.
    Link {
        /// The places: names of the plan, `node N` or `clients`.
        between: (String, String),
        /// How much later what is sent arrives, in each direction.
        delay: Draw,
        /// Bytes per second of each node's share of the link, in each direction.
        bandwidth: Option<u64>,
        /// Whether only what goes from the first place to the second is meant.
        is_one_way: bool,
    },
    /// A process beside the node's data that writes and calls fsync.
    Disk {
        /// Bytes between two calls of fsync.
        write_size: u64,
        /// Time between the end of one write and the next.
        pause: Draw,
    },
    /// A process that computes.
    Cpu {
        /// Its threads.
        threads: u16,
        /// The share of its time in which each of them computes, in percent.
        percent: u8,
    },
    /// The node's thread computes for a share of the time only, as on a smaller machine.
    Share {
        /// Percent of one core.
        percent: u8,
    },
    /// The node is killed (SIGKILL), and started again when the fault is over.
    Kill,
}

impl Kind {
    /// Its name in plans.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Slow { .. } => "slow",
            Self::Link { .. } => "link",
            Self::Disk { .. } => "disk",
            Self::Cpu { .. } => "cpu",
            Self::Share { .. } => "share",
            Self::Kill => "kill",
        }
    }
}

/// Why a text is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is no TOML, or has fields that do not exist or are of the wrong kind.
    #[error("the fault plan cannot be read: {0}")]
    Text(toml::de::Error),
    /// A place makes no sense.
    #[error("place {name:?} of the fault plan: {reason}")]
    Zone {
        /// The place.
        name: String,
        /// Why.
        reason: String,
    },
    /// A fault makes no sense.
    #[error("fault {number} ({kind}) of the fault plan: {reason}")]
    Fault {
        /// Which, from 1.
        number: usize,
        /// Its kind.
        kind: &'static str,
        /// Why.
        reason: String,
    },
    /// There is no built-in plan of that name.
    #[error("there is no fault plan {name:?}; there are {}", Plan::names().collect::<Vec<_>>().join(", "))]
    Name {
        /// The name.
        name: String,
    },
    /// The plan does not fit the cluster.
    #[error("the fault plan names node {node}, the cluster has {nodes}")]
    Node {
        /// The node that it names.
        node: u16,
        /// How many there are.
        nodes: u16,
    },
}

/// The plans that come with the program.
const BUILT_IN: [(&str, &str); 8] = [
    ("stall", include_str!("../plans/stall.toml")),
    ("slow", include_str!("../plans/slow.toml")),
    ("link", include_str!("../plans/link.toml")),
    ("disk", include_str!("../plans/disk.toml")),
    ("cpu", include_str!("../plans/cpu.toml")),
    ("share", include_str!("../plans/share.toml")),
    ("kill", include_str!("../plans/kill.toml")),
    ("stall-light", include_str!("../plans/stall-light.toml")),
];

impl Plan {
    /// Reads a plan.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let raw: RawPlan = toml::from_str(text).map_err(PlanError::Text)?;
        let places = raw.place.into_iter().map(RawPlace::check).collect::<Result<Vec<_>, _>>()?;
        crate::check::places(&places)?;
        let faults = (1..).zip(raw.fault).map(|(number, fault)| {
            let kind = fault.kind.name();
            fault.check(&places).map_err(|reason| PlanError::Fault { number, kind, reason })
        });
        Ok(Self {
            name: raw.name,
            about: raw.about,
            seed: raw.seed,
            faults: faults.collect::<Result<_, _>>()?,
            places,
            text: text.to_owned(),
        })
    }

    /// A plan that comes with the program.
    pub fn named(name: &str) -> Result<Self, PlanError> {
        let found = BUILT_IN.iter().find(|(built_in, _)| *built_in == name);
        let (_, text) = found.ok_or_else(|| PlanError::Name { name: name.to_owned() })?;
        Self::parse(text)
    }

    /// The names of the plans that come with the program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The same plan with other draws.
    pub fn with_seed(mut self, seed: u64) -> Self {
        if seed != self.seed {
            self.text = format!("# Run with seed = {seed} instead of the one below.\n{}", self.text);
            self.seed = seed;
        }
        self
    }

    /// The text that it was read from, to be kept with the results.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a cluster of nodes 1 to `nodes` has all that the plan names.
    pub fn check_nodes(&self, nodes: u16) -> Result<(), PlanError> {
        let listed = self.faults.iter().flat_map(|fault| match &fault.nodes {
            Nodes::These(these) => these.clone(),
            Nodes::Every | Nodes::Any => Vec::new(),
        });
        let placed = self.places.iter().flat_map(|place| place.nodes.clone());
        let linked = self.faults.iter().flat_map(|fault| match &fault.kind {
            Kind::Link { between: (a, b), .. } => [a, b].into_iter().filter_map(|name| node_name(name)).collect(),
            Kind::Stall
            | Kind::Slow { .. }
            | Kind::Disk { .. }
            | Kind::Cpu { .. }
            | Kind::Share { .. }
            | Kind::Kill => Vec::new(),
        });
        match listed.chain(placed).chain(linked).find(|node| *node == 0 || *node > nodes) {
            Some(node) => Err(PlanError::Node { node, nodes }),
            None => Ok(()),
        }
    }

    /// Who is at the place that a link names: the place of the plan, a node by itself, or the clients.
    pub fn place(&self, name: &str) -> Zone {
        let found = self.places.iter().find(|place| place.name == name).cloned();
        found.unwrap_or_else(|| Zone {
            name: name.to_owned(),
            nodes: node_name(name).into_iter().collect(),
            clients: if name == CLIENTS { Clients::Others } else { Clients::None },
        })
    }
}

/// The place of clients that no place of the plan names.
pub(crate) const CLIENTS: &str = "clients";

/// The node of a place `node N`.
pub(crate) fn node_name(place: &str) -> Option<u16> {
    place.strip_prefix("node ")?.parse().ok()
}

/// A plan as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    name: String,
    #[serde(default)]
    about: String,
    seed: u64,
    #[serde(default)]
    place: Vec<RawPlace>,
    #[serde(default)]
    fault: Vec<RawFault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlace {
    name: String,
    #[serde(default)]
    nodes: Vec<u16>,
    #[serde(default)]
    clients: Vec<String>,
}

impl RawPlace {
    fn check(self) -> Result<Zone, PlanError> {
        let refused = |reason: String| PlanError::Zone { name: self.name.clone(), reason };
        let clients = if self.clients.is_empty() {
            Clients::None
        } else if self.clients == ["*"] {
            Clients::Others
        } else {
            let address = |text: &String| {
                text.parse::<IpAddr>().map_err(|_| {
                    refused(format!("clients: {text:?} is no IP address; allowed are addresses, or [\"*\"] alone"))
                })
            };
            Clients::From(self.clients.iter().map(address).collect::<Result<_, _>>()?)
        };
        Ok(Zone { name: self.name, nodes: self.nodes, clients })
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RawKind {
    Stall,
    Slow,
    Link,
    Disk,
    Cpu,
    Share,
    Kill,
}

impl RawKind {
    fn name(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Slow => "slow",
            Self::Link => "link",
            Self::Disk => "disk",
            Self::Cpu => "cpu",
            Self::Share => "share",
            Self::Kill => "kill",
        }
    }
}

/// A fault as it is written. Which fields its kind has is checked afterwards, so that the message can say it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFault {
    pub(crate) kind: RawKind,
    pub(crate) nodes: Option<RawNodes>,
    pub(crate) begin: Option<String>,
    pub(crate) end: Option<String>,
    pub(crate) every: Option<Draw>,
    pub(crate) lasts: Option<Draw>,
    pub(crate) delay: Option<Draw>,
    pub(crate) between: Option<(String, String)>,
    pub(crate) bandwidth: Option<String>,
    pub(crate) one_way: Option<bool>,
    pub(crate) write_size: Option<String>,
    pub(crate) pause: Option<Draw>,
    pub(crate) threads: Option<u16>,
    pub(crate) percent: Option<u8>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "nodes: allowed are \"every\", \"any\" and a list of numbers such as [1, 3]")]
pub(crate) enum RawNodes {
    Word(RawNodesWord),
    These(Vec<u16>),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RawNodesWord {
    Every,
    Any,
}
