//! Whether this node may take clients.

use std::collections::BTreeMap;

use parking_lot::RwLock;

/// One thing that must hold before clients are let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// holds
    Met,
    /// holds well enough for clients to come, but somebody should look: what does not work, and why
    Degraded(String),
    /// does not hold, and why
    Unmet(String),
}

/// The conditions of readiness by name (`listeners`, `users`, `cluster`, ...). Ready means none is unmet.
///
/// A part that has to be waited for declares its condition before the API opens, so that `/ready` cannot say yes too
/// early.
#[derive(Debug, Default)]
pub struct Health {
    conditions: RwLock<BTreeMap<&'static str, Condition>>,
}

impl Health {
    /// Nothing declared: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a condition, or changes its state.
    pub fn set(&self, name: &'static str, condition: Condition) {
        self.conditions.write().insert(name, condition);
    }

    /// All conditions, by name.
    pub fn conditions(&self) -> BTreeMap<&'static str, Condition> {
        self.conditions.read().clone()
    }

    /// Whether no condition is unmet.
    pub fn is_ready(&self) -> bool {
        !self.conditions.read().values().any(|c| matches!(c, Condition::Unmet(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unmet_condition_is_enough_to_be_unready() {
        let health = Health::new();
        health.set("listeners", Condition::Met);
        assert!(health.is_ready());
        health.set("users", Condition::Unmet("catching up".into()));
        assert!(!health.is_ready());
        health.set("users", Condition::Met);
        assert!(health.is_ready());
        health.set("users", Condition::Degraded("slow".into()));
        assert!(health.is_ready(), "clients may come to a degraded node");
    }
}
