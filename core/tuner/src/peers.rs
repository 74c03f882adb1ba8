//! Published controllers, for comparison: each moves the streams alone.

mod aimd;
mod falcon;
mod fixed;
mod fts;

pub use aimd::AimdController;
pub use falcon::FalconLikeController;
pub use fixed::FixedController;
pub use fts::FtsLikeController;
