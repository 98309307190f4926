//! Rights: their words, what they come to, and their stored form.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use hedgerow_placement::limit::{GRANTS_PER_HOLDER_MAX, RIGHTS_SIZE_MAX};
use hedgerow_placement::{Catalogue, CatalogueError, EVERYONE, Grant, Holder, Node, RowError, TableRights};
use hedgerow_types::op::Write;
use hedgerow_types::{Incarnation, NodeId};

fn founded() -> Catalogue {
    let node = Node::new("10.0.0.1:34601".to_owned(), Incarnation(1));
    Catalogue::bootstrap(7, &[(NodeId(1), node)], &[NodeId(1)]).unwrap()
}

fn holder(name: &str) -> Holder {
    name.parse().unwrap()
}

fn grants(texts: &[&str]) -> Vec<Grant> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn give(catalogue: &mut Catalogue, name: &str, texts: &[&str]) -> Result<bool, CatalogueError> {
    catalogue.grant(&holder(name), &grants(texts))
}

fn take(catalogue: &mut Catalogue, name: &str, texts: &[&str]) -> Result<bool, CatalogueError> {
    catalogue.revoke(&holder(name), &grants(texts))
}

#[test]
fn words_are_read_as_they_are_written_and_others_are_not() {
    let texts =
        ["read:orders", "write:orders*", "admin:*", "read:a:b", "monitor", "cluster-admin", "@clerks", "write:A-z_0.9"];
    for text in texts {
        assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
    }
    for text in [
        "", "read", "read:", "read:a b", "read:a*b", "read:**", "reads:a", "Monitor", "@", "@A", EVERYONE, "fault",
        ":a",
    ] {
        let error = text.parse::<Grant>().unwrap_err().to_string();
        assert!(
            error.contains("no right") || error.contains("no name of") || error.contains("table name"),
            "{text}: {error}"
        );
    }
    for name in ["app", "@clerks", "a-1", EVERYONE, "node-1"] {
        assert_eq!((holder(name).name(), holder(name).is_role()), (name, name.starts_with('@')));
    }
    for name in ["", "@", "@@a", "A", "a.b", "-a", "a-", "a b", "ä", &"a".repeat(57)] {
        assert!(matches!(name.parse::<Holder>(), Err(CatalogueError::Holder(_))), "{name}");
    }
}

#[test]
fn a_user_may_what_it_its_roles_and_everybody_have_been_given() {
    let mut catalogue = founded();
    give(&mut catalogue, "@clerks", &["read:orders*", "write:orders"]).unwrap();
    give(&mut catalogue, "ada", &["@clerks", "admin:notes"]).unwrap();
    give(&mut catalogue, EVERYONE, &["read:public*"]).unwrap();
    give(&mut catalogue, "chief", &["cluster-admin"]).unwrap();
    let rights = &catalogue.rights;
    let on = |user, table| rights.on_table(user, table).words().collect::<Vec<_>>();
    assert_eq!(on(Some("ada"), "orders"), ["read", "write"]);
    assert_eq!(on(Some("ada"), "orders-2"), ["read"], "a name is no beginning");
    assert_eq!(on(Some("ada"), "order"), [""; 0]);
    assert_eq!(on(Some("ada"), "notes"), ["admin"]);
    assert_eq!(on(Some("eve"), "public.x"), ["read"]);
    assert_eq!(on(None, "public"), ["read"]);
    assert_eq!(on(None, "orders"), [""; 0]);
    assert_eq!(on(Some("@clerks"), "notes"), [""; 0], "nobody is called as a role is");
    assert_eq!(rights.on_table(Some("chief"), "anything"), TableRights::ALL);
    assert!(rights.include(Some("chief"), &Grant::Monitor) && !rights.include(Some("ada"), &Grant::Monitor));
    assert!(
        TableRights::ALL.cover(TableRights::READ_AND_WRITE) && !TableRights::READ.cover(TableRights::READ_AND_WRITE)
    );
    assert_eq!(TableRights::READ.lacking(TableRights::READ_AND_WRITE), TableRights::WRITE);
}

#[test]
fn what_is_given_can_be_taken_and_nothing_else() {
    let mut catalogue = founded();
    let version = catalogue.version;
    assert_eq!(give(&mut catalogue, "ada", &["read:a", "write:a"]), Ok(true));
    assert_eq!(give(&mut catalogue, "ada", &["read:a"]), Ok(false), "it had that");
    assert_eq!(catalogue.version, version + 1);
    let error = take(&mut catalogue, "ada", &["write:a", "read:b"]).unwrap_err();
    assert_eq!(error, CatalogueError::NotGranted { from: holder("ada"), grant: "read:b".parse().unwrap() });
    assert!(catalogue.rights.on_table(Some("ada"), "a").cover(TableRights::WRITE), "nothing was taken");
    assert_eq!(take(&mut catalogue, "eve", &[]), Err(CatalogueError::NothingGranted(holder("eve"))));
    assert_eq!(give(&mut catalogue, "ada", &["@clerks"]), Err(CatalogueError::NothingGranted(holder("@clerks"))));
    give(&mut catalogue, "@clerks", &["monitor"]).unwrap();
    let error = give(&mut catalogue, "@chiefs", &["@clerks"]).unwrap_err();
    assert_eq!(error.to_string(), "@chiefs is a role, and cannot have role @clerks: give it what that has");
    give(&mut catalogue, "ada", &["@clerks"]).unwrap();
    assert!(catalogue.rights.include(Some("ada"), &Grant::Monitor));
    take(&mut catalogue, "@clerks", &["monitor"]).unwrap();
    assert!(!catalogue.rights.include(Some("ada"), &Grant::Monitor));
    assert_eq!(take(&mut catalogue, "ada", &[]), Ok(true));
    assert!(catalogue.rights.is_empty());
}

/// A version that knows no rights must not act on a catalogue that has some; without any it is what it always was.
#[test]
fn rights_are_stored_and_raise_the_format_while_there_are_any() {
    let header = |catalogue: &Catalogue| String::from_utf8(catalogue.rows()[&b"header"[..]].to_vec()).unwrap();
    let plain = founded();
    assert!(header(&plain).contains(r#""format":1,"#), "{}", header(&plain));
    let mut catalogue = plain.clone();
    give(&mut catalogue, "@clerks", &["read:orders*", "monitor"]).unwrap();
    give(&mut catalogue, "ada", &["@clerks"]).unwrap();
    assert!(header(&catalogue).contains(r#""format":2,"#));
    assert_eq!(catalogue.rows()[&b"rights/@clerks"[..]], r#"["read:orders*","monitor"]"#);
    assert_eq!(Catalogue::from_rows(&catalogue.rows()).unwrap(), catalogue);
    let Write::CheckAndMutate { mutations, .. } = plain.write_to(&catalogue) else { panic!("a change is written") };
    assert_eq!(mutations.len(), 4, "two rows, the header and the version: {mutations:?}");
    let mut back = catalogue.clone();
    take(&mut back, "ada", &[]).unwrap();
    take(&mut back, "@clerks", &[]).unwrap();
    assert_eq!((header(&back), back.rows().len()), (header(&plain), plain.rows().len()));
    let wrong = [
        ("rights/ada", "[\"reads:a\"]"),
        ("rights/ada", "[]"),
        ("rights/@x", "[\"@clerks\"]"),
        ("rights/A", "[\"monitor\"]"),
    ];
    for (key, value) in wrong {
        let mut rows = catalogue.rows();
        rows.insert(Bytes::from(key), Bytes::from(value));
        let error = Catalogue::from_rows(&rows).unwrap_err();
        assert!(matches!(error, RowError::Malformed { .. } | RowError::Inconsistent(_)), "{key}: {error}");
    }
}

#[test]
fn n4d_rights_have_a_bound() {
    let mut catalogue = founded();
    let many: Vec<Grant> = (0..=GRANTS_PER_HOLDER_MAX).map(|it| format!("read:t{it}").parse().unwrap()).collect();
    let error = catalogue.grant(&holder("ada"), &many).unwrap_err();
    assert!(matches!(error, CatalogueError::TooManyGrants { count: 257, .. }), "{error}");
    let long = |number: usize| format!("read:{}{number:03}", "t".repeat(120)).parse::<Grant>().unwrap();
    let most: Vec<Grant> = (0..GRANTS_PER_HOLDER_MAX).map(long).collect();
    let refused = (0..100).find_map(|it| catalogue.grant(&holder(&format!("user-{it}")), &most).err()).unwrap();
    assert!(matches!(refused, CatalogueError::RightsFull { .. }), "{refused}");
    let stored: usize =
        catalogue.rows().iter().filter(|(key, _)| key.starts_with(b"rights/")).map(|(_, it)| it.len()).sum();
    assert!(stored <= RIGHTS_SIZE_MAX && stored > RIGHTS_SIZE_MAX / 2, "{stored}");
}
