//! One screen: the costs of an operation by process, the system calls by name, and the hottest functions.

use crate::calls::Calls;
use crate::process::{Role, Usage};
use crate::stacks::Stacks;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Functions that are listed for each side.
const FUNCTION_COUNT: usize = 15;
/// Names of system calls that are listed.
const CALL_COUNT: usize = 8;
/// Letters of a function's name that are shown.
const NAME_WIDTH: usize = 52;

/// What one process spent in the quiet phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) role: Role,
    pub(crate) usage: Usage,
}

/// A row of the table of costs.
type Figure = fn(&Usage) -> f64;

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) workload: String,
    /// The phase in which nothing was attached.
    pub(crate) quiet_seconds: f64,
    pub(crate) quiet_operations: f64,
    /// Operations per second while stacks were sampled.
    pub(crate) sampling_rate: f64,
    pub(crate) costs: Vec<Cost>,
    pub(crate) stacks: Stacks,
    /// The operations done meanwhile and the calls, or why they could not be counted.
    pub(crate) calls: Result<(f64, Calls), String>,
}

impl Summary {
    /// For a terminal.
    pub(crate) fn text(&self) -> String {
        [self.headline(), self.cost_table(), self.call_table(), self.functions()].join("\n")
    }

    fn headline(&self) -> String {
        let mut text = format!(
            "{}: {:.0} operations/s with nothing attached ({:.1} s), {:.0}/s while sampling stacks",
            self.workload,
            self.quiet_operations / self.quiet_seconds,
            self.quiet_seconds,
            self.sampling_rate
        );
        if let Ok((operations, calls)) = &self.calls {
            text += &format!(", {:.0}/s while counting calls", operations / calls.window.seconds());
        }
        text + "\n"
    }

    fn cost_table(&self) -> String {
        // The client may be several processes.
        let mut by_role: BTreeMap<Role, Usage> = BTreeMap::new();
        for cost in &self.costs {
            let sum = by_role.entry(cost.role).or_default();
            *sum = sum.plus(cost.usage);
        }
        let sum = |usages: &mut dyn Iterator<Item = Usage>| usages.fold(Usage::default(), Usage::plus);
        let servers = by_role.iter().filter(|(role, _)| role.is_server()).map(|(_, usage)| *usage);
        let mut columns: Vec<_> = by_role.iter().map(|(role, usage)| (role.to_string(), *usage)).collect();
        columns.push(("servers".to_owned(), sum(&mut { servers })));

        let mut text = format!("{:<28}", "per operation");
        for (name, _) in &columns {
            let _ = write!(text, "{name:>10}");
        }
        text.push('\n');
        let rows: [(&str, Figure); 4] = [
            ("CPU us, user", |usage| usage.user_s * 1e6),
            ("CPU us, system", |usage| usage.system_s * 1e6),
            ("allocations (Rust code)", |usage| usage.allocations as f64),
            ("allocated bytes (Rust code)", |usage| usage.bytes as f64),
        ];
        for (name, figure) in rows {
            let _ = write!(text, "{name:<28}");
            for (_, usage) in &columns {
                let _ = write!(text, "{:>10}", digits(figure(usage) / self.quiet_operations));
            }
            text.push('\n');
        }
        text
    }

    fn call_table(&self) -> String {
        let (operations, calls) = match &self.calls {
            Ok(counted) => counted,
            Err(reason) => return format!("system calls per operation: not counted ({reason})\n"),
        };
        let total = |side: &BTreeMap<String, u64>| side.values().sum::<u64>();
        let of = |side: &BTreeMap<String, u64>, name: &str| side.get(name).copied().unwrap_or(0);
        let names: BTreeSet<_> = calls.servers.keys().chain(calls.client.keys()).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_by_key(|name| std::cmp::Reverse(of(&calls.servers, name) + of(&calls.client, name)));
        let mut text = format!("{:<28}{:>10}{:>10}\n", "system calls per operation", "servers", "client");
        let mut row = |name: &str, servers: u64, client: u64| {
            let [servers, client] = [servers, client].map(|count| digits(count as f64 / operations));
            let _ = writeln!(text, "{name:<28}{servers:>10}{client:>10}");
        };
        row("all", total(&calls.servers), total(&calls.client));
        for name in names.into_iter().take(CALL_COUNT) {
            row(&format!("  {name}"), of(&calls.servers, name), of(&calls.client, name));
        }
        text + &format!("(counted with {})\n", calls.source)
    }

    fn functions(&self) -> String {
        let [servers, client] = [Role::is_server as fn(Role) -> bool, |role| !role.is_server()].map(|is_chosen| {
            let samples = self.stacks.samples(is_chosen);
            let mut lines = vec![format!("self time, {samples} samples")];
            for (name, count) in self.stacks.hottest(is_chosen, FUNCTION_COUNT) {
                lines.push(format!("{:>5.1} % {}", 100.0 * count as f64 / samples as f64, cut(&name)));
            }
            lines
        });
        let mut text = format!("{:<width$}  client\n", "servers", width = NAME_WIDTH + 8);
        for index in 0..servers.len().max(client.len()) {
            let line = |side: &[String]| side.get(index).cloned().unwrap_or_default();
            let both = format!("{:<width$}  {}", line(&servers), line(&client), width = NAME_WIDTH + 8);
            text += both.trim_end();
            text.push('\n');
        }
        text + &format!("(sampled with {}; _[k] = in the kernel)\n", self.stacks.source)
    }
}

/// Three significant digits, no more decimals than mean something.
fn digits(figure: f64) -> String {
    match figure {
        figure if figure >= 100.0 => format!("{figure:.0}"),
        figure if figure >= 10.0 => format!("{figure:.1}"),
        figure if figure >= 1.0 => format!("{figure:.2}"),
        figure => format!("{figure:.3}"),
    }
}

/// The end of a long name: it tells more than the beginning.
fn cut(name: &str) -> String {
    let count = name.chars().count();
    if count <= NAME_WIDTH {
        return name.to_owned();
    }
    let kept: String = name.chars().skip(count - (NAME_WIDTH - 2)).collect();
    format!("..{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Window;
    use crate::stacks::Stack;
    use std::time::{Duration, Instant};

    fn usage(user_s: f64, allocations: u64) -> Usage {
        Usage { user_s, system_s: user_s / 2.0, allocations, bytes: 100 * allocations }
    }

    fn summary(calls: Result<(f64, Calls), String>) -> Summary {
        let stack = |role, line| Stack::parse(role, line).unwrap();
        Summary {
            workload: "get".to_owned(),
            quiet_seconds: 2.0,
            quiet_operations: 100_000.0,
            sampling_rate: 40_000.0,
            costs: vec![
                Cost { role: Role::Node(1), usage: usage(0.5, 200_000) },
                Cost { role: Role::Node(2), usage: usage(0.25, 100_000) },
                Cost { role: Role::Client, usage: usage(0.5, 50_000) },
                Cost { role: Role::Client, usage: usage(0.5, 50_000) },
            ],
            stacks: Stacks {
                stacks: vec![
                    stack(Role::Node(1), "node-1;main;hash 3"),
                    stack(Role::Node(2), "node-2;main;copy_[k] 1"),
                    stack(Role::Client, "hedgerow;main;send 4"),
                ],
                source: "a test",
            },
            calls,
        }
    }

    #[test]
    fn figures_are_per_operation_and_of_all_processes_of_a_side() {
        let begin = Instant::now();
        let calls = Calls {
            window: Window { begin, end: begin + Duration::from_secs(1) },
            servers: BTreeMap::from([("recvfrom".to_owned(), 30_000), ("sendto".to_owned(), 15_000)]),
            client: BTreeMap::from([("recvfrom".to_owned(), 3_000)]),
            source: "a test",
        };
        let expected = "\
get: 50000 operations/s with nothing attached (2.0 s), 40000/s while sampling stacks, 30000/s while counting calls

per operation                   node 1    node 2    client   servers
CPU us, user                      5.00      2.50      10.0      7.50
CPU us, system                    2.50      1.25      5.00      3.75
allocations (Rust code)           2.00      1.00      1.00      3.00
allocated bytes (Rust code)        200       100       100       300

system calls per operation     servers    client
all                               1.50     0.100
  recvfrom                        1.00     0.100
  sendto                         0.500     0.000
(counted with a test)

servers                                                       client
self time, 4 samples                                          self time, 4 samples
 75.0 % hash                                                  100.0 % send
 25.0 % copy_[k]
(sampled with a test; _[k] = in the kernel)
";
        assert_eq!(summary(Ok((30_000.0, calls))).text(), expected);
    }

    #[test]
    fn a_summary_says_why_calls_were_not_counted() {
        let text = summary(Err("perf: refused; strace: not there".to_owned())).text();
        assert!(text.contains("not counted (perf: refused; strace: not there)"), "{text}");
    }

    #[test]
    fn long_names_keep_their_end() {
        let long = format!("{}::end", "a".repeat(80));
        let shown = cut(&long);
        assert_eq!(shown.len(), NAME_WIDTH);
        assert!(shown.starts_with("..a") && shown.ends_with("::end"));
    }
}
