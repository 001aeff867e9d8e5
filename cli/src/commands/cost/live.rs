//! `quorumfs cost`: what the volume costs this month, so far and projected.

use super::account::{Account, CloudAccount, CostBasis, HeldContent};
use super::month::MonthSoFar;
use super::usage::{CountedUse, FILE, MonthCounts, UsageFile};
use crate::arguments::{CostArguments, General};
use crate::commands::Configured;
use crate::commands::cloud_report::mebibytes;
use crate::commands::mount_report::MountReport;
use crate::control::{self, Question};
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::CommandResult;
use crate::output::Output;
use crate::prices::PriceOf;
use quorumfs_gateway::cost::{Bill, BudgetLevel, Money};
use quorumfs_gateway::metadata::{MetadataClient, Ordered};
use quorumfs_metadata::fleet::CloudState;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a mount may take to report its state.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The price of each kind, for programs.
pub(super) fn by_kind(bill: &Bill) -> BTreeMap<&'static str, f64> {
    let kinds = bill.entries().into_iter();
    let mut kinds: BTreeMap<_, _> = kinds.map(|(kind, money)| (kind, money.units())).collect();
    kinds.insert("total", bill.total().units());
    kinds
}

/// What a cloud was used for in a month.
#[derive(Debug, Serialize)]
struct CostCloudLine {
    name: String,
    /// Whether it takes new shards.
    state: &'static str,
    /// The entry of the prices file, if there is one.
    price: Option<String>,
    /// Whether the entry was taken because it is its provider's first.
    price_assumed: bool,
    #[serde(flatten)]
    counted: CountedUse,
    /// An estimate.
    stored_bytes: u64,
    so_far: BTreeMap<&'static str, f64>,
    projected: BTreeMap<&'static str, f64>,
    budget: &'static str,
    /// Why deleted data is paid for.
    #[serde(skip_serializing_if = "Option::is_none")]
    keeps_deleted: Option<&'static str>,
    #[serde(skip)]
    text: String,
}

impl CostCloudLine {
    fn of(cloud: &CloudAccount, keeps_deleted: Option<&'static str>) -> Self {
        let used = &cloud.used;
        Self {
            name: cloud.name.clone(),
            state: cloud.state.name(),
            price: cloud.price.entry().map(|entry| entry.name.clone()),
            price_assumed: matches!(cloud.price, PriceOf::Usual(_)),
            counted: CountedUse {
                puts: used.puts,
                gets: used.gets,
                heads: used.heads,
                lists: used.lists,
                deletes: used.deletes,
                bytes_sent: used.bytes_sent,
                bytes_received: used.bytes_received,
            },
            stored_bytes: used.stored,
            so_far: by_kind(&cloud.so_far),
            projected: by_kind(&cloud.projected),
            budget: cloud.level.name(),
            keeps_deleted,
            text: text(cloud, keeps_deleted),
        }
    }
}

/// The text of a cloud: a line of prices, a line of counts, and notes.
fn text(cloud: &CloudAccount, keeps_deleted: Option<&'static str>) -> String {
    let (used, bill) = (&cloud.used, &cloud.so_far);
    let requests = [bill.put, bill.get, bill.head, bill.list, bill.delete];
    let requests: Money = requests.into_iter().sum();
    let reading = bill.egress + bill.retrieval;
    let mut text = format!(
        "{:<16} {:>10} {:>10} {:>10} {:>12} {:>12}",
        cloud.name,
        bill.storage,
        requests,
        reading,
        bill.total(),
        cloud.projected.total(),
    );
    text.push_str(&format!(
        "\n  about {} stored; {} puts, {} gets, {} lists, {} deletions; {} sent, {} received",
        mebibytes(used.stored),
        used.puts,
        used.gets.saturating_add(used.heads),
        used.lists,
        used.deletes,
        mebibytes(used.bytes_sent),
        mebibytes(used.bytes_received),
    ));
    match cloud.state {
        CloudState::Active => {}
        CloudState::Draining => text.push_str(
            "\n  it was replaced, and counts as if it stored its whole share until it is empty",
        ),
        state => text.push_str(&format!("\n  {}: it stores no content", state.name())),
    }
    match &cloud.price {
        PriceOf::Named(_) => {}
        PriceOf::Usual(entry) => text.push_str(&format!(
            "\n  prices of {}: name another entry with `price` in quorumfs.toml if that is wrong",
            entry.name
        )),
        PriceOf::Unknown => text.push_str(
            "\n  NO PRICES ARE KNOWN, so it counts as free: name an entry with `price` in \
             quorumfs.toml",
        ),
    }
    if let Some(why) = keeps_deleted {
        text.push_str(&format!("\n  {why}"));
    }
    if cloud.level > BudgetLevel::Within {
        text.push_str(&format!("\n  ITS BUDGET IS SPENT: {}", cloud.level.name()));
    }
    text
}

/// The month as a whole.
#[derive(Debug, Serialize)]
struct CostMonthLine {
    month: String,
    currency: String,
    prices_as_of: String,
    so_far: f64,
    projected: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    soft: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hard: Option<f64>,
    budget: &'static str,
    writes_stopped: bool,
    #[serde(skip)]
    text: String,
}

impl CostMonthLine {
    fn of(basis: &CostBasis, account: &Account) -> Self {
        let (book, budget) = (basis.book(), basis.budget());
        let stopped = basis.report(account).writes_stopped;
        let (so_far, projected) = (account.so_far(), account.projected());
        let currency = &book.currency;
        let mut text = format!(
            "\n{}: {so_far} {currency} so far, about {projected} {currency} for the whole month, \
             at prices of {}.",
            account.month.name, book.as_of
        );
        let bounds = [("soft", budget.soft), ("hard", budget.hard)];
        for (name, bound) in bounds {
            if let Some(bound) = bound {
                text.push_str(&format!("\nThe {name} budget is {bound} {currency}."));
            }
        }
        text.push_str(match (account.level, stopped) {
            (BudgetLevel::Within, _) => "",
            (BudgetLevel::PastSoft, _) => {
                "\nA SOFT BUDGET IS SPENT: compaction, sweeps and scrubs wait for the next month."
            }
            (BudgetLevel::PastHard, false) => {
                "\nA HARD BUDGET IS SPENT: compaction, sweeps and scrubs wait; writes go on."
            }
            (BudgetLevel::PastHard, true) => {
                "\nA HARD BUDGET IS SPENT: nothing can be written; reads go on."
            }
        });
        text.push_str(
            "\nRequests and traffic are counted on this machine; stored bytes are estimated.",
        );
        Self {
            month: account.month.name.clone(),
            currency: currency.clone(),
            prices_as_of: book.as_of.clone(),
            so_far: so_far.units(),
            projected: projected.units(),
            soft: budget.soft.map(|it| it.units()),
            hard: budget.hard.map(|it| it.units()),
            budget: account.level.name(),
            writes_stopped: stopped,
            text,
        }
    }
}

/// What was counted of a cloud in a month.
#[derive(Debug, Serialize)]
struct CostCountedLine {
    month: String,
    name: String,
    #[serde(flatten)]
    counted: CountedUse,
}

impl CostCountedLine {
    fn text(&self) -> String {
        let counted = &self.counted;
        format!(
            "{} {:<16} {} puts, {} gets, {} lists, {} deletions; {} sent, {} received",
            self.month,
            self.name,
            counted.puts,
            counted.gets.saturating_add(counted.heads),
            counted.lists,
            counted.deletes,
            mebibytes(counted.bytes_sent),
            mebibytes(counted.bytes_received),
        )
    }
}

/// Shows the costs of this month.
pub(super) async fn run(
    general: &General,
    arguments: &CostArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let basis = match &arguments.prices {
        Some(path) => configured.costs_with(path)?,
        None => configured.costs().clone(),
    };
    // First of all: the mount stores what it has counted when it is asked.
    let garbage = garbage(&configured).await;
    let (content, keeping) = tokio::join!(content(&configured), configured.ask_keeping());
    let content = HeldContent {
        garbage,
        ..content?
    };
    let file = UsageFile::new(configured.state().join(FILE), configured.volume().id());
    let months = file.recall();
    if arguments.months {
        earlier(&configured, &months, output)?;
    }
    let month = MonthSoFar::now();
    let counts = months.get(&month.name).cloned().unwrap_or_default();
    let account = basis.account(month, &counts, content);
    output.print_text(&format!(
        "{:<16} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "cloud", "storage", "requests", "reading", "so far", "projected"
    ))?;
    let shown = account.clouds.iter().zip(keeping);
    let is_paid = |it: &CloudAccount| it.state != CloudState::Retired || it.used.requests() > 0;
    for (cloud, keeps) in shown.filter(|(cloud, _)| is_paid(cloud)) {
        let line = CostCloudLine::of(cloud, keeps);
        output.record("cost_cloud", &line, |line| line.text.clone())?;
    }
    let line = CostMonthLine::of(&basis, &account);
    output.record("cost_month", &line, |line| line.text.clone())?;
    Ok(Exit::Success)
}

/// Shows what was counted in each month.
fn earlier(
    configured: &Configured,
    months: &BTreeMap<String, MonthCounts>,
    output: Output,
) -> CommandResult<()> {
    for (month, counts) in months {
        for (number, counted) in counts {
            let cloud = configured.clouds().get(usize::from(*number));
            let line = CostCountedLine {
                month: month.clone(),
                name: cloud.map_or_else(|| format!("cloud {number}"), |it| it.name.clone()),
                counted: *counted,
            };
            output.record("cost_counted", &line, CostCountedLine::text)?;
        }
    }
    output.print_text("")
}

/// The garbage that a running mount knows of; none if there is no mount, or it does not answer.
async fn garbage(configured: &Configured) -> u64 {
    let asked = control::ask::<MountReport>(configured.state(), Question::Status);
    let answer = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    match answer {
        Ok(Ok(Some(report))) => report.garbage_bytes,
        _ => 0,
    }
}

/// What the volume holds, as its quota counts it.
async fn content(configured: &Configured) -> CommandResult<HeldContent> {
    let client = configured.connect().await?;
    let session = Arc::new(Ordered::new(client));
    let metadata = MetadataClient::new(session, configured.volume().own_credentials());
    let quota = metadata.realm_quota().await;
    metadata.close().await;
    let realm = quota.map_err(|error| vfs_failure(&error))?;
    Ok(HeldContent::of(&realm.used))
}
