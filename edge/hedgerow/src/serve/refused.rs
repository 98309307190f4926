//! What is said of a file that is no configuration: where, and what would be right, without the words of the program's own types.

/// How the parser names what it expected, and how people do.
const WORDS: [(&str, &str); 12] = [
    ("invalid type: ", "not the right kind of value: "),
    ("invalid value: ", "not an allowed value: "),
    ("expected u16", "expected a whole number from 0 to 65535"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u64", "expected a whole number from 0 on"),
    ("expected usize", "expected a whole number from 0 on"),
    ("expected a sequence", "expected a list in [ ]"),
    ("expected a map", "expected a table of names and values, such as { zone = \"a\" }"),
    ("expected a boolean", "expected true or false"),
    ("expected path string", "expected a text in quotes"),
    ("expected a string", "expected a text in quotes"),
    ("unknown variant", "unknown value"),
];
/// How the settings that stand below no heading are listed: a message about a name that is unknown there has it, and one about a line below a
/// heading has not.
const AT_THE_TOP: &str = "one of `node`, `listen`, ";
/// Where a line of the file belongs.
const BELONGS: &str = "(a line belongs to the heading above it: settings without one stand above the first heading, and those of a group that has a heading below it)";
/// And one about a group of settings.
const GROUP: &str = "expected struct ";

/// What is wrong with a file, from what the parser says of it.
pub(super) fn text(error: &toml::de::Error) -> String {
    let mut text = error.to_string();
    for (word, plain) in WORDS {
        text = text.replace(word, plain);
    }
    if let Some((before, after)) = text.split_once(GROUP) {
        let rest = after.trim_start_matches(|c: char| c.is_alphanumeric());
        text = format!("{before}expected a group of settings, such as slow.factor = 5{rest}");
    }
    let text = text.trim_end();
    let is_misplaced = text.contains("unknown field") && !text.contains(AT_THE_TOP);
    if is_misplaced || text.contains("duplicate key") {
        return format!("{text} {BELONGS}");
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::config::ServeConfig;
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_the_words_of_the_documents() {
        let peer = "[[peers]]\nnode = 1\naddress = \"a:1\"\n";
        for (settings, expected) in [
            ("node = \"x\"", "expected a whole number from 0 to 65535"),
            ("node = 70000", "expected a whole number from 0 to 65535"),
            ("node = 1\ndata = \"/d\"", "expected a list in [ ]"),
            ("node = 1\nlabels = 3", "expected a table of names and values"),
            ("node = 1\nlog = 3", "expected a group of settings"),
            ("node = 1\nfaults.allowed = 3", "expected true or false"),
            ("node = 1\nlisten = 3", "expected a text in quotes"),
            ("node = 1\ndurability = \"none\"", "expected `fsync` or `os`"),
            ("node = 1\nlog.layout = \"partition\"", "expected `disk` or `node`"),
        ] {
            let error = toml::from_str::<ServeConfig>(&format!("{settings}\n{peer}")).unwrap_err();
            let said = text(&error);
            assert!(said.contains(expected) && said.contains("line "), "{settings}: {said}");
            for word in ["u16", "u32", "sequence", "a map", "struct", "variant"] {
                assert!(!said.contains(word), "{word}: {said}");
            }
        }
    }

    #[test]
    fn a_setting_below_another_heading_is_told_where_it_belongs() {
        let peer = "[[peers]]\nnode = 1\naddress = \"a:1\"\n";
        for (settings, expected) in [
            (format!("{peer}durability = \"os\""), "unknown field `durability`"),
            (format!("{peer}[log]\nsegment_mib = 64\naudit.file = \"/a\""), "unknown field `audit`"),
            (format!("{peer}[clusters.west]\nmeta_nodes = [\"a:1\"]\nca = \"c\""), "unknown field `ca`"),
            (format!("log.segment_mib = 64\n{peer}[log]\nretained_mib = 64"), "duplicate key"),
        ] {
            let said =
                text(&toml::from_str::<ServeConfig>(&format!("node = 1\ndata = [\"d\"]\n{settings}\n")).unwrap_err());
            assert!(said.contains(expected) && said.ends_with(BELONGS), "{said}");
        }
        let said = text(&toml::from_str::<ServeConfig>(&format!("nod = 1\n{peer}")).unwrap_err());
        assert!(said.contains("unknown field `nod`") && !said.contains(BELONGS), "{said}");
    }
}
