//! What an operator keeps per key, and the form of it that is stored with its snapshots.

use super::accumulators::{Accumulator, AggregateSpec};
use super::error::StateError;
use super::types::{canonical_type, type_name};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Column of snapshot files: the group's namespace (start of its window, or 0).
pub(crate) const NAMESPACE: &str = "__namespace";
/// Column of snapshot files: the group's slot.
pub(crate) const SLOT: &str = "__slot";
/// Column of snapshot files: whether the group was deleted. Its state columns are then NULL.
pub(crate) const DELETED: &str = "__deleted";

/// The keys and aggregates of a keyed operator.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSchema {
    /// Names and types of the key columns, at least one. Types are made canonical.
    pub keys: Vec<(String, DataType)>,
    /// The aggregates; none for plain deduplication.
    pub aggregates: Vec<AggregateSpec>,
    /// Number of slots (`pipeline.max-parallelism`): fixed for the life of the state.
    pub slots: u32,
    /// What its namespaces stand for.
    pub namespaces: Namespaces,
}

/// What the namespaces of keyed state stand for. Part of what is stored: the start of a window says nothing without its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespaces {
    /// There is one, for all time.
    All,
    /// Each is the start of an event-time window. Lengths in milliseconds.
    Windows {
        /// Length of a window.
        size_ms: i64,
        /// Distance of two starts; the size for tumbling windows.
        slide_ms: i64,
        /// Start of the first window at or after time 0: at least 0, below the slide.
        offset_ms: i64,
    },
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Namespaces::All => write!(f, "no windows"),
            Namespaces::Windows { size_ms, slide_ms, offset_ms } if size_ms == slide_ms => {
                write!(f, "tumbling windows of {size_ms} ms, offset {offset_ms} ms")
            }
            Namespaces::Windows { size_ms, slide_ms, offset_ms } => {
                write!(f, "sliding windows of {size_ms} ms, slide {slide_ms} ms, offset {offset_ms} ms")
            }
        }
    }
}

impl StateSchema {
    /// The canonical types of the key columns.
    pub fn key_types(&self) -> Vec<DataType> {
        self.keys.iter().map(|(_, data_type)| canonical_type(data_type)).collect()
    }

    /// Empty accumulators, one per aggregate.
    pub fn accumulators(&self) -> Result<Vec<Box<dyn Accumulator>>, StateError> {
        self.aggregates.iter().map(AggregateSpec::accumulator).collect()
    }

    /// The form that is stored and compared.
    pub fn stored(&self) -> Result<StoredSchema, StateError> {
        let column = |(name, data_type): &(String, DataType)| StoredColumn { name: name.clone(), types: vec![type_name(data_type)] };
        let aggregate = |spec: &AggregateSpec| {
            let types = spec.accumulator()?.state_types().iter().map(type_name).collect();
            Ok(StoredColumn { name: spec.name.clone(), types })
        };
        Ok(StoredSchema {
            slots: self.slots,
            keys: self.keys.iter().map(column).collect(),
            aggregates: self.aggregates.iter().map(aggregate).collect::<Result<_, StateError>>()?,
            namespaces: Some(self.namespaces),
        })
    }

    /// The columns of frozen rows: namespace, deleted, keys, state columns.
    pub(crate) fn frozen_schema(&self) -> Result<SchemaRef, StateError> {
        let mut fields = vec![Field::new(NAMESPACE, DataType::Int64, false), Field::new(DELETED, DataType::Boolean, false)];
        for (i, data_type) in self.key_types().into_iter().enumerate() {
            fields.push(Field::new(format!("key{i}"), data_type, true));
        }
        for (i, accumulator) in self.accumulators()?.iter().enumerate() {
            for (j, data_type) in accumulator.state_types().into_iter().enumerate() {
                fields.push(Field::new(format!("state{i}_{j}"), data_type, true));
            }
        }
        Ok(Arc::new(Schema::new(fields)))
    }
}

/// The columns of a snapshot file: frozen rows with the slot as second column.
pub(crate) fn file_schema(frozen: &Schema) -> SchemaRef {
    let mut fields = frozen.fields().to_vec();
    fields.insert(1, Arc::new(Field::new(SLOT, DataType::UInt16, false)));
    Arc::new(Schema::new(fields))
}

/// A [`StateSchema`] as it is stored: types by their stable names. [`StoredSchema::fits`] tells what is compatible.
///
/// Names count: two keys or sums of one type that changed places would otherwise be taken for each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSchema {
    /// Number of slots.
    pub slots: u32,
    /// The key columns.
    pub keys: Vec<StoredColumn>,
    /// The aggregates with the types of their state.
    pub aggregates: Vec<StoredColumn>,
    /// What its namespaces stand for. `None`: written before this was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Namespaces>,
}

impl StoredSchema {
    /// Whether state that was stored with this can be used by an operator that wants `wanted`: everything is equal, but that what
    /// was not stored yet may be anything.
    pub fn fits(&self, wanted: &StoredSchema) -> bool {
        let namespaces = self.namespaces.or(wanted.namespaces);
        StoredSchema { namespaces, ..self.clone() } == *wanted
    }
}

/// A name and the types that belong to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredColumn {
    /// The key column's or aggregate's name.
    pub name: String,
    /// Stable type names ([`type_name`]).
    pub types: Vec<String>,
}

impl fmt::Display for StoredSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |columns: &[StoredColumn]| {
            let texts = columns.iter().map(|column| format!("{} {}", column.name, column.types.join("+")));
            texts.collect::<Vec<_>>().join(", ")
        };
        write!(f, "keys [{}], aggregates [{}], {} slots", list(&self.keys), list(&self.aggregates), self.slots)?;
        match &self.namespaces {
            Some(namespaces) => write!(f, ", {namespaces}"),
            None => Ok(()),
        }
    }
}
