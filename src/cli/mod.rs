//! The command line.

pub mod audit;
pub mod session;

use std::io::{self, Write};

/// Writes to standard output; a reader that went away (`| head`) is no error.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
