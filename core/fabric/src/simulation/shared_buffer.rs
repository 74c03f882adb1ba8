//! Shared packet buffer of a switch: a reserve per ingress port and lossless priority, a shared pool, and headroom for
//! packets that arrive after a pause (the accounting of the HPCC simulator, or static thresholds).

use crate::parameters::{Parameters, PauseThreshold};

/// Bits of the integers that an `f64` holds exactly: for these a shift is the product with a power of two, rounded down.
const EXACT_BITS: u32 = 53;

/// Buffer of one switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedBuffer {
    /// Size of the buffer in bytes.
    pub(super) buffer: u64,
    /// Bytes shared by all ports: the buffer without reserves and headroom.
    pub(super) shared: u64,
    pub(super) shared_used: u64,
    pub(super) used: u64,
    pub(super) used_max: u64,
}

/// Buffer use of one ingress port at one lossless priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(align(32))]
pub(super) struct Ingress {
    /// Bytes held in reserve and shared pool.
    pub(super) bytes: u64,
    pub(super) headroom_used: u32,
    pub(super) headroom: u32,
    /// True while the upstream port is paused (Xoff sent, no Xon since).
    pub(super) is_pausing: bool,
    /// Time at which the pause has to be repeated.
    pub(super) refresh_ps: u64,
}

/// Admission and PFC thresholds, common to all switches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Thresholds {
    kind: PauseThreshold,
    alpha: f64,
    /// Binary logarithm of 1 / `alpha`, if that is a whole number.
    alpha_shift: Option<u32>,
    xon_offset: u64,
    xoff: u64,
    xon: u64,
    reserve: u64,
    drop_alpha: f64,
}

impl Thresholds {
    pub(super) fn new(parameters: &Parameters) -> Self {
        let is_static = parameters.pfc_threshold == PauseThreshold::Static;
        Self {
            kind: parameters.pfc_threshold,
            alpha: parameters.pfc_alpha,
            alpha_shift: (0..EXACT_BITS)
                .find(|shift| parameters.pfc_alpha * (1_u64 << shift) as f64 == 1.0),
            xon_offset: parameters.pfc_xon_offset.0,
            xoff: parameters.pfc_xoff.0,
            xon: parameters.pfc_xon.0,
            // A static threshold counts all bytes, so there is no reserve.
            reserve: if is_static { 0 } else { parameters.reserve.0 },
            drop_alpha: parameters.drop_alpha,
        }
    }

    pub(super) const fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Returns the Xoff threshold: shared bytes that an ingress port and priority may use before it is paused.
    fn threshold(&self, memory: &SharedBuffer) -> u64 {
        match self.kind {
            PauseThreshold::Static => self.xoff,
            PauseThreshold::Dynamic => {
                let free = memory.shared.saturating_sub(memory.shared_used);
                match self.alpha_shift {
                    Some(shift) if free >> EXACT_BITS == 0 => free >> shift,
                    _ => (self.alpha * free as f64) as u64,
                }
            }
        }
    }

    /// Admits a frame of a lossless priority; returns false if neither shared pool nor headroom can hold it.
    pub(super) fn admit(
        &self,
        memory: &mut SharedBuffer,
        ingress: &mut Ingress,
        frame: u32,
    ) -> bool {
        let size = u64::from(frame);
        if memory.used + size > memory.buffer {
            return false;
        }
        let after = ingress.bytes + size;
        if after <= self.reserve {
            ingress.bytes = after;
        } else {
            let more = size.min(after - self.reserve);
            let over = after - self.reserve > self.threshold(memory)
                || (self.kind == PauseThreshold::Dynamic
                    && memory.shared_used + more > memory.shared);
            if over {
                if ingress.headroom_used + frame > ingress.headroom {
                    return false;
                }
                ingress.headroom_used += frame;
            } else {
                ingress.bytes = after;
                memory.shared_used += more;
            }
        }
        memory.take(size);
        true
    }

    /// Admits a frame of a lossless priority that leaves at once, if its admission and release change nothing but the
    /// highest use of the buffer; returns false if they may.
    #[inline]
    pub(super) fn pass(&self, memory: &mut SharedBuffer, ingress: &Ingress, frame: u32) -> bool {
        let size = u64::from(frame);
        if ingress.bytes + size > self.reserve
            || ingress.headroom_used > 0
            || ingress.is_pausing
            || memory.used + size > memory.buffer
            || self.threshold(memory) == 0
        {
            return false;
        }
        memory.used_max = memory.used_max.max(memory.used + size);
        true
    }

    /// Releases the buffer of a lossless frame, headroom first.
    pub(super) fn free(&self, memory: &mut SharedBuffer, ingress: &mut Ingress, frame: u32) {
        let from_headroom = frame.min(ingress.headroom_used);
        ingress.headroom_used -= from_headroom;
        let rest = u64::from(frame - from_headroom);
        memory.shared_used -= rest.min(ingress.bytes.saturating_sub(self.reserve));
        ingress.bytes -= rest;
        memory.used -= u64::from(frame);
    }

    /// True if the upstream sender has to pause.
    pub(super) fn must_pause(&self, memory: &SharedBuffer, ingress: &Ingress) -> bool {
        !ingress.is_pausing
            && (ingress.headroom_used > 0
                || ingress.bytes.saturating_sub(self.reserve) >= self.threshold(memory))
    }

    /// True if the upstream sender may resume.
    pub(super) fn may_resume(&self, memory: &SharedBuffer, ingress: &Ingress) -> bool {
        if !ingress.is_pausing || ingress.headroom_used > 0 {
            return false;
        }
        match self.kind {
            PauseThreshold::Static => ingress.bytes <= self.xon,
            PauseThreshold::Dynamic => {
                let shared = ingress.bytes.saturating_sub(self.reserve);
                shared == 0 || shared + self.xon_offset <= self.threshold(memory)
            }
        }
    }

    /// Admits a frame of a lossy priority; returns false if its queue or the shared pool is full.
    pub(super) fn admit_lossy(
        &self,
        memory: &mut SharedBuffer,
        queue_bytes: u64,
        queue_limit: Option<u64>,
        frame: u32,
    ) -> bool {
        let size = u64::from(frame);
        let free = memory.shared.saturating_sub(memory.shared_used);
        let limit = queue_limit.unwrap_or((self.drop_alpha * free as f64) as u64);
        if size > free || queue_bytes + size > limit || memory.used + size > memory.buffer {
            return false;
        }
        memory.shared_used += size;
        memory.take(size);
        true
    }

    /// Releases the buffer of a lossy frame.
    pub(super) fn free_lossy(memory: &mut SharedBuffer, frame: u32) {
        memory.shared_used -= u64::from(frame);
        memory.used -= u64::from(frame);
    }
}

impl SharedBuffer {
    fn take(&mut self, size: u64) {
        self.used += size;
        self.used_max = self.used_max.max(self.used);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory() -> (SharedBuffer, [Ingress; 3]) {
        let headroom = 20_000_u32;
        let ingress = Ingress { headroom, ..Ingress::default() };
        let shared = 200_000;
        let buffer = shared + 3 * (4096 + u64::from(headroom));
        (SharedBuffer { buffer, shared, shared_used: 0, used: 0, used_max: 0 }, [ingress; 3])
    }

    /// The shift of a power of two gives what the multiplication does.
    #[test]
    fn shifted_thresholds_equal_products() {
        let thresholds = Thresholds::new(&Parameters::default());
        assert_eq!(thresholds.alpha_shift, Some(3));
        let product = Thresholds { alpha_shift: None, ..thresholds };
        for shared in [0, 7, 8, 33_554_431, (1 << 53) - 1, 1 << 53, u64::MAX] {
            let memory = SharedBuffer { shared, ..memory().0 };
            assert_eq!(thresholds.threshold(&memory), product.threshold(&memory), "{shared}");
        }
        let other = Parameters { pfc_alpha: 0.3, ..Parameters::default() };
        assert_eq!(Thresholds::new(&other).alpha_shift, None);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// A frame that passes leaves all counters as its admission and release do.
        #[test]
        fn passing_frames_equal_released_ones(
            held in 0_u64..6000,
            headroom_used in 0_u32..2,
            is_pausing: bool,
            free in 0_u64..40,
            frame in 64_u32..9000,
        ) {
            let thresholds = Thresholds::new(&Parameters::default());
            let (mut memory, [mut ingress, ..]) = memory();
            (ingress.bytes, ingress.headroom_used, ingress.is_pausing) =
                (held, headroom_used, is_pausing);
            memory.shared_used = memory.shared - free;
            memory.used = memory.shared_used + held;
            let (mut passed, mut released, mut account) = (memory, memory, ingress);
            if thresholds.pass(&mut passed, &ingress, frame) {
                prop_assert!(thresholds.admit(&mut released, &mut account, frame));
                prop_assert!(!thresholds.must_pause(&released, &account));
                thresholds.free(&mut released, &mut account, frame);
                prop_assert!(!thresholds.may_resume(&released, &account));
                prop_assert_eq!((passed, ingress), (released, account));
            }
        }

        /// For any sequence of arrivals and departures the counters equal the held frames and respect their bounds.
        #[test]
        fn buffer_counters_match_held_frames(
            steps in prop::collection::vec((0_usize..3, 64_u32..9000, any::<bool>()), 1..300),
            is_static: bool,
        ) {
            let mut parameters = Parameters::default();
            if is_static {
                parameters.pfc_threshold = PauseThreshold::Static;
                parameters.pfc_xoff = penstock_units::ByteCount(50_000);
            }
            let thresholds = Thresholds::new(&parameters);
            let (mut memory, mut ports) = memory();
            let mut held: Vec<Vec<u32>> = vec![Vec::new(); 3];
            for (port, size, comes) in steps {
                if comes {
                    if thresholds.admit(&mut memory, &mut ports[port], size) {
                        held[port].push(size);
                    }
                } else if !held[port].is_empty() {
                    let size = held[port].remove(0);
                    thresholds.free(&mut memory, &mut ports[port], size);
                }
                for (ingress, held) in ports.iter().zip(&held) {
                    let sum: u64 = held.iter().map(|size| u64::from(*size)).sum();
                    prop_assert_eq!(ingress.bytes + u64::from(ingress.headroom_used), sum);
                    prop_assert!(ingress.headroom_used <= ingress.headroom);
                }
                prop_assert_eq!(memory.used, held.iter().flatten().map(|size| u64::from(*size)).sum::<u64>());
                prop_assert!(memory.used <= memory.buffer);
                if !is_static {
                    prop_assert!(memory.shared_used <= memory.shared);
                }
            }
            for (port, held) in held.into_iter().enumerate() {
                for size in held {
                    thresholds.free(&mut memory, &mut ports[port], size);
                }
            }
            prop_assert_eq!((memory.used, memory.shared_used), (0, 0));
        }
    }

    #[test]
    fn static_threshold_pauses_and_resumes() {
        let parameters = Parameters {
            pfc_threshold: PauseThreshold::Static,
            pfc_xoff: penstock_units::ByteCount(5000),
            pfc_xon: penstock_units::ByteCount(3000),
            ..Parameters::default()
        };
        let thresholds = Thresholds::new(&parameters);
        let (mut memory, [mut ingress, ..]) = memory();
        for _ in 0..4 {
            assert!(thresholds.admit(&mut memory, &mut ingress, 1000));
            assert!(!thresholds.must_pause(&memory, &ingress));
        }
        assert!(thresholds.admit(&mut memory, &mut ingress, 1000));
        assert!(thresholds.must_pause(&memory, &ingress));
        ingress.is_pausing = true;
        assert!(thresholds.admit(&mut memory, &mut ingress, 1000));
        assert_eq!(ingress.headroom_used, 1000);
        for left in [5000_u64, 4000, 3000] {
            assert!(!thresholds.may_resume(&memory, &ingress));
            thresholds.free(&mut memory, &mut ingress, 1000);
            assert_eq!(ingress.bytes, left);
        }
        assert!(thresholds.may_resume(&memory, &ingress));
    }
}
