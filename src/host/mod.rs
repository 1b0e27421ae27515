//! Facts about the host, read once.

pub mod disk;
