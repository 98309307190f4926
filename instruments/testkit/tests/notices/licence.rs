//! Licences: which of those that are offered is taken, which one a text is, and whose work it names.

/// The licences that the binary's parts are used under, the first of those that a crate offers. What is not here needs a decision.
const TAKEN: [&str; 7] = ["Apache-2.0", "MIT", "BSD-3-Clause", "BSD-2-Clause", "ISC", "Zlib", "Unicode-3.0"];

/// What the licence of [`TAKEN`] says and no other one does. The first that is found counts.
const SAYS: [(&str, &str); 7] = [
    ("Apache License Version 2.0, January 2004", "Apache-2.0"),
    ("Permission is hereby granted, free of charge, to any person obtaining a copy of this software", "MIT"),
    ("Neither the name of", "BSD-3-Clause"),
    ("Redistribution and use in source and binary forms", "BSD-2-Clause"),
    ("Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee", "ISC"),
    ("This software is provided 'as-is'", "Zlib"),
    ("UNICODE LICENSE V3", "Unicode-3.0"),
];

/// The licence that is taken of an expression such as `MIT OR Apache-2.0`, or of each part that is joined by `AND`.
pub(crate) fn taken(expression: &str) -> Result<Vec<&'static str>, String> {
    let parts = expression.split(" AND ").map(|part| {
        let part = part.trim_matches(['(', ')']).replace('/', " OR ");
        let offered: Vec<&str> = part.split(" OR ").map(str::trim).collect();
        TAKEN.into_iter().find(|taken| offered.contains(taken)).ok_or_else(|| format!("no licence of {expression:?}"))
    });
    parts.collect()
}

/// Which licence `text` is.
pub(crate) fn of(text: &str) -> Option<&'static str> {
    let text = one_line(text);
    SAYS.into_iter().find(|(says, _)| text.contains(says)).map(|(_, licence)| licence)
}

/// The words of `text`, so that line breaks make no difference.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line that says whose work something is, without what a comment puts before it.
pub(crate) fn copyright(line: &str) -> Option<&str> {
    let line = line.trim_matches([' ', '\t', '\r', '/', '*', '#', ';', '<', '-']).trim();
    let starts = ["Copyright", "Portions Copyright", "This project is copyright"];
    let is_opened = starts.iter().any(|start| line.starts_with(start));
    let has_year = line.as_bytes().windows(4).any(|four| four.iter().all(u8::is_ascii_digit));
    let names = line.contains("(c)") || line.contains("(C)") || line.contains('©') || has_year;
    let is_template = line.contains("[yyyy]") || line.contains("{yyyy}") || line.contains("<year>");
    (is_opened && names && !is_template).then_some(line)
}

/// `text` without the lines that say whose work it is, which come before the licence's own words, and without its title.
pub(crate) fn body(text: &str) -> String {
    let is_title = |line: &str| {
        let title = line.trim().trim_matches(['#', '=', '-', ' ', '(', ')', '.', ':']).to_ascii_lowercase();
        ["mit license", "the mit license", "the mit license (mit", "license", "zlib license"].contains(&title.as_str())
            || (line.len() < 40 && title.starts_with("mit license"))
            || title.trim_end_matches(['.', ' ']) == "all rights reserved"
    };
    let lines = text.lines().map(str::trim_end).filter(|line| copyright(line).is_none() && !is_title(line));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.trim_matches(['\n', ' ', '-']).to_owned()
}

#[test]
fn one_licence_of_each_part_is_taken() {
    assert_eq!(taken("MIT OR Apache-2.0"), Ok(vec!["Apache-2.0"]));
    assert_eq!(taken("Unlicense/MIT"), Ok(vec!["MIT"]));
    assert_eq!(taken("(MIT OR Apache-2.0) AND Unicode-3.0"), Ok(vec!["Apache-2.0", "Unicode-3.0"]));
    assert!(taken("GPL-3.0-only").is_err());
    assert!(taken("").is_err());
}

#[test]
fn lines_that_name_somebody_are_told_from_a_licences_own_words() {
    assert_eq!(
        copyright("// Copyright (c) 2011 The LevelDB Authors."),
        Some("Copyright (c) 2011 The LevelDB Authors.")
    );
    assert_eq!(copyright(" * Copyright 2016 Ferry Toth"), Some("Copyright 2016 Ferry Toth"));
    for line in [
        "copyright notice that is included in or attached to the work",
        "Copyright [yyyy] [name of copyright owner]",
        "(c) You must retain, in the Source form of any Derivative Works",
        "2. Grant of Copyright License. Subject to the terms and conditions of",
    ] {
        assert_eq!(copyright(line), None);
    }
    let text = "MIT License\n\nCopyright (c) 2020 Somebody\n\nPermission is hereby granted\n";
    assert_eq!(body(text), "Permission is hereby granted");
}
