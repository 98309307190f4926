//! What shells and `man` are told of the command line.

use crate::cli::command_line;
use crate::exit::Exit;
use crate::files;
use crate::output::print;
use anyhow::{Context as _, Result};
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

/// Arguments of `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArguments {
    /// The shell that is to complete commands and options.
    shell: Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Where the pages go, one for each command; it is made if it is not there.
    directory: PathBuf,
}

/// `hedgerow completions`.
pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command_line(), "hedgerow", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}

/// `hedgerow man`.
pub(crate) fn man(arguments: &ManArguments) -> Result<Exit> {
    let directory = &arguments.directory;
    files::make_directory(directory)?;
    let written = clap_mangen::generate_to(command_line(), directory);
    written.with_context(|| format!("writing manual pages to {}", directory.display()))?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_shell_completes_and_every_command_has_a_page() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut command_line(), "hedgerow", &mut script);
            assert!(String::from_utf8_lossy(&script).contains("multi-get"), "{shell}");
        }
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("man/man1");
        assert_eq!(man(&ManArguments { directory: directory.clone() }).unwrap(), Exit::Done);
        let page = |name: &str| files::read_if_exists(&directory.join(name)).unwrap();
        let create = page("hedgerow-table-create.1").expect("a page");
        assert!(String::from_utf8_lossy(&create).contains("partitions"));
        assert!(page("hedgerow-hog.1").is_none(), "it is hidden");
    }
}
