//! A cluster of nodes under a store in miniature: decisions are applied as the hub's store applies them, commands end as
//! chance has it, views of the nodes lag. Faults come first, then they stop, and then everything must have come to rest.

use std::time::Duration;

use gpuheal_proto::{ids::NodeUid, time::Timestamp};
use proptest::prelude::*;

use super::*;

const NODES: usize = 12;
/// One step of the world.
const TICK: Duration = Duration::from_secs(20);

struct World {
    now: Timestamp,
    policy: Policy,
    nodes: Vec<Snapshot>,
    out: u32,
    most_out: u32,
    chance: Vec<u8>,
    at: usize,
    commands_made: usize,
}

impl World {
    fn new(policy: Policy, chance: Vec<u8>) -> Self {
        let node = |n: usize| {
            let mut story = snapshot(vec![]);
            story.node.reference.uid = NodeUid::parse(&format!("uid-{n}")).unwrap();
            story.cluster.gpu_nodes = 20;
            story.cluster.newly_suspect = 1;
            story
        };
        let nodes = (0..NODES).map(node).collect();
        Self { now: now(), policy, nodes, out: 0, most_out: 0, chance, at: 0, commands_made: 0 }
    }

    fn roll(&mut self, sides: u8) -> u8 {
        self.at += 1;
        self.chance.get(self.at % self.chance.len().max(1)).copied().unwrap_or(0).wrapping_add(self.at as u8) % sides
    }

    fn fault_comes(&mut self, n: usize) {
        let mut fault = match self.roll(4) {
            0 => xid79(),
            1 => p1(0),
            2 => fault(FaultClass::Xid, "31", Witness::KernelLine, Onset::Edge),
            _ => fault_on(Some(gpu(0x5e)), FaultClass::Ecc, "dbe", Witness::ExporterCounter, Onset::Edge),
        };
        (fault.first_at, fault.last_at, fault.evidence.since) = (self.now, self.now, self.now);
        let faults = &mut self.nodes[n].faults;
        match faults.iter_mut().find(|known| known.key == fault.key) {
            Some(known) => {
                let old = known.settled.is_some() || known.evidence.state == EvidenceState::Clear;
                let episode = known.episode + u32::from(old);
                let first_at = if old { fault.first_at } else { known.first_at };
                *known = KnownFault { episode, first_at, ..fault };
            }
            None => faults.push(fault),
        }
    }

    fn all_clear(&mut self) {
        let now = self.now;
        for fault in self.nodes.iter_mut().flat_map(|node| &mut node.faults) {
            fault.evidence = Evidence { state: EvidenceState::Clear, since: now };
        }
    }

    fn tick(&mut self, n: usize) {
        for story in &mut self.nodes {
            story.cluster.out = self.out;
            story.cluster.fleet_out = self.out;
            story.cluster.observer.state_at = Some(self.now);
            story.cluster.observer.told_upto = Some(self.now);
        }
        let decision = decide(&self.nodes[n], &self.policy, self.now);
        self.apply(n, &decision);
        self.most_out = self.most_out.max(self.out);
    }

    fn apply(&mut self, n: usize, decision: &Decision) {
        let now = self.now;
        let story = &mut self.nodes[n];
        let held = story.incident.as_ref().is_some_and(|incident| incident.held);
        let held = match decision.budget {
            BudgetOp::Keep => held,
            BudgetOp::Hold { .. } | BudgetOp::HoldFound => {
                assert!(!held, "a place is taken once");
                self.out += 1;
                true
            }
            BudgetOp::Free => {
                assert!(held, "only what was held is given back");
                self.out -= 1;
                false
            }
        };
        let Some(change) = &decision.incident else {
            assert!(decision.commands.is_empty());
            return;
        };
        for settle in &decision.settle {
            for fault in story.faults.iter_mut().filter(|fault| fault.key == settle.key) {
                fault.settled = Some(settle.settled);
            }
        }
        match decision.cooldown {
            CooldownOp::Keep => {}
            CooldownOp::Reserve => story.cooldown = Some(Cooldown { incident: change.id, state: CooldownState::Reserved }),
            CooldownOp::Run { until } => {
                story.cooldown = Some(Cooldown { incident: change.id, state: CooldownState::Running { until } })
            }
            CooldownOp::Void => story.cooldown = Some(Cooldown { incident: change.id, state: CooldownState::Void }),
        }
        if change.opens {
            story.commands.clear();
        }
        for command in &decision.commands {
            self.commands_made += 1;
            assert!(command.plan_rev > story.node.plan_rev_floor, "no revision is given out twice");
            story.node.plan_rev_floor = command.plan_rev;
            story.commands.push(KnownCommand {
                id: command.id,
                action: command.action,
                steps: command.steps.iter().map(|step| step.name().to_owned()).collect(),
                gpu: command.gpu.clone(),
                cordons: false,
                state: CommandState::Signed,
                steps_done: vec![],
                refusal: None,
                outcome: String::new(),
                plan_rev: command.plan_rev,
                decision_no: change.decision_no,
                level: change.level,
                created_at: now,
                start_by: command.times.start_by,
                finish_by: command.times.finish_by,
                state_at: now,
            });
        }
        for cancel in &decision.cancel {
            for command in story.commands.iter_mut().filter(|command| command.id == cancel.id) {
                command.state = CommandState::Cancelled;
                command.state_at = now;
            }
        }
        if change.state.closed() {
            assert!(!held && story.node.mark.is_none(), "closed with a mark or a place: {change:?}");
            story.incident = None;
            return;
        }
        let old = story.incident.take();
        story.incident = Some(Incident {
            id: change.id,
            state: change.state,
            level: change.level,
            manual: change.manual,
            opened_at: old.as_ref().map_or(now, |incident| incident.opened_at),
            state_at: old.as_ref().filter(|incident| incident.state == change.state).map_or(now, |incident| incident.state_at),
            decision_no: change.decision_no,
            policy_revision: decision.policy_revision,
            fault_keys: change.fault_keys.clone(),
            asked_keys: change.asked_keys.clone(),
            held,
            undo: Default::default(),
            reason: change.reason.clone(),
        });
    }

    /// One open command of the node ends, well or not: the cluster shows its effect with it.
    fn command_ends(&mut self, n: usize, always_well: bool) {
        let dice = if always_well { 0 } else { self.roll(8) };
        let now = self.now;
        let story = &mut self.nodes[n];
        let name = story.incident.as_ref().map(|incident| incident.id.to_string()).unwrap_or_default();
        let Some(command) = story.commands.iter_mut().find(|command| !command.state.terminal()) else { return };
        command.state_at = now;
        command.state = match dice {
            0..=3 => CommandState::Succeeded,
            4 => CommandState::Refused,
            5 => CommandState::Expired,
            6 => CommandState::Failed,
            _ => return,
        };
        if command.state != CommandState::Succeeded {
            return;
        }
        if command.steps.iter().any(|step| step == "mark") {
            story.node.mark = Some(Mark { labelled: true, tainted: true, cordoned_by_us: false, incident: name });
            story.node.plan_revision = command.plan_rev;
        }
        if command.action == Action::Release {
            story.node.mark = None;
            story.node.plan_revision = command.plan_rev;
        }
        story.node.seen_at = now;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn budgets_hold_through_every_storm_and_when_faults_stop_everything_comes_to_rest(chance in proptest::collection::vec(any::<u8>(), 32..200)) {
        let policy = policy(Mode::Heal);
        let allowed = policy.settings.budgets.cluster.allowed(20);
        let mut world = World::new(policy, chance);
        for round in 0..200_usize {
            let n = usize::from(world.roll(NODES as u8));
            if world.roll(3) == 0 {
                world.fault_comes(n);
            }
            world.tick(round % NODES);
            world.tick(n);
            world.command_ends(n, false);
            world.now = world.now.after(TICK);
            prop_assert!(world.most_out <= allowed, "{} out, {allowed} allowed", world.most_out);
        }
        world.all_clear();
        for _ in 0..400 {
            for n in 0..NODES {
                world.tick(n);
                world.command_ends(n, true);
            }
            world.now = world.now.after(TICK);
        }
        for story in &world.nodes {
            let failed = story.incident.as_ref().is_some_and(|incident| incident.state == IncidentState::Failed);
            prop_assert!(story.incident.is_none(), "{failed} {:?} {:?} {:?}", story.incident, story.faults, story.commands);
            prop_assert!(story.node.mark.is_none());
        }
        prop_assert_eq!(world.out, 0);
        let before = world.commands_made;
        for n in 0..NODES {
            world.tick(n);
        }
        prop_assert_eq!(world.commands_made, before, "at rest nothing more is commanded");
    }
}
