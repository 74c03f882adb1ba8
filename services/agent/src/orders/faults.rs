//! What can be done about an error of the mover, in the words of an order's report.

use penstock_mover::connector::CopyError;
use penstock_operations::orders::{FaultKind, OrderFault};
use penstock_protocol::control::{Failure, FailureKind};
use penstock_protocol::open::{Refusal, RefusalKind};

/// Longest line of a fault.
const TEXT_CHARS_MAX: usize = 400;

/// A fault with its line.
pub(super) fn fault(kind: FaultKind, text: impl AsRef<str>) -> OrderFault {
    let text = text.as_ref().chars().take(TEXT_CHARS_MAX);
    OrderFault { kind, text: text.map(|c| if c.is_control() { ' ' } else { c }).collect() }
}

/// It will be the same the next time.
pub(super) fn lasting(text: impl AsRef<str>) -> OrderFault {
    fault(FaultKind::Permanent, text)
}

/// Why a file is not in place.
pub(super) fn of_file(failure: &Failure) -> OrderFault {
    let kind = match failure.kind {
        FailureKind::Source | FailureKind::Refused => FaultKind::Permanent,
        FailureKind::Changed | FailureKind::Destination => FaultKind::Transient,
        FailureKind::Integrity => FaultKind::Integrity,
    };
    fault(kind, &failure.text)
}

/// What follows of a transfer that did not get to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is tried again here.
    Wait(String),
    /// The order ends.
    End(OrderFault),
}

/// What follows when this agent's own gate and limits refuse it.
pub(super) fn of_own_refusal(refusal: &Refusal) -> Verdict {
    match refusal.kind {
        RefusalKind::Busy => Verdict::Wait(refusal.text.clone()),
        RefusalKind::Agent => Verdict::End(fault(FaultKind::Transient, &refusal.text)),
        _ => Verdict::End(lasting(&refusal.text)),
    }
}

/// What follows when a transfer failed.
pub(super) fn of_copy(error: &CopyError) -> Verdict {
    let text = error.to_string();
    match error {
        CopyError::Refused(_, refusal) => match refusal.kind {
            // The other end may not have heard of its part of the order yet.
            RefusalKind::Busy | RefusalKind::Identity | RefusalKind::UnknownSession => {
                Verdict::Wait(text)
            }
            RefusalKind::Agent => Verdict::End(fault(FaultKind::Transient, text)),
            RefusalKind::Permission | RefusalKind::NotFound | RefusalKind::Request => {
                Verdict::End(lasting(text))
            }
        },
        CopyError::Unreachable(..) | CopyError::Forgotten(_) => Verdict::Wait(text),
        CopyError::Cancelled(_) => Verdict::End(fault(FaultKind::Cancelled, text)),
        CopyError::Certificate(_) | CopyError::Failed(_) => {
            Verdict::End(fault(FaultKind::Transient, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_waited_for_or_tried_again_elsewhere() {
        let refused = |kind| CopyError::Refused("dtn2".into(), Refusal::new(kind, "no\nway"));
        for kind in [RefusalKind::Busy, RefusalKind::Identity] {
            assert!(matches!(of_copy(&refused(kind)), Verdict::Wait(_)), "{kind:?}");
        }
        for (error, kind) in [
            (refused(RefusalKind::Permission), FaultKind::Permanent),
            (refused(RefusalKind::Agent), FaultKind::Transient),
            (CopyError::Cancelled("by the operator".into()), FaultKind::Cancelled),
            (CopyError::Failed("gone".into()), FaultKind::Transient),
        ] {
            let Verdict::End(fault) = of_copy(&error) else { panic!("{error}") };
            assert_eq!(fault.kind, kind, "{error}");
            assert!(!fault.text.contains('\n'), "{}", fault.text);
        }
        let file = |kind| of_file(&Failure::new(kind, "x")).kind;
        assert_eq!(file(FailureKind::Integrity), FaultKind::Integrity);
        assert_eq!(file(FailureKind::Changed), FaultKind::Transient);
        assert_eq!(file(FailureKind::Refused), FaultKind::Permanent);
    }
}
