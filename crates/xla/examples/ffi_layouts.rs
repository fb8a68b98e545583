//! Prints the layout of every struct of the interface, for `tests/compare_header.py`.

fn main() {
    for (name, size, fields) in alight_xla::api::layouts() {
        let fields: Vec<_> = fields.iter().map(|(field, at)| format!("{field}={at}")).collect();
        println!("{name} {size} {}", fields.join(" "));
    }
}
