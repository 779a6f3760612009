//! Parameters of the program itself: what it was given, and what it has asked for.
use super::{ENVIRONMENT, OptionError, Origin, most_like};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// What follows [`ENVIRONMENT`] in the name of a parameter's variable.
pub(super) const PREFIX: &str = "PARAM_";

/// See the module. Clones share what was asked for: the program asks a clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Parameters {
    given: BTreeMap<String, (String, Origin)>,
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Parameters {
    /// The value; notes that there is a parameter of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        self.given.get(name).map(|(value, _)| value.as_str())
    }

    /// Gives a parameter, unless a stronger origin has.
    pub fn give(&mut self, name: String, value: String, origin: Origin) {
        if self.given.get(&name).is_none_or(|(_, there)| *there <= origin) {
            self.given.insert(name, (value, origin));
        }
    }

    /// A parameter that the program has not asked for is refused; in an environment that several programs may share, warned of.
    pub fn check(&self) -> Result<Vec<String>, OptionError> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let mut warnings = vec![];
        for (name, (_, origin)) in self.given.iter().filter(|(name, _)| !asked.contains(*name)) {
            let nearest = most_like(name, asked.iter().map(String::as_str));
            match origin {
                Origin::Environment(variable) => warnings.push(match nearest {
                    Some(nearest) => format!(
                        "environment variable {variable}: this program has no parameter {name:?}; did you mean {}?",
                        variable_of(nearest)
                    ),
                    None => format!("environment variable {variable}: this program has no parameters"),
                }),
                Origin::Code | Origin::Flag(_) => {
                    let hint = nearest.map_or("; it has none".to_owned(), |nearest| {
                        let known: Vec<&str> = asked.iter().map(String::as_str).collect();
                        format!("; did you mean {nearest:?}? It has: {}", known.join(", "))
                    });
                    return Err(OptionError::Parameter { name: name.clone(), hint });
                }
            }
        }
        Ok(warnings)
    }
}

impl Parameters {
    /// Of a program that has ended before it had asked for everything: a parameter that it misses and that seems to be there under
    /// another name.
    pub fn misspelled(&self) -> Option<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = || asked.iter().map(String::as_str).filter(|name| !self.given.contains_key(*name));
        self.given.keys().filter(|name| !asked.contains(*name)).find_map(|name| {
            let nearest = most_like(name, missing())?;
            let alike = strsim::normalized_damerau_levenshtein(name, nearest) >= 0.5;
            alike.then(|| format!("parameter {name:?} is given where {nearest:?} is asked for: is that a typing error?"))
        })
    }
}

fn variable_of(parameter: &str) -> String {
    format!("{ENVIRONMENT}{PREFIX}{}", parameter.to_ascii_uppercase().replace('-', "_"))
}
