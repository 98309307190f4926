//! Creates a table, writes, reads, counts, checks and scans. Needs a cluster: `hedgerow dev` starts one.
//!
//! ```text
//! cargo run -p hedgerow-client --example quickstart -- --cluster 127.0.0.1:34601
//! ```

use hedgerow_client::{Check, Client, Expiry, Range, ScanOptions, TableSpec};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> hedgerow_client::Result<()> {
    let client = Client::connect(&cluster()).await?;
    let spec = TableSpec { if_not_exists: true, ..TableSpec::default() };
    client.create_table("quickstart", &spec).await?;
    let users = client.open_table("quickstart").await?;

    // A record has a hash key, a sort key and a value.
    users.set("user-17", "name", "Ada").await?;
    users.set_with_ttl("user-17", "session", "f00d", Duration::from_secs(60)).await?;
    println!("name: {:?}", users.get("user-17", "name").await?);
    println!("the session's life: {:?}", users.ttl("user-17", "session").await?);

    // All rows of one hash key are together: they can be written and read at once, atomically.
    users.multi_set("user-17", [("city", "London"), ("born", "1815")], None).await?;
    println!("rows of user-17: {}", users.sort_key_count("user-17").await?);

    // Numbers are added to in place; a write that had to be sent twice counts once.
    println!("visits: {}", users.incr("user-17", "visits", 1, Expiry::Keep).await?);

    // A write that only happens if a row is as expected.
    let check = Check::equals("city", "London").and_return_value();
    let checked = users.check_and_set("user-17", check, "city", "Marylebone", None).await?;
    println!("moved: {}, from {:?}", checked.is_applied, checked.before.value());

    // Rows of one hash key come in the order of their sort keys.
    let mut rows = users.scan("user-17", &Range::default(), ScanOptions::default())?;
    while let Some(row) = rows.next().await? {
        println!("{:?} = {:?}", row.sort_key, row.value);
    }
    Ok(())
}

/// The addresses behind `--cluster`, or those of `hedgerow dev`.
fn cluster() -> Vec<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--cluster").skip(1);
    let addresses = arguments.next().unwrap_or_else(|| "127.0.0.1:34601,127.0.0.1:34602,127.0.0.1:34603".to_owned());
    addresses.split(',').map(str::to_owned).collect()
}
