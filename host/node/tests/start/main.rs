//! What a node finds when it starts: logs longer than memory, directories that cannot be read, replicas of two lives.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails where it fails, and its parts are modules")]

mod alone;
mod beside;
mod changes;
mod device;
mod failing;
mod founding;
mod layouts;
mod log;
mod lost;
mod many;
mod numbers;
mod older;
mod passed_on;
mod replicas;
mod told;
mod unread;
mod version;
#[allow(dead_code, reason = "the tests of reads use the rest of it")]
#[path = "../reads/world.rs"]
mod world;
