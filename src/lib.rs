//! Cofferdam runs shell commands that nobody has reviewed.

#[cfg(feature = "cli")]
pub mod cli;
pub mod denial;
pub mod executor;
pub mod host;
pub mod mode;
pub mod outcome;
pub mod policy;
pub mod request;
