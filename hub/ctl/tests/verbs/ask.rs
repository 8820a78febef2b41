//! Every verb, in every format.

use serde_json::Value;

use crate::running::{HEAL, Running, run};

const NODE: &str = "gpu-node-with-a-long-name.rack-17.example";

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_verb_says_the_same_as_table_json_and_yaml() {
    let (running, command) = decided().await;
    let incident = command["incident_id"].as_str().unwrap();
    let verbs: [(&[&str], &str); 11] = [
        (&["clusters"], "CLUSTER"),
        (&["nodes", "--cluster", "alpha"], "NODE"),
        (&["incidents", "--open"], "INCIDENT"),
        (&["commands", "--cluster", "alpha", "--node", NODE], "COMMAND"),
        (&["explain", NODE, "--cluster", "alpha"], "node gpu-node"),
        (&["explain", "--incident", incident], "node gpu-node"),
        (&["policy", "get"], "# revision 1 digest "),
        (&["audit", "list", "--cluster", "alpha", "--incident", incident], "SEQ"),
        (&["audit", "list"], "SEQ"),
        (&["audit", "verify"], "CLUSTER"),
        (&["process", NODE, "--cluster", "alpha", "--action", "evict", "--reason", "drill", "--request-id", "r1"], ""),
    ];
    for (verb, begins) in verbs {
        let table = running.run(verb).await;
        assert!(table.code == 0 && table.out.contains(begins), "{verb:?}: {table:?}");
        let json = running.json(verb).await;
        let yaml = running.run(&[verb, &["-o", "yaml"]].concat()).await;
        assert_eq!(yaml.code, 0, "{verb:?}: {yaml:?}");
        if verb[0] != "policy" {
            let yaml: Value = serde_saphyr::from_str(&yaml.out).unwrap_or_else(|error| panic!("{verb:?}: {error}: {}", yaml.out));
            assert_eq!(yaml, json, "{verb:?}");
        }
    }
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
    let again = running.json(&["stop", "--reason", "another"]).await;
    assert_eq!((&again["already"], &again["reason"]), (&Value::Bool(true), &Value::from("bad driver")));
    let cancelled = |command: &Value| !command["state"].as_str().unwrap().is_empty() && command["action"] == "evict";
    running.until(&["commands"], cancelled).await;
    let resumed = running.run(&["resume", "--reason", "mended"]).await;
    assert_eq!((resumed.code, resumed.out.contains("bad driver")), (0, true), "{resumed:?}");
    let kinds = running.json(&["audit", "list"]).await;
    let kinds: Vec<&str> = kinds["items"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["policy_applied", "fleet_stop", "fleet_stop"]);
    let release = running.run(&["release", NODE, "--cluster", "alpha", "--reason", "drill"]).await;
    assert!([0, 1].contains(&release.code) && !release.out.is_empty(), "{release:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_fit_a_terminal_of_60_columns_and_lose_no_row_in_a_pipe() {
    let (running, _) = decided().await;
    let lists: [&[&str]; 5] = [&["clusters"], &["nodes"], &["incidents"], &["commands"], &["audit", "list", "--cluster", "alpha"]];
    for verb in lists {
        let piped = running.run(verb).await;
        assert!(piped.out.lines().count() >= 2, "a title and rows: {piped:?}");
        let program = running.command(verb);
        let line = [program.get_program()].into_iter().chain(program.get_args()).map(|arg| format!("'{}'", arg.display()));
        let line = format!("stty cols 60 rows 40; {}", line.collect::<Vec<_>>().join(" "));
        let mut terminal = std::process::Command::new("script");
        terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        terminal.env("GPUHEAL_HUB", &running.hub).env("GPUHEAL_IDENTITY", running.identity());
        let shown = run(terminal).await;
        assert_eq!(shown.code, 0, "{shown:?}");
        for line in shown.out.lines().map(|line| line.trim_end_matches('\r')) {
            assert!(line.chars().count() <= 60, "{verb:?}: {} columns: {line:?}", line.chars().count());
        }
    }
}
