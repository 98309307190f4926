//! What a measurement ran on.
#![allow(clippy::disallowed_methods, reason = "the kernel tells about the machine through files")]

use crate::schema::Machine;
use std::fs;
use std::thread;

/// Stands where the machine does not say.
const UNKNOWN: &str = "unknown";

impl Machine {
    /// This machine. What it does not tell is `unknown`, or 0.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let word = |path: &str| Some(text(path).trim().to_owned()).filter(|text| !text.is_empty());
        let kernel = [word("/proc/sys/kernel/ostype"), word("/proc/sys/kernel/osrelease")];
        Self {
            cpu: processor(&text("/proc/cpuinfo")).unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory_bytes(&text("/proc/meminfo")).unwrap_or(0),
            kernel: kernel.map(|word| word.unwrap_or_else(|| UNKNOWN.to_owned())).join(" "),
            hedgerow: hedgerow(),
        }
    }
}

/// The version, and the commit that it was built on.
fn hedgerow() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commit = option_env!("HEDGEROW_COMMIT").filter(|commit| !commit.is_empty());
    commit.map_or_else(|| version.to_owned(), |commit| format!("{version} ({commit})"))
}

/// The name of the first processor in the text of `/proc/cpuinfo`.
fn processor(cpuinfo: &str) -> Option<String> {
    let value = |name: &str| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
    };
    value("model name").or_else(|| value("Model")).or_else(|| value("CPU part"))
}

/// All memory, in the text of `/proc/meminfo`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7B13\n\nprocessor\t: 1\n";
        assert_eq!(processor(cpuinfo).as_deref(), Some("AMD EPYC 7B13"));
        assert_eq!(processor("processor\t: 0\n"), None);
        assert_eq!(memory_bytes("MemTotal:        8131284 kB\nMemFree: 1 kB\n"), Some(8_326_434_816));
        assert_eq!(memory_bytes("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn this_machine_tells_something() {
        let machine = Machine::read();
        assert!(machine.cores > 0 && machine.memory_bytes > 0, "{machine:?}");
        assert!(machine.hedgerow.starts_with(env!("CARGO_PKG_VERSION")));
    }
}
