//! Scitags as flow labels and options.

use std::hint::black_box;

use penstock_scitags::{FlowLabel, Registry, Scitag, option};

use crate::{HotPath, count};

pub(crate) const PATHS: &[HotPath] =
    &[("flow-label-codec", flow_labels), ("destination-option-codec", options)];

/// The registered tags without those of fireflies alone, repeated.
fn tags() -> Vec<Scitag> {
    let fitting = Registry::builtin().tags().filter(|tag| tag.fits_on_packets().is_ok());
    let mut tags: Vec<_> = fitting.collect();
    tags.truncate(100);
    tags.repeat(10)
}

fn flow_labels() {
    let tags = tags();
    count(|| {
        for (entropy, tag) in tags.iter().enumerate() {
            let label = FlowLabel::new(*tag, entropy as u8).expect("the tag fits");
            black_box(FlowLabel::from_value(black_box(label.value())).and_then(FlowLabel::scitag));
        }
    });
}

fn options() {
    let (tags, registry) = (tags(), Registry::builtin());
    count(|| {
        for tag in &tags {
            let header = option::encode_header(6, *tag).expect("the tag fits");
            let mut marks = option::marks_of_header(black_box(&header)).expect("a valid header");
            let mark = marks.next().expect("a mark").expect("a valid option");
            black_box(mark.read(registry));
        }
    });
}
