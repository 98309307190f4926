//! What shards go by of the rest of the node, which makes it. A shard has it as a whole that nobody changes; what changes is a new one.

use crate::address::Addresses;
use crate::config::Config;
use crate::node::Node;
use crate::room::Room;
use hedgerow_env::Now;
use hedgerow_placement::{Catalogue, Clock, ClockWord, Settings, Table};
use hedgerow_types::{GroupId, NodeId, Refusal, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is known of the cluster and of the node's own state. A new one is made many times in a second, so that what may be large is shared.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// What this node acts on: the newest catalogue it has seen.
    pub(crate) catalogue: Option<Arc<Catalogue>>,
    /// The tables' options, by table.
    pub(crate) settings: Arc<BTreeMap<TableId, Settings>>,
    /// The nodes that have replicas of each table, or are to have some.
    pub(crate) hosts: Arc<BTreeMap<TableId, BTreeSet<NodeId>>>,
    /// Where the nodes are.
    pub(crate) addresses: Arc<Addresses>,
    /// What time it is.
    pub(crate) clock: Clock,
    /// The nodes that have been heard of lately, this one included.
    pub(crate) alive: BTreeSet<NodeId>,
    /// Of groups here that know no leader: how many of the voters are up.
    pub(crate) leaderless: Arc<BTreeMap<GroupId, usize>>,
    /// What the founding of the cluster waits for, if it does.
    pub(crate) forming: Arc<str>,
    /// The node hands over what it leads and will stop.
    pub(crate) is_draining: bool,
    /// Flushes do not keep up with writes.
    pub(crate) is_storage_behind: bool,
    /// What the disks have room for.
    pub(crate) room: Arc<Room>,
}

impl View {
    /// Nothing is known but the configuration.
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            catalogue: None,
            settings: Arc::default(),
            hosts: Arc::default(),
            addresses: Arc::new(Addresses::new(config)),
            clock: Clock::new(config.node, config.peers.len(), config.clock_skew_max),
            alive: BTreeSet::from([config.node]),
            leaderless: Arc::default(),
            forming: Arc::default(),
            is_draining: false,
            is_storage_behind: false,
            room: Arc::new(Room::new(config)),
        }
    }

    /// Goes by `catalogue` from now on.
    pub(crate) fn go_by(&mut self, catalogue: Arc<Catalogue>) {
        let settings = |table: &Table| Settings::from_options(&table.options).unwrap_or_default();
        self.settings = Arc::new(catalogue.tables.iter().map(|(id, table)| (*id, settings(table))).collect());
        self.hosts = Arc::new(catalogue.tables.iter().map(|(id, table)| (*id, table.hosts())).collect());
        self.catalogue = Some(catalogue);
    }

    /// Which catalogue this is; 0 = none.
    pub(crate) fn catalogue_version(&self) -> u64 {
        self.catalogue.as_ref().map_or(0, |catalogue| catalogue.version)
    }

    pub(crate) fn settings(&self, table: TableId) -> Option<&Settings> {
        self.settings.get(&table)
    }

    /// The time that counts, for an event that came when this node's own clocks showed `now`. Wall time 0 = not known.
    pub(crate) fn agreed(&self, now: Now) -> Now {
        let agreed = Now { unix_micros: self.clock.unix_micros(now.instant).unwrap_or(0), ..now };
        #[cfg(feature = "mutations")]
        let agreed = crate::mutation::agreed(agreed, now);
        agreed
    }

    /// Whether this node has just started, or was away, and does not know yet what time it is. Rows that have expired meanwhile,
    /// which others no longer show, would be alive here.
    pub(crate) fn awaits_time(&self, now: Now) -> bool {
        now.unix_micros == 0 && self.clock.is_awaited(now.instant)
    }

    /// Whether a time that is known is the word of a majority, and not what it was held at.
    pub(crate) fn is_agreed(&self, now: Now) -> bool {
        now.unix_micros != 0 && self.clock.word() == ClockWord::Agreed
    }

    /// Why replicas of this node that do not lead should leave reads to others, if they should.
    pub(crate) const fn why_not_follow(&self) -> Option<&'static str> {
        if self.is_draining {
            Some("the node is about to stop")
        } else if self.is_storage_behind {
            Some("the node's disk does not keep up with writes")
        } else {
            None
        }
    }

    /// What everybody is told who asks for something while the node knows no catalogue.
    pub(crate) fn no_catalogue(&self) -> Refusal {
        match &*self.forming {
            "" => Refusal::NotReady("the cluster is being formed".into()),
            forming => Refusal::NotReady(forming.to_owned()),
        }
    }

    /// What a request is told for a group that does not run here, though it `is_starting` perhaps.
    pub(crate) fn why_not_hosted(&self, group: GroupId, is_starting: bool) -> Refusal {
        let Some(catalogue) = &self.catalogue else {
            return self.no_catalogue();
        };
        match catalogue.tables.get(&group.table) {
            // Others may know it.
            None if group.table.0 >= catalogue.next_table => Refusal::NotHosted,
            None => Refusal::NoTable,
            Some(table) if table.dropped.is_some() => Refusal::NoTable,
            Some(_) if is_starting => Refusal::NotReady("the replica is starting".into()),
            Some(_) => Refusal::NotHosted,
        }
    }

    /// What somebody is told who cannot be served for want of a leader: how many of the voting replicas are there, on nodes that are up.
    pub(crate) fn no_leader_text(&self, group: GroupId) -> String {
        let voters = self.catalogue.as_ref().and_then(|it| it.group(group)).map_or(0, |it| it.voters().count());
        match self.leaderless.get(&group) {
            Some(up) => format!("no leader: {up} of {voters} replicas up"),
            None => "no leader yet".to_owned(),
        }
    }
}

impl Node {
    /// Has the shard go by something else from now on.
    pub(crate) fn change_view<R>(&mut self, change: impl FnOnce(&mut View) -> R) -> R {
        let changed = change(Arc::make_mut(&mut self.view));
        self.shards.show(&self.view);
        changed
    }

    /// As [`Node::change_view`], of where the nodes are.
    pub(crate) fn change_addresses<R>(&mut self, change: impl FnOnce(&mut Addresses) -> R) -> R {
        self.change_view(|view| change(Arc::make_mut(&mut view.addresses)))
    }

    /// As [`Node::change_view`], of what the disks have room for.
    pub(crate) fn change_room<R>(&mut self, change: impl FnOnce(&mut Room) -> R) -> R {
        self.change_view(|view| change(Arc::make_mut(&mut view.room)))
    }
}
