//! `hedgerow dump`: writes all rows of a table to a file, in a form that `load` reads. A file that is there stays until the
//! new one is whole.

use crate::any_table::{AnyScanner, AnyTable};
use crate::cluster::{BULK_TIMEOUT, ClusterArguments};
use crate::encoding::Encoding;
use crate::exit::Exit;
use crate::output::{counted, say};
use crate::reading::default_mode;
use crate::rows::{Format, Row, Writer};
use crate::{files, runtime};
use anyhow::{Context as _, Result};
use clap::Args;
use hedgerow_client::{ReadLevel, ReadOptions, ScanOptions};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;

/// Scans that run at the same time.
const SCANNERS_MAX: usize = 8;
/// Rows per page.
const PAGE_ROWS: u32 = 1000;

/// Arguments of `dump`.
#[derive(Args, Debug)]
pub(crate) struct DumpArguments {
    /// The table.
    table: String,
    /// Where to; - is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,
    /// The file's format [default: by its name; TSV for standard output].
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// How keys and values are written.
    #[arg(long, value_enum, default_value_t = Encoding::Text)]
    encoding: Encoding,
    /// Write how long each row has to live, as a last column.
    #[arg(long)]
    with_ttl: bool,
    /// How fresh the rows must be: linearizable, bounded=2s (or another bound from 1ms to 24h), eventual. At eventual the
    /// replicas that are left serve a partition that has no leader any more [default: the table's option read_level].
    #[arg(long = "read", value_name = "LEVEL")]
    level: Option<ReadLevel>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// `hedgerow dump`.
pub(crate) async fn run(arguments: DumpArguments) -> Result<Exit> {
    let format = Format::choose(arguments.format, &arguments.file)?;
    let client = arguments.cluster.connect_with(BULK_TIMEOUT).await?;
    let reading = ReadOptions { level: arguments.level, mode: default_mode(arguments.level), ..ReadOptions::default() };
    let table = AnyTable::open(&client, &arguments.table).await?.reading(reading);
    let output = files::Output::create(&arguments.file)?;
    let context = || format!("writing {}", arguments.file.display());
    let mut writer =
        Writer::new(output, format, table.shape(), arguments.encoding, arguments.with_ttl).with_context(context)?;
    let progress = progress();
    let mut pages = start_scans(&table)?;
    let (mut count, mut mortal) = (0_u64, 0_u64);
    while let Some(page) = pages.recv().await {
        let page = page?;
        for row in &page {
            writer.write(row).with_context(context)?;
            mortal += u64::from(row.ttl_seconds.is_some());
        }
        count += page.len() as u64;
        progress.set_position(count);
    }
    writer.into_inner().with_context(context)?.finish().with_context(context)?;
    progress.finish_and_clear();
    say(&format!("{} of {} written", counted(count, "row"), table.name()));
    if mortal > 0 && !arguments.with_ttl {
        say(&format!("{} had a time to live, which is not in the dump; --with-ttl keeps it", counted(mortal, "row")));
    }
    Ok(Exit::Done)
}

type Page = hedgerow_client::Result<Vec<Row>>;

/// Pages of all scans as they come: in the order of the keys for an ordered table, which has one scan.
fn start_scans(table: &AnyTable) -> Result<mpsc::Receiver<Page>> {
    let (sender, receiver) = mpsc::channel(2 * SCANNERS_MAX);
    let options = ScanOptions { page_rows: PAGE_ROWS, with_time_to_live: true, ..ScanOptions::default() };
    for scanner in table.scanners(SCANNERS_MAX, options)? {
        drop(runtime::spawn(send_pages(scanner, sender.clone())));
    }
    Ok(receiver)
}

async fn send_pages(mut scanner: AnyScanner, pages: mpsc::Sender<Page>) {
    loop {
        let page = match scanner.next_page().await {
            Ok(Some(rows)) => Ok(rows),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let is_last = page.is_err();
        if pages.send(page).await.is_err() || is_last {
            return;
        }
    }
}

fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} rows  {per_sec}  {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
