//! A finding: one line for people, one record for programs, and its severity.

use crate::clouds::Role;
use crate::exit::Exit;
use serde::Serialize;

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Warning,
    /// It does not work.
    Problem,
    /// It allows what it should not.
    TooMuch,
}

impl Level {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "PROBLEM",
            Self::TooMuch => "TOO MUCH",
        }
    }
}

/// A time that was predicted, and what it is if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ComparedTime {
    /// The replica that is so far away, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) replica: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured_ms: Option<f64>,
    pub(super) predicted_ms: f64,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// Its subject: `machine`, `replicas`, `plan`, or a cloud's name.
    pub(super) about: String,
    /// The role whose credentials were used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<Role>,
    /// The check, in one word that does not change.
    pub(super) check: &'static str,
    /// The result.
    pub(super) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) milliseconds: Option<u64>,
    /// What was compared with a plan.
    #[serde(flatten)]
    pub(super) compared: Option<Box<ComparedTime>>,
    /// The exit code unless a worse one follows.
    #[serde(skip)]
    pub(super) exit: Exit,
}

impl Finding {
    /// A finding about `about`.
    pub(super) fn new(level: Level, about: &str, check: &'static str, text: String) -> Self {
        Self {
            level,
            about: about.to_owned(),
            role: None,
            check,
            text,
            remedy: None,
            milliseconds: None,
            compared: None,
            exit: match level {
                Level::Ok | Level::Warning => Exit::Success,
                Level::Problem => Exit::Error,
                Level::TooMuch => Exit::TooMuch,
            },
        }
    }

    /// Adds the role whose credentials were used.
    pub(super) fn of(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Adds what to do.
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds what to do if it is not as it should be.
    pub(super) fn or_remedy(self, remedy: &str) -> Self {
        match self.level {
            Level::Ok => self,
            Level::Warning | Level::Problem | Level::TooMuch => self.remedy(remedy),
        }
    }

    /// Adds what was compared with a plan.
    pub(super) fn comparing(mut self, compared: ComparedTime) -> Self {
        self.compared = Some(Box::new(compared));
        self
    }

    /// Adds the exit code of a problem.
    pub(super) fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Adds how long it took.
    pub(super) fn took(mut self, length: std::time::Duration) -> Self {
        self.milliseconds = u64::try_from(length.as_millis()).ok();
        self
    }

    /// The text form.
    pub(super) fn line(&self) -> String {
        let role = self
            .role
            .map_or(String::new(), |role| format!("{}: ", role.name()));
        let took = self
            .milliseconds
            .map_or(String::new(), |ms| format!(" ({ms} ms)"));
        let mut line = format!(
            "{:<9} {}: {role}{}{took}",
            self.level.text(),
            self.about,
            self.text
        );
        if let Some(remedy) = &self.remedy {
            line.push_str(&format!("\n{:<9}   {remedy}", ""));
        }
        line
    }
}

/// The overall exit code. A missing limit comes first, since it goes unnoticed otherwise.
pub(super) fn exit(findings: &[Finding]) -> Exit {
    let worst = findings.iter().max_by_key(|finding| {
        let clouds = finding.exit == Exit::CloudsUnreachable;
        (finding.level, clouds)
    });
    worst.map_or(Exit::Success, |finding| finding.exit)
}
