//! Tables as text: aligned for a terminal, or in Markdown for documents.

use crate::schema::Table;

impl Table {
    /// The table for a terminal: its title, columns as wide as their widest cell, numbers to the right, then its notes.
    pub fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        let line = |cells: &[String]| {
            let cells = widths.iter().enumerate().map(|(column, width)| {
                let cell = cells.get(column).map_or("", String::as_str);
                let space = " ".repeat(width - cell.chars().count());
                if self.is_numeric(column) { format!("{space}{cell}") } else { format!("{cell}{space}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut lines = Vec::new();
        if !self.title.is_empty() {
            lines.extend([self.title.clone(), String::new()]);
        }
        lines.push(line(&self.columns));
        lines.push(widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>().join("  "));
        lines.extend(self.rows.iter().map(|row| line(row)));
        if !self.notes.is_empty() {
            lines.push(String::new());
            lines.extend(self.notes.iter().cloned());
        }
        lines.join("\n")
    }

    /// The table in Markdown: its title as a paragraph, the table, its notes as a list.
    pub fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |", cells.collect::<Vec<_>>().join(" | "));
        let escaped = |cell: &String| cell.replace('|', "\\|").replace('\n', " ");
        let mut blocks = Vec::new();
        if !self.title.is_empty() {
            blocks.push(format!("**{}**", self.title));
        }
        let mut lines = vec![line(&mut self.columns.iter().map(escaped))];
        let rule = |column: usize| if self.is_numeric(column) { "---:" } else { "---" }.to_owned();
        lines.push(line(&mut (0..self.columns.len()).map(rule)));
        let blank = String::new();
        lines.extend(
            self.rows
                .iter()
                .map(|row| line(&mut (0..self.columns.len()).map(|column| escaped(row.get(column).unwrap_or(&blank))))),
        );
        blocks.push(lines.join("\n"));
        if !self.notes.is_empty() {
            blocks.push(self.notes.iter().map(|note| format!("- {note}")).collect::<Vec<_>>().join("\n"));
        }
        blocks.join("\n\n")
    }

    /// Whether a column holds figures, which stand to the right.
    pub(crate) fn is_numeric(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column)).filter(|cell| !cell.is_empty()).peekable();
        cells.peek().is_some() && cells.all(|cell| is_figure(cell))
    }

    /// In characters.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.chain(self.columns.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// What may stand behind a number.
const UNITS: [&str; 12] = ["%", "µs", "ms", "s", "/s", "k", "M", "G", "B", "KiB", "MiB", "GiB"];

/// Whether a cell is a number, perhaps with digits in groups, a sign, a unit or a remark in brackets.
fn is_figure(cell: &str) -> bool {
    if ["n/a", "-", "VOID"].contains(&cell) {
        return true;
    }
    let number = cell.split(['[', '(']).next().unwrap_or_default().trim();
    let digits = number.trim_start_matches(['+', '-', 'x', '~', '<', '>', '=', ' ']);
    let end = digits.find(|char: char| !char.is_ascii_digit() && char != ',' && char != '.').unwrap_or(digits.len());
    let (digits, unit) = (digits[..end].replace(',', ""), digits[end..].trim());
    digits.parse::<f64>().is_ok() && (unit.is_empty() || UNITS.contains(&unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let words = |line: &str| line.split(';').map(str::to_owned).collect::<Vec<_>>();
        Table {
            title: "put and get".to_owned(),
            columns: words("operation;per second;p99 (µs);ratio"),
            rows: vec![words("get;152,000;1,210;x2.5"), words("put|set;9,500;n/a"), words("größer;7;-;x10")],
            notes: vec!["One machine.".to_owned()],
        }
    }

    #[test]
    fn a_terminal_gets_columns() {
        let expected = "\
put and get

operation  per second  p99 (µs)  ratio
---------  ----------  --------  -----
get           152,000     1,210   x2.5
put|set         9,500       n/a
größer              7         -    x10

One machine.";
        assert_eq!(table().text(), expected);
    }

    #[test]
    fn a_document_gets_markdown() {
        let expected = "\
**put and get**

| operation | per second | p99 (µs) | ratio |
| --- | ---: | ---: | ---: |
| get | 152,000 | 1,210 | x2.5 |
| put\\|set | 9,500 | n/a |  |
| größer | 7 | - | x10 |

- One machine.";
        assert_eq!(table().markdown(), expected);
    }

    #[test]
    fn figures_are_told_from_words() {
        let figures =
            ["7", "152,000", "x2.5", "+3 %", "1.21 ms", "911 [824-1,007]", "2 (1 VOID)", "n/a", "15k", "-0.5"];
        for cell in figures {
            assert!(is_figure(cell), "{cell}");
        }
        for cell in
            ["30:1", "3x15 threads", "2026-11-22T10:15:00Z", "0.1.0 (4663c02)", "", "12, 2 of them VOID", "x", "."]
        {
            assert!(!is_figure(cell), "{cell}");
        }
    }

    #[test]
    fn an_empty_table_is_no_trouble() {
        assert_eq!(Table::default().text(), "\n");
        let headings = Table { columns: vec!["a".to_owned(), "b".to_owned()], ..Table::default() };
        assert_eq!(headings.text(), "a  b\n-  -");
    }
}
