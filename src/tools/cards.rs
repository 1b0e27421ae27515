//! How a user interface shows a call and its result.
//!
//! Rule: pure functions of the logged arguments and result, safe to replay. Arguments of another or an
//! older shape get a generic card, never an error.

use serde_json::{Map, Value, json};

use super::text::{Exit, exit_status, goes_on};

/// The card of a call, before it has a result.
pub fn call(tool: &str, arguments: &Value) -> Value {
    match Shape::of(tool, arguments) {
        Shape::Terminal(bash) => {
            let mut card = Map::new();
            card.insert("card".to_owned(), json!("terminal"));
            card.insert("title".to_owned(), json!(bash.command));
            card.insert("description".to_owned(), json!(bash.description));
            if let Some(workdir) = bash.workdir {
                card.insert("cwd".to_owned(), json!(workdir));
            }
            Value::Object(card)
        }
        Shape::Background(bash) => json!({
            "card": "generic",
            "title": bash.command,
            "kind": "execute",
            "rawInput": bash.command,
            "content": [bash.description],
        }),
        Shape::Read(task) => json!({
            "card": "generic",
            "title": format!("Read output from background task {task}"),
            "rawInput": task,
        }),
        Shape::Kill(task) => json!({
            "card": "generic",
            "title": format!("Kill background task {task}"),
            "rawInput": task,
        }),
        Shape::Unknown => json!({"card": "generic", "title": tool, "rawInput": arguments}),
    }
}

/// The card of a result.
pub fn result(tool: &str, arguments: &Value, text: &str, is_error: bool) -> Value {
    match Shape::of(tool, arguments) {
        Shape::Terminal(_) if !is_error => terminal(text),
        Shape::Terminal(_)
        | Shape::Background(_)
        | Shape::Read(_)
        | Shape::Kill(_)
        | Shape::Unknown => json!({"card": "generic", "content": [fenced(text)]}),
    }
}

fn terminal(text: &str) -> Value {
    let mut card = Map::new();
    card.insert("card".to_owned(), json!("terminal"));
    card.insert("output".to_owned(), json!(text));
    // A command that goes on has no exit yet.
    if !goes_on(text) {
        match exit_status(text) {
            Exit::Code(code) => card.insert("exitCode".to_owned(), json!(code)),
            Exit::Signal(name) => card.insert("signal".to_owned(), json!(name)),
        };
    }
    Value::Object(card)
}

/// The text in a `console` fence that nothing in it can close.
fn fenced(text: &str) -> String {
    let longest = text
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}console\n{text}{newline}{fence}")
}

enum Shape<'a> {
    Terminal(Bash<'a>),
    Background(Bash<'a>),
    Read(&'a str),
    Kill(&'a str),
    Unknown,
}

struct Bash<'a> {
    command: &'a str,
    description: &'a str,
    workdir: Option<&'a str>,
}

impl<'a> Shape<'a> {
    fn of(tool: &str, arguments: &'a Value) -> Shape<'a> {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        match tool {
            "bash" => {
                let (Some(command), Some(description)) = (text("command"), text("description"))
                else {
                    return Shape::Unknown;
                };
                let bash = Bash {
                    command,
                    description,
                    workdir: text("workdir"),
                };
                match arguments.get("run_in_background") {
                    None | Some(Value::Bool(false)) => Shape::Terminal(bash),
                    Some(Value::Bool(true)) => Shape::Background(bash),
                    Some(_other) => Shape::Unknown,
                }
            }
            "bash_output" => text("task_id").map_or(Shape::Unknown, Shape::Read),
            "bash_kill" => text("task_id").map_or(Shape::Unknown, Shape::Kill),
            _other => Shape::Unknown,
        }
    }
}
