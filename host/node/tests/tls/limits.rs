//! What one user may ask of a node, on real sockets: who asks for more waits, others do not, and commands pass.

use super::audit::like;
use super::*;
use bytes::Bytes;
use hedgerow_wire::call::{self, ReplyFrame};
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, Extension, Header, Reply, Text};
use serde_json::{Value, json};
use std::num::NonZeroU64;

/// More than pass in a second.
const MANY: usize = 300;

impl Stage {
    /// A connection with node 1 of whoever has these files.
    pub(crate) async fn connect(&self, name: &str) -> Stream {
        let tcp = TcpStream::connect(&self.peers[&NodeId(1)]).await.unwrap();
        self.client_files(Some(name)).connect(tcp).await.unwrap()
    }
}

async fn read_many(table: &Table) {
    let keys: Vec<String> = (0..MANY).map(|number| format!("k{number}")).collect();
    for read in join_all(keys.iter().map(|key| table.get(key, "s"))).await {
        assert_eq!(read.unwrap(), None);
    }
}

#[tokio::test]
async fn who_asks_for_more_than_it_may_waits_and_others_do_not() {
    let limits = UserLimits { requests: NonZeroU64::new(50), ..UserLimits::default() };
    let (mut stage, root) = Stage::with_limits(RightsMode::Required, limits).await;
    root.grant("@everyone", &["read:orders", "write:orders"]).await.unwrap();
    let (app, other) = (stage.user("app").await, stage.user("other").await);
    while app.open_table("orders").await.is_err() || other.open_table("orders").await.is_err() {}
    let table = app.open_table("orders").await.unwrap();
    while table.get("k", "s").await.is_err() {}
    let other = other.open_table("orders").await.unwrap();
    let beside = async {
        for number in 0..20 {
            assert_served(&other, &format!("value{number}")).await;
            root.status().await.unwrap();
        }
    };
    // Its client asks again until everything is there.
    tokio::join!(read_many(&table), beside);
    read_many(&root.open_table("orders").await.unwrap()).await;
    stage.limits = UserLimits::default();
    for node in 1..=NODES {
        stage.stop(node);
        stage.start(node, Some(Mode::Required));
        stage.wait_until_serving().await;
    }
    read_many(&table).await;
    let records = stage.end_and_read();
    let limited = like(&records, &json!({ "event": "limited" }));
    let reason = r#"user "app" is over its limit of 50 requests per second at this node"#;
    assert!(
        !limited.is_empty() && limited.iter().all(|it| it["user"] == "app" && it["reason"] == reason),
        "{limited:?}"
    );
    for node in 1..=NODES {
        let of_node: Vec<&Value> = records.iter().filter(|record| record["node"] == node).collect();
        let last_start = of_node.iter().rposition(|record| record["event"] == "start").unwrap();
        assert!(of_node[last_start..].iter().all(|record| record["event"] != "limited"), "it has no limit any more");
        let told = of_node.iter().filter(|record| record["event"] == "limited").count();
        assert!(told <= 2, "what is repeated is one line, and one when the node ends: {told}");
    }
}

fn request(body: &Body) -> BytesMut {
    let header = Header { extension: Some(Extension::default()), ..Header::default() };
    let mut bytes = BytesMut::new();
    call::encode_request(&mut bytes, &header, 1, body);
    bytes
}

pub(crate) async fn ask(stream: &Stream, body: &Body) -> ReplyFrame {
    let bytes = request(body);
    assert_eq!(stream.try_write(&bytes).unwrap(), bytes.len());
    let mut said = BytesMut::new();
    while call::reply_frame_size(&said).unwrap().is_none_or(|size| said.len() < size) {
        assert_ne!(stream.read(&mut said).await.unwrap(), 0);
    }
    call::decode_reply(said.freeze()).unwrap()
}

/// Whether a read is refused for the number of connections.
fn is_over(frame: &ReplyFrame) -> bool {
    let Reply::Failed(failure) = &frame.reply else { panic!("{frame:?}") };
    failure.refusal().unwrap().to_string().ends_with(r#"user "client" is over its limit of 1 connection at this node"#)
}

#[tokio::test]
async fn a_user_has_as_many_connections_as_it_may_and_one_for_commands() {
    let mut stage = Stage::new();
    stage.limits.connections = NonZeroU64::new(1);
    stage.write("client", &stage.authority.client("client", DAYS, SystemTime::now()).unwrap());
    (1..=NODES).for_each(|node| stage.start(node, Some(Mode::Required)));
    stage.wait_until_serving().await;
    let read = Body::Get(Bytes::from_static(b"\0\x01k"));
    let tables = Body::HedgerowAdmin(AdminCommand { command: Text::from("tables"), argument: Text::from("{}") });
    let first = stage.connect("client").await;
    // There is no such table.
    assert!(!is_over(&ask(&first, &read).await));
    let second = stage.connect("client").await;
    assert!(matches!(ask(&second, &tables).await.reply, Reply::HedgerowAdmin(_)));
    let said = said_before_closing(&second, &request(&read)).await.unwrap();
    assert!(is_over(&call::decode_reply(said.freeze()).unwrap()));
    assert!(!is_over(&ask(&first, &read).await), "it is not touched");
    drop(first);
    // The node has to hear of that.
    while is_over(&ask(&stage.connect("client").await, &read).await) {}
    stage.end();
}
