//! One table of known pairs in all their forms. The three CMS rows were confirmed by that experiment
//! (cms-sw/cmssw#51227); the others follow from the rule that three implementations share.

use penstock_scitags::option::{self, Encoding, PacketMark};
use penstock_scitags::{FlowLabel, Registry, Scitag, carry};

/// Name, owner, activity, scitag, label without entropy bits, label with all entropy bits, option bytes.
type Row = (&'static str, u64, u64, u32, u32, u32, [u8; 6]);

const TABLE: [Row; 11] = [
    ("default/default", 1, 1, 65, 0x20004, 0xE0107, [0x1E, 3, 0, 1, 0x01, 0]),
    ("atlas/data-consolidation", 2, 4, 132, 0x10010, 0xD0113, [0x1E, 3, 0, 2, 0x04, 0]),
    ("atlas/data-challenge", 2, 26, 154, 0x10068, 0xD016B, [0x1E, 3, 0, 2, 0x1A, 0]),
    ("cms/analysis-input", 3, 14, 206, 0x30038, 0xF013B, [0x1E, 3, 0, 3, 0x0E, 0]),
    ("cms/secondary-input", 3, 23, 215, 0x3005C, 0xF015F, [0x1E, 3, 0, 3, 0x17, 0]),
    ("cms/simulation-pileup-input", 3, 24, 216, 0x30060, 0xF0163, [0x1E, 3, 0, 3, 0x18, 0]),
    ("alice/data-access", 5, 10, 330, 0x28028, 0xE812B, [0x1E, 3, 0, 5, 0x0A, 0]),
    ("ska/data-challenge", 7, 4, 452, 0x38010, 0xF8113, [0x1E, 3, 0, 7, 0x04, 0]),
    ("dune/data-challenge", 8, 4, 516, 0x04010, 0xC4113, [0x1E, 3, 0, 8, 0x04, 0]),
    ("xenon/default", 14, 1, 897, 0x1C004, 0xDC107, [0x1E, 3, 0, 0x0E, 0x01, 0]),
    ("511/63", 511, 63, 32767, 0x3FEFC, 0xFFFFF, [0x1E, 3, 1, 0xFF, 0x3F, 0]),
];

#[test]
fn every_form_of_every_row() {
    let registry = Registry::builtin();
    for (name, owner, activity, number, bare, full, bytes) in TABLE {
        let tag = Scitag::new(owner, activity).unwrap();
        assert_eq!((tag.number(), Scitag::from_number(number.into())), (number, Ok(tag)), "{name}");
        assert_eq!((registry.name(tag).as_str(), registry.find(name)), (name, Ok(tag)));
        for form in [number.to_string(), tag.to_string()] {
            assert_eq!(registry.find(&form), Ok(tag), "{name}");
        }
        for (entropy, label) in [(0, bare), (31, full)] {
            assert_eq!(FlowLabel::new(tag, entropy).unwrap().value(), label, "{name}");
            let back = FlowLabel::from_value(label).unwrap();
            assert_eq!((back.scitag(), back.entropy()), (Some(tag), entropy), "{name}");
        }
        assert_eq!(option::encode(tag), Ok(bytes), "{name}");
        let marks: Vec<PacketMark> = option::marks(&bytes).collect::<Result<_, _>>().unwrap();
        let [mark] = marks[..] else { panic!("{name}: {marks:?}") };
        let reading = mark.read(registry).unwrap();
        assert_eq!((reading.tag, reading.encoding), (Some(tag), Encoding::Pair), "{name}");
        assert_eq!(reading.registered, owner != 511, "{name}");
        let url = format!("root://h//f?{}", carry::url_parameter(tag));
        assert_eq!(carry::from_url(&url), Ok(Some(tag)));
        assert_eq!(carry::header_line(tag), format!("SciTag: {number}"));
    }
}

/// Each entropy bit alone, lowest of the index first.
#[test]
fn entropy_has_five_bits() {
    let tag = Scitag::new(1, 1).unwrap();
    let bits = [0x1, 0x2, 0x100, 0x40000, 0x80000];
    for (at, bit) in bits.into_iter().enumerate() {
        assert_eq!(FlowLabel::new(tag, 1 << at).unwrap().value(), 0x20004 | bit);
    }
}
