//! Exit statuses of the program.

/// `doctor`: a confined mode is partial or refused on this host.
pub const GAPS: u8 = 1;
/// The command's timeout fired.
pub const TIMED_OUT: u8 = 124;
/// Cofferdam refused the command, or could not run it: nothing ran.
pub const REFUSED: u8 = 125;
/// A signal ended the command: this plus the signal's number.
pub const SIGNAL_BASE: u8 = 128;
