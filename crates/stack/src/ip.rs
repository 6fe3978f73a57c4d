//! The Internet layer, one algorithm for both versions: every step takes `const V4: bool`.

pub mod header;
pub mod option;
