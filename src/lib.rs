//! Cofferdam runs shell commands that nobody has reviewed.

// In the order in which a call passes through them; a module imports only from those above it.

pub mod mode;

pub mod outcome;

mod sys;

pub mod host;

pub mod policy;

pub mod request;

pub mod environment;

pub mod denial;

pub mod plan;

mod cell;

pub mod output;

pub mod executor;


pub use cell::cell_main;
