//! What a volume's owner says of its cost: where the prices are, and the budget of a month.

use super::VolumeConfiguration;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::prices::PriceBook;
use quorumfs_gateway::cost::{Budget, Money};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where the prices are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CostSection {
    /// A prices file in place of the one that ships with the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prices: Option<PathBuf>,
}

impl VolumeConfiguration {
    /// The prices: those of its file, relative to `base`, or those of the program.
    pub(crate) fn prices(&self, base: &Path) -> CommandResult<PriceBook> {
        let own = self.cost.prices.as_ref().map(|path| base.join(path));
        PriceBook::open(own.as_deref())
    }
}

/// What happens when the hard bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum PastHard {
    /// `status`, `cost` and the log say so.
    #[default]
    #[serde(rename = "warn")]
    Warn,
    /// In addition, no new content is written.
    #[serde(rename = "stop writes")]
    StopWrites,
}

/// The budget of a month, for the volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BudgetSection {
    /// From here on work that can wait yields: an amount and a currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) soft: Option<String>,
    /// From here on the owner is warned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hard: Option<String>,
    /// What else happens then.
    pub(crate) past_hard: PastHard,
}

impl BudgetSection {
    /// The bounds, in the currency of the prices.
    ///
    /// # Errors
    /// If an amount is none, has another currency, or the soft bound is above the hard one.
    pub(crate) fn budget(&self, currency: &str) -> CommandResult<Budget> {
        bounds(
            "[budget]",
            self.soft.as_deref(),
            self.hard.as_deref(),
            currency,
        )
    }
}

/// The budget of a month, for one cloud.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CloudBudget {
    /// As of the volume's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) soft: Option<String>,
    /// As of the volume's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hard: Option<String>,
}

impl CloudBudget {
    /// As of the volume's; `cloud` is for messages.
    ///
    /// # Errors
    /// As of the volume's.
    pub(crate) fn budget(&self, cloud: &str, currency: &str) -> CommandResult<Budget> {
        let place = format!("`budget` of cloud `{cloud}`");
        bounds(&place, self.soft.as_deref(), self.hard.as_deref(), currency)
    }
}

fn bounds(
    place: &str,
    soft: Option<&str>,
    hard: Option<&str>,
    currency: &str,
) -> CommandResult<Budget> {
    let amount = |key: &str, text: Option<&str>| {
        let wrong = |why: String| {
            Failure::new(Exit::Usage, format!("`{key}` of {place}: {why}")).hint(format!(
                "write an amount and a currency, like \"20 {currency}\""
            ))
        };
        text.map(|text| {
            let (amount, given) = text.split_once(' ').unwrap_or((text, ""));
            if given != currency {
                let why = format!("`{text}` is not in {currency}, the currency of the prices");
                return Err(wrong(why));
            }
            amount
                .parse::<Money>()
                .map_err(|error| wrong(format!("`{text}`: {error}")))
        })
        .transpose()
    };
    let budget = Budget {
        soft: amount("soft", soft)?,
        hard: amount("hard", hard)?,
    };
    match (budget.soft, budget.hard) {
        (Some(soft), Some(hard)) if soft > hard => {
            let message = format!("`soft` of {place} is above `hard`");
            Err(Failure::new(Exit::Usage, message).hint("the soft bound is reached first"))
        }
        _ => Ok(budget),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(soft: &str, hard: &str) -> BudgetSection {
        BudgetSection {
            soft: Some(soft.to_owned()),
            hard: Some(hard.to_owned()),
            past_hard: PastHard::Warn,
        }
    }

    #[test]
    fn a_budget_has_amounts_in_the_currency_of_the_prices() {
        let budget = section("20 USD", "40.50 USD").budget("USD").unwrap();
        assert_eq!(budget.soft, Some("20".parse().unwrap()));
        assert_eq!(budget.hard, Some("40.5".parse().unwrap()));
        let none = BudgetSection::default().budget("USD").unwrap();
        assert_eq!(none, Budget::default());
        for (soft, hard, said) in [
            ("20", "40 USD", "`soft` of [budget]: `20` is not in USD"),
            ("20 EUR", "40 USD", "`20 EUR` is not in USD"),
            ("20 USD", "-40 USD", "`hard` of [budget]: `-40 USD`"),
            ("50 USD", "40 USD", "`soft` of [budget] is above `hard`"),
        ] {
            let failure = section(soft, hard).budget("USD").unwrap_err();
            assert!(failure.message.contains(said), "{failure}");
            assert_eq!(failure.exit, Exit::Usage);
        }
    }
}
