//! [`Connection`]: one socket to one broker.

/// Largest frame that is read, in bytes.
pub const MAX_FRAME: usize = 256 << 20;

/// One socket to one broker, with requests in flight.
#[derive(Clone, Debug)]
pub struct Connection {}
