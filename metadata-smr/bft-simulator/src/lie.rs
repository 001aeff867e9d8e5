//! The lies of a Byzantine replica, by kind.

macro_rules! lies {
    ($(
        $(#[$doc:meta])*
        $variant:ident => $sent:literal, $accepted:literal, $rejected:literal;
    )*) => {
        /// The defect of a message that a liar sent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Lie {
            $($(#[$doc])* $variant,)*
        }

        impl Lie {
            /// The counter of messages sent.
            #[must_use]
            pub const fn sent(self) -> &'static str {
                match self { $(Self::$variant => $sent,)* }
            }
            /// The counter of messages that a correct replica admitted and processed.
            #[must_use]
            pub const fn accepted(self) -> &'static str {
                match self { $(Self::$variant => $accepted,)* }
            }
            /// The counter of messages that a correct replica refused on arrival.
            #[must_use]
            pub const fn rejected(self) -> &'static str {
                match self { $(Self::$variant => $rejected,)* }
            }
        }
    };
}

impl Lie {
    /// Whether every correct replica refuses it.
    #[must_use]
    pub const fn never_admitted(self) -> bool {
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
    /// Another proposal for the same sequence, sent to some replicas.
    Equivocation =>
        "equivocations_sent", "equivocations_accepted", "equivocations_rejected";
    /// A vote for the version that some replicas received, in addition to the vote for the other
    /// one.
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
    /// A list of requests that lacks some, repeats some, or names one that no client made.
    WrongRequests =>
        "wrong_requests_sent", "wrong_requests_accepted", "wrong_requests_rejected";
    /// A vote in another replica's name.
    WrongSigner =>
        "wrong_signers_sent", "wrong_signers_accepted", "wrong_signers_rejected";
    /// A certificate that has one signer twice.
    DuplicateSigner =>
        "duplicate_signers_sent", "duplicate_signers_accepted", "duplicate_signers_rejected";
    /// A VIEW-CHANGE that hides prepared batches or has an old base.
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
    /// A certificate with votes for something other than it names.
    SwappedCertificate =>
        "swapped_certificates_sent", "swapped_certificates_accepted",
        "swapped_certificates_rejected";
    /// A vote for a state that no replica has.
    ForgedCheckpoint =>
        "forged_checkpoints_sent", "forged_checkpoints_accepted", "forged_checkpoints_rejected";
    /// The record of an epoch that does not exist.
    ForgedRecord =>
        "forged_records_sent", "forged_records_accepted", "forged_records_rejected";
    /// A VIEW-CHANGE with false claims.
    FalseClaim =>
        "false_claims_sent", "false_claims_accepted", "false_claims_rejected";
    /// Bodies or batches other than the requested ones.
    ForgedBody =>
        "forged_bodies_sent", "forged_bodies_accepted", "forged_bodies_rejected";
    /// Nodes of a state other than the requested ones.
    ForgedNode =>
        "forged_nodes_sent", "forged_nodes_accepted", "forged_nodes_rejected";
    /// A false STATUS.
    FalseStatus =>
        "false_statuses_sent", "false_statuses_accepted", "false_statuses_rejected";
    /// A suspicion without a reason.
    FalseSuspicion =>
        "false_suspicions_sent", "false_suspicions_accepted", "false_suspicions_rejected";
    /// One vote, sent several times or returned to its voter.
    Repetition =>
        "repetitions_sent", "repetitions_accepted", "repetitions_rejected";
    /// A message that was true once.
    Replay =>
        "replays_sent", "replays_accepted", "replays_rejected";
    /// A client's requests that differ from replica to replica under one number.
    Contradiction =>
        "contradictions_sent", "contradictions_accepted", "contradictions_rejected";
    /// A client's requests beyond its credit.
    Flood =>
        "floods_sent", "floods_accepted", "floods_rejected";
    /// A client's request with a number out of turn, or in a lane that does not exist.
    SkippedNumber =>
        "skipped_numbers_sent", "skipped_numbers_accepted", "skipped_numbers_rejected";
    /// A client's request in a session of another client.
    ForeignSession =>
        "foreign_sessions_sent", "foreign_sessions_accepted", "foreign_sessions_rejected";
    /// A session for an unknown principal.
    UnknownPrincipal =>
        "unknown_principals_sent", "unknown_principals_accepted", "unknown_principals_rejected";
    /// Meaningless bytes from a client.
    ClientGarbage =>
        "client_garbage_sent", "client_garbage_accepted", "client_garbage_rejected";
    /// Meaningless bytes.
    Garbage =>
        "garbage_sent", "garbage_accepted", "garbage_rejected";
}
