//! `quorumfs cost plan`: what a volume would cost, before there is one.
//!
//! With clouds, one table by cloud and kind. Without, every sensible choice among the providers of
//! the prices file: n from 3f + 1 up to the number of providers, the most data shards that n allows
//! (k = n − 2f), one cloud a provider; the cheapest are shown, and each provider alone, which
//! tolerates the failure of none.

use super::live::by_kind;
use crate::arguments::CostPlanArguments;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::prices::{PriceBook, PriceEntry};
use quorumfs_gateway::blocks::Preference;
use quorumfs_gateway::cost::{
    Bill, CloudUse, Money, PartOfMonth, PlannedUse, PlannedWorkload, alone, bill, plan,
};
use quorumfs_metadata::placement::Policy;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The most choices that are looked at: a prices file of one's own may have many entries.
const CHOICES_MAX: usize = 200_000;
/// The provider of directories, which no choice of providers has.
const LOCAL: &str = "local";

/// What a month costs, and what writing everything once does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Costs {
    monthly: Bill,
    filling: Bill,
}

fn costs(entry: &PriceEntry, planned: &PlannedUse) -> Costs {
    let of = |used: &CloudUse| bill(&entry.list, used, PartOfMonth::WHOLE);
    Costs {
        monthly: of(&planned.monthly),
        // Storing is a matter of time, and has its place in the month.
        filling: Bill {
            storage: Money::ZERO,
            ..of(&planned.filling)
        },
    }
}

/// A choice of clouds and policy, and its costs.
#[derive(Clone, Debug)]
struct Choice<'a> {
    entries: Vec<&'a PriceEntry>,
    policy: Policy,
    preference: Preference,
    planned: Vec<PlannedUse>,
    costs: Vec<Costs>,
}

impl<'a> Choice<'a> {
    fn of(
        entries: Vec<&'a PriceEntry>,
        policy: Policy,
        preference: Preference,
        workload: &PlannedWorkload,
    ) -> Self {
        let read_prices: Vec<u64> = entries.iter().map(|it| it.read_price()).collect();
        let planned = plan(workload, policy, preference, &read_prices);
        let pairs = entries.iter().zip(&planned);
        Self {
            costs: pairs.map(|(entry, it)| costs(entry, it)).collect(),
            entries,
            policy,
            preference,
            planned,
        }
    }

    /// With the preference that is asked for, or the cheaper one.
    fn cheaper(
        entries: &[&'a PriceEntry],
        policy: Policy,
        asked: Option<Preference>,
        workload: &PlannedWorkload,
    ) -> Self {
        let with = |preference| Self::of(entries.to_vec(), policy, preference, workload);
        match asked {
            Some(preference) => with(preference),
            None => {
                let (fast, cheap) = (with(Preference::Fast), with(Preference::Cheap));
                if cheap.monthly() < fast.monthly() {
                    cheap
                } else {
                    fast
                }
            }
        }
    }

    fn monthly(&self) -> Money {
        self.costs.iter().map(|it| it.monthly.total()).sum()
    }

    fn filling(&self) -> Money {
        self.costs.iter().map(|it| it.filling.total()).sum()
    }

    fn line(&self, currency: &str) -> CostChoiceLine {
        let names = self.entries.iter().map(|entry| entry.name.clone());
        CostChoiceLine {
            clouds: names.collect(),
            n: self.policy.clouds(),
            f: self.policy.faulty(),
            k: self.policy.data(),
            prefer: self.preference.to_string(),
            currency: currency.to_owned(),
            monthly: self.monthly().units(),
            filling: self.filling().units(),
            text: format!(
                "{:>10} {:>10}  {} of {}, {}\n{}",
                self.monthly(),
                self.filling(),
                self.policy.data(),
                self.policy.clouds(),
                self.preference,
                wrapped(self.entries.iter().map(|entry| entry.name.as_str())),
            ),
        }
    }
}

/// Names on lines that fit a terminal, indented below the numbers.
fn wrapped<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const INDENT: &str = "             ";
    const COLUMNS: usize = 90;
    let mut lines = vec![INDENT.to_owned()];
    for name in names {
        let is_full = |line: &String| line.len() + name.len() > COLUMNS;
        match lines.last_mut().filter(|line| !is_full(line)) {
            Some(line) => line.push_str(&format!("{name}, ")),
            None => lines.push(format!("{INDENT}{name}, ")),
        }
    }
    let lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
    lines.join("\n").trim_end_matches(',').to_owned()
}

/// A choice.
#[derive(Debug, Serialize)]
struct CostChoiceLine {
    clouds: Vec<String>,
    n: u8,
    f: u8,
    k: u8,
    prefer: String,
    currency: String,
    monthly: f64,
    filling: f64,
    #[serde(skip)]
    text: String,
}

/// One provider alone, without this program.
#[derive(Debug, Serialize)]
struct CostAloneLine {
    cloud: String,
    currency: String,
    monthly: f64,
    filling: f64,
    #[serde(skip)]
    text: String,
}

impl CostAloneLine {
    fn of(entry: &PriceEntry, workload: &PlannedWorkload, currency: &str) -> Self {
        let costs = costs(entry, &alone(workload));
        let (monthly, filling) = (costs.monthly.total(), costs.filling.total());
        Self {
            cloud: entry.name.clone(),
            currency: currency.to_owned(),
            monthly: monthly.units(),
            filling: filling.units(),
            text: format!("{monthly:>10} {filling:>10}  alone: {}", entry.name),
        }
    }
}

/// What a plan says of one cloud.
#[derive(Debug, Serialize)]
struct CostPlannedLine {
    cloud: String,
    currency: String,
    stored_bytes: u64,
    objects: u64,
    /// Writing everything once.
    filling_puts: u64,
    filling_bytes_sent: u64,
    /// A month.
    puts: u64,
    gets: u64,
    lists: u64,
    deletes: u64,
    bytes_sent: u64,
    bytes_received: u64,
    monthly: BTreeMap<&'static str, f64>,
    filling: BTreeMap<&'static str, f64>,
    #[serde(skip)]
    text: String,
}

impl CostPlannedLine {
    fn of(entry: &PriceEntry, planned: &PlannedUse, costs: &Costs, currency: &str) -> Self {
        let (month, bill) = (&planned.monthly, &costs.monthly);
        let requests = [bill.put, bill.get, bill.head, bill.list, bill.delete];
        let requests: Money = requests.into_iter().sum();
        let text = format!(
            "{:<30} {:>9} {:>9} {:>9} {:>9} {:>9}\n  {} in {} objects\n  \
             a month: {} puts, {} gets, {} lists, {} deletions; {} received",
            entry.name,
            bill.storage + bill.early_deletion,
            requests,
            bill.egress + bill.retrieval,
            bill.total(),
            costs.filling.total(),
            gigabytes(month.stored),
            month.objects,
            month.puts,
            month.gets,
            month.lists,
            month.deletes,
            gigabytes(month.bytes_received),
        );
        Self {
            cloud: entry.name.clone(),
            currency: currency.to_owned(),
            stored_bytes: month.stored,
            objects: month.objects,
            filling_puts: planned.filling.puts,
            filling_bytes_sent: planned.filling.bytes_sent,
            puts: month.puts,
            gets: month.gets,
            lists: month.lists,
            deletes: month.deletes,
            bytes_sent: month.bytes_sent,
            bytes_received: month.bytes_received,
            monthly: by_kind(bill),
            filling: by_kind(&costs.filling),
            text,
        }
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Prints the plan.
pub(super) fn run(
    prices: Option<&Path>,
    arguments: &CostPlanArguments,
    output: Output,
) -> CommandResult {
    let book = PriceBook::open(prices)?;
    let workload = PlannedWorkload {
        bytes: arguments.size,
        files: arguments.files,
        bytes_read: arguments.reads,
        bytes_written: arguments.writes,
        together: !arguments.one_by_one,
    };
    let note = match arguments.clouds.is_empty() {
        true => choices(&book, arguments, &workload, output)?,
        false => detailed(&book, arguments, &workload, output)?,
    };
    output.print_text(&format!(
        "\n{note}\nIn {}, at list prices of {}: prices change, check them.",
        book.currency, book.as_of
    ))?;
    Ok(Exit::Success)
}

fn impossible(error: impl ToString) -> Failure {
    Failure::new(
        Exit::Usage,
        format!("the clouds cannot work together: {}", error.to_string()),
    )
    .hint("with f clouds that may fail it takes 3f + 1, or 2f + k for k data shards")
}

/// One table by cloud and kind.
fn detailed(
    book: &PriceBook,
    arguments: &CostPlanArguments,
    workload: &PlannedWorkload,
    output: Output,
) -> CommandResult<String> {
    let named = arguments.clouds.iter().map(|name| book.find(name));
    let entries = named.collect::<CommandResult<Vec<_>>>()?;
    let n = u8::try_from(entries.len()).map_err(|_| impossible("there are too many"))?;
    let f = arguments.faulty_clouds;
    let most = n.saturating_sub(f.saturating_mul(2)).max(1);
    let k = arguments.data_shards.unwrap_or(most);
    let policy = Policy::new(n, f, k, n).map_err(impossible)?;
    let asked = arguments.prefer.map(Preference::from);
    let choice = Choice::cheaper(&entries, policy, asked, workload);
    output.print_text(&format!(
        "{:<30} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "cloud", "storage", "requests", "reading", "a month", "to fill"
    ))?;
    for ((entry, planned), costs) in entries.iter().zip(&choice.planned).zip(&choice.costs) {
        let line = CostPlannedLine::of(entry, planned, costs, &book.currency);
        output.record("cost_planned", &line, |line| line.text.clone())?;
    }
    output.print_text("\n   a month    to fill")?;
    let line = choice.line(&book.currency);
    output.record("cost_choice", &line, |line| line.text.clone())?;
    let mut seen: Vec<&str> = Vec::new();
    for entry in &entries {
        if entry.provider != LOCAL && !seen.contains(&entry.name.as_str()) {
            seen.push(&entry.name);
            let line = CostAloneLine::of(entry, workload, &book.currency);
            output.record("cost_alone", &line, |line| line.text.clone())?;
        }
    }
    Ok(format!(
        "Any {k} of {n} clouds rebuild the content; {f} may vanish or lie."
    ))
}

/// The cheapest choices, and each provider alone.
fn choices(
    book: &PriceBook,
    arguments: &CostPlanArguments,
    workload: &PlannedWorkload,
    output: Output,
) -> CommandResult<String> {
    let entries: Vec<&PriceEntry> = book
        .entries
        .iter()
        .filter(|it| it.provider != LOCAL)
        .collect();
    let mut providers: Vec<Vec<&PriceEntry>> = Vec::new();
    for entry in &entries {
        let known = providers.iter_mut().find(|them| {
            let first = them.first();
            first.is_some_and(|first| first.provider == entry.provider)
        });
        match known {
            Some(them) => them.push(entry),
            None => providers.push(vec![entry]),
        }
    }
    let f = usize::from(arguments.faulty_clouds);
    let least = 3 * f + 1;
    if providers.len() < least {
        let (has, f) = (providers.len(), arguments.faulty_clouds);
        let message =
            format!("the prices are of {has} providers, and {f} that may fail take {least}");
        return Err(Failure::new(Exit::Usage, message)
            .hint("name the clouds with --cloud, or add providers to a file for --prices"));
    }
    let sets = sets(&providers, least)?;
    let asked = arguments.prefer.map(Preference::from);
    let mut choices = Vec::new();
    for set in sets {
        let n = u8::try_from(set.len()).map_err(|_| impossible("there are too many"))?;
        let f = arguments.faulty_clouds;
        let k = n.saturating_sub(f.saturating_mul(2)).max(1);
        let policy = Policy::new(n, f, k, n).map_err(impossible)?;
        let choice = Choice::cheaper(&set, policy, asked, workload);
        choices.push((choice.monthly(), choice.line(&book.currency)));
    }
    // Stable: of equal prices the one with fewer clouds is first.
    choices.sort_by_key(|(monthly, _)| *monthly);
    choices.truncate(arguments.top);
    output.print_text("   a month    to fill  k of n, prefer")?;
    for (_, line) in &choices {
        output.record("cost_choice", line, |line| line.text.clone())?;
    }
    output.print_text("")?;
    let mut alone: Vec<_> = entries
        .iter()
        .map(|entry| CostAloneLine::of(entry, workload, &book.currency))
        .collect();
    alone.sort_by(|one, other| one.monthly.total_cmp(&other.monthly));
    for line in &alone {
        output.record("cost_alone", line, |line| line.text.clone())?;
    }
    Ok(format!(
        "In each choice {} may vanish or lie; of a provider alone, none.",
        match arguments.faulty_clouds {
            1 => "one cloud".to_owned(),
            f => format!("{f} clouds"),
        }
    ))
}

/// Every set of at least so many entries, of different providers; small sets first.
fn sets<'a>(
    providers: &[Vec<&'a PriceEntry>],
    least: usize,
) -> CommandResult<Vec<Vec<&'a PriceEntry>>> {
    let mut sets: Vec<Vec<&PriceEntry>> = vec![Vec::new()];
    for provider in providers {
        let mut more = Vec::new();
        for set in &sets {
            for entry in provider {
                let mut with = set.clone();
                with.push(*entry);
                more.push(with);
            }
        }
        sets.extend(more);
        if sets.len() > CHOICES_MAX {
            let message = "the prices file has too many entries to look at every choice of them";
            return Err(
                Failure::new(Exit::Usage, message).hint("name the clouds with --cloud instead")
            );
        }
    }
    sets.retain(|set| set.len() >= least);
    sets.sort_by_key(Vec::len);
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> PlannedWorkload {
        PlannedWorkload {
            bytes: 500_000_000_000,
            files: 200_000,
            bytes_read: 50_000_000_000,
            bytes_written: 0,
            together: true,
        }
    }

    #[test]
    fn a_choice_has_each_provider_once_and_enough_of_them() {
        let book = PriceBook::open(None).unwrap();
        let of = |provider: &str| -> Vec<&PriceEntry> {
            let entries = book.entries.iter();
            entries.filter(|it| it.provider == provider).collect()
        };
        let providers = ["amazon", "microsoft", "google", "b2", "r2"].map(of);
        let sets = sets(&providers, 4).unwrap();
        // Two entries of Amazon and two of Google: 4 with all five; 4 without each of three others,
        // 2 without Amazon, 2 without Google.
        assert_eq!(sets.len(), 4 + 3 * 4 + 2 * 2);
        for set in sets {
            let mut providers: Vec<_> = set.iter().map(|it| &it.provider).collect();
            providers.sort();
            providers.dedup();
            assert!(providers.len() == set.len() && set.len() >= 4);
        }
    }

    #[test]
    fn the_parts_of_a_choice_add_up_and_the_cheaper_preference_is_taken() {
        let book = PriceBook::open(None).unwrap();
        let names = ["amazon", "google", "b2", "r2"];
        let entries: Vec<_> = names.iter().map(|name| book.find(name).unwrap()).collect();
        let policy = Policy::new(4, 1, 2, 4).unwrap();
        let of = |asked| Choice::cheaper(&entries, policy, asked, &workload());
        let (fast, cheap) = (of(Some(Preference::Fast)), of(Some(Preference::Cheap)));
        assert!(cheap.monthly() < fast.monthly(), "reads avoid what is dear");
        assert_eq!(of(None).monthly(), cheap.monthly());
        let parts = cheap.costs.iter().flat_map(|it| it.monthly.entries());
        let sum: Money = parts.map(|(_, money)| money).sum();
        assert_eq!(sum, cheap.monthly());
        // Half a terabyte twice, at 0.023, 0.02, 0.006 and 0.015 a gigabyte, a quarter each.
        assert!((10.0..25.0).contains(&cheap.monthly().units()));
    }
}
