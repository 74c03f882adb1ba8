//! Use of a controller's decisions for a transfer.

use serde::{Deserialize, Serialize};

/// Use of the tuner for a transfer. Each mode may change more than those before it: of two, the lesser keeps to both.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TuningMode {
    /// Makes no decisions.
    Off,
    /// Keeps what it would try, and changes nothing. What a step gains is then not known.
    Observe,
    /// Begins with the streams that earlier transfers to the host ended with, and keeps them.
    History,
    /// Applies its decisions.
    #[default]
    Auto,
}

impl TuningMode {
    /// All modes, the default first.
    pub const ALL: [Self; 4] = [Self::Auto, Self::History, Self::Observe, Self::Off];

    /// Name in configurations, requests and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Observe => "observe",
            Self::History => "history",
            Self::Auto => "auto",
        }
    }

    /// Mode with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        for mode in TuningMode::ALL {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
            assert_eq!(TuningMode::named(mode.name()), Some(mode));
        }
        assert_eq!(TuningMode::named("on"), None);
    }

    #[test]
    fn lesser_mode_keeps_to_both() {
        let [auto, history, observe, off] = TuningMode::ALL;
        assert!(off < observe && observe < history && history < auto);
    }
}
