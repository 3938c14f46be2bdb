//! Access: [`decide`] has the answer, and [`asker`] the question that policies are asked.

pub mod asker;
pub mod decide;
