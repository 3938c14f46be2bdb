//! The website of a bucket: put, get, delete.

use super::{Answered, set};
use crate::s3::{
    Gateway, errors,
    keyspace::KEY_BYTES_MAX,
    website::{AllTo, Redirect, Rule, Settings},
};
use hyper::header::HeaderValue;
use s3s::{
    S3Error, S3Request, S3Response, S3Result,
    dto::{
        self, ErrorDocument, GetBucketWebsiteInput, GetBucketWebsiteOutput, IndexDocument, Protocol,
        PutBucketWebsiteInput, PutBucketWebsiteOutput, RedirectAllRequestsTo, RoutingRule, WebsiteConfiguration,
    },
    s3_error,
};
use std::sync::Arc;

/// Most rules of a website, as in S3.
const RULES_MAX: usize = 50;

/// The bucket has no website.
pub fn no_site() -> S3Error {
    s3_error!(
        NoSuchWebsiteConfiguration,
        "The specified bucket does not have a website configuration"
    )
}

/// PutBucketWebsite
pub async fn put(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketWebsiteInput>,
) -> Answered<PutBucketWebsiteOutput> {
    let settings = read(request.input.website_configuration)?;
    set(gateway, request.input.bucket, |record| record.website = Some(settings)).await
}

/// GetBucketWebsite
pub fn get(gateway: &Gateway, request: &S3Request<GetBucketWebsiteInput>) -> Answered<GetBucketWebsiteOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    let settings = record.website.clone().ok_or_else(no_site)?;
    Ok(S3Response::new(shown_site(settings)))
}

/// A site as it was put.
pub fn shown_site(settings: Settings) -> GetBucketWebsiteOutput {
    let protocol = |name: Option<String>| name.map(Protocol::from);
    GetBucketWebsiteOutput {
        error_document: settings.error.map(|key| ErrorDocument { key }),
        index_document: settings.index.map(|suffix| IndexDocument { suffix }),
        redirect_all_requests_to: settings.all_to.map(|to| RedirectAllRequestsTo {
            host_name: to.host,
            protocol: protocol(to.protocol),
        }),
        routing_rules: Some(settings.rules.into_iter().map(shown).collect::<Vec<_>>())
            .filter(|rules| !rules.is_empty()),
    }
}

/// A rule for answers.
fn shown(rule: Rule) -> RoutingRule {
    let has_condition = rule.prefix.is_some() || rule.status.is_some();
    RoutingRule {
        condition: has_condition.then(|| dto::Condition {
            http_error_code_returned_equals: rule.status.map(|status| status.to_string()),
            key_prefix_equals: rule.prefix,
        }),
        redirect: dto::Redirect {
            host_name: rule.redirect.host,
            http_redirect_code: rule.redirect.status.map(|status| status.to_string()),
            protocol: rule.redirect.protocol.map(Protocol::from),
            replace_key_prefix_with: rule.redirect.key_prefix,
            replace_key_with: rule.redirect.key,
        },
    }
}

/// A site as it is stored.
///
/// # Errors
/// Errors of the settings.
pub fn read(given: WebsiteConfiguration) -> S3Result<Settings> {
    if let Some(all) = given.redirect_all_requests_to {
        if given.index_document.is_some() || given.error_document.is_some() || given.routing_rules.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "RedirectAllRequestsTo cannot be provided in conjunction with other Routing Rules."
            ));
        }
        return Ok(Settings {
            all_to: Some(AllTo {
                host: host(all.host_name)?,
                protocol: all.protocol.map(protocol).transpose()?,
            }),
            ..Settings::default()
        });
    }
    let index = given.index_document.ok_or_else(|| {
        s3_error!(
            InvalidArgument,
            "A value for IndexDocument Suffix must be provided if RedirectAllRequestsTo is empty"
        )
    })?;
    if index.suffix.is_empty() || index.suffix.contains('/') || !is_key(&index.suffix) {
        return Err(s3_error!(
            InvalidArgument,
            "The IndexDocument Suffix is not well formed"
        ));
    }
    let error = given.error_document.map(|document| document.key);
    if error.as_ref().is_some_and(|key| key.is_empty() || !is_key(key)) {
        return Err(s3_error!(InvalidArgument, "The ErrorDocument Key is not well formed"));
    }
    let rules = given.routing_rules.unwrap_or_default();
    if rules.len() > RULES_MAX {
        return Err(s3_error!(
            InvalidRequest,
            "{} rules provided, the maximum number of rules allowed per website configuration is {RULES_MAX}.",
            rules.len()
        ));
    }
    Ok(Settings {
        index: Some(index.suffix),
        error,
        all_to: None,
        rules: rules.into_iter().map(rule).collect::<S3Result<_>>()?,
    })
}

fn is_key(text: &str) -> bool {
    text.len() <= KEY_BYTES_MAX && !text.contains('\0')
}

/// A host name, with or without a port, for a redirect.
fn host(name: String) -> S3Result<String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:[]".contains(letter);
    if name.is_empty() || !name.chars().all(is_plain) || HeaderValue::from_str(&name).is_err() {
        return Err(s3_error!(
            InvalidRequest,
            "The HostName of a redirect is not well formed"
        ));
    }
    Ok(name)
}

fn protocol(given: Protocol) -> S3Result<String> {
    match given.as_str() {
        known @ ("http" | "https") => Ok(known.to_owned()),
        _ => Err(s3_error!(
            InvalidRequest,
            "Invalid protocol, protocol can be http or https. If not defined the protocol will be selected automatically."
        )),
    }
}

/// Reads a status, if it is permitted.
fn status(text: &str, may: impl Fn(u16) -> bool) -> Option<u16> {
    text.parse().ok().filter(|status| may(*status))
}

fn rule(given: RoutingRule) -> S3Result<Rule> {
    let condition = given.condition.map(condition).transpose()?;
    let (prefix, of_status) = condition.unwrap_or_default();
    let to = given.redirect;
    if to.replace_key_with.is_some() && to.replace_key_prefix_with.is_some() {
        return Err(s3_error!(
            InvalidRequest,
            "You can only define ReplaceKeyPrefix or ReplaceKey but not both."
        ));
    }
    let code = to.http_redirect_code.map(|text| {
        status(&text, |status| (301..400).contains(&status)).ok_or_else(|| {
            s3_error!(
                InvalidRequest,
                "The provided HTTP redirect code ({text}) is not valid. Valid codes are 3XX except 300."
            )
        })
    });
    let redirect = Redirect {
        host: to.host_name.map(host).transpose()?,
        protocol: to.protocol.map(protocol).transpose()?,
        status: code.transpose()?,
        key_prefix: to.replace_key_prefix_with,
        key: to.replace_key_with,
    };
    if redirect == Redirect::default() {
        return Err(errors::malformed_xml());
    }
    Ok(Rule {
        prefix,
        status: of_status,
        redirect,
    })
}

fn condition(given: dto::Condition) -> S3Result<(Option<String>, Option<u16>)> {
    let of_status = given.http_error_code_returned_equals.map(|text| {
        status(&text, |status| (400..600).contains(&status)).ok_or_else(|| {
            s3_error!(
                InvalidRequest,
                "The provided HTTP error code ({text}) is not valid. Valid codes are 4XX or 5XX."
            )
        })
    });
    let of_status = of_status.transpose()?;
    if given.key_prefix_equals.is_none() && of_status.is_none() {
        return Err(s3_error!(
            InvalidRequest,
            "Condition cannot be empty. To redirect all requests without a condition, the condition element shouldn't be present."
        ));
    }
    Ok((given.key_prefix_equals, of_status))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn to(change: impl FnOnce(&mut RoutingRule)) -> RoutingRule {
        let mut rule = RoutingRule {
            condition: Some(dto::Condition {
                http_error_code_returned_equals: Some("404".to_owned()),
                key_prefix_equals: Some("docs/".to_owned()),
            }),
            redirect: dto::Redirect {
                host_name: Some("example.org:81".to_owned()),
                http_redirect_code: Some("302".to_owned()),
                protocol: Some(Protocol::from("https".to_owned())),
                replace_key_prefix_with: Some("documents/".to_owned()),
                replace_key_with: None,
            },
        };
        change(&mut rule);
        rule
    }

    fn refused(change: impl FnOnce(&mut WebsiteConfiguration)) -> String {
        let mut site = WebsiteConfiguration {
            index_document: Some(IndexDocument {
                suffix: "index.html".to_owned(),
            }),
            ..WebsiteConfiguration::default()
        };
        change(&mut site);
        let refused = read(site).err();
        refused
            .map(|error| error.code().as_str().to_owned())
            .unwrap_or_default()
    }

    #[test]
    fn rules_come_back_as_they_were_put() {
        let given = to(|_| {});
        assert_eq!(shown(rule(given.clone()).unwrap()), given);
        let given = to(|rule| rule.condition = None);
        assert_eq!(shown(rule(given.clone()).unwrap()), given);
    }

    #[test]
    fn sites_that_are_wrong() {
        let with = |change: &dyn Fn(&mut RoutingRule)| refused(|site| site.routing_rules = Some(vec![to(change)]));
        assert_eq!(refused(|_| {}), "");
        assert_eq!(with(&|_| {}), "");
        assert_eq!(
            with(&|rule| rule.redirect.http_redirect_code = Some("300".to_owned())),
            "InvalidRequest"
        );
        assert_eq!(
            with(&|rule| rule.redirect.replace_key_with = Some("k".to_owned())),
            "InvalidRequest"
        );
        assert_eq!(
            with(&|rule| rule.redirect.host_name = Some("a b".to_owned())),
            "InvalidRequest"
        );
        assert_eq!(
            with(&|rule| rule.redirect.protocol = Some(Protocol::from("ftp".to_owned()))),
            "InvalidRequest"
        );
        assert_eq!(with(&|rule| rule.redirect = dto::Redirect::default()), "MalformedXML");
        assert_eq!(
            with(&|rule| rule.condition = Some(dto::Condition::default())),
            "InvalidRequest"
        );
        let code = |rule: &mut RoutingRule| {
            rule.condition.as_mut().unwrap().http_error_code_returned_equals = Some("301".to_owned());
        };
        assert_eq!(with(&code), "InvalidRequest");
        assert_eq!(
            refused(|site| site.routing_rules = Some(vec![to(|_| {}); RULES_MAX + 1])),
            "InvalidRequest"
        );
        assert_eq!(refused(|site| site.index_document = None), "InvalidArgument");
        for suffix in ["", "a/b"] {
            let index = Some(IndexDocument {
                suffix: suffix.to_owned(),
            });
            assert_eq!(refused(|site| site.index_document = index), "InvalidArgument");
        }
        let empty = Some(ErrorDocument { key: String::new() });
        assert_eq!(refused(|site| site.error_document = empty), "InvalidArgument");
        let all = Some(RedirectAllRequestsTo {
            host_name: "x".to_owned(),
            protocol: None,
        });
        assert_eq!(refused(|site| site.redirect_all_requests_to = all), "InvalidRequest");
    }
}
