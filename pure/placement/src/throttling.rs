//! The table's limit on extra attempts, as its option says it.

use std::time::Duration;

/// Above these many extra attempts per second of the whole table, the ones beyond are served later, or dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Those beyond this rate are served later.
    pub delay: Option<Delay>,
    /// Those beyond this rate are dropped; 0 = all of them.
    pub reject_above: Option<u64>,
}

/// See [`Throttling::delay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The rate, per second.
    pub above: u64,
    /// How much later.
    pub by: Duration,
}

/// Largest rate that can be said: beyond it there is no limit worth the name.
const RATE_MAX: u64 = 1 << 40;

impl Throttling {
    /// The forms of [`Throttling::parse`].
    pub const FORMS: &str = "N/s (dropped above N per second; 0/s = all), or as in Pegasus N*delay*MS,M*reject*MS or one \
                             part of it (0 = without it), where K and M after a number mean 1024 and 1048576";

    /// Reads `N/s`, or Pegasus' form: up to two parts, in which 0 stands for no limit, and the time of `reject` means nothing.
    pub fn parse(value: &str) -> Option<Self> {
        if let Some(rate) = value.strip_suffix("/s") {
            return Some(Self { delay: None, reject_above: Some(parse_rate(rate)?) });
        }
        let mut this = Self::default();
        let mut actions = Vec::with_capacity(2);
        for part in value.split(',') {
            let mut fields = part.trim().split('*');
            let (Some(rate), Some(action), Some(millis), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return None;
            };
            let (above, millis) = (parse_rate(rate)?, u64::from(u32::try_from(parse_number(millis)?).ok()?));
            match action {
                _ if actions.contains(&action) => return None,
                "delay" if above > 0 && millis > 0 => {
                    this.delay = Some(Delay { above, by: Duration::from_millis(millis) });
                }
                "delay" => {}
                "reject" => this.reject_above = Some(above).filter(|above| *above > 0),
                _ => return None,
            }
            actions.push(action);
        }
        Some(this)
    }

    /// Whether it limits anything.
    pub fn is_limit(&self) -> bool {
        *self != Self::default()
    }
}

fn parse_rate(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    parse_number(digits)?.checked_mul(unit).filter(|rate| *rate <= RATE_MAX)
}

fn parse_number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(delay: Option<(u64, u64)>, reject_above: Option<u64>) -> Throttling {
        let delay = delay.map(|(above, millis)| Delay { above, by: Duration::from_millis(millis) });
        Throttling { delay, reject_above }
    }

    #[test]
    fn both_forms_are_read() {
        for (text, read) in [
            ("100/s", both(None, Some(100))),
            ("2K/s", both(None, Some(2_048))),
            ("0/s", both(None, Some(0))),
            ("20000*delay*100,20K*reject*100", both(Some((20_000, 100)), Some(20_480))),
            ("3M*reject*0, 10*delay*7", both(Some((10, 7)), Some(3 << 20))),
            ("10*delay*7", both(Some((10, 7)), None)),
            ("10*reject*7", both(None, Some(10))),
            // 0 is no limit there, and a delay of nothing is none.
            ("0*delay*100,0*reject*100", both(None, None)),
            ("10*delay*0", both(None, None)),
        ] {
            assert_eq!(Throttling::parse(text), Some(read), "{text}");
            assert_eq!(read.is_limit(), read != both(None, None), "{text}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for text in [
            "",
            "100",
            "/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "100/m",
            "1k/s",
            "1KK/s",
            "K/s",
            "2000000M/s",
            "10*delay",
            "10*delay*",
            "10*delay*7*8",
            "10*slow*7",
            "10*delay*7,",
            "10*delay*7,20*delay*8",
            "1*reject*1,1*reject*1",
            "1*reject*1,1*delay*1,1*delay*1",
            "1*delay*4294967296",
            "18446744073709551616/s",
            "10 * delay * 7",
        ] {
            assert_eq!(Throttling::parse(text), None, "{text:?}");
        }
    }
}
