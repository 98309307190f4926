//! Logins by password, on real sockets: who gets in, as whom, and for how long.

use super::audit::like;
use super::limits::ask;
use super::rights::{ON_ROWS, ON_TABLES, on_rows, on_tables};
use super::*;
use bytes::Bytes;
use hedgerow_client::{Credentials, ErrorKind};
use hedgerow_scram::{Login, MECHANISM, Nonce, Password};
use hedgerow_wire::message::{ClusterInfo, Negotiation, NegotiationStatus};
use hedgerow_wire::{Body, Reply};
use serde_json::{Value, json};

const PASSWORD: &str = "correct horse battery";
const OTHER: &str = "staple battery horse";

impl Stage {
    /// Nodes that ask for no certificate, a table, and `root`, which has one.
    async fn with_passwords(rights: RightsMode) -> (Self, Client) {
        let mut stage = Self { rights, asks_certificates: false, ..Self::new() };
        (1..=NODES).for_each(|node| stage.start(node, Some(Mode::Required)));
        stage.wait_until_serving().await;
        let root = stage.user("root").await;
        root.create_table("orders", &TableSpec { partition_count: 2, ..TableSpec::default() }).await.unwrap();
        root.set_password("app", PASSWORD, true).await.unwrap();
        stage.wait_until_known("app").await;
        (stage, root)
    }

    /// Until every node has heard of the password of `user`, and of all that came before it.
    async fn wait_until_known(&self, user: &str) {
        for node in self.peers.values() {
            let tls = Some(self.client_files(Some("user-root")));
            let options = ClientOptions { tls, ..ClientOptions::default() };
            let client = Client::connect_with(&[node], options).await.unwrap();
            while !client.users().await.unwrap().contains(&user.to_owned()) {}
        }
    }

    async fn by_password(&self, user: &str, password: &str) -> hedgerow_client::Result<Client> {
        let credentials = Some(Credentials::new(user, password).unwrap());
        let options = ClientOptions { tls: Some(self.client_files(None)), credentials, ..ClientOptions::default() };
        Client::connect_with(&self.peers.values().collect::<Vec<_>>(), options).await
    }

    /// A connection with node 1, with no certificate of a client.
    async fn open(&self) -> Stream {
        let tcp = TcpStream::connect(&self.peers[&NodeId(1)]).await.unwrap();
        self.client_files(None).connect(tcp).await.unwrap()
    }
}

/// Says one thing of a login, and what is answered.
async fn say(stream: &Stream, status: NegotiationStatus, message: &[u8]) -> (NegotiationStatus, Bytes) {
    let body = Body::Negotiation(Negotiation { status: status.code(), msg: message.to_vec().into() });
    let Reply::Negotiation(reply) = ask(stream, &body).await.reply else { panic!("no negotiation") };
    (NegotiationStatus::from_code(reply.status).unwrap(), reply.msg)
}

async fn select(stream: &Stream) {
    let (status, message) = say(stream, NegotiationStatus::ListMechanisms, b"").await;
    assert_eq!((status, &message[..]), (NegotiationStatus::Mechanisms, MECHANISM.as_bytes()));
    assert_eq!(say(stream, NegotiationStatus::Select, &message).await.0, NegotiationStatus::Selected);
}

/// What is said in a login up to the proof.
async fn until_proof(stream: &Stream, user: &str, password: &str) -> [Vec<u8>; 2] {
    select(stream).await;
    let (login, first) = Login::begin(user, &Nonce::new([7; 18]), stream.binding());
    let (status, challenge) = say(stream, NegotiationStatus::Initiate, first.as_bytes()).await;
    assert_eq!(status, NegotiationStatus::Challenge, "{challenge:?}");
    let hashing = login.handle_challenge(&challenge).unwrap();
    let (salt, iterations) = hashing.with();
    let (_, last) = hashing.prove(&Password::new(password).unwrap().salted(&salt, iterations));
    [first.into_bytes(), last.as_bytes().to_vec()]
}

async fn log_in(stream: &Stream, user: &str, password: &str) -> (NegotiationStatus, Bytes) {
    let [_, last] = until_proof(stream, user, password).await;
    say(stream, NegotiationStatus::ChallengeResponse, &last).await
}

/// Nothing more comes, within the time in which a password that was taken has to count.
async fn assert_closed(stream: &Stream) {
    let closed = async {
        let mut said = BytesMut::new();
        while !matches!(stream.read(&mut said).await, Ok(0) | Err(_)) {}
        assert!(said.is_empty(), "{said:?}");
    };
    tokio::time::timeout(Duration::from_secs(2), closed).await.unwrap();
}

async fn who(stream: &Stream) -> Value {
    let (command, argument) = ("whoami".into(), "{}".into());
    let body = Body::HedgerowAdmin(hedgerow_wire::message::AdminCommand { command, argument });
    let Reply::HedgerowAdmin(reply) = ask(stream, &body).await.reply else { panic!("no answer") };
    let told: Value = serde_json::from_str(&reply.text.to_string()).unwrap();
    told["user"].clone()
}

#[tokio::test]
async fn who_knows_a_password_is_its_user_and_nobody_else_gets_in() {
    let (stage, root) = Stage::with_passwords(RightsMode::Required).await;
    for (user, password) in [("app", OTHER), ("nobody", PASSWORD)] {
        let error = stage.by_password(user, password).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAllowed, "{error}");
        assert!(error.message().contains("the password is wrong, or there is no such user"), "{error}");
    }
    let options =
        ClientOptions { credentials: Some(Credentials::new("app", PASSWORD).unwrap()), ..ClientOptions::default() };
    let error = Client::connect_with(&["127.0.0.1:1"], options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");

    let client = stage.by_password("app", PASSWORD).await.unwrap();
    assert_eq!(client.identity().await.unwrap().user.as_deref(), Some("app"));
    assert_eq!(root.users().await.unwrap(), ["app"]);
    assert_eq!(client.users().await.unwrap_err().kind(), ErrorKind::NotAllowed);
    assert_eq!(root.set_password("app", OTHER, true).await.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(root.set_password("other", OTHER, false).await.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(root.set_password("other", "short", true).await.unwrap_err().kind(), ErrorKind::Invalid);
    // What tells of the cluster tells nothing of what passwords are checked by.
    for command in ["users", "rights", "status", "describe", "reads", "tables", "slow", "throttle", "whoami"] {
        let argument = if command == "describe" { r#"{"table":"orders"}"# } else { "{}" };
        let told = root.admin(command, argument, Duration::from_secs(20)).await.unwrap();
        assert!(!told.contains("SCRAM"), "{command}: {told}");
    }
    let records = stage.end_and_read();
    assert!(!records.iter().any(|it| it.to_string().contains("SCRAM") || it.to_string().contains(PASSWORD)));
    let commands = like(&records, &json!({ "event": "command", "command": "set_password", "user": "root" }));
    assert_eq!(commands[0]["argument"], r#"{"name":"app"}"#);
    assert!(!like(&records, &json!({ "event": "login", "user": "app" })).is_empty());
    let refused = like(&records, &json!({ "event": "login_refused", "from": "127.0.0.1" }));
    let of = |user: &str| refused.iter().any(|it| it["reason"].as_str().unwrap().contains(&format!("user {user:?}")));
    assert!(of("app") && of("nobody"), "{refused:?}");
}

#[tokio::test]
async fn a_user_may_the_same_by_a_password_as_by_a_certificate() {
    let (stage, root) = Stage::with_passwords(RightsMode::Required).await;
    for given in [["read:orders"], ["monitor"]] {
        root.grant("app", &given).await.unwrap();
        let mark = format!("after-{}", given[0].replace(':', "-"));
        root.set_password(&mark, OTHER, true).await.unwrap();
        stage.wait_until_known(&mark).await;
        let (certified, by_password) = (stage.user("app").await, stage.by_password("app", PASSWORD).await.unwrap());
        let kind = |result: hedgerow_client::Result<()>| result.err().map(|error| error.kind());
        for (what, _) in ON_ROWS {
            let (one, other) = (on_rows(&certified, what).await, on_rows(&by_password, what).await);
            assert_eq!(kind(one), kind(other), "{what} with {given:?}");
        }
        for (what, _) in ON_TABLES {
            let (one, other) = (on_tables(&certified, what).await, on_tables(&by_password, what).await);
            assert_eq!(kind(one), kind(other), "{what} with {given:?}");
        }
    }
    stage.end();
}

#[tokio::test]
async fn a_password_that_is_changed_or_removed_ends_its_connections() {
    let (stage, root) = Stage::with_passwords(RightsMode::Required).await;
    root.set_password("other", OTHER, true).await.unwrap();
    stage.wait_until_known("other").await;
    let (first, other) = (stage.open().await, stage.open().await);
    assert_eq!(log_in(&first, "app", PASSWORD).await.0, NegotiationStatus::Success);
    assert_eq!(log_in(&other, "other", OTHER).await.0, NegotiationStatus::Success);
    assert_eq!((who(&first).await, who(&other).await), (json!("app"), json!("other")));
    // It has been challenged for the password that was.
    let late = stage.open().await;
    let [_, proof] = until_proof(&late, "app", PASSWORD).await;
    root.set_password("app", "another one altogether", false).await.unwrap();
    assert_closed(&first).await;
    let (status, message) = say(&late, NegotiationStatus::ChallengeResponse, &proof).await;
    assert_eq!((status, &message[..]), (NegotiationStatus::AuthFailed, &b"e=invalid-proof"[..]));
    assert_eq!(who(&other).await, json!("other"));

    let second = stage.open().await;
    assert_eq!(log_in(&second, "app", "another one altogether").await.0, NegotiationStatus::Success);
    root.remove_password("app").await.unwrap();
    assert_closed(&second).await;
    assert_eq!(log_in(&stage.open().await, "app", "another one altogether").await.0, NegotiationStatus::AuthFailed);
    assert_eq!(who(&other).await, json!("other"));
    stage.end();
}

#[tokio::test]
async fn a_login_counts_on_its_own_connection_and_before_anything_else() {
    let (stage, _root) = Stage::with_passwords(RightsMode::Required).await;
    // What was said on one connection proves nothing on another.
    let (first, second) = (stage.open().await, stage.open().await);
    let [begin, proof] = until_proof(&first, "app", PASSWORD).await;
    select(&second).await;
    assert_eq!(say(&second, NegotiationStatus::Initiate, &begin).await.0, NegotiationStatus::Challenge);
    assert_eq!(say(&second, NegotiationStatus::ChallengeResponse, &proof).await.0, NegotiationStatus::AuthFailed);
    assert_closed(&second).await;
    assert_eq!(say(&first, NegotiationStatus::ChallengeResponse, &proof).await.0, NegotiationStatus::Success);
    assert_eq!(say(&first, NegotiationStatus::ListMechanisms, b"").await.0, NegotiationStatus::AuthDisabled);

    // There is no way around the binding.
    let third = stage.open().await;
    let without = say(&third, NegotiationStatus::Select, b"SCRAM-SHA-256").await;
    assert_eq!(without.0, NegotiationStatus::AuthFailed);
    assert_closed(&third).await;
    for header in ["n", "y"] {
        let stream = stage.open().await;
        select(&stream).await;
        let first = format!("{header},,n=app,r=abcdef");
        let (status, message) = say(&stream, NegotiationStatus::Initiate, first.as_bytes()).await;
        let word = &b"e=server-does-support-channel-binding"[..];
        assert_eq!((status, &message[..]), (NegotiationStatus::AuthFailed, word));
        assert_closed(&stream).await;
    }
    // Whoever asks for something is somebody for good, also in the middle of a login.
    let fourth = stage.open().await;
    let [_, proof] = until_proof(&fourth, "app", PASSWORD).await;
    ask(&fourth, &Body::ClusterInfo(ClusterInfo {})).await;
    assert_eq!(say(&fourth, NegotiationStatus::ChallengeResponse, &proof).await.0, NegotiationStatus::AuthDisabled);
    assert_eq!(who(&fourth).await, Value::Null);
    // So is who shows a certificate, and who does not encrypt.
    let certified = stage.connect("user-root").await;
    assert_eq!(say(&certified, NegotiationStatus::ListMechanisms, b"").await.0, NegotiationStatus::AuthDisabled);
    stage.end();
    let stage = Stage::started(Some(Mode::Permissive));
    stage.wait_until_serving().await;
    let plain = Stream::plain(TcpStream::connect(&stage.peers[&NodeId(1)]).await.unwrap());
    assert_eq!(say(&plain, NegotiationStatus::ListMechanisms, b"").await.0, NegotiationStatus::AuthDisabled);
    stage.end();
}

#[tokio::test]
async fn who_fails_again_and_again_is_refused_unseen() {
    let (stage, root) = Stage::with_passwords(RightsMode::Required).await;
    root.set_password("other", OTHER, true).await.unwrap();
    stage.wait_until_known("other").await;
    // Challenged before any of them fails.
    let (early, last_good) = (stage.open().await, stage.open().await);
    let [_, proof] = until_proof(&early, "app", PASSWORD).await;
    assert_eq!(log_in(&last_good, "app", PASSWORD).await.0, NegotiationStatus::Success);
    let mut failed = 0;
    loop {
        let stream = stage.open().await;
        select(&stream).await;
        let (login, first) = Login::begin("app", &Nonce::new([7; 18]), stream.binding());
        let (status, message) = say(&stream, NegotiationStatus::Initiate, first.as_bytes()).await;
        if status == NegotiationStatus::AuthFailed {
            assert_eq!(&message[..], b"e=too-many-failures");
            assert_closed(&stream).await;
            break;
        }
        let hashing = login.handle_challenge(&message).unwrap();
        let (_, wrong) = hashing.prove(&Password::new(OTHER).unwrap().salted(b"salt", 1));
        let (status, message) = say(&stream, NegotiationStatus::ChallengeResponse, wrong.as_bytes()).await;
        assert_eq!((status, &message[..]), (NegotiationStatus::AuthFailed, &b"e=invalid-proof"[..]));
        failed += 1;
    }
    // One comes back in ten seconds.
    assert!((5..=7).contains(&failed), "{failed}");
    let (status, message) = say(&early, NegotiationStatus::ChallengeResponse, &proof).await;
    assert_eq!((status, &message[..]), (NegotiationStatus::AuthFailed, &b"e=too-many-failures"[..]));
    assert_eq!(log_in(&stage.open().await, "other", OTHER).await.0, NegotiationStatus::Success);
    assert_eq!(who(&last_good).await, json!("app"));
    stage.end();
}
