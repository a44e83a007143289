//! Judges the statement in a file: `cargo run --example referee -- FILE`.
//!
//! Prints the ruling. Exit code 0: both claims are right; 1: at least one is wrong; 2: the file is
//! no statement that can be judged.

use std::process::ExitCode;

use vtrain_core::referee::{Ruling, judge};

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: referee FILE");
        return ExitCode::from(2);
    };
    let statement = match std::fs::read(&file) {
        Ok(statement) => statement,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    match judge(&statement) {
        Ok(ruling) => {
            print(&ruling);
            ExitCode::from(u8::from(ruling.right != [true, true]))
        }
        Err(refusal) => {
            eprintln!("refused: {refusal}");
            ExitCode::from(2)
        }
    }
}

fn print(ruling: &Ruling) {
    let after: String = ruling
        .after
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("{}", ruling.what);
    println!("after   {}", if after.is_empty() { "none" } else { &after });
    for (side, right) in ruling.right.iter().enumerate() {
        println!("claim {side} {}", if *right { "right" } else { "wrong" });
    }
}
