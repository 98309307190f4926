//! Carrying a plan out, in virtual time against nodes that only take notes.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that reads the runtime's virtual clock")]

use anyhow::{Result, bail};
use hedgerow_env::fault::{Action, Command};
use hedgerow_faults::hog::Hog;
use hedgerow_faults::{Competitor, Event, Plan, Report, Switch, Target, run};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Nodes that note what they are told and when. Node 2 takes a second for everything; node 3 refuses everything.
struct Notes {
    begin: Instant,
    nodes: u16,
    notes: Mutex<Vec<String>>,
}

impl Notes {
    fn new(nodes: u16) -> Arc<Self> {
        Arc::new(Self { begin: Instant::now(), nodes, notes: Mutex::default() })
    }

    async fn note(&self, node: u16, what: String) -> Result<()> {
        let time = self.begin.elapsed().as_secs_f64();
        self.notes.lock().unwrap().push(format!("{time:.1} node {node}: {what}"));
        if node == 3 {
            bail!("node 3 refuses");
        }
        if node == 2 {
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }
}

impl Target for Notes {
    fn nodes(&self) -> u16 {
        self.nodes
    }

    fn check(&self, event: &Event) -> Result<()> {
        if matches!(event.switch, Switch::Compete(Competitor::Cpu { .. })) {
            bail!("there is no CPU here")
        } else {
            Ok(())
        }
    }

    async fn command(&self, command: &Command) -> Result<()> {
        let what = match &command.action {
            Action::Stall(stall) => format!("stall {} ms", stall.lasts_us / 1_000),
            Action::Set(switches) => format!("slow {} ms, {} links", switches.slow_us / 1_000, switches.links.len()),
        };
        self.note(command.node, what).await
    }

    async fn kill(&self, node: u16) -> Result<()> {
        self.note(node, "kill".to_owned()).await
    }

    async fn start(&self, node: u16) -> Result<()> {
        self.note(node, "start".to_owned()).await
    }

    fn compete(&self, _: u16, _: &Competitor) -> Result<Hog> {
        bail!("nothing competes here")
    }
}

fn plan(faults: &str) -> Plan {
    Plan::parse(&format!("name = \"test\"\nseed = 5\n{faults}")).unwrap()
}

/// Runs it for `seconds`, stopped after `stop` seconds if that is earlier.
async fn carry_out(plan: &Plan, target: &Arc<Notes>, seconds: u64, stop: u64) -> Report {
    let stop = sleep(Duration::from_secs(stop));
    run(plan, target, Duration::from_secs(seconds), &mut |_: &str| {}, stop).await.unwrap()
}

fn marks(report: &Report) -> Vec<String> {
    let text = |mark: &hedgerow_report::FaultMark| format!("{} {:.1}-{:.1}", mark.label, mark.begin_s, mark.end_s);
    report.marks.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn each_node_is_told_what_concerns_it_when_it_changes() {
    let target = Notes::new(1);
    let plan = plan(
        "[[fault]]\nkind = \"slow\"\nbegin = \"1s\"\nend = \"6s\"\ndelay = \"5ms\"
         [[fault]]\nkind = \"slow\"\nbegin = \"3s\"\nend = \"4s\"\ndelay = \"20ms\"
         [[fault]]\nkind = \"stall\"\nbegin = \"5s\"\nlasts = \"200ms\"",
    );
    let report = carry_out(&plan, &target, 10, 100).await;
    let expected = [
        "1.0 node 1: slow 5 ms, 0 links",
        "3.0 node 1: slow 25 ms, 0 links",
        "4.0 node 1: slow 5 ms, 0 links",
        "5.0 node 1: stall 200 ms",
        "6.0 node 1: slow 0 ms, 0 links",
    ];
    assert_eq!(target.notes(), expected);
    assert_eq!(marks(&report), ["slow node 1 1.0-6.0", "slow node 1 3.0-4.0", "stall node 1 5.0-5.2"]);
    assert_eq!(report.marks_from(Duration::from_secs(3))[0].begin_s.round() as i64, -2);
    assert!(report.failures.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_answers_late_does_not_hold_up_the_others() {
    let target = Notes::new(2);
    let plan = plan("[[fault]]\nkind = \"slow\"\nbegin = \"1s\"\nend = \"1500ms\"\ndelay = \"5ms\"");
    let report = carry_out(&plan, &target, 10, 100).await;
    let of_one: Vec<String> = target.notes().into_iter().filter(|note| note.contains("node 1")).collect();
    assert_eq!(of_one, ["1.0 node 1: slow 5 ms, 0 links", "1.5 node 1: slow 0 ms, 0 links"]);
    assert_eq!(marks(&report), ["slow node 1 1.0-1.5", "slow node 2 2.0-3.0"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_on_at_the_end_is_switched_off_however_the_end_comes() {
    for (seconds, stop) in [(4, 100), (100, 4)] {
        let target = Notes::new(1);
        let plan = plan(
            "[[fault]]\nkind = \"slow\"\ndelay = \"5ms\"\n[[fault]]\nkind = \"kill\"\nbegin = \"2s\"\nlasts = \"50s\"",
        );
        let report = carry_out(&plan, &target, seconds, stop).await;
        let notes = target.notes();
        assert_eq!(notes[..2], ["0.0 node 1: slow 5 ms, 0 links", "2.0 node 1: kill"]);
        assert_eq!(notes[2], "4.0 node 1: start");
        assert_eq!(marks(&report), ["slow node 1 0.0-4.0", "kill node 1 2.0-4.0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_is_told_what_is_on() {
    let target = Notes::new(1);
    let plan = plan(
        "[[fault]]\nkind = \"kill\"\nbegin = \"1s\"\nlasts = \"2s\"
         [[fault]]\nkind = \"slow\"\nbegin = \"2s\"\nend = \"5s\"\ndelay = \"5ms\"",
    );
    carry_out(&plan, &target, 10, 100).await;
    let expected =
        ["1.0 node 1: kill", "3.0 node 1: start", "3.0 node 1: slow 5 ms, 0 links", "5.0 node 1: slow 0 ms, 0 links"];
    assert_eq!(target.notes(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_does_not_stall_and_makes_up_for_nothing() {
    let target = Notes::new(2);
    // Node 2 takes a second for everything, so that it is still being started when the second stall is due.
    let plan = plan(
        "[[fault]]\nkind = \"kill\"\nnodes = [2]\nbegin = \"1s\"\nlasts = \"3s\"
         [[fault]]\nkind = \"stall\"\nnodes = [2]\nbegin = \"3s\"\nlasts = \"100ms\"
         [[fault]]\nkind = \"stall\"\nnodes = [2]\nbegin = \"4500ms\"\nlasts = \"100ms\"
         [[fault]]\nkind = \"stall\"\nnodes = [2]\nbegin = \"6s\"\nlasts = \"100ms\"",
    );
    let report = carry_out(&plan, &target, 10, 100).await;
    assert_eq!(target.notes(), ["1.0 node 2: kill", "4.0 node 2: start", "6.0 node 2: stall 100 ms"]);
    assert!(report.failures.is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_faults_kill_a_node_once() {
    let target = Notes::new(1);
    let plan = plan(
        "[[fault]]\nkind = \"kill\"\nbegin = \"1s\"\nlasts = \"4s\"\n[[fault]]\nkind = \"kill\"\nbegin = \"2s\"\nlasts = \"5s\"",
    );
    carry_out(&plan, &target, 10, 100).await;
    assert_eq!(target.notes(), ["1.0 node 1: kill", "7.0 node 1: start"]);
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_done_is_told_and_has_no_mark() {
    let target = Notes::new(3);
    let plan = plan("[[fault]]\nkind = \"stall\"\nnodes = [1, 3]\nbegin = \"1s\"\nlasts = \"100ms\"");
    let report = carry_out(&plan, &target, 10, 100).await;
    assert_eq!(marks(&report), ["stall node 1 1.0-1.1"]);
    assert_eq!(report.failures, ["1.000 s: stall node 3: node 3 refuses"]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_cannot_be_carried_out_is_refused_before_it_begins() {
    let target = Notes::new(1);
    let refused = async |text: &str| {
        let plan = plan(text);
        let result = run(&plan, &target, Duration::from_secs(9), &mut |_: &str| {}, async {}).await;
        format!("{:#}", result.unwrap_err())
    };
    assert!(refused("[[fault]]\nkind = \"cpu\"\nbegin = \"5s\"").await.contains("there is no CPU here"));
    assert!(refused("[[fault]]\nkind = \"slow\"\nnodes = [2]\ndelay = \"1ms\"").await.contains("node 2"));
    assert!(target.notes().is_empty());
}
