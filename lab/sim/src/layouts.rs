//! Which layout of logs a machine's node has at each start: in every other run with several data directories another one at times, so that
//! groups come from one log to another while everything else goes wrong.

use hedgerow_node::LogLayout;
use hedgerow_types::random::Random;

/// The layouts of one machine, start by start. Drawn from the seed alone, as [`crate::work::Work::of_seed`].
#[derive(Debug)]
pub struct Layouts(Option<Random>);

impl Layouts {
    /// Those of machine `machine`.
    pub fn of_seed(seed: u64, machine: usize, directory_count: usize) -> Self {
        let mut random = Random::new(seed ^ 0x006c_6179_6f75_7473);
        let changes = directory_count > 1 && random.chance(1, 2);
        Self(changes.then(|| Random::new(random.next_u64() ^ machine as u64)))
    }

    /// That of the next start.
    pub fn draw(&mut self) -> LogLayout {
        let is_other = self.0.as_mut().is_some_and(|random| random.chance(1, 2));
        if is_other { LogLayout::Node } else { LogLayout::Disk }
    }
}
