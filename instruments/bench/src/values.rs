//! Values: of drawn sizes, cut out of one block of random text.

use crate::draw::normal;
use crate::workload::Values;
use crate::zipf::Zipf;
use bytes::Bytes;
use hedgerow_types::random::Random;

/// Bytes of the block beyond the largest value, so that values differ and do not compress to nothing.
const VARIETY: u64 = 64 << 10;

/// Draws values.
#[derive(Clone, Debug)]
pub(crate) struct ValueSource {
    values: Values,
    zipf: Option<Zipf>,
    block: Bytes,
}

impl ValueSource {
    pub(crate) fn new(values: Values, random: &mut Random) -> Self {
        let zipf = match values {
            Values::Zipfian { size_min, size_max, exponent } => {
                Some(Zipf::new(u64::from(size_max - size_min) + 1, exponent))
            }
            Values::Fixed { .. } | Values::Uniform { .. } | Values::Lognormal { .. } => None,
        };
        let size = VARIETY + u64::from(values.size_max());
        let block: Vec<u8> = (0..size).map(|_| b' ' + random.below(95) as u8).collect();
        Self { values, zipf, block: block.into() }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> Bytes {
        let size = self.size(random) as usize;
        let begin = random.below(VARIETY) as usize;
        self.block.slice(begin..begin + size)
    }

    fn size(&self, random: &mut Random) -> u32 {
        match self.values {
            Values::Fixed { size } => size,
            Values::Uniform { size_min, size_max } => {
                size_min + random.below(u64::from(size_max - size_min) + 1) as u32
            }
            Values::Zipfian { size_min, .. } => {
                let zipf = self.zipf.as_ref().expect("zipfian sizes have one");
                size_min + (zipf.draw(random) - 1) as u32
            }
            Values::Lognormal { size_median, sigma, size_max } => {
                let size = f64::from(size_median) * (sigma * normal(random)).exp();
                size.round().clamp(1.0, f64::from(size_max)) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(values: Values) -> Vec<usize> {
        let mut random = Random::new(5);
        let source = ValueSource::new(values, &mut random);
        let mut sizes: Vec<_> = (0..20_000).map(|_| source.draw(&mut random).len()).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn fixed_sizes_are_all_the_same_and_values_differ() {
        assert!(sizes(Values::Fixed { size: 1000 }).iter().all(|size| *size == 1000));
        let mut random = Random::new(5);
        let source = ValueSource::new(Values::Fixed { size: 100 }, &mut random);
        assert_ne!(source.draw(&mut random), source.draw(&mut random));
    }

    #[test]
    fn distributed_sizes_stay_within_their_bounds_and_have_their_shape() {
        let uniform = sizes(Values::Uniform { size_min: 10, size_max: 109 });
        assert_eq!((uniform[0], uniform[19_999]), (10, 109));
        assert!((55..65).contains(&uniform[10_000]), "{}", uniform[10_000]);
        let zipfian = sizes(Values::Zipfian { size_min: 10, size_max: 1009, exponent: 0.99 });
        assert_eq!(zipfian[0], 10);
        assert!(zipfian[10_000] < 60 && zipfian[19_999] > 900, "{} {}", zipfian[10_000], zipfian[19_999]);
        let lognormal = sizes(Values::Lognormal { size_median: 1000, sigma: 1.5, size_max: 50_000 });
        assert!((950..1050).contains(&lognormal[10_000]), "{}", lognormal[10_000]);
        let above_one_deviation = lognormal.iter().filter(|size| **size > 4481).count();
        assert!((3000..3350).contains(&above_one_deviation), "{above_one_deviation}");
        assert_eq!(lognormal[19_999], 50_000);
    }
}
