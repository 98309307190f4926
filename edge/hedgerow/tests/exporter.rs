//! `hedgerow exporter` beside nodes with certificates: what Prometheus gets, with nodes up and down, and by whom it can be held up.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests that start processes")]

use hedgerow_testkit::{Cluster, Node, ROOT, Settings};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_hedgerow");
/// Far more than anything here needs; only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);

struct Exporter {
    process: Node,
    address: String,
}

impl Exporter {
    fn start(cluster: &Cluster) -> Self {
        let files = cluster.client_tls().unwrap();
        let folder = files.ca.parent().unwrap();
        let mut command = Command::new(BINARY);
        command.args(["exporter", "--listen", "localhost:0", "--cluster", &cluster.addresses().join(",")]);
        command.arg("--tls-ca").arg(&files.ca);
        command.arg("--tls-certificate").arg(folder.join(format!("{ROOT}.pem")));
        command.arg("--tls-key").arg(folder.join(format!("{ROOT}-key.pem")));
        let process = Node::spawn(command).unwrap();
        process.wait_ready(LIMIT).unwrap();
        let said = process.output();
        let ready = said.lines().find_map(|line| line.strip_prefix("ready: http://")).unwrap();
        let address = ready.split('/').next().unwrap().to_owned();
        Self { process, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// The answer to a request, with its head.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        write!(stream, "{request} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The page, once it has each of `lines`.
    fn page_with(&self, lines: &[&str]) -> String {
        let end = Instant::now() + LIMIT;
        loop {
            let page = self.ask("GET /metrics");
            if lines.iter().all(|line| page.lines().any(|it| it == *line)) {
                return page;
            }
            assert!(Instant::now() < end, "{lines:?}: {page}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn prometheus_gets_the_state_and_the_counters_whoever_else_asks() {
    let settings = Settings { has_tls: true, ..Settings::of_binary(BINARY.into(), 3) };
    let mut cluster = Cluster::start_with(settings).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "2"]).unwrap();
    cluster.run(&["set", "t", "h", "s", "v"]).unwrap();
    cluster.run(&["get", "t", "h", "s"]).unwrap();
    let exporter = Exporter::start(&cluster);
    let whole = ["hedgerow_cluster_reachable 1.0", "hedgerow_partitions 3.0", "hedgerow_partitions_without_leader 0.0"];
    let page = exporter.page_with(&[&whole[..], &["hedgerow_table_replicas_not_ok{table=\"t\"} 0.0"]].concat());
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.ends_with("# EOF\n"), "{page}");
    assert!(page.contains("content-type: application/openmetrics-text; version=1.0.0"), "{page}");
    let read = |line: &str| line.starts_with("hedgerow_served_total{node=") && line.contains("level=\"linearizable\"");
    assert!(page.lines().any(read), "{page}");
    assert!(!page.contains("newer than this exporter"), "a counter has no help: {page}");
    let documents = include_str!("../../../docs/status.md");
    let section = documents.split_once("## `hedgerow exporter`\n").unwrap().1.split_once("\n## ").unwrap().0;
    let rows = section.lines().filter(|line| line.starts_with("| `hedgerow_"));
    let names: Vec<&str> = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`')).collect();
    let names = names.into_iter().filter(|name| name.starts_with("hedgerow_"));
    for name in names.chain(["hedgerow_queue_first_queued", "hedgerow_queue_first_run_total"]) {
        let has_name = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        assert!(page.lines().any(has_name), "{name}: {page}");
    }

    assert!(exporter.ask("GET /other").starts_with("HTTP/1.1 404 "));
    assert!(exporter.ask("POST /metrics").starts_with("HTTP/1.1 405 "));
    // Who says nothing, and who says half a request, holds up nobody.
    let silent: Vec<TcpStream> = (0..20).map(|_| exporter.connect()).collect();
    silent.iter().for_each(|mut stream| stream.write_all(b"GET /met").unwrap());
    cluster.kill(3).unwrap();
    let down = "hedgerow_node_up{node=\"3\"} 0.0";
    let page = exporter.page_with(&["hedgerow_cluster_reachable 1.0", down]);
    let is_of_it = |line: &&str| line.contains("node=\"3\"");
    let told: Vec<&str> = page.lines().filter(is_of_it).collect();
    assert_eq!(told, ["hedgerow_node_counters_told{node=\"3\"} 0.0", down], "what it said last is not how it is");
    cluster.kill(1).unwrap();
    cluster.kill(2).unwrap();
    let page = exporter.page_with(&["hedgerow_cluster_reachable 0.0"]);
    assert!(!page.contains("hedgerow_node_up"), "{page}");
    cluster.restart_all(&[1, 2, 3]).unwrap();
    exporter.page_with(&[&whole[..], &["hedgerow_node_up{node=\"3\"} 1.0"]].concat());
    let Exporter { mut process, .. } = exporter;
    assert_eq!(process.terminate(LIMIT).unwrap().code(), Some(0));
}
