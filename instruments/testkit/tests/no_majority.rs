//! What commands say of a cluster that has lost its majority.
#![allow(clippy::unwrap_used, reason = "tests that start processes")]

use hedgerow_testkit::Cluster;

#[test]
fn n7_commands_tell_the_truth_without_a_majority() {
    let mut cluster = Cluster::start(3).unwrap();
    cluster.run(&["table", "create", "t", "--partitions", "4"]).unwrap();
    cluster.run(&["incr", "t", "key", "count"]).unwrap();
    // Until all replicas have reported, and no group is between two leaders, of which the command tells by its code.
    let line = "healthy: 3 of 3 nodes up, 0 of 5 groups without a leader";
    while !cluster.run(&["status"]).is_ok_and(|said| said.contains(line)) {}
    cluster.kill(2).unwrap();
    let verify = cluster.run(&["verify", "t", "--wait", "8"]).unwrap_err().to_string();
    assert!(verify.contains("node 2 did not answer"), "{verify}");
    cluster.kill(3).unwrap();
    // Until the other two count as dead, and the one that is left no longer leads.
    let line = "NOT WHOLE: 1 of 3 nodes up, 5 of 5 groups without a leader, the metadata has no leader";
    let lost = loop {
        let lost = cluster.run(&["status"]).err().map(|error| error.to_string()).unwrap_or_default();
        if lost.contains(line) {
            break lost;
        }
    };
    assert!(lost.contains("ended with exit status: 4"), "{lost}");
    let get = cluster.run(&["get", "t", "key", "count"]).unwrap_err().to_string();
    assert!(get.contains("no leader: 1 of 3 replicas up"), "{get}");
    // Nobody took it into a log: the command knows that it was not done.
    for write in
        [&["set", "t", "key", "name", "Ada"][..], &["incr", "t", "key", "count"], &["del", "t", "key", "count"]]
    {
        let said = cluster.run(&[write, &["--timeout", "2"]].concat()).unwrap_err().to_string();
        assert!(said.contains("nothing was written: ") && said.contains("1 of 3 replicas up"), "{write:?}: {said}");
    }
}
