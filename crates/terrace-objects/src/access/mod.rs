//! Access: [`decide`] decides, [`action`] has the actions, [`asker`] the questions to policies.

pub mod action;
pub mod asker;
pub mod decide;
