//! Frames that would take far more memory than they are long: one of which little has come, and lists of elements that are
//! nearly empty.
//!
//! An element of a list takes up to 250 bytes in memory, however short it is on the wire: a frame of the largest size with
//! empty elements would take gigabytes. Elements that nodes really send are longer than [`ELEMENT_SIZE_MIN`]; only short lists
//! may have shorter ones. So a frame takes at most a small multiple of its length, and a constant. Elements of lists in lists count together:
//! thousands of short lists are a long one. What questions to logs may hold is in `tail_frame.rs`.

use crate::peer::{FRAME_SIZE_MAX, LENGTH_SIZE, Malformed};
use bytes::BytesMut;

/// So many elements of a list may be of any size.
const SMALL_COUNT_MAX: usize = 4_096;
/// Longer lists have elements of so many bytes on average, their heads included.
const ELEMENT_SIZE_MIN: usize = 12;
/// The same of lists in the elements of a list.
const NESTED_SIZE_MIN: usize = 5;
/// Number of the field of a report that holds replicas, which hold lists themselves.
const REPLICAS: u64 = 4;
/// The kind of a report's frame.
const REPORT: u8 = 3;
/// The kinds whose bodies are no protobuf. They have limits of their own.
const OTHERS: [u8; 3] = [1, 10, 11];
/// The room that is made at once for what is missing of a frame, bytes: a piece of a checkpoint fits.
const STEP_MIN: usize = (1 << 20) + 4_096;

/// How much room to make for a frame of which `missing` bytes have not come, and `here` have: a length alone reserves little.
fn step(missing: usize, here: usize) -> usize {
    missing.min(here.max(STEP_MIN))
}

/// Bytes that the first frame in `buffer` still lacks, as far as is known.
pub(crate) fn missing(buffer: &[u8]) -> usize {
    let length = buffer.first_chunk::<LENGTH_SIZE>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    (LENGTH_SIZE + length.min(FRAME_SIZE_MAX)).saturating_sub(buffer.len())
}

/// Whether the first frame in `buffer` is not whole. Room is made for what is missing of it, or some of that.
pub(crate) fn wants_more(buffer: &mut BytesMut) -> bool {
    let missing = missing(buffer);
    if missing > 0 {
        buffer.reserve(step(missing, buffer.len()));
    }
    missing > 0
}

/// Refuses the body of a frame of this kind if its lists are too sparse. One that is no protobuf passes: its decoder says
/// what is wrong.
pub(crate) fn check(kind: u8, body: &[u8]) -> Result<(), Malformed> {
    if OTHERS.contains(&kind) {
        return Ok(());
    }
    let (mut count, mut nested) = (0, 0);
    let mut rest = body;
    while let Some((number, element)) = next(&mut rest) {
        let Some(element) = element else { continue };
        count += 1;
        if kind == REPORT && number == REPLICAS {
            nested += count_elements(element);
        }
    }
    let size_min = count * ELEMENT_SIZE_MIN + nested * NESTED_SIZE_MIN;
    if count + nested > SMALL_COUNT_MAX && body.len() < size_min {
        return Err(Malformed(format!("lists of {count} and {nested} elements in {} bytes", body.len())));
    }
    Ok(())
}

/// What has a length in a message.
fn count_elements(mut body: &[u8]) -> usize {
    std::iter::from_fn(|| next(&mut body)).filter(|(_, element)| element.is_some()).count()
}

/// The elements of a message's list `field`, up to where it is no protobuf.
pub(crate) fn elements(body: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    let fields = std::iter::from_fn(move || next(&mut rest));
    fields.filter_map(move |(number, element)| element.filter(|_| number == field))
}

/// Takes a field off the front: its number, and its bytes if it has a length.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Option<&'a [u8]>)> {
    let key = varint(rest)?;
    let element = match key & 7 {
        0 => {
            varint(rest)?;
            None
        }
        1 => split(rest, 8).map(|_| None)?,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Some(split(rest, length)?)
        }
        5 => split(rest, 4).map(|_| None)?,
        _ => return None,
    };
    Some((key >> 3, element))
}

fn split<'a>(rest: &mut &'a [u8], at: usize) -> Option<&'a [u8]> {
    let (first, after) = rest.split_at_checked(at)?;
    *rest = after;
    Some(first)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = split(rest, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::peer::{Frame, PeerReport, PulseOf, ReplicaReport, Report, put, take};
    use bytes::{BufMut, BytesMut};

    fn frame(kind: u8, body: &[u8]) -> BytesMut {
        let mut frame = BytesMut::new();
        frame.put_u32_le(body.len() as u32 + 1);
        frame.put_u8(kind);
        frame.put_slice(body);
        frame
    }

    #[test]
    fn n4c_lists_of_nearly_nothing_are_refused() {
        // Replicas in a report, rows of a catalogue, files of a checkpoint, measurements.
        for (kind, tag) in [(3, 4), (4, 3), (7, 6), (15, 4)] {
            let element = [tag << 3 | 2, 0];
            assert!(take(&mut frame(kind, &element.repeat(4_096))).is_ok_and(|it| it.is_some()), "{kind}");
            assert!(take(&mut frame(kind, &element.repeat(5_000))).is_err(), "{kind}");
        }
        // Peers in a replica of a report.
        let peers = [8 << 3 | 2, 0].repeat(5_000);
        let mut body = vec![4 << 3 | 2, 0x90, 0x4e];
        body.extend(peers);
        assert!(take(&mut frame(3, &body)).is_err());
        // A few peers in each of many replicas.
        let replica = [&[4 << 3 | 2, 100][..], &[8 << 3 | 2, 0].repeat(50)].concat();
        assert!(take(&mut frame(3, &replica.repeat(80))).is_ok_and(|it| it.is_some()));
        assert!(take(&mut frame(3, &replica.repeat(100))).is_err());
    }

    #[test]
    fn n4c_a_length_alone_makes_no_room_for_all_of_a_frame() {
        let mut buffer = BytesMut::from(&[0, 0, 0, 2, 8][..]);
        for size in [5, 1 << 20, 2 << 20, 4 << 20] {
            buffer.resize(size, 0);
            assert_eq!(take(&mut buffer), Ok(None));
            assert!(buffer.capacity() <= 3 * size.max(1 << 20), "{size} {}", buffer.capacity());
        }
    }

    #[test]
    fn the_longest_lists_that_nodes_send_are_taken() {
        let replica = ReplicaReport { group: 1 << 32, replica: 1 << 16 | 1, state: 2, ..ReplicaReport::default() };
        let peers = [0, 0, 1].map(|matched| PeerReport { replica: 1 << 16 | 2, matched, ..PeerReport::default() });
        let leader = ReplicaReport { peers: peers.to_vec(), voters: vec![1 << 16 | 1; 4], ..replica.clone() };
        let replicas = [vec![replica; 100_000], vec![leader; 10_000]].concat();
        let report = Report { replicas, ..Report::default() };
        let pulse = PulseOf { node: 1, micros: None, score: 1 };
        let pulse = crate::peer::Pulse { measured: vec![pulse; 4_000], ..crate::peer::Pulse::default() };
        for sent in [Frame::Report(report), Frame::Pulse(pulse)] {
            let mut bytes = BytesMut::new();
            put(&mut bytes, &sent);
            assert!(take(&mut bytes) == Ok(Some(sent)));
        }
    }
}
