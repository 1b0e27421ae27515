//! Cofferdam runs shell commands that nobody has reviewed.

mod cell;
pub mod denial;
pub mod executor;
pub mod host;
pub mod mode;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod request;
mod sys;

pub mod try_cell;

pub use cell::cell_main;
