//! What the programs say to people when something is wrong: every text of an error, a warning or a remark, and what must not be in one.

use crate::rules::{Complaint, Source};

/// Behind these stands what somebody is told.
const OPENERS: [&str; 14] = [
    "#[error(",
    "bail!(",
    "ensure!(",
    "anyhow!(",
    ".context(",
    ".with_context(",
    "say(",
    "Refusal::",
    "Err(",
    "ok_or_else(",
    "map_err(",
    "Error::",
    "tracing::error!(",
    "tracing::warn!(",
];
/// Words that say nothing, or blame.
const EMPTY_WORDS: [&str; 6] = ["failed to ", "unable to ", "please", "sorry", "oops", "something went wrong"];

/// The texts in `source`, in their order: string literals of at least two words behind one of the [`OPENERS`], outside tests.
pub(crate) fn of(source: &Source) -> Vec<(usize, String)> {
    let is_shipped = source.path.ends_with(".rs") && source.path.contains("/src/") && !source.path.contains("test");
    let of_programs = ["edge/", "host/", "pure/", "instruments/"].iter().any(|home| source.path.starts_with(home));
    if !is_shipped || !of_programs {
        return Vec::new();
    }
    let text = source.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for opener in OPENERS {
        for (at, _) in text.match_indices(opener) {
            let rest = &text[at..];
            let Some(open) = rest.find('(').filter(|open| *open < 60) else { continue };
            found.extend(literals(&rest[open..]).into_iter().map(|(offset, text)| (at + open + offset, text)));
        }
    }
    found.sort();
    found.dedup();
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    found.into_iter().filter(|(_, text)| text.trim().contains(' ')).map(|(at, text)| (line(at), text)).collect()
}

/// The string literals up to the parenthesis that closes the first one of `text`, and where they stand.
fn literals(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut depth, mut at) = (Vec::new(), 0, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            // A character, and not a lifetime.
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 2,
            b'\'' if text[at..].starts_with(r"'\") => at += 3,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += text[at..].find('\n').unwrap_or(0),
            b'"' => {
                let start = at + 1;
                let mut end = start;
                while end < bytes.len() && bytes[end] != b'"' {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                found.push((start, joined(&text[start..end.min(text.len())])));
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// A literal that goes on in further lines as one.
fn joined(literal: &str) -> String {
    let mut parts = literal.split("\\\n");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.trim_start())
}

/// What is wrong with the texts of `source`.
pub(crate) fn complaints(source: &Source) -> Vec<Complaint> {
    let complain = |(line, text): (usize, String)| {
        let what = what_is_wrong(&text)?;
        Some(Complaint { path: source.path.clone(), line, what: format!("{what}: {text}") })
    };
    of(source).into_iter().filter_map(complain).collect()
}

fn what_is_wrong(text: &str) -> Option<String> {
    if text.ends_with('.') && !text.ends_with("...") || text.ends_with('!') {
        return Some("a message ends without a full stop".to_owned());
    }
    if text.contains("  ") {
        return Some("two spaces".to_owned());
    }
    let words: Vec<&str> = text.split(' ').collect();
    if let Some(pair) = words.windows(2).find(|pair| pair[0] == pair[1] && pair[0].chars().all(char::is_alphabetic)) {
        return Some(format!("{:?} twice", pair[0]));
    }
    let lower = text.to_lowercase();
    if let Some(word) = EMPTY_WORDS.iter().find(|word| lower.contains(**word)) {
        return Some(format!("{word:?} says nothing"));
    }
    let is_many = |word: &&str| {
        word.ends_with('s') && word.len() > 3 && !["this", "was", "has", "does", "needs", "times"].contains(word)
    };
    let is_count = |word: &str| word.starts_with('{') && word.ends_with("count}");
    let many = words.windows(2).find(|pair| is_count(pair[0]) && is_many(&pair[1].trim_matches([',', ':', ';'])));
    many.map(|pair| format!("\"1 {}\" would be wrong", pair[1]))
}
