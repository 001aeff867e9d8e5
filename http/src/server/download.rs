//! Content on its way: read by a task, sent by the connection.
//!
//! The two are joined by a channel of one piece. The task ends it with a mark; without the mark the
//! content is broken off, and the connection with it, so that no client takes a part for the whole.
//! The task stops when the link has ended or the client is gone, also while it reads or waits.

use super::connection::Cut;
use super::face::{DownloadSlot, Face};
use super::watched::LinkEnd;
use crate::archive::ArchiveError;
use crate::limits::PIECE_BYTES;
use crate::source::{OpenContent, SourceError};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Why content was broken off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenOff {
    #[error("the link has ended")]
    Ended,
    #[error("the client is gone")]
    Gone,
    #[error("{0}")]
    Unread(#[from] SourceError),
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    #[error("the file was changed while it was read")]
    Changed,
}

/// A part of content, or its end.
enum DownloadPiece {
    Data(Bytes),
    End,
}

/// The body of an answer.
pub(super) enum AnswerBody {
    /// Bytes that are there already.
    Whole(Option<Bytes>),
    /// Content of a download.
    Pieces(Pieces),
}

/// The content of a download, as it arrives.
pub(super) struct Pieces {
    pieces: mpsc::Receiver<DownloadPiece>,
    left: Option<u64>,
    is_done: bool,
}

impl AnswerBody {
    pub(super) fn empty() -> Self {
        Self::Whole(None)
    }

    pub(super) fn text(text: String) -> Self {
        Self::Whole(Some(text.into()))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|it| Ok(Frame::data(it)))),
            Self::Pieces(pieces) if pieces.is_done => Poll::Ready(None),
            Self::Pieces(pieces) => match pieces.pieces.poll_recv(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(DownloadPiece::Data(bytes))) => {
                    if let Some(left) = &mut pieces.left {
                        *left = left.saturating_sub(bytes.len() as u64);
                    }
                    Poll::Ready(Some(Ok(Frame::data(bytes))))
                }
                Poll::Ready(Some(DownloadPiece::End)) => {
                    pieces.is_done = true;
                    Poll::Ready(None)
                }
                Poll::Ready(None) => Poll::Ready(Some(Err(BrokenOff::Ended))),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Pieces(pieces) => pieces.is_done,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(pieces) => match pieces.left {
                Some(left) => SizeHint::with_exact(left),
                None => SizeHint::new(),
            },
        }
    }
}

/// The other end of [`Pieces`]: where a download's task sends what it has read.
pub(super) struct PieceSender {
    pieces: mpsc::Sender<DownloadPiece>,
    end: LinkEnd,
    face: Arc<Face>,
    _slot: DownloadSlot,
}

impl PieceSender {
    /// Sends a piece when there is room for it.
    pub(super) async fn send(&mut self, bytes: Bytes) -> Result<(), BrokenOff> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (count, piece) = (bytes.len(), DownloadPiece::Data(bytes));
        tokio::select! {
            biased;
            _ = self.end.wait_for(|ended| *ended) => return Err(BrokenOff::Ended),
            sent = self.pieces.send(piece) => sent.map_err(|_| BrokenOff::Gone)?,
        }
        self.face.sent(count);
        Ok(())
    }

    /// Reads from the source, as long as the result is wanted.
    pub(super) async fn wanted<T>(
        &mut self,
        reading: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, BrokenOff> {
        tokio::select! {
            biased;
            _ = self.end.wait_for(|ended| *ended) => Err(BrokenOff::Ended),
            () = self.pieces.closed() => Err(BrokenOff::Gone),
            read = reading => Ok(read?),
        }
    }
}

/// Begins a download, whose content `produce` sends. `length`: if it is known.
pub(super) fn begin<F, R>(
    face: &Arc<Face>,
    (end, slot): (LinkEnd, DownloadSlot),
    cut: &Arc<Cut>,
    length: Option<u64>,
    produce: F,
) -> AnswerBody
where
    F: FnOnce(PieceSender) -> R + Send + 'static,
    R: Future<Output = Result<PieceSender, BrokenOff>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(1);
    let sender = PieceSender {
        pieces: sender,
        end,
        face: face.clone(),
        _slot: slot,
    };
    let cut = cut.clone();
    tokio::spawn(async move {
        let outcome = match produce(sender).await {
            Ok(sender) => sender
                .pieces
                .send(DownloadPiece::End)
                .await
                .map_err(|_| BrokenOff::Gone),
            Err(broken) => Err(broken),
        };
        match outcome {
            Ok(()) | Err(BrokenOff::Gone) => {}
            Err(reason) => {
                tracing::info!(%reason, "a download was broken off");
                cut.now();
            }
        }
    });
    AnswerBody::Pieces(Pieces {
        pieces: receiver,
        left: length,
        is_done: false,
    })
}

/// Sends a part of a file. One that is changed meanwhile is broken off before its last piece: what
/// was sent may be of two versions.
pub(super) async fn file(
    mut sender: PieceSender,
    content: Box<dyn OpenContent>,
    range: Range<u64>,
) -> Result<PieceSender, BrokenOff> {
    let mut offset = range.start;
    while offset < range.end {
        let size = u32::try_from(range.end - offset).unwrap_or(PIECE_BYTES);
        let piece = sender
            .wanted(content.read(offset, size.min(PIECE_BYTES)))
            .await?;
        if piece.is_empty() {
            return Err(BrokenOff::Changed);
        }
        offset = offset.saturating_add(piece.len() as u64);
        // The last piece makes it look complete.
        if offset >= range.end && !sender.wanted(content.is_unchanged()).await? {
            return Err(BrokenOff::Changed);
        }
        sender.send(piece).await?;
    }
    Ok(sender)
}
