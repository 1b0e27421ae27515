//! The command line.

pub mod classify;
