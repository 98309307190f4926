//! Stacks without perf: the processes sample themselves (feature `profiling`), which needs no privilege and sees no kernel.

use crate::load::Window;
use crate::process::Process;
use crate::stacks::{Stack, Stacks};
use anyhow::{Context as _, Result};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Samples all `processes` for `phase`.
pub(crate) fn sample(processes: &mut [Process], phase: Duration) -> Result<(Window, Stacks)> {
    for process in &mut *processes {
        process.ask("sample")?;
    }
    let begin = Instant::now();
    sleep(phase);
    let end = Instant::now();
    let mut stacks = Vec::new();
    for process in processes {
        let mut line = process.ask("stacks")?;
        while !line.trim_end().is_empty() {
            let stack = Stack::parse(process.role, &line);
            stacks.push(stack.with_context(|| format!("{} sent no stack: {line}", process.role))?);
            line = process.read_line()?;
        }
    }
    Ok((Window { begin, end }, Stacks { stacks, source: "signals in the processes; kernel not visible" }))
}
