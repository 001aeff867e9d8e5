//! Extents of files: `fallocate`, `lseek` for data and holes, `copy_file_range`.

use crate::serve::Adapter;
use fuser::{Errno, ReplyEmpty, ReplyLseek, ReplyWrite, Request};
use quorumfs_gateway::vfs::{Allocation, HandleId, Seek};

const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What the flags of `fallocate(2)` ask for, if it is supported. Collapsing and inserting ranges is
/// not, as on most file systems.
fn allocation(mode: i32) -> Option<Allocation> {
    let keep_size = mode & KEEP_SIZE != 0;
    let clear = match mode & !KEEP_SIZE {
        0 => false,
        ZERO_RANGE => true,
        PUNCH_HOLE if keep_size => true,
        _ => return None,
    };
    Some(Allocation { clear, keep_size })
}

impl Adapter {
    pub(crate) fn reserve_or_clear(
        &self,
        request: &Request,
        handle: HandleId,
        (offset, length): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = allocation(mode) else {
            return reply.error(Errno::EOPNOTSUPP);
        };
        let fs = self.file_system.clone();
        // The kernel leaves the set-id bits to us, and does not say which callers may keep them.
        let writer = self.caller(request);
        let work = async move {
            fs.allocate(handle, offset, length, how).await?;
            if writer.uid != 0 {
                fs.drop_set_id(&writer, handle)?;
            }
            Ok(())
        };
        self.empty("fallocate", work, reply);
    }

    pub(crate) fn seek(&self, handle: HandleId, offset: i64, whence: i32, reply: ReplyLseek) {
        let to = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let fs = self.file_system.clone();
        let work = async move { fs.seek(handle, offset, to).await };
        self.serve("lseek", work, move |outcome| match outcome {
            Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Err(error) => reply.error(error),
        });
    }

    pub(crate) fn clone_range(
        &self,
        request: &Request,
        source: (HandleId, u64),
        to: (HandleId, u64),
        length: u64,
        reply: ReplyWrite,
    ) {
        let fs = self.file_system.clone();
        let writer = self.caller(request);
        let work = async move {
            let copied = fs.clone_range(source, to, length).await?;
            if writer.uid != 0 {
                fs.drop_set_id(&writer, to.0)?;
            }
            Ok(copied)
        };
        self.serve("copy_file_range", work, move |outcome| match outcome {
            Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
            Err(error) => reply.error(error),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_punched_without_moving_the_end_and_nothing_is_inserted() {
        let of = |clear, keep_size| Some(Allocation { clear, keep_size });
        assert_eq!(allocation(0), of(false, false));
        assert_eq!(allocation(KEEP_SIZE), of(false, true));
        assert_eq!(allocation(PUNCH_HOLE | KEEP_SIZE), of(true, true));
        assert_eq!(allocation(ZERO_RANGE), of(true, false));
        assert_eq!(allocation(ZERO_RANGE | KEEP_SIZE), of(true, true));
        for strange in [
            PUNCH_HOLE,
            PUNCH_HOLE | ZERO_RANGE | KEEP_SIZE,
            0x08,
            0x20,
            0x40,
        ] {
            assert_eq!(allocation(strange), None);
        }
    }
}
