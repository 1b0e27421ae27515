//! Cofferdam runs shell commands that nobody has reviewed.

pub mod denial;
pub mod environment;
pub mod executor;
pub mod mode;
pub mod outcome;
pub mod output;
pub mod policy;
pub mod request;
mod sys;
