//! Changes of the catalogue that are passed on to their leader, over connections that lose what is said, and from nodes that know less.
#![allow(clippy::disallowed_methods, reason = "a test writes an operator's files")]

use crate::changes::{ask, is_acknowledged, leader, others};
use crate::world::{MS, Meddler, World};
use bytes::BytesMut;
use hedgerow_node::config::RightsMode;
use hedgerow_node::peer::{AdminRequest, Frame, Principal, put, take};
use hedgerow_tls::{Authority, ClusterName, Mode, NodeTls, NodeTlsFiles};
use hedgerow_types::NodeId;
use hedgerow_wire::{ErrorName, Reply};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

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

/// Has every node pass on the same thing for the same user, whatever it was asked by whom.
#[derive(Clone, Default)]
struct Claims(Rc<RefCell<AdminRequest>>);

impl Meddler for Claims {
    fn meddle(&mut self, _: (NodeId, NodeId), mut frames: BytesMut) -> BytesMut {
        let mut out = BytesMut::new();
        while let Some(mut frame) = take(&mut frames).unwrap() {
            if let Frame::AdminRequest(request) = &mut frame {
                let AdminRequest { command, argument, principal, .. } = self.0.borrow().clone();
                *request = AdminRequest { command, argument, principal, ..request.clone() };
            }
            put(&mut out, &frame);
        }
        out
    }
}

/// A node that has heard of no revocation, or whose configuration knows no rights, passes things on: the leader of the metadata looks again.
#[test]
fn a_leader_refuses_what_its_own_catalogue_does_not_allow_whoever_passes_it_on() {
    let folder = tempfile::tempdir().unwrap();
    let tls = tls_of_node_1(folder.path());
    let mut world = World::configured(3, |config| {
        config.meta_nodes = vec![NodeId(1)];
        if config.node == NodeId(1) {
            (config.rights, config.tls) = (RightsMode::Required, Some(Arc::clone(&tls)));
        }
    });
    world.run(5_000 * MS);
    let create = json!({ "name": "t", "partition_count": 2, "replica_count": 3 });
    // The sender names nobody: its client has shown no certificate.
    let refused = world.admin(NodeId(2), "create_table", &create).unwrap_err();
    assert!(format!("{refused:?}").contains("has not been given admin:t"), "{refused:?}");
    let claims = Claims::default();
    world.meddler = Some(Box::new(claims.clone()));
    let mut passed_on = |principal: Option<(&str, bool)>, command: &str, argument: Value| {
        let principal = principal.map(|(user, is_administrator)| Principal {
            user: user.to_owned(),
            is_administrator,
            ..Principal::default()
        });
        let (command, argument) = (command.to_owned(), argument.to_string());
        *claims.0.borrow_mut() = AdminRequest { command, argument, principal, ..AdminRequest::default() };
        world.admin(NodeId(2), "set_options", &noted("")).map_err(|refused| format!("{refused:?}"))
    };
    let right = |right: &str| json!({ "name": "eve", "grants": [right] });
    let (root, eve) = (Some(("root", true)), Some(("eve", false)));
    passed_on(root, "create_table", create).unwrap();
    passed_on(root, "grant", right("admin:t")).unwrap();
    passed_on(eve, "set_options", noted("a")).unwrap();
    assert!(passed_on(eve, "grant", right("admin:u")).unwrap_err().contains("eve"));
    passed_on(root, "revoke", right("admin:t")).unwrap();
    assert!(passed_on(eve, "set_options", noted("b")).unwrap_err().contains("eve"));
    // Older nodes say nothing of it.
    passed_on(None, "set_options", noted("c")).unwrap();
    // Who was let in by a password that the leader does not act on has proven nothing, whatever the sender's configuration says of them.
    let password = b"of before"[..].into();
    let principal = Some(Principal { user: "root".to_owned(), is_administrator: true, password });
    let (command, argument) = ("set_options".to_owned(), noted("d").to_string());
    *claims.0.borrow_mut() = AdminRequest { command, argument, principal, ..AdminRequest::default() };
    let refused = world.admin(NodeId(2), "set_options", &noted("")).unwrap_err();
    assert!(format!("{refused:?}").contains("changed or removed"), "{refused:?}");
}

fn tls_of_node_1(folder: &Path) -> Arc<NodeTls> {
    let cluster = ClusterName::new("test").unwrap();
    let (authority, ca) = Authority::create(&cluster, 1, SystemTime::now()).unwrap();
    let node = authority.node(1, &[], 1, SystemTime::now()).unwrap();
    let paths = ["ca.pem", "node.pem", "key.pem"].map(|name| folder.join(name));
    for (path, text) in paths.iter().zip([&ca.certificate, &node.certificate, &node.key]) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let [ca, certificate, key] = paths;
    let files = NodeTlsFiles { cluster, node: 1, ca, certificate, key, revoked: None };
    Arc::new(NodeTls::load(files, Mode::Required, true).unwrap())
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
