//! `hedgerow report`: results folders as one HTML page.

use crate::exit::Exit;
use crate::{files, output};
use anyhow::Result;
use clap::Args;
use hedgerow_report::Outcome;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArguments {
    /// Results folders of `bench` and `experiment`; several are shown side by side.
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// The page; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
}

/// Renders the folders. Nothing is written unless every one of them can be read.
pub(crate) fn run(arguments: ReportArguments) -> Result<Exit> {
    let read = |folder: PathBuf| Outcome::read(&folder).map(|outcome| (folder, outcome));
    let outcomes = arguments.folders.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    let page = hedgerow_report::page(&outcomes)?;
    if files::is_standard(&arguments.out) {
        output::print(page.trim_end())?;
    } else {
        files::replace(&arguments.out, page.as_bytes())?;
        let results = output::counted(outcomes.len() as u64, "result");
        output::say(&format!("{}: {results}", arguments.out.display()));
    }
    Ok(Exit::Done)
}
