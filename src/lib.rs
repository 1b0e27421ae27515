//! Cofferdam runs shell commands that nobody has reviewed.

pub mod approval;
pub mod denial;
pub mod executor;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod mode;
pub mod outcome;
pub mod policy;
pub mod request;
