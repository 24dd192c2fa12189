//! The path and query that a replica is asked for.

use http::Uri;
use http::uri::PathAndQuery;

/// Path and query as the client sent them; a client that names a whole URL means only these.
pub(super) fn of(uri: &Uri) -> PathAndQuery {
    uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"))
}
