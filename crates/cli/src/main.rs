//! The quietline command.
fn main() {}
