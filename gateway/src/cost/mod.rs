//! What a volume costs: prices, use, bills, plans and budgets, as pure arithmetic.
//!
//! ```text
//!   workload ──plan──► use of each cloud ──┐
//!   counted requests, stored bytes ────────┴─► bill, by kind ──sum──► budget ──► what may go on
//!                        price list of a cloud ──┘
//! ```
//!
//! | Module | Content |
//! |---|---|
//! | `money` | amounts, exact |
//! | `price` | what a cloud charges: tariffs with tiers, minimums, allowances |
//! | `bill` | the price of a use, by kind |
//! | `plan` | the use that a workload makes of each cloud |
//! | `budget` | what yields when the money of a month is spent |
//!
//! Invariants:
//! * **Nothing here has a clock, a file or a cloud**: the caller says how much of the month is over
//!   and what was counted. The same numbers give the same bill.
//! * **Amounts are whole numbers**, so that the sum of the kinds is the total and no order of
//!   additions matters.
//! * **More use never costs less**, except where a provider gives egress away for each stored byte.
//! * No price stops a read. See [`Allowance`].
//!
//! What can go wrong: a price list is out of date, or a contract has other prices. So a bill is an
//! estimate, and all who show one say of when its prices are.

mod bill;
mod budget;
mod money;
mod plan;
mod price;

pub use bill::{Bill, CloudUse, PartOfMonth, bill};
pub use budget::{Allowance, Budget, BudgetLevel, PaidWork};
pub use money::Money;
pub use plan::{PlannedUse, PlannedWorkload, alone, plan};
pub use price::{PriceList, Tariff, Tier};
