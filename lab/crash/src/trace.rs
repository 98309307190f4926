//! What a process did to the files below one directory: a sequence of events, and its form in a file.

use std::fmt;

/// One successful operation, or a word of the process that did them. Paths are relative to the recorded directory, which
/// is the empty path itself; files are known by the numbers of their inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A new empty file.
    Create { path: String, inode: u64 },
    /// A new directory.
    CreateDir { path: String, inode: u64 },
    /// Bytes written, to the system's cache or past it.
    Write { inode: u64, offset: u64, data: Vec<u8> },
    /// A file cut or extended with zeros.
    SetSize { inode: u64, size: u64 },
    /// A file or a directory made durable.
    Sync { inode: u64 },
    /// A second name.
    Link { from: String, to: String },
    /// Another name, in place of whatever had it.
    Rename { from: String, to: String },
    /// A name of a file removed.
    Unlink { path: String },
    /// An empty directory removed.
    RemoveDir { path: String },
    /// What the process has told others by now.
    Marker { text: String },
}

/// The kinds in a file, in the order above.
const KINDS: u8 = 10;

impl Event {
    /// Appends the event's form in a file: its kind, two numbers, the sizes of two byte strings, the strings.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, numbers, first, second): (u8, [u64; 2], &[u8], &[u8]) = match self {
            Self::Create { path, inode } => (0, [*inode, 0], path.as_bytes(), &[]),
            Self::CreateDir { path, inode } => (1, [*inode, 0], path.as_bytes(), &[]),
            Self::Write { inode, offset, data } => (2, [*inode, *offset], data, &[]),
            Self::SetSize { inode, size } => (3, [*inode, *size], &[], &[]),
            Self::Sync { inode } => (4, [*inode, 0], &[], &[]),
            Self::Link { from, to } => (5, [0, 0], from.as_bytes(), to.as_bytes()),
            Self::Rename { from, to } => (6, [0, 0], from.as_bytes(), to.as_bytes()),
            Self::Unlink { path } => (7, [0, 0], path.as_bytes(), &[]),
            Self::RemoveDir { path } => (8, [0, 0], path.as_bytes(), &[]),
            Self::Marker { text } => (9, [0, 0], text.as_bytes(), &[]),
        };
        out.push(kind);
        for number in [numbers[0], numbers[1], first.len() as u64, second.len() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(first);
        out.extend_from_slice(second);
    }

    /// The first event in `bytes`, which it is taken from. `None` at the end, or where a dying process stopped writing.
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let (&kind, mut rest) = bytes.split_first().filter(|(kind, _)| **kind < KINDS)?;
        let mut numbers = [0; 4];
        for number in &mut numbers {
            let (head, tail) = rest.split_first_chunk::<8>()?;
            *number = u64::from_le_bytes(*head);
            rest = tail;
        }
        let [inode, number, first, second] = numbers;
        let (first, rest) = rest.split_at_checked(usize::try_from(first).ok()?)?;
        let (second, rest) = rest.split_at_checked(usize::try_from(second).ok()?)?;
        *bytes = rest;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let path = || text(first);
        let (from, to) = (text(first), text(second));
        Some(match kind {
            0 => Self::Create { path: path(), inode },
            1 => Self::CreateDir { path: path(), inode },
            2 => Self::Write { inode, offset: number, data: first.to_vec() },
            3 => Self::SetSize { inode, size: number },
            4 => Self::Sync { inode },
            5 => Self::Link { from, to },
            6 => Self::Rename { from, to },
            7 => Self::Unlink { path: path() },
            8 => Self::RemoveDir { path: path() },
            _ => Self::Marker { text: path() },
        })
    }
}

/// The events that `bytes` hold.
pub(crate) fn decode(mut bytes: &[u8]) -> Vec<Event> {
    std::iter::from_fn(|| Event::decode(&mut bytes)).collect()
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { path, inode } => write!(f, "create {path} (inode {inode})"),
            Self::CreateDir { path, .. } => write!(f, "mkdir {path}"),
            Self::Write { inode, offset, data } => write!(f, "write {} bytes at {offset} of inode {inode}", data.len()),
            Self::SetSize { inode, size } => write!(f, "set the size of inode {inode} to {size}"),
            Self::Sync { inode } => write!(f, "sync inode {inode}"),
            Self::Link { from, to } => write!(f, "link {from} as {to}"),
            Self::Rename { from, to } => write!(f, "rename {from} to {to}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::RemoveDir { path } => write!(f, "rmdir {path}"),
            Self::Marker { text } => write!(f, "-- {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let events = [
            Event::Create { path: "a".into(), inode: 7 },
            Event::CreateDir { path: "b".into(), inode: 8 },
            Event::Write { inode: 7, offset: 5, data: vec![1, 2, 3] },
            Event::SetSize { inode: 7, size: 2 },
            Event::Sync { inode: 7 },
            Event::Link { from: "a".into(), to: "b/c".into() },
            Event::Rename { from: "a".into(), to: "d".into() },
            Event::Unlink { path: "d".into() },
            Event::RemoveDir { path: "b".into() },
            Event::Marker { text: "done 1".into() },
        ];
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.encode(&mut bytes));
        assert_eq!(decode(&bytes), events);
        bytes.pop();
        assert_eq!(decode(&bytes), events[..9], "what was not written to its end does not count");
    }
}
