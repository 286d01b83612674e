//! Secrets from a real OpenBao.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use ciqadamq_tests::vault::{Load, OpenBao};
use ciqadamq_tests::{Broker, BrokerOptions, command, eventually, free_addresses, random_token};
use serde_json::json;

use crate::secrets::{
    API, addresses, degraded, finish, nothing_shows, rotation_in_a_cluster, rotation_under_load, status, text,
    three_nodes,
};

fn options(bao: &OpenBao) -> BrokerOptions {
    BrokerOptions::new().set("secrets.provider", "vault").env("VAULT_ADDR", &bao.url())
}

#[test]
fn a_token_from_openbao_rotates_under_load_and_sealing_is_noticed_by_nobody() {
    let Some(bao) = OpenBao::start() else { return };
    let old = random_token();
    bao.put("api-token", &old);
    let mut nodes = three_nodes(&options(&bao).outside_token(&old).env("VAULT_TOKEN", &bao.root));
    let load = rotation_under_load(&addresses(&nodes), &old, |token| bao.put("api-token", token));

    let current = load.token();
    let intruder = Load::start(&addresses(&nodes), &old, 20, |status| matches!(status, 401 | 429));
    bao.seal();
    for node in &nodes {
        eventually("the seal is noticed", || degraded(node.rest.addr).contains("vault: sealed").then_some(()));
        assert_eq!(status(node.rest.addr, &current), 200);
    }
    bao.unseal();
    for node in &nodes {
        eventually("the vault is back", || degraded(node.rest.addr).is_empty().then_some(()));
    }
    intruder.finish();
    let new = random_token();
    bao.put("api-token", &new);
    load.set_token(&new);
    for node in &mut nodes {
        node.rest.token.clone_from(&new);
        assert_eq!(status(node.rest.addr, &new), 200, "the new token from its first request on");
        nothing_shows(node, &[&old, &current, &new, &bao.root]);
    }
    finish(load);
}

#[test]
fn tokens_of_a_cluster_rotate_in_openbao_without_one_wrong_answer() {
    let Some(bao) = OpenBao::start() else { return };
    let old = random_token();
    bao.put("api-token", &old);
    let options = options(&bao).outside_token(&old).env("VAULT_TOKEN", &bao.root);
    rotation_in_a_cluster(&options, &old, |name, value| bao.put(name.trim_start_matches("ciqada/"), value));
}

/// `ciqadamq secrets check` with this configuration and environment: exit code and text.
#[track_caller]
fn check(dir: &Path, config: &str, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let path = dir.join("test.toml");
    fs::write(&path, config).unwrap();
    let mut command = command(dir);
    let output = command.args(["secrets", "check", "--config"]).arg(path).envs(env.iter().copied()).output().unwrap();
    (output.status.code(), text(&output))
}

#[test]
fn both_kv_engines_namespaces_and_templates_are_read() {
    let Some(bao) = OpenBao::start() else { return };
    let dir = tempfile::TempDir::new().unwrap();
    let (url, token) = (bao.url(), random_token());
    let env = [("SECRETS_PROVIDER", "openbao"), ("VAULT_ADDR", url.as_str()), ("VAULT_TOKEN", bao.root.as_str())];
    let good = |config: &str, env: &[(&str, &str)]| {
        let (code, said) = check(dir.path(), config, env);
        assert!(code == Some(0) && said.lines().next().unwrap().contains("usable"), "{config}: {code:?} {said}");
        assert!(!said.contains(&token) && !said.contains(&bao.root), "{said}");
    };

    bao.put("api-token", &token);
    good("", &env);

    // All three in one secret, below a mount of two levels.
    bao.call("POST", "sys/mounts/team/kv", &json!({"type": "kv", "options": {"version": "2"}}));
    eventually("the engine is ready", || bao.accepts("team/kv/data/x", &json!({"data": {}})).then_some(()));
    let fields = json!({"api-token": token, "pepper": random_token(), "repl-token": random_token()});
    bao.call("POST", "team/kv/data/chat%20server", &json!({"data": fields}));
    let one = "[secrets.vault]\nmount = \"team/kv\"\npath = \"chat server\"\nfield = \"{name}\"\n";
    good(one, &env);
    let (_, said) = check(dir.path(), one, &env);
    assert_eq!(said.matches("usable").count(), 3, "{said}");

    bao.call("POST", "sys/mounts/old", &json!({"type": "kv", "options": {"version": "1"}}));
    bao.call("POST", "old/ciqada/api-token", &json!({"value": token}));
    good("[secrets.vault]\nmount = \"old\"\nkv_version = 1\n", &env);

    bao.call("POST", "sys/namespaces/chat", &json!({}));
    bao.call_in("chat", "POST", "sys/mounts/old", &json!({"type": "kv", "options": {"version": "1"}}));
    bao.call_in("chat", "POST", "old/ciqada/api-token", &json!({"value": token}));
    let mut in_namespace = env.to_vec();
    in_namespace.push(("VAULT_NAMESPACE", "chat"));
    good("[secrets.vault]\nmount = \"old\"\nkv_version = 1\n", &in_namespace);

    for (config, wanted) in [
        ("[secrets.vault]\nmount = \"nowhere\"\n", "mount"),
        ("[secrets.vault]\npath = \"elsewhere/{name}\"\n", "none"),
        ("[secrets.vault]\nfield = \"other\"\n", "the answer has no value"),
    ] {
        let (code, said) = check(dir.path(), config, &env);
        assert!(code == Some(4) && said.contains(wanted), "{config}: {code:?} {said}");
    }
    let wrong = [env[0], env[1], ("VAULT_TOKEN", "s.wrong")];
    let (code, said) = check(dir.path(), "", &wrong);
    assert!(code == Some(4) && said.contains("403"), "{code:?} {said}");
}

#[test]
fn only_the_authority_that_was_named_is_believed() {
    let Some(bao) = OpenBao::start_tls() else { return };
    let dir = tempfile::TempDir::new().unwrap();
    let (url, ca) = (bao.url(), bao.ca_file().display().to_string());
    let env = [("SECRETS_PROVIDER", "vault"), ("VAULT_ADDR", url.as_str()), ("VAULT_TOKEN", bao.root.as_str())];
    let (code, said) = check(dir.path(), "", &env);
    assert!(code == Some(4) && said.contains("cannot be reached"), "{code:?} {said}");
    let mut with_ca = env.to_vec();
    with_ca.push(("VAULT_CACERT", &ca));
    let (_, said) = check(dir.path(), "", &with_ca);
    // It was reached; there is nothing in it yet.
    assert!(said.lines().next().unwrap().contains("none"), "{said}");
    with_ca[3].1 = "/dev/null";
    let (code, said) = check(dir.path(), "", &with_ca);
    assert!(code == Some(1) && said.contains("has no certificate"), "{code:?} {said}");
}

#[test]
fn a_node_with_an_approle_outlives_its_tokens() {
    let Some(bao) = OpenBao::start() else { return };
    let old = random_token();
    bao.put("api-token", &old);
    bao.allow_reading("node", "secret/data/ciqada");
    let (role_id, secret_id) = bao.app_role("node", "2s", "4s");
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("secret-id");
    fs::write(&file, format!("{secret_id}\n")).unwrap();
    let options = options(&bao)
        .outside_token(&old)
        .set("secrets.vault.auth", "approle")
        .set("secrets.vault.role_id", role_id.as_str())
        .set("secrets.vault.secret_id_file", file.display().to_string())
        .set("secrets.refresh_secs", 3600);
    let broker = Broker::start(options);
    let logins = || broker.log().matches("logged in to the vault").count();
    // Twice, each with a limit of its own: a token lives for some seconds.
    for count in [2, 3] {
        eventually("it logged in again when renewal came to its end", || (logins() >= count).then_some(()));
    }
    let new = random_token();
    bao.put("api-token", &new);
    assert_eq!(status(broker.rest.addr, &new), 200, "the first request with the new token");
    nothing_shows(&broker, &[&old, &new, &secret_id, &bao.root]);
}

#[test]
fn a_token_in_a_file_is_read_again_when_the_vault_refuses_it() {
    let Some(bao) = OpenBao::start() else { return };
    let old = random_token();
    bao.put("api-token", &old);
    bao.allow_reading("node", "secret/data/ciqada");
    let issue = || {
        let answer = bao.call("POST", "auth/token/create", &json!({"policies": ["node"], "ttl": "1h"}));
        answer["auth"]["client_token"].as_str().unwrap().to_owned()
    };
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("token");
    let first = issue();
    fs::write(&file, &first).unwrap();
    let options = options(&bao).outside_token(&old).set("secrets.vault.token_file", file.display().to_string());
    let broker = Broker::start(options);
    let (second, new) = (issue(), random_token());
    fs::write(&file, &second).unwrap();
    bao.call("POST", "auth/token/revoke", &json!({"token": first}));
    bao.put("api-token", &new);
    assert_eq!(status(broker.rest.addr, &new), 200, "the first request with the new token");
    nothing_shows(&broker, &[&old, &new, &first, &second]);
}

#[test]
fn a_pod_logs_in_with_its_service_account() {
    let Some(bao) = OpenBao::start() else { return };
    bao.put("api-token", &random_token());
    bao.allow_reading("node", "secret/data/ciqada");
    let reviewer = reviewer();
    bao.call("POST", "sys/auth/kubernetes", &json!({"type": "kubernetes"}));
    let config = json!({"kubernetes_host": format!("http://{reviewer}"), "disable_local_ca_jwt": true,
        "kubernetes_ca_cert": "not needed without TLS",
        "token_reviewer_jwt": service_account("reviewer")});
    bao.call("POST", "auth/kubernetes/config", &config);
    let role = json!({"bound_service_account_names": ["ciqadamq"], "bound_service_account_namespaces": ["default"],
        "token_policies": ["node"], "alias_name_source": "serviceaccount_name"});
    bao.call("POST", "auth/kubernetes/role/node", &role);
    let dir = tempfile::TempDir::new().unwrap();
    let jwt_file = dir.path().join("jwt");
    let config = format!(
        "[secrets.vault]\nauth = \"kubernetes\"\nkubernetes_role = \"node\"\nkubernetes_jwt_file = \"{}\"\n",
        jwt_file.display()
    );
    let url = bao.url();
    let env = [("SECRETS_PROVIDER", "vault"), ("VAULT_ADDR", url.as_str())];
    for (account, wanted) in [("ciqadamq", Some(0)), ("somebody", Some(4))] {
        fs::write(&jwt_file, service_account(account)).unwrap();
        let (code, said) = check(dir.path(), &config, &env);
        assert_eq!(code, wanted, "{account}: {said}\n{}", bao.log());
        assert!(wanted == Some(0) || said.contains("role or service account refused"), "{said}");
        assert!(said.contains(API) && !said.contains(&service_account(account)), "{said}");
    }
}

/// A service account's token, as far as anybody looks into it here: the cluster is asked whether it is genuine.
fn service_account(name: &str) -> String {
    use base64::Engine as _;
    let encode = |value: serde_json::Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"iss": "kubernetes/serviceaccount", "sub": format!("system:serviceaccount:default:{name}"),
        "kubernetes.io/serviceaccount/namespace": "default", "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": format!("uid-of-{name}")});
    format!("{}.{}.c2lnbmF0dXJl", encode(json!({"alg": "RS256", "typ": "JWT"})), encode(claims))
}

/// The part of a Kubernetes API that says whose token something is. Its thread ends with the test's process.
fn reviewer() -> std::net::SocketAddr {
    let listener = TcpListener::bind(free_addresses::<1>()[0]).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut raw = Vec::new();
            let mut chunk = [0; 4096];
            let review = loop {
                let read = socket.read(&mut chunk).unwrap_or(0);
                raw.extend(&chunk[..read]);
                let text = String::from_utf8_lossy(&raw).into_owned();
                let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
                match serde_json::from_str::<serde_json::Value>(&body) {
                    Ok(review) => break review,
                    Err(_) if read == 0 => break json!({}),
                    Err(_) => {}
                }
            };
            let presented = review["spec"]["token"].as_str().unwrap_or_default();
            let name = ["ciqadamq", "somebody"].into_iter().find(|name| service_account(name) == presented);
            let status = match name {
                Some(name) => json!({"authenticated": true, "user": {"uid": format!("uid-of-{name}"),
                    "username": format!("system:serviceaccount:default:{name}"), "groups": []}}),
                None => json!({"authenticated": false}),
            };
            let body =
                json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}).to_string();
            let head = format!(
                "HTTP/1.1 201 x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            socket.write_all((head + &body).as_bytes()).ok();
        }
    });
    addr
}
