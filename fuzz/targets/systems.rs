//! Files of autonomous systems: any text is parsed or refused with the number of an existing line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_flows::packet::MappedAddress;
use penstock_flows::asn::AsTable;

fuzz_target!(|text: &str| match AsTable::read(text) {
    Ok(systems) => {
        assert!(systems.count <= text.lines().count());
        if let Some(origin) = systems.origins.find(MappedAddress(text.len() as u128)) {
            assert!(origin.asn > 0 && origin.bits <= 128);
        }
    }
    Err(error) => assert!((1..=text.lines().count()).contains(&error.line), "{error}"),
});
