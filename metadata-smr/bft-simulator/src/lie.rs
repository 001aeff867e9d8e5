//! The lies of a Byzantine replica, by kind.

macro_rules! lies {
    ($(
        $(#[$doc:meta])*
        $variant:ident => $sent:literal, $accepted:literal, $rejected:literal;
    )*) => {
        /// What is wrong with a message that a liar sent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Lie {
            $($(#[$doc])* $variant,)*
        }

        impl Lie {
            /// The counter of those that were sent.
            #[must_use]
            pub const fn sent(self) -> &'static str {
                match self { $(Self::$variant => $sent,)* }
            }
            /// The counter of those that a correct replica let in and processed.
            #[must_use]
            pub const fn accepted(self) -> &'static str {
                match self { $(Self::$variant => $accepted,)* }
            }
            /// The counter of those that a correct replica refused at the door.
            #[must_use]
            pub const fn rejected(self) -> &'static str {
                match self { $(Self::$variant => $rejected,)* }
            }
        }
    };
}

impl Lie {
    /// Whether a correct replica refuses it wherever it is shown.
    #[must_use]
    pub const fn never_let_in(self) -> bool {
        matches!(
            self,
            Self::WrongSigner
                | Self::ShortCertificate
                | Self::ForeignCertificate
                | Self::MisplacedCertificate
                | Self::SwappedCertificate
                | Self::ForgedRecord
        )
    }
}

lies! {
    /// Another proposal for the same place, to some.
    Equivocation =>
        "equivocations_sent", "equivocations_accepted", "equivocations_rejected";
    /// A vote for what some were proposed, besides the vote for what the others were.
    DoubleVote =>
        "double_votes_sent", "double_votes_accepted", "double_votes_rejected";
    /// A COMMIT before anything is prepared.
    EarlyCommit =>
        "early_commits_sent", "early_commits_accepted", "early_commits_rejected";
    /// A sequence that is one too high or too low.
    WrongSequence =>
        "wrong_sequences_sent", "wrong_sequences_accepted", "wrong_sequences_rejected";
    /// A view that is one too high or too low.
    WrongView =>
        "wrong_views_sent", "wrong_views_accepted", "wrong_views_rejected";
    /// A digest of nothing.
    WrongDigest =>
        "wrong_digests_sent", "wrong_digests_accepted", "wrong_digests_rejected";
    /// A proposal from the far future.
    TimeAhead =>
        "times_ahead_sent", "times_ahead_accepted", "times_ahead_rejected";
    /// A proposal from the past.
    TimeBehind =>
        "times_behind_sent", "times_behind_accepted", "times_behind_rejected";
    /// A list of requests that lacks some, repeats some, or names what nobody asked.
    WrongRequests =>
        "wrong_requests_sent", "wrong_requests_accepted", "wrong_requests_rejected";
    /// A vote in somebody else's name.
    WrongSigner =>
        "wrong_signers_sent", "wrong_signers_accepted", "wrong_signers_rejected";
    /// A certificate in which one signer stands twice.
    DuplicateSigner =>
        "duplicate_signers_sent", "duplicate_signers_accepted", "duplicate_signers_rejected";
    /// A VIEW-CHANGE that hides what was prepared or rests on an old base.
    StaleCertificate =>
        "stale_certificates_sent", "stale_certificates_accepted", "stale_certificates_rejected";
    /// A certificate with a vote too few, or fewer.
    ShortCertificate =>
        "short_certificates_sent", "short_certificates_accepted", "short_certificates_rejected";
    /// A certificate with votes of another epoch.
    ForeignCertificate =>
        "foreign_certificates_sent", "foreign_certificates_accepted",
        "foreign_certificates_rejected";
    /// A certificate with votes of another view.
    MisplacedCertificate =>
        "misplaced_certificates_sent", "misplaced_certificates_accepted",
        "misplaced_certificates_rejected";
    /// A certificate with votes for something else than it names.
    SwappedCertificate =>
        "swapped_certificates_sent", "swapped_certificates_accepted",
        "swapped_certificates_rejected";
    /// A word about a state that no replica has.
    ForgedCheckpoint =>
        "forged_checkpoints_sent", "forged_checkpoints_accepted", "forged_checkpoints_rejected";
    /// The record of an epoch that there is not.
    ForgedRecord =>
        "forged_records_sent", "forged_records_accepted", "forged_records_rejected";
    /// A VIEW-CHANGE with claims that are not so.
    FalseClaim =>
        "false_claims_sent", "false_claims_accepted", "false_claims_rejected";
    /// Bodies or batches that are not what was asked for.
    ForgedBody =>
        "forged_bodies_sent", "forged_bodies_accepted", "forged_bodies_rejected";
    /// Nodes of a state that are not what was asked for.
    ForgedNode =>
        "forged_nodes_sent", "forged_nodes_accepted", "forged_nodes_rejected";
    /// A STATUS that is not so.
    FalseStatus =>
        "false_statuses_sent", "false_statuses_accepted", "false_statuses_rejected";
    /// A suspicion without a reason.
    FalseSuspicion =>
        "false_suspicions_sent", "false_suspicions_accepted", "false_suspicions_rejected";
    /// One vote, said several times or given back to who gave it.
    Repetition =>
        "repetitions_sent", "repetitions_accepted", "repetitions_rejected";
    /// Something that was true once.
    Replay =>
        "replays_sent", "replays_accepted", "replays_rejected";
    /// A client's requests that differ from replica to replica under one number.
    Contradiction =>
        "contradictions_sent", "contradictions_accepted", "contradictions_rejected";
    /// A client's requests beyond its credit.
    Flood =>
        "floods_sent", "floods_accepted", "floods_rejected";
    /// A client's request with a number that is not its turn, or in a lane that is not there.
    SkippedNumber =>
        "skipped_numbers_sent", "skipped_numbers_accepted", "skipped_numbers_rejected";
    /// A client's request in a session that is not its own.
    ForeignSession =>
        "foreign_sessions_sent", "foreign_sessions_accepted", "foreign_sessions_rejected";
    /// A session for a principal that nobody knows.
    UnknownPrincipal =>
        "unknown_principals_sent", "unknown_principals_accepted", "unknown_principals_rejected";
    /// A client's bytes that mean nothing.
    ClientGarbage =>
        "client_garbage_sent", "client_garbage_accepted", "client_garbage_rejected";
    /// Bytes that mean nothing.
    Garbage =>
        "garbage_sent", "garbage_accepted", "garbage_rejected";
}
