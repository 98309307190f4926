//! What is printed: data on standard output, talk on standard error.

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde_json::Value;
use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write as _};

/// The form of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For programs: one JSON value, or one per line for rows.
    Json,
}

/// Prints `line` and a line end to standard output. A reader that went away (as `head` does) ends the process quietly.
pub(crate) fn print(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    or_end(out.write_all(line.as_bytes()).and_then(|()| out.write_all(b"\n")))
}

fn or_end(printed: io::Result<()>) -> Result<()> {
    end_without_reader(printed).context("writing to standard output")
}

/// Ends the process quietly if nobody reads standard output any more.
pub(crate) fn end_without_reader<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        result => result,
    }
}

/// Standard output of which every write goes through [`end_without_reader`].
pub(crate) struct StandardOutput(Stdout);

impl StandardOutput {
    pub(crate) fn new() -> Self {
        Self(io::stdout())
    }
}

impl io::Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        end_without_reader(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        end_without_reader(self.0.flush())
    }
}

/// Prints many lines as [`print()`] does, several with one system call.
pub(crate) struct Lines(BufWriter<Stdout>);

impl Lines {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, io::stdout()))
    }

    pub(crate) fn print(&mut self, line: &str) -> Result<()> {
        or_end(self.0.write_all(line.as_bytes()).and_then(|()| self.0.write_all(b"\n")))
    }

    /// Everything printed so far is out.
    pub(crate) fn flush(&mut self) -> Result<()> {
        or_end(self.0.flush())
    }
}

/// Prints a result: `text` for people, `json` for programs.
pub(crate) fn print_result(output: Output, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> Result<()> {
    match output {
        Output::Text => {
            let text = text();
            if text.is_empty() { Ok(()) } else { print(&text) }
        }
        Output::Json => print(&json().to_string()),
    }
}

/// Says something to the person at the terminal. A process that runs nodes does not wait for that person.
pub(crate) fn say(text: &str) {
    match crate::log::errors() {
        Some(sink) => sink.put(format!("{text}\n").as_bytes()),
        // Nothing can be done about a terminal that went away.
        None => drop(writeln!(io::stderr(), "{text}")),
    }
}

/// So many of a thing, such as `1 row` and `2 rows`; `one` is what one of them is called.
pub(crate) fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// A word as it can be typed at a shell.
pub(crate) fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
}

/// Tells why a command failed.
pub(crate) fn complain(error: &anyhow::Error) {
    say(&format!("error: {error:#}"));
}

/// A table for people: columns as wide as their widest cell, numbers to the right.
pub(crate) fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let is_number = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.get(column)).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.parse::<f64>().is_ok() || cell == "n/a" || cell == "-")
    };
    let right: Vec<bool> = (0..header.len()).map(is_number).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate().take(widths.len()) {
            if column > 0 {
                line.push_str("  ");
            }
            let space = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            line.push_str(&if right[column] { format!("{space}{cell}") } else { format!("{cell}{space}") });
        }
        line.trim_end().to_owned()
    };
    let mut lines = vec![line(&mut header.iter().copied())];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["long name".to_owned(), "9".to_owned()]];
        assert_eq!(columns(&["name", "n"], &rows), "name        n\na          10\nlong name   9");
    }

    #[test]
    fn words_are_quoted_where_a_shell_would_take_them_apart() {
        for (word, expected) in
            [("user-17", "user-17"), ("", "''"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(word), expected);
        }
    }
}
