//! Maps errors of the mover to faults and retries of an order.

use penstock_control::orders::{FaultKind, OrderFault};
use penstock_mover::CopyError;
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::open::{Refusal, RefusalKind};

/// Longest text of a fault.
const TEXT_CHARS_MAX: usize = 400;

/// Builds a fault with a bounded text without control characters.
pub(crate) fn fault(kind: FaultKind, text: impl AsRef<str>) -> OrderFault {
    let text = text.as_ref().chars().take(TEXT_CHARS_MAX);
    OrderFault { kind, text: text.map(|c| if c.is_control() { ' ' } else { c }).collect() }
}

/// Builds a fault that a retry would not cure.
pub(crate) fn permanent(text: impl AsRef<str>) -> OrderFault {
    fault(FaultKind::Permanent, text)
}

/// Fault of a file that failed.
pub(crate) fn of_file(failure: &Failure) -> OrderFault {
    let kind = match failure.kind {
        FailureKind::Source | FailureKind::Refused | FailureKind::Unexpected => {
            FaultKind::Permanent
        }
        FailureKind::Changed | FailureKind::Destination => FaultKind::Transient,
        FailureKind::Integrity => FaultKind::Integrity,
    };
    fault(kind, &failure.text)
}

/// Reaction to a failed transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureAction {
    /// Retry here, with the reason.
    Wait(String),
    /// End the order.
    End(OrderFault),
}

/// Reaction to a refusal by this agent's own access control or limits.
pub(crate) fn of_own_refusal(refusal: &Refusal) -> FailureAction {
    match refusal.kind {
        RefusalKind::Busy => FailureAction::Wait(refusal.text.clone()),
        RefusalKind::Agent => FailureAction::End(fault(FaultKind::Transient, &refusal.text)),
        _ => FailureAction::End(permanent(&refusal.text)),
    }
}

/// Reaction to a failed copy.
pub(crate) fn of_copy(error: &CopyError) -> FailureAction {
    let text = error.to_string();
    match error {
        CopyError::Refused(_, refusal) => match refusal.kind {
            // The other end may not have its part of the order yet.
            RefusalKind::Busy | RefusalKind::Identity | RefusalKind::UnknownSession => {
                FailureAction::Wait(text)
            }
            RefusalKind::Agent => FailureAction::End(fault(FaultKind::Transient, text)),
            RefusalKind::Permission | RefusalKind::NotFound | RefusalKind::Request => {
                FailureAction::End(permanent(text))
            }
        },
        CopyError::Unreachable(..) | CopyError::Forgotten(_) => FailureAction::Wait(text),
        CopyError::Cancelled(_) => FailureAction::End(fault(FaultKind::Cancelled, text)),
        CopyError::Certificate(_)
        | CopyError::RefusedHere(_)
        | CopyError::Session(_)
        | CopyError::Source { .. }
        | CopyError::SessionLost(_)
        | CopyError::Protocol(_)
        | CopyError::UnexpectedAnswer(_)
        | CopyError::Request(_)
        | CopyError::Rdma(_)
        | CopyError::DscpUnknown(_)
        | CopyError::Local(_)
        | CopyError::EarlierWrites
        | CopyError::Panicked
        | CopyError::Caller(_) => FailureAction::End(fault(FaultKind::Transient, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_failures_retry() {
        let refused = |kind| CopyError::Refused("dtn2".into(), Refusal::new(kind, "no\nway"));
        for kind in [RefusalKind::Busy, RefusalKind::Identity] {
            assert!(matches!(of_copy(&refused(kind)), FailureAction::Wait(_)), "{kind:?}");
        }
        for (error, kind) in [
            (refused(RefusalKind::Permission), FaultKind::Permanent),
            (refused(RefusalKind::Agent), FaultKind::Transient),
            (CopyError::Cancelled("by the operator".into()), FaultKind::Cancelled),
            (CopyError::Session("gone".into()), FaultKind::Transient),
        ] {
            let FailureAction::End(fault) = of_copy(&error) else { panic!("{error}") };
            assert_eq!(fault.kind, kind, "{error}");
            assert!(!fault.text.contains('\n'), "{}", fault.text);
        }
        let file = |kind| of_file(&Failure::new(kind, "x")).kind;
        assert_eq!(file(FailureKind::Integrity), FaultKind::Integrity);
        assert_eq!(file(FailureKind::Changed), FaultKind::Transient);
        assert_eq!(file(FailureKind::Refused), FaultKind::Permanent);
        assert_eq!(file(FailureKind::Unexpected), FaultKind::Permanent);
    }
}
