//! What S3 objects are in a Terrace store, without the protocol that they come and go by.
//!
//! Names and people: where everything is ([`keyspace`]), whose it is ([`account`], [`access_key`],
//! [`session`], [`secrets`]), what others may do with it ([`policy`], [`acl`], [`lock`]), and the
//! one place where that is decided ([`access`]).
//!
//! Objects: what is stored of a bucket ([`bucket`] with [`lifecycle`], [`logging`],
//! [`notification`], [`website`]) and of an object ([`record`], [`manifest`], [`part`], [`upload`],
//! [`tags`], [`checksum`], [`crypt`]), how values are written ([`mod@write`], [`digest`]), objects
//! replaced ([`commit`], [`keep`], [`outbox`]), read ([`read`], [`versions`], [`local`]) and listed
//! ([`list`]), and how what nothing refers to, or no rule wants any more, goes ([`collector`] and
//! [`walk`], by [`engine`]). [`error`] says what can go wrong.
//!
//! Nothing here knows HTTP or S3's XML, so that another protocol could ask the same questions, and
//! so that a fuzzer reaches every decoder. docs/adr/0022-crates.md has the reasons.

pub mod access;
pub mod access_key;
pub mod account;
pub mod acl;
pub mod bucket;
pub mod checksum;
pub mod class;
pub mod collector;
pub mod commit;
pub mod crypt;
pub mod digest;
pub mod engine;
pub mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod keep;
pub mod keyspace;
pub mod lifecycle;
pub mod list;
pub mod local;
pub mod lock;
pub mod logging;
pub mod manifest;
pub mod notification;
pub mod outbox;
pub mod part;
pub mod policy;
pub mod read;
pub mod record;
pub mod secrets;
pub mod session;
pub mod tags;
pub mod text;
pub mod upload;
pub mod versions;
pub mod walk;
pub mod website;
pub mod write;
