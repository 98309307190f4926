//! What to do about each kind of error, and how to write many rows at once over one connection per node.
//!
//! ```text
//! cargo run -p hedgerow-client --example errors -- --cluster 127.0.0.1:34601
//! ```

#![allow(clippy::disallowed_methods, reason = "an example, outside the library")]

use hedgerow_client::{Client, ClientOptions, ErrorKind, Table, TableSpec};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> hedgerow_client::Result<()> {
    let options = ClientOptions { operation_timeout: Duration::from_millis(500), ..ClientOptions::default() };
    let client = Client::connect_with(&cluster(), options).await?;
    client.create_table("errors", &TableSpec { if_not_exists: true, ..TableSpec::default() }).await?;
    let table = client.open_table("errors").await?;

    // Handles are cheap to clone, and the requests of all tasks share the connections.
    let writers: Vec<_> = (0..100).map(|number| tokio::spawn(write(table.clone(), number))).collect();
    for writer in writers {
        if let Ok(outcome) = writer.await {
            outcome?;
        }
    }
    println!("100 rows are written");
    Ok(())
}

/// Writes one row, however long that takes.
async fn write(table: Table, number: u32) -> hedgerow_client::Result<()> {
    loop {
        let error = match table.set(format!("row-{number}"), "value", number.to_string()).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match error.kind() {
            // The client has tried until its deadline. Setting a row twice does no harm, so just go on; after an
            // addition, `error.is_outcome_unknown()` would have to be looked at first.
            ErrorKind::Timeout | ErrorKind::Unreachable | ErrorKind::Unavailable => eprintln!("trying again: {error}"),
            // Nothing that time could heal.
            _ => return Err(error),
        }
    }
}

/// The addresses behind `--cluster`, or those of `hedgerow dev`.
fn cluster() -> Vec<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--cluster").skip(1);
    let addresses = arguments.next().unwrap_or_else(|| "127.0.0.1:34601,127.0.0.1:34602,127.0.0.1:34603".to_owned());
    addresses.split(',').map(str::to_owned).collect()
}
