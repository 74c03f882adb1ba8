//! Numbers of states and kinds in the database.

/// Implements `number` and `from_number` for an enum without fields that lists its values in `ALL`.
macro_rules! stored_numbers {
    ($type:ident) => {
        impl $type {
            /// Returns the number in the database.
            #[must_use]
            pub const fn number(self) -> i64 {
                self as i64
            }

            /// Returns the value with this number in the database; none if there is no such value.
            #[must_use]
            pub fn from_number(number: i64) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.number() == number)
            }
        }
    };
}

pub(crate) use stored_numbers;

#[cfg(test)]
mod tests {
    use crate::batch::{BatchKind, BatchState};
    use crate::circuit::CircuitState;
    use crate::file::RequestFileState;
    use crate::orders::OrderPhase;
    use crate::request::RequestState;
    use crate::run::RunState;

    /// The numbers stand in databases of released versions.
    #[test]
    fn stored_numbers_never_change() {
        assert_eq!(RequestState::ALL.map(RequestState::number), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(RequestFileState::ALL.map(RequestFileState::number), [0, 1, 2, 3, 4]);
        assert_eq!(BatchKind::ALL.map(BatchKind::number), [0, 1]);
        assert_eq!(BatchState::ALL.map(BatchState::number), [0, 1, 2, 3]);
        assert_eq!(RunState::ALL.map(RunState::number), [0, 1, 2]);
        assert_eq!(CircuitState::ALL.map(CircuitState::number), [0, 1, 2, 3]);
        assert_eq!(OrderPhase::ALL.map(OrderPhase::number), [0, 1, 2]);
        assert_eq!(RequestState::from_number(5), Some(RequestState::Partial));
        assert_eq!((RequestFileState::from_number(5), RunState::from_number(-1)), (None, None));
    }
}
