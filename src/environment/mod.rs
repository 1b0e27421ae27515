//! The environment of a command.
//!
//! Rule: what is inherited passes the scrub; what somebody passes on purpose doesn't; this process's own
//! environment is never changed.

pub mod managed;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What every command gets, so that nothing waits for a key, an editor or a terminal.
///
/// Git's editors are `false`: without a terminal an interactive rebase, a commit without a message and
/// the like then fail and change nothing; `true` would accept on behalf of a person.
pub const FIXED: [(&str, &str); 6] = [
    ("NO_COLOR", "1"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
];

/// The words of a name that mark a secret, in any case.
pub const SECRET_WORDS: [&str; 3] = ["KEY", "SECRET", "TOKEN"];

/// The prefix of managed variables, which are never inherited.
pub const MANAGED_PREFIX: &str = "DSH_";

/// Rules that a policy adds to the scrub. Names are exact.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// Inherited names that are removed, beside those that the scrub removes.
    pub remove: &'a [String],
    /// Inherited names that pass although the scrub or `remove` would remove them; never managed ones.
    pub keep: &'a [String],
    /// Variables that every command gets.
    pub set: &'a [(String, String)],
}

/// The whole environment of a command, sorted by name; a later source replaces an earlier one:
/// `inherited` after the scrub, [`FIXED`], the rules' `set`, `caller`, `managed`.
pub fn command_env(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    rules: Rules<'_>,
    caller: &[(OsString, OsString)],
    managed: &[(String, String)],
) -> Vec<(OsString, OsString)> {
    let words = |pairs: &[(String, String)]| -> Vec<(OsString, OsString)> {
        pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    };
    let fixed = FIXED.map(|(name, value)| (name.into(), value.into()));
    inherited
        .into_iter()
        .filter(|(name, _)| is_inherited(name, rules))
        .chain(fixed)
        .chain(words(rules.set))
        .chain(caller.iter().cloned())
        .chain(words(managed))
        .collect::<BTreeMap<OsString, OsString>>()
        .into_iter()
        .collect()
}

/// Whether an inherited variable of this name reaches a command.
pub fn is_inherited(name: &OsStr, rules: Rules<'_>) -> bool {
    let upper = name.as_bytes().to_ascii_uppercase();
    let holds = |word: &str| {
        upper
            .windows(word.len())
            .any(|part| part == word.as_bytes())
    };
    let listed = |names: &[String]| names.iter().any(|other| OsStr::new(other) == name);
    if name.as_bytes().starts_with(MANAGED_PREFIX.as_bytes()) {
        return false;
    }
    listed(rules.keep) || !(listed(rules.remove) || SECRET_WORDS.into_iter().any(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn strings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn with_fixed(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        let all: BTreeMap<_, _> = os(&FIXED).into_iter().chain(os(pairs)).collect();
        all.into_iter().collect()
    }

    #[test]
    fn secrets_and_inherited_managed_names_are_removed_and_the_rest_passes() {
        let inherited = os(&[
            ("HOME", "/home/u"),
            ("AWS_SECRET_ACCESS_ID", "s"),
            ("openai_api_key", "s"),
            ("GitHub_Token", "s"),
            ("DSH_SESSION_ID", "stale"),
            ("dsh_lower", "passes"),
            ("PAGER", "less"),
        ]);
        assert_eq!(
            command_env(inherited, Rules::default(), &[], &[]),
            with_fixed(&[("HOME", "/home/u"), ("dsh_lower", "passes")])
        );
    }

    #[test]
    fn what_a_caller_passes_on_purpose_passes_and_the_managed_snapshot_has_the_last_word() {
        assert_eq!(
            command_env(
                os(&[("A", "inherited")]),
                Rules::default(),
                &os(&[
                    ("A", "caller"),
                    ("API_KEY", "k"),
                    ("DSH_SHELL", "0"),
                    ("TERM", "xterm")
                ]),
                &strings(&[("DSH_SHELL", "1")]),
            ),
            with_fixed(&[
                ("A", "caller"),
                ("API_KEY", "k"),
                ("DSH_SHELL", "1"),
                ("TERM", "xterm")
            ])
        );
    }

    #[test]
    fn rules_remove_keep_and_set_but_never_keep_a_managed_name() {
        let (remove, keep) = (
            vec!["LS_COLORS".to_owned(), "KEPT".to_owned()],
            vec![
                "KEPT".to_owned(),
                "SSH_KEY_DIR".to_owned(),
                "DSH_HOME".to_owned(),
            ],
        );
        let set = strings(&[("LANG", "C.UTF-8")]);
        let rules = Rules {
            remove: &remove,
            keep: &keep,
            set: &set,
        };
        assert_eq!(
            command_env(
                os(&[
                    ("LS_COLORS", "x"),
                    ("KEPT", "k"),
                    ("SSH_KEY_DIR", "d"),
                    ("DSH_HOME", "/stale"),
                    ("LANG", "de"),
                ]),
                rules,
                &[],
                &[],
            ),
            with_fixed(&[("KEPT", "k"), ("SSH_KEY_DIR", "d"), ("LANG", "C.UTF-8")])
        );
    }
}
