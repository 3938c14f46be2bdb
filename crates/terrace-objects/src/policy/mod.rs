//! Policies: their model and evaluation, independent of buckets, requests and the store.
//!
//! A policy is a list of statements. Each names callers, actions, resources and conditions, and
//! allows or denies what they match. A matching denial decides, otherwise a matching allowance;
//! otherwise the policy has no result ("Policy evaluation logic" in the IAM guide).

pub mod actions;
pub mod condition;
pub mod date;
mod pattern;
mod read;

pub use read::IDLE_CONDITIONS;

use crate::account;
use condition::Condition;
use pattern::Variables;
use std::{borrow::Cow, collections::BTreeMap};

/// All actions of the service.
const ALL_ACTIONS: &str = "*";

/// A policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    statements: Vec<Statement>,
    /// Values may contain variables, which the older version of the language lacks.
    has_variables: bool,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
struct Statement {
    allows: bool,
    callers: Selection<Named>,
    actions: Selection<String>,
    resources: Selection<String>,
    conditions: Vec<Condition>,
}

/// A statement's selection: everything that matches one of these, or everything else.
#[derive(Debug, Clone, PartialEq)]
enum Selection<T> {
    Of(Vec<T>),
    AllBut(Vec<T>),
}

impl<T> Selection<T> {
    fn has(&self, fits: impl FnMut(&T) -> bool) -> bool {
        match self {
            Self::Of(list) => list.iter().any(fits),
            Self::AllBut(list) => !list.iter().any(fits),
        }
    }
}

/// A statement's principal.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    /// All callers, including unsigned requests.
    All,
    /// Every key of an account, by its name or canonical ID.
    Account(String),
    /// The key, or user, with this ARN.
    User(String),
    /// A service, by name, that acts for a bucket's owner.
    Service(String),
    /// Principals that do not exist here, such as federated users.
    Unsupported,
}

/// The caller of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The account's ID.
    pub account: &'a str,
    /// The name of the key, or the user, in the account.
    pub name: &'a str,
}

impl Caller<'_> {
    /// Its ARN. No service has an ARN of this form.
    pub fn arn(&self) -> String {
        format!("arn:aws:iam::{}:user/{}", self.account, self.name)
    }
}

impl<'a> Caller<'a> {
    /// A service; it has no account.
    pub const fn service(name: &'a str) -> Self {
        Self { account: "", name }
    }
}

impl Named {
    fn is(&self, caller: Option<Caller<'_>>) -> bool {
        match (self, caller) {
            (Self::All, _) => true,
            (Self::Account(account), Some(caller)) => account::is_named(caller.account, account),
            (Self::User(arn), Some(caller)) => *arn == caller.arn(),
            (Self::Service(name), Some(caller)) => caller == Caller::service(name),
            (Self::Unsupported, _) | (_, None) => false,
        }
    }
}

/// Condition values of a request, by key.
#[derive(Debug, Clone, Default)]
pub struct Context(BTreeMap<String, Vec<String>>);

impl Context {
    /// Adds a value for a key.
    pub fn add(&mut self, key: &str, value: impl Into<String>) {
        self.0.entry(condition::normal_key(key)).or_default().push(value.into());
    }

    /// Removes the values of keys with this prefix, in normal form.
    pub fn forget(&mut self, start: &str) {
        self.0.retain(|key, _| !key.starts_with(start));
    }

    /// The same with this single value for a key.
    pub fn with<'c>(&'c self, key: &str, value: &str) -> Cow<'c, Self> {
        let key = condition::normal_key(key);
        if self.get(&key) == [value] {
            return Cow::Borrowed(self);
        }
        let mut changed = self.clone();
        changed.0.insert(key, vec![value.to_owned()]);
        Cow::Owned(changed)
    }

    /// The values of a key in normal form; empty if there are none.
    fn get(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// The value of a key that has exactly one.
    fn single(&self, key: &str) -> Option<String> {
        match self.get(&condition::normal_key(key)) {
            [value] => Some(value.clone()),
            _ => None,
        }
    }
}

/// A request, for evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The caller. `None` for unsigned requests.
    pub caller: Option<Caller<'a>>,
    /// The action, for example `s3:GetObject`.
    pub action: &'a str,
    /// The resource: `arn:aws:s3:::BUCKET`, or `arn:aws:s3:::BUCKET/KEY`.
    pub resource: &'a str,
    /// The condition values.
    pub context: &'a Context,
}

/// A policy's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Denied, whatever others allow.
    Denied,
    /// Allowed.
    Allowed,
    /// Neither.
    Silent,
}

impl Policy {
    /// Evaluates a request.
    pub fn judge(&self, question: &Question<'_>) -> Verdict {
        self.judge_at_best(question, &|_| false)
    }

    /// The most favourable result for a request whose `open` condition keys have no value yet:
    /// their conditions are assumed to hold in statements that allow, and not in those that deny.
    pub fn judge_at_best(&self, question: &Question<'_>, open: &dyn Fn(&str) -> bool) -> Verdict {
        let meant = self
            .statements
            .iter()
            .filter(|statement| statement.means(question, self.has_variables, open));
        let mut verdict = Verdict::Silent;
        for statement in meant {
            if !statement.allows {
                return Verdict::Denied;
            }
            verdict = Verdict::Allowed;
        }
        verdict
    }

    /// The keys of its conditions.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let conditions = self.statements.iter().flat_map(|statement| &statement.conditions);
        conditions.map(Condition::key)
    }

    /// Whether a statement has a condition that applies to none of its actions, so that its meaning
    /// cannot be what its author intended.
    pub fn has_idle_conditions(&self) -> bool {
        self.statements.iter().any(|statement| {
            let Selection::Of(named) = &statement.actions else {
                return false;
            };
            let is_idle = |key: &str| {
                let about = actions::with_key(key);
                about.is_some_and(|about| {
                    !about
                        .iter()
                        .any(|action| named.iter().any(|name| is_action(name, action)))
                })
            };
            statement.conditions.iter().any(|condition| is_idle(condition.key()))
        })
    }

    /// Whether all callers may read all objects, and list the bucket, by a policy without other
    /// statements: such a bucket needs no evaluation.
    pub fn opens(&self) -> (bool, bool) {
        let (mut reads, mut lists) = (false, false);
        for statement in &self.statements {
            let (Selection::Of(callers), Selection::Of(actions), Selection::Of(resources)) =
                (&statement.callers, &statement.actions, &statement.resources)
            else {
                return (false, false);
            };
            let is_plain = statement.allows && statement.conditions.is_empty() && callers.contains(&Named::All);
            let no_patterns = |resource: &String| {
                !resource
                    .strip_suffix("/*")
                    .unwrap_or(resource)
                    .contains(['*', '?', '$', '/'])
            };
            if !is_plain || !resources.iter().all(no_patterns) {
                return (false, false);
            }
            for action in actions {
                match action.as_str() {
                    "s3:GetObject" => reads |= resources.iter().any(|resource| resource.ends_with("/*")),
                    "s3:ListBucket" => lists |= resources.iter().any(|resource| !resource.contains('/')),
                    _ => return (false, false),
                }
            }
        }
        (reads, lists)
    }

    /// Whether it allows something to all except named principals, which S3 refuses ("NotPrincipal"
    /// in the IAM guide).
    pub fn allows_all_but_some(&self) -> bool {
        let allows = |statement: &Statement| statement.allows && matches!(statement.callers, Selection::AllBut(_));
        self.statements.iter().any(allows)
    }

    /// Whether it allows something to callers that it does not name ("The meaning of public" in the
    /// S3 guide).
    pub fn is_public(&self) -> bool {
        let opens = |statement: &Statement| {
            let for_all = match &statement.callers {
                Selection::Of(list) => list.contains(&Named::All),
                Selection::AllBut(_) => true,
            };
            statement.allows && for_all && !statement.conditions.iter().any(Condition::is_binding)
        };
        self.statements.iter().any(opens)
    }
}

impl Statement {
    fn means(&self, question: &Question<'_>, has_variables: bool, open: &dyn Fn(&str) -> bool) -> bool {
        let value_of = |name: &str| question.context.single(name);
        let variables: Variables<'_> = if has_variables { Some(&value_of) } else { None };
        self.callers.has(|named| named.is(question.caller))
            && self.actions.has(|action| is_action(action, question.action))
            && self
                .resources
                .has(|resource| pattern::matches(resource, question.resource, variables))
            && self.conditions.iter().all(|condition| {
                if open(condition.key()) {
                    self.allows
                } else {
                    condition.holds(question.context, has_variables)
                }
            })
    }
}

/// Whether an action matches a pattern, ignoring case.
fn is_action(wanted: &str, action: &str) -> bool {
    wanted == ALL_ACTIONS || pattern::matches(&wanted.to_ascii_lowercase(), &action.to_ascii_lowercase(), None)
}

#[cfg(test)]
mod tests;
