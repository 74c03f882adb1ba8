//! Short forms of a scitag from untrusted sources: packet options, URLs, header values, times, names. Parsed values
//! encode to the same value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_scitags::option::{self, Encoding, PacketMark};
use penstock_scitags::time::UtcTime;
use penstock_scitags::{FlowLabel, Registry, Scitag, carry};

fn options(marks: option::Marks<'_>) {
    let marks: Vec<PacketMark> = marks.map_while(Result::ok).collect();
    let bytes: Vec<u8> = marks.iter().flat_map(|mark| mark.bytes()).collect();
    let again: Vec<_> = option::marks(&bytes).collect::<Result<_, _>>().unwrap();
    assert_eq!(again, marks);
    for mark in marks {
        let Some(reading) = mark.read(Registry::builtin()) else { continue };
        assert!(!reading.registered || reading.tag.is_some_and(|tag| Registry::builtin().has(tag)));
        match (reading.encoding, reading.tag) {
            (Encoding::Pair, Some(tag)) if tag.fits_on_packets().is_ok() => {
                assert_eq!(option::encode(tag).unwrap()[..5], mark.bytes());
            }
            (Encoding::Label | Encoding::FirstLabel, tag) => label(reading.label.unwrap(), tag),
            _ => {}
        }
    }
}

fn label(label: FlowLabel, tag: Option<Scitag>) {
    assert_eq!(label.scitag(), tag);
    if let Some(tag) = tag {
        assert_eq!(FlowLabel::new(tag, label.entropy()), Ok(label));
    }
}

fn text(which: u8, text: &str) {
    match which {
        0 => {
            if let Ok(tag) = carry::from_value(text) {
                assert_eq!(carry::from_value(&tag.number().to_string()), Ok(tag));
            }
        }
        1 => {
            if let Ok(Some(tag)) = carry::from_url(text) {
                let url = format!("https://h/f?{}", carry::url_parameter(tag));
                assert_eq!(carry::from_url(&url), Ok(Some(tag)));
            }
        }
        2 => {
            if let Ok(time) = text.parse::<UtcTime>() {
                assert_eq!(time.to_string().parse(), Ok(time));
            }
        }
        _ => {
            let registry = Registry::builtin();
            if let Ok(tag) = registry.find(text) {
                assert_eq!(registry.find(&registry.name(tag)), Ok(tag));
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 6 {
        4 => options(option::marks(bytes)),
        5 => {
            if let Ok(marks) = option::marks_of_header(bytes) {
                options(marks);
            }
        }
        which => {
            if let Ok(bytes) = std::str::from_utf8(bytes) {
                text(which, bytes);
            }
        }
    }
});
