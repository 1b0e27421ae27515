//! `cofferdam approvals`, `approve` and `reject`: a person answers from another terminal.
//!
//! Rule: what is shown is what would run; a question is answered by its id, one at a time.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::approval::queue::{self, Verdict, Waiting};
use crate::approval::visible_line;

/// Arguments of `cofferdam approvals`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print a JSON array for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    folder: Folder,
}

/// Arguments of `cofferdam approve` and `cofferdam reject`.
#[derive(Debug, clap::Args)]
pub struct AnswerArgs {
    /// The question's id, as `cofferdam approvals` prints it
    id: String,
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, clap::Args)]
struct Folder {
    /// The folder of the approval sockets, if it isn't the usual one
    #[arg(long, value_name = "DIR", hide = true)]
    run_dir: Option<PathBuf>,
}

impl Folder {
    fn find(self) -> Result<PathBuf, queue::QueueError> {
        self.run_dir.map_or_else(queue::run_dir, Ok)
    }
}

/// Prints what waits.
///
/// # Errors
/// The folder of the sockets can't be read, or isn't private.
pub async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let waiting = queue::list(&args.folder.find()?).await?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &waiting)?;
        writeln!(out)?;
    } else {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        out.write_all(table(&waiting, now).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers one question.
///
/// # Errors
/// Nothing waits under this id, or its server refuses to hear this process.
pub async fn answer(args: AnswerArgs, verdict: Verdict) -> anyhow::Result<ExitCode> {
    queue::answer(&args.folder.find()?, &args.id, verdict).await?;
    let done = match verdict {
        Verdict::Approve => "approved, once",
        Verdict::Reject => "rejected",
    };
    writeln!(io::stdout(), "{done}")?;
    Ok(ExitCode::SUCCESS)
}

fn table(waiting: &[Waiting], now: u64) -> String {
    if waiting.is_empty() {
        return "nothing waits\n".to_owned();
    }
    waiting
        .iter()
        .map(|one| {
            format!(
                "{id}  {seconds} s ago, session {session}, process {server}\n{text}\n\n    cofferdam approve {id}\n    cofferdam reject {id}\n\n",
                id = visible_line(&one.id),
                seconds = now.saturating_sub(one.asked_at),
                session = visible_line(&one.session),
                server = one.server,
                // The asking process made it visible; another one may have lied.
                text = crate::approval::visible(&one.text),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;

    #[test]
    fn the_table_shows_each_question_whole_with_the_commands_that_answer_it() {
        assert_eq!(table(&[], 0), "nothing waits\n");
        let one = Waiting {
            id: "ab12".into(),
            server: 42,
            session: "s1".into(),
            command: "make".into(),
            workdir: "/w".into(),
            from: Mode::ReadOnly,
            to: Mode::WorkspaceWrite,
            justification: "it writes".into(),
            adds: "writing".into(),
            text: "Run this command once under workspace-write?\n\n    make\u{1b}[2K".into(),
            asked_at: 100,
        };
        assert_eq!(
            table(&[one], 103),
            "ab12  3 s ago, session s1, process 42\n\
             Run this command once under workspace-write?\n\n    make\\u{1b}[2K\n\n    \
             cofferdam approve ab12\n    cofferdam reject ab12\n\n"
        );
    }
}
