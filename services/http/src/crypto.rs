//! Cipher suites of HTTPS connections.

use penstock_sys::machine::aes_instruction_bits;
use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

/// Cryptography of TLS: that of aws-lc, with AES-GCM of ring on processors where that is two to three times as fast
/// (docs/decisions/0016).
#[must_use]
pub fn crypto_provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    if aes_instruction_bits() == 256 {
        for suite in &mut provider.cipher_suites {
            *suite = aes_gcm_of_ring(*suite).unwrap_or(*suite);
        }
    }
    provider
}

/// Returns the same suite of ring, of those with AES-GCM.
fn aes_gcm_of_ring(suite: SupportedCipherSuite) -> Option<SupportedCipherSuite> {
    let is_aes = format!("{:?}", suite.suite()).contains("AES");
    ring::ALL_CIPHER_SUITES.iter().find(|other| is_aes && other.suite() == suite.suite()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_and_their_order_remain() {
        let names = |provider: CryptoProvider| {
            provider.cipher_suites.iter().map(|suite| suite.suite()).collect::<Vec<_>>()
        };
        assert_eq!(names(crypto_provider()), names(aws_lc_rs::default_provider()));
        let of_ring = |suite: &&SupportedCipherSuite| aes_gcm_of_ring(**suite).is_some();
        assert_eq!(aws_lc_rs::ALL_CIPHER_SUITES.iter().filter(of_ring).count(), 6);
    }
}
