//! Address rules by shape: the kernel does one hash look-up per shape, most specific first.
//!
//! A shape is the set of fields that a rule matches: prefix lengths, ports, protocol. Ten thousand rules of one shape cost
//! one look-up; more than [`SHAPES_MAX`] shapes are refused. Pure: [`crate::Marker`] writes the maps.

use std::collections::BTreeMap;

use crate::error::RuleRefusal;
pub use crate::maps::{Origin, SHAPES_MAX};
use crate::maps::{RuleKey, RuleShape, RuleValue, rule_key, rule_value};
use crate::rule::{AddressMatch, LabelAction};

/// Most active address rules. The kernel's map holds two sets during a change.
pub const RULES_MAX: usize = 100_000;

/// Action, source and expiry of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleEntry {
    /// Tag and the method that carries it.
    pub action: LabelAction,
    /// Source of the rule.
    pub origin: Origin,
    /// Expiry in seconds since boot; 0 for never.
    pub until_s: u32,
}

/// Address rules by their match.
pub type AddressRules = BTreeMap<AddressMatch, RuleEntry>;

/// Returns the shapes of `rules`, most specific first.
///
/// # Errors
/// When there are too many rules or shapes.
pub(crate) fn shapes(rules: &AddressRules) -> Result<Vec<RuleShape>, RuleRefusal> {
    if rules.len() > RULES_MAX {
        return Err(RuleRefusal::RuleCount(rules.len()));
    }
    let mut shapes: Vec<RuleShape> = rules.keys().map(RuleShape::of).collect();
    shapes.sort_by_key(|shape| (std::cmp::Reverse(shape.bits()), std::cmp::Reverse(*shape)));
    shapes.dedup();
    if shapes.len() > SHAPES_MAX {
        return Err(RuleRefusal::Shapes(shapes.len()));
    }
    Ok(shapes)
}

/// Keys and values in the kernel's map.
pub(crate) fn entries<'a>(
    rules: &'a AddressRules,
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

    fn entry() -> RuleEntry {
        let action = LabelAction::new(Scitag::new(3, 14).unwrap(), Method::Label).unwrap();
        RuleEntry { action, origin: Origin::File, until_s: 0 }
    }

    fn to(text: &str, port: Option<u16>) -> AddressMatch {
        let destination: Prefix = text.parse().unwrap();
        AddressMatch { destination, destination_port: port, ..AddressMatch::ALL }
    }

    #[test]
    fn most_specific_shape_is_first() {
        let rules = [to("::/0", None), to("2001:db8::/32", None), to("2001:db8::/32", Some(1094))];
        let rules: AddressRules = rules.into_iter().map(|rule| (rule, entry())).collect();
        let shapes = shapes(&rules).unwrap();
        assert_eq!(shapes.iter().map(RuleShape::bits).collect::<Vec<_>>(), [48, 32, 0]);
        assert_eq!(entries(&rules, &shapes, 1).count(), 3);
    }

    #[test]
    fn one_shape_is_one_lookup() {
        let many: AddressRules =
            (0..10_000).map(|i| (to(&format!("2001:db8::{i:x}"), None), entry())).collect();
        assert_eq!(shapes(&many).unwrap().len(), 1);
        let lengths = |count: u8| -> AddressRules {
            (0..count).map(|i| (to(&format!("::/{i}"), None), entry())).collect()
        };
        assert_eq!(shapes(&lengths(32)).unwrap().len(), 32);
        assert!(shapes(&lengths(33)).unwrap_err().to_string().contains("33 different shapes"));
    }
}
