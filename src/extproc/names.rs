//! The names of the endpoint picker protocol.

/// Header and metadata key of the choice.
pub(super) const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Metadata namespace of the choice, and of who served.
pub(super) const LB: &str = "envoy.lb";
/// Metadata namespace of the subset.
pub(super) const SUBSET_HINT: &str = "envoy.lb.subset_hint";
/// Metadata key of the subset.
pub(super) const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Metadata key of who served.
pub(super) const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Envoy's namespace of attributes, and the attribute that says who served where there is no such metadata.
pub(super) const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";
/// See [`ATTRIBUTES`].
pub(super) const UPSTREAM: &str = "upstream.address";

/// Name of the request's objective, which stands for a priority.
pub(super) const OBJECTIVE: &[&str] = &["x-llm-d-inference-objective", "x-gateway-inference-objective"];
/// Whose request it is.
pub(super) const FAIRNESS: &[&str] = &["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];
/// The model that the replica is asked for instead.
pub(super) const REWRITE: &[&str] = &["x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"];
/// Milliseconds to the first token that are wanted.
pub(super) const SLO_TTFT: &[&str] = &["x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"];
/// Milliseconds a token that are wanted.
pub(super) const SLO_TPOT: &[&str] = &["x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"];
/// The request's id.
pub(super) const REQUEST_ID: &str = "x-request-id";
/// Why a request was refused.
pub(super) const DROPPED: &str = "x-llm-d-request-dropped-reason";
/// Conformance tests: the endpoints to choose.
pub(super) const TEST_SELECTION: &str = "test-epp-endpoint-selection";
/// Conformance tests: who served.
pub(super) const TEST_SERVED: &str = "x-conformance-test-served-endpoint";
