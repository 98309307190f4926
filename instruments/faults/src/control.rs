//! Admin calls to one node and no other, patient with a node that is slow on purpose. (The client asks any node of a cluster
//! and gives each half a second.)

use anyhow::{Context as _, Result, bail};
use bytes::BytesMut;
use hedgerow_tls::{ClientTls, Stream};
use hedgerow_wire::call::{decode_reply, encode_request, reply_frame_size};
use hedgerow_wire::message::AdminCommand;
use hedgerow_wire::{Body, ErrorName, Extension, Header, Reply, Text};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// Time that a node may take to answer: the longest stall, and some more.
const ANSWER_MAX: Duration = Duration::from_secs(75);
/// Time that agreeing on a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time that a node that was started again may take until it answers.
const RETURN_MAX: Duration = Duration::from_secs(60);
/// Time between two looks whether it does.
const RETURN_LOOK: Duration = Duration::from_millis(20);

/// Has the node at `address`, and no other, carry out the admin command `command`; its answer, which is JSON.
pub async fn call(address: &str, command: &str, argument: &str, tls: Option<&ClientTls>) -> Result<String> {
    let answer = timeout(ANSWER_MAX, exchange(address, command, argument, tls)).await;
    answer.with_context(|| format!("{address} did not answer in time"))?
}

/// Waits until the node at `address` answers.
pub(crate) async fn wait_until_it_answers(address: &str) -> Result<()> {
    let answered = timeout(RETURN_MAX, async {
        while exchange(address, "status", "{}", None).await.is_err() {
            sleep(RETURN_LOOK).await;
        }
    });
    answered.await.with_context(|| format!("the node at {address} did not come back within {RETURN_MAX:?}"))
}

async fn exchange(address: &str, command: &str, argument: &str, tls: Option<&ClientTls>) -> Result<String> {
    let connecting = || format!("connecting to {address}");
    let tcp = TcpStream::connect(address).await.with_context(connecting)?;
    let stream = match tls {
        Some(tls) => timeout(CONNECT_MAX, tls.connect(tcp)).await.with_context(connecting)?.with_context(connecting)?,
        None => Stream::plain(tcp),
    };
    let deadline_ms = i64::try_from(ANSWER_MAX.as_millis()).ok();
    // A caller with fields of our own is told in full why it is refused.
    let header = Header { extension: Some(Extension { deadline_ms, ..Extension::default() }), ..Header::default() };
    let body = Body::HedgerowAdmin(AdminCommand { command: Text::from(command), argument: Text::from(argument) });
    let mut bytes = BytesMut::new();
    encode_request(&mut bytes, &header, 1, &body);
    let context = || format!("talking to {address}");
    stream.write_all(&bytes).await.with_context(context)?;
    bytes.clear();
    let frame = loop {
        match reply_frame_size(&bytes).with_context(context)? {
            Some(size) if bytes.len() >= size => break bytes.split_to(size).freeze(),
            _ => {}
        }
        if stream.read(&mut bytes).await.with_context(context)? == 0 {
            bail!("{address} closed the connection instead of an answer");
        }
    };
    match decode_reply(frame).with_context(context)?.reply {
        Reply::HedgerowAdmin(reply) if reply.err == ErrorName::Ok => Ok(reply.text.to_string()),
        Reply::HedgerowAdmin(reply) => bail!("{address} refuses: {}", reply.text),
        Reply::Failed(failure) => match failure.refusal() {
            Some(refusal) => bail!("{address} refuses: {refusal}"),
            None => bail!("{address} refuses: {}", failure.name.name()),
        },
        _ => bail!("{address} answers something else than it was asked"),
    }
}
