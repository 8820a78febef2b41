//! What hubs decide and send, in words for the trace.

use gpuheal_proto::link::v1;

use super::World;

impl World {
    /// Decisions in the words of the audit.
    pub(super) fn say_decisions(&mut self) {
        if !self.trace.told() {
            return;
        }
        for (chain, entries) in &self.db.audit {
            let told = self.audit_told.entry(chain.clone()).or_default();
            *told = (*told).min(entries.len());
            for entry in &entries[*told..] {
                let body: serde_json::Value = serde_json::from_str(&entry.fact.body).unwrap_or_default();
                let (from, to, why) = (&body["from"], &body["to"], &body["reasons"][0]);
                let words = match entry.fact.kind.as_str() {
                    "decision" => format!("hub decides about {chain} {}: {from} to {to}, {why}", entry.fact.subject),
                    "command_reported" | "command_corrected" | "command_lapsed" => {
                        format!("hub notes of {chain} {}: {from} to {to}", entry.fact.subject)
                    }
                    "term_raised" => format!("hub raises the term for {chain}"),
                    _ => continue,
                };
                self.trace.say(self.now, || words);
            }
            *told = entries.len();
        }
    }

    pub(super) fn say_down(&mut self, hub: usize, conn: u64, message: &v1::attach_response::Message) {
        use v1::attach_response::Message as Down;
        let Some(place) = self.conns.get(&conn).map(|conn| conn.place) else { return };
        match message {
            Down::Command(_) => self.say(|| format!("hub-{hub} sends a command to {}", Self::name(place))),
            Down::Cancel(_) => self.say(|| format!("hub-{hub} sends a cancellation to {}", Self::name(place))),
            Down::Resync(_) => self.say(|| format!("hub-{hub} asks {} for everything", Self::name(place))),
            Down::Goaway(goaway) => self.say(|| format!("hub-{hub} sends {} away: {}", Self::name(place), goaway.reason)),
            _ => {}
        }
    }
}
