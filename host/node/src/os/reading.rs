//! Threads for reads: short ones that need the disk, and what other threads than the node's own look for in memory. Clients wait for them, so that they do not give way as those of other jobs do, nor queue
//! behind these. How many run at a time the node decides; there is a thread for each.

use super::{Arrival, PanicGuard};
use crate::{Event, Job, JobContext};
use hedgerow_env::os::spawn_thread;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::UnboundedSender;

/// The threads. When this is dropped they end what they are at, and are waited for: whoever opens the data next finds nobody there.
pub(super) struct Readers {
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts `count` threads of this name.
    pub(super) fn start(
        name: &str,
        count: usize,
        context: &Arc<JobContext>,
        arrivals: &UnboundedSender<Arrival>,
    ) -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let thread = |_| {
            let (inbox, context, arrivals) = (Arc::clone(&inbox), Arc::clone(context), arrivals.clone());
            spawn_thread(name, move || run_all(&inbox, &context, &arrivals))
        };
        Ok(Self { jobs: Some(jobs), threads: (0..count).map(thread).collect::<io::Result<_>>()? })
    }

    /// Has a thread run it.
    pub(super) fn run(&self, job: Job) {
        // They all live as long as this does, or the node has been told that one panicked.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // What panicked has told the node.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn run_all(inbox: &Mutex<Receiver<Job>>, context: &JobContext, arrivals: &UnboundedSender<Arrival>) {
    let _guard = PanicGuard { what: "a reader's thread", arrivals: arrivals.clone() };
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = next else { return };
        // The receiver is gone once the node has stopped.
        drop(arrivals.send(Arrival::Event(Event::Job(job.run(context)))));
    }
}
