//! The program as it ships, with certificates: every kind of command gets through, and nobody without one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that runs processes")]

use hedgerow_testkit::{Cluster, DataPlace, ROOT, Settings, binary};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn start() -> Cluster {
    let mut settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    settings.has_tls = true;
    Cluster::start_with(settings).unwrap()
}

fn run_without_certificate(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command = Command::new(binary().unwrap());
    command.args(words).args(["--timeout", "2", "--cluster", &cluster.addresses().join(",")]).output().unwrap()
}

fn certificate(words: &[&str], folder: &Path) {
    let made = Command::new(binary().unwrap()).arg("certificate").args(words).arg("--directory").arg(folder).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn every_command_gets_through_with_a_certificate_and_none_without() {
    let mut cluster = start();
    for words in [
        "table create t --partitions 4",
        "set t h s v",
        "get t h s --hedge 1ms",
        "scan t",
        "table transfer t 0 2",
        "verify t",
        "counters --over 0.1",
        "slow",
        "status",
    ] {
        cluster.run(&words.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{words}: {error:#}"));
    }
    assert_eq!(cluster.run(&["get", "t", "h", "s"]).unwrap().trim(), "v");
    let turned_away = run_without_certificate(&cluster, &["get", "t", "h", "s"]);
    let said = String::from_utf8_lossy(&turned_away.stderr).into_owned();
    assert_eq!(turned_away.status.code(), Some(3), "{said}");
    assert!(said.contains("does it want TLS?"), "{said}");

    // Read anew, while the node serves.
    let files = cluster.client_tls().unwrap();
    let folder = files.ca.parent().unwrap().to_owned();
    certificate(&["node", "1", "2", "3", "--replace"], &folder);
    for number in 1..=3 {
        let id = cluster.node(number).unwrap().id();
        assert!(Command::new("kill").args(["-HUP", &id.to_string()]).status().unwrap().success());
        assert_eq!(cluster.run(&["get", "t", "h", "s"]).unwrap().trim(), "v");
    }
    // One that is for nobody is not taken, and the node goes on.
    fs::write(folder.join("node-1.pem"), "nothing").unwrap();
    let id = cluster.node(1).unwrap().id();
    assert!(Command::new("kill").args(["-HUP", &id.to_string()]).status().unwrap().success());
    assert_eq!(cluster.run(&["get", "t", "h", "s"]).unwrap().trim(), "v");
    certificate(&["node", "1", "--replace"], &folder);

    cluster.terminate(2).unwrap();
    cluster.restart(2).unwrap();
    cluster.run(&["status", "--wait", "60"]).unwrap();
    cluster.stop().unwrap();
}

#[test]
fn rights_are_given_and_taken_at_the_command_line() {
    let mut settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    (settings.has_tls, settings.has_rights) = (true, true);
    let mut cluster = Cluster::start_with(settings).unwrap();
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    let refused = |line: &'static str| format!("{:#}", cluster.run(&words(line)).unwrap_err());
    let root =
        |line: &'static str| cluster.run_as(ROOT, &words(line)).unwrap_or_else(|error| panic!("{line}: {error:#}"));
    root("table create t --partitions 4");
    root("set t h s v");
    for (line, lacks) in [
        ("get t h s", r#"user "test" has not been given any right on table t"#),
        ("table create u", "has not been given admin:u"),
        ("table drop t", "has not been given admin:t"),
        ("status", "has not been given monitor"),
        ("grant test cluster-admin", "has not been given cluster-admin"),
        ("rights", "has not been given cluster-admin"),
    ] {
        let said = refused(line);
        assert!(said.contains(lacks) && said.contains("exit status: 4"), "{line}: {said}");
    }
    assert!(cluster.run(&words("table list")).unwrap().lines().all(|line| !line.starts_with("t ")));
    root("grant @clerks read:t*");
    root("grant test @clerks monitor");
    assert_eq!(cluster.run(&words("get t h s")).unwrap().trim(), "v");
    cluster.run(&words("status")).unwrap();
    assert!(cluster.run(&words("table list")).unwrap().lines().any(|line| line.starts_with("t ")));
    assert!(refused("set t h s w").contains("has not been given write:t"));
    let mine = cluster.run(&words("rights --mine")).unwrap();
    assert!(mine.contains("test") && mine.contains("@clerks, monitor, read:t*"), "{mine}");
    let listed = root("rights");
    assert!(listed.contains("@clerks  read:t*") && listed.contains("test     monitor, @clerks"), "{listed}");
    let wrong = format!("{:#}", cluster.run_as(ROOT, &["grant", "test", "reads:t"]).unwrap_err());
    assert!(wrong.contains("\"reads:t\" is no right") && wrong.contains("exit status: 2"), "{wrong}");

    // They are kept like everything else.
    cluster.terminate(1).unwrap();
    cluster.restart(1).unwrap();
    cluster.run(&words("status --wait 60")).unwrap();
    assert_eq!(cluster.run_as(ROOT, &words("rights")).unwrap(), listed);
    cluster.run_as(ROOT, &words("revoke test --all")).unwrap();
    assert!(format!("{:#}", cluster.run(&words("get t h s")).unwrap_err()).contains("any right on table"));
    cluster.stop().unwrap();
}

/// A command of who logs in as `user`: its exit code, and what it printed.
fn as_user(cluster: &Cluster, user: &str, password: &Path, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new(binary().unwrap());
    command.args(line.split(' ')).arg("--cluster").arg(cluster.addresses().join(","));
    command.arg("--tls-ca").arg(cluster.client_tls().unwrap().ca).args(["--user", user, "--password-file"]);
    let Output { status, stdout, stderr } = command.arg(password).stdin(Stdio::null()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

#[test]
fn users_log_in_by_password_at_the_command_line() {
    let mut settings = Settings::under_test(&[DataPlace::Folder; 3]).unwrap();
    (settings.has_tls, settings.has_rights, settings.has_passwords) = (true, true, true);
    let mut cluster = Cluster::start_with(settings).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, text: &str, mode| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let (right, wrong) = (written("right", "a long password\n", 0o600), written("wrong", "another password", 0o600));
    let open = written("open", "a long password\n", 0o644);
    let root = |words: &[&str]| cluster.run_as(ROOT, words);
    root(&["table", "create", "t", "--partitions", "4"]).unwrap();
    root(&["user", "add", "app", "--new-password-file", &right.display().to_string()]).unwrap();
    root(&["grant", "app", "read:*", "write:*", "admin:*", "monitor"]).unwrap();
    assert_eq!(root(&["user", "list"]).unwrap(), "app\n");
    let again = root(&["user", "add", "app", "--new-password-file", &wrong.display().to_string()]).unwrap_err();
    assert!(format!("{again:#}").contains("user app has a password already"), "{again:#}");
    let of_open = root(&["user", "password", "app", "--new-password-file", &open.display().to_string()]).unwrap_err();
    assert!(format!("{of_open:#}").contains("others than its owner may read it (mode 644)"), "{of_open:#}");

    for line in [
        "set t h s v",
        "get t h s --hedge 1ms",
        "status",
        "counters",
        "slow",
        "verify t",
        "table transfer t 0 2",
        "bench run put --rows 100 --clients 4 --processes 2 --seconds 1 --warm-up 0 --no-results",
    ] {
        let (code, said) = as_user(&cluster, "app", &right, line);
        assert_eq!(code, Some(0), "{line}: {said}");
        assert!(!said.contains("SCRAM"), "{line}: {said}");
    }
    let (_, mine) = as_user(&cluster, "app", &right, "rights --mine");
    assert!(mine.contains("user           app"), "{mine}");
    for (user, file, exit, text) in [
        ("app", &wrong, 4, "the password is wrong, or there is no such user"),
        ("nobody", &right, 4, "the password is wrong, or there is no such user"),
        ("app", &open, 2, "others than its owner may read it (mode 644)"),
        ("app", &folder.path().join("none"), 2, "reading the password in"),
    ] {
        let (code, said) = as_user(&cluster, user, file, "get t h s");
        assert!(code == Some(exit) && said.contains(text), "{user} {}: {code:?} {said}", file.display());
    }
    let (code, said) = as_user(&cluster, "app", &right, "user list");
    assert!(code == Some(4) && said.contains("has not been given cluster-admin"), "{code:?} {said}");

    // By standard input, and nothing of it in what is read of a log.
    let mut command = Command::new(binary().unwrap());
    let files = cluster.client_tls().unwrap();
    let pair = |name: &str| files.ca.parent().unwrap().join(name);
    command.args(["user", "password", "app", "--cluster", &cluster.addresses().join(",")]);
    command.arg("--tls-ca").arg(&files.ca).arg("--tls-certificate").arg(pair(&format!("{ROOT}.pem")));
    command.arg("--tls-key").arg(pair(&format!("{ROOT}-key.pem"))).stdin(fs::File::open(&wrong).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    while as_user(&cluster, "app", &wrong, "get t h s").0 != Some(0) {}
    assert_eq!(as_user(&cluster, "app", &right, "get t h s").0, Some(4));
    root(&["user", "remove", "app"]).unwrap();
    assert_eq!(root(&["user", "list"]).unwrap(), "");
    cluster.stop().unwrap();
}

#[test]
fn a_hangup_ends_no_node_without_certificates() {
    let mut cluster = Cluster::start(1).unwrap();
    let id = cluster.node(1).unwrap().id();
    for _ in 0..3 {
        assert!(Command::new("kill").args(["-HUP", &id.to_string()]).status().unwrap().success());
        cluster.run(&["status"]).unwrap();
    }
    cluster.stop().unwrap();
}

#[test]
fn a_node_that_others_reach_does_not_start_without_being_told_how_it_is_protected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("n.toml");
    let config = |rest: &str| {
        let text =
            "node = 1\nlisten = \"0.0.0.0:1\"\ndata = [\"d\"]\npeers = [{ node = 1, address = \"127.0.0.1:1\" }]\n";
        fs::write(&path, format!("{text}{rest}")).unwrap();
        let checked = Command::new(binary().unwrap()).args(["config", "check"]).arg(&path).output().unwrap();
        let said = String::from_utf8([checked.stdout, checked.stderr].concat()).unwrap();
        (checked.status.code().unwrap(), said)
    };
    let (code, said) = config("");
    assert!(code == 2 && said.contains("`hedgerow certificate` makes what it needs"), "{said}");
    let (code, said) = config("security.insecure = true\n");
    assert!(code == 0 && said.contains("can read, change and remove everything"), "{said}");
    certificate(&["authority", "--cluster", "prod"], folder.path());
    certificate(&["node", "1", "2"], folder.path());
    let tls = |node: &str| {
        let file = |name: &str| folder.path().join(format!("{name}.pem")).display().to_string();
        let (certificate, key) = (file(node), file(&format!("{node}-key")));
        format!("[tls]\nca = {:?}\ncertificate = {certificate:?}\nkey = {key:?}\n", file("ca"))
    };
    let (code, said) = config(&tls("node-1"));
    assert!(code == 0 && said.contains("(expires in 36") && said.contains("prod"), "{said}");
    let (code, said) = config(&tls("node-2"));
    assert!(code == 2 && said.contains("not for node-1.prod.hedgerow.internal"), "{said}");
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(folder.path().join("node-1-key.pem"), open).unwrap();
    let (code, said) = config(&tls("node-1"));
    assert!(code == 2 && said.contains("(mode 644): allowed are no rights for group and others"), "{said}");
}
