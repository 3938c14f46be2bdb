//! Settings of a bucket: cross-origin rules and a policy.

use super::{Answered, change_bucket, set};
use crate::s3::{
    Gateway,
    bucket::{Bucket, CorsRule, unreadable},
    head::Head,
    judged,
    policy::Policy,
};
use s3s::{
    S3Request, S3Response, S3Result,
    dto::{
        CORSRule, DeleteBucketPolicyInput, DeleteBucketPolicyOutput, GetBucketCorsInput, GetBucketCorsOutput,
        GetBucketPolicyInput, GetBucketPolicyOutput, GetBucketPolicyStatusInput, GetBucketPolicyStatusOutput,
        PolicyStatus, PutBucketCorsInput, PutBucketCorsOutput, PutBucketPolicyInput, PutBucketPolicyOutput,
    },
    s3_error,
};
use std::sync::Arc;

/// Most cross-origin rules of a bucket.
const CORS_RULES_MAX: usize = 100;
/// Most bytes of a bucket's cross-origin rules, and longest name of one, as in S3.
const CORS_BYTES_MAX: usize = 64 << 10;
const CORS_ID_MAX: usize = 255;
/// Methods a rule may allow.
const CORS_METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// GetBucketCors
pub fn get_cors(gateway: &Gateway, request: &S3Request<GetBucketCorsInput>) -> Answered<GetBucketCorsOutput> {
    let record = gateway.bucket(&request.input.bucket)?.record();
    if record.cors.is_empty() {
        return Err(s3_error!(
            NoSuchCORSConfiguration,
            "The CORS configuration does not exist"
        ));
    }
    Ok(S3Response::new(shown_cors(&record.cors)))
}

/// Rules as they were put.
pub fn shown_cors(rules: &[CorsRule]) -> GetBucketCorsOutput {
    let given = |list: &Vec<String>| (!list.is_empty()).then(|| list.clone());
    let rules = rules.iter().map(|rule| CORSRule {
        allowed_headers: given(&rule.headers),
        allowed_methods: rule.methods.clone(),
        allowed_origins: rule.origins.clone(),
        expose_headers: given(&rule.expose),
        id: rule.id.clone(),
        max_age_seconds: rule.max_age_seconds,
    });
    GetBucketCorsOutput {
        cors_rules: Some(rules.collect()),
    }
}

/// PutBucketCors
pub async fn put_cors(gateway: &Arc<Gateway>, request: S3Request<PutBucketCorsInput>) -> Answered<PutBucketCorsOutput> {
    let rules = read_cors(request.input.cors_configuration.cors_rules)?;
    set(gateway, request.input.bucket, |record| record.cors = rules).await
}

/// Rules as they are stored.
///
/// # Errors
/// Errors of the rules.
pub fn read_cors(rules: Vec<CORSRule>) -> S3Result<Vec<CorsRule>> {
    if rules.is_empty() || rules.len() > CORS_RULES_MAX {
        return Err(s3_error!(
            MalformedXML,
            "A CORS configuration has 1 to {CORS_RULES_MAX} rules"
        ));
    }
    let rules = rules.into_iter().map(cors_rule).collect::<S3Result<Vec<_>>>()?;
    check_cors_length(&rules)?;
    Ok(rules)
}

/// Refuses rules that are longer than S3's: they are in memory, and checked for every cross-origin
/// request.
fn check_cors_length(rules: &[CorsRule]) -> S3Result {
    let lists =
        |rule: &CorsRule| [&rule.origins, &rule.methods, &rule.headers, &rule.expose].map(|list| list.join(",").len());
    let bytes: usize = rules.iter().flat_map(lists).sum();
    if bytes > CORS_BYTES_MAX {
        return Err(s3_error!(
            InvalidRequest,
            "The CORS configuration exceeds the limit of {CORS_BYTES_MAX} bytes"
        ));
    }
    let is_long = |rule: &CorsRule| rule.id.as_ref().is_some_and(|id| id.chars().count() > CORS_ID_MAX);
    if rules.iter().any(is_long) {
        return Err(s3_error!(
            InvalidRequest,
            "The ID of a CORS rule has {CORS_ID_MAX} characters at most"
        ));
    }
    Ok(())
}

fn cors_rule(rule: CORSRule) -> S3Result<CorsRule> {
    for method in &rule.allowed_methods {
        if !CORS_METHODS.contains(&method.as_str()) {
            return Err(s3_error!(
                InvalidRequest,
                "Found unsupported HTTP method in CORS config. Unsupported method is {method}"
            ));
        }
    }
    let headers = rule.allowed_headers.unwrap_or_default();
    let stars = |text: &String| text.matches('*').count() > 1;
    if rule.allowed_origins.iter().chain(&headers).any(stars) {
        return Err(s3_error!(
            InvalidRequest,
            "An origin or a header can have only one wildcard"
        ));
    }
    let expose = rule.expose_headers.unwrap_or_default();
    if expose.iter().any(|name| name.contains('*')) {
        return Err(s3_error!(InvalidRequest, "A header to expose cannot have a wildcard"));
    }
    if rule.allowed_origins.is_empty() || rule.allowed_methods.is_empty() {
        return Err(s3_error!(
            MalformedXML,
            "A CORS rule has at least one origin and one method"
        ));
    }
    Ok(CorsRule {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers,
        expose,
        max_age_seconds: rule.max_age_seconds,
    })
}

/// PutBucketPolicy
pub async fn put_policy(
    gateway: &Arc<Gateway>,
    request: S3Request<PutBucketPolicyInput>,
) -> Answered<PutBucketPolicyOutput> {
    let input = request.input;
    let malformed = |wrong| s3_error!(MalformedPolicy, "{wrong}");
    let rules = Policy::of_bucket(&input.policy, &input.bucket).map_err(malformed)?;
    if rules.allows_all_but_some() {
        return Err(malformed("Allow with NotPrincipal is not allowed.".to_owned()));
    }
    judged::check_keys(&rules, Head::of(&request.extensions)?.peer)?;
    let policy = input.policy;
    change_bucket(gateway, input.bucket, move |record| {
        let is_refused = record.public_access_block.is_some_and(|block| block.refuse_policies);
        if is_refused && rules.is_public() {
            return Err(s3_error!(AccessDenied, "Access Denied"));
        }
        (record.public_read, record.public_list) = rules.opens();
        record.policy = Some(policy);
        record.rules = Some(Arc::new(rules));
        record.repaired(unreadable::POLICY);
        Ok(())
    })
    .await
}

fn policy_of(bucket: &Bucket) -> S3Result<String> {
    let policy = bucket.record().policy.clone();
    policy.ok_or_else(|| s3_error!(NoSuchBucketPolicy, "The bucket policy does not exist"))
}

/// GetBucketPolicy
pub fn get_policy(gateway: &Gateway, request: &S3Request<GetBucketPolicyInput>) -> Answered<GetBucketPolicyOutput> {
    let policy = policy_of(&*gateway.bucket(&request.input.bucket)?)?;
    Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(policy) }))
}

/// GetBucketPolicyStatus: whether the bucket is public, by its policy or by its list; also without
/// a policy.
pub fn policy_status(
    gateway: &Gateway,
    request: &S3Request<GetBucketPolicyStatusInput>,
) -> Answered<GetBucketPolicyStatusOutput> {
    let bucket = gateway.bucket(&request.input.bucket)?;
    let record = bucket.record();
    let is_public = record.rules.as_ref().is_some_and(|rules| rules.is_public()) || record.is_public_by_list();
    Ok(S3Response::new(GetBucketPolicyStatusOutput {
        policy_status: Some(PolicyStatus {
            is_public: Some(is_public || record.is_read_by_all() || record.is_listed_by_all()),
        }),
    }))
}

/// DeleteBucketPolicy
pub async fn delete_policy(
    gateway: &Arc<Gateway>,
    request: S3Request<DeleteBucketPolicyInput>,
) -> Answered<DeleteBucketPolicyOutput> {
    set(gateway, request.input.bucket, |record| {
        (record.public_read, record.public_list) = (false, false);
        (record.policy, record.rules) = (None, None);
        record.repaired(unreadable::POLICY);
    })
    .await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Regression: a hundred rules of any length were accepted: megabytes of memory for each
    /// bucket, copied at each change.
    #[test]
    fn cross_origin_rules_have_a_length() {
        let rules = |count: usize, bytes: usize, id: usize| {
            let rule = CorsRule {
                id: Some("i".repeat(id)),
                origins: vec!["o".repeat(bytes)],
                ..CorsRule::default()
            };
            check_cors_length(&vec![rule; count]).is_ok()
        };
        assert!(rules(64, 1024, 255));
        assert!(!rules(65, 1024, 255) && !rules(1, CORS_BYTES_MAX + 1, 0) && !rules(1, 1, 256));
    }
}
