//! Address rules as the kernel looks them up: one hash look-up for each shape, most specific first.
//!
//! A shape is which parts of a packet a rule looks at. Ten thousand rules of one shape cost one look-up;
//! more than [`SHAPES_MAX`] shapes are refused. Pure: the maps are written by [`crate::Marker`].

use std::collections::BTreeMap;

pub use crate::maps::{Origin, SHAPES_MAX};
use crate::maps::{RuleKey, RuleShape, RuleValue, rule_key, rule_value};
use crate::rule::{Action, AddressMatch};

/// Most address rules at once. The kernel's map holds them twice while they change.
pub const RULES_MAX: usize = 100_000;

/// Action, source and expiry of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Tag and method.
    pub action: Action,
    /// Source of the rule.
    pub origin: Origin,
    /// Seconds since boot when it ends; 0 for never.
    pub until_s: u32,
}

/// Address rules by their match.
pub type Rules = BTreeMap<AddressMatch, Entry>;

/// The shapes of `rules`, most specific first.
///
/// # Errors
/// With one line when there are too many rules or shapes.
pub(crate) fn shapes(rules: &Rules) -> Result<Vec<RuleShape>, String> {
    if rules.len() > RULES_MAX {
        return Err(format!("{} address rules: at most {RULES_MAX} are possible", rules.len()));
    }
    let mut shapes: Vec<RuleShape> = rules.keys().map(RuleShape::of).collect();
    shapes.sort_by_key(|shape| (std::cmp::Reverse(shape.bits()), std::cmp::Reverse(*shape)));
    shapes.dedup();
    if shapes.len() > SHAPES_MAX {
        return Err(format!(
            "the address rules have {} different shapes (lengths of prefixes, and whether they name ports and protocol) and at most {SHAPES_MAX} are possible: give prefixes the same lengths",
            shapes.len()
        ));
    }
    Ok(shapes)
}

/// Keys and values in the kernel's map.
pub(crate) fn entries<'a>(
    rules: &'a Rules,
    shapes: &'a [RuleShape],
    generation: u8,
) -> impl Iterator<Item = (RuleKey, RuleValue)> + 'a {
    rules.iter().filter_map(move |(rule, entry)| {
        let shape = RuleShape::of(rule);
        let index = shapes.iter().position(|one| *one == shape)?;
        let key = rule_key(rule, u8::try_from(index).ok()?, generation);
        Some((key, rule_value(entry.action, entry.origin, entry.until_s)))
    })
}

#[cfg(test)]
mod tests {
    use penstock_scitags::Scitag;

    use super::*;
    use crate::rule::{Method, Prefix};

    fn entry() -> Entry {
        let action = Action::new(Scitag::new(3, 14).unwrap(), Method::Label).unwrap();
        Entry { action, origin: Origin::File, until_s: 0 }
    }

    fn to(text: &str, port: Option<u16>) -> AddressMatch {
        let destination: Prefix = text.parse().unwrap();
        AddressMatch { destination, destination_port: port, ..AddressMatch::ALL }
    }

    #[test]
    fn the_most_specific_shape_is_first() {
        let rules = [to("::/0", None), to("2001:db8::/32", None), to("2001:db8::/32", Some(1094))];
        let rules: Rules = rules.into_iter().map(|rule| (rule, entry())).collect();
        let shapes = shapes(&rules).unwrap();
        assert_eq!(shapes.iter().map(RuleShape::bits).collect::<Vec<_>>(), [48, 32, 0]);
        assert_eq!(entries(&rules, &shapes, 1).count(), 3);
    }

    #[test]
    fn one_shape_is_one_lookup() {
        let many: Rules =
            (0..10_000).map(|i| (to(&format!("2001:db8::{i:x}"), None), entry())).collect();
        assert_eq!(shapes(&many).unwrap().len(), 1);
        let lengths = |count: u8| -> Rules {
            (0..count).map(|i| (to(&format!("::/{i}"), None), entry())).collect()
        };
        assert_eq!(shapes(&lengths(32)).unwrap().len(), 32);
        assert!(shapes(&lengths(33)).unwrap_err().contains("33 different shapes"));
    }
}
