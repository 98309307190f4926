//! What the nodes' audit logs say of who came in, what was refused, and who changed what.

use super::{NodeId, Stage, assert_turned_away, greeting};
use hedgerow_client::{Reserve, TableSpec};
use hedgerow_node::config::RightsMode;
use hedgerow_tls::Stream;
use serde_json::{Value, json};
use std::path::PathBuf;
use tokio::net::TcpStream;

impl Stage {
    pub(crate) fn audit_path(&self, node: u16) -> PathBuf {
        self.folder.path().join(format!("audit-{node}"))
    }

    /// Ends the nodes. Every record of their audit logs, those of the first node first.
    pub(crate) fn end_and_read(mut self) -> Vec<Value> {
        let nodes: Vec<u16> = self.peers.keys().map(|node| node.0).collect();
        nodes.iter().for_each(|node| self.stop(*node));
        let mut records = Vec::new();
        for node in nodes {
            let text = std::fs::read_to_string(self.audit_path(node)).unwrap();
            for line in text.lines() {
                let record: Value = serde_json::from_str(line).unwrap();
                assert_eq!(record["node"], node);
                assert!(record["at"].as_str().unwrap().ends_with('Z'), "{record}");
                records.push(record);
            }
        }
        records
    }
}

/// The records that have all fields of `wanted`.
pub(crate) fn like<'a>(records: &'a [Value], wanted: &Value) -> Vec<&'a Value> {
    let wanted = wanted.as_object().unwrap();
    records.iter().filter(|record| wanted.iter().all(|(name, value)| record.get(name) == Some(value))).collect()
}

#[tokio::test]
async fn the_audit_log_tells_who_came_in_what_was_refused_and_who_changed_what() {
    let (stage, root) = Stage::with_rights(RightsMode::Required).await;
    root.grant("app", &["read:orders"]).await.unwrap();
    let app = stage.user("app").await;
    while app.open_table("orders").await.is_err() {}
    let table = app.open_table("orders").await.unwrap();
    while table.get("secret-key", "s").await.is_err() {}
    for _ in 0..50 {
        table.set("secret-key", "s", "secret-value").await.unwrap_err();
    }
    app.drop_table("orders", false, Reserve::ByDefault).await.unwrap_err();
    root.create_table("orders", &TableSpec { partition_count: 8, ..TableSpec::default() }).await.unwrap_err();
    // Somebody who says that they are a node, without a certificate.
    let tcp = TcpStream::connect(&stage.peers[&NodeId(1)]).await.unwrap();
    assert_turned_away(Ok(Stream::plain(tcp)), &greeting()).await;
    let records = stage.end_and_read();
    let like = |wanted: Value| like(&records, &wanted);
    assert_eq!(like(json!({ "event": "start" })).len(), 3);
    for node in 1..=3 {
        let of_node: Vec<&Value> = records.iter().filter(|record| record["node"] == node).collect();
        assert_eq!((&of_node[0]["event"], &of_node[of_node.len() - 1]["event"]), (&json!("start"), &json!("stop")));
        assert_eq!(of_node.iter().filter(|record| record["event"] == "stop").count(), 1);
    }
    assert!(!like(json!({ "event": "login", "user": "app", "from": "127.0.0.1" })).is_empty());
    let refused = like(json!({ "event": "refused", "user": "app" }));
    let reasons: Vec<&str> = refused.iter().map(|record| record["reason"].as_str().unwrap()).collect();
    for lacking in ["write:orders", "admin:orders"] {
        let told = reasons.iter().filter(|reason| reason.ends_with(lacking)).count();
        assert!((1..=3).contains(&told), "{lacking}: what is repeated is one line of each node: {reasons:?}");
    }
    assert!(!like(json!({ "event": "login_refused", "from": "127.0.0.1" })).is_empty());
    let grant = like(json!({ "event": "command", "user": "root", "command": "grant" }));
    assert!(grant.len() == 1 && grant[0]["argument"].as_str().unwrap().contains("read:orders"), "{grant:?}");
    let outcome = |command: &Value| {
        let name = json!({ "event": "outcome", "node": command["node"], "number": command["number"], "user": "root" });
        let outcomes = like(name);
        assert_eq!(outcomes.len(), 1, "{command}");
        outcomes[0].get("error").map(|error| error.as_str().unwrap().to_owned())
    };
    assert_eq!(outcome(grant[0]), None);
    let created = like(json!({ "event": "command", "command": "create_table" }));
    let outcomes: Vec<_> = created.iter().map(|command| outcome(command)).collect();
    assert_eq!(outcomes.iter().filter(|error| error.is_none()).count(), 2, "{outcomes:?}");
    assert!(outcomes.iter().flatten().any(|error| error.contains("exists")), "{outcomes:?}");
    assert!(like(json!({ "event": "command", "user": "app" })).is_empty(), "what is refused is no command");
    assert!(!records.iter().any(|record| record.to_string().contains("secret")));
}
