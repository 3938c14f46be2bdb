//! What S3 objects are in a Terrace store, without the protocol that they come and go by: the names
//! of everything ([`keyspace`]), whose it is ([`account`], [`access_key`], [`session`],
//! [`secrets`]), what others may do with it ([`policy`], [`acl`], [`lock`]), what an object of many
//! parts is made of ([`manifest`], [`checksum`]), and how what nothing refers to goes
//! ([`collector`], by [`engine`]).
//!
//! Nothing here knows HTTP or S3's XML, so that another protocol could ask the same questions, and
//! so that a fuzzer reaches every decoder. docs/adr/0022-crates.md says what is to follow.

pub mod access_key;
pub mod account;
pub mod acl;
pub mod checksum;
pub mod collector;
pub mod engine;
pub mod error;
pub mod keyspace;
pub mod lock;
pub mod manifest;
pub mod policy;
pub mod secrets;
pub mod session;
pub mod tags;
pub mod text;
pub mod website;
