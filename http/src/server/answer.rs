//! A request to its answer.
//!
//! ```text
//! method ─► admission ─► route ─► the link, asked anew ─► the entry ─► file │ folder │ archive
//!  405        429         404         404 or 503            404
//! ```
//!
//! The same page answers a token that is unknown, has ended, or is mistyped, and a path that is not
//! there: it says nothing of the volume.

use super::connection::Cut;
use super::download::{self, AnswerBody};
use super::face::{DownloadSlot, Face};
use super::folder;
use super::watched::{LinkEnd, WatchedLinks};
use crate::admission::{CountedAddress, forwarded_for};
use crate::conditions::{Conditions, Representation, RightAnswer, right_answer, time};
use crate::escape::{disposition, url};
use crate::headers::{Policy, secure};
use crate::kind::content_kind;
use crate::limits::PAGE_ENTRIES_MAX;
use crate::page::{self, PagePlace};
use crate::route::{LinkRoute, Route, WantedForm, route};
use crate::source::{LinkTarget, SourceError, TargetEntry, TargetKind};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONNECTION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, LOCATION, RANGE, RETRY_AFTER,
};
use hyper::{Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// When to come again if the source does not answer, or all places are taken: in seconds.
const RETRY_SECONDS: u64 = 10;

type LinkAnswer = Response<AnswerBody>;

/// A request that is being answered.
struct Asked<'a> {
    face: &'a Arc<Face>,
    cut: &'a Arc<Cut>,
    address: CountedAddress,
    is_head: bool,
    headers: &'a HeaderMap,
}

/// The answer to a request.
pub(super) async fn answer(
    face: &Arc<Face>,
    peer: IpAddr,
    cut: &Arc<Cut>,
    request: Request<Incoming>,
) -> LinkAnswer {
    let asked = Asked {
        face,
        cut,
        address: address(face, peer, request.headers()),
        is_head: request.method() == Method::HEAD,
        headers: request.headers(),
    };
    let answer = match *request.method() {
        Method::GET | Method::HEAD => asked.routed(request.uri().path(), request.uri().query()),
        _ => return not_allowed(),
    };
    let mut answer = answer.await;
    if asked.is_head && answer.headers().contains_key(CONTENT_LENGTH) {
        *answer.body_mut() = AnswerBody::empty();
    }
    tracing::debug!(status = answer.status().as_u16(), "answered");
    answer
}

/// The address that a request counts for.
fn address(face: &Face, peer: IpAddr, headers: &HeaderMap) -> CountedAddress {
    const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    let noted = headers.get_all(FORWARDED_FOR).iter().next_back();
    let noted = noted.filter(|_| face.options.trusts_forwarded);
    let client = noted.and_then(|value| forwarded_for(value.as_bytes()));
    client.unwrap_or(peer).into()
}

impl Asked<'_> {
    async fn routed(&self, path: &str, query: Option<&str>) -> LinkAnswer {
        if let Err(wait) = self.face.request(self.address) {
            return busy(StatusCode::TOO_MANY_REQUESTS, wait);
        }
        match route(&self.face.options.base, path, query) {
            Route::Front => text(
                StatusCode::OK,
                "Nothing to see here",
                "A link leads to what was shared.",
            ),
            Route::Link(link) => self.link(&link).await,
            Route::Nothing { is_try } => {
                if is_try {
                    self.face.wrong(self.address);
                }
                missing()
            }
        }
    }

    async fn link(&self, link: &LinkRoute) -> LinkAnswer {
        let within = self.face.limits().answer_within;
        let found = timeout(within, self.face.source.find(&link.token)).await;
        let target = match found {
            Ok(Ok(Some(target))) => target,
            Ok(Ok(None) | Err(SourceError::Missing)) => {
                self.face.wrong(self.address);
                return missing();
            }
            Ok(Err(error)) => return unavailable(&error.to_string()),
            Err(_) => return unavailable("the metadata servers take too long"),
        };
        let answered = timeout(within, self.entry(link, target)).await;
        match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(SourceError::Missing)) => missing(),
            Ok(Err(error)) => unavailable(&error.to_string()),
            Err(_) => unavailable("the volume takes too long"),
        }
    }

    async fn entry(
        &self,
        link: &LinkRoute,
        target: Arc<dyn LinkTarget>,
    ) -> Result<LinkAnswer, SourceError> {
        let entry = target.look(&link.path).await?;
        let number = target.number();
        tracing::debug!(link = number, depth = link.path.len(), "asked for");
        match (entry.kind, link.as_folder, link.form) {
            (TargetKind::File, false, _) => self.file(link, &*target, &entry).await,
            (TargetKind::Folder, false, _) => Ok(to_folder(link)),
            (TargetKind::Folder, true, WantedForm::Archive) => {
                Ok(self.archive(link, target, entry))
            }
            (TargetKind::Folder, true, WantedForm::Usual { after }) => {
                folder_page(link, &*target, &entry, after).await
            }
            _ => Err(SourceError::Missing),
        }
    }

    /// A place for a download, and the watch over its link.
    fn begin(&self, link: &LinkRoute, is_archive: bool) -> Option<(LinkEnd, DownloadSlot)> {
        let slot = self.face.download(self.address, is_archive)?;
        Some((WatchedLinks::watch(self.face, link.token), slot))
    }

    async fn file(
        &self,
        link: &LinkRoute,
        target: &dyn LinkTarget,
        entry: &TargetEntry,
    ) -> Result<LinkAnswer, SourceError> {
        let (entry, content) = target.open(entry).await?;
        let there = Representation {
            tag: tag(&entry),
            modified: entry.modified,
            length: entry.size,
        };
        let right = right_answer(&self.conditions(), &there);
        let (status, range) = match right {
            RightAnswer::Whole => (StatusCode::OK, 0..entry.size),
            RightAnswer::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            RightAnswer::NotModified => (StatusCode::NOT_MODIFIED, 0..0),
            RightAnswer::Failed => (StatusCode::PRECONDITION_FAILED, 0..0),
            RightAnswer::OutOfRange => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
        };
        let mut answer = Response::new(AnswerBody::empty());
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        secure(headers, Policy::Content);
        set(headers, ETAG, &there.tag);
        set(
            headers,
            LAST_MODIFIED,
            &httpdate::fmt_http_date(time(entry.modified)),
        );
        match status {
            StatusCode::NOT_MODIFIED => return Ok(answer),
            StatusCode::RANGE_NOT_SATISFIABLE => {
                set(headers, CONTENT_RANGE, &format!("bytes */{}", entry.size));
            }
            StatusCode::PARTIAL_CONTENT => {
                let (first, last) = (range.start, range.end.saturating_sub(1));
                set(
                    headers,
                    CONTENT_RANGE,
                    &format!("bytes {first}-{last}/{}", entry.size),
                );
            }
            _ => {}
        }
        let length = range.end.saturating_sub(range.start);
        set(headers, CONTENT_LENGTH, &length.to_string());
        if status.is_client_error() {
            return Ok(answer);
        }
        let name = link.path.last().map_or(target.name(), Vec::as_slice);
        let kind = content_kind(name);
        set(headers, ACCEPT_RANGES, "bytes");
        set(headers, CONTENT_TYPE, kind.media_type);
        set(
            headers,
            CONTENT_DISPOSITION,
            &disposition(kind.inline, name),
        );
        if !self.is_head && length > 0 {
            let Some(place) = self.begin(link, false) else {
                return Ok(full());
            };
            *answer.body_mut() =
                download::begin(self.face, place, self.cut, Some(length), move |sender| {
                    download::file(sender, content, range)
                });
        }
        Ok(answer)
    }

    fn archive(
        &self,
        link: &LinkRoute,
        target: Arc<dyn LinkTarget>,
        entry: TargetEntry,
    ) -> LinkAnswer {
        let name = link.path.last().map_or(target.name(), Vec::as_slice);
        let name = name.to_vec();
        let mut answer = Response::new(AnswerBody::empty());
        let headers = answer.headers_mut();
        secure(headers, Policy::Content);
        set(headers, CONTENT_TYPE, "application/zip");
        let file_name = [&name[..], b".zip"].concat();
        set(
            headers,
            CONTENT_DISPOSITION,
            &disposition(false, &file_name),
        );
        set(headers, ACCEPT_RANGES, "none");
        if !self.is_head {
            let Some(place) = self.begin(link, true) else {
                return full();
            };
            *answer.body_mut() = download::begin(self.face, place, self.cut, None, move |sender| {
                folder::archive(sender, target, name, entry)
            });
        }
        answer
    }

    fn conditions(&self) -> Conditions<'_> {
        let of = |name: HeaderName| self.headers.get(name).map(HeaderValue::as_bytes);
        Conditions {
            if_match: of(IF_MATCH),
            if_none_match: of(IF_NONE_MATCH),
            if_modified_since: of(IF_MODIFIED_SINCE),
            if_unmodified_since: of(IF_UNMODIFIED_SINCE),
            if_range: of(IF_RANGE),
            range: of(RANGE).filter(|_| !self.is_head),
        }
    }
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // All values are printable ASCII: of numbers, dates, tables, and `escape`.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn tag(entry: &TargetEntry) -> String {
    let digits: String = entry.version.iter().map(|it| format!("{it:02x}")).collect();
    format!("\"{digits}\"")
}

async fn folder_page(
    link: &LinkRoute,
    target: &dyn LinkTarget,
    entry: &TargetEntry,
    after: u64,
) -> Result<LinkAnswer, SourceError> {
    let listed = target.list(entry, after, PAGE_ENTRIES_MAX).await?;
    let mut names = vec![target.name()];
    names.extend(link.path.iter().map(Vec::as_slice));
    let place = PagePlace {
        names: &names,
        after,
    };
    Ok(html(StatusCode::OK, page::folder(place, &listed)))
}

/// A folder's target ends with a slash, on which the links of its page depend.
fn to_folder(link: &LinkRoute) -> LinkAnswer {
    let last = match link.path.last() {
        Some(name) => url(name),
        None => link.token.text(),
    };
    let mut answer = html(StatusCode::TEMPORARY_REDIRECT, String::new());
    set(answer.headers_mut(), LOCATION, &format!("./{last}/"));
    answer
}

fn html(status: StatusCode, page: String) -> LinkAnswer {
    let length = page.len();
    let mut answer = Response::new(AnswerBody::text(page));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    secure(headers, Policy::Page);
    set(headers, CONTENT_TYPE, "text/html; charset=utf-8");
    set(headers, CONTENT_LENGTH, &length.to_string());
    answer
}

fn text(status: StatusCode, title: &str, words: &str) -> LinkAnswer {
    html(status, page::message(title, words))
}

fn missing() -> LinkAnswer {
    text(
        StatusCode::NOT_FOUND,
        "Nothing is here",
        "The link is not right, or what it led to is not shared any more. Ask the person who gave \
         it to you.",
    )
}

fn not_allowed() -> LinkAnswer {
    let words = "What is shared here can be read and not changed.";
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Not possible", words);
    set(answer.headers_mut(), ALLOW, "GET, HEAD");
    // What the request may have as a body is not read.
    set(answer.headers_mut(), CONNECTION, "close");
    answer
}

fn busy(status: StatusCode, wait: Duration) -> LinkAnswer {
    let seconds = wait.as_secs().saturating_add(1);
    let mut answer = text(status, "Too many requests", "Please try again in a moment.");
    set(answer.headers_mut(), RETRY_AFTER, &seconds.to_string());
    answer
}

fn full() -> LinkAnswer {
    busy(
        StatusCode::SERVICE_UNAVAILABLE,
        Duration::from_secs(RETRY_SECONDS),
    )
}

fn unavailable(reason: &str) -> LinkAnswer {
    tracing::warn!(reason, "a request could not be answered");
    let words = "This cannot be read at the moment. Please try again later.";
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, "Not now", words);
    set(
        answer.headers_mut(),
        RETRY_AFTER,
        &RETRY_SECONDS.to_string(),
    );
    answer
}
