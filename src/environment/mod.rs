//! The environment of a command.

pub mod managed;
