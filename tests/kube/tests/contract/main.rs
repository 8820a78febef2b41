//! What we rely on Kubernetes for, claim by claim, proved on Kubernetes itself and on kubesim.
//! Run by `cargo test`; a word as argument runs the claims whose name holds it. KUBE=off leaves out
//! Kubernetes itself, and the end then says what was not proved.

mod crd;
mod events;
mod evictions;
mod kubectl;
mod leases;
mod lists;
mod patches;
mod pods;
mod record;
mod scheduling;
mod server_side_apply;
mod watches;
mod world;

fn main() -> std::process::ExitCode {
    testkube::claims::run(
        [
            patches::claims(),
            lists::claims(),
            watches::claims(),
            pods::claims(),
            evictions::claims(),
            scheduling::claims(),
            leases::claims(),
            crd::claims(),
            events::claims(),
            server_side_apply::claims(),
            kubectl::claims(),
            record::claims(),
        ]
        .concat(),
    )
}
