//! Cofferdam runs shell commands that nobody has reviewed.

// In the order of a call; a module imports only from those above it.

pub mod mode;

pub mod outcome;

mod sys;

pub mod host;

pub mod policy;

pub mod request;

pub mod session;

pub mod environment;

pub mod plan;

pub mod output;

pub mod denial;

mod cell;

pub mod executor;

pub mod approval;

pub mod tools;

#[cfg(feature = "cli")]
pub mod audit;

#[cfg(feature = "mcp")]
pub mod mcp;

#[cfg(feature = "cli")]
pub mod cli;

pub use cell::{Ahead, cell_main, fork_ahead};
