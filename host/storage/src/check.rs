//! The conditions of check-and-set and check-and-mutate.

use hedgerow_types::error::Status;

/// The numbers of the conditions, as they travel on the wire.
mod kind {
    pub(super) const NO_CHECK: i32 = 0;
    pub(super) const NOT_EXIST: i32 = 1;
    pub(super) const NOT_EXIST_OR_EMPTY: i32 = 2;
    pub(super) const EXIST: i32 = 3;
    pub(super) const NOT_EMPTY: i32 = 4;
    pub(super) const MATCH_ANYWHERE: i32 = 5;
    pub(super) const MATCH_PREFIX: i32 = 6;
    pub(super) const MATCH_POSTFIX: i32 = 7;
    pub(super) const BYTES_LESS: i32 = 8;
    pub(super) const BYTES_LESS_OR_EQUAL: i32 = 9;
    pub(super) const BYTES_EQUAL: i32 = 10;
    pub(super) const BYTES_GREATER_OR_EQUAL: i32 = 11;
    pub(super) const BYTES_GREATER: i32 = 12;
    pub(super) const INT_LESS: i32 = 13;
    pub(super) const INT_LESS_OR_EQUAL: i32 = 14;
    pub(super) const INT_EQUAL: i32 = 15;
    pub(super) const INT_GREATER_OR_EQUAL: i32 = 16;
    pub(super) const INT_GREATER: i32 = 17;
}

/// Whether a condition with this number exists.
pub(crate) fn is_known(kind: i32) -> bool {
    (kind::NO_CHECK..=kind::INT_GREATER).contains(&kind)
}

/// Whether the known condition `kind` holds for a record's `value` (`None` = no such record).
/// [`Status::InvalidArgument`] if it compares numbers and one of them is none.
pub(crate) fn holds(kind: i32, value: Option<&[u8]>, operand: &[u8]) -> Result<bool, Status> {
    let Some(value) = value else {
        return Ok(matches!(kind, kind::NO_CHECK | kind::NOT_EXIST | kind::NOT_EXIST_OR_EMPTY));
    };
    let numbers = || match (parse_number(value), parse_number(operand)) {
        (Some(value), Some(operand)) => Ok((value, operand)),
        (None, _) | (_, None) => Err(Status::InvalidArgument),
    };
    Ok(match kind {
        kind::NO_CHECK | kind::EXIST => true,
        kind::NOT_EXIST => false,
        kind::NOT_EXIST_OR_EMPTY => value.is_empty(),
        kind::NOT_EMPTY => !value.is_empty(),
        kind::MATCH_ANYWHERE => memchr::memmem::find(value, operand).is_some(),
        kind::MATCH_PREFIX => value.starts_with(operand),
        kind::MATCH_POSTFIX => value.ends_with(operand),
        kind::BYTES_LESS => value < operand,
        kind::BYTES_LESS_OR_EQUAL => value <= operand,
        kind::BYTES_EQUAL => value == operand,
        kind::BYTES_GREATER_OR_EQUAL => value >= operand,
        kind::BYTES_GREATER => value > operand,
        kind::INT_LESS => numbers().map(|(value, operand)| value < operand)?,
        kind::INT_LESS_OR_EQUAL => numbers().map(|(value, operand)| value <= operand)?,
        kind::INT_EQUAL => numbers().map(|(value, operand)| value == operand)?,
        kind::INT_GREATER_OR_EQUAL => numbers().map(|(value, operand)| value >= operand)?,
        kind::INT_GREATER => numbers().map(|(value, operand)| value > operand)?,
        _ => return Err(Status::InvalidArgument),
    })
}

/// A decimal number of 64 bits, with or without a sign; `None` for anything else, the empty string included. A long text is not
/// looked through when its beginning says that it is none: writes that are applied wait for this.
pub(crate) fn parse_number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let digits = digits.get(zeros..).filter(|rest| zeros > 0 || !rest.is_empty())?;
    // Downwards, where there is one number more.
    let below = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_sub(i64::from(digit))
    })?;
    if is_negative { Some(below) } else { below.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each condition, the values (of `-`, empty, `5`, `15`, `x`, with `-` for no record) for which it holds with
    /// operand `5`: `y`, `n`, or `!` for an invalid argument.
    const TABLE: &[(i32, &str)] = &[
        (0, "yyyyy"),
        (1, "ynnnn"),
        (2, "yynnn"),
        (3, "nyyyy"),
        (4, "nnyyy"),
        (5, "nnyyn"),
        (6, "nnynn"),
        (7, "nnyyn"),
        (8, "nynyn"),
        (9, "nyyyn"),
        (10, "nnynn"),
        (11, "nnyny"),
        (12, "nnnny"),
        (13, "n!nn!"),
        (14, "n!yn!"),
        (15, "n!yn!"),
        (16, "n!yy!"),
        (17, "n!ny!"),
    ];

    #[test]
    fn numbers_are_what_the_standard_library_takes_for_numbers() {
        let long = ["0", "9", "x", "ä"].map(|part| part.repeat(100_000));
        let limits = ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"];
        let odd = [
            "",
            "-",
            "+",
            "+-1",
            "--1",
            "1-",
            " 1",
            "1 ",
            "0x1",
            "+0",
            "-0",
            "-007",
            "00",
            "1_0",
            "99999999999999999999",
        ];
        let texts = limits.into_iter().chain(odd).map(str::to_owned).chain(long);
        for text in texts.chain((-1_100..1_100).map(|number| number.to_string())) {
            assert_eq!(parse_number(text.as_bytes()), text.parse().ok(), "{text:.30}");
            let padded = format!("0000000000000000000000{text}");
            assert_eq!(parse_number(padded.as_bytes()), padded.parse().ok(), "{padded:.60}");
        }
        assert_eq!(parse_number(b"1\xff"), None);
    }

    // As long as the two together, not as their product.
    #[test]
    fn n4h_looking_for_half_a_value_in_it_takes_no_time_of_note() {
        let (value, mut operand) = (vec![b'a'; 1 << 20], vec![b'a'; 1 << 19]);
        assert_eq!(holds(kind::MATCH_ANYWHERE, Some(&value), &operand), Ok(true));
        operand.push(b'b');
        assert_eq!(holds(kind::MATCH_ANYWHERE, Some(&value), &operand), Ok(false));
    }

    #[test]
    fn every_condition_holds_exactly_where_the_protocol_says() {
        let values: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"5"), Some(b"15"), Some(b"x")];
        for (kind, expected) in TABLE {
            assert!(is_known(*kind));
            let letters = values.iter().map(|value| match holds(*kind, *value, b"5") {
                Ok(true) => 'y',
                Ok(false) => 'n',
                Err(_) => '!',
            });
            assert_eq!(letters.collect::<String>(), *expected, "condition {kind}");
        }
        assert!(!is_known(-1) && !is_known(18));
    }

    #[test]
    fn an_empty_operand_matches_any_value_and_is_no_number() {
        for kind in 5..=7 {
            assert_eq!(holds(kind, Some(b""), b""), Ok(true));
            assert_eq!(holds(kind, None, b""), Ok(false));
        }
        assert_eq!(holds(15, Some(b"1"), b""), Err(Status::InvalidArgument));
        assert_eq!(holds(15, None, b""), Ok(false));
    }

    #[test]
    fn numbers_are_decimal_and_fit_64_bits() {
        assert_eq!(parse_number(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_number(b"9223372036854775808"), None);
        assert_eq!(parse_number(b"1 "), None);
        assert_eq!(parse_number(b"0x1"), None);
        assert_eq!(parse_number(b"\xff"), None);
    }
}
