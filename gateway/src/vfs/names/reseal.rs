//! New generations of names, and calls that have to be repeated for them.
//!
//! New names are sealed under the newest key epoch that this mount knows: before the first new name
//! in an older directory, the directory gets another generation. What the mount does not know yet,
//! the servers tell: they refuse what is sealed under the wrong key epoch and say which is the
//! right one. Then it opens that, looks at the directory again, and repeats the call.

use crate::clock;
use crate::error::VfsError;
use crate::vfs::file_system::FileSystemCore;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::operation::{EntryPlace, Step};
use quorumfs_metadata::reply::StepDone;

impl FileSystemCore {
    /// Repeats a call whose cached names or keys turned out to be out of date.
    pub(in crate::vfs) async fn with_retries<T, F: Future<Output = Result<T, VfsError>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, VfsError> {
        const TRIES: u32 = 4;
        for _ in 1..TRIES {
            match attempt().await {
                Err(error) if error.is_out_of_date() => {
                    self.services.catch_up(&error).await?;
                }
                outcome => return outcome,
            }
        }
        attempt().await
    }

    /// The place of a name that is to be added.
    pub(super) async fn new_place(
        &self,
        credentials: &Credentials,
        directory: InodeId,
        name: &[u8],
    ) -> Result<EntryPlace, VfsError> {
        let generations = self.generations(directory).await?;
        let newest = self.services.volume.current_epoch();
        if generations.previous.is_none() && Some(generations.current) < newest {
            self.begin_reseal(credentials, directory).await?;
        }
        self.place(directory, name).await
    }

    /// The directory's new names are sealed under the newest key epoch from now on. If the caller
    /// may not do that, the call that it is for is refused as well, and says why.
    async fn begin_reseal(
        &self,
        credentials: &Credentials,
        directory: InodeId,
    ) -> Result<(), VfsError> {
        let asked = self.known.stamp(directory).asked;
        let step = Step::BeginReseal { directory };
        let metadata = &self.services.metadata;
        match metadata
            .step("reseal", credentials.clone(), clock::now(), step)
            .await
        {
            Ok(StepDone::Set(attributes)) => {
                self.writeback.learn_own(&attributes, asked);
                Ok(())
            }
            Ok(other) => Err(metadata.mismatch("reseal", &other)),
            Err(VfsError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
