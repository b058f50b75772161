//! Kills stores under load and looks for what they had acknowledged:
//! `crash --kayvee PROGRAM --disk FILE [--target T]... [--appendfsync WHEN] [--kills N] [--seed N]`.

use kayvee_testing::crash::{self, Plan};
use std::{
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

const USAGE: &str = "usage: crash --kayvee PROGRAM --disk FILE [--target T]...
             [--appendfsync WHEN] [--kills N] [--seed N]

Starts `kayvee run` on FILE, which is made anew, kills it under load, starts it again and so on;
with several targets they take turns on the same disk. A target is linux, tcg or kvm, and kvm/qemu
or kvm/kayvee with that monitor. Each time everything that was acknowledged
has to be there.";

fn main() -> ExitCode {
    let plan = match plan() {
        Ok(Some(plan)) => plan,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("crash: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", plan.seed);
    let what = format!("{} kills of {}", plan.kills, plan.targets.join(", "));
    match crash::run(&plan) {
        Ok(outcome) => {
            let crash::Outcome { acknowledged, beyond } = outcome;
            println!("ok {what}: {acknowledged} acknowledged units were there, and {beyond} that were under way");
            println!("{} passed, 0 failed", plan.kills);
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("FAILED {what}: {error}");
            println!("0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

fn plan() -> Result<Option<Plan>, String> {
    let mut plan = Plan {
        kayvee: "kayvee".into(),
        targets: Vec::new(),
        disk: std::env::temp_dir().join("kayvee-crash.disk"),
        size: "64M".into(),
        appendfsync: "always".into(),
        kills: 20,
        seed: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--kayvee" => plan.kayvee = value()?.into(),
            "--disk" => plan.disk = value()?.into(),
            "--target" => plan.targets.push(value()?),
            "--appendfsync" => plan.appendfsync = value()?,
            "--kills" => plan.kills = value()?.parse().map_err(|_| "--kills takes a number")?,
            "--seed" => plan.seed = value()?.parse().map_err(|_| "--seed takes a number")?,
            "--help" => return Ok(None),
            _ => return Err(format!("{word}?")),
        }
    }
    if plan.targets.is_empty() {
        plan.targets.push("linux".into());
    }
    Ok(Some(plan))
}
