//! The long form: `spec` of a FleetPolicy, key by key, over the defaults. What each key means is in `docs` and beside the
//! field that it sets; here is only how it is spelled and in which range.

use std::time::Duration;

use gpuheal_proto::{
    command::DeadlineOutcome,
    fault::FaultClass,
    limits::{AUTOMATION_BYTES_MAX, AUTOMATIONS_MAX, MARKER_BYTES_MAX, MARKERS_IGNORED_MAX},
    words::{ALERT_LABEL_MEANINGS, Level, Mode},
};

use crate::catalogue;

use super::{
    Condition, Detection, LevelOverride, Rule, Scope, Settings, Thermal,
    read::{Problems, Section},
    tree::Tree,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const DAY: u64 = 86_400;
/// GPUs shut down by themselves well below 150 °C; nothing sensible is below 20 °C.
const CELSIUS: std::ops::RangeInclusive<f64> = 20.0..=150.0;

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

/// Reads `spec` over the defaults.
pub(super) fn spec(mut spec: Section<'_>, problems: &mut Problems) -> (Settings, Vec<(String, Rule)>) {
    let mut settings = Settings::default();
    set(&mut settings.mode, spec.word("mode", Mode::ALL, problems));
    set(&mut settings.act_from, spec.word("actFrom", Level::ALL, problems));
    set(&mut settings.cooldown, spec.span("cooldown", secs(0)..=secs(7 * DAY), problems));
    if let Some(section) = spec.section("detection", problems) {
        detection(&mut settings.detection, section, problems);
    }
    if let Some(section) = spec.section("levels", problems) {
        levels(&mut settings, section, problems);
    }
    if let Some(section) = spec.section("corroboration", problems) {
        corroboration(&mut settings, section, problems);
    }
    if let Some(section) = spec.section("response", problems) {
        response(&mut settings, section, problems);
    }
    if let Some(section) = spec.section("windows", problems) {
        windows(&mut settings, section, problems);
    }
    limits(&mut settings, &mut spec, problems);
    set(&mut settings.automations, spec.short_texts("automations", (AUTOMATIONS_MAX, AUTOMATION_BYTES_MAX), problems));
    set(&mut settings.markers_ignored, spec.short_texts("markersIgnored", (MARKERS_IGNORED_MAX, MARKER_BYTES_MAX), problems));
    let rules = spec.section("rules", problems).map(|section| rules(section, problems)).unwrap_or_default();
    spec.close(problems);
    (settings, rules)
}

fn detection(detection: &mut Detection, mut section: Section<'_>, problems: &mut Problems) {
    set(&mut detection.scrape_interval, section.span("scrapeInterval", secs(1)..=secs(3600), problems));
    set(&mut detection.scrape_timeout, section.span("scrapeTimeout", secs(1)..=secs(300), problems));
    thermal(&mut detection.thermal, &mut section, problems);
    set(&mut detection.xid_errors, section.number("xidErrors", 1..=100_000, problems));
    set(&mut detection.xid_window, section.span("xidWindow", secs(10)..=secs(DAY), problems));
    set(&mut detection.gpu_lost_scrapes, section.number("gpuLostScrapes", 1..=1000, problems));
    set(&mut detection.stale_after_intervals, section.number("staleAfterIntervals", 1..=1000, problems));
    set(&mut detection.broken_after, section.span("brokenAfter", secs(10)..=secs(DAY), problems));
    set(&mut detection.allocatable_debounce, section.span("allocatableDebounce", secs(1)..=secs(DAY), problems));
    set(&mut detection.metric_aliases, section.labels("metricAliases", 256, problems));
    set(&mut detection.alert_labels, section.labels("alertLabels", 64, problems));
    for meaning in detection.alert_labels.values().filter(|meaning| !ALERT_LABEL_MEANINGS.contains(&meaning.as_str())) {
        let message = format!("{meaning:?} is nothing that a label says; known here: {}", ALERT_LABEL_MEANINGS.join(", "));
        problems.add(section.place_of("alertLabels"), &section.path_of("alertLabels"), message);
    }
    set(&mut detection.node_labels, section.texts("nodeLabels", 32, problems));
    if let Some(models) = section.section("models", problems) {
        for (key, tree, path) in models.entries() {
            let base = detection.thermal;
            if let Some(found) = model(base, tree, &path, problems) {
                detection.thermal_by_model.insert(key.text.clone(), found);
            }
        }
    }
    if let Some(conditions) = section.section("conditions", problems) {
        for (key, tree, path) in conditions.entries() {
            if let Some(found) = condition(tree, &path, problems) {
                detection.conditions.insert(key.text.clone(), found);
            }
        }
    }
    if let Some(mut sources) = section.section("sources", problems) {
        set(&mut detection.sources.scrape, sources.flag("scrape", problems));
        set(&mut detection.sources.webhook, sources.flag("webhook", problems));
        set(&mut detection.sources.conditions, sources.flag("conditions", problems));
        set(&mut detection.sources.allocatable, sources.flag("allocatable", problems));
        sources.close(problems);
    }
    section.close(problems);
}

fn thermal(thermal: &mut Thermal, section: &mut Section<'_>, problems: &mut Problems) {
    set(&mut thermal.high_celsius, section.real("gpuTempHigh", CELSIUS, problems));
    set(&mut thermal.warn_celsius, section.real("gpuTempWarn", CELSIUS, problems));
    set(&mut thermal.dwell, section.span("temperatureDwell", secs(1)..=secs(DAY), problems));
    if thermal.warn_celsius > thermal.high_celsius {
        let name = if section.has("gpuTempWarn") { "gpuTempWarn" } else { "gpuTempHigh" };
        let message = format!("gpuTempWarn {} is above gpuTempHigh {}", thermal.warn_celsius, thermal.high_celsius);
        problems.add(section.place_of(name), &section.path_of(name), message);
    }
}

fn model(base: Thermal, tree: &Tree, path: &str, problems: &mut Problems) -> Option<Thermal> {
    let mut section = Section::open(tree, path, problems)?;
    let mut found = base;
    thermal(&mut found, &mut section, problems);
    section.close(problems);
    Some(found)
}

fn condition(tree: &Tree, path: &str, problems: &mut Problems) -> Option<Condition> {
    let mut section = Section::open(tree, path, problems)?;
    let bad_status = section.word("badStatus", &["True", "False"], problems).unwrap_or("True").to_owned();
    let hold = section.span("hold", secs(1)..=secs(DAY), problems).unwrap_or(secs(60));
    section.close(problems);
    Some(Condition { bad_status, hold })
}

/// A fault's name as rules and levels spell it: `xid/79`, `thermal`.
fn fault_name(name: &str) -> bool {
    let class = name.split_once('/').map_or(name, |(class, _)| class);
    FaultClass::parse(class).is_some()
}

fn classes() -> String {
    FaultClass::ALL.iter().map(|class| class.as_str()).collect::<Vec<_>>().join(", ")
}

fn levels(settings: &mut Settings, section: Section<'_>, problems: &mut Problems) {
    for (key, tree, path) in section.entries() {
        if !fault_name(&key.text) {
            problems.add(key.place, &path, format!("not a fault: class or class/code, with a class of {}", classes()));
        }
        let Some(mut section) = Section::open(tree, &path, problems) else { continue };
        let level = section.word("level", Level::ALL, problems);
        let user_app = section.flag("userApp", problems);
        let app = key.text.strip_prefix("xid/").and_then(catalogue::xid).is_some_and(|xid| xid.user_app);
        if app && level > Some(Level::P2) && user_app.is_none() {
            let message = "the application's own error: say userApp: false too, or it will never quarantine";
            problems.add(section.place, &path, message);
        }
        section.close(problems);
        settings.levels.insert(key.text.clone(), LevelOverride { level, user_app });
    }
}

fn corroboration(settings: &mut Settings, mut section: Section<'_>, problems: &mut Problems) {
    let corroboration = &mut settings.corroboration;
    set(&mut corroboration.within, section.span("within", secs(0)..=secs(DAY), problems));
    set(&mut corroboration.trusted_conditions, section.texts("trustedConditions", 128, problems));
    set(&mut corroboration.trusted_alerts, section.texts("trustedAlerts", 128, problems));
    section.close(problems);
}

fn response(settings: &mut Settings, mut section: Section<'_>, problems: &mut Problems) {
    let response = &mut settings.response;
    set(&mut response.notify, section.flag("notify", problems));
    set(&mut response.taint, section.flag("taint", problems));
    set(&mut response.cordon, section.flag("cordon", problems));
    set(&mut response.evict, section.flag("evict", problems));
    if let Some(mut section) = section.section("drain", problems) {
        let drain = &mut response.drain;
        set(&mut drain.grace_max, section.span("graceMax", secs(1)..=secs(12 * 3600), problems));
        // A command lives 24 h at most, and the drain has to end inside it.
        set(&mut drain.deadline, section.span("deadline", secs(60)..=secs(20 * 3600), problems));
        set(&mut drain.on_deadline, section.word("onDeadline", DeadlineOutcome::ALL, problems));
        set(&mut drain.allow_pdb_bypass, section.flag("allowPdbBypass", problems));
        set(&mut drain.include_stateful, section.flag("includeStateful", problems));
        section.refuse("resourcePrefixes", "what counts as a GPU is told to each cluster's spoke: --gpu-resource", problems);
        // Kept for evictions that a person asks for by hand: a drain by itself stops at its deadline instead.
        if drain.on_deadline == DeadlineOutcome::BypassPdb && !drain.allow_pdb_bypass {
            let path = section.path_of("onDeadline");
            problems.add(section.place_of("onDeadline"), &path, "bypass-pdb needs allowPdbBypass: true beside it");
        }
        section.close(problems);
    }
    section.close(problems);
}

fn windows(settings: &mut Settings, mut section: Section<'_>, problems: &mut Problems) {
    let windows = &mut settings.windows;
    set(&mut windows.observation, section.span("observation", secs(0)..=secs(7 * DAY), problems));
    set(&mut windows.merge, section.span("merge", secs(0)..=secs(DAY), problems));
    set(&mut windows.node_youth, section.span("nodeYouth", secs(0)..=secs(DAY), problems));
    section.close(problems);
}

/// What bounds the policy: attempts, budgets, rates, the breaker, and what a release needs.
fn limits(settings: &mut Settings, spec: &mut Section<'_>, problems: &mut Problems) {
    if let Some(mut section) = spec.section("attempts", problems) {
        set(&mut settings.attempts.max, section.number("max", 1..=1000, problems));
        set(&mut settings.attempts.window, section.span("window", secs(60)..=secs(30 * DAY), problems));
        section.close(problems);
    }
    if let Some(mut section) = spec.section("budgets", problems) {
        for (name, budget) in [("fleet", &mut settings.budgets.fleet), ("cluster", &mut settings.budgets.cluster)] {
            let Some(mut section) = section.section(name, problems) else { continue };
            set(&mut budget.percent, section.number("percent", 0..=100, problems));
            budget.nodes = section.number("nodes", 0..=1_000_000, problems).or(budget.nodes);
            section.close(problems);
        }
        section.close(problems);
    }
    if let Some(mut section) = spec.section("rates", problems) {
        for (name, rate) in [("fleet", &mut settings.rates.fleet), ("cluster", &mut settings.rates.cluster)] {
            let Some(mut section) = section.section(name, problems) else { continue };
            let rate_of = section.real("nodesPerSecond", 0.0..=10_000.0, problems);
            // Inside the range by now: 10,000 nodes are 10^7 thousandths.
            set(&mut rate.milli_nodes_per_second, rate_of.map(|nodes| (nodes * 1000.0).round() as u64));
            section.close(problems);
        }
        section.close(problems);
    }
    if let Some(mut section) = spec.section("breaker", problems) {
        set(&mut settings.breaker.percent, section.number("percent", 0..=100, problems));
        set(&mut settings.breaker.nodes_min, section.number("nodesMin", 1..=1_000_000, problems));
        set(&mut settings.breaker.window, section.span("window", secs(60)..=secs(DAY), problems));
        section.close(problems);
    }
    if let Some(mut section) = spec.section("recovery", problems) {
        set(&mut settings.recovery.soak, section.span("soak", secs(0)..=secs(7 * DAY), problems));
        set(&mut settings.recovery.row_count, section.flag("rowCount", problems));
        set(&mut settings.recovery.automatic, section.flag("automatic", problems));
        section.close(problems);
    }
}

/// Rules in one policy: each is looked at for each fault.
const RULES_MAX: usize = 256;

fn rules(section: Section<'_>, problems: &mut Problems) -> Vec<(String, Rule)> {
    let (place, path) = (section.place, section.path.clone());
    let entries = section.entries();
    if entries.len() > RULES_MAX {
        problems.add(place, &path, format!("{} rules, {RULES_MAX} are allowed", entries.len()));
        return Vec::new();
    }
    entries.into_iter().filter_map(|(key, tree, path)| Some((key.text.clone(), rule(tree, &path, problems)?))).collect()
}

fn rule(tree: &Tree, path: &str, problems: &mut Problems) -> Option<Rule> {
    let mut section = Section::open(tree, path, problems)?;
    let scope = section.section("scope", problems).map(|section| scope(section, problems)).unwrap_or_default();
    let faults = section.texts("faults", 256, problems).unwrap_or_default();
    for name in faults.iter().filter(|name| !fault_name(name)) {
        let message = format!("{name:?} is not a fault: class or class/code, with a class of {}", classes());
        problems.add(section.place_of("faults"), &section.path_of("faults"), message);
    }
    let priority = section.number("priority", 0..=1_000_000, problems).unwrap_or(0);
    let rule = Rule {
        scope,
        faults,
        priority: i32::try_from(priority).unwrap_or(i32::MAX),
        mode: section.word("mode", Mode::ALL, problems),
        act_from: section.word("actFrom", Level::ALL, problems),
        level: section.word("level", Level::ALL, problems),
    };
    if !section.has("mode") && !section.has("actFrom") && !section.has("level") {
        problems.add(section.place, path, "a rule says at least one of mode, actFrom, level");
    }
    section.close(problems);
    Some(rule)
}

fn scope(mut section: Section<'_>, problems: &mut Problems) -> Scope {
    section.refuse("clusterLabels", "clusters carry no labels yet: name them by their ids under clusters", problems);
    let scope = Scope {
        clusters: section.texts("clusters", 1024, problems).unwrap_or_default(),
        node_labels: section.labels("nodeLabels", 64, problems).unwrap_or_default(),
        gpu_models: section.texts("gpuModels", 64, problems).unwrap_or_default(),
    };
    section.close(problems);
    scope
}
