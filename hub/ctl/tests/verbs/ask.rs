//! Every verb, in every format.

use serde_json::Value;

use crate::running::{Answer, HEAL, NODE, Running, STEERING, run};

/// A hub that has decided about a fault and issued a command that nobody takes.
async fn decided() -> (Running, Value) {
    let running = Running::start().await;
    let policy = running.dir.path().join("policy.yaml");
    std::fs::write(&policy, HEAL).unwrap();
    let applied = running.run(&["policy", "apply", "-f", policy.to_str().unwrap()]).await;
    assert_eq!((applied.code, applied.out.as_str()), (0, "policy revision 1 is in force\n"), "{applied:?}");
    running.fault().await;
    let command = running.until(&["commands"], |command| command["action"] == "evict").await;
    (running, command)
}

/// What both formats say of one state of the fleet: asked anew when the hub, which works on meanwhile, has changed it.
async fn at_rest(running: &Running, verb: &[&str]) -> (Value, Answer) {
    let mut json = running.json(verb).await;
    for _ in 0..100 {
        let yaml = running.run(&[verb, &["-o", "yaml"]].concat()).await;
        let after = running.json(verb).await;
        if after == json {
            return (json, yaml);
        }
        json = after;
    }
    panic!("{verb:?} never says the same twice: {json}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_verb_says_the_same_as_table_json_and_yaml() {
    let (running, command) = decided().await;
    let incident = command["incident_id"].as_str().unwrap();
    let verbs: [(&[&str], &str); 13] = [
        (&["clusters"], "CLUSTER"),
        (&["sources", "--cluster", "alpha", "--stale"], "connection refused\\u{202e}\\u{9b}\\u{200b}"),
        (&["nodes", "--cluster", "alpha"], "NODE"),
        (&["incidents", "--open"], "INCIDENT"),
        (&["commands", "--cluster", "alpha", "--node", NODE], "COMMAND"),
        (&["explain", NODE, "--cluster", "alpha"], "node gpu-node"),
        (&["explain", "--incident", incident], "node gpu-node"),
        (&["policy", "get"], "# revision 1 digest "),
        (&["audit", "list", "--cluster", "alpha", "--incident", incident], "SEQ"),
        (&["audit", "list", "--incident", incident], "decision"),
        (&["audit", "list"], "SEQ"),
        (&["audit", "verify"], "CLUSTER"),
        (&["process", NODE, "--cluster", "alpha", "--action", "mark", "--reason", "drill", "--request-id", "r1"], ""),
    ];
    for (verb, begins) in verbs {
        let table = running.run(verb).await;
        assert!(table.code == 0 && table.out.contains(begins), "{verb:?}: {table:?}");
        let (json, yaml) = at_rest(&running, verb).await;
        assert_eq!(yaml.code, 0, "{verb:?}: {yaml:?}");
        let raw = running.run(&[verb, &["-o", "json"]].concat()).await;
        for shown in [&table, &raw, &yaml] {
            assert_shows_all(shown);
        }
        if verb[0] != "policy" {
            let yaml: Value = serde_saphyr::from_str(&yaml.out).unwrap_or_else(|error| panic!("{verb:?}: {error}: {}", yaml.out));
            assert_eq!(yaml, json, "{verb:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_far_off_is_in_its_clusters_row_in_words() {
    let running = Running::start().await;
    running
        .known(
            "WITH c AS (INSERT INTO clusters (cluster_id, taken_over_term) VALUES ('alpha', 1)) \
             INSERT INTO sessions (cluster_id, replica_id, boot_id, hub_id, clock_skew_ms) VALUES ('alpha', 'spoke-0', 'b', 'h', 75400)",
        )
        .await;
    let words = "clock of spoke-0 is 75 s ahead of the database's";
    let table = running.run(&["clusters"]).await;
    assert!(table.code == 0 && table.out.contains("PROBLEMS") && table.out.contains(words), "{table:?}");
    assert_eq!(running.json(&["clusters"]).await["items"][0]["problems"], serde_json::json!([words]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_a_stop_and_a_release_by_hand_say_what_came_of_them() {
    let (running, _) = decided().await;
    let process = |node, id| ["process", node, "--cluster", "alpha", "--action", "mark", "--reason", "drill", "--request-id", id];
    let unmet = running.run(&process("no-such-node", "r1")).await;
    assert_eq!(unmet.code, 1, "{unmet:?}");
    assert!(unmet.out.starts_with("no_such_node: ") && unmet.out.contains("no-such-node"), "{unmet:?}");
    let reused = running.run(&process(NODE, "r1")).await;
    assert_eq!(reused.code, 1, "an id is good for one request: {reused:?}");
    assert!(reused.out.contains("r1 was used before"), "{reused:?}");
    let stop = running.run(&["stop", "--reason", "bad driver"]).await;
    assert_eq!((stop.code, stop.out.as_str()), (0, "the fleet is stopped: bad driver\n"), "{stop:?}");
    assert!(stop.err.contains("gpuhealctl resume"), "says what to do next: {stop:?}");
    for list in ["clusters", "nodes"] {
        let shown = running.run(&[list]).await;
        assert!(shown.code == 0 && shown.err.contains("the fleet is stopped: bad driver"), "{list}: {shown:?}");
        let json = running.run(&[list, "-o", "json"]).await;
        let json: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["fleet_stopped_for"], "bad driver", "{list}: {json}");
    }
    assert!(running.run(&["clusters"]).await.out.contains("  stopped  "), "in its row too");
    let again = running.json(&["stop", "--reason", "another"]).await;
    assert_eq!((&again["already"], &again["reason"]), (&Value::Bool(true), &Value::from("bad driver")));
    let cancelled = |command: &Value| !command["state"].as_str().unwrap().is_empty() && command["action"] == "evict";
    running.until(&["commands"], cancelled).await;
    let resumed = running.run(&["resume", "--reason", "mended"]).await;
    assert_eq!((resumed.code, resumed.out.contains("bad driver")), (0, true), "{resumed:?}");
    let kinds = running.json(&["audit", "list"]).await;
    let kinds: Vec<&str> = kinds["items"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["policy_applied", "fleet_stop", "fleet_resume"]);
    let release = running.run(&["release", NODE, "--cluster", "alpha", "--reason", "drill"]).await;
    assert!([0, 1].contains(&release.code) && !release.out.is_empty(), "{release:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_by_hand_is_among_the_commands_and_in_the_audit_with_what_it_is_of() {
    let running = Running::start().await;
    let policy = running.dir.path().join("policy.yaml");
    std::fs::write(&policy, HEAL).unwrap();
    running.run(&["policy", "apply", "-f", policy.to_str().unwrap()]).await;
    running.healthy().await;
    let workloads = ["--workload", "Deployment/ml/web", "--workload", "statefulset/ml/db"];
    let ask = [&["process", NODE, "--cluster", "alpha", "--action", "restart", "--reason", "stuck"][..], &workloads].concat();
    let asked = running.run(&ask).await;
    assert_eq!(asked.code, 0, "{asked:?}");
    let command = running.until(&["commands"], |command| command["action"] == "restart").await;
    assert!(command["reason"].as_str().unwrap().contains("user/admin asked for restart of deployment/ml/web and 1 more: stuck"));
    let steps: Vec<&str> = command["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(steps, ["notify", "restart"]);
    let incident = running.until(&["incidents"], |incident| incident["state"] == "recorded").await;
    assert!(incident["reason"].as_str().unwrap().contains("asked for restart of"), "{incident}");
    let audit = running.run(&["audit", "list", "--cluster", "alpha", "-o", "json"]).await;
    assert!(audit.out.contains("statefulset/ml/db"), "{audit:?}");
}

/// Nothing in it steers the terminal.
fn assert_shows_all(answer: &Answer) {
    assert!(!answer.out.contains(STEERING) && !answer.err.contains(STEERING), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_of_people_come_back_with_what_cannot_be_seen_escaped_and_whole_in_json() {
    let running = Running::start().await;
    let reason = format!("bad driver{}", String::from_iter(STEERING));
    let stopped = running.run(&["stop", "--reason", &reason]).await;
    assert_shows_all(&stopped);
    assert_eq!(stopped.out, "the fleet is stopped: bad driver\\u{202e}\\u{9b}\\u{200b}\n");
    let again = ["stop", "--reason", "x", "-o", "json"];
    let raw = running.run(&again).await;
    assert_shows_all(&raw);
    assert!(raw.out.contains("bad driver\\u202e\\u009b\\u200b"), "{raw:?}");
    assert_eq!(running.json(&again[..3]).await["reason"], *reason);
    let audit = running.run(&["audit", "list", "-o", "json"]).await;
    assert!(audit.out.contains("u202e"), "the entry's body is shown: {audit:?}");
    assert_shows_all(&audit);
    let refused = running.run(&["explain", &reason, "--cluster", "alpha"]).await;
    assert!(refused.code == 1 && refused.err.contains("\\u{202e}"), "{refused:?}");
    assert_shows_all(&refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_shown_fits_the_terminal_and_no_name_is_cut() {
    let (running, command) = decided().await;
    let incident = command["incident_id"].as_str().unwrap();
    let verbs: [&[&str]; 10] = [
        &["clusters"],
        &["sources"],
        &["nodes"],
        &["incidents"],
        &["commands"],
        &["explain", NODE, "--cluster", "alpha"],
        &["audit", "list", "--cluster", "alpha"],
        &["audit", "list", "--incident", incident],
        &["audit", "verify"],
        &["process", NODE, "--cluster", "alpha", "--action", "mark", "--reason", "drill", "--request-id", "r1"],
    ];
    for verb in verbs {
        let piped = running.run(verb).await;
        for columns in [60, 80] {
            let shown = on_terminal(&running, verb, columns).await;
            assert_eq!(shown.code, 0, "{shown:?}");
            assert_shows_all(&shown);
            for line in shown.out.lines().map(|line| line.trim_end_matches('\r')) {
                let fits = line.chars().count() <= columns;
                let one_word = line.split_whitespace().filter(|word| word.chars().count() + 12 > columns).count() == 1;
                assert!(fits || one_word, "{verb:?} in {columns} columns: {line:?}");
            }
            for whole in [NODE, incident].into_iter().filter(|name| piped.out.contains(name)) {
                assert!(shown.out.contains(whole), "{verb:?} in {columns} columns: {}", shown.out);
            }
        }
    }
}

/// The answer as a person sees it.
async fn on_terminal(running: &Running, verb: &[&str], columns: usize) -> Answer {
    let program = running.command(verb);
    let line = [program.get_program()].into_iter().chain(program.get_args()).map(|arg| format!("'{}'", arg.display()));
    let line = format!("stty cols {columns} rows 40; {}", line.collect::<Vec<_>>().join(" "));
    let mut terminal = std::process::Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.env("GPUHEAL_HUB", &running.hub).env("GPUHEAL_IDENTITY", running.identity());
    run(terminal).await
}
