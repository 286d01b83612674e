//! The table of routes, and the salvo router that dispatches them.
//!
//! The table decides who may call what and what a path is called in metrics; the router runs the handler and is what
//! the OpenAPI document is made from. A test holds the two together. A path that is not in the table is never
//! dispatched, whatever the router would make of it.

use std::fmt;

use salvo::http::{Method, Request};
use salvo::routing::{Filter, PathState};
use salvo::{Handler, Router, async_trait};

use crate::{acl, cluster, docs, internal, members, node, services, sessions, users};

/// Who may call a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// anybody
    Open,
    /// whoever has the management token
    Management,
    /// whoever has the replication token
    Replication,
    /// [`Guard::Open`] or [`Guard::Management`], as `metrics_open` says
    Metrics,
    /// [`Guard::Open`] or [`Guard::Management`], as `docs_open` says
    Docs,
}

/// One path and what it answers to. `GET` includes `HEAD`.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) methods: &'static [&'static str],
    pub(crate) guard: Guard,
}

/// All there is.
pub(crate) const ROUTES: &[Route] = &[
    Route { path: "/api/v1/users", methods: &["GET", "POST"], guard: Guard::Management },
    Route { path: "/api/v1/users/{username}", methods: &["GET", "PATCH", "DELETE"], guard: Guard::Management },
    Route { path: "/api/v1/sessions", methods: &["GET"], guard: Guard::Management },
    Route { path: "/api/v1/sessions/{clientid}", methods: &["DELETE"], guard: Guard::Management },
    Route { path: "/api/v1/acl/check", methods: &["POST"], guard: Guard::Management },
    Route { path: "/api/v1/cluster", methods: &["GET"], guard: Guard::Management },
    Route { path: "/api/v1/cluster/members", methods: &["POST"], guard: Guard::Management },
    Route { path: "/api/v1/cluster/members/{id}", methods: &["DELETE"], guard: Guard::Management },
    Route { path: "/api/v1/openapi.json", methods: &["GET"], guard: Guard::Management },
    Route { path: "/health", methods: &["GET"], guard: Guard::Open },
    Route { path: "/ready", methods: &["GET"], guard: Guard::Open },
    Route { path: "/metrics", methods: &["GET"], guard: Guard::Metrics },
    Route { path: "/docs", methods: &["GET"], guard: Guard::Docs },
    Route { path: "/internal/users-full", methods: &["GET"], guard: Guard::Replication },
    Route { path: "/internal/replicate", methods: &["POST"], guard: Guard::Replication },
    Route { path: "/internal/v1/{service}", methods: &["POST"], guard: Guard::Replication },
];

impl Route {
    pub(crate) fn allows(&self, method: &Method) -> bool {
        self.methods.contains(&method.as_str()) || (method == Method::HEAD && self.methods.contains(&"GET"))
    }

    /// The value of an `Allow` header.
    pub(crate) fn allow_header(&self) -> String {
        let head = self.methods.contains(&"GET").then_some("HEAD");
        self.methods.iter().copied().chain(head).collect::<Vec<_>>().join(", ")
    }
}

/// The route of a request path, and the raw (still percent-encoded) segment of its parameter.
///
/// Segment by segment and to the letter: no doubled, missing or added slash is made up for.
pub(crate) fn find(path: &str) -> Option<(&'static Route, Option<&str>)> {
    ROUTES.iter().find_map(|route| matches(route.path, path).map(|parameter| (route, parameter)))
}

fn matches<'p>(template: &str, path: &'p str) -> Option<Option<&'p str>> {
    let mut actual = path.split('/');
    let mut parameter = None;
    for expected in template.split('/') {
        let segment = actual.next()?;
        if expected.starts_with('{') {
            parameter = Some(segment).filter(|s| !s.is_empty());
            parameter?;
        } else if segment != expected {
            return None;
        }
    }
    actual.next().is_none().then_some(parameter)
}

/// The handlers at their paths.
pub(crate) fn router() -> Router {
    Router::new()
        .push(
            Router::with_path("api/v1")
                .push(
                    Router::with_path("users").push(get(users::list_users)).post(users::create_user).push(
                        Router::with_path("{username}")
                            .push(get(users::read_user))
                            .patch(users::change_user)
                            .delete(users::delete_user),
                    ),
                )
                .push(
                    Router::with_path("sessions")
                        .push(get(sessions::list_sessions))
                        .push(Router::with_path("{clientid}").delete(sessions::end_session)),
                )
                .push(Router::with_path("acl/check").post(acl::check_access))
                .push(
                    Router::with_path("cluster").push(get(cluster::show_cluster)).push(
                        Router::with_path("members")
                            .post(members::add_member)
                            .push(Router::with_path("{id}").delete(members::remove_member)),
                    ),
                )
                .push(Router::with_path("openapi.json").push(get(docs::show_openapi))),
        )
        .push(Router::with_path("health").push(get(node::show_health)))
        .push(Router::with_path("ready").push(get(node::show_ready)))
        .push(Router::with_path("metrics").push(get(node::show_metrics)))
        .push(Router::with_path("docs").push(get(docs::show_docs)))
        .push(
            Router::with_path("internal")
                .push(Router::with_path("users-full").push(get(internal::export_users)))
                .push(Router::with_path("replicate").post(internal::replicate))
                .push(Router::with_path("v1/{service}").post(services::call_service)),
        )
}

fn get(handler: impl Handler) -> Router {
    Router::new().filter(GetOrHead).goal(handler)
}

/// GET, and HEAD with it, which salvo's own `get` leaves out.
struct GetOrHead;

#[async_trait]
impl Filter for GetOrHead {
    async fn filter(&self, req: &mut Request, _path: &mut PathState) -> bool {
        req.method() == Method::GET || req.method() == Method::HEAD
    }
}

impl fmt::Debug for GetOrHead {
    /// This text is how salvo's OpenAPI generator learns the method.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("method:GET")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_path_is_matched_to_the_letter() {
        assert_eq!(find("/api/v1/users").unwrap().0.path, "/api/v1/users");
        let (route, parameter) = find("/api/v1/users/a%2Fb").unwrap();
        assert_eq!((route.path, parameter), ("/api/v1/users/{username}", Some("a%2Fb")));
        for stray in [
            "",
            "/",
            "/api/v1/users/",
            "//api/v1/users",
            "/api//v1/users",
            "/api/v1/users/a/b",
            "/API/v1/users",
            "/internal",
            "/internal/users-full/",
            "/internal//users-full",
            "/%69nternal/users-full",
            "*",
        ] {
            assert!(find(stray).is_none(), "{stray}");
        }
    }

    #[test]
    fn only_health_and_ready_are_open_by_themselves() {
        let open: Vec<_> = ROUTES.iter().filter(|r| r.guard == Guard::Open).map(|r| r.path).collect();
        assert_eq!(open, ["/health", "/ready"]);
        for route in ROUTES {
            assert_eq!(route.path.starts_with("/internal/"), route.guard == Guard::Replication, "{}", route.path);
        }
    }
}
