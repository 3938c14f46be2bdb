//! The object model of S3 on a Terrace store, without the protocol.
//!
//! Names and permissions: the layout of keys ([`keyspace`]), owners and credentials ([`account`],
//! [`access_key`], [`session`], [`secrets`]), rules ([`policy`], [`acl`], [`lock`]), and the one
//! place that decides access ([`access`]).
//!
//! Objects: records of a bucket ([`bucket`] with [`lifecycle`], [`logging`], [`notification`],
//! [`website`]) and of an object ([`record`], [`manifest`], [`part`], [`upload`], [`tags`],
//! [`tag`], [`checksum`], [`crypt`]); writing values ([`mod@write`], [`digest`]), replacing objects
//! ([`commit`], [`keep`], [`outbox`]), reading ([`read`], [`versions`], [`local`]) and listing them
//! ([`list`]); deleting unreferenced and expired data ([`collector`], [`walk`]). [`engine`] calls
//! the engine, and [`error`] has the errors.
//!
//! Nothing here depends on HTTP or S3's XML, so another protocol can use it, and a fuzzer reaches
//! every decoder. docs/adr/0022-crates.md has the reasons.

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
pub mod lasting;
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
pub mod tag;
pub mod tags;
pub mod text;
pub mod upload;
pub mod versions;
pub mod walk;
pub mod website;
pub mod write;
