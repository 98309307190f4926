//! From the faults that are on to what each node is told.

use crate::plan::Plan;
use crate::schedule::{Event, Switch, Where};
use hedgerow_env::fault::{Clients, Link, Shape, Switches};
use std::collections::BTreeMap;

/// The switches of `node` while `active` is on. Faults that are no switches of a node (stalls, kills, processes) count
/// nothing here.
pub fn switches<'a>(plan: &Plan, node: u16, active: impl Iterator<Item = &'a Event>) -> Switches {
    let mut slow_us = 0_u64;
    let mut cpu_percent: Option<u8> = None;
    let mut links: BTreeMap<String, Link> = BTreeMap::new();
    for event in active {
        match (&event.switch, &event.place) {
            (Switch::Slow(delay), Where::Node(slow)) if *slow == node => {
                slow_us = slow_us.saturating_add(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
            }
            (Switch::Share(percent), Where::Node(small)) if *small == node => {
                cpu_percent = Some(cpu_percent.map_or(*percent, |other| other.min(*percent)));
            }
            (Switch::Link(there, back), Where::Link(a, b)) => {
                if plan.place(a).nodes.contains(&node) {
                    add(&mut links, plan, b, *there, *back);
                }
                // Within one place there is only one direction.
                if a != b && plan.place(b).nodes.contains(&node) {
                    add(&mut links, plan, a, *back, *there);
                }
            }
            _ => {}
        }
    }
    Switches { slow_us, links: links.into_values().collect(), cpu_percent }
}

fn add(links: &mut BTreeMap<String, Link>, plan: &Plan, place: &str, outgoing: Shape, incoming: Shape) {
    let link = links.entry(place.to_owned()).or_insert_with(|| {
        let place = plan.place(place);
        Link { place: place.name, nodes: place.nodes, clients: place.clients, ..Link::default() }
    });
    link.outgoing = link.outgoing.and(outgoing);
    if link.clients != Clients::None {
        link.incoming = link.incoming.and(incoming);
    }
}
