//! Waiting in the lane of the replica that a request chose.

use super::units::Seconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests wait in the lane of the replica that they chose until it can start them soon, in an order of their own, instead
/// of queueing first come, first served inside the engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lanes {
    /// False: requests go to their replica at once; only those that nothing can take wait.
    pub enabled: bool,
    /// Prefill that may be pending on a replica when another request is sent there. Raise it if engines fall idle between two
    /// requests (a long way to them, tiny prompts); what is sent is out of the order's reach.
    pub pending: Seconds,
    /// α of the order: seconds of own prefill that a second of waiting makes up for. Short prompts go first; 0: always.
    pub aging: f64,
    /// Most requests in one lane. A full one is passed over.
    pub per_replica: u32,
    /// Believe `x-homing-priority` (-100 to 100, the higher the sooner, strictly; 0 if missing) and `x-homing-tenant` of
    /// requests. Turn it on only where whoever sets them is trusted: a gateway in front that removes the clients' own.
    /// Otherwise all requests have priority 0, and tenants are told apart by their `Authorization` header.
    pub trust_headers: bool,
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes {
            enabled: true,
            pending: Seconds::from_millis(100),
            aging: 0.1,
            per_replica: 1024,
            trust_headers: false,
        }
    }
}
