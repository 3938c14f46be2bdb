//! Parses policies from JSON.

use super::{
    ALL_ACTIONS, Named, Policy, Selection, Statement, actions,
    condition::{self, Condition, Standing},
    is_action, pattern,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use std::{fmt, marker::PhantomData};

/// Longest policy of a bucket, in bytes.
const BYTES_MAX: usize = 20 << 10;
/// Longest policy of an access key without white space: IAM's limit for managed policies, so that
/// existing ones are accepted. All of them are in memory.
const OF_KEY_LETTERS_MAX: usize = 6144;
/// The message for [`Policy::has_idle_conditions`].
pub const IDLE_CONDITIONS: &str = "Conditions do not apply to combination of actions and resources in statement";
/// The version of the language without variables.
const WITHOUT_VARIABLES: &str = "2008-10-17";
/// The version of the language with variables.
const WITH_VARIABLES: &str = "2012-10-17";
/// Prefix of the ARNs of buckets and objects.
const ARN: &str = "arn:aws:s3:::";

/// A single value or a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Many<T> {
    One(T),
    List(Vec<T>),
}

impl<T> From<Many<T>> for Vec<T> {
    fn from(many: Many<T>) -> Self {
        match many {
            Many::One(one) => vec![one],
            Many::List(list) => list,
        }
    }
}

/// The fields of a JSON object; a repeated name is kept each time.
struct Fields<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Fields<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collecting<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Collecting<V> {
            type Value = Fields<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Collecting(PhantomData))
    }
}

/// A value of a condition.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Flag(bool),
    Number(serde_json::Number),
    Text(String),
}

impl Scalar {
    fn text(self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

/// A statement's principals: `*`, or lists by kind.
#[derive(Deserialize)]
#[serde(untagged)]
enum Principal {
    Text(String),
    Kinds(Fields<Many<String>>),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: Option<Many<Written>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Written {
    #[serde(rename = "Sid")]
    _sid: Option<String>,
    effect: Option<String>,
    principal: Option<Principal>,
    not_principal: Option<Principal>,
    action: Option<Many<String>>,
    not_action: Option<Many<String>>,
    resource: Option<Many<String>>,
    not_resource: Option<Many<String>>,
    condition: Option<Fields<Fields<Many<Scalar>>>>,
}

impl Policy {
    /// Parses the policy of a bucket.
    ///
    /// # Errors
    /// A message for its author.
    pub fn of_bucket(text: &str, bucket: &str) -> Result<Self, String> {
        Self::read(text, Some(bucket))
    }

    /// Parses the policy of a session: it names no principals, and any buckets.
    ///
    /// # Errors
    /// A message for its author.
    pub fn of_session(text: &str) -> Result<Self, String> {
        Self::read(text, None)
    }

    /// Parses the policy of an access key. Like a session's, it names no principals, and any
    /// buckets. Conditions that cannot be evaluated are refused here, since no later message would
    /// reach its author.
    ///
    /// # Errors
    /// A message for its author.
    pub fn of_key(text: &str) -> Result<Self, String> {
        if text.chars().filter(|letter| !letter.is_whitespace()).count() > OF_KEY_LETTERS_MAX {
            return Err(format!(
                "The policy of an access key has {OF_KEY_LETTERS_MAX} characters at most, white space not counted"
            ));
        }
        let policy = Self::read(text, None)?;
        for key in policy.keys() {
            // Whether a key's requests will use TLS is unknown when it gets its policy.
            match condition::standing(key) {
                Standing::Known if key != condition::TLS_VERSION => {}
                Standing::Known | Standing::Unanswered => {
                    return Err(format!("Policies of access keys cannot have conditions on {key}"));
                }
                Standing::Unknown => return Err(format!("Policy has an invalid condition key - {key}")),
            }
        }
        if policy.has_idle_conditions() {
            return Err(IDLE_CONDITIONS.to_owned());
        }
        Ok(policy)
    }

    /// A policy that denies everything to all callers: it replaces one that cannot be parsed.
    pub fn denying_all() -> Self {
        Self {
            statements: vec![Statement {
                allows: false,
                callers: Selection::Of(vec![Named::All]),
                actions: Selection::Of(vec![ALL_ACTIONS.to_owned()]),
                resources: Selection::Of(vec!["*".to_owned()]),
                conditions: Vec::new(),
            }],
            has_variables: false,
        }
    }

    fn read(text: &str, bucket: Option<&str>) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!(
                "Policy exceeds the maximum allowed document size of {BYTES_MAX} bytes"
            ));
        }
        if !text.trim_start().starts_with('{') {
            return Err("Policies must be valid JSON and the first byte must be '{'".to_owned());
        }
        let document: Document = serde_json::from_str(text).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                "Policy has invalid syntax: a field is not known or not of its form".to_owned()
            }
            _ => "This policy contains invalid Json".to_owned(),
        })?;
        let has_variables = match document.version.as_deref() {
            None | Some(WITHOUT_VARIABLES) => false,
            Some(WITH_VARIABLES) => true,
            Some(_) => return Err("The policy must contain a valid version string".to_owned()),
        };
        let statements: Vec<_> = document.statement.ok_or_else(|| missing("Statement"))?.into();
        if statements.is_empty() {
            return Err("Could not parse the policy: Statement is empty!".to_owned());
        }
        let statements = statements.into_iter().map(|statement| statement.read(bucket));
        Ok(Self {
            statements: statements.collect::<Result<_, _>>()?,
            has_variables,
        })
    }
}

fn missing(field: &str) -> String {
    format!("Missing required field {field}")
}

/// The one of two alternative fields that is present.
fn either<T>(field: &str, of: Option<T>, but: Option<T>) -> Result<Selection<T>, String> {
    match (of, but) {
        (Some(one), None) => Ok(Selection::Of(vec![one])),
        (None, Some(one)) => Ok(Selection::AllBut(vec![one])),
        (None, None) => Err(missing(field)),
        (Some(_), Some(_)) => Err(format!("Statement must not have both {field} and Not{field}")),
    }
}

impl<T> Selection<T> {
    /// Converts the elements; an empty list is an error.
    fn map<U>(self, empty: &str, read: impl FnMut(T) -> Result<Vec<U>, String>) -> Result<Selection<U>, String> {
        let (list, is_of) = match self {
            Self::Of(list) => (list, true),
            Self::AllBut(list) => (list, false),
        };
        let lists: Vec<Vec<U>> = list.into_iter().map(read).collect::<Result<_, _>>()?;
        let list: Vec<_> = lists.into_iter().flatten().collect();
        if list.is_empty() {
            return Err(empty.to_owned());
        }
        Ok(if is_of {
            Selection::Of(list)
        } else {
            Selection::AllBut(list)
        })
    }
}

impl Written {
    fn read(self, bucket: Option<&str>) -> Result<Statement, String> {
        let allows = match self.effect.as_deref() {
            Some("Allow") => true,
            Some("Deny") => false,
            Some(other) => return Err(format!("Invalid effect: {other}")),
            None => return Err(missing("Effect")),
        };
        let callers = match (bucket, &self.principal, &self.not_principal) {
            (None, None, None) => Selection::Of(vec![Named::All]),
            (None, ..) => return Err("Policy document should not specify a principal.".to_owned()),
            (Some(_), ..) => {
                let callers = either("Principal", self.principal, self.not_principal)?;
                callers.map("Invalid principal in policy", principals)?
            }
        };
        let invalid = "Policy has invalid action";
        let actions = either("Action", self.action, self.not_action)?.map(invalid, |actions| Ok(actions.into()))?;
        let invalid = "Policy has invalid resource";
        let resources = either("Resource", self.resource, self.not_resource)?;
        let resources = resources.map(invalid, |resources| Ok(resources.into()))?;
        check_names(&actions, &resources, bucket)?;
        let mut conditions = Vec::new();
        for (operator, keys) in self.condition.into_iter().flat_map(|fields| fields.0) {
            for (key, values) in keys.0 {
                let values = Vec::from(values).into_iter().map(Scalar::text).collect();
                conditions.push(Condition::new(&operator, &key, values)?);
            }
        }
        Ok(Statement {
            allows,
            callers,
            actions,
            resources,
            conditions,
        })
    }
}

/// Checks that every action exists, that every resource is in the bucket, and that every action
/// fits a resource.
fn check_names(actions: &Selection<String>, resources: &Selection<String>, bucket: Option<&str>) -> Result<(), String> {
    let (Selection::Of(actions_named) | Selection::AllBut(actions_named)) = actions;
    let (Selection::Of(resources_named) | Selection::AllBut(resources_named)) = resources;
    let own = bucket.map(|bucket| format!("{ARN}{bucket}"));
    for resource in resources_named {
        let name = resource.split_once('/').map_or(resource.as_str(), |(name, _)| name);
        let is_of = match &own {
            Some(own) => resource.starts_with(ARN) && pattern::matches(name, own, None),
            None => resource.starts_with(ARN) || resource == "*",
        };
        if !is_of {
            return Err("Policy has invalid resource".to_owned());
        }
    }
    for action in actions_named {
        let known = |list: &[&str]| list.iter().any(|known| is_action(action, known));
        let (of_buckets, of_objects) = (known(&actions::OF_BUCKETS), known(&actions::OF_OBJECTS));
        if !of_buckets && !of_objects {
            return Err("Policy has invalid action".to_owned());
        }
        let both_named = matches!((actions, resources), (Selection::Of(_), Selection::Of(_)));
        let applies = |resource: &String| {
            let has_key = resource.contains('/');
            // A `*` at the end of a bucket's name also matches its keys.
            if has_key {
                of_objects
            } else {
                of_buckets || resource.ends_with('*')
            }
        };
        if both_named && !resources_named.iter().any(applies) {
            return Err("Action does not apply to any resource(s) in statement".to_owned());
        }
    }
    Ok(())
}

fn principals(principal: Principal) -> Result<Vec<Named>, String> {
    let invalid = || "Invalid principal in policy".to_owned();
    let kinds = match principal {
        Principal::Text(text) if text == "*" => return Ok(vec![Named::All]),
        Principal::Text(_) => return Err(invalid()),
        Principal::Kinds(kinds) => kinds,
    };
    let mut all = Vec::new();
    for (kind, names) in kinds.0 {
        for name in Vec::from(names) {
            all.push(match kind.as_str() {
                "AWS" => of_account(&name).ok_or_else(invalid)?,
                "CanonicalUser" if !name.is_empty() => Named::Account(name),
                "Service" if !name.is_empty() => Named::Service(name),
                "Federated" if !name.is_empty() => Named::Unsupported,
                _ => return Err(invalid()),
            });
        }
    }
    Ok(all)
}

/// Parses `*`, an account, or an ARN of an account or a user in it. An ARN of a user without an
/// account means the account of that name: programs written for servers without accounts use it.
fn of_account(name: &str) -> Option<Named> {
    if name == "*" {
        return Some(Named::All);
    }
    let is_plain = |text: &str| !text.is_empty() && !text.contains(['*', '?', ':', '/', ' ']);
    if is_plain(name) {
        return Some(Named::Account(name.to_owned()));
    }
    let (account, rest) = name.strip_prefix("arn:aws:iam::")?.split_once(':')?;
    if account.is_empty() {
        let user = rest.strip_prefix("user/").filter(|user| is_plain(user))?;
        return Some(Named::Account(user.to_owned()));
    }
    if !is_plain(account) {
        return None;
    }
    match rest.split_once('/') {
        None if rest == "root" => Some(Named::Account(account.to_owned())),
        Some(("user" | "role", user)) if !user.is_empty() && !user.contains(['*', '?']) => {
            Some(Named::User(name.to_owned()))
        }
        _ => None,
    }
}
