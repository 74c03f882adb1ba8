//! Text form of parameter values.

use penstock_units::{BitRate, ByteCount, parse_duration};

use super::{
    CongestionControl, PauseThreshold, Recovery, RoundTrip, Routing, WatchdogAction, Window,
    WireModel,
};

/// Duration in picoseconds; formatted in the largest unit that divides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Picoseconds(pub u64);

/// Value with a text form that round-trips.
pub trait ParameterValue: Sized {
    /// Accepted form of the text, as shown in error messages.
    const FORM: &'static str;

    /// Parses the text of a value; none if it is malformed.
    fn parse(text: &str) -> Option<Self>;

    /// Formats the value as text that [`Self::parse`] reads.
    fn show(&self) -> String;
}

impl ParameterValue for Picoseconds {
    const FORM: &'static str = "a time such as 55us or 800ps";

    fn parse(text: &str) -> Option<Self> {
        if let Some(number) = text.trim().strip_suffix("ps") {
            return number.trim().parse().ok().map(Self);
        }
        let nanoseconds = u64::try_from(parse_duration(text).ok()?.as_nanos()).ok()?;
        nanoseconds.checked_mul(crate::time::PS_PER_NANOSECOND).map(Self)
    }

    fn show(&self) -> String {
        if self.0 == 0 {
            return "0s".to_owned();
        }
        let units =
            [("s", 1_000_000_000_000), ("ms", 1_000_000_000), ("us", 1_000_000), ("ns", 1_000)];
        let unit = units.iter().find(|(_, ps)| self.0.is_multiple_of(*ps));
        let (name, ps) = unit.copied().unwrap_or(("ps", 1));
        format!("{}{name}", self.0 / ps)
    }
}

impl ParameterValue for ByteCount {
    const FORM: &'static str = "a number of bytes such as 600k or 32MiB";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl ParameterValue for BitRate {
    const FORM: &'static str = "a rate such as 40M or 100G";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        let units = [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];
        let unit = units.iter().find(|(_, bits)| self.0 > 0 && self.0.is_multiple_of(*bits));
        let (name, bits) = unit.copied().unwrap_or(("", 1));
        format!("{}{name}", self.0 / bits)
    }
}

macro_rules! numbers {
    ($($kind:ty: $form:literal;)+) => {$(
        impl ParameterValue for $kind {
            const FORM: &'static str = $form;

            fn parse(text: &str) -> Option<Self> {
                text.trim().parse().ok()
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

numbers! {
    u8: "a whole number up to 255";
    u32: "a whole number up to 4294967295";
    u64: "a whole number up to 18446744073709551615";
    bool: "true or false";
}

impl ParameterValue for f64 {
    const FORM: &'static str = "a number";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().filter(|number: &Self| number.is_finite())
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl<T: ParameterValue> ParameterValue for Option<T> {
    const FORM: &'static str = T::FORM;

    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(None) } else { T::parse(text).map(Some) }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| "auto".to_owned(), ParameterValue::show)
    }
}

impl ParameterValue for [u32; 8] {
    const FORM: &'static str = "eight whole numbers up to 1000 such as 1:1:1:4:0:0:0:0";

    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u32> =
            text.split(':').map(|one| one.trim().parse().ok()).collect::<Option<_>>()?;
        let bounded = numbers.iter().all(|number| *number <= 1000);
        numbers.try_into().ok().filter(|_| bounded)
    }

    fn show(&self) -> String {
        self.map(|number| number.to_string()).join(":")
    }
}

macro_rules! choices {
    ($($kind:ident: $form:literal $($text:literal = $variant:ident),+;)+) => {$(
        impl ParameterValue for $kind {
            const FORM: &'static str = $form;

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn show(&self) -> String {
                match self {
                    $(Self::$variant => $text,)+
                }.to_owned()
            }
        }
    )+};
}

choices! {
    WireModel: "ethernet or ns3-hpcc" "ethernet" = Ethernet, "ns3-hpcc" = Ns3Hpcc;
    PauseThreshold: "dynamic or static" "dynamic" = Dynamic, "static" = Static;
    CongestionControl: "none, dcqcn, dcqcn-paper, hpcc, dctcp, timely, swift, or for TCP cubic or bbr"
        "none" = None, "dcqcn" = Dcqcn, "dcqcn-paper" = DcqcnPaper, "hpcc" = Hpcc,
        "dctcp" = Dctcp, "timely" = Timely, "swift" = Swift, "cubic" = Cubic, "bbr" = Bbr;
    Recovery: "go-back-n or selective" "go-back-n" = GoBackN, "selective" = Selective;
    Routing: "ecmp, ecmp-polarised, spray, flowlet or adaptive"
        "ecmp" = Ecmp, "ecmp-polarised" = EcmpPolarised, "spray" = Spray, "flowlet" = Flowlet,
        "adaptive" = Adaptive;
    Window: "auto, none, fixed or scaled"
        "auto" = Auto, "none" = None, "fixed" = Fixed, "scaled" = Scaled;
    RoundTrip: "longest or own" "longest" = Longest, "own" = Own;
    WatchdogAction: "forward or drop" "forward" = Forward, "drop" = Drop;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_round_trip() {
        for (text, ps) in [("55us", 55_000_000), ("800ps", 800), ("3.33us", 3_330_000), ("0s", 0)] {
            let value = Picoseconds::parse(text).unwrap();
            assert_eq!(value.0, ps, "{text}");
            assert_eq!(Picoseconds::parse(&value.show()), Some(value));
        }
        assert_eq!(BitRate(40_000_000).show(), "40M");
        assert_eq!(BitRate(0).show(), "0");
        assert_eq!(<[u32; 8]>::parse("1:2:3"), None);
        assert_eq!(f64::parse("nan"), None);
        assert_eq!(Option::<u8>::parse("auto"), Some(None));
    }
}
