//! Access: [`decide`] has the answer, [`action`] what can be asked for, and [`asker`] the question
//! that policies are asked.

pub mod action;
pub mod asker;
pub mod decide;
