//! Loading: precedence, variables, secrets, errors.

use super::*;
use crate::config::{EngineKind, Seconds, Size};

const ONE: &str = "replicas: [{url: http://10.0.0.1:8000}]\n";

fn no_env(_: &str) -> Option<String> {
    None
}

fn get(text: &str) -> Config {
    match parse(text, &Overrides::default(), &no_env) {
        Ok((config, _)) => config,
        Err(e) => panic!("{e}"),
    }
}

fn err(text: &str) -> String {
    parse(text, &Overrides::default(), &no_env).unwrap_err().to_string()
}

/// A file with a secret in it, removed at the end of the test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("homing-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_example_file_loads_and_says_the_defaults() {
    let text = include_str!("../../config/homing.yaml");
    let (config, report) = parse(text, &Overrides::default(), &no_env).unwrap();
    assert_eq!(report, Report::default());
    assert_eq!(config.replicas.len(), 2);
    // The example writes every default out; should one change, the example must follow.
    let shown = Config { replicas: config.replicas.clone(), ..Config::default() };
    assert_eq!(config, shown);
}

#[test]
fn the_example_file_names_every_key() {
    let text = include_str!("../../config/homing.yaml");
    let schema = schema_json();
    let mut missing = Vec::new();
    let defs = schema["$defs"].as_object().unwrap().values();
    for object in defs.chain([&schema]).filter_map(|s| s["properties"].as_object()) {
        missing.extend(object.keys().filter(|k| !text.contains(&format!("{k}:"))));
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let text = format!(
        "{ONE}listen: 127.0.0.1:1000\nmetrics: 127.0.0.1:1001\nlog: {{level: debug, blocks: true}}\n"
    );
    let overrides = Overrides {
        listen: "127.0.0.1:2000".parse().ok(),
        replicas: vec!["http://b".into(), "http://c".into()],
        workers: Some(3),
        ..Overrides::default()
    };
    let (c, _) = parse(&text, &overrides, &no_env).unwrap();
    assert_eq!(c.listen.port(), 2000);
    assert_eq!(c.metrics.port(), 1001);
    assert_eq!(c.admin, Config::default().admin);
    assert_eq!(c.log.level, "debug");
    assert!(c.log.blocks);
    assert_eq!(c.workers, Some(3));
    assert_eq!(c.replicas.iter().map(|r| r.url.as_str()).collect::<Vec<_>>(), ["http://b", "http://c"]);
}

#[test]
fn without_a_file_overrides_are_enough() {
    let overrides = Overrides { replicas: vec!["http://a:1".into()], ..Overrides::default() };
    let (c, report) = load(None, &overrides).unwrap();
    assert_eq!(c.replicas.len(), 1);
    assert_eq!(report, Report::default());
    assert!(matches!(load(None, &Overrides::default()), Err(ConfigError::Invalid(_))));
}

#[test]
fn units_and_nulls_are_read() {
    let c = get(&format!(
        "{ONE}limits: {{body_bytes: 8MB}}\ntimeouts: {{first_byte: 90s, connect: 0.5}}\nadmin: null\nlog: {{access: off}}\n\
         replica_defaults: {{engine: vllm}}\n"
    ));
    assert_eq!(c.limits.body_bytes, Size::bytes(8_000_000));
    assert_eq!(c.timeouts.first_byte, Some(Seconds::from_secs(90)));
    assert_eq!(c.timeouts.connect, Seconds::from_millis(500));
    assert_eq!(c.admin, None);
    assert_eq!(c.log.access, AccessTarget::Off);
    assert_eq!(c.replica_defaults.engine, EngineKind::Vllm);
    assert_eq!(c.limits.connections, 20_000, "a key that isn't named keeps its default");
}

#[test]
fn every_unknown_key_is_told_at_once() {
    let e = err(&format!("{ONE}lisen: x\nhealth: {{intervall: 1s}}\n"));
    assert!(e.contains("lisen") && e.contains("`listen`"), "{e}");
    assert!(e.contains("health.intervall") && e.contains("`interval`"), "{e}");
}

#[test]
fn a_wrong_type_is_told_with_its_path() {
    let e = err("replicas: [{url: http://a}, {url: [1]}]");
    assert!(e.contains("replicas[1].url"), "{e}");
    let e = err(&format!("{ONE}timeouts: {{connect: fast}}\n"));
    assert!(e.contains("timeouts.connect") && e.contains("duration"), "{e}");
    let e = err("replicas: [{name: x}]");
    assert!(e.contains("replicas[0]") && e.contains("url"), "{e}");
    let e = err("[1, 2]");
    assert!(e.contains("error"), "{e}");
}

#[test]
fn broken_yaml_is_told_with_its_line() {
    let e = parse("listen: 1\n  bad: [", &Overrides::default(), &no_env).unwrap_err();
    assert!(matches!(e, ConfigError::Syntax(_)));
    assert!(e.to_string().contains('2'), "{e}");
    let e = parse("api_key: sk-private\n  bad: [", &Overrides::default(), &no_env).unwrap_err().to_string();
    assert!(!e.contains("sk-private"), "{e}");
    assert!(
        matches!(parse("a: 1\na: 2", &Overrides::default(), &no_env), Err(ConfigError::Syntax(_))),
        "same key twice"
    );
}

#[test]
fn variables_become_numbers_only_where_numbers_belong() {
    let env = |name: &str| match name {
        "N" => Some("4".to_owned()),
        "KEY" => Some("12345".to_owned()),
        "SECS" => Some("7".to_owned()),
        "ON" => Some("true".to_owned()),
        _ => None,
    };
    let text = "# ${NOT_SET} in a comment is fine\nworkers: ${N}\nqueue: {max: '${N}${N}'}\n\
                log: {blocks: '${ON}'}\ndrain: {grace: '${SECS}'}\n\
                replicas: [{url: 'http://${HOST:-localhost}:8000', api_key: '${KEY}', max_in_flight: '${N}'}]\n";
    let (c, _) = parse(text, &Overrides::default(), &env).unwrap();
    assert_eq!(c.workers, Some(4));
    assert_eq!(c.queue.max, 44);
    assert!(c.log.blocks);
    assert_eq!(c.drain.grace, Seconds::from_secs(7));
    assert_eq!(c.replicas[0].url, "http://localhost:8000");
    assert_eq!(c.replicas[0].api_key, Some(Secret::new("12345")));
    assert_eq!(c.replicas[0].max_in_flight, Some(4));
    let e = parse("workers: ${WORD:-many}", &Overrides::default(), &env).unwrap_err().to_string();
    assert!(e.contains("workers"), "{e}");
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let key = TempFile::new("key", "sk-private\n");
    let text = format!(
        "replicas: [{{url: http://a, api_key_file: {0}}}, {{url: http://b, headers: {{x-team: sk-private}}}}]\n\
         admin: 0.0.0.0:9091\nadmin_token_file: {0}\nreplica_defaults: {{api_key_file: {0}}}\n",
        key.0.display()
    );
    let c = get(&text);
    assert_eq!(c.replicas[0].api_key, Some(Secret::new("sk-private")));
    assert_eq!(c.replica_defaults.api_key, Some(Secret::new("sk-private")));
    assert!(c.admin_token.as_ref().unwrap().matches("sk-private"));
    for shown in [serde_json::to_string(&c).unwrap(), format!("{c:?}")] {
        assert!(!shown.contains("sk-private"), "{shown}");
    }
}

#[test]
fn a_missing_or_empty_secret_is_an_error_with_its_path() {
    let e = err("replicas: [{url: http://a, api_key_file: /nonexistent/key}]");
    assert!(e.contains("replicas[0].api_key_file") && e.contains("/nonexistent/key"), "{e}");
    let empty = TempFile::new("empty", "\n");
    let e = err(&format!("{ONE}replica_defaults: {{api_key_file: {}}}\n", empty.0.display()));
    assert!(e.contains("replica_defaults.api_key_file") && e.contains("empty"), "{e}");
    let e = err("replicas: [{url: http://a, api_key: x, api_key_file: /nonexistent/key}]");
    assert!(e.contains("keep one"), "{e}");
    // The token can't be typed into the file by another name.
    assert!(err(&format!("{ONE}admin_token: x\n")).contains("admin_token"));
}

#[test]
fn replica_lists_are_read_as_yaml_and_json() {
    let yaml = "- url: http://a:1\n  name: ${NAME:-first}\n- url: http://b:1\n  models: [m]\n";
    let list = parse_replicas(yaml, &no_env).unwrap();
    assert_eq!(list[0].label(), "first");
    assert_eq!(list[1].models, Some(vec!["m".to_owned()]));
    assert_eq!(parse_replicas("[{\"url\": \"http://a:1\"}]", &no_env).unwrap().len(), 1);
    assert_eq!(parse_replicas("", &no_env).unwrap(), []);
    for bad in [
        "- url: nonsense\n",
        "- ulr: http://a\n",
        "- url: http://a\n- url: http://a\n",
        "url: http://a",
        "{{{",
    ] {
        assert!(parse_replicas(bad, &no_env).is_err(), "{bad}");
    }
    let e = parse_replicas("- ulr: http://a\n", &no_env).unwrap_err().to_string();
    assert!(e.contains("[0].ulr") && e.contains("`url`"), "{e}");
}

#[test]
fn the_schema_forbids_unknown_keys_everywhere() {
    let schema = schema_json();
    let defs = schema["$defs"].as_object().unwrap();
    for (name, def) in defs.iter().chain([(&"Config".to_owned(), &schema)]) {
        if def["properties"].is_object() {
            assert_eq!(def["additionalProperties"], false, "{name}");
        }
    }
    assert!(defs.len() >= 15, "{}", defs.len());
}
