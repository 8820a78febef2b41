//! Random walks: whatever is done in whatever order, both stores answer alike and hold the same.

use gpuheal_proto::{
    fault::{Onset, Witness},
    link::v1::{self, CommandState as Wire, EvidenceState},
};
use gpuheal_sim::chance::Chance;

use crate::{
    fixtures::{HEAL, batch, c1, done, evidence, fault, hello, marked, node, snapshot, status, xid79},
    pair::Pair,
};

const WALKS: u64 = 6;
const STEPS: u32 = 40;

#[test]
fn a_random_walk_leaves_both_stores_alike() {
    for seed in 1..=WALKS {
        walk(seed);
    }
}

fn walk(seed: u64) {
    let mut chance = Chance::new(seed);
    let mut pair = Pair::new();
    pair.policy(HEAL);
    let (mut owner, ..) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
    let (mut seq, mut state_seq) = (1, 1);
    pair.state(&c1(), 1, 1, snapshot((0..8).map(node).collect()));
    for step in 0..STEPS {
        let n = u32::try_from(chance.below(8)).unwrap();
        let cmd = 1 + chance.below(6);
        let what = chance.below(12);
        match what {
            0..=2 => {
                let fault = match chance.below(3) {
                    0 => xid79(n, i64::from(step) * 1000),
                    1 => fault(n, "94", Onset::Standing, Witness::ExporterGauge, 5),
                    _ => fault(n, "94", Onset::Edge, Witness::Alert, i64::from(step) * 1000),
                };
                seq = pair.faults(&owner, &batch("s", seq, &[fault])).unwrap() + 1;
            }
            3 => {
                let (next, _, acked) = pair.attach(&hello("spoke-0", &["s"])).unwrap();
                owner = next;
                seq = acked.first().map_or(0, |(_, upto)| *upto) + 1;
            }
            4 | 5 => pair.decide(),
            6 => {
                pair.deliver(&owner, 1);
                pair.unheard(&owner, 1);
            }
            7 => {
                state_seq += 1;
                let nodes = (0..8).map(|at| if at == n && chance.once_in(2) { marked(at, 1) } else { node(at) }).collect();
                pair.state(&c1(), 1, state_seq, snapshot(nodes));
            }
            8 => {
                let state = *chance.pick(&[EvidenceState::Clear, EvidenceState::Seen, EvidenceState::Stale]);
                pair.evidence(&c1(), &[evidence(&xid79(n, 0), state)]);
            }
            9 => {
                let word = *chance.pick(&[Wire::Received, Wire::Started, Wire::Refused, Wire::Failed, Wire::Cancelled]);
                let refusal = if word == Wire::Refused { v1::RefusalCode::OverCeiling } else { v1::RefusalCode::Unspecified };
                pair.settle(&c1(), cmd, &v1::CommandStatus { refusal: refusal.into(), ..status(1 + chance.below(4), word) });
            }
            10 => drop(pair.settle(&c1(), cmd, &done(1 + chance.below(6), &["notify", "mark", "drain"]))),
            _ => {
                pair.elapse(*chance.pick(&[7, 40, 130, 400, 1300]));
                pair.sweep();
            }
        }
        pair.holds(&format!("step {step} ({what}) of walk {seed}"));
    }
}
