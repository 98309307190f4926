//! The file itself: parts under the Apache licence, whose text is that of `LICENSE`; the others by the text of their licence; and what
//! is not Rust.

use crate::bundled;
use crate::licence;
use crate::linked::Crate;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
NOTICES

The binary `hedgerow` contains work of others, under the licences below. Hedgerow itself is under the Apache License,
Version 2.0, whose text is in the file LICENSE: whoever passes the binary on passes both files on with it. Where something is
offered under several licences, it is used under the one of its section. This file is made from the sources that
Cargo.lock names, by `./x notices`.

It also contains the standard library of Rust: Copyright (c) The Rust Project Contributors, used under the Apache License,
Version 2.0; https://github.com/rust-lang/rust names what it contains in turn.
";

/// The beginnings of names of files that hold licences and notices, in capitals.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// One part and whose work it is.
type Part = (String, Vec<String>);

/// The whole file.
pub(crate) fn notices(crates: &[Crate]) -> String {
    let mut apache: Vec<Part> = Vec::new();
    // By licence and words.
    let mut others: BTreeMap<(&str, String), (String, Vec<Part>)> = BTreeMap::new();
    // Their packages lack the text that they are under.
    let mut without_text: Vec<(&str, Part)> = Vec::new();
    let mut further: Vec<(String, String)> = Vec::new();
    for linked in crates {
        let files = files(&linked.folder);
        let texts: Vec<String> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let part = (title(linked), owners(linked, &texts));
        for licence in licence::taken(&linked.licence).unwrap_or_else(|why| panic!("{}: {why}", linked.name)) {
            if licence == "Apache-2.0" {
                apache.push(part.clone());
                continue;
            }
            let Some(text) = texts.iter().find(|text| licence::of(text) == Some(licence)) else {
                without_text.push((licence, part.clone()));
                continue;
            };
            let body = licence::body(text);
            let key = (licence, licence::one_line(&body));
            others.entry(key).or_insert_with(|| (body, Vec::new())).1.push(part.clone());
        }
        let is_notice = |file: &&PathBuf| name_of(file).to_ascii_uppercase().starts_with("NOTICE");
        let inner = files_below(&linked.folder.join("src"));
        for file in files.iter().filter(is_notice).chain(&inner) {
            let place = file.strip_prefix(&linked.folder).unwrap().display();
            further.push((format!("{}: {place}", title(linked)), fs::read_to_string(file).unwrap()));
        }
    }
    for (licence, part) in without_text {
        let same = others.iter_mut().filter(|((other, _), _)| *other == licence).map(|(_, (_, parts))| parts);
        let usual = same.max_by_key(|parts| parts.len()).unwrap_or_else(|| panic!("nobody has the text of {licence}"));
        usual.push(part);
        usual.sort();
    }
    let mut out = HEAD.to_owned();
    section(&mut out, "Apache License, Version 2.0 (its text is in the file LICENSE)");
    put_parts(&mut out, &apache);
    for ((licence, _), (body, parts)) in &others {
        section(&mut out, licence);
        put_parts(&mut out, parts);
        put_text(&mut out, body);
    }
    for (place, text) in &further {
        section(&mut out, place);
        put_text(&mut out, text);
    }
    put_bundled(&mut out, crates);
    out
}

fn put_bundled(out: &mut String, crates: &[Crate]) {
    for bundled in &bundled::ALL {
        let inside = crates.iter().find(|linked| linked.name == bundled.inside);
        let Some(inside) = inside else { panic!("{} is not in the binary any more", bundled.inside) };
        let found = bundled.find(&inside.folder);
        let (name, licence) = (bundled.name, bundled.licence);
        section(out, &format!("{name} (inside {} {}), {licence}", inside.name, inside.version));
        found.owners.iter().for_each(|owner| line(out, owner));
        for text in found.texts.values() {
            put_text(out, text);
        }
    }
}

fn title(linked: &Crate) -> String {
    let Crate { name, version, licence, repository, .. } = linked;
    format!("{name} {version} ({licence}) {repository}").trim_end().to_owned()
}

/// The lines that say whose work it is; where there is none, who the manifest says it is.
fn owners(linked: &Crate, texts: &[String]) -> Vec<String> {
    let mut owners: Vec<String> = Vec::new();
    for owner in texts.iter().flat_map(|text| text.lines()).filter_map(licence::copyright) {
        if !owners.iter().any(|known| known == owner) {
            owners.push(owner.to_owned());
        }
    }
    if owners.is_empty() && !linked.authors.is_empty() {
        owners.push(format!("by {}", linked.authors.join(", ")));
    }
    if owners.is_empty() {
        owners.push("by its contributors".to_owned());
    }
    owners
}

/// Files of licences and notices in `folder`, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| {
        let name = name_of(path).to_ascii_uppercase();
        path.is_file() && !name.ends_with(".RS") && FILES.iter().any(|start| name.starts_with(start))
    };
    let mut files: Vec<PathBuf> = entries.filter(is_one).collect();
    files.sort();
    files
}

/// The same in `folder` and below.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder);
    let entries = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().for_each(|inner| found.extend(files_below(inner)));
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn section(out: &mut String, title: &str) {
    let _ = write!(out, "\n{}\n{title}\n\n", "=".repeat(100));
}

fn put_parts(out: &mut String, parts: &[Part]) {
    for (title, owners) in parts {
        line(out, title);
        owners.iter().for_each(|owner| line(out, &format!("    {owner}")));
    }
}

fn put_text(out: &mut String, text: &str) {
    line(out, "");
    text.trim_matches('\n').lines().for_each(|each| line(out, each));
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}
