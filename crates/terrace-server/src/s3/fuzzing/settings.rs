//! Settings of a bucket in XML: those returned can be put again, with the same meaning.

use crate::s3::account::Accounts;
use crate::s3::acl::{GRANTS_MAX, List, Permission, is_readable};
use crate::s3::ops::{acl, configure, lifecycle, lock, notifications, website};
use s3s::{
    S3Result,
    dto::{
        AccessControlPolicy, BucketLifecycleConfiguration, CORSConfiguration, GetBucketLifecycleConfigurationOutput,
        NotificationConfiguration, ObjectLockConfiguration, WebsiteConfiguration,
    },
    xml::{Deserialize, Deserializer, Serialize, Serializer},
};
use std::fmt::Debug;

fn parse<T: for<'xml> Deserialize<'xml>>(xml: &[u8]) -> Option<T> {
    let mut reader = Deserializer::new(xml);
    let value = T::deserialize(&mut reader).ok()?;
    reader.expect_eof().ok().map(|()| value)
}

fn again<G, S, O>(xml: &[u8], read: impl Fn(G) -> S3Result<S>, shown: impl Fn(&S) -> O) -> bool
where
    G: for<'xml> Deserialize<'xml>,
    S: PartialEq + Debug,
    O: Serialize,
{
    let Some(Ok(stored)) = parse::<G>(xml).map(&read) else {
        return false;
    };
    let mut text = Vec::new();
    let written = shown(&stored).serialize(&mut Serializer::new(&mut text));
    assert!(written.is_ok(), "what is stored is shown");
    let text_shown = String::from_utf8_lossy(&text);
    let second = parse::<G>(&text).unwrap_or_else(|| panic!("what is shown is read: {text_shown}"));
    let second = read(second).unwrap_or_else(|error| panic!("{error:?}: {text_shown}"));
    assert_eq!(second, stored, "{text_shown}");
    true
}

/// Any settings, chosen by the root element.
pub fn settings_xml(xml: &[u8]) -> bool {
    let lifecycle = |given: BucketLifecycleConfiguration| lifecycle::read_rules(given.rules);
    let cors = |given: CORSConfiguration| configure::read_cors(given.cors_rules);
    let site = |given: WebsiteConfiguration| website::read(given);
    let notifications = |given: NotificationConfiguration| notifications::read(given);
    let lock = |given: ObjectLockConfiguration| lock::read(&given);
    let is_lifecycle = again(xml, lifecycle, |rules| GetBucketLifecycleConfigurationOutput {
        rules: Some(rules.iter().map(lifecycle::shown).collect()),
        transition_default_minimum_object_size: None,
    });
    is_lifecycle
        | again(xml, cors, |rules| configure::shown_cors(rules))
        | again(xml, site, |site| website::shown_site(site.clone()))
        | again(xml, notifications, |rules| notifications::shown_rules(rules))
        | again(xml, lock, |settings| lock::shown(*settings))
}

/// Grants in XML or in a header, where the only accounts are those of AWS itself: their stored and
/// shown forms can be put again, and are the same.
pub fn grants(said: &[u8]) -> bool {
    let accounts = Accounts::default();
    let stored = |grants: S3Result<Vec<_>>| grants.and_then(|grants| acl::stored(&grants, "press"));
    let text = std::str::from_utf8(said).ok();
    let of_header = text.map(|text| acl::read_header(text, Permission::Read, &accounts));
    let of_xml = parse::<AccessControlPolicy>(said)
        .and_then(|list| list.grants)
        .map(|grants| grants.iter().map(|grant| acl::read_grant(grant, &accounts)).collect());
    let mut is_accepted = false;
    for grants in [of_header, of_xml].into_iter().flatten() {
        let Ok(list) = stored(grants) else { continue };
        is_accepted = true;
        assert!(is_readable(&list), "{list}");
        let shown = acl::shown(List {
            text: &list,
            owner: "press",
        });
        assert!(shown.len() <= GRANTS_MAX);
        let again = stored(shown.iter().map(|grant| acl::read_grant(grant, &accounts)).collect());
        assert_eq!(again.ok().as_deref(), Some(list.as_str()));
    }
    is_accepted
}
