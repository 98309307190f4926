//! Plans: what is read, what is refused and why, and what becomes of them.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that reads the repository's own files")]

use hedgerow_env::fault::{Clients, Shape, Switches};
use hedgerow_faults::{Event, Plan, Switch, Where, switches};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn plan(faults: &str) -> Plan {
    Plan::parse(&format!("name = \"test\"\nseed = 5\n{faults}")).unwrap()
}

fn refusal(faults: &str) -> String {
    Plan::parse(&format!("name = \"test\"\nseed = 5\n{faults}")).unwrap_err().to_string()
}

#[test]
fn the_plans_of_the_program_can_be_carried_out_by_three_nodes() {
    for name in Plan::names() {
        let plan = Plan::named(name).unwrap();
        assert_eq!(plan.name, name);
        assert!(!plan.about.is_empty(), "{name}");
        plan.check_nodes(3).unwrap();
        assert!(!plan.schedule(3, HOUR).is_empty(), "{name}");
    }
}

#[test]
fn every_file_of_the_folder_is_a_plan_of_the_program() {
    let folder = std::fs::read_dir(std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/plans").unwrap();
    let mut files: Vec<String> =
        folder.map(|file| file.unwrap().file_name().into_string().unwrap().replace(".toml", "")).collect();
    files.sort();
    let mut names: Vec<&str> = Plan::names().collect();
    names.sort_unstable();
    assert_eq!(files, names);
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_one_others() {
    for name in Plan::names().filter(|name| !["slow", "link", "share"].contains(name)) {
        let plan = Plan::named(name).unwrap();
        let events = plan.schedule(3, HOUR);
        assert_eq!(events, Plan::named(name).unwrap().schedule(3, HOUR), "{name}");
        assert_ne!(events, plan.with_seed(2).schedule(3, HOUR), "{name}");
    }
}

#[test]
fn a_longer_run_begins_like_a_shorter_one() {
    for name in Plan::names() {
        let plan = Plan::named(name).unwrap();
        let minute = Duration::from_secs(60);
        let short: Vec<Event> = plan.schedule(3, minute).into_iter().filter(|event| event.end() < minute).collect();
        let long: Vec<Event> = plan.schedule(3, HOUR).into_iter().filter(|event| event.end() < minute).collect();
        assert_eq!(short, long, "{name}");
    }
}

#[test]
fn one_more_node_does_not_disturb_the_others() {
    let plan = Plan::named("stall").unwrap();
    let of_three = plan.schedule(3, HOUR);
    let of_five: Vec<Event> = plan.schedule(5, HOUR).into_iter().filter(|event| event.node() <= Some(3)).collect();
    assert_eq!(of_three, of_five);
}

#[test]
fn stalls_come_at_their_rate_independently_and_never_two_at_once_on_a_node() {
    let events = Plan::named("stall").unwrap().schedule(3, HOUR);
    let mut beginnings = Vec::new();
    for node in 1..=3 {
        let of_node: Vec<&Event> = events.iter().filter(|event| event.node() == Some(node)).collect();
        // 2 to 8 s between them: 5 on average, 720 in an hour.
        assert!((690..=750).contains(&of_node.len()), "{} stalls of node {node}", of_node.len());
        let still: f64 = of_node.iter().map(|event| event.lasts.as_secs_f64()).sum();
        assert!((still / 3_600.0 - 0.022).abs() < 0.002, "node {node} stands still for {still} s");
        for pair in of_node.windows(2) {
            assert!(pair[0].end() <= pair[1].at);
            let gap = pair[1].at - pair[0].at;
            assert!((2.0..8.0).contains(&gap.as_secs_f64()), "{gap:?}");
        }
        assert!(of_node.iter().all(|event| (0.020..0.200).contains(&event.lasts.as_secs_f64())));
        beginnings.push(of_node[0].at);
    }
    beginnings.dedup();
    assert_eq!(beginnings.len(), 3);
}

#[test]
fn begin_and_end_bound_what_happens() {
    let plan = plan("[[fault]]\nkind = \"stall\"\nbegin = \"10s\"\nend = \"20s\"\nevery = \"1s\"\nlasts = \"900ms\"");
    let events = plan.schedule(2, HOUR);
    assert!(events.len() >= 18, "{}", events.len());
    assert!(events.iter().all(|event| event.at >= Duration::from_secs(10) && event.end() <= Duration::from_secs(20)));
}

#[test]
fn without_every_it_happens_once_and_without_lasts_until_the_end() {
    let plan = plan(
        "[[fault]]\nkind = \"kill\"\nnodes = [2]\nbegin = \"5s\"\nlasts = \"8s\"
         [[fault]]\nkind = \"slow\"\nnodes = [3]\nbegin = \"30s\"\ndelay = \"1ms..3ms\"",
    );
    let events = plan.schedule(3, Duration::from_secs(60));
    let spans: Vec<_> = events.iter().map(|event| (event.label(), event.at.as_secs(), event.lasts.as_secs())).collect();
    assert_eq!(spans, [("kill node 2".to_owned(), 5, 8), ("slow node 3".to_owned(), 30, 30)]);
    let Switch::Slow(delay) = events[1].switch else { panic!("{:?}", events[1]) };
    assert!((1_000..3_000).contains(&delay.as_micros()), "{delay:?}");
}

#[test]
fn any_hits_every_node_at_some_time_and_one_at_a_time() {
    let events = Plan::named("kill").unwrap().schedule(3, HOUR);
    for node in 1..=3 {
        assert!(events.iter().filter(|event| event.node() == Some(node)).count() > 20);
    }
    assert!(events.windows(2).all(|pair| pair[0].end() <= pair[1].at));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_does() {
    let cases = [
        ("[[fault]]\nkind = \"stall\"", "lasts is missing"),
        ("[[fault]]\nkind = \"stall\"\nlasts = \"2min\"", "at most 60s"),
        ("[[fault]]\nkind = \"stall\"\nlasts = \"1s\"\nevery = \"1ms\"", "at least 10ms"),
        ("[[fault]]\nkind = \"stall\"\nlasts = \"1s\"\ndelay = \"1ms\"", "delay means nothing for stall"),
        ("[[fault]]\nkind = \"slow\"", "delay is missing"),
        ("[[fault]]\nkind = \"slow\"\ndelay = \"5\"", "20ms"),
        ("[[fault]]\nkind = \"slow\"\ndelay = \"5ms\"\nbegin = \"5s\"\nend = \"5s\"", "after begin"),
        ("[[fault]]\nkind = \"slow\"\ndelay = \"5ms\"\nnodes = \"all\"", "\"any\""),
        ("[[fault]]\nkind = \"slow\"\ndelay = \"5ms\"\nnodes = []", "the list is empty"),
        ("[[fault]]\nkind = \"cpu\"\npercent = 101", "1 to 100"),
        ("[[fault]]\nkind = \"share\"", "percent is missing"),
        ("[[fault]]\nkind = \"share\"\npercent = 0", "1 to 100"),
        ("[[fault]]\nkind = \"share\"\npercent = 9\nthreads = 2", "threads means nothing for share"),
        ("[[fault]]\nkind = \"disk\"\nwrite_size = \"1GiB\"", "64MiB"),
        ("[[fault]]\nkind = \"link\"\ndelay = \"1ms\"", "between is missing"),
        ("[[fault]]\nkind = \"link\"\nbetween = [\"east\", \"clients\"]\ndelay = \"1ms\"", "no place \"east\""),
        ("[[fault]]\nkind = \"link\"\nbetween = [\"node 1\", \"clients\"]\nbandwidth = \"1MB\"", "mbit"),
        ("[[fault]]\nkind = \"link\"\nbetween = [\"node 1\", \"clients\"]\nnodes = [1]\ndelay = \"1ms\"", "two places"),
        ("[[fault]]\nkind = \"flood\"", "stall"),
        ("[[fault]]\nkind = \"kill\"\nlasts = \"1s\"\nsignal = 9", "signal"),
        ("[[place]]\nname = \"clients\"", "cannot be called so"),
        ("[[place]]\nname = \"a\"\nnodes = [1]\n[[place]]\nname = \"b\"\nnodes = [1]", "node 1 is at \"a\""),
        ("[[place]]\nname = \"a\"\nclients = [\"here\"]", "no IP address"),
        (
            "[[place]]\nname = \"a\"\nnodes = [1]\n[[fault]]\nkind = \"link\"\nbetween = [\"node 1\", \"a\"]\ndelay = \"1ms\"",
            "node 1 is at \"a\"",
        ),
    ];
    for (faults, expected) in cases {
        let text = refusal(faults);
        assert!(text.contains(expected), "{faults}\n-> {text}");
    }
    assert!(Plan::named("x").unwrap_err().to_string().contains("stall"));
    assert!(plan("[[fault]]\nkind = \"kill\"\nnodes = [4]\nlasts = \"1s\"").check_nodes(3).is_err());
    assert!(Plan::named("link").unwrap().check_nodes(2).is_err());
}

#[test]
fn a_link_is_shaped_once_in_each_direction() {
    let plan = Plan::named("link").unwrap();
    let events = plan.schedule(3, HOUR);
    let of = |node| switches(&plan, node, events.iter());
    let far = Shape { delay_us: 14_000, bytes_per_second: Some(37_125_000) };
    let [east] = &of(1).links[..] else { panic!("{:?}", of(1)) };
    assert_eq!((&east.place[..], &east.nodes[..], &east.clients), ("west", &[2, 3][..], &Clients::Others));
    assert_eq!((east.outgoing, east.incoming), (far, far));
    // Without clients at the other end nothing has to be shaped on its way in: the other nodes shape what they send.
    let [west] = &of(2).links[..] else { panic!("{:?}", of(2)) };
    assert_eq!((&west.nodes[..], west.outgoing, west.incoming), (&[1][..], far, Shape::default()));
    assert_eq!(of(2), of(3));
}

#[test]
fn one_way_links_and_several_faults_at_once_add_up() {
    let plan = plan(
        "[[fault]]\nkind = \"link\"\nbetween = [\"node 1\", \"clients\"]\ndelay = \"2ms\"\none_way = true
         [[fault]]\nkind = \"link\"\nbetween = [\"clients\", \"node 1\"]\ndelay = \"3ms\"\nbandwidth = \"8mbit\"
         [[fault]]\nkind = \"slow\"\nnodes = [1]\ndelay = \"5ms\"\n[[fault]]\nkind = \"slow\"\ndelay = \"1ms\"",
    );
    let events = plan.schedule(2, HOUR);
    let one = switches(&plan, 1, events.iter());
    assert_eq!(one.slow_us, 6_000);
    assert_eq!(one.links[0].outgoing, Shape { delay_us: 5_000, bytes_per_second: Some(1_000_000) });
    assert_eq!(one.links[0].incoming, Shape { delay_us: 3_000, bytes_per_second: Some(1_000_000) });
    assert_eq!(switches(&plan, 2, events.iter()), Switches { slow_us: 1_000, ..Switches::default() });
    assert!(switches(&plan, 1, std::iter::empty()).is_off());
}

#[test]
fn of_several_shares_the_smallest_holds() {
    let plan = plan(
        "[[fault]]\nkind = \"share\"\npercent = 15\n[[fault]]\nkind = \"share\"\nnodes = [2]\npercent = 10
         [[fault]]\nkind = \"share\"\nnodes = [1]\npercent = 80\nbegin = \"5s\"",
    );
    let events = plan.schedule(3, HOUR);
    let percent = |node| switches(&plan, node, events.iter()).cpu_percent;
    assert_eq!([1, 2, 3].map(percent), [Some(15), Some(10), Some(15)]);
    assert!(!switches(&plan, 3, events.iter()).is_off() && !switches(&plan, 3, events.iter()).delays());
    assert_eq!(events[0].label(), "share node 1");
    assert_eq!(events[0].switch.to_string(), "computes 15 % of the time at most");
}

#[test]
fn a_schedule_does_not_become_endless() {
    let week = Duration::from_secs(7 * 86_400);
    assert_eq!(Plan::named("stall").unwrap().duration_max(3), week);
    let often = plan("[[fault]]\nkind = \"stall\"\nevery = \"10ms\"\nlasts = \"1ms\"");
    let longest = often.duration_max(5);
    assert_eq!(longest, Duration::from_secs(1_000));
    let count = often.schedule(5, longest).len();
    assert!((490_000..510_000).contains(&count), "{count}");
}

#[test]
fn labels_say_what_and_where() {
    let plan = Plan::named("link").unwrap();
    let event = &plan.schedule(3, HOUR)[0];
    assert_eq!(event.place, Where::Link("east".into(), "west".into()));
    assert_eq!(event.label(), "link east - west");
    assert_eq!(event.switch.to_string(), "14ms later at 297mbit/s each way");
}
