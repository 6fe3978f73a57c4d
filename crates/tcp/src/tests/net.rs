//! A tiny network for two control blocks.
