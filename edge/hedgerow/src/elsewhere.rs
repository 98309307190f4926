//! What other stores call things: who types such a word is told what to type here.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};

/// Words that are no command or option here, with what does it.
const WORDS: [(&[&str], &str); 12] = [
    (
        &["expire", "pexpire", "persist", "setex"],
        "a time to live is set with the value: hedgerow set TABLE KEY... VALUE --ttl SECONDS",
    ),
    (&["exists"], "hedgerow ttl TABLE KEY... ends with code 1 if there is no such record"),
    (&["keys", "hkeys"], "hedgerow scan TABLE [HASH_KEY] --no-value"),
    (&["hgetall"], "hedgerow scan TABLE HASH_KEY"),
    (&["hget"], "hedgerow get TABLE HASH_KEY SORT_KEY"),
    (&["hset"], "hedgerow set TABLE HASH_KEY SORT_KEY VALUE"),
    (&["hdel"], "hedgerow del TABLE HASH_KEY SORT_KEY"),
    (&["hmget"], "hedgerow multi-get TABLE HASH_KEY SORT_KEY..."),
    (&["incrby", "decr", "decrby"], "hedgerow incr TABLE KEY... NUMBER, which may be negative"),
    (
        &["flushdb", "flushall", "truncate"],
        "hedgerow table drop NAME --now, and create it again with the partitions and options that it had",
    ),
    (&["rename"], "hedgerow table drop NAME, then hedgerow table recall ID NEW_NAME with the number that drop prints"),
    (
        &["--nx", "--xx", "setnx"],
        "a write with a condition is the clients' check_and_set (docs/clients.md); this program has none",
    ),
];

/// Adds to an error over a word that is no command or option what does here what the word does elsewhere.
pub(crate) fn with_hint(mut error: clap::Error) -> clap::Error {
    let unknown =
        [ContextKind::InvalidSubcommand, ContextKind::InvalidArg].into_iter().find_map(|kind| error.get(kind));
    let Some(ContextValue::String(word)) = unknown else { return error };
    let word = word.to_ascii_lowercase();
    if let Some((_, hint)) = WORDS.iter().find(|(words, _)| words.contains(&word.as_str())) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(*hint)]));
        // What is spelt alike is not what was meant.
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
    }
    error
}
