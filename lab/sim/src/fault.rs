//! Carrying out the nemesis' steps on a world, and undoing all of them.

use crate::history::Time;
use crate::line::Caller;
use crate::machine::data_directory;
use crate::nemesis::{Kind, Step, View};
use crate::protocol;
use crate::second::Gaps;
use crate::world::{Event, World};
use hedgerow_node::inspect::ReplicaView;
use hedgerow_types::GroupId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl World {
    /// Lets the nemesis begin.
    pub(crate) fn unleash(&mut self) {
        if let Some(second) = &mut self.second {
            second.unleash();
        }
        let Some(nemesis) = &mut self.nemesis else { return };
        let gap = nemesis.gap();
        self.after(gap, Event::Step(Step::Decide));
    }

    /// Ends all faults: what was planned does not happen, and everything runs again.
    pub(crate) fn heal_everything(&mut self) {
        self.trace(|| "all faults end".into());
        self.nemesis = None;
        if let Some(second) = &mut self.second {
            second.heal_everything();
        }
        self.gaps = Gaps::default();
        for from in 0..self.plan.machine_count {
            for to in 0..self.plan.machine_count {
                self.heal(from, to);
            }
        }
        for machine in 0..self.plan.machine_count {
            self.slow_wires(machine, 0);
            let state = &mut self.machines[machine];
            (state.disk_factor, state.slow_directory) = (1, None);
            state.delay_max = 0;
            // A process that met a disk fault may still stumble over it, and starts once more then.
            state.disk.set_full(false);
            state.disk.set_read_only(false);
            state.disk.fail_syncs(Path::new("/"), false);
            (0..self.plan.directory_count).for_each(|number| state.disk.fail_syncs(&data_directory(number), false));
            state.is_paused = false;
            self.set_clock_rate(machine, 0);
            self.schedule(machine);
            self.start_machine(machine);
        }
    }

    /// Starts again what gave up because of a disk fault that is over.
    pub(crate) fn restart_stopped(&mut self) {
        (0..self.plan.machine_count).for_each(|machine| self.start_machine(machine));
    }

    /// A step of an ordinary fault.
    pub(crate) fn take_step(&mut self, step: Step) {
        // Until a copy is turned away, nobody forgets what tells it from the node, or cannot say so.
        if !(self.is_copy_near() && step.silences() || self.is_clone_near() && matches!(step, Step::Break { .. })) {
            self.take_any_step(step);
        }
    }

    pub(crate) fn take_any_step(&mut self, step: Step) {
        if self.nemesis.is_none() {
            return;
        }
        let now = self.queue.now();
        if step != Step::Decide {
            self.trace(|| format!("{step:?}"));
        }
        match step {
            Step::Decide => self.decide(),
            Step::Cut { from, to } => {
                self.wire(from, to).cut();
                self.links.disturb(from, now);
            }
            Step::Heal { from, to } => self.heal(from, to),
            Step::SlowWires { machine, extra_delay } => self.slow_wires(machine, extra_delay),
            Step::Break { a, b } => self.break_links(a, b),
            Step::Stop { machine, is_power_loss } => {
                if self.machines[machine].process.is_some() {
                    self.stats.crashes += 1;
                    self.stop_machine(machine, is_power_loss);
                }
            }
            Step::Start { machine } => self.start_machine(machine),
            Step::Pause { machine } => {
                self.machines[machine].is_paused = self.machines[machine].process.is_some();
                self.links.disturb(machine, now);
            }
            Step::Resume { machine } => {
                self.machines[machine].is_paused = false;
                self.links.disturb(machine, now);
                self.schedule(machine);
            }
            Step::SlowDisk { machine, directory, factor } => {
                (self.machines[machine].disk_factor, self.machines[machine].slow_directory) = (factor, directory);
            }
            Step::SlowProcess { machine, delay_max } => self.machines[machine].delay_max = delay_max,
            Step::FailSyncs { machine, directory, is_failing } => {
                (self.machines[machine].may_fail, self.machines[machine].is_refusing) = (true, is_failing);
                let path = directory.map_or_else(|| PathBuf::from("/"), data_directory);
                self.machines[machine].disk.fail_syncs(&path, is_failing);
            }
            Step::FillDisk { machine, is_full } => {
                self.machines[machine].may_fail = true;
                self.machines[machine].disk.set_full(is_full);
            }
            Step::ProtectDisk { machine, is_read_only } => {
                (self.machines[machine].may_fail, self.machines[machine].is_refusing) = (true, is_read_only);
                self.machines[machine].disk.set_read_only(is_read_only);
            }
            Step::ClockRate { machine, error_ppm } => self.set_clock_rate(machine, error_ppm),
            Step::StepWall { machine, seconds } => self.machines[machine].clock.step_wall(seconds * 1_000_000),
            Step::PassTime { seconds } => self.pass_time(seconds * 1_000_000),
            Step::Transfer { machine } => self.move_leaders(machine),
            Step::Learners { count } => self.set_learners(count),
            Step::BreakClients { machine } => self.break_clients(machine, false),
            Step::Wipe { machine } => self.lose_data(machine, true),
            Step::Corrupt { machine } => self.lose_data(machine, false),
            Step::TakeLog { machine, directory } => self.take_log(machine, directory),
            Step::GiveLog { machine } => self.give_log(machine),
            Step::Copy { machine } => self.copy_disk(machine),
            Step::Mark { machine } => self.mark_logs(machine),
            Step::PutBack { machine, is_power_loss } => self.put_back(machine, is_power_loss),
            Step::Clone { machine } => self.start_clone(machine),
        }
    }

    /// Every wall clock, right or wrong, goes ahead by so much.
    fn pass_time(&mut self, micros: i64) {
        self.machines.iter_mut().for_each(|machine| machine.clock.step_wall(micros));
        self.executor.pass_time(micros);
        self.oracle.note_passed(self.queue.now(), micros as u64);
    }

    /// What the node waits for comes sooner or later than it seemed.
    fn set_clock_rate(&mut self, machine: usize, error_ppm: i64) {
        let now = self.queue.now();
        self.machines[machine].clock.set_rate(now, error_ppm);
        if let Some(process) = &mut self.machines[machine].process {
            process.wakes_at = None;
        }
        self.schedule_wake(machine);
    }

    fn decide(&mut self) {
        let view = self.view();
        let is_free = !self.is_copy_near();
        let Some(nemesis) = &mut self.nemesis else { return };
        if !is_free {
            let gap = nemesis.gap();
            return self.after(gap, Event::Step(Step::Decide));
        }
        let fault = nemesis.decide(&view);
        let gap = nemesis.gap();
        self.after(gap, Event::Step(Step::Decide));
        if let Some((kind, steps)) = fault {
            self.trace(|| format!("nemesis: {}", kind.name()));
            self.stats.note_fault(kind.name());
            for (delay, step) in steps {
                let is_of_copy = kind == Kind::RolledBack;
                self.after(delay, if is_of_copy { Event::StepOfCopy(step) } else { Event::Step(step) });
            }
        }
    }

    fn view(&self) -> View {
        let is_running = |machine: &usize| {
            let state = &self.machines[*machine];
            state.process.is_some() && !state.is_paused
        };
        let running: Vec<usize> = (0..self.plan.machine_count).filter(is_running).collect();
        let leaders: Vec<usize> = running.iter().copied().filter(|machine| self.leads_table(*machine)).collect();
        // Its effect may come later than the fault: with the next write.
        let is_whole = self.is_whole() && !self.machines.iter().any(|machine| machine.is_refusing || machine.is_copy);
        let directory_count = self.plan.directory_count;
        View { machine_count: self.plan.machine_count, leaders, running, is_whole, directory_count }
    }

    fn leads_table(&self, machine: usize) -> bool {
        let Some(process) = &self.machines[machine].process else { return false };
        process.node.replicas_for_inspection().any(|replica| replica.id != GroupId::META && replica.leads().is_some())
    }

    /// Whether no voter is missing anywhere, and each knows that: as long as one has not heard that a change of the membership is
    /// over, what the old voters lost counts as well.
    pub(crate) fn is_whole(&self) -> bool {
        let replicas: Vec<ReplicaView<'_>> = self.replicas().collect();
        // One that was replaced while it was away, and is back, does not know it yet.
        let counts = |replica: &ReplicaView<'_>| {
            let newer =
                |other: &&ReplicaView<'_>| other.id == replica.id && other.group.commit() >= replica.group.commit();
            let mut newer = replicas.iter().filter(newer).map(|other| other.group.membership());
            newer.all(|membership| membership.voters.contains(&replica.replica))
        };
        let is_voter =
            |replica: &ReplicaView<'_>| replica.group.membership().voters_outgoing.is_empty() && counts(replica);
        let is_lasting = |group| group == GroupId::META || self.operator.table.is_some_and(|table| table.has(group));
        let (mut lasting, mut missing) = (0, BTreeMap::new());
        for replica in &replicas {
            let count = isize::from(is_voter(replica));
            if is_lasting(replica.id) {
                lasting += count;
            } else {
                // A table that is being created or dropped has not all of its replicas either.
                let voters = replica.group.membership().voters.len() as isize;
                *missing.entry(replica.id).or_insert(voters) -= count;
            }
        }
        lasting == self.plan.voter_total() as isize && missing.values().all(|missing| *missing == 0)
    }

    fn heal(&mut self, from: usize, to: usize) {
        let now = self.queue.now();
        let index = self.wire_index(from, to);
        let wire = &mut self.wires[index];
        let (epoch, was_cut) = (wire.epoch(), wire.is_cut());
        let held = wire.heal(now, &mut self.random);
        if !self.wire(from, to).delivers(epoch) {
            return self.lose_connection(from, to);
        }
        if was_cut {
            self.links.disturb(from, now);
        }
        held.into_iter().for_each(|packet| self.send_packet(from, to, packet));
    }

    fn break_links(&mut self, a: usize, b: usize) {
        [(a, b), (b, a)].into_iter().for_each(|(from, to)| self.break_wire(from, to));
    }

    fn slow_wires(&mut self, machine: usize, extra_delay: Time) {
        for to in 0..self.plan.machine_count {
            self.wire(machine, to).slow_down(extra_delay);
        }
    }

    /// Asks some node to have all partitions led from `machine`.
    pub(crate) fn move_leaders(&mut self, machine: usize) {
        for partition in 0..self.plan.partition_count {
            let to = self.machines[machine].id.0;
            let argument = format!("{{\"table\":\"sim\",\"partition\":{partition},\"to_node\":{to}}}");
            let frame = protocol::admin(self.operator.next_sequence_id(), "transfer", &argument);
            let asked = self.random.below(self.plan.machine_count as u64) as usize;
            self.send_to_machine(Caller::Operator, asked, frame);
        }
    }

    /// Asks some node for so many learners of every partition.
    pub(crate) fn set_learners(&mut self, count: u32) {
        let argument = format!("{{\"name\":\"sim\",\"options\":{{\"read_replicas\":\"{count}\"}}}}");
        let frame = protocol::admin(self.operator.next_sequence_id(), "set_options", &argument);
        let asked = self.random.below(self.plan.machine_count as u64) as usize;
        self.send_to_machine(Caller::Operator, asked, frame);
    }

    /// The machine may have been started again by another fault meanwhile; then nothing is lost.
    fn lose_data(&mut self, machine: usize, is_everything: bool) {
        if self.machines[machine].process.is_some() {
            return;
        }
        if is_everything {
            self.machines[machine].wipe();
        } else {
            let damaged = self.machines[machine].corrupt();
            self.trace(|| format!("m{} has a bad byte: {damaged:?}", machine + 1));
        }
    }
}
