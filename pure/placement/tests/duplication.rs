//! The options that say where a table is duplicated to: their names, and what they may say together.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use hedgerow_placement::duplication::{Duplication, State};
use hedgerow_placement::{Catalogue, CatalogueError, Node, Settings, TableSpec};
use hedgerow_types::{Incarnation, NodeId};
use std::collections::BTreeMap;

fn options(of: &[(&str, &Duplication)]) -> BTreeMap<String, String> {
    let option =
        |(cluster, duplication): &(&str, &Duplication)| (format!("duplicate.{cluster}"), duplication.to_string());
    of.iter().map(option).collect()
}

fn refused(options: &BTreeMap<String, String>) -> String {
    let error = Settings::from_options(options).unwrap_err();
    assert!(matches!(error, CatalogueError::Duplication { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn a_table_is_duplicated_to_several_clusters() {
    let (east, west) = (Duplication::new("users", 7), Duplication::new("copy", 8));
    let west = Duplication { state: State::Paused, round: 3, ..west };
    let settings = Settings::from_options(&options(&[("east", &east), ("eu-west_1", &west)])).unwrap();
    let expected = [("east".to_owned(), east), ("eu-west_1".to_owned(), west)];
    assert_eq!(settings, Settings { duplications: expected.into(), ..Settings::default() });
}

#[test]
fn what_is_not_allowed_is_told() {
    let one = Duplication::new("users", 7);
    assert_eq!(
        refused(&options(&[("e.w", &one)])),
        "option \"duplicate.e.w\" is not allowed: cluster name \"e.w\" is not allowed: 1 to 64 characters of A-Z a-z 0-9 _ -"
    );
    assert!(refused(&options(&[("", &one)])).starts_with("option \"duplicate.\" is not allowed: cluster name"));
    assert_eq!(
        refused(&options(&[("east", &one), ("west", &one)])),
        "option \"duplicate.west\" is not allowed: duplicate.east has id 7 too: each has one of its own"
    );
    let value = one.to_string().replace("round=1 ", "");
    assert_eq!(
        refused(&BTreeMap::from([("duplicate.east".to_owned(), value)])),
        "option \"duplicate.east\" is not allowed: round is missing: its form is table=NAME id=NUMBER round=NUMBER \
         state=running|paused|removing journal_bytes=NUMBER, each once"
    );
    let unknown = Settings::from_options(&BTreeMap::from([("duplicate".to_owned(), one.to_string())])).unwrap_err();
    assert!(unknown.to_string().contains("default_ttl, duplicate.CLUSTER, follower_reads"), "{unknown}");
}

#[test]
fn there_are_only_so_many() {
    let all: Vec<_> = (1..=5).map(|id| (format!("c{id}"), Duplication::new("users", id))).collect();
    let all: Vec<_> = all.iter().map(|(cluster, duplication)| (cluster.as_str(), duplication)).collect();
    assert_eq!(Settings::from_options(&options(&all[..4])).unwrap().duplications.len(), 4);
    let error = refused(&options(&all));
    assert!(error.ends_with("a table is duplicated to at most 4 clusters"), "{error}");
}

#[test]
fn they_are_set_as_other_options_are_and_removed_once_that_is_said() {
    let node = |id: u16| (NodeId(id), Node::new(format!("n{id}:1"), Incarnation(u64::from(id))));
    let mut catalogue = Catalogue::bootstrap(1, &[node(1)], &[NodeId(1)]).unwrap();
    catalogue.create_table(TableSpec::hash("t", 2, 1), &[NodeId(1)].into(), 0).unwrap();
    let value = Duplication::new("users", 7).to_string();
    assert_eq!(catalogue.set_option("t", "duplicate.east", &value), Ok(true));
    assert_eq!(catalogue.set_option("t", "duplicate.east", &value), Ok(false));
    assert!(catalogue.set_option("t", "duplicate.west", &value).is_err());
    assert_eq!(catalogue.delete_options("t", ["duplicate.west"]), Ok(false), "not set, and known");
    // Its partitions are told first, or would keep their journals for nobody.
    let refused =
        |it: Result<bool, CatalogueError>| assert!(it.unwrap_err().to_string().contains("table duplicate remove"));
    refused(catalogue.delete_options("t", ["duplicate.east"]));
    refused(catalogue.clear_options("t", ""));
    refused(catalogue.set_option("t", "duplicate.east", &Duplication::new("users", 8).to_string()));
    let removing = Duplication { state: State::Removing, ..Duplication::new("users", 7) }.to_string();
    assert_eq!(catalogue.set_option("t", "duplicate.east", &removing), Ok(true));
    assert_eq!(catalogue.delete_options("t", ["duplicate.east"]), Ok(true));
    assert!(catalogue.delete_options("t", ["duplicated"]).is_err());
}
