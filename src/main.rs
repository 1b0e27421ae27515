//! The program.

fn main() {
    cofferdam::cell_main();
}
