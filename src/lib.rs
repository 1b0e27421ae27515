//! Cofferdam runs shell commands that nobody has reviewed.

mod sys;

pub mod mode;
pub mod outcome;
pub mod request;
pub mod session;

pub mod environment;

pub mod policy;

pub mod output;

pub mod denial;

pub mod executor;

pub mod approval;

pub mod tools;

#[cfg(feature = "mcp")]
pub mod mcp;

#[cfg(feature = "cli")]
pub mod cli;
