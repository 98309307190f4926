//! Rates of a sweep, as the command line writes them.

use std::str::FromStr;

/// Most rates of one sweep.
const RATES_MAX: usize = 100;

/// Rates per second, one run each: `1000`, `1000,2000,5000` or `1000..10000/5` (five rates, evenly from the first to the
/// last).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rates(pub(crate) Vec<f64>);

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rates = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                Some((first, rest)) => rates.extend(range(first, rest)?),
                None => rates.push(rate(part)?),
            }
        }
        if rates.len() > RATES_MAX {
            return Err(format!("{} rates are more than {RATES_MAX}", rates.len()));
        }
        Ok(Self(rates))
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        Ok(_) | Err(_) => Err(format!("{text:?} is not a rate: a number of requests per second above 0")),
    }
}

fn range(first: &str, rest: &str) -> Result<Vec<f64>, String> {
    let form = || format!("\"{first}..{rest}\" is not of the form FIRST..LAST/COUNT, with a count of at least 2");
    let (last, count) = rest.split_once('/').ok_or_else(form)?;
    let (first, last) = (rate(first)?, rate(last)?);
    let count: usize = count.trim().parse().map_err(|_| form())?;
    if !(2..=RATES_MAX).contains(&count) {
        return Err(form());
    }
    let step = (last - first) / (count - 1) as f64;
    Ok((0..count).map(|index| first + step * index as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_listed_or_given_as_a_range() {
        assert_eq!("1000".parse(), Ok(Rates(vec![1000.0])));
        assert_eq!("1000,2000, 5000".parse(), Ok(Rates(vec![1000.0, 2000.0, 5000.0])));
        assert_eq!("1000..9000/5".parse(), Ok(Rates(vec![1000.0, 3000.0, 5000.0, 7000.0, 9000.0])));
        assert_eq!("100,1000..2000/2".parse(), Ok(Rates(vec![100.0, 1000.0, 2000.0])));
    }

    #[test]
    fn what_is_no_rate_is_refused_with_the_form() {
        for text in ["", "fast", "0", "-1", "inf", "1000,,2000"] {
            assert!(text.parse::<Rates>().unwrap_err().contains("is not a rate"), "{text}");
        }
        for text in ["1..2", "1..2/1", "1..2/x"] {
            assert!(text.parse::<Rates>().unwrap_err().contains("FIRST..LAST/COUNT"), "{text}");
        }
    }
}
