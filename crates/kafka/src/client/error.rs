//! Errors of the client, and Kafka's error codes with their names.
use kafka_protocol::error::ResponseError;
use std::fmt;
use std::time::Duration;

/// What the client's calls return.
pub type Result<T> = std::result::Result<T, ClientError>;

/// Why a call failed. Every text says what, where and, where it can be known, what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// A property is unknown, missing or does not fit.
    #[error("property '{key}': {problem}")]
    Config {
        /// The property.
        key: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// No connection to this address could be made.
    #[error("cannot connect to Kafka at {address}: {reason}")]
    Connect {
        /// `host:port`.
        address: String,
        /// What the operating system or TLS said.
        reason: String,
    },
    /// TLS was refused, by the broker or by us.
    #[error("TLS with Kafka at {address} failed: {reason}")]
    Tls {
        /// `host:port`.
        address: String,
        /// What was wrong with the certificate or the handshake.
        reason: String,
    },
    /// The broker refused the credentials, or does not offer the mechanism.
    #[error("Kafka at {address} refused SASL {mechanism}: {reason}")]
    Authentication {
        /// `host:port`.
        address: String,
        /// The mechanism used.
        mechanism: String,
        /// The broker's reason.
        reason: String,
    },
    /// A call did not end in time.
    #[error("{what}: no answer within {after:?}")]
    Deadline {
        /// The call and the address.
        what: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection went away while the call was under way: the call may or may not have had its effect.
    #[error("connection to Kafka at {address} closed: {reason}")]
    Closed {
        /// `host:port`.
        address: String,
        /// Why.
        reason: String,
    },
    /// The broker sent something that cannot be understood.
    #[error("Kafka at {address} sent what cannot be understood: {reason}")]
    Protocol {
        /// `host:port`.
        address: String,
        /// What and where.
        reason: String,
    },
    /// The broker does not offer a version of an API that we can use.
    #[error("Kafka at {address} does not offer {api} version {need} (it offers {offered}); a newer broker is needed")]
    Unsupported {
        /// `host:port`.
        address: String,
        /// Name of the API.
        api: String,
        /// Versions we can use.
        need: String,
        /// Versions offered.
        offered: String,
    },
    /// The broker answered with an error code.
    #[error("{what}: Kafka answered {code}{}", message.as_ref().map(|m| format!(": {m}")).unwrap_or_default())]
    Broker {
        /// The call and its subject (topic, partition, group, transactional id).
        what: String,
        /// The code.
        code: ErrorCode,
        /// The broker's own words, when it sent any.
        message: Option<String>,
    },
    /// A record does not fit into what the topic or the client's buffer takes.
    #[error("{subject}: a batch of {size} bytes is too large (limit {limit}); raise the topic's max.message.bytes, or shorten the records")]
    TooLarge {
        /// Topic and partition.
        subject: String,
        /// Bytes of the batch.
        size: usize,
        /// What the limit is and whose it is.
        limit: String,
    },
    /// Another producer with the same transactional id has taken over, or the transaction was ended from elsewhere.
    #[error("{subject}: the producer (id {producer_id}, epoch {epoch}) can no longer write: {code}")]
    Fenced {
        /// Topic and partition, or transactional id.
        subject: String,
        /// Our producer id.
        producer_id: i64,
        /// Our epoch.
        epoch: i16,
        /// The broker's code.
        code: ErrorCode,
    },
    /// The order of a partition's batches cannot be kept any more: something between was lost.
    #[error("{subject}: sequence broken at {sequence} ({code}): an acknowledged or sent batch is missing on the broker")]
    OutOfOrder {
        /// Topic and partition.
        subject: String,
        /// First sequence number of the refused batch.
        sequence: i32,
        /// The broker's code.
        code: ErrorCode,
    },
    /// The object was used in a way that it cannot serve.
    #[error("{0}")]
    Usage(String),
}

impl ClientError {
    /// A broker's error code as an error.
    pub(crate) fn broker(what: impl Into<String>, code: i16, message: Option<&str>) -> Self {
        ClientError::Broker { what: what.into(), code: ErrorCode(code), message: message.filter(|m| !m.is_empty()).map(str::to_string) }
    }

    /// A property error.
    pub(crate) fn config(key: impl Into<String>, problem: impl Into<String>) -> Self {
        ClientError::Config { key: key.into(), problem: problem.into() }
    }

    /// The broker's code, for an error that carries one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Broker { code, .. } | ClientError::Fenced { code, .. } | ClientError::OutOfOrder { code, .. } => Some(*code),
            ClientError::TooLarge { .. } => Some(ErrorCode::MESSAGE_TOO_LARGE),
            _ => None,
        }
    }

    /// Whether the same call may succeed later, with nothing changed by the user.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Connect { .. } | ClientError::Deadline { .. } | ClientError::Closed { .. } => true,
            ClientError::Broker { code, .. } => code.is_retriable(),
            _ => false,
        }
    }
}

/// An error code of Kafka's protocol. Its text is the name and the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub i16);

macro_rules! codes {
    ($($name:ident = $code:literal),* $(,)?) => {
        #[allow(missing_docs)]
        impl ErrorCode {
            $(pub const $name: ErrorCode = ErrorCode($code);)*
        }
    };
}

codes! {
    UNKNOWN_SERVER_ERROR = -1, NONE = 0, OFFSET_OUT_OF_RANGE = 1, CORRUPT_MESSAGE = 2, UNKNOWN_TOPIC_OR_PARTITION = 3,
    LEADER_NOT_AVAILABLE = 5, NOT_LEADER_OR_FOLLOWER = 6, REQUEST_TIMED_OUT = 7, BROKER_NOT_AVAILABLE = 8,
    REPLICA_NOT_AVAILABLE = 9, MESSAGE_TOO_LARGE = 10, NETWORK_EXCEPTION = 13, COORDINATOR_LOAD_IN_PROGRESS = 14,
    COORDINATOR_NOT_AVAILABLE = 15, NOT_COORDINATOR = 16, INVALID_TOPIC_EXCEPTION = 17, RECORD_LIST_TOO_LARGE = 18,
    NOT_ENOUGH_REPLICAS = 19, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, TOPIC_AUTHORIZATION_FAILED = 29,
    GROUP_AUTHORIZATION_FAILED = 30, CLUSTER_AUTHORIZATION_FAILED = 31, UNSUPPORTED_VERSION = 35, TOPIC_ALREADY_EXISTS = 36,
    NOT_CONTROLLER = 41, OUT_OF_ORDER_SEQUENCE_NUMBER = 45, DUPLICATE_SEQUENCE_NUMBER = 46, INVALID_PRODUCER_EPOCH = 47,
    INVALID_TXN_STATE = 48, INVALID_PRODUCER_ID_MAPPING = 49, INVALID_TRANSACTION_TIMEOUT = 50,
    CONCURRENT_TRANSACTIONS = 51, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, KAFKA_STORAGE_ERROR = 56,
    SASL_AUTHENTICATION_FAILED = 58, UNKNOWN_PRODUCER_ID = 59, UNKNOWN_LEADER_EPOCH = 76, FENCED_LEADER_EPOCH = 74,
    OFFSET_NOT_AVAILABLE = 78, UNSTABLE_OFFSET_COMMIT = 88, THROTTLING_QUOTA_EXCEEDED = 89, PRODUCER_FENCED = 90,
    UNKNOWN_TOPIC_ID = 100, INCONSISTENT_TOPIC_ID = 103, TRANSACTIONAL_ID_NOT_FOUND = 105, TRANSACTION_ABORTABLE = 120,
    INVALID_RECORD = 87, INVALID_REGULAR_EXPRESSION = 128,
}

impl ErrorCode {
    /// Whether the code means success.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the coordinator must be looked up again (15, 16) before the same request is sent again.
    pub fn is_coordinator_moved(self) -> bool {
        matches!(self, Self::COORDINATOR_NOT_AVAILABLE | Self::NOT_COORDINATOR)
    }

    /// Whether the leader of the partition must be looked up again before the same request is sent again.
    pub fn is_leader_moved(self) -> bool {
        matches!(
            self,
            Self::UNKNOWN_TOPIC_OR_PARTITION
                | Self::LEADER_NOT_AVAILABLE
                | Self::NOT_LEADER_OR_FOLLOWER
                | Self::REPLICA_NOT_AVAILABLE
                | Self::KAFKA_STORAGE_ERROR
                | Self::FENCED_LEADER_EPOCH
                | Self::UNKNOWN_LEADER_EPOCH
                | Self::BROKER_NOT_AVAILABLE
        )
    }

    /// Whether the same request may succeed later.
    pub fn is_retriable(self) -> bool {
        self.is_leader_moved()
            || self.is_coordinator_moved()
            || matches!(
                self,
                Self::CORRUPT_MESSAGE
                    | Self::REQUEST_TIMED_OUT
                    | Self::NETWORK_EXCEPTION
                    | Self::COORDINATOR_LOAD_IN_PROGRESS
                    | Self::NOT_ENOUGH_REPLICAS
                    | Self::NOT_ENOUGH_REPLICAS_AFTER_APPEND
                    | Self::NOT_CONTROLLER
                    | Self::CONCURRENT_TRANSACTIONS
                    | Self::OFFSET_NOT_AVAILABLE
                    | Self::UNSTABLE_OFFSET_COMMIT
                    | Self::THROTTLING_QUOTA_EXCEEDED
            )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ResponseError::try_from_code(self.0) {
            None => f.write_str("NONE"),
            Some(ResponseError::Unknown(code)) => write!(f, "error code {code}"),
            // The codec's names are in camel case; users know them in capitals.
            Some(known) => {
                for (i, c) in format!("{known:?}").chars().enumerate() {
                    if c.is_ascii_uppercase() && i > 0 {
                        f.write_str("_")?;
                    }
                    write!(f, "{}", c.to_ascii_uppercase())?;
                }
                write!(f, " ({})", self.0)
            }
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_shown_by_kafkas_name() {
        assert_eq!(ErrorCode::NOT_LEADER_OR_FOLLOWER.to_string(), "NOT_LEADER_OR_FOLLOWER (6)");
        assert_eq!(ErrorCode::CONCURRENT_TRANSACTIONS.to_string(), "CONCURRENT_TRANSACTIONS (51)");
        assert_eq!(ErrorCode(7777).to_string(), "error code 7777");
    }

    #[test]
    fn fencing_is_never_retried() {
        for code in [
            ErrorCode::PRODUCER_FENCED,
            ErrorCode::INVALID_PRODUCER_EPOCH,
            ErrorCode::INVALID_TXN_STATE,
            ErrorCode::INVALID_PRODUCER_ID_MAPPING,
        ] {
            assert!(!code.is_retriable(), "{code}");
        }
        assert!(ErrorCode::CONCURRENT_TRANSACTIONS.is_retriable());
    }
}
