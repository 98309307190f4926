//! Passwords: who may have one, and how verifiers are stored.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use hedgerow_placement::limit::PASSWORD_COUNT_MAX;
use hedgerow_placement::{Catalogue, CatalogueError, Holder, Node, RowError};
use hedgerow_scram::{Mask, Verifier};
use hedgerow_types::op::{Mutation, Write};
use hedgerow_types::{Incarnation, NodeId};

const MASK: Mask = Mask::new([1; 32]);

fn founded() -> Catalogue {
    let node = Node::new("10.0.0.1:34601".to_owned(), Incarnation(1));
    Catalogue::bootstrap(7, &[(NodeId(1), node)], &[NodeId(1)]).unwrap()
}

fn holder(name: &str) -> Holder {
    name.parse().unwrap()
}

/// A verifier without the time that a password's takes.
fn verifier(of: &str) -> Verifier {
    Mask::new([2; 32]).verifier(of)
}

#[test]
fn a_password_is_given_changed_and_taken() {
    let mut catalogue = founded();
    let app = holder("app");
    assert_eq!(catalogue.set_password(&app, verifier("a"), MASK, false), Err(CatalogueError::NoPassword(app.clone())));
    assert_eq!(catalogue.remove_password(&app), Err(CatalogueError::NoPassword(app.clone())));
    let role = holder("@clerks");
    let of_role = catalogue.set_password(&role, verifier("a"), MASK, true);
    assert_eq!(of_role, Err(CatalogueError::PasswordOfRole(role)));
    assert_eq!((catalogue.version, catalogue.passwords.is_empty()), (1, true));

    catalogue.set_password(&app, verifier("a"), MASK, true).unwrap();
    let again = catalogue.set_password(&app, verifier("b"), MASK, true);
    assert_eq!(again, Err(CatalogueError::HasPassword(app.clone())));
    assert!(catalogue.passwords.verifier("app") == Some(&verifier("a")) && catalogue.version == 2);
    // Names without a password must look as before.
    catalogue.set_password(&app, verifier("b"), Mask::new([3; 32]), false).unwrap();
    assert!(catalogue.passwords.verifier("app") == Some(&verifier("b")) && catalogue.passwords.mask() == Some(&MASK));
    catalogue.grant(&app, &["monitor".parse().unwrap()]).unwrap();
    catalogue.remove_password(&app).unwrap();
    assert!(catalogue.passwords.is_empty() && catalogue.passwords.mask().is_none());
    assert!(!catalogue.rights.is_empty());
}

#[test]
fn there_is_a_bound_on_how_many_have_one() {
    let mut catalogue = founded();
    for number in 0..PASSWORD_COUNT_MAX {
        catalogue.set_password(&holder(&format!("user-{number}")), verifier("a"), MASK, true).unwrap();
    }
    let more = catalogue.set_password(&holder("more"), verifier("a"), MASK, true);
    assert_eq!(more, Err(CatalogueError::TooManyPasswords));
    assert_eq!(catalogue.set_password(&holder("user-0"), verifier("b"), MASK, false), Ok(()));
    assert_eq!(catalogue.check(), Ok(()));
}

/// Versions before passwords refuse a catalogue that has some, and read one that has none.
#[test]
fn passwords_are_stored_and_raise_the_format_while_there_are_any() {
    let header = |catalogue: &Catalogue| String::from_utf8(catalogue.rows()[&b"header"[..]].to_vec()).unwrap();
    let plain = founded();
    let mut catalogue = plain.clone();
    catalogue.set_password(&holder("app"), verifier("a"), MASK, true).unwrap();
    assert!(header(&catalogue).contains(r#""format":3,"#), "{}", header(&catalogue));
    assert_eq!(Catalogue::from_rows(&catalogue.rows()), Ok(catalogue.clone()));
    let Write::CheckAndMutate { mutations, .. } = plain.write_to(&catalogue) else { panic!("nothing is written") };
    let keys: Vec<_> = mutations.iter().map(|it| String::from_utf8_lossy(it.suffix()).into_owned()).collect();
    assert_eq!(keys, ["header", "password/app", "passwords", "version"]);

    let mut without = catalogue.clone();
    without.remove_password(&holder("app")).unwrap();
    assert!(header(&without).contains(r#""format":1,"#), "{}", header(&without));
    let is_removal = |it: &Mutation| matches!(it, Mutation::Remove { .. });
    let removed: Vec<_> =
        catalogue.diff(&without).iter().filter(|it| is_removal(it)).map(|it| it.suffix().clone()).collect();
    assert_eq!(removed, [Bytes::from("password/app"), Bytes::from("passwords")]);
    assert_eq!(Catalogue::from_rows(&without.rows()), Ok(without));
}

#[test]
fn rows_of_passwords_that_are_wrong_are_refused_and_nothing_tells_what_stands_in_them() {
    let mut catalogue = founded();
    catalogue.set_password(&holder("app"), verifier("a"), MASK, true).unwrap();
    let text = verifier("a").to_text();
    let of = |key: &str, value: Option<String>| {
        let mut rows = catalogue.rows();
        match value {
            Some(value) => drop(rows.insert(Bytes::from(key.to_owned()), value.into())),
            None => drop(rows.remove(key.as_bytes())),
        }
        Catalogue::from_rows(&rows).map(drop)
    };
    for value in
        [format!("{:?}", *text), format!(r#"{{"verifier":{:?},"x":1}}"#, *text), format!(r#"{{"{}":1}}"#, *text)]
    {
        for key in ["password/app", "passwords"] {
            let error = of(key, Some(value.clone())).unwrap_err();
            assert!(matches!(error, RowError::Malformed { .. }), "{error}");
            let told = format!("{error} {error:?}");
            assert!(!told.contains("SCRAM") && told.contains(key), "{told}");
        }
    }
    assert!(matches!(of("passwords", None), Err(RowError::Inconsistent(_))));
    assert!(matches!(of("password/app", None), Err(RowError::Inconsistent(_))));
    let of_role = of("password/@clerks", Some(format!(r#"{{"verifier":{:?}}}"#, *text)));
    assert!(matches!(of_role, Err(RowError::Inconsistent(_))));
    let printed = format!("{catalogue:?}");
    assert!(printed.contains("Verifier") && !printed.contains("SCRAM") && !printed.contains(&text[40..60]));
}
