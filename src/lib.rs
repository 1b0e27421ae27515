//! Cofferdam runs shell commands that nobody has reviewed.

pub mod mode;
pub mod outcome;
pub mod request;
pub mod session;

pub mod environment;

pub mod policy;

pub mod denial;

pub mod executor;

pub mod approval;

pub mod tools;

pub mod audit;

#[cfg(feature = "cli")]
pub mod cli;
