//! The manifests as they would be applied, from kustomize and from Helm, in both modes.

use crate::yaml::{documents, list, numbers, read, within};
use homing::cli::check_command_line;
use homing::config::{Config, Kubernetes, Overrides, parse};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// One set of manifests.
struct Set {
    name: &'static str,
    picker: bool,
    objects: Vec<Value>,
}

impl Set {
    fn all() -> Vec<Set> {
        ["kustomize-proxy", "kustomize-extproc", "helm-proxy", "helm-extproc"]
            .into_iter()
            .map(|name| Set {
                name,
                picker: name.ends_with("extproc"),
                objects: documents(&read(&format!("deploy/rendered/{name}.yaml"))),
            })
            .collect()
    }

    fn one(&self, kind: &str) -> &Value {
        let found: Vec<&Value> = self.objects.iter().filter(|o| o["kind"] == kind).collect();
        assert_eq!(found.len(), 1, "{}: {kind}", self.name);
        found[0]
    }

    fn pod(&self) -> &Value {
        &self.one("Deployment")["spec"]["template"]
    }

    fn container(&self) -> &Value {
        &self.pod()["spec"]["containers"][0]
    }

    fn config(&self) -> Config {
        let map = self.one("ConfigMap");
        let volume = &self.pod()["spec"]["volumes"][0];
        assert_eq!(volume["configMap"]["name"], map["metadata"]["name"], "{}", self.name);
        assert_eq!(self.container()["volumeMounts"][0]["name"], volume["name"]);
        let text = map["data"]["homing.yaml"].as_str().unwrap();
        let (config, report) = parse(text, &Overrides::default(), &|_| None).unwrap();
        assert_eq!(report.to_string(), "", "{}", self.name);
        config
    }

    fn kubernetes(&self) -> Kubernetes {
        self.config().kubernetes.unwrap()
    }
}

#[test]
fn every_object_has_a_version_a_name_and_a_namespace_of_its_own() {
    for set in Set::all() {
        let mut seen = BTreeSet::new();
        for o in &set.objects {
            for key in ["apiVersion", "kind"] {
                assert!(o[key].is_string(), "{}: {o}", set.name);
            }
            assert_eq!(o["metadata"]["namespace"], "inference", "{}: {o}", set.name);
            let name = o["metadata"]["name"].as_str().unwrap();
            assert!(seen.insert((o["kind"].to_string(), name.to_owned())), "{}: {name} twice", set.name);
        }
        let kinds: BTreeSet<&str> = set.objects.iter().filter_map(|o| o["kind"].as_str()).collect();
        let mut wanted = BTreeSet::from([
            "ConfigMap",
            "Deployment",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Role",
            "RoleBinding",
            "Service",
            "ServiceAccount",
        ]);
        if set.picker {
            wanted.extend(["HTTPRoute", "InferencePool"]);
        }
        assert_eq!(kinds, wanted, "{}", set.name);
    }
}

#[test]
fn selectors_select_the_router_and_nothing_else() {
    for set in Set::all() {
        let labels = &set.pod()["metadata"]["labels"];
        for (kind, path) in [
            ("Deployment", "/spec/selector/matchLabels"),
            ("Service", "/spec/selector"),
            ("PodDisruptionBudget", "/spec/selector/matchLabels"),
            ("NetworkPolicy", "/spec/podSelector/matchLabels"),
        ] {
            let selector =
                set.one(kind).pointer(path).unwrap_or_else(|| panic!("{}: {kind} has no {path}", set.name));
            assert!(
                within(selector, labels),
                "{}: {kind} selects {selector}, the pods have {labels}",
                set.name
            );
        }
        let spread = &set.pod()["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"];
        assert!(within(spread, labels), "{}", set.name);
        // The model servers' labels are other ones.
        let models = match set.picker {
            true => set.one("InferencePool")["spec"]["selector"]["matchLabels"].clone(),
            false => json!(set.kubernetes().selector),
        };
        assert!(!within(&models, labels), "{}: the router would find itself", set.name);
        let egress = &set.one("NetworkPolicy")["spec"]["egress"];
        let reach =
            list(egress).iter().find_map(|rule| rule["to"][0]["podSelector"]["matchLabels"].as_object());
        assert_eq!(json!(reach), models, "{}: whom it may reach is whom it routes to", set.name);
    }
}

#[test]
fn ports_agree_with_the_program_and_with_each_other() {
    for set in Set::all() {
        let (config, container) = (set.config(), set.container());
        let port = |name: &str| {
            list(&container["ports"])
                .iter()
                .find(|p| p["name"] == name)
                .and_then(|p| p["containerPort"].as_u64())
        };
        assert_eq!(port("http"), Some(config.listen.port().into()), "{}", set.name);
        assert_eq!(port("metrics"), Some(config.metrics.port().into()), "{}", set.name);
        for exposed in list(&set.one("Service")["spec"]["ports"]) {
            assert!(port(exposed["targetPort"].as_str().unwrap()).is_some(), "{}: {exposed}", set.name);
        }
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let get = &container[probe]["httpGet"];
            assert_eq!(
                (get["path"].as_str(), get["port"].as_str()),
                (Some(path), Some("metrics")),
                "{}",
                set.name
            );
        }
        let notes = &set.pod()["metadata"]["annotations"];
        assert_eq!(notes["prometheus.io/port"], config.metrics.port().to_string(), "{}", set.name);
        let policy = &set.one("NetworkPolicy")["spec"];
        let inside = numbers(&container["ports"], "containerPort");
        assert_eq!(numbers(&policy["ingress"][0]["ports"], "port"), inside, "{}", set.name);
        let reach = list(&policy["egress"]).iter().find(|r| !r["to"].is_null()).unwrap();
        let models: Vec<u64> = match set.picker {
            true => numbers(&set.one("InferencePool")["spec"]["targetPorts"], "number"),
            false => set.kubernetes().ports.into_iter().map(u64::from).collect(),
        };
        assert_eq!(numbers(&reach["ports"], "port"), models, "{}", set.name);
    }
}

#[test]
fn the_gateway_finds_the_picker_and_the_route_the_pool() {
    for set in Set::all().into_iter().filter(|s| s.picker) {
        let (pool, service) = (set.one("InferencePool"), set.one("Service"));
        assert_eq!(pool["apiVersion"], "inference.networking.k8s.io/v1");
        let picker = &pool["spec"]["endpointPickerRef"];
        assert_eq!(picker["name"], service["metadata"]["name"], "{}", set.name);
        let exposed = list(&service["spec"]["ports"]).iter().find(|p| p["name"] == "extproc").unwrap();
        assert_eq!(picker["port"]["number"], exposed["port"], "{}", set.name);
        assert!(["FailOpen", "FailClose"].contains(&picker["failureMode"].as_str().unwrap()));
        assert_eq!(set.kubernetes().pool.as_deref(), pool["metadata"]["name"].as_str(), "{}", set.name);
        let back = &set.one("HTTPRoute")["spec"]["rules"][0]["backendRefs"][0];
        assert_eq!(
            (back["group"].as_str(), back["kind"].as_str(), &back["name"]),
            (Some("inference.networking.k8s.io"), Some("InferencePool"), &pool["metadata"]["name"]),
            "{}",
            set.name
        );
        let args: Vec<&str> = list(&set.container()["args"]).iter().filter_map(Value::as_str).collect();
        let door = args.iter().position(|a| *a == "--extproc").map(|at| args[at + 1]).unwrap();
        let listens = list(&set.container()["ports"]).iter().find(|p| p["name"] == "extproc").unwrap();
        assert_eq!(door, format!("0.0.0.0:{}", listens["containerPort"]), "{}", set.name);
    }
}

#[test]
fn command_lines_are_the_programs() {
    for set in Set::all() {
        let mut words = vec!["homing"];
        // The picker's door and its address are compared with the ports above.
        let mut args = list(&set.container()["args"]).iter().filter_map(Value::as_str).peekable();
        while let Some(word) = args.next_if(|w| *w != "--extproc") {
            words.push(word);
        }
        assert_eq!(args.count(), if set.picker { 2 } else { 0 }, "{}", set.name);
        assert!(words.contains(&"/etc/homing/homing.yaml"), "{}", set.name);
        assert_eq!(set.container()["volumeMounts"][0]["mountPath"], "/etc/homing", "{}", set.name);
        check_command_line(&words).unwrap_or_else(|e| panic!("{}: {e}", set.name));
    }
}

#[test]
fn nothing_runs_as_root_or_writes() {
    for set in Set::all() {
        let (pod, container) = (&set.pod()["spec"]["securityContext"], &set.container()["securityContext"]);
        assert_eq!(pod["runAsNonRoot"], true, "{}", set.name);
        assert!(pod["runAsUser"].as_u64().unwrap() > 0);
        assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        for (kind, key) in [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")] {
            assert!(set.container()["resources"][kind][key].is_string(), "{}: {kind}.{key}", set.name);
        }
        let cpus: usize = set.container()["resources"]["requests"]["cpu"].as_str().unwrap().parse().unwrap();
        assert_eq!(set.config().workers, Some(cpus), "{}: a thread for each CPU that is asked for", set.name);
    }
}

#[test]
fn it_is_given_the_time_to_drain() {
    for set in Set::all() {
        let drain = set.config().drain;
        let needed = drain.delay.secs() + drain.grace.secs();
        let given = set.pod()["spec"]["terminationGracePeriodSeconds"].as_f64().unwrap();
        assert!(given >= needed + 5.0, "{}: {given} s for {needed} s", set.name);
        // Readiness must be seen to fail within the delay.
        let probe = &set.container()["readinessProbe"];
        let seen = probe["periodSeconds"].as_f64().unwrap() * probe["failureThreshold"].as_f64().unwrap();
        assert!(seen < drain.delay.secs(), "{}", set.name);
        assert_eq!(set.one("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    }
}

#[test]
fn rights_are_to_read_what_is_watched() {
    for set in Set::all() {
        let (role, binding) = (set.one("Role"), set.one("RoleBinding"));
        let account = &set.one("ServiceAccount")["metadata"]["name"];
        assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"], "{}", set.name);
        assert_eq!(list(&binding["subjects"]).len(), 1);
        let subject = &binding["subjects"][0];
        assert_eq!((&subject["name"], &subject["namespace"]), (account, &json!("inference")), "{}", set.name);
        assert_eq!(&set.pod()["spec"]["serviceAccountName"], account, "{}", set.name);
        assert_eq!(set.pod()["spec"]["automountServiceAccountToken"], true, "{}", set.name);
        let rules = list(&role["rules"]);
        assert!(rules.iter().all(|r| r["verbs"] == json!(["list", "watch"])), "{}: {rules:?}", set.name);
        let pools: Vec<&Value> =
            rules.iter().filter(|r| r["resources"] == json!(["inferencepools"])).collect();
        assert_eq!(pools.len(), usize::from(set.picker), "{}", set.name);
        if set.picker {
            assert_eq!(
                pools[0]["resourceNames"],
                json!([set.kubernetes().pool]),
                "{}: this pool only",
                set.name
            );
        } else {
            assert_eq!(rules.len(), 1, "{}: pods, and nothing else", set.name);
        }
    }
}
