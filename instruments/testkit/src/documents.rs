//! The command lines that README.md and docs/*.md show, for the tests that hold them to what the programs understand.

use anyhow::{Context, Result, ensure};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The programs that the documents call.
const PROGRAMS: [&str; 2] = ["hedgerow", "./x"];
/// What an indented block of code begins with.
const INDENT: &str = "    ";

/// One line of a block of code that calls a program of this repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The document's file and the line's number in it, from 1.
    pub place: String,
    /// As it stands there, without the indent.
    pub text: String,
}

impl Line {
    /// The calls of our programs in the line, each as the words that a shell would make of it. Knows quotes, comments, and what
    /// stands between commands, and expands nothing.
    #[must_use]
    pub fn calls(&self) -> Vec<Vec<String>> {
        let mut calls = vec![Vec::new()];
        for word in words(&self.text) {
            match word {
                Word::Plain(word) => calls.last_mut().expect("there is one").push(word),
                Word::Separator => calls.push(Vec::new()),
            }
        }
        calls.retain(|call| call.first().is_some_and(|name| PROGRAMS.contains(&name.as_str())));
        calls
    }
}

/// All of them, the README's first, in the order of the documents' names. Called by tests: the repository is where Cargo says.
pub fn command_lines() -> Result<Vec<Line>> {
    let home = env::var_os("CARGO_MANIFEST_DIR").context("this was not started by cargo")?;
    let root = Path::new(&home).join("../..");
    let mut documents: Vec<PathBuf> =
        fs::read_dir(root.join("docs"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    documents.insert(0, root.join("README.md"));
    let mut lines = Vec::new();
    for path in documents {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.file_name().context("a file has a name")?.to_string_lossy();
        lines.extend(lines_of(&name, &text));
    }
    ensure!(!lines.is_empty(), "the documents in {} show no command", root.display());
    Ok(lines)
}

/// The arguments of each documented call of `./x COMMAND`, after the command's name, which stands for that of a program.
/// Never empty: who asks has something to check.
pub fn calls_of_x(command: &str) -> Result<Vec<Vec<String>>> {
    let calls = command_lines()?.iter().flat_map(Line::calls).collect::<Vec<_>>();
    let of_command = |mut call: Vec<String>| {
        (call.first().is_some_and(|name| name == "./x") && call.get(1).is_some_and(|name| name == command))
            .then(|| call.split_off(1))
    };
    let found: Vec<_> = calls.into_iter().filter_map(of_command).collect();
    ensure!(!found.is_empty(), "no document shows ./x {command}");
    Ok(found)
}

fn lines_of(name: &str, text: &str) -> Vec<Line> {
    let mut is_fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with(INDENT) {
            let line = Line { place: format!("{name}:{}", index + 1), text: trimmed.to_owned() };
            lines.extend((!line.calls().is_empty()).then_some(line));
        }
    }
    lines
}

enum Word {
    Plain(String),
    /// `&&`, `&`, `|` or `;`.
    Separator,
}

fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(end), _) if letter == end => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '&' | '|' | ';') => {
                words.extend(word.take().map(Word::Plain));
                words.extend((letter != ' ').then_some(Word::Separator));
            }
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word.map(Word::Plain));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_code_that_call_us_are_found_and_cut_into_words() {
        let text = "hedgerow is a store\n\n    hedgerow get t 'a b' \"\" c#d   # why\n    other x\n  hedgerow no code\n\
            ```sh\n./x setup && eval \"$(./x env)\" && ./x sim --seed 1\nls | hedgerow load t - &\n```\n./x no code\n";
        let lines = lines_of("a.md", text);
        let places: Vec<_> = lines.iter().map(|line| line.place.as_str()).collect();
        assert_eq!(places, ["a.md:3", "a.md:7", "a.md:8"]);
        assert_eq!(lines[0].calls(), [["hedgerow", "get", "t", "a b", "", "c#d"]]);
        assert_eq!(lines[1].calls(), [vec!["./x", "setup"], vec!["./x", "sim", "--seed", "1"]]);
        assert_eq!(lines[2].calls(), [["hedgerow", "load", "t", "-"]]);
    }
}
