//! `cofferdam classify`: scores the text classifier on a corpus of labelled runs.
//!
//! Rule: what it prints is what the classifier says of the records; nothing is run.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::denial::corpus;

/// Score the denial classifier on recorded runs with true labels.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The corpus: a JSON record a line, with the command, its output and its label.
    #[arg(long, value_name = "FILE")]
    pub corpus: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
    /// List each run that was judged wrongly.
    #[arg(long)]
    pub wrong: bool,
    /// Write what was said of each record, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub predictions: Option<PathBuf>,
}

/// Scores the corpus and prints the report.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let open = File::open(&args.corpus)
        .with_context(|| format!("can't open {}", args.corpus.display()))?;
    let mut predictions = args
        .predictions
        .as_ref()
        .map(|path| File::create(path).with_context(|| format!("can't write {}", path.display())))
        .transpose()?
        .map(BufWriter::new);
    let mut written = Ok(());
    let report = corpus::score(BufReader::new(open), |prediction| {
        if let Some(file) = &mut predictions
            && written.is_ok()
        {
            written = serde_json::to_writer(&mut *file, prediction)
                .map_err(anyhow::Error::from)
                .and_then(|()| Ok(file.write_all(b"\n")?));
        }
    })?;
    written.context("can't write the predictions")?;
    if let Some(mut file) = predictions {
        file.flush().context("can't write the predictions")?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        for mistake in report.mistakes.iter().filter(|_| args.wrong) {
            let cell = if mistake.denied { "fn" } else { "fp" };
            writeln!(
                out,
                "{cell} {:24} exit {:<4} {}",
                mistake.id,
                mistake.exit,
                mistake.command.escape_debug()
            )?;
        }
        write!(out, "{}", report.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
