//! CRC-32C of a concatenation, from the checksums of its two parts.
//!
//! A CRC is a remainder of polynomials over GF(2): appending n bytes multiplies the remainder of what stands
//! before them by x^(8n) modulo the generator. Initial value and final inversion of the two parts cancel out. The
//! power is a product of squares that are computed at compile time, so that a length costs one multiplication for
//! each bit set in it. Polynomials are reflected: the highest bit holds the coefficient of x^0.

/// Generator of CRC-32C (Castagnoli) without its leading term, reflected.
const GENERATOR_REFLECTED: u32 = 0x82f6_3b78;

/// The polynomial 1.
const POLYNOMIAL_ONE: u32 = 1 << 31;

/// x^(2^k) modulo the generator. x has order 2^31 - 1, so that its 2^31st power is x again.
const SQUARES_OF_X: [u32; 31] = squares();

const fn squares() -> [u32; 31] {
    let mut squares = [POLYNOMIAL_ONE >> 1; 31];
    let mut power = 1;
    while power < squares.len() {
        squares[power] = multiply(squares[power - 1], squares[power - 1]);
        power += 1;
    }
    squares
}

/// Product of two polynomials modulo the generator.
const fn multiply(left: u32, mut right: u32) -> u32 {
    let (mut product, mut left) = (0, left);
    while left != 0 {
        // All ones if the coefficient is set: a branch would be mispredicted half the time.
        product ^= right & (left >> 31).wrapping_neg();
        right = (right >> 1) ^ (GENERATOR_REFLECTED & (right & 1).wrapping_neg());
        left <<= 1;
    }
    product
}

/// Checksum of two adjacent ranges of which the second has `right_bytes`.
pub(super) fn crc32c_of_both(left: u32, right: u32, right_bytes: u64) -> u32 {
    let mut shifted = left;
    let mut bytes = right_bytes;
    // The first factor is x^8 = x^(2^3).
    let mut power = 3;
    while bytes != 0 {
        if bytes & 1 == 1 {
            shifted = multiply(SQUARES_OF_X[power % SQUARES_OF_X.len()], shifted);
        }
        bytes >>= 1;
        power += 1;
    }
    shifted ^ right
}

#[cfg(test)]
mod tests {
    use crc_fast::CrcAlgorithm::Crc32Iscsi;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn last_square_closes_the_cycle() {
        assert_eq!(multiply(SQUARES_OF_X[30], SQUARES_OF_X[30]), SQUARES_OF_X[0]);
    }

    #[test]
    fn lengths_around_powers_of_two() {
        for log in 0..64 {
            for bytes in [(1_u64 << log) - 1, 1 << log, (1 << log) + 1, u64::MAX] {
                let expected =
                    crc_fast::checksum_combine(Crc32Iscsi, 0xe306_9283, 0x8a91_36aa, bytes);
                let both = crc32c_of_both(0xe306_9283, 0x8a91_36aa, bytes);
                assert_eq!(u64::from(both), expected, "{bytes} bytes");
            }
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn agrees_with_crc_fast(left: u32, right: u32, bytes: u64) {
            let expected =
                crc_fast::checksum_combine(Crc32Iscsi, u64::from(left), u64::from(right), bytes);
            prop_assert_eq!(u64::from(crc32c_of_both(left, right, bytes)), expected);
        }
    }
}
