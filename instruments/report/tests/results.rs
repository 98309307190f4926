//! Whole results: folders with plots, pages, and the form of `result.json` that was written once and must stay readable.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests of files")]

mod samples;

use hedgerow_report::{Outcome, page};
use samples::{Kind, outcome, run, stalls};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// As cheap as a run can be.
const SMALL: Kind<'static> = Kind {
    variant: "off",
    workload: "ycsb-b",
    operations: &["get"],
    rate: 200,
    seconds: 3,
    median_us: 240.0,
    stalled_per_mille: 20.0,
    is_void: false,
    is_failing: false,
};

/// A picture that is well-formed, has the expected texts, and is not blank as PNG.
fn check_picture(folder: &Path, name: &str, texts: &[&str]) {
    let svg = fs::read_to_string(folder.join(format!("plots/{name}.svg"))).unwrap();
    for text in texts {
        assert!(svg.contains(text), "{name}.svg lacks {text:?}");
    }
    for foreign in ["href", "<script", "<image", "url("] {
        assert!(!svg.contains(foreign), "{name}.svg refers to something: {foreign}");
    }
    let png = fs::read(folder.join(format!("plots/{name}.png"))).unwrap();
    assert_eq!(&png[1..4], b"PNG");
    let width = u32::from_be_bytes(png[16..20].try_into().unwrap());
    assert_eq!(width, 2_200);
    assert!(png.len() > 15_000, "{name}.png has {} bytes: is it blank, or without text?", png.len());
}

#[test]
fn a_folder_holds_every_picture() {
    let base = tempfile::tempdir().unwrap();
    let kind = Kind { operations: &["get", "set"], ..SMALL };
    let (path, _) = outcome(base.path(), "small", |folder| {
        let on = Kind { variant: "on <fast & \"cheap\">", is_void: true, ..kind };
        (1..=2).flat_map(|it| [(kind, it), (on, it)]).map(|(kind, it)| run(folder, kind, it, &stalls(3, 0.0))).collect()
    });
    let names = fs::read_dir(path.join("plots")).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    let kinds = ["percentiles-get", "percentiles-set", "comparison-get", "comparison-set", "timeline-1", "timeline-2"];
    let expected = kinds.iter().flat_map(|it| ["svg", "png"].map(|extension| format!("ycsb-b-{it}.{extension}")));
    assert_eq!(names, expected.collect());
    let variant = "on &lt;fast &amp; &quot;cheap&quot;&gt; (VOID)";
    check_picture(
        &path,
        "ycsb-b-percentiles-get",
        &["Latency of get by percentile", variant, "latency (log", "\n99\n"],
    );
    check_picture(&path, "ycsb-b-comparison-set", &["throughput", "p99.9", "n/a", "VOID runs are left out"]);
    check_picture(&path, "ycsb-b-timeline-2", &["repetition 2", "stall node 1", "VOID: on", "time since", "p99 (log"]);
    assert!(path.join("faults.toml").exists() && path.join("workloads/ycsb-b.toml").exists());
}

#[test]
fn odd_runs_are_drawn_too() {
    let base = tempfile::tempdir().unwrap();
    let (path, mut failing) =
        outcome(base.path(), "failing", |folder| vec![run(folder, Kind { is_failing: true, ..SMALL }, 1, &[])]);
    let told = "Failed or timed out: off 100 %.";
    check_picture(&path, "ycsb-b-timeline-1", &["errors per second"]);
    check_picture(&path, "ycsb-b-comparison-get", &[told]);
    check_picture(&path, "ycsb-b-percentiles-get", &[told]);
    // Without its logs, and with nothing measured at all.
    fs::remove_dir_all(path.join("histograms")).unwrap();
    let html = page(&[(path.clone(), failing.clone())]).unwrap();
    assert!(html.contains("Histogram logs are missing"));
    failing.runs[0].timeline.clear();
    failing.runs[0].server_cpu_s.clear();
    failing.runs[0].operations[0] = hedgerow_report::Operation { name: "get".into(), ..Default::default() };
    page(&[(path.clone(), failing.clone())]).unwrap();
    failing.runs.clear();
    page(&[(path, failing)]).unwrap();
}

#[test]
fn many_variants_are_spread_over_pictures() {
    let base = tempfile::tempdir().unwrap();
    let variants: Vec<String> = (0..20).map(|index| format!("rate={index}")).collect();
    let (path, _) = outcome(base.path(), "many", |folder| {
        variants.iter().map(|variant| run(folder, Kind { variant, rate: 20, seconds: 1, ..SMALL }, 1, &[])).collect()
    });
    check_picture(&path, "ycsb-b-percentiles-get-part4", &["(part 4 of 4)", "rate=19"]);
    check_picture(&path, "ycsb-b-comparison-get-part2", &["(part 2 of 2)", "rate=10", "rate=19"]);
}

#[test]
fn a_damaged_log_is_named() {
    let base = tempfile::tempdir().unwrap();
    let (path, outcome) = outcome(base.path(), "damaged", |folder| vec![run(folder, SMALL, 1, &[])]);
    fs::write(path.join(&outcome.runs[0].operations[0].histogram), "0.0,1.0,2.0,AAAA\n").unwrap();
    let error = format!("{:#}", page(&[(path, outcome)]).unwrap_err());
    assert!(error.contains("get.hlog is no histogram log"), "{error}");
}

#[test]
fn a_page_is_self_contained_and_escaped() {
    let base = tempfile::tempdir().unwrap();
    let (path, mut first) = outcome(base.path(), "first", |folder| {
        let kind = Kind { variant: "<script>alert(1)</script>", is_void: true, ..SMALL };
        (1..=2).map(|repetition| run(folder, kind, repetition, &stalls(3, 0.0))).collect()
    });
    first.title = "</title><img src=x>".to_owned();
    first.machine.cpu = "another & faster".to_owned();
    let second = outcome(base.path(), "second", |folder| vec![run(folder, SMALL, 1, &[])]);
    let html = page(&[(path, first), second]).unwrap();
    for foreign in ["<script", "<img", "<link", "@import", "url(", "src=", "href="] {
        let is_escaped = foreign == "src=" && html.matches("src=").count() == html.matches("img src=x").count();
        assert!(!html.contains(foreign) || is_escaped, "the page contains {foreign}");
    }
    let expected = [
        "2 results side by side",
        "&lt;script&gt;alert(1)&lt;/script&gt; (VOID)",
        "&lt;/title&gt;&lt;img src=x&gt;",
        "# ycsb-b &lt;b&gt;&amp;",
        "<summary>Fault plan</summary>",
        "hedgerow bench run &#39;my workload.toml&#39; --rate 8000",
        "A: Check failed: ",
        "A: VOID: ",
        "measured on different machines",
        "Ours beside the published figures",
        "Further repetitions over time",
        "Every run",
    ];
    for text in expected {
        assert!(html.contains(text), "the page lacks {text:?}");
    }
    for element in ["svg", "table", "details", "div", "tr", "td", "th", "dl", "pre", "html", "body"] {
        let opened = html.matches(&format!("<{element}>")).count() + html.matches(&format!("<{element} ")).count();
        assert_eq!(opened, html.matches(&format!("</{element}>")).count(), "{element}");
    }
}

/// The outcome in the fixture of a version, and where that is. Every field of the form is in one of them, so that none can be renamed
/// unnoticed.
fn fixture(version: u32) -> (PathBuf, Outcome) {
    let tests = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/fixtures");
    let fixture = tests.join(format!("version-{version}"));
    let outcome = Outcome::read(&fixture).unwrap();
    let written: serde_json::Value = serde_json::from_str(&result_json(&fixture)).unwrap();
    assert_eq!(serde_json::to_value(&outcome).unwrap(), written);
    assert_eq!(outcome.version, version);
    (fixture, outcome)
}

fn result_json(folder: &Path) -> String {
    fs::read_to_string(folder.join("result.json")).unwrap()
}

#[test]
fn results_of_version_1_still_read() {
    let (folder, outcome) = fixture(1);
    let run = &outcome.runs[0];
    assert_eq!((outcome.seed, run.variant.as_str(), run.repetition), (7, "rate=8000", 1));
    assert_eq!((run.operations[0].latency_us.p999, run.operations[0].latency_us.p9999), (Some(1_210.5), None));
    assert_eq!(run.faults[0].label, "stall node 2");
    assert!(page(&[(folder, outcome)]).unwrap().contains("p99.9"));
}

#[test]
fn results_of_version_2_read() {
    let (folder, outcome) = fixture(2);
    let hedging = outcome.runs[0].hedging.as_ref().unwrap();
    assert_eq!((hedging.extra(), hedging.extra_percent()), (20, 0.125));
    let html = page(&[(folder, outcome)]).unwrap();
    for text in ["extra attempts", "0.12 %", "hedge: 19 sent, 14 won, 2 suppressed", "bounded 14"] {
        assert!(html.contains(text), "the page lacks {text:?}");
    }
}

#[test]
fn results_of_version_3_read() {
    let (folder, outcome) = fixture(3);
    let text = result_json(&folder);
    let html = page(&[(folder, outcome)]).unwrap();
    for text in ["hedge: 1,019 sent, 14 won, 5 suppressed, 3 of these sent late", "clients held up"] {
        assert!(html.contains(text), "the page lacks {text:?}");
    }
    // None of it was there before.
    for version in ["1", "2"] {
        let older = tempfile::tempdir().unwrap();
        let text = text.replace("\"version\": 3", &format!("\"version\": {version}"));
        fs::write(older.path().join("result.json"), text).unwrap();
        let error = format!("{:#}", Outcome::read(older.path()).unwrap_err());
        assert!(error.contains(&format!("it does not have the form of version {version}")), "{error}");
    }
}

#[test]
fn a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("result.json"), r#"{"schema": "hedgerow-result", "version": 99}"#).unwrap();
    let error = format!("{:#}", Outcome::read(folder.path()).unwrap_err());
    assert!(error.ends_with("it is of version 99; this program reads versions 1 to 3"), "{error}");
}
