//! A cluster of `hedgerow serve` processes on this machine.

use crate::node::{Node, Watch};
use crate::port::{Port, reserve_port};
use crate::settings::{DataPlace, Settings};
use crate::system;
use crate::tls::{Certificates, ROOT, USER};
use anyhow::{Context, Result, ensure};
use hedgerow_tls::ClientTlsFiles;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;
use tempfile::TempDir;

/// How long a node may take until it serves. Generous: the machine may be busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// What the name of a cluster's folder begins with.
const PREFIX: &str = "hedgerow-cluster-";
/// How long a node may take to end after it was asked to, or after its disk failed.
const EXIT_WITHIN: Duration = Duration::from_secs(60);

/// Nodes 1 to n. Dropping the cluster kills them and removes their data.
pub struct Cluster {
    settings: Settings,
    members: Vec<Member>,
    certificates: Option<Certificates>,
    // Dropped last: the nodes must be gone before their data is.
    folder: TempDir,
}

struct Member {
    /// Where it listens.
    address: String,
    /// Keeps the address while the node is down.
    _port: Port,
    /// Where everybody else reaches it, if that is somewhere else.
    front: Option<String>,
    place: DataPlace,
    /// Tables of its configuration file, if they are not the settings'.
    further_config: Option<String>,
    /// `None` before the first start and after an end that was waited for.
    node: Option<Node>,
}

impl Cluster {
    /// A cluster under test of `count` nodes that all serve.
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(Settings::under_test(&vec![DataPlace::Folder; count])?)
    }

    /// A cluster whose nodes all serve.
    pub fn start_with(settings: Settings) -> Result<Self> {
        let mut cluster = Self::prepare(settings)?;
        let all: Vec<_> = cluster.numbers().collect();
        cluster.restart_all(&all)?;
        Ok(cluster)
    }

    /// Addresses, folders and configuration files; nothing is started.
    pub fn prepare(settings: Settings) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        let folder = match &settings.base {
            Some(base) => {
                fs::create_dir_all(base).with_context(|| format!("making {}", base.display()))?;
                builder.prefix(PREFIX).tempdir_in(base)
            }
            None => builder.prefix(PREFIX).tempdir(),
        };
        let folder = folder.context("making a temporary folder")?;
        let mut members = Vec::new();
        for place in &settings.places {
            let port = reserve_port()?;
            let address = format!("127.0.0.1:{}", port.number);
            let member = Member { address, _port: port, front: None, place: *place, further_config: None, node: None };
            members.push(member);
        }
        let tls = folder.path().join("tls");
        let count = u16::try_from(members.len()).context("too many nodes")?;
        let certificates = settings.has_tls.then(|| Certificates::make(tls, count)).transpose()?;
        let cluster = Self { settings, members, certificates, folder };
        for number in cluster.numbers() {
            for directory in cluster.data_directories(number) {
                fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
            }
            cluster.write_config(number)?;
        }
        Ok(cluster)
    }

    /// What it was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The numbers of all nodes.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        1..=self.members.len()
    }

    /// The addresses at which all nodes are reached, in the order of their numbers.
    pub fn addresses(&self) -> Vec<&str> {
        self.members.iter().map(Member::reached_at).collect()
    }

    /// Where a node listens.
    pub fn listen_address(&self, number: usize) -> &str {
        &self.members[number - 1].address
    }

    /// Has clients and the other nodes reach nodes 1 to n at `fronts`, where something forwards to where they listen. Holds for
    /// nodes from their next start on.
    pub fn set_fronts(&mut self, fronts: &[String]) -> Result<()> {
        for (member, front) in self.members.iter_mut().zip(fronts) {
            member.front = Some(front.clone());
        }
        self.numbers().try_for_each(|number| self.write_config(number))
    }

    /// Starts nodes that do not run and waits until all of them serve. Together, because a node may need others for that.
    pub fn restart_all(&mut self, numbers: &[usize]) -> Result<()> {
        for number in numbers {
            self.spawn(*number)?;
        }
        self.readiness(numbers)?.wait()
    }

    /// What waits until nodes that were started serve: for callers that must not block here, since it may be sent to a
    /// thread.
    pub fn readiness(&mut self, numbers: &[usize]) -> Result<Readiness> {
        let watch = |number: &usize| Ok((*number, self.node(*number)?.watch()));
        Ok(Readiness { watches: numbers.iter().map(watch).collect::<Result<_>>()? })
    }

    /// Starts a node that does not run and waits until it serves.
    pub fn restart(&mut self, number: usize) -> Result<()> {
        self.restart_all(&[number])
    }

    /// Starts a node that does not run, without waiting for anything. It ends at the latest with the calling thread.
    pub fn spawn(&mut self, number: usize) -> Result<()> {
        let command = self.serve_command(number);
        let member = &mut self.members[number - 1];
        let is_running = member.node.as_mut().map(Node::is_running).transpose()?.unwrap_or(false);
        ensure!(!is_running, "node {number} runs already");
        member.node = Some(Node::spawn(command)?);
        Ok(())
    }

    /// Gives a node other tables of its configuration file than [`Settings::further_config`], from its next start on.
    pub fn set_further_config(&mut self, number: usize, further: &str) -> Result<()> {
        self.members[number - 1].further_config = Some(further.to_owned());
        self.write_config(number)
    }

    /// Has all nodes know `other` by this name, with its certificates if it has any, from their next start on. Replaces their further
    /// configuration.
    pub fn introduce(&mut self, name: &str, other: &Self) -> Result<()> {
        let mut section = format!("[clusters.{name}]\nmeta_nodes = {:?}\n", other.addresses());
        if let Some(files) = other.client_tls() {
            let (certificate, key) = files.identity.context("clients show certificates")?;
            let ca = files.ca;
            section += &format!("[clusters.{name}.tls]\nca = {ca:?}\ncertificate = {certificate:?}\nkey = {key:?}\n");
        }
        self.numbers().try_for_each(|number| self.set_further_config(number, &section))
    }

    /// Changes where a node keeps its data, from its next start on.
    pub fn set_place(&mut self, number: usize, place: DataPlace) {
        self.members[number - 1].place = place;
    }

    /// Gives a node another port, from its next start on. Its own configuration says so; those of the others do not.
    pub fn change_address(&mut self, number: usize, host: &str) -> Result<()> {
        let port = reserve_port()?;
        let member = &mut self.members[number - 1];
        member.address = format!("{host}:{}", port.number);
        member._port = port;
        self.write_config(number)
    }

    /// Gives every node another port, on the machine that is called `host`, from the next start on.
    pub fn change_addresses(&mut self, host: &str) -> Result<()> {
        self.numbers().try_for_each(|number| self.change_address(number, host))?;
        self.numbers().try_for_each(|number| self.write_config(number))
    }

    /// `kill -9`.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        self.node(number)?.kill().map(drop)
    }

    /// Asks a node to stop and gives how it ended.
    pub fn terminate(&mut self, number: usize) -> Result<ExitStatus> {
        self.node(number)?.terminate(EXIT_WITHIN)
    }

    /// Asks every node that runs to stop, all at once, and fails unless all of them end well.
    pub fn stop(&mut self) -> Result<()> {
        let mut ending = Vec::new();
        for number in self.numbers() {
            let Some(node) = &mut self.members[number - 1].node else { continue };
            if node.is_running()? {
                node.ask_to_stop()?;
                ending.push(number);
            }
        }
        for number in ending {
            let status = self.wait_exit(number)?;
            let output = self.node(number)?.output();
            ensure!(status.success(), "node {number} stopped with {status}; it printed:\n{output}");
        }
        Ok(())
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
        (0..self.settings.data_directories).map(|index| home.join(format!("data-{index}"))).collect()
    }

    /// Runs the binary's command `arguments` against this cluster. Gives its standard output; an error has both streams.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_as(USER, arguments)
    }

    /// The same as the user [`USER`] or [`ROOT`], where the nodes have certificates.
    pub fn run_as(&self, user: &str, arguments: &[&str]) -> Result<String> {
        let (code, out, err) = self.try_run_as(user, arguments)?;
        ensure!(code == 0, "`hedgerow {}` ended with exit status: {code}:\n{out}{err}", arguments.join(" "));
        Ok(out)
    }

    /// Runs a command of `hedgerow` with this cluster, however it ends. Returns its code, -1 if a signal ended it, its output and its errors.
    pub fn try_run(&self, arguments: &[&str]) -> Result<(i32, String, String)> {
        self.try_run_as(USER, arguments)
    }

    fn try_run_as(&self, user: &str, arguments: &[&str]) -> Result<(i32, String, String)> {
        let mut command = Command::new(&self.settings.binary);
        command.args(arguments).arg("--cluster").arg(self.addresses().join(","));
        if let Some(certificates) = &self.certificates {
            command.envs(certificates.environment(user));
        }
        let output = command.output().with_context(|| format!("running {command:?}"))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr)))
    }

    /// What a client needs to be listened to, where the nodes have certificates.
    pub fn client_tls(&self) -> Option<ClientTlsFiles> {
        self.certificates.as_ref().map(Certificates::client)
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

    fn write_config(&self, number: usize) -> Result<()> {
        let path = self.config_path(number);
        fs::write(&path, self.config(number)).with_context(|| format!("writing {}", path.display()))
    }

    fn config(&self, number: usize) -> String {
        let directories = self.data_directories(number);
        let data: Vec<_> =
            directories.iter().map(|directory| format!("{:?}", directory.display().to_string())).collect();
        let mut text = format!("node = {number}\nlisten = {:?}\n", self.members[number - 1].address);
        text += &format!("data = [{}]\ndurability = {:?}\n", data.join(", "), self.settings.durability.name());
        if let Some(io_threads) = self.settings.io_threads {
            text += &format!("io_threads = {io_threads}\n");
        }
        if let Some(shards) = self.settings.shards {
            text += &format!("shards = {shards}\n");
        }
        if let Some(workers) = self.settings.workers {
            text += &format!("workers = {workers}\n");
        }
        for (index, member) in self.members.iter().enumerate() {
            text += &format!("\n[[peers]]\nnode = {}\naddress = {:?}\n", index + 1, member.reached_at());
        }
        if let Some(certificates) = &self.certificates {
            text += &certificates.config(number);
            if self.settings.has_passwords {
                text += "client_certificates = false\n";
            }
        }
        if self.settings.has_rights {
            text += &format!("\n[security]\nrights = \"required\"\nadministrators = [{ROOT:?}]\n");
        }
        text += "\n";
        text += self.members[number - 1].further_config.as_deref().unwrap_or(&self.settings.further_config);
        text
    }

    fn serve_command(&self, number: usize) -> Command {
        let binary = &self.settings.binary;
        let disk = self.home(number).join("disk");
        let mut command = match self.members[number - 1].place {
            DataPlace::Folder => Command::new(binary),
            DataPlace::SmallDisk(size) => {
                let mount = format!(r#"mount -t tmpfs -o size={size} tmpfs "$1""#);
                on_own_disk(binary, &disk, &mount)
            }
            DataPlace::ReadOnlyFolder => {
                let mount = r#"mount --bind "$1" "$1" && mount -o remount,bind,ro "$1""#;
                on_own_disk(binary, &disk, mount)
            }
        };
        command.arg("serve").arg("--config").arg(self.config_path(number));
        if let Some(log) = &self.settings.log {
            command.env("HEDGEROW_LOG", log);
        }
        if self.settings.has_own_group {
            command.process_group(0);
        }
        command
    }
}

impl Member {
    fn reached_at(&self) -> &str {
        self.front.as_deref().unwrap_or(&self.address)
    }
}

/// Nodes that were started and may not serve yet.
pub struct Readiness {
    watches: Vec<(usize, Watch)>,
}

impl Readiness {
    /// Blocks until all of them serve. An error carries what the node printed instead.
    pub fn wait(self) -> Result<()> {
        self.watches
            .iter()
            .try_for_each(|(number, watch)| watch.wait_ready(READY_WITHIN).with_context(|| format!("node {number}")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Durability;

    #[test]
    fn nodes_behind_fronts_are_reached_there_and_listen_elsewhere() {
        let mut cluster = Cluster::prepare(Settings::of_binary("hedgerow".into(), 2)).unwrap();
        let fronts = ["127.0.0.1:7".to_owned(), "127.0.0.1:8".to_owned()];
        cluster.set_fronts(&fronts).unwrap();
        assert_eq!(cluster.addresses(), fronts);
        for number in cluster.numbers() {
            let text = fs::read_to_string(cluster.config_path(number)).unwrap();
            assert!(text.contains(&format!("listen = {:?}\n", cluster.listen_address(number))), "{text}");
            assert!(fronts.iter().all(|front| text.contains(&format!("address = {front:?}\n"))), "{text}");
            assert!(!fronts.contains(&cluster.listen_address(number).to_owned()));
        }
    }

    #[test]
    fn the_settings_reach_every_nodes_file() {
        let base = tempfile::tempdir().unwrap();
        let settings = Settings {
            base: Some(base.path().join("deep")),
            durability: Durability::Os,
            workers: Some(3),
            further_config: "[memory]\nblock_cache_mib = 64\n".to_owned(),
            ..Settings::of_binary("hedgerow".into(), 3)
        };
        let cluster = Cluster::prepare(settings).unwrap();
        for number in cluster.numbers() {
            let text = fs::read_to_string(cluster.config_path(number)).unwrap();
            assert!(text.starts_with(&format!("node = {number}\n")), "{text}");
            assert!(text.contains("durability = \"os\"\nworkers = 3\n"), "{text}");
            assert!(text.ends_with("\n[memory]\nblock_cache_mib = 64\n"), "{text}");
            let [data] = cluster.data_directories(number).try_into().unwrap();
            assert!(data.starts_with(base.path()) && data.is_dir(), "{}", data.display());
        }
        drop(cluster);
        assert_eq!(fs::read_dir(base.path().join("deep")).unwrap().count(), 0);
    }
}
