//! Replies on their way through a relay: the addresses of nodes in them become those at which the relay stands for these nodes.
//!
//! A client asks one node where a table's partitions are, and connects to the nodes that the answer names. Where it cannot reach them
//! itself, the answer has to name what it does reach. All other replies pass as they come, piece by piece, and are never kept whole.

use crate::call::{decode_reply, reply_frame_size};
use crate::frame::{Broken, NAME_SIZE_MAX, word};
use crate::header::ReplyExtension;
use crate::message::PartitionConfig;
use crate::method::Method;
use crate::reply::{Reply, encode_reply};
use crate::thrift::Malformed;
use crate::value::{Address, PlainAddress, Text};
use alloc::string::ToString;
use bytes::{Bytes, BytesMut};

/// Largest reply that is kept until it has come whole, bytes. The map of a table of 4,096 partitions has a fifth of it.
const HELD_SIZE_MAX: usize = 4 << 20;
/// Longest name of an error, and of a call with `_ACK` behind it.
const REPLY_NAME_SIZE_MAX: usize = NAME_SIZE_MAX + 4;

/// The replies of one connection.
#[derive(Debug, Default)]
pub struct Relay {
    /// How much is still to come of a reply that passes as it is.
    passing: usize,
}

/// What stands at the front of a buffer.
enum Front {
    /// Too little to tell.
    Unknown,
    /// A reply of so many bytes in which there is no address.
    Passes(usize),
    /// A reply of so many bytes in which there may be some.
    Held(usize),
}

impl Relay {
    /// Takes off the front of `buffer` what can be handed on, with each address of a node replaced by what `near` makes of it; [`Address::NONE`] is no
    /// address. `None`: more has to come first. What `buffer` keeps then is less than 4 MiB.
    ///
    /// # Errors
    /// [`Broken`] if the bytes are no reply, or a reply with addresses is larger than that: the connection must be closed.
    pub fn next(
        &mut self,
        buffer: &mut BytesMut,
        near: impl FnMut(Address) -> Address,
    ) -> Result<Option<Bytes>, Broken> {
        let mut ready = self.passing.min(buffer.len());
        self.passing -= ready;
        while self.passing == 0 {
            let front = match front(&buffer[ready..]) {
                // Whole replies go first. It comes again with the next call.
                Err(_) if ready > 0 => break,
                front => front?,
            };
            match front {
                Front::Passes(size) => {
                    let here = size.min(buffer.len() - ready);
                    ready += here;
                    self.passing = size - here;
                }
                Front::Held(size) if ready == 0 && buffer.len() >= size => {
                    return Ok(Some(rewrite(buffer.split_to(size).freeze(), near)?));
                }
                Front::Held(_) | Front::Unknown => break,
            }
        }
        Ok((ready > 0).then(|| buffer.split_to(ready).freeze()))
    }
}

/// Looks at the names of the reply at the front of `buffer`, and no further.
fn front(buffer: &[u8]) -> Result<Front, Broken> {
    let Some(size) = reply_frame_size(buffer)? else { return Ok(Front::Unknown) };
    let is_whole = buffer.len() >= size;
    let start = &buffer[..size.min(buffer.len())];
    let names = name(start, 4)?.and_then(|error| Some((error, name(start, 4 + 4 + error.len() + 4).transpose()?)));
    let Some((error, call)) = names else {
        return if is_whole { Err(Malformed("reply: it ends early").into()) } else { Ok(Front::Unknown) };
    };
    let call = call?;
    let is_map = [Method::QueryConfig, Method::ListNodes].iter().any(|method| method.reply_name().as_bytes() == call);
    if error == b"ERR_OK" && !is_map {
        return Ok(Front::Passes(size));
    }
    if size > HELD_SIZE_MAX {
        return Err(Malformed("reply: one that names nodes is larger than 4 MiB").into());
    }
    Ok(Front::Held(size))
}

/// The name with its length before it at `offset`; `None` if it is not there yet.
fn name(buffer: &[u8], offset: usize) -> Result<Option<&[u8]>, Malformed> {
    let Some(size) = word(buffer, offset) else { return Ok(None) };
    let size = size as usize;
    if size > REPLY_NAME_SIZE_MAX {
        return Err(Malformed("reply: a name in it is too long"));
    }
    Ok(buffer.get(offset + 4..offset + 4 + size))
}

/// The reply `frame` with other addresses, or as it is where it has none.
fn rewrite(frame: Bytes, mut near: impl FnMut(Address) -> Address) -> Result<Bytes, Malformed> {
    let mut whole = decode_reply(frame.clone())?;
    let Some(method) = whole.method else { return Ok(frame) };
    match &mut whole.reply {
        Reply::QueryConfig(map) => {
            map.partitions.iter_mut().for_each(|partition| move_partition(partition, &mut near));
            for place in map.nodes.iter_mut().flatten() {
                place.address = PlainAddress(near(*place.address));
            }
        }
        Reply::ListNodes(list) => {
            for info in &mut list.infos {
                (info.node, info.hp_node) = (near(info.node), None);
            }
        }
        Reply::Failed(failure) => {
            let Some(detail) = &mut failure.detail else { return Ok(frame) };
            let leader = detail.leader.parse().ok().and_then(|leader| near(Address::new(leader)).socket());
            detail.leader = leader.map_or_else(Text::default, |leader| leader.to_string().into());
            // The details of a failure are written for callers that sent an extension, as this one did.
            whole.extension = Some(ReplyExtension::default());
        }
        _ => return Ok(frame),
    }
    let mut out = BytesMut::with_capacity(frame.len());
    encode_reply(&mut out, method, whole.sequence_id, &whole.reply, whole.extension.as_ref());
    Ok(out.freeze())
}

/// Names are left out: whoever reads them prefers them to addresses, and does without.
fn move_partition(partition: &mut PartitionConfig, near: &mut impl FnMut(Address) -> Address) {
    partition.primary = near(partition.primary);
    let learners = partition.learners.iter_mut().flat_map(|learners| &mut learners.0);
    for address in partition.secondaries.iter_mut().chain(&mut partition.last_drops).chain(learners) {
        *address = near(*address);
    }
    (partition.hp_primary, partition.hp_secondaries, partition.hp_last_drops) = (None, None, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_name::ErrorName;
    use crate::message::{GetReply, ListNodesReply, NodeInfo, NodePlace, QueryConfigReply};
    use crate::reply::{Detail, Failure, encode_rejection};
    use crate::tests::Sample;
    use crate::value::{HostPort, PartitionId, PlainAddresses};
    use alloc::vec;
    use alloc::vec::Vec;
    use core::net::{Ipv4Addr, SocketAddrV4};
    use hedgerow_types::random::Random;

    const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn address(ip: Ipv4Addr, port: u16) -> Address {
        Address::new(SocketAddrV4::new(ip, port))
    }

    /// 10.0.0.1:PORT is 127.0.0.1:(PORT + 1), and everybody else unknown.
    fn near(far: Address) -> Address {
        let known = far.socket().filter(|far| *far.ip() == FAR);
        known.map_or(Address::NONE, |far| address(Ipv4Addr::LOCALHOST, far.port() + 1))
    }

    fn frame(method: Method, reply: &Reply, extension: Option<&ReplyExtension>) -> Vec<u8> {
        let mut out = BytesMut::new();
        encode_reply(&mut out, method, 7, reply, extension);
        out.to_vec()
    }

    /// What comes out where the bytes come in pieces of `size`.
    fn relayed(bytes: &[u8], size: usize) -> Result<Vec<u8>, Broken> {
        let (mut relay, mut buffer, mut out) = (Relay::default(), BytesMut::new(), Vec::new());
        for piece in bytes.chunks(size) {
            buffer.extend_from_slice(piece);
            while let Some(part) = relay.next(&mut buffer, near)? {
                out.extend_from_slice(&part);
            }
        }
        assert_eq!((buffer.len(), relay.passing), (0, 0), "all of it was handed on");
        Ok(out)
    }

    fn partition(ip: Ipv4Addr, offset: u16) -> PartitionConfig {
        PartitionConfig {
            pid: PartitionId { app_id: 2, partition_index: 1 },
            ballot: 3,
            max_replica_count: 3,
            primary: address(ip, 10 + offset),
            secondaries: vec![address(ip, 20 + offset), address(ip, 30 + offset)],
            last_drops: vec![address(ip, 40 + offset)],
            learners: Some(PlainAddresses(vec![address(ip, 50 + offset)])),
            ..PartitionConfig::default()
        }
    }

    fn map(ip: Ipv4Addr, offset: u16) -> Reply {
        let place = NodePlace { address: PlainAddress(address(ip, 60 + offset)), labels: vec!["zone=a".into()] };
        let found = QueryConfigReply::found(2, 4, vec![partition(ip, offset)]);
        Reply::QueryConfig(QueryConfigReply { nodes: Some(vec![place]), ..found })
    }

    #[test]
    fn a_partition_map_names_the_relay() {
        let name = HostPort { host: "node-1".into(), port: 34601, kind: 1 };
        let mut far = map(FAR, 0);
        let Reply::QueryConfig(QueryConfigReply { partitions, .. }) = &mut far else { unreachable!() };
        (partitions[0].hp_primary, partitions[0].hp_secondaries) = (Some(name.clone()), Some(vec![name]));
        let frames = [far, map(Ipv4Addr::LOCALHOST, 1)].map(|reply| frame(Method::QueryConfig, &reply, None));
        assert_eq!(relayed(&frames[0], usize::MAX), Ok(frames[1].clone()));
        assert_eq!(relayed(&frames[0], 1), Ok(frames[1].clone()));
    }

    #[test]
    fn whole_replies_before_a_broken_one_are_handed_on() {
        let good = frame(Method::Get, &Reply::Get(GetReply::default()), None);
        let (mut relay, mut buffer) = (Relay::default(), BytesMut::from(&good[..]));
        buffer.extend_from_slice(b"HTTP/1.1 400 Bad Request");
        assert_eq!(relay.next(&mut buffer, near).unwrap().unwrap(), good);
        assert!(relay.next(&mut buffer, near).is_err());
    }

    /// The bytes as Pegasus' clients read them: `rpc_address` 10.0.0.1:34601 becomes 127.0.0.1:34602.
    #[test]
    fn only_the_addresses_of_a_map_change() {
        let partition = PartitionConfig { primary: address(FAR, 34601), ..PartitionConfig::default() };
        let far = frame(Method::QueryConfig, &Reply::QueryConfig(QueryConfigReply::found(2, 4, vec![partition])), None);
        let (old, new) = (0x0a00_0001_8729_0001_u64.to_be_bytes(), 0x7f00_0001_872a_0001_u64.to_be_bytes());
        let at = far.windows(8).position(|bytes| bytes == old).unwrap();
        let mut expected = far.clone();
        expected[at..at + 8].copy_from_slice(&new);
        assert_eq!(relayed(&far, 100), Ok(expected));
    }

    #[test]
    fn who_is_forwarded_stays_with_the_relay() {
        let forwarded = |to| frame(Method::QueryConfig, &Reply::QueryConfig(QueryConfigReply::forward(to)), None);
        let expected = forwarded(address(Ipv4Addr::LOCALHOST, 2));
        assert_eq!(relayed(&forwarded(address(FAR, 1)), 10), Ok(expected));
        let detail = |leader: &str| Detail { kind: 1, leader: leader.into(), message: Text::default() };
        let failed = |leader: &str| {
            let failure = Failure { name: ErrorName::InvalidState, detail: Some(detail(leader)) };
            frame(Method::Get, &Reply::Failed(failure), Some(&ReplyExtension::default()))
        };
        assert_eq!(relayed(&failed("10.0.0.1:1"), 10), Ok(failed("127.0.0.1:2")));
        assert_eq!(relayed(&failed("10.0.0.2:1"), 10), Ok(failed("")), "nobody knows it");
    }

    #[test]
    fn a_list_of_nodes_names_the_relay() {
        let list = |node, hp_node| {
            let infos = vec![NodeInfo { status: 1, node, hp_node }];
            frame(Method::ListNodes, &Reply::ListNodes(ListNodesReply { infos, ..ListNodesReply::default() }), None)
        };
        let far = list(address(FAR, 1), Some(HostPort::default()));
        assert_eq!(relayed(&far, 10), Ok(list(address(Ipv4Addr::LOCALHOST, 2), None)));
    }

    #[test]
    fn other_replies_pass_as_they_are() {
        let random = &mut Random::new(1);
        let mut stream = Vec::new();
        let is_map = |method: &Method| matches!(method, Method::QueryConfig | Method::ListNodes);
        for method in Method::ALL.iter().filter(|method| !is_map(method)) {
            if let Some(reply) = Reply::sample(*method, random) {
                let extension = Option::<ReplyExtension>::sample(random);
                stream.extend(frame(*method, &reply, extension.as_ref()));
            }
        }
        let mut rejection = BytesMut::new();
        encode_rejection(&mut rejection, b"RPC_OF_ANOTHER_VERSION", 7, ErrorName::HandlerNotFound);
        stream.extend(rejection);
        for size in [1, 3, 100, usize::MAX] {
            assert_eq!(relayed(&stream, size), Ok(stream.clone()), "pieces of {size}");
        }
    }

    /// A reply of megabytes is handed on while it comes.
    #[test]
    fn a_large_reply_is_not_kept() {
        let value = Bytes::from(vec![1; 1 << 20]);
        let bytes = frame(Method::Get, &Reply::Get(GetReply { value, ..GetReply::default() }), None);
        let (mut relay, mut buffer) = (Relay::default(), BytesMut::new());
        for piece in bytes.chunks(1000) {
            buffer.extend_from_slice(piece);
            assert_eq!(relay.next(&mut buffer, near).unwrap().unwrap(), piece);
        }
    }

    #[test]
    fn what_is_no_reply_is_refused() {
        let huge = |call: &str| {
            let mut bytes = (5_u32 << 20).to_be_bytes().to_vec();
            for part in [&6_u32.to_be_bytes()[..], b"ERR_OK", &[0x80, 1, 0, 2], &(call.len() as u32).to_be_bytes()] {
                bytes.extend(part);
            }
            bytes.extend(call.as_bytes());
            bytes
        };
        let is_broken = |bytes: &[u8]| Relay::default().next(&mut BytesMut::from(bytes), near).is_err();
        assert!(is_broken(&huge(Method::QueryConfig.reply_name())), "too large");
        assert!(!is_broken(&huge(Method::Get.reply_name())));
        assert!(is_broken(b"HTTP/1.1 400 Bad Request"));
        assert!(is_broken(&[0, 0, 0, 3]), "smaller than its length");
        assert!(is_broken(&[0, 0, 0, 8, 0, 0, 0, 6]), "it ends early");
        assert!(is_broken(&[0, 0, 1, 0, 0, 0, 0, 200]), "a long name");
        let map = frame(Method::QueryConfig, &map(FAR, 0), None);
        let mut cut = map[..map.len() - 20].to_vec();
        let size = cut.len() as u32;
        cut[..4].copy_from_slice(&size.to_be_bytes());
        assert!(is_broken(&cut), "a map that ends early");
    }
}
