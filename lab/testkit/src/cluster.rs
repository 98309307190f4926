//! A cluster of `hedgerow serve` processes on this machine.

use crate::node::Node;
use crate::{binary, port, system};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;

/// How long a node may take until it serves. Generous: the machine may be busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to end after it was asked to, or after its disk failed.
const EXIT_WITHIN: Duration = Duration::from_secs(60);
/// Data directories per node: more than one, so that groups of a node live in several logs.
const DATA_DIRECTORY_COUNT: usize = 2;

/// Where a node keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the test's temporary folder: it survives restarts of the node.
    Folder,
    /// On a file system of this many bytes that only the node sees. It begins empty at every start of the node.
    SmallDisk(u64),
    /// As [`Place::Folder`], but the node cannot write to it.
    ReadOnlyFolder,
}

/// Nodes 1 to n. Dropping the cluster kills them and removes their data.
pub struct Cluster {
    members: Vec<Member>,
    // Dropped last: the nodes must be gone before their data is.
    folder: TempDir,
}

struct Member {
    address: String,
    place: Place,
    /// `None` before the first start and after an end that was waited for.
    node: Option<Node>,
}

impl Cluster {
    /// A cluster of `count` nodes that all serve.
    pub fn start(count: usize) -> Result<Self> {
        let mut cluster = Self::prepare(&vec![Place::Folder; count])?;
        let all: Vec<_> = (1..=count).collect();
        cluster.restart_all(&all)?;
        Ok(cluster)
    }

    /// Addresses, folders and configuration files of one node per place; nothing is started.
    pub fn prepare(places: &[Place]) -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("hedgerow-test-").tempdir().context("making a temporary folder")?;
        let mut members = Vec::new();
        for place in places {
            members.push(Member { address: format!("127.0.0.1:{}", port::free_port()?), place: *place, node: None });
        }
        let cluster = Self { members, folder };
        for number in 1..=places.len() {
            for directory in cluster.data_directories(number) {
                fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
            }
            let path = cluster.config_path(number);
            fs::write(&path, cluster.config(number)).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(cluster)
    }

    /// The addresses of all nodes, in the order of their numbers.
    pub fn addresses(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.address.as_str()).collect()
    }

    /// Starts nodes that do not run and waits until all of them serve. Together, because a node may need others for that.
    pub fn restart_all(&mut self, numbers: &[usize]) -> Result<()> {
        for number in numbers {
            self.spawn(*number)?;
        }
        numbers.iter().try_for_each(|number| self.node(*number)?.wait_ready(READY_WITHIN))
    }

    /// Starts a node that does not run and waits until it serves.
    pub fn restart(&mut self, number: usize) -> Result<()> {
        self.restart_all(&[number])
    }

    /// Starts a node that does not run, without waiting for anything.
    pub fn spawn(&mut self, number: usize) -> Result<()> {
        let command = self.serve_command(number)?;
        let member = &mut self.members[number - 1];
        let is_running = member.node.as_mut().map(Node::is_running).transpose()?.unwrap_or(false);
        ensure!(!is_running, "node {number} runs already");
        member.node = Some(Node::spawn(command)?);
        Ok(())
    }

    /// Changes where a node keeps its data, from its next start on.
    pub fn set_place(&mut self, number: usize, place: Place) {
        self.members[number - 1].place = place;
    }

    /// `kill -9`.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        self.node(number)?.kill().map(drop)
    }

    /// Asks a node to stop and gives how it ended.
    pub fn terminate(&mut self, number: usize) -> Result<ExitStatus> {
        self.node(number)?.terminate(EXIT_WITHIN)
    }

    /// Waits until a node has ended by itself and gives how.
    pub fn wait_exit(&mut self, number: usize) -> Result<ExitStatus> {
        self.node(number)?.wait_exit(EXIT_WITHIN)
    }

    /// The process of a node that was started before.
    pub fn node(&mut self, number: usize) -> Result<&mut Node> {
        self.members[number - 1].node.as_mut().with_context(|| format!("node {number} was never started"))
    }

    /// Where node `number` keeps its data. On a disk of its own, only the node sees what is there.
    pub fn data_directories(&self, number: usize) -> Vec<PathBuf> {
        let home = self.home(number).join("disk");
        (0..DATA_DIRECTORY_COUNT).map(|index| home.join(format!("data-{index}"))).collect()
    }

    /// Runs the binary's command `arguments` against this cluster. Gives its standard output; an error has both streams.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(binary()?);
        command.args(arguments).arg("--cluster").arg(self.addresses().join(","));
        let output = command.output().with_context(|| format!("running {command:?}"))?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{command:?} ended with {}:\n{out}{err}", output.status);
        Ok(out.into_owned())
    }

    /// What every node has printed so far, for the message of a failed test.
    pub fn output(&self) -> String {
        let mut all = String::new();
        for (index, member) in self.members.iter().enumerate() {
            let text = member.node.as_ref().map(Node::output).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(all, "--- node {} printed:\n{text}", index + 1);
        }
        all
    }

    fn home(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("node-{number}"))
    }

    fn config_path(&self, number: usize) -> PathBuf {
        self.home(number).join("serve.toml")
    }

    fn config(&self, number: usize) -> String {
        let directories = self.data_directories(number);
        let data: Vec<_> =
            directories.iter().map(|directory| format!("{:?}", directory.display().to_string())).collect();
        let mut text = format!("node = {number}\nlisten = {:?}\n", self.members[number - 1].address);
        text += &format!("data = [{}]\ndurability = \"fsync\"\n", data.join(", "));
        for (index, member) in self.members.iter().enumerate() {
            text += &format!("\n[[peers]]\nnode = {}\naddress = {:?}\n", index + 1, member.address);
        }
        text
    }

    fn serve_command(&self, number: usize) -> Result<Command> {
        let disk = self.home(number).join("disk");
        let mut command = match self.members[number - 1].place {
            Place::Folder => Command::new(binary()?),
            Place::SmallDisk(size) => {
                let mount = format!(r#"mount -t tmpfs -o size={size} tmpfs "$1""#);
                on_own_disk(&binary()?, &disk, &mount)
            }
            Place::ReadOnlyFolder => {
                let mount = r#"mount --bind "$1" "$1" && mount -o remount,bind,ro "$1""#;
                on_own_disk(&binary()?, &disk, mount)
            }
        };
        command.arg("serve").arg("--config").arg(self.config_path(number));
        Ok(command)
    }
}

/// `binary` after the shell command `mount`, whose `$1` is `disk`, in a mount namespace that ends with the process. Whoever
/// is not root maps itself to root in a user namespace first.
fn on_own_disk(binary: &Path, disk: &Path, mount: &str) -> Command {
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !system::is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", "-c", &format!(r#"{mount} && shift && exec "$@""#), "sh"]).arg(disk).arg(binary);
    command
}
