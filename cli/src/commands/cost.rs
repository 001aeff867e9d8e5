//! `quorumfs cost`: what the volume costs this month, by cloud and kind; and `cost plan`, what one
//! would cost.
//!
//! ```text
//!   stores count requests ──► usage file ──┐
//!   quota: bytes, files ──► stored bytes ──┴─► account ──► cost, status; budget ──► tasks, writes
//!   workload ──► plan ─────────────────────────────────► cost plan
//!                        prices file ──► both
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | `usage` | the file in which all processes of a state directory count |
//! | `month` | the months that it counts in |
//! | `account` | the costs of a month, from counts, stored bytes and prices |
//! | `spending` | counting and obeying the budget while a volume is open |
//! | `live` | `quorumfs cost` |
//! | `planned` | `quorumfs cost plan` |
//!
//! **What is counted and what is estimated.** Requests and traffic are counted where clouds are
//! called, retries included, by every process that opens the volume from this state directory.
//! Other machines count in theirs. Stored bytes are estimated: from the bytes and files of the
//! quota, as a plan does, and from the garbage that a mount knows of. A month's prices are those of
//! the file.

mod account;
mod live;
mod month;
mod planned;
mod spending;
mod usage;

pub(crate) use account::{BudgetReport, CostBasis};
pub(super) use spending::Spending;

use crate::arguments::{CostArguments, CostCommand, General};
use crate::failure::CommandResult;
use crate::output::Output;

/// Shows the costs of the month, or a plan.
pub(crate) async fn run(
    general: &General,
    arguments: &CostArguments,
    output: Output,
) -> CommandResult {
    match &arguments.command {
        None => live::run(general, arguments, output).await,
        Some(CostCommand::Plan(plan)) => planned::run(arguments.prices.as_deref(), plan, output),
    }
}
