//! A thread that panics takes its node down with a reason: a node never goes on in part.
#![allow(clippy::unwrap_used, reason = "a test fails where it fails")]
#![allow(clippy::disallowed_methods, reason = "a test may use the network by itself")]

#[path = "ports/mod.rs"]
mod ports;

use hedgerow_env::Disk;
use hedgerow_env::os::{OsDisk, random_u64};
use hedgerow_node::Config;
use hedgerow_node::os::{Running, State, start};
use hedgerow_storage::{Engine, EngineError, Engines};
use hedgerow_types::NodeId;
use ports::reserved_address;
use std::path::Path;
use std::sync::Arc;

/// Engines with a defect.
#[derive(Debug)]
struct Broken;

impl Engines for Broken {
    fn open(&self, dir: &Path) -> Result<Arc<dyn Engine>, EngineError> {
        panic!("there is no engine for {}", dir.display());
    }

    fn verify(&self, dir: &Path) -> Result<(), EngineError> {
        self.open(dir).map(drop)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(OsDisk)
    }
}

fn start_one(root: &Path) -> Running {
    let config =
        Config::new(NodeId(1), [(NodeId(1), reserved_address())].into(), vec![root.to_path_buf()], random_u64());
    start(config, Arc::new(OsDisk), Arc::new(Broken)).unwrap()
}

fn end(node: &Running) -> State {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { node.state().wait_for(|it| matches!(it, State::Stopped(_))).await.unwrap().clone() })
}

#[test]
fn n3_a_node_ends_when_a_job_panics() {
    let root = tempfile::tempdir().unwrap();
    // The first job makes the storage of the metadata.
    let node = start_one(root.path());
    let State::Stopped(Err(reason)) = end(&node) else { panic!("it goes on") };
    assert!(reason.contains("a job's thread panicked"), "{reason}");
    assert_eq!(node.join(), Err(reason));
}
