//! What other stores call things: who types such a word is told what to type here.

use crate::output::quoted;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Words that are no command or option here, with what does it.
const WORDS: [(&[&str], &str); 18] = [
    (
        &["expire", "pexpire", "setex", "--ex", "--px"],
        "a time to live is set with the value: hedgerow set TABLE KEY... VALUE --ttl SECONDS",
    ),
    (&["persist"], "set the value once more, with --ttl 0 if the table has a default_ttl"),
    (&["exists", "hexists"], "hedgerow ttl TABLE KEY... ends with code 1 if there is no such record"),
    (&["pttl"], "hedgerow ttl TABLE KEY..."),
    (&["keys", "hkeys"], "hedgerow scan TABLE [HASH_KEY] --no-value, where --prefix is one of sort keys"),
    (&["dbsize", "hlen"], "hedgerow scan TABLE [HASH_KEY] --limit 0 --no-value, and count the lines"),
    (&["hgetall"], "hedgerow scan TABLE HASH_KEY"),
    (&["hget"], "hedgerow get TABLE HASH_KEY SORT_KEY"),
    (&["hset"], "hedgerow set TABLE HASH_KEY SORT_KEY VALUE"),
    (&["hdel", "unlink"], "hedgerow del TABLE HASH_KEY SORT_KEY, which is one record"),
    (&["hmget"], "hedgerow multi-get TABLE HASH_KEY SORT_KEY..."),
    (
        &["incrby", "hincrby", "decr", "decrby"],
        "hedgerow incr TABLE HASH_KEY SORT_KEY --by NUMBER, which may be negative",
    ),
    (
        &["flushdb", "flushall", "truncate"],
        "hedgerow table drop NAME --now, and create it again with the partitions and options that it had",
    ),
    (
        &["rename"],
        "a record is read, set under its new key, and deleted. A table: hedgerow table drop NAME --reserve 1d, then hedgerow table recall ID \
         NEW_NAME, with the number that the first prints: nobody is served meanwhile",
    ),
    (
        &["--nx", "--xx", "setnx"],
        "a write with a condition is the clients' check_and_set (docs/clients.md); this program has none",
    ),
    (&["mset"], "hedgerow load TABLE FILE, or hedgerow set for each"),
    (&["slowlog"], "hedgerow table set-option TABLE replica.slow_query_threshold 20, and the logs of the nodes"),
    (&["info", "ping", "nodetool"], "hedgerow status"),
];

/// What of these is said of tables too.
const OF_TABLES: [&str; 2] = ["truncate", "rename"];

/// Adds to an error over a word that is no command or option what does here what the word does elsewhere, and to one over words that are
/// missing what may have been meant. `words` are those of the command line.
pub(crate) fn with_hint(mut error: clap::Error, words: &[OsString], command: &clap::Command) -> clap::Error {
    if let Some(hint) = form_of_set(error.kind(), words) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(hint)]));
        return error;
    }
    let unknown =
        [ContextKind::InvalidSubcommand, ContextKind::InvalidArg].into_iter().find_map(|kind| error.get(kind));
    let Some(ContextValue::String(word)) = unknown else { return error };
    let (word, small) = (word.clone(), word.to_ascii_lowercase());
    let is_at = |place: usize, word: &str| words.get(place).is_some_and(|it| it == word);
    let is_meant =
        small.starts_with('-') || is_at(1, &word) || (is_at(1, "table") && OF_TABLES.contains(&small.as_str()));
    let known = WORDS.iter().find(|(words, _)| is_meant && words.contains(&small.as_str()));
    let hint = match known {
        Some((_, hint)) => (*hint).to_owned(),
        None if is_at(1, &word) && command.find_subcommand(&small).is_some() => format!("hedgerow {small}"),
        None => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(hint)]));
    // What is spelt alike is not what was meant.
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error
}

/// What a `set` looks like, where it lacks words: a store of keys without tables is set with two.
fn form_of_set(kind: ErrorKind, words: &[OsString]) -> Option<String> {
    let is_lacking = matches!(kind, ErrorKind::TooFewValues | ErrorKind::MissingRequiredArgument);
    let [_, command, given @ ..] = words else { return None };
    if !is_lacking || !(command == "set" || command == "put") {
        return None;
    }
    // Options come last, mostly.
    let given: Vec<_> =
        given.iter().map(|word| word.to_string_lossy()).take_while(|word| !word.starts_with('-')).collect();
    let example = match &given[..] {
        [key, value] => format!("hedgerow set TABLE {} \"\" {}, with an empty sort key", quoted(key), quoted(value)),
        _ => "hedgerow set users user-17 name Ada".to_owned(),
    };
    Some(format!(
        "the table comes first: hedgerow set TABLE HASH_KEY SORT_KEY VALUE, for example {example}. In an ordered table: hedgerow set TABLE KEY VALUE"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn what_is_typed_here_is_a_command() {
        let typed =
            WORDS.iter().flat_map(|(_, hint)| hint.split(", then ")).filter_map(|it| it.split("hedgerow ").nth(1));
        let examples = [
            ("TABLE", "t"),
            ("HASH_KEY", "h"),
            ("SORT_KEY...", "s"),
            ("SORT_KEY", "s"),
            ("KEY...", "k"),
            ("SECONDS", "60"),
        ];
        let mut count = 0;
        for line in typed {
            let line =
                line.split([',', '(']).next().unwrap().split(" ends with").next().unwrap().replace(['[', ']'], "");
            let line = examples.iter().fold(line, |line, (name, example)| line.replace(name, example));
            let line = line.replace("NUMBER", "-1").replace("ID", "7").replace("FILE", "f.tsv");
            Arguments::read(format!("hedgerow {}", line.trim()).split(' '))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            count += 1;
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn a_set_without_a_table_or_a_value_is_shown_its_form() {
        for (line, example) in [
            ("set foo bar", "for example hedgerow set TABLE foo \"\" bar, with an empty sort key"),
            ("put foo bar", "for example hedgerow set TABLE foo \"\" bar, with an empty sort key"),
            ("set foo bar --cluster a:1", "for example hedgerow set TABLE foo \"\" bar, with an empty sort key"),
            ("set foo", "for example hedgerow set users user-17 name Ada"),
            ("set foo --ttl 5", "for example hedgerow set users user-17 name Ada"),
            ("set", "for example hedgerow set users user-17 name Ada"),
        ] {
            let error = Arguments::read(format!("hedgerow {line}").split(' ')).unwrap_err();
            let (text, code) = (error.to_string(), error.exit_code());
            let form = "tip: the table comes first: hedgerow set TABLE HASH_KEY SORT_KEY VALUE, ";
            assert!(text.contains(form) && text.contains(example) && code == 2, "{line}: {text}");
        }
        assert!(!Arguments::read(["hedgerow", "get", "foo"]).unwrap_err().to_string().contains("tip:"));
    }
}
