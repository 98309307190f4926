//! The workloads that come with the generator: the files of `instruments/bench/workloads`.

use crate::workload::Workload;
use anyhow::{Context as _, Result};

macro_rules! workloads {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../workloads/", $name, ".toml")))),+]
    };
}

/// Name and text of each.
pub(crate) const ALL: [(&str, &str); 14] = workloads![
    "put",
    "get",
    "mix",
    "ycsb-a",
    "ycsb-b",
    "ycsb-c",
    "ycsb-d",
    "ycsb-e",
    "ycsb-f",
    "read-write-1-3",
    "read-write-30-1",
    "read-only",
    "multi-20-1",
    "big-values",
];

impl Workload {
    /// The workload `name` that comes with the generator.
    pub fn named(name: &str) -> Result<Self> {
        let names = || ALL.map(|(name, _)| name).join(", ");
        let (_, text) = ALL
            .iter()
            .find(|(known, _)| *known == name)
            .with_context(|| format!("there is no workload {name:?}; there are {}", names()))?;
        Self::parse(text)
    }

    /// All workloads that come with the generator.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|(_, text)| Self::parse(text).expect("a test reads every file of the folder"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_valid_and_named_as_its_workload() {
        for (name, _) in ALL {
            let workload = Workload::named(name).unwrap();
            assert_eq!(workload.name, name);
            assert!(workload.description.len() > 20, "{name} does not say what it stands for");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_built_in() {
        let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap() + "/workloads";
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".toml").to_owned())
            .collect();
        names.sort();
        let mut known = ALL.map(|(name, _)| name.to_owned());
        known.sort();
        assert_eq!(names, known);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Workload::named("pat").unwrap_err().to_string();
        assert!(error.contains("ycsb-a") && error.contains("pat"), "{error}");
    }
}
