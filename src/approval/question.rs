//! What a person is asked.
//!
//! Rule: it names the exact command, and nothing in the command or the justification can hide a part
//! of it or imitate another: what doesn't show is spelled out.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::mode::Mode;
use crate::request::ExecRequest;

/// Whether this command may run once under a wider mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// 128 random bits in hexadecimal.
    pub id: String,
    /// The session's id.
    pub session: String,
    /// The exact command.
    pub command: String,
    /// Where it starts.
    pub workdir: PathBuf,
    /// The session's workspace.
    pub workspace: PathBuf,
    /// The variables that the harness adds to its environment.
    pub environment: Vec<(String, String)>,
    /// The mode that holds without a grant.
    pub from: Mode,
    /// The mode asked for.
    pub to: Mode,
    /// Why.
    pub justification: String,
    /// Whose words that is in.
    pub justified_by: JustifiedBy,
    /// What the wider mode adds, in words.
    pub adds: String,
}

/// Who gives the reason of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JustifiedBy {
    /// The model that made the call; it may say anything.
    Model,
    /// Cofferdam itself, from a denial fact.
    Cofferdam,
}

impl Question {
    pub(super) fn new(
        id: String,
        session: &str,
        request: &ExecRequest,
        from: Mode,
        to: Mode,
        justification: &str,
    ) -> Question {
        let workspace = request.workspace.clone().unwrap_or_default();
        Question {
            id,
            session: session.to_owned(),
            command: request.command.text(),
            workdir: request.workdir.clone().unwrap_or_else(|| workspace.clone()),
            environment: request.managed_env.clone(),
            from,
            to,
            justification: justification.to_owned(),
            justified_by: JustifiedBy::Model,
            adds: adds(to, &workspace.to_string_lossy()),
            workspace,
        }
    }

    /// What stands in the log as the reason: `escalate sandbox to <mode>: <justification>`.
    pub fn reason(&self) -> String {
        format!("escalate sandbox to {}: {}", self.to, self.justification)
    }

    /// The question as text for a person, several lines without a newline at the end.
    pub fn text(&self) -> String {
        let mut text = format!("Run this command once under {}?\n\n", self.to);
        for line in visible(&self.command).split('\n') {
            // Indented, so that no line of the command reads as a line of the question.
            let _infallible = writeln!(text, "    {line}");
        }
        let label = match self.justified_by {
            JustifiedBy::Model => "The model says",
            JustifiedBy::Cofferdam => "Reason",
        };
        let _infallible = write!(
            text,
            "\nDirectory: {}\nMode now: {}\nIt adds: {}\n{label}: {}",
            visible_line(&self.workdir.to_string_lossy()),
            self.from,
            visible_line(&self.adds),
            visible_line(&self.justification),
        );
        text
    }

    /// Everything that an answer is bound to, as bytes that no other question has: command, directory,
    /// workspace, environment, session, both modes and the justification. For a seal over it.
    pub fn binding(&self) -> Vec<u8> {
        let count = self.environment.len().to_string();
        let mut fields: Vec<&[u8]> = vec![
            self.command.as_bytes(),
            self.workdir.as_os_str().as_bytes(),
            self.workspace.as_os_str().as_bytes(),
            self.session.as_bytes(),
            self.from.as_str().as_bytes(),
            self.to.as_str().as_bytes(),
            self.justification.as_bytes(),
            count.as_bytes(),
        ];
        for (key, value) in &self.environment {
            fields.extend([key.as_bytes(), value.as_bytes()]);
        }
        let mut bytes = Vec::new();
        for field in fields {
            bytes.extend_from_slice(&(field.len() as u64).to_be_bytes());
            bytes.extend_from_slice(field);
        }
        bytes
    }
}

fn adds(to: Mode, workspace: &str) -> String {
    match to {
        Mode::ReadOnly => "nothing".to_owned(),
        Mode::WorkspaceWrite => {
            format!(
                "writing below {workspace} and the configured writable folders, and the network \
                 that is configured for this mode"
            )
        }
        Mode::DangerFullAccess => "everything that your user may do: writing any file, the host's \
             network, other processes, programs with more rights; nothing confines it"
            .to_owned(),
    }
}

/// The text with everything spelled out that a terminal would obey or not show, but for newlines:
/// control characters, direction marks, characters without width.
pub fn visible(text: &str) -> String {
    spell(text, |c| c == '\n')
}

/// As [`visible`], on one line.
pub fn visible_line(text: &str) -> String {
    spell(text, |_none| false)
}

fn spell(text: &str, passes: impl Fn(char) -> bool) -> String {
    let mut spelled = String::with_capacity(text.len());
    for c in text.chars() {
        if passes(c) || !hides(c) {
            spelled.push(c);
        } else {
            spelled.extend(c.escape_default());
        }
    }
    spelled
}

fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(command: &str, justification: &str) -> Question {
        let mut request = ExecRequest::shell(command);
        request.workspace = Some(PathBuf::from("/w"));
        request.managed_env = vec![("DSH_SHELL".to_owned(), "1".to_owned())];
        Question::new(
            "0".repeat(32),
            "s",
            &request,
            Mode::ReadOnly,
            Mode::DangerFullAccess,
            justification,
        )
    }

    #[test]
    fn nothing_in_a_command_or_its_justification_hides_or_imitates_a_part_of_the_question() {
        let question = question(
            "rm -rf x\r\x1b[1Als\nDirectory: /safe\u{202e}",
            "fine\nIt adds: nothing\u{200b}",
        );
        assert_eq!(
            question.text(),
            "Run this command once under danger-full-access?\n\n    rm -rf x\\r\\u{1b}[1Als\n    Directory: /safe\\u{202e}\n\n\
             Directory: /w\nMode now: read-only\nIt adds: everything that your user may do: writing any file, the host's \
             network, other processes, programs with more rights; nothing confines it\n\
             The model says: fine\\nIt adds: nothing\\u{200b}"
        );
        assert_eq!(visible("é\tü\n"), "é\\tü\n");
    }

    #[test]
    fn a_reason_of_cofferdams_own_is_not_put_into_a_models_mouth() {
        let mut question = question("make", "why");
        let tail = |question: &Question| question.text().lines().last().map(str::to_owned);
        assert_eq!(tail(&question).as_deref(), Some("The model says: why"));
        question.justified_by = JustifiedBy::Cofferdam;
        assert_eq!(tail(&question).as_deref(), Some("Reason: why"));
    }

    #[test]
    fn an_answer_is_bound_to_everything_that_was_asked() {
        let base = question("make", "why");
        assert_eq!(base.binding(), question("make", "why").binding());
        let mut others = vec![question("make ", "why"), question("make", "why not")];
        let mut changed = |change: &dyn Fn(&mut Question)| {
            let mut other = base.clone();
            change(&mut other);
            others.push(other);
        };
        changed(&|q| q.workdir = PathBuf::from("/w/sub"));
        changed(&|q| q.workspace = PathBuf::from("/v"));
        changed(&|q| q.session = "t".to_owned());
        changed(&|q| q.from = Mode::WorkspaceWrite);
        changed(&|q| q.to = Mode::WorkspaceWrite);
        changed(&|q| q.environment[0].1 = "2".to_owned());
        changed(&|q| q.environment.clear());
        changed(&|q| q.environment[0] = ("DSH_SHELL1".to_owned(), String::new()));
        for other in others {
            assert_ne!(base.binding(), other.binding(), "{other:?}");
        }
    }
}
