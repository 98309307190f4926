//! Numbers with a zipfian distribution, by rejection-inversion (W. Hörmann, G. Derflinger: Rejection-inversion to generate
//! variates from monotone discrete distributions, 1996). Exact, and without a table: the number of items may change between
//! two draws.

use crate::draw::unit;
use hedgerow_types::random::Random;

/// Draws ranks 1, 2, ... with a frequency in proportion to 1 / rank^exponent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Zipf {
    exponent: f64,
    /// H(1.5) - 1: the lower end of the area that is drawn from.
    area_min: f64,
    /// Where a rank may be accepted without computing its probability.
    squeeze: f64,
    /// The upper end of the area for `count`.
    area_max: f64,
    count: u64,
}

impl Zipf {
    /// Ranks 1 to `count`, with an exponent above 0.
    pub(crate) fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { exponent, area_min: 0.0, squeeze: 0.0, area_max: 0.0, count: 0 };
        zipf.area_min = zipf.area(1.5) - 1.0;
        zipf.squeeze = 2.0 - zipf.area_inverse(zipf.area(2.5) - zipf.height(2.0));
        zipf.set_count(count);
        zipf
    }

    /// Changes the number of ranks.
    pub(crate) fn set_count(&mut self, count: u64) {
        if count != self.count {
            self.count = count;
            self.area_max = self.area(count as f64 + 0.5);
        }
    }

    /// A rank from 1 on.
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area_max + unit(random) * (self.area_min - self.area_max);
            let x = self.area_inverse(area);
            let rank = (x + 0.5).floor().clamp(1.0, self.count as f64);
            if rank - x <= self.squeeze || area >= self.area(rank + 0.5) - self.height(rank) {
                return rank as u64;
            }
        }
    }

    /// The weight of a rank: x^-exponent.
    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of the weight, (x^(1-exponent) - 1) / (1 - exponent), also where the exponent is 1 or nearly so.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn area_inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.exponent)).max(-1.0);
        (ln1p_over(t) * area).exp()
    }
}

/// ln(1 + x) / x.
fn ln1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

/// (e^x - 1) / x.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest difference between drawn and exact shares of the first ranks, in standard deviations.
    fn worst_deviation(count: u64, exponent: f64) -> f64 {
        const DRAWS: u64 = 400_000;
        let zipf = Zipf::new(count, exponent);
        let mut random = Random::new(7);
        let mut seen = vec![0_u64; count as usize + 1];
        (0..DRAWS).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
        let weight = |rank: u64| (rank as f64).powf(-exponent);
        let sum: f64 = (1..=count).map(weight).sum();
        let deviation = |rank: u64| {
            let share = weight(rank) / sum;
            let expected = share * DRAWS as f64;
            (seen[rank as usize] as f64 - expected).abs() / (expected * (1.0 - share)).sqrt()
        };
        (1..=count.min(50)).map(deviation).fold(0.0, f64::max)
    }

    #[test]
    fn ranks_come_as_often_as_the_formula_says() {
        for exponent in [0.5, 0.99, 1.0, 1.5] {
            for count in [2, 10, 1000] {
                let worst = worst_deviation(count, exponent);
                assert!(worst < 4.5, "{count} ranks, exponent {exponent}: {worst} standard deviations");
            }
        }
    }

    #[test]
    fn a_single_rank_is_the_only_one() {
        let zipf = Zipf::new(1, 0.99);
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| zipf.draw(&mut random) == 1));
    }

    #[test]
    fn the_number_of_ranks_may_grow() {
        let (mut grown, fresh) = (Zipf::new(10, 0.99), Zipf::new(100_000, 0.99));
        grown.set_count(100_000);
        let (mut a, mut b) = (Random::new(3), Random::new(3));
        assert!((0..1000).all(|_| grown.draw(&mut a) == fresh.draw(&mut b)));
    }
}
