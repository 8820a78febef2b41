//! What a mistake is answered with: 2 for wrong use, 1 for what the hub or the network refuses, and what to do next.

use gpuheal_ctl::pki;

use crate::running::{Running, program, run};

#[tokio::test]
async fn wrong_use_is_2_and_says_what_to_give() {
    let here = ["--hub", "https://127.0.0.1:1", "--identity", "/nowhere"];
    let table: [(&[&str], &str); 18] = [
        (&["clusters"], "--hub https://HOST:PORT"),
        (&["--hub", "https://127.0.0.1:1", "clusters"], "--identity DIR"),
        (&["--hub", "127.0.0.1:1", "--identity", "/nowhere", "clusters"], "write https://HOST:PORT"),
        (&["explain", "n1"], "--cluster ID"),
        (&["explain"], "--incident ID"),
        (&["process", "n1", "--cluster", "alpha", "--action", "evict"], "--reason"),
        (&["nodes", "--cluster", "NOT AN ID"], "--cluster"),
        (&["stop"], "--reason"),
        (&["process", "n1", "--cluster", "alpha", "--action", "evict", "--reason", ""], "it is empty: say why"),
        (&["process", "n1", "--cluster", "alpha", "--action", "restart", "--reason", "r"], "--workload"),
        (
            &["process", "n1", "--cluster", "alpha", "--action", "restart", "--reason", "r", "--workload", "job/ml/train"],
            "cannot be restarted by its template",
        ),
        (
            &["process", "n1", "--cluster", "alpha", "--action", "evict", "--reason", "r", "--workload", "deployment/ml/web"],
            "--workload is for --action restart",
        ),
        (
            &["process", "n1", "--cluster", "alpha", "--action", "mark", "--reason", "r", "--past-budgets"],
            "--past-budgets is for --action evict",
        ),
        (&["release", "n1", "--cluster", "alpha", "--reason", "  "], "it is empty: say why"),
        (&["stop", "--reason", " "], "it is empty: say why"),
        (&["resume", "--reason", ""], "it is empty: say why"),
        (&["nodes", "--limit", "0"], "--limit"),
        (&["incidents", "--timeout-s", "0"], "--timeout-s"),
    ];
    for (args, hint) in table {
        let args = if matches!(args[0], "clusters" | "--hub") { args.to_vec() } else { [&here, args].concat() };
        let answer = run(program(&args)).await;
        assert_eq!(answer.code, 2, "{args:?}: {answer:?}");
        assert!(answer.err.contains(hint) && answer.out.is_empty(), "{args:?}: {answer:?}");
    }
}

#[tokio::test]
async fn help_and_version_are_no_mistakes() {
    for args in [&["--help"][..], &["process", "--help"], &["--version"]] {
        let answer = run(program(args)).await;
        assert!(answer.code == 0 && answer.err.is_empty() && !answer.out.is_empty(), "{args:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_hub_or_the_network_refuses_is_1_and_says_what_to_do() {
    let running = Running::start().await;
    let foreign = running.dir.path().join("foreign");
    pki::init(&pki::Request::new(&foreign, vec!["alpha".parse().unwrap()], gpuheal_hub::clock::now())).unwrap();
    let broken = running.dir.path().join("broken.yaml");
    std::fs::write(&broken, "cooldown: soon\nsurprise: 1\n").unwrap();
    let (foreign, broken) = (foreign.join("users/admin").display().to_string(), broken.display().to_string());
    let away: &[&str] = &["--hub", "https://127.0.0.1:1"];
    let unknown = "01890000-0000-7000-8000-000000000000";
    let table: [(&[&str], &[&str], &str); 7] = [
        (away, &["clusters"], "127.0.0.1:1"),
        (&["--identity", "/nowhere"], &["clusters"], "gpuhealctl pki init"),
        (&["--identity", &foreign], &["clusters"], "ca.crt in "),
        (&[], &["explain", "--incident", unknown], "is not known"),
        (&[], &["explain", "no-such-node", "--cluster", "alpha"], "no-such-node"),
        (&[], &["policy", "get"], "gpuhealctl policy apply -f FILE"),
        (&[], &["policy", "apply", "-f", "/nowhere.yaml"], "/nowhere.yaml"),
    ];
    for (reach, verb, hint) in table {
        let args = [reach, verb].concat();
        let answer = running.run(&args).await;
        assert_eq!(answer.code, 1, "{args:?}: {answer:?}");
        assert!(answer.err.starts_with("error: ") && answer.err.contains(hint), "{args:?}: {answer:?}");
        assert!(answer.err.trim_end().lines().count() == 1, "one line, so that it can be searched for: {answer:?}");
    }
    let refused = running.run(&["policy", "apply", "-f", &broken]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    let at = |line: u32| format!("{broken}:{line}:");
    assert!(refused.err.contains(&at(1)) && refused.err.contains(&at(2)), "every error with its place: {refused:?}");
    let audit = running.run(&["audit", "verify"]).await;
    assert_eq!(audit.code, 0, "{audit:?}");
}
