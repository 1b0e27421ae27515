//! The managed `DSH_*` variables: who contributes them, and the snapshot that each call gets.
//!
//! Rule: a key has one owner. Two owners, a built-in key or a key that was never declared is an error
//! that the caller sees; nothing is overwritten in silence.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::session::{Home, Session};

/// What a resolver may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// The session whose call it is; `None` for a caller without one.
    pub session: Option<&'a Session>,
}

/// A key with what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name, `DSH_` and then capitals, digits and underscores.
    pub key: String,
    /// What it means, for people.
    pub description: String,
}

impl Variable {
    /// A key with what it means.
    pub fn new(key: impl Into<String>, description: impl Into<String>) -> Variable {
        Variable {
            key: key.into(),
            description: description.into(),
        }
    }
}

/// A declared variable and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The contributor's name; `built-in` for this project's own.
    pub owner: String,
    /// The key with what it means.
    pub variable: Variable,
}

/// Why a contributor isn't accepted, or a snapshot can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagedError {
    /// The name is taken.
    #[error("a contributor \"{0}\" is registered already; drop it first or choose another name")]
    DuplicateName(String),
    /// The key can't be managed.
    #[error(
        "contributor \"{owner}\" declares \"{key}\", which is no managed name; use DSH_ and then A-Z, 0-9 or _"
    )]
    BadKey {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
    },
    /// The key is this project's own.
    #[error("contributor \"{owner}\" declares {key}, which is built in; choose another key")]
    BuiltIn {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
    },
    /// The key has an owner.
    #[error("contributor \"{owner}\" declares {key}, which \"{other}\" owns; choose another key")]
    DuplicateKey {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
        /// Who owns it.
        other: String,
    },
    /// A resolver returned what it hadn't declared.
    #[error(
        "contributor \"{owner}\" returned {key} without having declared it; declare it at registration"
    )]
    Undeclared {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
    },
    /// A resolver returned a key twice.
    #[error("contributor \"{owner}\" returned {key} twice; return each key once")]
    Repeated {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
    },
    /// A value that no environment can hold.
    #[error("contributor \"{owner}\" returned a value with a NUL byte for {key}; leave it out")]
    BadValue {
        /// The contributor.
        owner: String,
        /// The key.
        key: String,
    },
}

/// Gives the values for one call; keys that have none now are left out.
pub type Resolver = Box<dyn Fn(Context<'_>) -> Vec<(String, String)> + Send + Sync>;

/// The managed variables of one composition.
#[derive(Clone)]
pub struct Managed {
    home: Home,
    contributors: Arc<Mutex<Vec<Arc<Contributor>>>>,
}

struct Contributor {
    name: String,
    variables: Vec<Variable>,
    resolve: Resolver,
}

/// Keeps a contributor registered; dropping it ends the registration.
#[must_use = "dropping it ends the registration"]
pub struct Contribution {
    contributor: Weak<Contributor>,
    contributors: Weak<Mutex<Vec<Arc<Contributor>>>>,
}

impl Managed {
    /// The built-in variables alone.
    pub fn new(home: Home) -> Managed {
        Managed {
            home,
            contributors: Arc::default(),
        }
    }

    /// Registers a contributor by its name, its keys and its resolver.
    ///
    /// # Errors
    /// The name or a key is taken, or a key can't be managed.
    pub fn register(
        &self,
        name: impl Into<String>,
        variables: Vec<Variable>,
        resolve: Resolver,
    ) -> Result<Contribution, ManagedError> {
        let owner = name.into();
        let mut contributors = lock(&self.contributors);
        if contributors.iter().any(|other| other.name == owner) {
            return Err(ManagedError::DuplicateName(owner));
        }
        for (index, Variable { key, .. }) in variables.iter().enumerate() {
            check_key(&owner, key)?;
            let earlier = variables[..index]
                .iter()
                .any(|other| other.key == *key)
                .then_some(owner.as_str());
            let taken = contributors
                .iter()
                .find(|other| other.declares(key))
                .map(|other| other.name.as_str());
            if let Some(other) = taken.or(earlier) {
                return Err(ManagedError::DuplicateKey {
                    other: other.to_owned(),
                    key: key.clone(),
                    owner,
                });
            }
        }
        let contributor = Arc::new(Contributor {
            name: owner,
            variables,
            resolve,
        });
        contributors.push(Arc::clone(&contributor));
        Ok(Contribution {
            contributor: Arc::downgrade(&contributor),
            contributors: Arc::downgrade(&self.contributors),
        })
    }

    /// All declared variables, the built-in ones first. Runs no resolver.
    pub fn list(&self) -> Vec<Declaration> {
        let built_in = built_in().into_iter().map(|variable| Declaration {
            owner: "built-in".to_owned(),
            variable,
        });
        let contributors = lock(&self.contributors);
        let contributed = contributors.iter().flat_map(|contributor| {
            contributor.variables.iter().map(|variable| Declaration {
                owner: contributor.name.clone(),
                variable: variable.clone(),
            })
        });
        built_in.chain(contributed).collect()
    }

    /// The snapshot for one call, collected anew.
    ///
    /// # Errors
    /// A resolver returned what it hadn't declared, a key twice, or a value that can't be passed.
    pub fn collect(&self, context: Context<'_>) -> Result<Vec<(String, String)>, ManagedError> {
        let mut snapshot = vec![
            ("DSH_HOME".to_owned(), self.home.text()),
            ("DSH_SHELL".to_owned(), "1".to_owned()),
        ];
        if let Some(session) = context.session {
            snapshot.push(("DSH_SESSION_ID".to_owned(), session.id().to_owned()));
            // Below a home that is UTF-8, so nothing is replaced.
            snapshot.extend(session.log_path().map(|path| {
                (
                    "DSH_SESSION_JSONL".to_owned(),
                    path.to_string_lossy().into_owned(),
                )
            }));
        }
        // Resolvers run without the lock: they may look at the list themselves.
        let contributors: Vec<_> = lock(&self.contributors).clone();
        for contributor in contributors {
            contributor.add_to(&mut snapshot, context)?;
        }
        Ok(snapshot)
    }
}

impl Contributor {
    fn declares(&self, key: &str) -> bool {
        self.variables.iter().any(|variable| variable.key == key)
    }

    fn add_to(
        &self,
        snapshot: &mut Vec<(String, String)>,
        context: Context<'_>,
    ) -> Result<(), ManagedError> {
        let first = snapshot.len();
        for (key, value) in (self.resolve)(context) {
            let owner = self.name.clone();
            if !self.declares(&key) {
                return Err(ManagedError::Undeclared { owner, key });
            }
            if snapshot[first..].iter().any(|(earlier, _)| *earlier == key) {
                return Err(ManagedError::Repeated { owner, key });
            }
            if value.contains('\0') {
                return Err(ManagedError::BadValue { owner, key });
            }
            snapshot.push((key, value));
        }
        Ok(())
    }
}

impl Drop for Contribution {
    fn drop(&mut self) {
        let (Some(mine), Some(all)) = (self.contributor.upgrade(), self.contributors.upgrade())
        else {
            return;
        };
        lock(&all).retain(|other| !Arc::ptr_eq(other, &mine));
    }
}

fn built_in() -> [Variable; 4] {
    [
        Variable::new("DSH_HOME", "Where sessions and their logs are kept."),
        Variable::new("DSH_SHELL", "1 in every command that is run for a model."),
        Variable::new("DSH_SESSION_ID", "The session whose call it is."),
        Variable::new(
            "DSH_SESSION_JSONL",
            "The session's log, where it is a file; it may not exist yet.",
        ),
    ]
}

fn check_key(owner: &str, key: &str) -> Result<(), ManagedError> {
    if built_in().iter().any(|variable| variable.key == key) {
        return Err(ManagedError::BuiltIn {
            owner: owner.to_owned(),
            key: key.to_owned(),
        });
    }
    let fits = key.strip_prefix("DSH_").is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    });
    if fits {
        Ok(())
    } else {
        Err(ManagedError::BadKey {
            owner: owner.to_owned(),
            key: key.to_owned(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::mode::Mode;

    fn managed() -> Managed {
        Managed::new(Home::find(Some(Path::new("/home/u/.dsh"))).unwrap())
    }

    fn region() -> Vec<Variable> {
        vec![Variable::new("DSH_REGION", "Where it runs.")]
    }

    fn gives(values: &[(&str, &str)]) -> Resolver {
        let values: Vec<(String, String)> = values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Box::new(move |_context| values.clone())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        gives(pairs)(Context::default())
    }

    #[test]
    fn a_call_without_a_session_gets_the_home_and_the_mark() {
        assert_eq!(
            managed().collect(Context::default()).unwrap(),
            pairs(&[("DSH_HOME", "/home/u/.dsh"), ("DSH_SHELL", "1")])
        );
    }

    #[test]
    fn a_call_of_a_session_gets_its_id_and_its_log_where_that_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let filed = Session::create(&home, Path::new("/w"), Mode::ReadOnly).unwrap();
        let snapshot = |session: &Session| {
            let context = Context {
                session: Some(session),
            };
            Managed::new(home.clone()).collect(context).unwrap()
        };
        let log = filed.log_path().unwrap();
        assert_eq!(
            snapshot(&filed),
            pairs(&[
                ("DSH_HOME", dir.path().to_str().unwrap()),
                ("DSH_SHELL", "1"),
                ("DSH_SESSION_ID", filed.id()),
                ("DSH_SESSION_JSONL", log.to_str().unwrap()),
            ])
        );
        let fleeting = Session::in_memory(Path::new("/w"), Mode::ReadOnly).unwrap();
        assert_eq!(
            snapshot(&fleeting)[2..],
            pairs(&[("DSH_SESSION_ID", fleeting.id())])
        );
    }

    #[test]
    fn a_contributor_adds_its_keys_for_each_call_until_it_is_dropped() {
        let managed = managed();
        let by_session: Resolver = Box::new(|context| match context.session {
            Some(session) => vec![("DSH_REGION".to_owned(), session.id().to_owned())],
            None => Vec::new(),
        });
        let contribution = managed.register("region", region(), by_session).unwrap();
        let session = Session::in_memory(Path::new("/w"), Mode::ReadOnly).unwrap();
        let of_session = Context {
            session: Some(&session),
        };
        let region_of = |context| {
            let snapshot = managed.collect(context).unwrap();
            snapshot.into_iter().find(|(key, _)| key == "DSH_REGION")
        };
        assert_eq!(
            region_of(of_session),
            Some(("DSH_REGION".to_owned(), session.id().to_owned()))
        );
        assert_eq!(region_of(Context::default()), None);
        drop(contribution);
        assert_eq!(region_of(of_session), None);
        assert_eq!(managed.list().len(), 4);
        let _again = managed.register("region", region(), gives(&[])).unwrap();
    }

    #[test]
    fn listing_runs_no_resolver() {
        let managed = managed();
        let loud: Resolver = Box::new(|_context| panic!("a resolver ran"));
        let _contribution = managed.register("region", region(), loud).unwrap();
        let listed: Vec<(String, String)> = managed
            .list()
            .into_iter()
            .map(|declared| (declared.owner, declared.variable.key))
            .collect();
        assert_eq!(
            listed,
            pairs(&[
                ("built-in", "DSH_HOME"),
                ("built-in", "DSH_SHELL"),
                ("built-in", "DSH_SESSION_ID"),
                ("built-in", "DSH_SESSION_JSONL"),
                ("region", "DSH_REGION"),
            ])
        );
    }

    #[test]
    fn a_taken_name_or_key_fails_loudly_and_changes_nothing() {
        let managed = managed();
        let _first = managed
            .register("first", region(), gives(&[("DSH_REGION", "a")]))
            .unwrap();
        let refused = |name: &str, keys: &[&str]| {
            let variables = keys.iter().map(|key| Variable::new(*key, "")).collect();
            match managed.register(name, variables, gives(&[])) {
                Ok(_) => panic!("{name} was registered"),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(
            refused("first", &["DSH_OTHER"]),
            "a contributor \"first\" is registered already; drop it first or choose another name"
        );
        assert_eq!(
            refused("second", &["DSH_OTHER", "DSH_REGION"]),
            "contributor \"second\" declares DSH_REGION, which \"first\" owns; choose another key"
        );
        assert_eq!(
            refused("second", &["DSH_TWO", "DSH_TWO"]),
            "contributor \"second\" declares DSH_TWO, which \"second\" owns; choose another key"
        );
        for key in [
            "DSH_HOME",
            "DSH_SHELL",
            "DSH_SESSION_ID",
            "DSH_SESSION_JSONL",
        ] {
            assert_eq!(
                refused("second", &[key]),
                format!(
                    "contributor \"second\" declares {key}, which is built in; choose another key"
                )
            );
        }
        for key in ["", "PATH", "DSH_", "DSH_a", "DSH_A=B", "DSH_É"] {
            assert_eq!(
                refused("second", &[key]),
                format!(
                    "contributor \"second\" declares \"{key}\", which is no managed name; use DSH_ and then A-Z, 0-9 or _"
                )
            );
        }
        let _second = managed.register("second", vec![Variable::new("DSH_OTHER", "")], gives(&[]));
        assert_eq!(managed.list().len(), 6);
    }

    #[test]
    fn what_a_resolver_may_not_return_fails_the_snapshot() {
        let cases: [(&[(&str, &str)], &str); 4] = [
            (
                &[("DSH_OTHER", "x")],
                "contributor \"region\" returned DSH_OTHER without having declared it; declare it at registration",
            ),
            (
                &[("DSH_HOME", "/evil")],
                "contributor \"region\" returned DSH_HOME without having declared it; declare it at registration",
            ),
            (
                &[("DSH_REGION", "a"), ("DSH_REGION", "b")],
                "contributor \"region\" returned DSH_REGION twice; return each key once",
            ),
            (
                &[("DSH_REGION", "a\0b")],
                "contributor \"region\" returned a value with a NUL byte for DSH_REGION; leave it out",
            ),
        ];
        for (values, text) in cases {
            let managed = managed();
            let _contribution = managed.register("region", region(), gives(values)).unwrap();
            let error = managed.collect(Context::default()).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }
}
