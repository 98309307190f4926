//! Every command line in the documents is one that the program understands.

use crate::cli::Arguments;
use hedgerow_testkit::{calls_of_x, command_lines};

#[test]
fn command_lines_of_the_documents_are_understood() {
    let mut count = 0;
    for line in command_lines().expect("documents") {
        for call in line.calls().iter().filter(|call| call[0] == "hedgerow") {
            count += 1;
            if let Err(error) = Arguments::read(call) {
                panic!("{}: {}\n{error}", line.place, line.text);
            }
        }
    }
    assert!(count > 60, "only {count} lines were found");
}

#[test]
fn what_the_script_hands_over_is_understood() {
    for command in ["demo", "experiment"] {
        for call in calls_of_x(command).expect("documents") {
            let words = [&["hedgerow".to_owned()], &call[..]].concat();
            if let Err(error) = Arguments::read(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }
}
