//! Sampled stacks: whose they are, which functions the time is spent in, and flame graphs of them.

use crate::process::{Process, Role};
use anyhow::{Context as _, Result, ensure};
use inferno::flamegraph::color::{MultiPalette, Palette};
use inferno::flamegraph::{self, Options};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

/// One stack and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) role: Role,
    /// The thread's name, then functions, the innermost last; between them `;`.
    frames: String,
    samples: u64,
}

impl Stack {
    /// Reads `THREAD;OUTER;...;INNER SAMPLES`.
    pub(crate) fn parse(role: Role, line: &str) -> Option<Self> {
        let (frames, samples) = line.trim_end().rsplit_once(' ')?;
        Some(Self { role, frames: frames.to_owned(), samples: samples.parse().ok()? })
    }

    /// The function that ran, in kernels with `_[k]` at its end.
    fn innermost(&self) -> &str {
        self.frames.rsplit(';').next().unwrap_or_default()
    }
}

/// All samples of a phase.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub(crate) stacks: Vec<Stack>,
    /// How they were taken, for the summary.
    pub(crate) source: &'static str,
}

impl Stacks {
    /// Reads lines of the form `THREAD-PROCESS;OUTER;...;INNER SAMPLES`. Others' processes are left out.
    pub(crate) fn of_perf(folded: &str, processes: &[Process]) -> Result<Self> {
        let roles = processes.iter().map(|process| (process.id, process.role)).collect();
        let stacks: Vec<_> = folded.lines().filter_map(|line| owned_stack(line, &roles)).collect();
        ensure!(!stacks.is_empty(), "perf saw no sample");
        Ok(Self { stacks, source: "perf, by CPU clock" })
    }

    /// Writes `servers.svg` and `client.svg`.
    pub(crate) fn draw(&self, folder: &Path, workload: &str) -> Result<()> {
        draw(&folder.join("servers.svg"), &format!("{workload}: servers"), self.of(Role::is_server))?;
        draw(&folder.join("client.svg"), &format!("{workload}: client"), self.of(|role| !role.is_server()))
    }

    /// Samples of the chosen processes.
    pub(crate) fn samples(&self, is_chosen: fn(Role) -> bool) -> u64 {
        self.of(is_chosen).map(|stack| stack.samples).sum()
    }

    /// The functions in which the chosen processes were seen most often, with the number of samples.
    pub(crate) fn hottest(&self, is_chosen: fn(Role) -> bool, count: usize) -> Vec<(String, u64)> {
        let mut functions: BTreeMap<String, u64> = BTreeMap::new();
        for stack in self.of(is_chosen) {
            *functions.entry(short_name(stack.innermost())).or_default() += stack.samples;
        }
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        functions.truncate(count);
        functions
    }

    fn of(&self, is_chosen: fn(Role) -> bool) -> impl Iterator<Item = &Stack> {
        self.stacks.iter().filter(move |stack| is_chosen(stack.role))
    }
}

fn owned_stack(line: &str, roles: &BTreeMap<u32, Role>) -> Option<Stack> {
    let (root, rest) = line.split_once(';')?;
    let (thread, process) = root.rsplit_once('-')?;
    let role = roles.get(&process.parse().ok()?)?;
    Stack::parse(*role, &format!("{thread};{rest}"))
}

fn draw<'a>(path: &Path, title: &str, stacks: impl Iterator<Item = &'a Stack>) -> Result<()> {
    let lines: Vec<_> = stacks.map(|stack| format!("{};{} {}", stack.role, stack.frames, stack.samples)).collect();
    ensure!(!lines.is_empty(), "no samples for {}", path.display());
    let mut options = Options::default();
    title.clone_into(&mut options.title);
    options.colors = Palette::Multi(MultiPalette::Rust);
    options.deterministic = true;
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), BufWriter::new(file))
        .with_context(|| format!("drawing {}", path.display()))
}

/// `Cell<T>::get<U>` as `Cell::get`, and `Map::find(Key const&) const` as `Map::find`: what a line of the summary has room
/// for. Brackets that begin a name or a part of it stay, as in `<A as B>::c`, and an operator keeps its sign.
fn short_name(name: &str) -> String {
    let mut short = String::new();
    let mut depth = 0_usize;
    let mut before = ' ';
    for letter in name.chars() {
        let follows_a_name = before.is_alphanumeric() || before == '_' || (before == '>' && letter == '(');
        let opens = matches!(letter, '<' | '(') && (depth > 0 || follows_a_name);
        let closes = matches!(letter, '>' | ')') && depth > 0 && before != '-';
        if opens {
            depth += 1;
        } else if closes {
            depth -= 1;
        } else if depth == 0 {
            short.push(letter);
        }
        before = letter;
    }
    // Something else than an argument was cut: an operator of C++.
    let whole = if depth > 0 { name } else { &short };
    let without_clone = whole.split(" [clone").next().unwrap_or(whole);
    without_clone.trim_end_matches(" const").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks() -> Stacks {
        let roles = BTreeMap::from([(10, Role::Node(1)), (11, Role::Node(2)), (20, Role::Client)]);
        let folded = "\
node-1-10;main;read;copy<u8>_[k] 5
rocksdb:low-11;main;read;copy<u16>_[k] 4
node-2-11;main;hash 6
hedgerow-20;main;send 3
other-99;main;spin 100";
        let stacks = folded.lines().filter_map(|line| owned_stack(line, &roles)).collect();
        Stacks { stacks, source: "a test" }
    }

    #[test]
    fn samples_belong_to_their_process_and_others_are_left_out() {
        let stacks = stacks();
        assert_eq!(stacks.samples(Role::is_server), 15);
        assert_eq!(stacks.samples(|role| !role.is_server()), 3);
        let hottest = stacks.hottest(Role::is_server, 2);
        assert_eq!(hottest, [("copy_[k]".to_owned(), 9), ("hash".to_owned(), 6)]);
    }

    #[test]
    fn flame_graphs_name_nodes_threads_and_functions() {
        let folder = tempfile::tempdir().unwrap();
        stacks().draw(folder.path(), "get").unwrap();
        let servers = std::fs::read_to_string(folder.path().join("servers.svg")).unwrap();
        for wanted in ["get: servers", "node 1", "node 2", "rocksdb:low", "copy&lt;u16&gt;"] {
            assert!(servers.contains(wanted), "{wanted} is not in servers.svg");
        }
        let client = std::fs::read_to_string(folder.path().join("client.svg")).unwrap();
        assert!(client.contains("send") && !client.contains("node 1") && !client.contains("spin"));
    }

    #[test]
    fn names_without_their_arguments() {
        for (name, short) in [
            ("rocksdb::BlockIter<rocksdb::Slice>::Seek<A<B>, C>", "rocksdb::BlockIter::Seek"),
            ("<&Stream as Write>::write", "<&Stream as Write>::write"),
            ("call<fn() -> Exit, ()>", "call"),
            ("int Iter<K>::Key<V>(int)", "int Iter::Key"),
            ("Map<K>::find(Key const&, bool (*)(int)) const [clone .isra.0]", "Map::find"),
            ("rocksdb::(anonymous namespace)::Rep::Get(int)", "rocksdb::(anonymous namespace)::Rep::Get"),
            ("operator<", "operator<"),
            ("core::run::{{closure}}", "core::run::{{closure}}"),
        ] {
            assert_eq!(short_name(name), short);
        }
    }
}
