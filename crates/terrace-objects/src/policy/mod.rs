//! Policies: what they are, and what they say of a request. Nothing here knows buckets, requests or
//! the store.
//!
//! A policy is a list of statements. Each is about some callers, actions and resources, under some
//! conditions, and allows what it is about or denies it. A statement that denies decides; else one
//! that allows; else the policy is silent ("Policy evaluation logic" in the IAM guide).

pub mod actions;
pub mod condition;
mod pattern;
mod read;

pub use read::IDLE_CONDITIONS;

use crate::account;
use condition::Condition;
use pattern::Variables;
use std::{borrow::Cow, collections::BTreeMap};

/// The action on everything of the service.
const ALL_ACTIONS: &str = "*";

/// A policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    statements: Vec<Statement>,
    /// Texts may have variables: not in the older version of the language.
    has_variables: bool,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
struct Statement {
    allows: bool,
    callers: Selection<Who>,
    actions: Selection<String>,
    resources: Selection<String>,
    conditions: Vec<Condition>,
}

/// What a statement is about: what fits one of these, or everything else.
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

/// Whom a statement names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    /// Everybody, whoever does not sign among them.
    Everybody,
    /// Every key of an account, by its name or its canonical ID.
    Account(String),
    /// The key, or user, with this ARN.
    User(String),
    /// A service, by its name: one that acts for a bucket's owner.
    Service(String),
    /// What never calls here: users of other logins.
    Nobody,
}

/// Who makes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The account's ID.
    pub account: &'a str,
    /// The name of the key, or the user, in it.
    pub name: &'a str,
}

impl Caller<'_> {
    /// How policies name it. No service has an ARN of this form.
    pub fn arn(&self) -> String {
        format!("arn:aws:iam::{}:user/{}", self.account, self.name)
    }
}

impl<'a> Caller<'a> {
    /// A service, which is in no account.
    pub const fn service(name: &'a str) -> Self {
        Self { account: "", name }
    }
}

impl Who {
    fn is(&self, caller: Option<Caller<'_>>) -> bool {
        match (self, caller) {
            (Self::Everybody, _) => true,
            (Self::Account(account), Some(caller)) => account::is_named(caller.account, account),
            (Self::User(arn), Some(caller)) => *arn == caller.arn(),
            (Self::Service(name), Some(caller)) => caller == Caller::service(name),
            (Self::Nobody, _) | (_, None) => false,
        }
    }
}

/// What is known of a request beside who does what: keys of conditions with their values.
#[derive(Debug, Clone, Default)]
pub struct Context(BTreeMap<String, Vec<String>>);

impl Context {
    /// Adds a value of a key.
    pub fn add(&mut self, key: &str, value: impl Into<String>) {
        self.0.entry(condition::normal_key(key)).or_default().push(value.into());
    }

    /// Takes away what is known under keys that begin like this, in their normal form.
    pub fn forget(&mut self, start: &str) {
        self.0.retain(|key, _| !key.starts_with(start));
    }

    /// The same with this one value of a key.
    pub fn with<'c>(&'c self, key: &str, value: &str) -> Cow<'c, Self> {
        let key = condition::normal_key(key);
        if self.get(&key) == [value] {
            return Cow::Borrowed(self);
        }
        let mut changed = self.clone();
        changed.0.insert(key, vec![value.to_owned()]);
        Cow::Owned(changed)
    }

    /// The values of a key in its normal form; none if the request does not have it.
    fn get(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// The value of a key that has just one.
    fn single(&self, key: &str) -> Option<String> {
        match self.get(&condition::normal_key(key)) {
            [value] => Some(value.clone()),
            _ => None,
        }
    }
}

/// A request as policies see it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Who asks. `None` for whoever does not sign.
    pub caller: Option<Caller<'a>>,
    /// What for, as `s3:GetObject`.
    pub action: &'a str,
    /// On what: `arn:aws:s3:::BUCKET`, or `arn:aws:s3:::BUCKET/KEY`.
    pub resource: &'a str,
    /// What else is known.
    pub context: &'a Context,
}

/// What a policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No, whatever else says yes.
    Denied,
    /// Yes.
    Allowed,
    /// Nothing.
    Silent,
}

impl Policy {
    /// What it says of a request.
    pub fn judge(&self, question: &Question<'_>) -> Verdict {
        self.judge_at_best(question, &|_| false)
    }

    /// The best that it can say of a request of which not all is known yet: of conditions on keys
    /// that are `open`, those of statements that allow are taken to hold, and those of statements
    /// that deny are not.
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

    /// The keys that conditions ask about.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let conditions = self.statements.iter().flat_map(|statement| &statement.conditions);
        conditions.map(Condition::key)
    }

    /// Whether a statement has a condition that none of its actions has anything to say to, so that
    /// it means nothing or everything, whatever its author had in mind.
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

    /// Whether everybody may read all objects, and list the bucket, of a policy that says nothing
    /// else and asks nothing: such questions need no judgement.
    pub fn opens(&self) -> (bool, bool) {
        let (mut reads, mut lists) = (false, false);
        for statement in &self.statements {
            let (Selection::Of(callers), Selection::Of(actions), Selection::Of(resources)) =
                (&statement.callers, &statement.actions, &statement.resources)
            else {
                return (false, false);
            };
            let is_plain = statement.allows && statement.conditions.is_empty() && callers.contains(&Who::Everybody);
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

    /// Whether it allows something to all but those that it names, which S3 does not take
    /// ("NotPrincipal" in the guide to IAM).
    pub fn allows_all_but_some(&self) -> bool {
        let allows = |statement: &Statement| statement.allows && matches!(statement.callers, Selection::AllBut(_));
        self.statements.iter().any(allows)
    }

    /// Whether it opens something to people that it does not name ("The meaning of public" in the
    /// guide).
    pub fn is_public(&self) -> bool {
        let opens = |statement: &Statement| {
            let everybody = match &statement.callers {
                Selection::Of(list) => list.contains(&Who::Everybody),
                Selection::AllBut(_) => true,
            };
            statement.allows && everybody && !statement.conditions.iter().any(Condition::is_binding)
        };
        self.statements.iter().any(opens)
    }
}

impl Statement {
    fn means(&self, question: &Question<'_>, has_variables: bool, open: &dyn Fn(&str) -> bool) -> bool {
        let value_of = |name: &str| question.context.single(name);
        let variables: Variables<'_> = if has_variables { Some(&value_of) } else { None };
        self.callers.has(|who| who.is(question.caller))
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

/// Whether an action is what a pattern says, in any case.
fn is_action(wanted: &str, action: &str) -> bool {
    wanted == ALL_ACTIONS || pattern::matches(&wanted.to_ascii_lowercase(), &action.to_ascii_lowercase(), None)
}

#[cfg(test)]
mod tests;
