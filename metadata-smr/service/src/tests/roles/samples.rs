//! One of each operation, step and question, and more where the kind alone does not decide.

use crate::acl::AclKind;
use crate::attributes::{Access, Credentials, Mode, Namespace, Timestamp};
use crate::fleet::{ChangeClouds, CloudChange, CloudStep, SignedCloudChange};
use crate::identity::*;
use crate::locks::{LockKind, LockRange};
use crate::operation::*;
use crate::query::{Question, SharesOf};
use crate::row::{Job, MountMode, RetentionKind, Sealed, SignedBy};
use crate::simulation::{compound, place};
use crate::succession::{SignedSuccession, Succeed};
use crate::tests::harness::{commit, mount, object, removal, rename_of};
use crate::tests::people::coming::epoch_with;
use crate::tests::people::world::*;
use crate::tests::shares::{new_share, with_bob};
use quorumfs_bft::identity::{Sequence, SessionId, Signature};

const REALM: RealmId = RealmId::ROOT;
/// An inode that does not exist.
const INODE: InodeId = InodeId(77);
const ALLOCATION: AllocationId = AllocationId(70);

fn lost_object() -> ObjectId {
    object(ALLOCATION, 0, 3).id
}

fn attribute() -> AttributePlace {
    AttributePlace {
        inode: INODE,
        namespace: Namespace::User,
        hash: AttributeHash([1; 16]),
        generation: RealmEpoch(0),
    }
}

/// One of each step.
pub(super) fn steps() -> Vec<Step> {
    let create = Create {
        place: place(InodeId::ROOT, "new"),
        kind: NewInode::File,
        mode: Mode(0o644),
        umask: Mode(0),
        exclusive: true,
        number: None,
    };
    let extended = SetExtended {
        place: attribute(),
        name: b"name".to_vec(),
        value: Sealed {
            epoch: RealmEpoch(0),
            bytes: b"value".to_vec(),
        },
        mode: SetMode::Any,
    };
    let acl = SetAcl {
        inode: INODE,
        kind: AclKind::Access,
        acl: None,
    };
    let read = Accessed {
        inode: INODE,
        time: Timestamp::default(),
    };
    let restore = Restore {
        inode: INODE,
        place: place(InodeId::ROOT, "restored"),
    };
    vec![
        Step::Create(create),
        Step::Link {
            inode: INODE,
            place: place(InodeId::ROOT, "link"),
        },
        Step::Unlink(removal(InodeId::ROOT, "a", false)),
        Step::RemoveDirectory(removal(InodeId::ROOT, "a", false)),
        Step::Rename(rename_of((InodeId::ROOT, "a"), (InodeId::ROOT, "b"))),
        Step::SetAttributes(SetAttributes::of(INODE)),
        Step::Commit(commit(INODE, ALLOCATION, 0, &[(0, 10)])),
        Step::Release { inode: INODE },
        Step::SetExtended(extended),
        Step::RemoveExtended(attribute()),
        Step::SetAcl(acl),
        Step::Accessed(vec![read]),
        Step::Restore(restore),
        Step::Purge(vec![INODE]),
        Step::BeginReseal {
            directory: InodeId::ROOT,
        },
    ]
}

fn locks() -> Vec<Operation> {
    let kinds = [LockKind::Ranges, LockKind::Whole, LockKind::Appends];
    let wishes = [LockWish::Unlock, LockWish::Shared, LockWish::Exclusive];
    let all = kinds
        .into_iter()
        .flat_map(|kind| wishes.map(|wish| (kind, wish)));
    all.map(|(kind, wish)| {
        Operation::Lock(LockRequest {
            inode: InodeId::ROOT,
            kind,
            owner: 1,
            range: LockRange::WHOLE,
            wish,
            pid: 2,
            wait: false,
        })
    })
    .collect()
}

fn mounts() -> Vec<Operation> {
    let modes = [MountMode::Exclusive, MountMode::Alone, MountMode::Shared];
    let takeovers = [
        Takeover::Refused,
        Takeover::OfAny,
        Takeover::Of(SessionId(4)),
        Takeover::OfUnresponsive,
    ];
    let all = modes
        .into_iter()
        .flat_map(|mode| takeovers.map(|takeover| (takeover, mode)));
    all.map(|(takeover, mode)| mount(takeover, mode)).collect()
}

fn about_clouds() -> Vec<Operation> {
    let cloud = CloudIndex(0);
    let replace = CloudStep::Replace {
        old: cloud,
        new: CloudIndex(1),
    };
    let change = CloudChange {
        volume: VOLUME,
        number: 1,
        epoch: RealmEpoch(0),
        step: replace,
    };
    let signed = SignedCloudChange {
        change: change.to_bytes(),
        signed: SignedBy {
            signer: id(OWNER),
            signature: Signature([1; 64]),
        },
    };
    let secrets = Vec::new();
    vec![
        Operation::ChangeClouds(ChangeClouds { signed, secrets }),
        Operation::MoveShards {
            moves: Vec::new(),
            after: None,
        },
        Operation::RetireCloud { cloud },
        Operation::Testify {
            cloud,
            findings: Vec::new(),
        },
    ]
}

fn about_principals() -> Vec<Operation> {
    let world = PeopleWorld::new();
    let step = admitting(EVE, crate::row::MemberRole::Read);
    let member = member_for(&step, RealmEpoch(0)).unwrap();
    let change = signed_by(OWNER, &world.next(step));
    let succeed = Succeed {
        signed: SignedSuccession {
            succession: Vec::new(),
            signature: Signature([1; 64]),
        },
        member,
    };
    vec![
        Operation::BeginEpoch(epoch_with(&world, &[])),
        Operation::Succeed(succeed),
        Operation::ChangePeople(change),
        Operation::ChangePeople(signed_by(BOB, &world.next(machine_of_bob(EVE)))),
        Operation::InviteMachine(InviteMachine {
            key: id(EVE),
            seconds: 60,
            card: vec![1],
        }),
        Operation::AnswerInvitation { answer: vec![1] },
        Operation::EndInvitation { key: id(EVE) },
        Operation::ResealSlices(ResealSlices {
            realm: REALM,
            objects: Vec::new(),
            slices: Vec::new(),
        }),
        Operation::ResealNames(ResealNames {
            realm: REALM,
            directories: Vec::new(),
        }),
    ]
}

fn about_shares(who: &Credentials) -> Vec<Operation> {
    let asked = || ChangeShare {
        credentials: who.clone(),
        id: ShareId(5),
    };
    let link = NewShareWith::Link { token: [7; 32] };
    let capsule = NewShareWith::Capsule {
        manifest: vec![lost_object()],
    };
    let new = |with| Operation::Share(new_share(who, InodeId::ROOT, with));
    vec![
        new(link),
        new(capsule),
        new(with_bob(true)),
        Operation::EndShare(asked()),
        Operation::ForgetShare(asked()),
    ]
}

fn about_objects() -> Vec<Operation> {
    let shard = PlacedShard {
        object: lost_object(),
        shard: ShardIndex(1),
        cloud: CloudIndex(1),
        generation: 0,
        attempt: 0,
        receipt: None,
    };
    let (number, to) = (3, Sequence(1));
    vec![
        Operation::ConfirmPlaced {
            shards: vec![shard],
            checked: Vec::new(),
        },
        Operation::ConfirmPlaced {
            shards: Vec::new(),
            checked: vec![lost_object()],
        },
        Operation::ReplacePlacement {
            shard,
            acknowledged: true,
        },
        Operation::WithdrawPlaced {
            shards: vec![shard],
        },
        Operation::MoveSlices {
            realm: REALM,
            objects: Vec::new(),
            moves: Vec::new(),
        },
        Operation::Forget {
            objects: vec![lost_object()],
        },
        Operation::Retain {
            kind: RetentionKind::RecoveryPoint,
            open: false,
            seconds: None,
        },
        Operation::Release { number },
        Operation::Narrow { number, to },
    ]
}

/// At least one of each operation; those that say so are on this user's behalf.
pub(super) fn operations(who: &Credentials) -> Vec<Operation> {
    let job = Job::Collection;
    let of = |steps| compound(who.clone(), Timestamp::default(), steps);
    let release = Step::Release { inode: INODE };
    let mut all: Vec<_> = steps().into_iter().map(|step| of(vec![step])).collect();
    all.push(of(Vec::new()));
    all.push(of(vec![release.clone(), release.clone()]));
    all.push(of(vec![release, Step::Purge(vec![INODE])]));
    all.extend(mounts());
    all.extend(locks());
    all.extend(about_clouds());
    all.extend(about_principals());
    all.extend(about_objects());
    all.extend(about_shares(who));
    all.extend([
        Operation::Allocate { count: 1 },
        Operation::CloseAllocation {
            allocation: ALLOCATION,
        },
        Operation::UnmountRealm { realm: REALM },
        Operation::SetQuota(SetQuota {
            realm: REALM,
            of: QuotaOf::Realm,
            limit: None,
        }),
        Operation::TakeJob { job, seconds: 60 },
        Operation::ReleaseJob { job },
        Operation::Load {
            after: Vec::new(),
            rows: Vec::new(),
        },
        Operation::FinishLoading {
            principals: Vec::new(),
        },
        Operation::KeepTrash(KeepTrash {
            realm: REALM,
            seconds: 60,
        }),
        Operation::RelieveTrash { realm: REALM },
        Operation::Claim {
            inodes: vec![INODE],
        },
        Operation::StopWaiting(StopWaiting {
            inode: INODE,
            kind: LockKind::Whole,
            owner: 1,
        }),
        Operation::EndLocks(EndLocks {
            credentials: who.clone(),
            inode: INODE,
            kind: LockKind::Whole,
            session: None,
        }),
    ]);
    all
}

/// At least one of each question.
pub(super) fn questions() -> Vec<Question> {
    let (limit, cloud) = (10, CloudIndex(0));
    let quota = |uid| Question::Quota { realm: REALM, uid };
    let shares = |of| Question::Shares {
        of,
        after: None,
        limit,
    };
    let mut all = about_files();
    all.extend([
        Question::Usage(REALM),
        Question::Object(lost_object()),
        Question::UnderReplicated { after: None, limit },
        Question::Unreferenced { after: None, limit },
        Question::Orphans { after: None, limit },
        Question::Volume,
        Question::Realm(REALM),
        Question::WhoAmI,
        Question::Objects { after: None, limit },
        Question::SparsePacks { after: None, limit },
        Question::PackedSlices {
            pack: lost_object(),
            after: None,
            limit,
        },
        Question::Principal(PrincipalNumber(0)),
        Question::Evidence(cloud),
        Question::Epochs {
            realm: REALM,
            before: RealmEpoch(1),
            limit,
        },
        Question::Members(REALM),
        Question::SlicesByEpoch { after: None, limit },
        Question::SlicesToReseal {
            realm: REALM,
            after: None,
            limit,
        },
        Question::NamesToReseal {
            directory: InodeId::ROOT,
            after: Cookie::START,
            limit,
        },
        Question::NamesByEpoch {
            realm: REALM,
            after: None,
            limit,
        },
        quota(BOBS.0),
        quota(Uid(1004)),
        Question::Quotas {
            realm: REALM,
            after: None,
            limit,
        },
        Question::Mounted(REALM),
        Question::Successions,
        Question::Fates {
            objects: vec![lost_object()],
        },
        Question::CloudSecrets,
        Question::Retained,
        Question::TrashSize(REALM),
        Question::CloudChanges { after: 0 },
        Question::News {
            realm: REALM,
            after: None,
        },
        Question::Mounts(REALM),
        Question::Locks {
            realm: REALM,
            after: None,
            limit,
        },
        Question::People { after: 0 },
        shares(SharesOf::Mine),
        shares(SharesOf::With(PrincipalNumber(0))),
        shares(SharesOf::All),
        Question::ShareOfToken([7; 32]),
        Question::Invitation(id(EVE)),
    ]);
    all
}

fn about_files() -> Vec<Question> {
    let limit = 10;
    vec![
        Question::Lookup(place(InodeId::ROOT, "a")),
        Question::Attributes(InodeId::ROOT),
        Question::Access {
            inode: InodeId::ROOT,
            access: Access::READ,
        },
        Question::Directory {
            inode: InodeId::ROOT,
            after: Cookie::START,
            limit,
            by_handle: false,
        },
        Question::Symlink(INODE),
        Question::Content {
            inode: INODE,
            from: 0,
            to: 1,
            limit,
        },
        Question::Extended(InodeId::ROOT),
        Question::Trash {
            realm: REALM,
            after: None,
            limit,
        },
        Question::TrashedIn {
            directory: InodeId::ROOT,
            after: None,
            limit,
        },
        Question::Trashed(INODE),
        Question::Lock {
            inode: InodeId::ROOT,
            kind: LockKind::Whole,
            owner: 1,
            range: LockRange::WHOLE,
            exclusive: true,
        },
    ]
}
