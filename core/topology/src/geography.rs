//! Positions of sites and the propagation delay of fibre between them.

use std::time::Duration;

/// Speed of light in fibre: c over the group index 1.468 of G.652 fibre at 1550 nm.
pub const FIBRE_METRES_PER_SECOND: f64 = 299_792_458.0 / 1.468;

/// Mean radius of the Earth (IUGG).
const EARTH_METRES: f64 = 6_371_008.8;

/// A position on the Earth in degrees; north and east are positive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    /// Degrees north, -90 to 90.
    pub latitude: f64,
    /// Degrees east, -180 to 180.
    pub longitude: f64,
}

impl Position {
    /// Distance along the great circle in metres (haversine formula).
    #[must_use]
    pub fn metres_to(self, other: Self) -> f64 {
        let (a, b) = (self.latitude.to_radians(), other.latitude.to_radians());
        let half = |from: f64, to: f64| ((to - from) / 2.0).sin().powi(2);
        let east = half(self.longitude.to_radians(), other.longitude.to_radians());
        let square = half(a, b) + a.cos() * b.cos() * east;
        2.0 * EARTH_METRES * square.sqrt().min(1.0).asin()
    }
}

/// One-way propagation delay of a length of fibre.
pub(crate) fn fibre_delay(metres: f64) -> Duration {
    Duration::from_secs_f64(metres / FIBRE_METRES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn great_circle_matches_published_distance() {
        // Geneva to Chicago O'Hare, from the formula of Vincenty: 7,063 km; a sphere is within 0.5 %.
        let geneva = Position { latitude: 46.2381, longitude: 6.1089 };
        let chicago = Position { latitude: 41.9786, longitude: -87.9048 };
        let kilometres = geneva.metres_to(chicago) / 1000.0;
        assert!((kilometres - 7_063.0).abs() < 0.005 * 7_063.0, "{kilometres}");
        let pole = Position { latitude: 90.0, longitude: 0.0 };
        let other = Position { latitude: -90.0, longitude: 77.0 };
        assert!((pole.metres_to(other) / EARTH_METRES - std::f64::consts::PI).abs() < 1e-9);
    }

    #[test]
    fn fibre_delay_is_five_us_km() {
        let delay = fibre_delay(1000.0).as_nanos();
        assert!((4_890..4_905).contains(&delay), "{delay}");
    }
}
