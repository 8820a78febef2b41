//! The executor against a Kubernetes API over real HTTPS: what is written, in which order, and what is not. Each claim has
//! its own spoke (elector, watches and hand as they ship, without link and detectors), which acts as the account that ships
//! with it and under the admission policies that do, and is proved twice: on kubesim, and on Kubernetes itself. A word as argument runs the claims whose name holds it. KUBE=off leaves out Kubernetes itself, and
//! the end then says what was not proved.

#![expect(clippy::unwrap_used, reason = "a test may fail by it")]

mod account;
mod ceiling;
mod dates;
mod doctor;
mod drain;
mod healaction;
mod hub;
mod machines;
mod others;
mod overridden;
mod program;
mod quarantine;
mod refuse;
mod release;
mod replica;
mod restart;
mod resume;
mod rights;
mod takeover;
mod unheard;
mod wire;
mod world;

fn main() -> std::process::ExitCode {
    testkube::claims::run(
        [
            // First, since one of them waits for a Lease to run out.
            resume::claims(),
            quarantine::claims(),
            drain::claims(),
            refuse::claims(),
            release::claims(),
            overridden::claims(),
            others::claims(),
            unheard::claims(),
            ceiling::claims(),
            machines::claims(),
            restart::claims(),
            healaction::claims(),
            takeover::claims(),
            dates::claims(),
            rights::claims(),
            rights::never::claims(),
            doctor::claims(),
        ]
        .concat(),
    )
}
