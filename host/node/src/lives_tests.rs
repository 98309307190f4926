//! Tests of lives: who gets in, who does not, and who stops.

use super::*;
use hedgerow_placement::Node as NodeEntry;

const NODE: NodeId = NodeId(2);

fn life(incarnation: u64, boot: u64, start: u64) -> Life {
    Life { incarnation: Incarnation(incarnation), boot, start }
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

fn told(life: Life, logs: &[LogAt]) -> Told<'_> {
    Told { life, logs, ancestors: &[] }
}

fn why(result: Result<(), Refused>) -> Option<(u32, u64)> {
    result.err().map(|refused| (refused.reason, refused.known))
}

#[test]
fn d7_a_restart_gets_in_at_once_and_what_was_before_does_not() {
    let mut lives = Lives::default();
    let (old, new) = (life(1, 7, 70), life(1, 8, 80));
    assert_eq!(lives.meet(NODE, told(old, &[]), None, at(0)), Ok(()));
    assert_eq!(lives.meet(NODE, told(old, &[]), None, at(0)), Ok(()));
    lives.part(NODE, old);
    assert_eq!(why(lives.meet(NODE, told(new, &[]), None, at(10))), Some((RefusedFor::Beside as u32, 7)));
    lives.part(NODE, old);
    assert_eq!(lives.meet(NODE, told(new, &[]), None, at(20)), Ok(()));
    assert_eq!(lives.hear(NODE, new, None, at(30)), Ok(()));
    assert_eq!(why(lives.meet(NODE, told(old, &[]), None, at(30))), Some((RefusedFor::Older as u32, 8)));
    assert_eq!(why(lives.meet(NODE, told(life(1, 8, 81), &[]), None, at(30))), Some((RefusedFor::Second as u32, 0)));
}

#[test]
fn d7_whoever_is_silent_gives_way_and_is_not_heard_again() {
    let mut lives = Lives::default();
    let (old, new) = (life(1, 7, 70), life(1, 8, 80));
    assert_eq!(lives.meet(NODE, told(old, &[]), None, at(0)), Ok(()));
    assert_eq!(lives.hear(NODE, old, None, at(1_000)), Ok(()));
    assert_eq!(why(lives.meet(NODE, told(new, &[]), None, at(2_999))), Some((RefusedFor::Beside as u32, 7)));
    assert_eq!(lives.meet(NODE, told(new, &[]), None, at(3_000)), Ok(()));
    assert_eq!(why(lives.hear(NODE, old, None, at(3_001))), Some((RefusedFor::Older as u32, 8)));
    // The old process's connection ends; that of the new one counts on.
    lives.part(NODE, old);
    assert_eq!(why(lives.meet(NODE, told(life(1, 9, 90), &[]), None, at(3_002))), Some((RefusedFor::Beside as u32, 8)));
}

fn logs(of: &[(u64, u64)]) -> Vec<LogAt> {
    of.iter().map(|(log, batch)| LogAt { log: *log, batch: *batch }).collect()
}

#[test]
fn d7_a_process_whose_logs_have_forgotten_something_does_not_get_in() {
    let mut lives = Lives::default();
    let (old, new) = (life(1, 7, 70), life(1, 8, 80));
    assert_eq!(lives.meet(NODE, told(old, &logs(&[(1, 100)])), None, at(0)), Ok(()));
    assert_eq!(lives.meet(NODE, told(old, &logs(&[(1, 100)])), None, at(0)), Ok(()));
    lives.note_logs(NODE, &logs(&[(1, 130)]));
    lives.note_logs(NODE, &logs(&[(1, 120)]));
    lives.part(NODE, old);
    assert_eq!(
        lives.meet(NODE, told(old, &logs(&[(1, 100)])), None, at(1)),
        Ok(()),
        "another connection of the same process"
    );
    [old, old].iter().for_each(|life| lives.part(NODE, *life));
    assert_eq!(
        why(lives.meet(NODE, told(new, &logs(&[(1, 129)])), None, at(2))),
        Some((RefusedFor::Forgot as u32, 130))
    );
    assert_eq!(lives.hear(NODE, old, None, at(3)), Ok(()), "it changes nothing");
    assert_eq!(lives.meet(NODE, told(life(1, 8, 81), &logs(&[(1, 130)])), None, at(4)), Ok(()), "the node's own data");
    assert_eq!(why(lives.meet(NODE, told(new, &logs(&[(1, 129)])), None, at(5))), Some((RefusedFor::Second as u32, 0)));
    // A log that begins anew is another log.
    lives.part(NODE, life(1, 8, 81));
    assert_eq!(lives.meet(NODE, told(life(2, 1, 10), &logs(&[(2, 1)])), None, at(6)), Ok(()));
}

#[test]
fn d7_each_log_is_compared_for_itself_and_across_incarnations() {
    let mut lives = Lives::default();
    assert_eq!(lives.meet(NODE, told(life(1, 7, 70), &logs(&[(1, 100), (2, 50)])), None, at(0)), Ok(()));
    lives.part(NODE, life(1, 7, 70));
    let forgot = |known| Some((RefusedFor::Forgot as u32, known));
    // What one log has lost is not made up for by what another one has since.
    assert_eq!(why(lives.meet(NODE, told(life(1, 8, 80), &logs(&[(1, 99), (2, 500)])), None, at(1))), forgot(100));
    // Nor does it help that the other directory is empty, and the node begins another incarnation with it.
    assert_eq!(why(lives.meet(NODE, told(life(2, 8, 80), &logs(&[(1, 99), (3, 0)])), None, at(2))), forgot(100));
    // A log that is left out for a while is known when it comes back.
    assert_eq!(lives.meet(NODE, told(life(2, 8, 81), &logs(&[(1, 100)])), None, at(3)), Ok(()));
    lives.part(NODE, life(2, 8, 81));
    assert_eq!(why(lives.meet(NODE, told(life(3, 9, 90), &logs(&[(1, 100), (2, 49)])), None, at(4))), forgot(50));
    assert_eq!(lives.meet(NODE, told(life(3, 9, 91), &logs(&[(2, 50), (1, 100)])), None, at(5)), Ok(()));
}

/// The word that ends a copy at once is not held back because the process before it, which lost its power, seems to be there.
#[test]
fn d7_what_was_forgotten_is_told_while_another_process_seems_to_be_there() {
    let mut lives = Lives::default();
    assert_eq!(lives.meet(NODE, told(life(1, 7, 70), &logs(&[(1, 100)])), None, at(0)), Ok(()));
    let (copy, own) = (logs(&[(1, 99)]), logs(&[(1, 100)]));
    assert_eq!(why(lives.meet(NODE, told(life(1, 8, 80), &copy), None, at(1))), Some((RefusedFor::Forgot as u32, 100)));
    assert_eq!(why(lives.meet(NODE, told(life(1, 8, 80), &own), None, at(2))), Some((RefusedFor::Beside as u32, 7)));
}

#[test]
fn d7_the_logs_that_are_remembered_have_a_bound() {
    let mut lives = Lives::default();
    assert_eq!(lives.meet(NODE, told(life(1, 7, 70), &[]), None, at(0)), Ok(()));
    for log in 0..10_000 {
        lives.note_logs(NODE, &logs(&[(log, 1), (77_777, log)]));
    }
    let seen = &lives.others[&NODE];
    assert!(seen.logs.len() <= LOGS_MAX, "{}", seen.logs.len());
    assert_eq!(seen.logs[&77_777], 9_999, "what it has now stays");
}

#[test]
fn d7_an_incarnation_that_ended_does_not_come_back() {
    let mut lives = Lives::default();
    let (old, new) = (life(1, 7, 70), life(2, 1, 10));
    assert_eq!(lives.meet(NODE, told(old, &[]), None, at(0)), Ok(()));
    assert_eq!(why(lives.meet(NODE, told(new, &[]), None, at(1))), Some((RefusedFor::Beside as u32, 7)));
    lives.part(NODE, old);
    assert_eq!(lives.meet(NODE, told(new, &[]), None, at(2)), Ok(()));
    lives.part(NODE, new);
    assert_eq!(
        why(lives.meet(NODE, told(life(1, 8, 80), &[]), None, at(9_000))),
        Some((RefusedFor::Retired as u32, 0))
    );
}

#[test]
fn d7_the_catalogue_counts_for_a_node_that_has_seen_nothing() {
    let entry = NodeEntry { boot: 7, start: 70, ..NodeEntry::new("n:2", Incarnation(1)) };
    let catalogue = Catalogue::bootstrap(9, &[(NODE, entry)], &[NODE]).expect("a catalogue");
    let mut lives = Lives::default();
    let mut meet = |said| why(lives.meet(NODE, told(said, &[]), Some(&catalogue), at(0)));
    assert_eq!(meet(life(1, 6, 60)), Some((RefusedFor::Older as u32, 7)));
    assert_eq!(meet(life(1, 7, 71)), Some((RefusedFor::Second as u32, 0)));
    assert_eq!(meet(life(1, 7, 70)), None);
}

#[test]
fn d7_a_catalogue_that_knows_a_later_process_ends_the_connection_of_the_earlier() {
    let mut lives = Lives::default();
    assert_eq!(lives.meet(NODE, told(life(1, 7, 70), &[]), None, at(0)), Ok(()));
    let entry = NodeEntry { boot: 8, start: 80, ..NodeEntry::new("n:2", Incarnation(1)) };
    let catalogue = Catalogue::bootstrap(9, &[(NODE, entry)], &[NODE]).expect("a catalogue");
    let heard = lives.hear(NODE, life(1, 7, 70), Some(&catalogue), at(1));
    assert_eq!(why(heard), Some((RefusedFor::Older as u32, 8)));
}

#[test]
fn d7_a_node_stops_by_the_word_of_a_majority_or_the_leader_or_of_whoever_remembers() {
    let older = refused(RefusedFor::Older, 9);
    let mut lives = Lives::default();
    assert_eq!(lives.note_refused(NodeId(1), older, 3, at(0)), None);
    assert_eq!(lives.note_refused(NodeId(1), older, 3, at(1_000)), None, "the same node again");
    assert_eq!(lives.note_refused(NodeId(3), older, 3, at(4_500)), None, "the first one's word is over");
    assert_eq!(lives.note_refused(NodeId(1), older, 3, at(5_000)), Some(older));
    let leads = Refused { leads: true, ..older };
    assert_eq!(Lives::default().note_refused(NodeId(1), leads, 5, at(0)), Some(leads));
    assert_eq!(Lives::default().note_refused(NodeId(1), older, 2, at(0)), Some(older), "there is nobody else");
    let forgot = refused(RefusedFor::Forgot, 9);
    assert_eq!(lives.note_refused(NodeId(3), forgot, 9, at(60_000)), Some(forgot), "whoever remembers is not mistaken");
}

#[test]
fn d7_a_node_waits_before_it_stops_because_another_process_is_there() {
    let beside = Refused { leads: true, ..refused(RefusedFor::Beside, 7) };
    let mut lives = Lives::default();
    for second in 0..6 {
        assert_eq!(lives.note_refused(NodeId(1), beside, 3, at(second * 1_000)), None);
    }
    assert_eq!(lives.note_refused(NodeId(1), beside, 3, at(6_000)), Some(beside));
}
