//! A picture of the chosen experts that were in memory: layers down, tokens across, and in each cell a bar with a part for the
//! experts in memory, one for the experts read ahead on a guess, and one for the experts that had to be read. Readable on light
//! and dark pages.

use std::fmt::Write;

use alight_model::Found;

use super::super::svg::{escaped, text};

/// Maximum number of tokens shown, the last ones.
const MAX_TOKENS: usize = 128;
const WIDTH: f64 = 760.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 748.0;

/// The colours also differ in lightness, so readers who cannot distinguish colours can still tell the parts of a bar apart.
const STYLE: &str = "\
text { font: 12px system-ui, sans-serif; fill: #222 }
.ground { fill: #fff }
.title { font-weight: 600; font-size: 14px }
.small { fill: #666 }
.hit { fill: #cfe8da } .guess { fill: #3b82c4 } .miss { fill: #a83a1e }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .ground { fill: #1b1e23 } .small { fill: #aaa }
  .hit { fill: #26463a } .guess { fill: #5aa2e0 } .miss { fill: #ff8f6b }
}
";

/// A count of experts in a cell.
type Count = fn(&Found) -> u32;

/// Draws `found`, one visit of a layer after another, for a model with this name and this memory. `None`: there is nothing to
/// draw, since all experts are in memory.
pub(super) fn draw(
    found: impl Iterator<Item = (usize, Found)>,
    name: &str,
    memory: &str,
) -> Option<String> {
    let mut tokens: Vec<Vec<Found>> = Vec::new();
    let (mut layers, mut before) = (0, usize::MAX);
    for (layer, cell) in found {
        if before == usize::MAX || layer <= before {
            tokens.push(Vec::new());
        }
        before = layer;
        layers = layers.max(layer + 1);
        let cells = tokens.last_mut()?;
        cells.resize(layer + 1, Found::default());
        cells[layer] = cell;
    }
    let first = tokens.len().saturating_sub(MAX_TOKENS);
    let shown = &tokens[first..];
    let cells = || shown.iter().flatten();
    let sum = |part: Count| cells().map(part).sum::<u32>();
    let all = sum(|cell| cell.wanted);
    let tall = cells().map(|cell| cell.wanted).max().filter(|tall| *tall > 0)?;
    let percent = |part: u32| format!("{:.0} %", 100.0 * f64::from(part) / f64::from(all));
    let (guessed, missed) = (sum(|cell| cell.guessed), sum(Found::missed));
    let counts = [
        ("hit", "in memory", all - guessed - missed),
        ("guess", "read ahead on a guess", guessed),
        ("miss", "read when chosen", missed),
    ];
    let title = format!("Experts of {name} with {memory} of memory");
    let said: Vec<_> =
        counts.iter().map(|(_, what, part)| format!("{} {what}", percent(*part))).collect();
    let about = format!(
        "{layers} layers with experts, tokens {} to {}. Of the experts that they chose: {}.",
        first + 1,
        tokens.len(),
        said.join(", ")
    );
    let mut body =
        format!("<rect class=\"ground\" width=\"{WIDTH}\" height=\"HEIGHT\" rx=\"6\"/>\n");
    text(&mut body, 12.0, 24.0, "title", "start", &title);
    let mut x = 12.0;
    for ((class, ..), said) in counts.iter().zip(&said) {
        let _ = writeln!(
            body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"35\" width=\"10\" height=\"10\"/>"
        );
        text(&mut body, x + 15.0, 44.0, "", "start", said);
        x += 40.0 + 6.5 * said.len() as f64;
    }
    // A cell is high enough to distinguish its experts, in whole pixels, while the picture is no longer than a page.
    let top = 60.0;
    let each = (360.0 / (layers as f64 * f64::from(tall + 1))).floor().clamp(1.0, 3.0);
    let (wide, high) = ((RIGHT - LEFT) / shown.len() as f64, each * f64::from(tall + 1));
    // Units of a token and of an expert, so that coordinates are short; one unit stays free between layers.
    let _ = writeln!(
        body,
        "<g transform=\"translate({LEFT} {top}) scale({wide:.4} {each})\" shape-rendering=\"crispEdges\">"
    );
    // All from the bottom of the cell, each painted over the one before: resident experts, then guessed ones, then those that had
    // to be read.
    let heights: [(&str, Count); 3] = [
        ("hit", |cell| cell.wanted),
        ("guess", |cell| cell.guessed + cell.missed()),
        ("miss", Found::missed),
    ];
    for (class, height) in heights {
        let mut path = String::new();
        for layer in 0..layers {
            let bottom = layer as u32 * (tall + 1) + tall;
            let of = |cells: &Vec<Found>| cells.get(layer).map_or(0, height);
            let mut token = 0;
            // Adjacent bars of the same height are one piece.
            while let Some(cells) = shown.get(token) {
                let high = of(cells);
                let run = shown[token..].iter().take_while(|cells| of(cells) == high).count();
                if high > 0 {
                    let _ = write!(path, "M{token} {}h{run}v{high}h-{run}z", bottom - high);
                }
                token += run;
            }
        }
        if !path.is_empty() {
            let _ = writeln!(body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }
    body += "</g>\n";
    let bottom = top + high * layers as f64;
    let middle = |layer: usize| top + high * layer as f64 + (high - each) / 2.0 + 4.0;
    text(&mut body, LEFT - 6.0, middle(0), "small", "end", "0");
    if layers > 1 {
        text(&mut body, LEFT - 6.0, middle(layers - 1), "small", "end", &(layers - 1).to_string());
    }
    if layers > 4 {
        text(&mut body, LEFT - 6.0, middle(layers / 2), "small", "end", "layer");
    }
    text(&mut body, LEFT, bottom + 16.0, "small", "start", &format!("token {}", first + 1));
    text(&mut body, RIGHT, bottom + 16.0, "small", "end", &tokens.len().to_string());
    let height = format!("{:.0}", bottom + 28.0);
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"title desc\">\n<title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n<style>\n{STYLE}</style>\n{}</svg>\n",
        escaped(&title),
        escaped(&about),
        body.replace("HEIGHT", &height),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(wanted: u32, hits: u32, guessed: u32) -> Found {
        let mut found = Found::default();
        (found.wanted, found.hits, found.guessed) = (wanted, hits, guessed);
        found
    }

    #[test]
    fn each_layer_of_each_token_has_its_place() {
        // Two tokens of two layers; of 4 experts that the second layer chooses for the second token, one is guessed and two are
        // missing.
        let visits = [found(4, 4, 0), found(4, 4, 0), found(4, 4, 0), found(4, 1, 1)];
        let layers = [0, 1, 0, 1].into_iter().zip(visits);
        let svg = draw(layers, "a<b>&c.gguf", "4.00 GB").unwrap();
        assert!(svg.contains("a&lt;b&gt;&amp;c.gguf") && !svg.contains("a<b>"), "{svg}");
        assert!(svg.contains("prefers-color-scheme: dark"));
        assert!(svg.contains("2 layers with experts, tokens 1 to 2"), "{svg}");
        assert!(svg.contains("81 % in memory, 6 % read ahead on a guess, 12 % read when chosen"));
        // Equal bars are one piece; bars start at the bottom of their layer.
        assert!(svg.contains("<path class=\"hit\" d=\"M0 0h2v4h-2zM0 5h2v4h-2z\"/>"), "{svg}");
        assert!(svg.contains("<path class=\"guess\" d=\"M1 6h1v3h-1z\"/>"), "{svg}");
        assert!(svg.contains("<path class=\"miss\" d=\"M1 7h1v2h-1z\"/>"), "{svg}");
    }

    #[test]
    fn the_last_tokens_are_shown_and_nothing_is_no_picture() {
        let visits = (0..300).map(|i| (i % 3, found(2, 2 - (i % 2) as u32, 0)));
        assert!(
            draw(visits.clone(), "m", "1 GB").is_some_and(|svg| svg.contains("tokens 1 to 100"))
        );
        let many = visits.clone().chain(visits.clone()).chain(visits);
        assert!(draw(many, "m", "1 GB").is_some_and(|svg| svg.contains("tokens 173 to 300")));
        assert!(draw(std::iter::empty(), "m", "1 GB").is_none());
    }
}
