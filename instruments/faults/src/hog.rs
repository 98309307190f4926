//! Processes that compete for the disk and the CPU. Each is a child that ends when its standard input does, so that it
//! cannot outlive whoever started it, however that one ends.
#![allow(
    clippy::disallowed_methods,
    reason = "it writes to a real disk, reads the clock and starts threads to be in the way"
)]

use crate::schedule::Competitor;
use anyhow::{Context as _, Result, bail};
use hedgerow_env::os::spawn_thread;
use hedgerow_types::random::Random;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Size of the file that the writer writes to, round and round.
const FILE_SIZE: u64 = 256 << 20;
/// The period in which a thread that computes for a part of its time does so.
const PERIOD: Duration = Duration::from_millis(10);
/// Steps of computing between two looks at the clock: some microseconds.
const STEPS: u32 = 4_096;

/// A running process that competes. Dropping it ends it.
#[derive(Debug)]
pub struct Hog {
    child: Child,
}

impl Hog {
    /// Starts `binary` with the hidden command `hog`. A writer writes to a file in `directory`.
    pub fn start(binary: &Path, competitor: &Competitor, directory: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("hog");
        match competitor {
            Competitor::Disk { write_size, pause } => {
                let directory = directory.context("a writer needs a directory")?;
                command.args(["disk", "--write-size", &write_size.to_string()]);
                command.args(["--pause-us", &pause.as_micros().to_string(), "--directory"]).arg(directory);
            }
            Competitor::Cpu { threads, percent } => {
                command.args(["cpu", "--threads", &threads.to_string(), "--percent", &percent.to_string()]);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Self { child })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it. An error if it had ended before, because then it was not in the way as long as it should.
    pub fn end(mut self) -> Result<()> {
        match self.child.try_wait().context("asking for the state of a competing process")? {
            Some(status) => bail!("the competing process had ended already: {status}"),
            None => Ok(()),
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the child does: it competes until standard input ends.
pub fn compete(competitor: &Competitor, directory: Option<&Path>) -> Result<()> {
    match *competitor {
        Competitor::Disk { write_size, pause } => {
            let directory = directory.context("a writer needs a directory")?;
            spawn_thread("hog", end_with_input).context("starting a thread")?;
            write(directory, write_size, pause)
        }
        Competitor::Cpu { threads, percent } => {
            for _ in 0..threads {
                spawn_thread("hog", move || compute(percent)).context("starting a thread")?;
            }
            end_with_input();
            Ok(())
        }
    }
}

fn end_with_input() {
    let mut nothing = [0; 64];
    let mut input = std::io::stdin().lock();
    while matches!(input.read(&mut nothing), Ok(1..)) {}
    std::process::exit(0);
}

fn write(directory: &Path, write_size: u64, pause: Duration) -> Result<()> {
    let path = directory.join(format!(".hedgerow-hog-{}", std::process::id()));
    let context = || format!("writing to {}", path.display());
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).with_context(context)?;
    // Without a name it is gone when the process is.
    fs::remove_file(&path).with_context(context)?;
    let mut random = Random::new(u64::from(std::process::id()));
    // Bytes that no disk can compress.
    let bytes: Vec<u8> = (0..write_size.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let mut offset = 0;
    loop {
        file.write_all_at(&bytes[..write_size as usize], offset).with_context(context)?;
        file.sync_all().with_context(context)?;
        offset = if offset + 2 * write_size > FILE_SIZE.max(2 * write_size) { 0 } else { offset + write_size };
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
}

fn compute(percent: u8) {
    let busy = PERIOD * u32::from(percent) / 100;
    let mut random = Random::new(1);
    loop {
        let begin = Instant::now();
        while percent >= 100 || begin.elapsed() < busy {
            for _ in 0..STEPS {
                std::hint::black_box(random.next_u64());
            }
        }
        std::thread::sleep(PERIOD - busy);
    }
}
