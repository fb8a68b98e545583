//! Mixers that carry a state from token to token instead of keys and values.
//!
//! A step is computed in the same way alone or among many, and each element of a state depends on no other column of it.
//! So the bits of a sequence do not depend on how it is cut into batches; and since a block of columns processes all
//! tokens of a batch while it is in the first-level cache, many tokens are not much more expensive than the products
//! around them.

mod conv;
mod delta;
mod linear;
mod scan;
mod ssm;

pub use conv::{Filter, convolve};
pub use delta::{COLUMNS, DeltaStep, delta_step};
pub use linear::{LinearStep, linear_step};
pub use scan::{ScanStep, scan_step};
pub use ssm::{SsmStep, ssm_step};
