//! What the denial classifier costs: collecting evidence from a stream, and judging recorded runs.
//!
//! Rule: with `COFFERDAM_CORPUS` set to a corpus it also prints the score, so that speed and truth are
//! read together.

// A bench talks to the person who runs it.
#![allow(clippy::print_stderr)]

use std::fs;
use std::hint::black_box;

use cofferdam::denial::{Collector, corpus};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn collect(criterion: &mut Criterion) {
    let lines: String = (0..40_000)
        .map(|n| format!("[{n}/40000] Building C object src/part{n}.c.o\n"))
        .collect();
    let mut group = criterion.benchmark_group("collect");
    group.throughput(Throughput::Bytes(lines.len() as u64));
    group.bench_function("build log", |bencher| {
        bencher.iter(|| {
            let mut collector = Collector::new();
            for chunk in lines.as_bytes().chunks(8192) {
                collector.feed(black_box(chunk));
            }
            collector.finish()
        });
    });
    group.finish();
}

fn judge(criterion: &mut Criterion) {
    let Some(text) = std::env::var_os("COFFERDAM_CORPUS").and_then(|path| fs::read(path).ok())
    else {
        return;
    };
    match corpus::score(&text[..], |_| ()) {
        Ok(report) => eprintln!("{}", report.text()),
        Err(error) => eprintln!("{error}"),
    }
    criterion.bench_function("judge the corpus", |bencher| {
        bencher
            .iter(|| corpus::score(black_box(&text[..]), |_| ()).map(|report| report.sets.len()));
    });
}

criterion_group!(benches, collect, judge);
criterion_main!(benches);
