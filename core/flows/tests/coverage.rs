//! Coverage of the estimator's 95 % interval: 200 seeded mixes of classes, sizes and sampling rates over several strata,
//! of which some have counters.

use penstock_flows::estimate::{CounterEstimate, SEPARATE_SAMPLES_MIN, Stratum, Sum};
use penstock_random::Random;

const MIX_COUNT: u64 = 200;

/// Draws the number of samples of `packets` packets at 1 of `rate`, with geometrically distributed gaps.
fn sampled(random: &mut Random, packets: u64, rate: u64) -> u64 {
    let (mut at, mut count) = (0.0, 0);
    let per_gap = (1.0 - 1.0 / rate as f64).ln();
    loop {
        at += (random.unit().max(1e-300).ln() / per_gap).floor() + 1.0;
        if at > packets as f64 {
            return count;
        }
        count += 1;
    }
}

/// Number of intervals that contain the true value, and number of all, if this share of strata has counters.
fn held(seed: u64, counted_of_ten: u64) -> (u32, u32) {
    let mut random = Random::new(seed);
    let (mut held, mut all) = (0, 0);
    for _ in 0..MIX_COUNT {
        let strata = 1 + random.next_bits() as usize % 4;
        let classes = 2 + random.next_bits() as usize % 8;
        let rate = random.pick(&[100_u64, 1_000, 20_000]);
        let mut truth = vec![0.0; classes];
        let mut sums = vec![vec![Sum::default(); strata]; classes];
        let mut of = vec![Stratum::default(); strata];
        for stratum in 0..strata {
            let mut octets = 0.0;
            for class in 0..classes {
                // 4 to 1000 expected samples of long packets, and some short ones.
                let expected = 4.0 * 250_f64.powf(random.unit());
                let short = random.pick(&[0.0, 0.1, 0.5]);
                let long_bytes = random.pick(&[1_518_u64, 9_018]);
                for (share, bytes) in [(short, 90), (1.0 - short, long_bytes)] {
                    let packets = (expected * share * rate as f64) as u64;
                    let samples = sampled(&mut random, packets, rate);
                    truth[class] += (packets * bytes) as f64;
                    octets += (packets * bytes) as f64;
                    let weight = (rate * bytes) as f64;
                    let each = weight * weight * (1.0 - 1.0 / rate as f64);
                    let sum = Sum::sampled(samples as f64 * weight, samples as f64 * each);
                    sums[class][stratum].add(sum);
                    of[stratum].sampled.add(sum);
                }
            }
            if random.next_bits() % 10 < counted_of_ten {
                of[stratum].counted =
                    CounterEstimate { bytes: octets, variance: 0.0, covered: 1.0 };
            }
        }
        let mut shared = Stratum::default();
        let few = |stratum: &Stratum| stratum.sampled.samples() < SEPARATE_SAMPLES_MIN;
        let mut sampled = Sum::default();
        for stratum in &of {
            sampled.add(stratum.sampled);
            if stratum.is_counted() && few(stratum) {
                shared.merge(stratum);
            }
        }
        for class in 0..classes {
            let (mut estimate, mut in_shared) = (Sum::default(), Sum::default());
            for stratum in 0..strata {
                let sum = sums[class][stratum];
                match &of[stratum] {
                    one if !one.is_counted() => estimate.add(sum),
                    one if few(one) => in_shared.add(sum),
                    one => estimate.add(one.class(sum)),
                }
            }
            estimate.add(shared.class(in_shared));
            let error = estimate.half_width(sampled.unit());
            held += u32::from((estimate.bytes - truth[class]).abs() <= error);
            all += 1;
        }
    }
    (held, all)
}

#[test]
fn intervals_hold_the_truth() {
    for (name, counted_of_ten) in [("sampled", 0), ("counted in part", 5), ("counted", 10)] {
        for seed in [1, 2, 3] {
            let (held, all) = held(seed, counted_of_ten);
            let percent = 100.0 * f64::from(held) / f64::from(all);
            println!("{name}, seed {seed}: {percent:.1} % of {all}");
            assert!((93.0..=97.0).contains(&percent), "{name}, seed {seed}: {percent:.1} %");
        }
    }
}
