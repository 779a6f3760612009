//! What the user of a connection may do, as the broker itself says (`authorized_operations` of Metadata and DescribeCluster, KIP-430).

use super::admin::Admin;
use super::deadline::Deadline;
use super::error::{ClientError, ErrorCode, Result};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{DescribeClusterRequest, MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

/// An operation of an ACL, by Kafka's own number (`AclOperation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclOperation {
    /// Reading records; of a topic also the state of its producers.
    Read = 3,
    /// Writing records.
    Write = 4,
    /// Of the cluster: also writing the end of a transaction into a partition.
    Alter = 7,
}

/// The operations on one resource that are granted, directly or because another one implies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted(i32);

impl Granted {
    /// What a broker answers that was not asked, or does not know.
    const UNKNOWN: i32 = i32::MIN;

    /// Whether the operation is granted; `None` if the broker has not said.
    pub fn allows(self, operation: AclOperation) -> Option<bool> {
        (self.0 != Self::UNKNOWN).then_some(self.0 & (1 << operation as i32) != 0)
    }
}

impl Admin {
    /// What may be done with a topic that exists.
    pub async fn granted_on_topic(&self, topic: &str, deadline: Deadline) -> Result<Granted> {
        let name = TopicName(StrBytes::from_string(topic.to_owned()));
        let request = MetadataRequest::default()
            .with_allow_auto_topic_creation(false)
            .with_topics(Some(vec![MetadataRequestTopic::default().with_name(Some(name))]))
            .with_include_topic_authorized_operations(true);
        let (answer, _) = self.cluster().call_any(&request, 8, 12, deadline).await?;
        match answer.topics.first() {
            Some(found) if found.error_code == 0 => Ok(Granted(found.topic_authorized_operations)),
            found => {
                let code = found.map_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.0, |found| found.error_code);
                Err(ClientError::broker(format!("the permissions on topic {topic}"), code, None))
            }
        }
    }

    /// What may be done with the cluster.
    pub async fn granted_on_cluster(&self, deadline: Deadline) -> Result<Granted> {
        let request = DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
        let (answer, _) = self.cluster().call_any(&request, 0, 1, deadline).await?;
        match answer.error_code {
            0 => Ok(Granted(answer.cluster_authorized_operations)),
            code => Err(ClientError::broker("the permissions on the cluster", code, answer.error_message.as_deref())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_an_operation_and_silence_is_no_refusal() {
        let granted = Granted(1 << 3 | 1 << 8);
        assert_eq!(granted.allows(AclOperation::Read), Some(true));
        assert_eq!(granted.allows(AclOperation::Write), Some(false));
        assert_eq!(Granted(0).allows(AclOperation::Alter), Some(false));
        assert_eq!(Granted(i32::MIN).allows(AclOperation::Alter), None);
    }
}
