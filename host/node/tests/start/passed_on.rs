//! Changes of the catalogue that are passed on to their leader, over connections that lose what is said.

use crate::changes::{ask, is_acknowledged, leader, others};
use crate::world::{MS, Meddler, World};
use bytes::BytesMut;
use hedgerow_node::peer::{Frame, put, take};
use hedgerow_types::NodeId;
use hedgerow_wire::{ErrorName, Reply};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;

/// What becomes of administrative calls between nodes, and of their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Fate {
    #[default]
    Delivered,
    RequestsLost,
    RepliesLost,
    /// Repetitions reach another process than the one that was told first.
    RestartedInBetween,
}

#[derive(Clone, Default)]
struct Shaky(Rc<RefCell<(Fate, usize)>>);

impl Shaky {
    fn set(&self, fate: Fate) {
        *self.0.borrow_mut() = (fate, 0);
    }

    fn lost(&self) -> usize {
        self.0.borrow().1
    }
}

impl Meddler for Shaky {
    fn meddle(&mut self, _: (NodeId, NodeId), mut frames: BytesMut) -> BytesMut {
        let (fate, lost) = &mut *self.0.borrow_mut();
        let mut out = BytesMut::new();
        while let Some(mut frame) = take(&mut frames).unwrap() {
            let is_lost = match (&mut frame, *fate) {
                (Frame::AdminRequest(_), Fate::RequestsLost) | (Frame::AdminReply(_), Fate::RepliesLost) => true,
                (Frame::AdminRequest(request), Fate::RestartedInBetween) => {
                    request.repeated_to ^= 1;
                    request.repeated_to == 1
                }
                (_, _) => false,
            };
            if is_lost {
                *lost += 1;
            } else {
                put(&mut out, &frame);
            }
        }
        out
    }
}

fn world() -> (World, Shaky, NodeId, NodeId) {
    let mut world = World::new(3);
    world.create_table(2, &json!({}));
    let leader = leader(&mut world);
    let shaky = Shaky::default();
    world.meddler = Some(Box::new(shaky.clone()));
    (world, shaky, leader, others(leader)[0])
}

fn noted(text: &str) -> Value {
    json!({ "name": "t", "options": { "business.info": text } })
}

fn note(world: &mut World, leader: NodeId) -> Value {
    world.admin(leader, "describe", &json!({ "table": "t" })).unwrap()["options"]["business.info"].clone()
}

#[test]
fn d21_a_change_whose_request_is_lost_is_asked_for_again() {
    let (mut world, shaky, leader, other) = world();
    shaky.set(Fate::RequestsLost);
    let calls = [
        ask(&mut world, other, "set_options", &noted("a")),
        ask(&mut world, other, "create_table", &json!({ "name": "u", "partition_count": 2, "replica_count": 3 })),
        ask(&mut world, other, "drop_table", &json!({ "name": "absent", "if_exists": true })),
    ];
    world.run(2_500 * MS);
    assert!(shaky.lost() > calls.len(), "{} requests were lost", shaky.lost());
    assert!(calls.into_iter().all(|number| !is_acknowledged(&mut world, number)));
    shaky.set(Fate::Delivered);
    world.run(2_500 * MS);
    assert!(calls.into_iter().all(|number| is_acknowledged(&mut world, number)));
    assert_eq!(note(&mut world, leader), "a");
}

/// The reply to a change is lost while somebody else makes another one: the first one is not made again over it.
#[test]
fn d21_a_change_whose_reply_is_lost_is_made_once() {
    let (mut world, shaky, leader, other) = world();
    shaky.set(Fate::RepliesLost);
    let first = ask(&mut world, other, "set_options", &noted("a"));
    world.run(500 * MS);
    assert_eq!(note(&mut world, leader), "a");
    world.admin(leader, "set_options", &noted("b")).unwrap();
    world.run(3_000 * MS);
    assert!(shaky.lost() > 1, "it was not repeated");
    assert!(!is_acknowledged(&mut world, first));
    shaky.set(Fate::Delivered);
    world.run(2_000 * MS);
    assert!(is_acknowledged(&mut world, first));
    assert_eq!(note(&mut world, leader), "b");
}

/// Another process than the one that was told first cannot know whether that has made the change.
#[test]
fn d21_a_process_makes_no_change_that_another_one_was_asked_for() {
    let (mut world, shaky, leader, other) = world();
    world.admin(leader, "set_options", &noted("a")).unwrap();
    shaky.set(Fate::RestartedInBetween);
    let call = ask(&mut world, other, "set_options", &noted("b"));
    world.run(3_000 * MS);
    assert_eq!(shaky.lost(), 1);
    let (_, answer) = world.answer(call).unwrap();
    assert!(matches!(&answer.reply, Reply::Failed(failure) if failure.name == ErrorName::Timeout), "{answer:?}");
    assert_eq!(note(&mut world, leader), "a");
}
