//! What users may do, on real sockets: by the names in their certificates, and by what they have been given.

use super::*;
use hedgerow_client::{Check, Error, ErrorKind, Expiry, Mutation, Reserve, Result, ScanOptions};

const TABLE: &str = "orders";
const DUPLICATION: &str = "table=orders id=1 round=1 state=paused journal_bytes=1048576";

/// What everybody tries: operations on [`TABLE`], and which rights on it each needs, all of them.
pub(crate) const ON_ROWS: [(&str, &[&str]); 17] = [
    ("get", &["read"]),
    ("multi_get", &["read"]),
    ("batch_get", &["read"]),
    ("count", &["read"]),
    ("ttl", &["read"]),
    ("scan", &["read"]),
    ("set", &["write"]),
    ("multi_set", &["write"]),
    ("del", &["write"]),
    ("multi_del", &["write"]),
    ("incr", &["read", "write"]),
    ("check_and_set", &["read", "write"]),
    ("check_and_mutate", &["read", "write"]),
    ("map", &[]),
    ("journal", &["read", "write", "admin"]),
    ("end_of_journal", &["read", "write", "admin"]),
    ("foreign_changes", &["read", "write", "admin"]),
];
/// The same of administrative ones, and which right each needs.
pub(crate) const ON_TABLES: [(&str, &str); 26] = [
    ("set_option", "admin"),
    ("transfer", "admin"),
    ("prefer_leader", "admin"),
    ("checksum", "admin"),
    ("drop_and_recall", "admin"),
    ("create", "cluster-admin"),
    ("describe", "any"),
    ("throttle_table", "any"),
    ("status", "monitor"),
    ("list_nodes", "monitor"),
    ("reads", "monitor"),
    ("slow", "monitor"),
    ("throttle", "monitor"),
    ("rights", "cluster-admin"),
    ("grant", "cluster-admin"),
    ("set_password", "cluster-admin"),
    ("remove_password", "cluster-admin"),
    ("users", "cluster-admin"),
    ("checksum_here", "admin"),
    ("throttle_here", "any"),
    ("clear_options", "admin"),
    ("recall_renamed", "cluster-admin"),
    ("fault", "cluster-admin"),
    ("nothing", "cluster-admin"),
    ("duplicate", "cluster-admin"),
    ("duplicate_no_more", "cluster-admin"),
];
/// Everybody, and what they have been given.
const USERS: [(&str, &[&str]); 10] = [
    ("reader", &["read:orders"]),
    ("writer", &["write:ord*"]),
    ("both", &["read:*", "write:orders"]),
    ("manager", &["admin:orders"]),
    ("owner", &["read:orders", "write:orders", "admin:orders"]),
    ("watcher", &["monitor"]),
    ("chief", &["cluster-admin"]),
    ("member", &["@clerks"]),
    ("stranger", &["read:other", "admin:other", "write:order"]),
    ("nobody", &[]),
];

impl Stage {
    pub(crate) async fn with_rights(rights: RightsMode) -> (Self, Client) {
        Self::with_limits(rights, UserLimits::default()).await
    }

    pub(crate) async fn with_limits(rights: RightsMode, limits: UserLimits) -> (Self, Client) {
        let mut stage = Self { rights, limits, ..Self::new() };
        (1..=NODES).for_each(|node| stage.start(node, Some(Mode::Required)));
        stage.wait_until_serving().await;
        let root = stage.user("root").await;
        let spec = TableSpec { partition_count: 2, ..TableSpec::default() };
        root.create_table(TABLE, &spec).await.unwrap();
        root.create_table("other", &spec).await.unwrap();
        (stage, root)
    }

    /// A client with a certificate for this name.
    pub(crate) async fn user(&self, name: &str) -> Client {
        let issued = self.authority.client(name, DAYS, SystemTime::now()).unwrap();
        self.write(&format!("user-{name}"), &issued);
        self.client(Some(self.client_files(Some(&format!("user-{name}"))))).await.unwrap()
    }
}

pub(crate) async fn on_rows(client: &Client, what: &str) -> Result<()> {
    let table = client.open_table(TABLE).await?;
    let rows = [("s", "1")];
    match what {
        "get" => table.get("k", "s").await.map(drop),
        "multi_get" => table.multi_get("k", ["s"]).await.map(drop),
        "batch_get" => table.batch_get([("k", "s")]).await.map(drop),
        "count" => table.sort_key_count("k").await.map(drop),
        "ttl" => table.ttl("k", "s").await.map(drop),
        "scan" => table.scan_all(ScanOptions::default()).next_page().await.map(drop),
        "set" => table.set("k", "s", "1").await.map(drop),
        "multi_set" => table.multi_set("k", rows, None).await.map(drop),
        "del" => table.del("k", "gone").await,
        "multi_del" => table.multi_del("k", ["gone"]).await.map(drop),
        "incr" => table.incr("k", "number", 1, Expiry::Keep).await.map(drop),
        "check_and_set" => table.check_and_set("k", Check::absent("gone"), "s", "2", None).await.map(drop),
        "check_and_mutate" => {
            let mutation = Mutation::Delete { sort_key: "gone".into() };
            table.check_and_mutate("k", Check::absent("gone"), [mutation]).await.map(drop)
        }
        "map" => Ok(()),
        "journal" => client.open_journals(TABLE).await?.read(0, 7, 1).await.map(drop),
        "end_of_journal" => client.open_journals(TABLE).await?.end(0, 7).await,
        // Of no change at all: whoever may is told that this is nothing.
        "foreign_changes" => or_not_possible(client.open_journals(TABLE).await?.duplicate(0, 1, Vec::new()).await),
        other => panic!("{other}"),
    }
}

pub(crate) async fn on_tables(client: &Client, what: &str) -> Result<()> {
    let by_command = async |command: &str, argument: &str| {
        client.admin_once(command, argument, Duration::from_secs(20)).await.map(drop)
    };
    match what {
        "set_option" => client.set_option(TABLE, "default_ttl", "").await,
        "transfer" => or_not_possible(by_command(what, r#"{"table":"orders","partition":0,"to_node":9}"#).await),
        "prefer_leader" => or_not_possible(by_command(what, r#"{"table":"orders","partition":9,"node":1}"#).await),
        "checksum" => by_command(what, r#"{"table":"orders"}"#).await,
        "drop_and_recall" => {
            let kept = client.drop_table(TABLE, false, Reserve::ByDefault).await?.unwrap();
            client.recall_table(kept.id, None).await.map(drop)
        }
        // Of another name than what anybody has been given anything on.
        "create" => {
            client.create_table("third", &TableSpec { if_not_exists: true, ..TableSpec::default() }).await.map(drop)
        }
        "describe" => client.describe_table(TABLE).await.map(drop),
        "throttle_table" => by_command(what, r#"{"table":"orders"}"#).await,
        "status" => client.status().await.map(drop),
        "list_nodes" => client.list_nodes().await.map(drop),
        "rights" => client.rights().await.map(drop),
        "grant" => client.grant("chief", &["cluster-admin"]).await.map(drop),
        // Whoever may is told whether there is one.
        "set_password" => or_not_possible(client.set_password("somebody", "a long password", true).await),
        "remove_password" => or_not_possible(client.remove_password("unknown").await),
        "users" => client.users().await.map(drop),
        "checksum_here" | "throttle_here" => by_command(what, r#"{"table":"orders"}"#).await,
        "clear_options" => by_command(what, r#"{"name":"orders","prefix":"none"}"#).await,
        // The table is in use, so that those who may are told that it cannot come back.
        "recall_renamed" => or_not_possible(by_command("recall_table", r#"{"id":1,"name":"other"}"#).await),
        "fault" => or_not_possible(by_command(what, "{}").await),
        "nothing" => or_not_possible(by_command("no_such_command", "{}").await),
        "duplicate" => client.set_option(TABLE, "duplicate.west", DUPLICATION).await,
        "duplicate_no_more" => {
            let removing = DUPLICATION.replace("state=paused", "state=removing");
            client.set_option(TABLE, "duplicate.west", &removing).await?;
            client.set_option(TABLE, "duplicate.west", "").await
        }
        "reads" | "slow" | "throttle" => by_command(what, "{}").await,
        other => panic!("{other}"),
    }
}

/// Whoever may ask is told that it makes no sense.
fn or_not_possible(result: Result<()>) -> Result<()> {
    match result {
        Err(error)
            if [ErrorKind::Invalid, ErrorKind::FailedPrecondition, ErrorKind::TableExists].contains(&error.kind()) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// What a user may do with [`TABLE`], and beside: worked out here from the words alone.
fn holds(given: &[&str], right: &str) -> bool {
    let given: Vec<&str> =
        given.iter().flat_map(|it| if *it == "@clerks" { vec!["read:orders"] } else { vec![*it] }).collect();
    let has = |wanted: &str| given.contains(&wanted) || given.contains(&"cluster-admin");
    let on_table = |word: &str| ["orders", "ord*", "*"].iter().any(|tables| has(&format!("{word}:{tables}")));
    match right {
        "read" | "write" | "admin" => on_table(right),
        "any" => ["read", "write", "admin"].iter().any(|word| on_table(word)) || has("monitor"),
        right => has(right),
    }
}

fn assert_is(result: Result<()>, is_allowed: bool, what: &str) {
    match result {
        Ok(()) => assert!(is_allowed, "{what} was allowed"),
        Err(error) => {
            assert!(!is_allowed, "{what}: {error}");
            assert_not_allowed(&error);
        }
    }
}

fn assert_not_allowed(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
    assert!(error.message().contains("has not been given"), "{error}");
}

#[tokio::test]
async fn everybody_may_do_what_they_have_been_given_and_nothing_else() {
    let (stage, root) = Stage::with_rights(RightsMode::Required).await;
    root.grant("@clerks", &["read:orders"]).await.unwrap();
    for (name, given) in USERS.iter().filter(|(_, given)| !given.is_empty()) {
        assert!(root.grant(name, given).await.unwrap(), "{name}");
    }
    for (name, given) in USERS {
        let client = stage.user(name).await;
        for (what, needed) in ON_ROWS {
            // Who may do nothing with a table is not told where it is.
            let may_see = holds(given, "any");
            let is_allowed = may_see && needed.iter().all(|right| holds(given, right));
            assert_is(on_rows(&client, what).await, is_allowed, &format!("{what} by {name}"));
        }
        for (what, needed) in ON_TABLES {
            assert_is(on_tables(&client, what).await, holds(given, needed), &format!("{what} by {name}"));
        }
        let seen: Vec<String> = client.list_tables().await.unwrap().into_iter().map(|table| table.name).collect();
        assert_eq!(seen.contains(&TABLE.to_owned()), holds(given, "any"), "{name} sees {seen:?}");
        let identity = client.identity().await.unwrap();
        assert_eq!((identity.user.as_deref(), identity.is_administrator), (Some(name), false));
        assert_eq!(
            (identity.rights.len(), identity.mode.as_str()),
            (given.len() + usize::from(name == "member"), "required")
        );
    }
    // Both are looked at, whichever of them the command goes by.
    let manager = stage.user("manager").await;
    for argument in [r#"{"name":"orders","table":"other"}"#, r#"{"table":"orders","name":"other"}"#, r#"{"table":""}"#]
    {
        for command in ["describe", "checksum", "drop_table", "transfer"] {
            let error = manager.admin_once(command, argument, Duration::from_secs(20)).await.unwrap_err();
            assert_not_allowed(&error);
        }
    }
    let twice = r#"{"table":"orders","table":"other"}"#;
    let error = manager.admin_once("describe", twice, Duration::from_secs(20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    stage.end();
}

/// A node that does not lead hears of it by the catalogue, which is pushed at once.
#[tokio::test]
async fn what_was_taken_is_refused_on_connections_that_are_open() {
    let (stage, root) = Stage::with_rights(RightsMode::Required).await;
    root.grant("@everyone", &["read:other"]).await.unwrap();
    root.grant("app", &["read:orders", "write:orders"]).await.unwrap();
    let app = stage.user("app").await;
    let table = app.open_table(TABLE).await.unwrap();
    // Of both partitions, so that several nodes have a connection.
    let keys: Vec<String> = (0..32).map(|number| format!("k{number}")).collect();
    for key in &keys {
        // The last node to hear of it may be a moment later than the one that was asked.
        while let Err(error) = table.set(key, "s", "1").await {
            assert_not_allowed(&error);
        }
    }
    root.revoke("app", &["write:orders"]).await.unwrap();
    let revoked = std::time::Instant::now();
    for key in &keys {
        while table.set(key, "s", "2").await.is_ok() {
            assert!(revoked.elapsed() < Duration::from_secs(30), "{key} can still be written");
        }
        assert_not_allowed(&table.set(key, "s", "2").await.unwrap_err());
    }
    println!("revoked everywhere after {:?}", revoked.elapsed());
    for key in &keys {
        assert!(table.get(key, "s").await.unwrap().is_some(), "reading was left");
    }
    assert!(
        root.revoke("app", &["write:orders"]).await.unwrap_err().message().contains("has not been given write:orders")
    );
    // What nobody has left is gone, and what everybody has is not.
    root.revoke("app", &[]).await.unwrap();
    while table.get("k0", "s").await.is_ok() {
        assert!(revoked.elapsed() < Duration::from_secs(30), "it can still be read");
    }
    app.open_table("other").await.unwrap().get("k", "s").await.unwrap();
    stage.end();
}

#[tokio::test]
async fn what_would_be_refused_is_counted_before_it_is() {
    let (stage, root) = Stage::with_rights(RightsMode::Permissive).await;
    let app = stage.user("app").await;
    on_rows(&app, "set").await.unwrap();
    on_tables(&app, "status").await.unwrap();
    // But nobody gives themselves rights that will count later.
    assert_not_allowed(&app.grant("app", &["cluster-admin"]).await.unwrap_err());
    assert_not_allowed(&app.rights().await.unwrap_err());
    let mut lacking = 0;
    for node in stage.peers.values() {
        let tls = Some(stage.client_files(Some("user-root")));
        let options = ClientOptions { tls, ..ClientOptions::default() };
        let client = Client::connect_with(&[node], options).await.unwrap();
        let told = client.admin("reads", "{}", Duration::from_secs(20)).await.unwrap();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["rights"]["mode"], "permissive");
        let by_user = told["rights"]["lacking_by_user"].as_object().unwrap();
        assert!(by_user.keys().all(|user| user == "app"), "{by_user:?}");
        lacking += by_user.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
    }
    // The map, the write, the status; and what the client asked for by itself.
    assert!(lacking >= 3, "{lacking}");
    assert!(root.rights().await.unwrap().is_empty());
    stage.end();
}
