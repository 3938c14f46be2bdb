//! Owners and access control lists of buckets and objects.

use crate::{
    account,
    acl::{self, List},
    record::Facts,
};

use super::Record;
/// Value of [`Record::ownership`] that disables access control lists.
pub const NO_LISTS: &str = "BucketOwnerEnforced";

impl Record {
    /// Access control lists are disabled.
    pub fn has_no_lists(&self) -> bool {
        self.ownership.as_deref() == Some(NO_LISTS)
    }

    /// Access control lists are enabled.
    pub fn obeys_lists(&self) -> bool {
        !self.has_no_lists()
    }

    /// Lists with grants to clients that are not named are refused.
    pub fn refuses_public_lists(&self) -> bool {
        self.public_access_block.is_some_and(|block| block.refuse_lists)
    }

    /// Grants to clients that are not named have effect.
    pub fn obeys_public_lists(&self) -> bool {
        !self.public_access_block.is_some_and(|block| block.ignore_lists)
    }

    /// Its list makes it public.
    pub fn is_public_by_list(&self) -> bool {
        self.obeys_public_lists() && self.list().is_public()
    }

    /// Its account.
    pub fn owner(&self) -> &str {
        self.account.as_deref().unwrap_or(account::DEFAULT)
    }

    /// The account of an object in it: the bucket's, if lists are disabled.
    pub fn owner_of<'a>(&'a self, facts: &'a Facts) -> &'a str {
        let others = facts.account().filter(|_| !self.has_no_lists());
        others.unwrap_or_else(|| self.owner())
    }

    /// Its access control list; if lists are disabled, one that grants all to the owner.
    pub fn list(&self) -> List<'_> {
        let canned = if self.acl_public && !self.has_no_lists() {
            acl::PUBLIC_READ
        } else {
            ""
        };
        List {
            text: self.acl.as_deref().filter(|_| !self.has_no_lists()).unwrap_or(canned),
            owner: self.owner(),
        }
    }

    /// The access control list of an object in it.
    pub fn list_of<'a>(&'a self, facts: &'a Facts) -> List<'a> {
        List {
            text: if self.has_no_lists() { "" } else { facts.list() },
            owner: self.owner_of(facts),
        }
    }

    /// Sets its access control list.
    pub fn set_list(&mut self, text: String) {
        self.acl_public = text == acl::PUBLIC_READ;
        self.acl = Some(text).filter(|text| !text.is_empty() && !self.acl_public);
    }
}
