//! The program.

fn main() {
    cofferdam::cell_main();
    let mut args = std::env::args().skip(1);
    let text = args.next().unwrap();
    cofferdam::try_cell::go(&text, args.next().map_or(1, |n| n.parse().unwrap()));
}
