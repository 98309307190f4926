//! A read as a client of Pegasus makes it: in Pegasus' words, one attempt after the other, and on to another node where it is
//! refused.

use crate::client::GaveUp;
use crate::history::{Answer, Call};
use crate::machine::{machine_of_address, socket_of_machine};
use crate::protocol::{self, Received, Table};
use crate::reading::Manner;
use bytes::BytesMut;
use hedgerow_client::simulation::{connect, sleep, timeout};
use hedgerow_wire::call::{decode_reply, reply_frame_size};
use std::time::Duration;

/// The number of the only request of a connection.
const ONLY: i32 = 1;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// A read of one record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignRead {
    /// Which.
    pub(crate) key: u32,
    /// How it reads, for who judges it.
    pub(crate) call: Call,
    /// With the backup flag or without.
    pub(crate) manner: Manner,
    /// Of which table.
    pub(crate) table: Table,
    /// Who is asked first.
    pub(crate) machine: usize,
    /// How many machines there are.
    pub(crate) machine_count: usize,
    /// For how long one attempt is waited for.
    pub(crate) attempt_timeout: Duration,
    /// For how long it is tried.
    pub(crate) deadline: Duration,
}

impl ForeignRead {
    /// Runs it to its end.
    pub(crate) async fn run(self) -> Result<Answer, GaveUp> {
        timeout(self.deadline, self.try_all()).await.ok_or(GaveUp { is_unknown: false, is_late: true })
    }

    async fn try_all(self) -> Answer {
        let mut machine = self.machine;
        loop {
            let received = timeout(self.attempt_timeout, self.try_at(machine)).await;
            let leader = match received.flatten() {
                Some(Received::Answer { answer, .. }) => return answer,
                Some(Received::Refused { leader, .. }) => leader,
                Some(Received::Nonsense(_)) | None => None,
            };
            let named = leader.as_deref().and_then(machine_of_address).filter(|named| *named < self.machine_count);
            machine = named.unwrap_or((machine + 1) % self.machine_count);
            sleep(PAUSE).await;
        }
    }

    async fn try_at(self, machine: usize) -> Option<Received> {
        let pipe = connect(socket_of_machine(machine)).await.ok()?;
        let frame = protocol::read(self.key, ONLY, self.manner == Manner::Backup, None, self.table);
        pipe.write(&frame).ok()?;
        let mut buffer = BytesMut::new();
        loop {
            if pipe.read(&mut buffer).await.ok()? == 0 {
                return None;
            }
            if reply_frame_size(&buffer).ok()?.is_some_and(|size| size <= buffer.len()) {
                return Some(protocol::received(&decode_reply(buffer.freeze()).ok()?, &self.call));
            }
        }
    }
}
