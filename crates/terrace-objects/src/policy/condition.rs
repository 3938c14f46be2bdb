//! Conditions of policy statements.
//!
//! A condition is an operator, a key and values. It holds if a request's value for the key matches
//! one of the values; with a negated operator, if it matches none. A missing value matches nothing,
//! so negated operators hold then.

use super::{
    Context,
    date::seconds_of,
    pattern::{self, Variables},
};
use std::net::IpAddr;

/// How two texts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Equal,
    EqualIgnoringCase,
    Like,
    /// As [`Test::Like`], separately for each part between colons.
    Arn,
    Number(Order),
    Date(Order),
    Bool,
    Address,
    /// Whether the request lacks the key.
    Null,
}

/// How two numbers are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// How a key with several values is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// A key with one value.
    One,
    /// At least one of them must match.
    Any,
    /// All of them must match; true if there are none.
    All,
}

/// A condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    test: Test,
    is_negated: bool,
    /// It also holds if the request lacks the key.
    if_exists: bool,
    of: Of,
    /// In lower case, except the name of a tag after the slash.
    key: String,
    values: Vec<String>,
}

/// Operators: comparison, and whether negated.
const OPERATORS: [(&str, Test, bool); 29] = [
    ("StringEquals", Test::Equal, false),
    ("StringNotEquals", Test::Equal, true),
    ("StringEqualsIgnoreCase", Test::EqualIgnoringCase, false),
    ("StringNotEqualsIgnoreCase", Test::EqualIgnoringCase, true),
    ("StringLike", Test::Like, false),
    ("StringNotLike", Test::Like, true),
    ("NumericEquals", Test::Number(Order::Equal), false),
    ("NumericNotEquals", Test::Number(Order::Equal), true),
    ("NumericLessThan", Test::Number(Order::Less), false),
    ("NumericLessThanEquals", Test::Number(Order::LessOrEqual), false),
    ("NumericGreaterThan", Test::Number(Order::Greater), false),
    ("NumericGreaterThanEquals", Test::Number(Order::GreaterOrEqual), false),
    ("DateEquals", Test::Date(Order::Equal), false),
    ("DateNotEquals", Test::Date(Order::Equal), true),
    ("DateLessThan", Test::Date(Order::Less), false),
    ("DateLessThanEquals", Test::Date(Order::LessOrEqual), false),
    ("DateGreaterThan", Test::Date(Order::Greater), false),
    ("DateGreaterThanEquals", Test::Date(Order::GreaterOrEqual), false),
    ("Bool", Test::Bool, false),
    ("BinaryEquals", Test::Equal, false),
    ("IpAddress", Test::Address, false),
    ("NotIpAddress", Test::Address, true),
    ("ArnEquals", Test::Arn, false),
    ("ArnLike", Test::Arn, false),
    ("ArnNotEquals", Test::Arn, true),
    ("ArnNotLike", Test::Arn, true),
    ("Null", Test::Null, false),
    // Former names in AWS.
    ("StringEqualsIgnore", Test::EqualIgnoringCase, false),
    ("StringNotEqualsIgnore", Test::EqualIgnoringCase, true),
];

/// S3's condition keys that requests here may have, or, like those of access points, never have. In
/// normal form; after a final slash the name of a tag follows ("Condition keys for Amazon S3" in
/// the service authorization reference).
const KEYS: [&str; 39] = [
    "s3:accesspointnetworkorigin",
    "s3:accesspointtag/",
    "s3:authtype",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
    "s3:delimiter",
    "s3:existingobjecttag/",
    "s3:if-match",
    "s3:if-none-match",
    "s3:max-keys",
    "s3:object-lock-legal-hold",
    "s3:object-lock-mode",
    "s3:object-lock-remaining-retention-days",
    "s3:object-lock-retain-until-date",
    "s3:objectcreationoperation",
    "s3:prefix",
    "s3:requestobjecttag/",
    "s3:requestobjecttagkeys",
    RESOURCE_ACCOUNT,
    "s3:signatureage",
    "s3:signatureversion",
    "s3:tlsversion",
    "s3:versionid",
    "s3:x-amz-acl",
    "s3:x-amz-bucket-namespace",
    "s3:x-amz-content-sha256",
    "s3:x-amz-copy-source",
    "s3:x-amz-grant-full-control",
    "s3:x-amz-grant-read",
    "s3:x-amz-grant-read-acp",
    "s3:x-amz-grant-write",
    "s3:x-amz-grant-write-acp",
    "s3:x-amz-metadata-directive",
    "s3:x-amz-object-ownership",
    "s3:x-amz-server-side-encryption",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
    "s3:x-amz-server-side-encryption-customer-algorithm",
    "s3:x-amz-storage-class",
    "s3:x-amz-website-redirect-location",
];
/// S3's condition keys for features that do not exist here or that the server does not determine.
const UNANSWERED: [&str; 22] = [
    "s3:accessgrantscope",
    "s3:accessgrantsinstancearn",
    "s3:accessgrantslocationscope",
    "s3:annotation-prefix",
    "s3:buckettag/",
    "s3:deliverysourcearn",
    "s3:destinationregion",
    "s3:existingjoboperation",
    "s3:existingjobpriority",
    "s3:inventoryaccessibleoptionalfields",
    "s3:isreplicationpauserequest",
    "s3:jobsuspendedcause",
    "s3:locationconstraint",
    "s3:logtype",
    "s3:max-annotation-results",
    "s3:object-lock-event-hold",
    "s3:object-lock-event-hold-duration-days",
    "s3:requestjoboperation",
    "s3:requestjobpriority",
    "s3:resourcearnbeingauthorized",
    "s3:x-amz-object-annotation-directive",
    "s3:x-amz-object-if-match",
];
/// The account of a resource; it has two names.
const RESOURCE_ACCOUNT: &str = "s3:resourceaccount";

/// How a condition key is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Requests may have it. AWS's keys of no particular service are included.
    Known,
    /// S3 has it, but no request here does.
    Unanswered,
    /// S3 has no key of this name.
    Unknown,
}

/// Unknown if TLS ends in front of the server; in normal form.
pub const TLS_VERSION: &str = "s3:tlsversion";

/// How a key in normal form is supported.
pub fn standing(key: &str) -> Standing {
    let is_among = |keys: &[&str]| {
        keys.iter().any(|known| match key.strip_prefix(known) {
            Some(name) => known.ends_with('/') != name.is_empty(),
            None => false,
        })
    };
    if !key.starts_with("s3:") || is_among(&KEYS) {
        Standing::Known
    } else if is_among(&UNANSWERED) {
        Standing::Unanswered
    } else {
        Standing::Unknown
    }
}

/// The normal form of a condition key: lower case except the names of objects' tags, with one of
/// two names for the same key.
pub fn normal_key(key: &str) -> String {
    let lower = match key.split_once('/') {
        // Names of objects' tags are case-sensitive, those of a session's are not.
        Some((key, name)) if key.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("s3:")) => {
            format!("{}/{name}", key.to_ascii_lowercase())
        }
        _ => key.to_ascii_lowercase(),
    };
    if lower == "aws:resourceaccount" {
        return RESOURCE_ACCOUNT.to_owned();
    }
    lower
}

impl Condition {
    /// Parses a condition.
    ///
    /// # Errors
    /// A message that describes the error.
    pub fn new(operator: &str, key: &str, values: Vec<String>) -> Result<Self, String> {
        let (of, rest) = match operator.split_once(':') {
            Some((set, rest)) if set.eq_ignore_ascii_case("ForAnyValue") => (Of::Any, rest),
            Some((set, rest)) if set.eq_ignore_ascii_case("ForAllValues") => (Of::All, rest),
            Some(_) => return Err(format!("Invalid Condition type : {operator}")),
            None => (Of::One, operator),
        };
        let find = |name: &str| OPERATORS.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
        let bare = rest.len().checked_sub("IfExists".len()).and_then(|at| {
            let (bare, end) = rest.split_at_checked(at)?;
            end.eq_ignore_ascii_case("IfExists").then_some(bare)
        });
        let found = bare.map_or_else(|| find(rest), find);
        let Some((_, test, is_negated)) =
            found.filter(|(_, test, _)| *test != Test::Null || (bare.is_none() && of == Of::One))
        else {
            return Err(format!("Invalid Condition type : {operator}"));
        };
        let lower = key.to_ascii_lowercase();
        if !["aws:", "s3:"]
            .iter()
            .any(|start| lower.starts_with(start) && lower.len() > start.len())
        {
            return Err("Policy has an invalid condition key".to_owned());
        }
        let is_right = |value: &String| match test {
            Test::Number(_) => number(value).is_some(),
            Test::Date(_) => seconds_of(value).is_some(),
            Test::Bool | Test::Null => flag(value).is_some(),
            Test::Address => network(value).is_some(),
            _ => true,
        };
        if values.is_empty() || !values.iter().all(is_right) {
            return Err(format!("Invalid value for the condition {operator} of {key}"));
        }
        Ok(Self {
            test: *test,
            is_negated: *is_negated,
            if_exists: bare.is_some(),
            of,
            key: normal_key(key),
            values,
        })
    }

    /// Its key in normal form.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether it holds. `has_variables` if values may contain variables.
    pub fn holds(&self, context: &Context, has_variables: bool) -> bool {
        let found = context.get(&self.key);
        if self.test == Test::Null {
            return self.values.iter().any(|value| flag(value) == Some(found.is_empty()));
        }
        if found.is_empty() {
            return self.if_exists || self.of == Of::All || (self.is_negated && self.of == Of::One);
        }
        let value_of = |name: &str| context.single(name);
        let variables: Variables<'_> = if has_variables { Some(&value_of) } else { None };
        let fits = |given: &String| {
            let fits_one = self.values.iter().any(|value| self.fits(value, given, variables));
            fits_one != self.is_negated
        };
        match (self.of, self.is_negated) {
            (Of::All, _) | (Of::One, true) => found.iter().all(fits),
            (Of::Any, _) | (Of::One, false) => found.iter().any(fits),
        }
    }

    fn fits(&self, value: &str, given: &str, variables: Variables<'_>) -> bool {
        let plain = |most: usize| pattern::expanded(value, variables, most);
        match self.test {
            Test::Equal => plain(given.len()).is_some_and(|value| value == given),
            Test::EqualIgnoringCase => {
                // No lower-case form has fewer characters.
                let given = given.to_lowercase();
                plain(given.len()).is_some_and(|value| value.to_lowercase() == given)
            }
            Test::Like => pattern::matches(value, given, variables),
            Test::Arn => is_like_arn(value, given, variables),
            Test::Number(order) => compare(order, number(given), number(value)),
            Test::Date(order) => compare(order, seconds_of(given), seconds_of(value)),
            Test::Bool => flag(given).is_some() && flag(given) == flag(value),
            Test::Address => network(value)
                .zip(given.parse().ok())
                .is_some_and(|(network, address)| network.has(address)),
            Test::Null => false,
        }
    }

    /// Whether it restricts a request to certain callers, by a key that identifies the caller or
    /// its network and a literal value. A policy for all callers is not public with such a
    /// condition ("The meaning of public" in the S3 guide).
    pub fn is_binding(&self) -> bool {
        const KEYS: [&str; 13] = [
            "aws:sourceip",
            "aws:sourcearn",
            "aws:sourcevpc",
            "aws:sourcevpce",
            "aws:sourceowner",
            "aws:sourceaccount",
            "aws:userid",
            "aws:username",
            "aws:principalorgid",
            "aws:principalarn",
            "aws:principalaccount",
            "s3:dataaccesspointaccount",
            "s3:dataaccesspointarn",
        ];
        let is_fixed = |value: &String| match self.test {
            Test::Address => network(value).is_some_and(|network| !network.is_wide()),
            Test::Equal | Test::EqualIgnoringCase => !value.contains("${"),
            Test::Like | Test::Arn => !value.contains(['*', '?']) && !value.contains("${"),
            _ => false,
        };
        let holds_without = self.is_negated || self.if_exists || self.of == Of::All;
        !holds_without && KEYS.contains(&self.key.as_str()) && self.values.iter().all(is_fixed)
    }
}

fn compare<N: PartialOrd>(order: Order, given: Option<N>, value: Option<N>) -> bool {
    given.zip(value).is_some_and(|(given, value)| match order {
        Order::Equal => given == value,
        Order::Less => given < value,
        Order::LessOrEqual => given <= value,
        Order::Greater => given > value,
        Order::GreaterOrEqual => given >= value,
    })
}

/// Names of resources are compared by their six parts, so that a `*` does not match across a colon.
fn is_like_arn(value: &str, given: &str, variables: Variables<'_>) -> bool {
    let (value, given): (Vec<_>, Vec<_>) = (value.splitn(6, ':').collect(), given.splitn(6, ':').collect());
    value.len() == 6
        && given.len() == 6
        && value
            .iter()
            .zip(&given)
            .all(|(value, given)| pattern::matches(value, given, variables))
}

pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite())
}

fn flag(text: &str) -> Option<bool> {
    [("true", true), ("false", false)]
        .into_iter()
        .find_map(|(name, flag)| text.eq_ignore_ascii_case(name).then_some(flag))
}

/// Prefix length of an IPv4 address in IPv6 form (RFC 4291, section 2.5.5.2).
const MAPPED_BITS: u32 = 96;

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    start: IpAddr,
    bits: u32,
}

fn network(text: &str) -> Option<Network> {
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(address, bits)| (address, Some(bits)));
    let start: IpAddr = address.parse().ok()?;
    let most: u32 = if start.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => most,
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= most)?,
    };
    // A range of IPv4 addresses in IPv6 form is compared as IPv4, like the addresses of requests.
    let as_written = bits.checked_sub(MAPPED_BITS).zip(match start {
        IpAddr::V6(start) => start.to_ipv4_mapped(),
        IpAddr::V4(_) => None,
    });
    Some(as_written.map_or(Network { start, bits }, |(bits, start)| Network {
        start: start.into(),
        bits,
    }))
}

impl Network {
    fn has(self, address: IpAddr) -> bool {
        // On a dual-stack socket, the address of an IPv4 client has the IPv6 form.
        match (self.start, address.to_canonical()) {
            (IpAddr::V4(start), IpAddr::V4(address)) => {
                let differ = u32::from(start) ^ u32::from(address);
                differ.leading_zeros() >= self.bits
            }
            (IpAddr::V6(start), IpAddr::V6(address)) => {
                let differ = u128::from(start) ^ u128::from(address);
                differ.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }

    /// A range so large that it does not restrict callers.
    fn is_wide(self) -> bool {
        self.bits < if self.start.is_ipv4() { 8 } else { 32 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn holds(operator: &str, values: &[&str], given: &[&str]) -> bool {
        let mut context = Context::default();
        given.iter().for_each(|given| context.add("aws:k", *given));
        context.add("aws:username", "anna");
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        Condition::new(operator, "AWS:K", values).unwrap().holds(&context, true)
    }

    #[test]
    fn operators() {
        for (operator, value, given, expected) in [
            ("StringEquals", "a", "a", true),
            ("StringEquals", "a", "A", false),
            ("StringEquals", "a*", "ab", false),
            ("StringEquals", "${aws:username}", "anna", true),
            ("stringequalsignorecase", "Ä", "ä", true),
            ("StringLike", "a*", "ab", true),
            ("StringNotLike", "a*", "ab", false),
            ("NumericEquals", "10", "10.0", true),
            ("NumericLessThan", "10", "9", true),
            ("NumericLessThanEquals", "10", "11", false),
            ("NumericGreaterThan", "10", "x", false),
            ("DateLessThan", "2026-01-02T00:00:00Z", "2026-01-01T23:59:59.5Z", true),
            ("DateGreaterThanEquals", "1767225600", "2026-01-01T01:00:00+01:00", true),
            ("DateEquals", "2026-01-01", "1767225600", true),
            ("Bool", "true", "True", true),
            ("Bool", "false", "true", false),
            ("IpAddress", "10.0.0.0/8", "10.255.3.4", true),
            ("IpAddress", "10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("IpAddress", "::ffff:10.0.0.0/104", "10.1.1.1", true),
            ("IpAddress", "::ffff:10.0.0.0/104", "11.1.1.1", false),
            ("NotIpAddress", "::ffff:10.0.0.1", "10.0.0.1", false),
            ("IpAddress", "::/0", "2001:db8::1", true),
            ("IpAddress", "0.0.0.0/0", "1.2.3.4", true),
            ("NotIpAddress", "2001:db8::/32", "2001:db8::1", false),
            ("IpAddress", "10.0.0.1", "10.0.0.2", false),
            ("ArnLike", "arn:aws:iam::*:user/*", "arn:aws:iam::1:user/x", true),
            ("ArnEquals", "arn:aws:*", "arn:aws:iam::1:user/x", false),
        ] {
            assert_eq!(
                holds(operator, &[value], &[given]),
                expected,
                "{operator} {value} {given}"
            );
        }
    }

    #[test]
    fn what_is_not_there_and_what_is_several() {
        for (operator, given, expected) in [
            ("StringEquals", &[][..], false),
            ("StringNotEquals", &[], true),
            ("StringEqualsIfExists", &[], true),
            ("StringEqualsIfExists", &["x"], false),
            ("ForAllValues:StringEquals", &[], true),
            ("ForAnyValue:StringEquals", &[], false),
            ("ForAnyValue:StringEqualsIfExists", &[], true),
            ("ForAllValues:StringEquals", &["a", "b"], true),
            ("ForAllValues:StringEquals", &["a", "x"], false),
            ("ForAnyValue:StringEquals", &["x", "b"], true),
            ("ForAnyValue:StringNotEquals", &["a", "x"], true),
            ("ForAnyValue:StringNotEquals", &["a"], false),
            ("ForAllValues:StringNotEquals", &["x", "a"], false),
            ("StringNotEquals", &["x", "a"], false),
        ] {
            assert_eq!(holds(operator, &["a", "b"], given), expected, "{operator} {given:?}");
        }
        assert!(holds("Null", &["true"], &[]) && !holds("Null", &["false"], &[]));
        assert!(holds("Null", &["false"], &["x"]) && !holds("Null", &["true"], &["x"]));
    }

    #[test]
    fn keys_that_s3_has() {
        for (key, expected) in [
            ("s3:Prefix", Standing::Known),
            ("aws:ResourceAccount", Standing::Known),
            ("aws:Anything", Standing::Known),
            ("s3:ExistingObjectTag/a/b", Standing::Known),
            ("s3:ObjectCreationOperation", Standing::Known),
            ("s3:BucketTag/a", Standing::Unanswered),
            ("s3:RequestJobPriority", Standing::Unanswered),
            ("s3:ObjectCreationOperations", Standing::Unknown),
            ("s3:ExistingObjectTag", Standing::Unknown),
            ("s3:ExistingObjectTag/", Standing::Unknown),
            ("s3:prefix/a", Standing::Unknown),
            ("s3:x-amz-tagging", Standing::Unknown),
        ] {
            assert_eq!(standing(&normal_key(key)), expected, "{key}");
        }
        for key in KEYS.iter().chain(&UNANSWERED) {
            assert_eq!(normal_key(key), *key);
        }
    }

    #[test]
    fn conditions_that_are_none() {
        for (operator, key, value) in [
            ("StringIs", "aws:k", "x"),
            ("ForSome:StringEquals", "aws:k", "x"),
            ("NullIfExists", "aws:k", "true"),
            ("StringEquals", "k", "x"),
            ("StringEquals", "aws:", "x"),
            ("NumericEquals", "s3:max-keys", "many"),
            ("NumericEquals", "s3:max-keys", "inf"),
            ("DateEquals", "aws:CurrentTime", "2026-13-01"),
            ("DateEquals", "aws:CurrentTime", "2026-1"),
            ("Bool", "aws:SecureTransport", "yes"),
            ("IpAddress", "aws:SourceIp", "10.0.0.0/33"),
        ] {
            assert!(
                Condition::new(operator, key, vec![value.to_owned()]).is_err(),
                "{operator} {key} {value}"
            );
        }
        assert!(Condition::new("StringEquals", "aws:k", Vec::new()).is_err());
    }
}
