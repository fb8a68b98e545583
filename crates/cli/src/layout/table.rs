//! Tables for people, as wide as their cells.

use super::width;

/// The marks between the cells of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Two blanks between columns.
    Plain,
    /// A table in Markdown.
    Markdown,
}

/// Rows of cells below a head.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// The number of first columns that are names, aligned to the left; numbers are aligned to the right.
    names: usize,
    style: Style,
}

impl Table {
    /// Creates a table without rows, whose first `names` columns are aligned to the left.
    pub fn new<const N: usize>(head: [&str; N], names: usize, style: Style) -> Table {
        Table { rows: vec![head.map(str::to_owned).into()], names, style }
    }

    /// Adds a row, which has as many cells as the head.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len());
        self.rows.push(cells.into());
    }

    /// Returns the table. Columns that do not fit into `columns` follow below the others, each time after the first column again, so that
    /// nothing is left out.
    pub fn text(&self, columns: Option<usize>) -> String {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|i| self.rows.iter().map(|row| width(&row[i])).max().unwrap_or(0))
            .collect();
        let blocks = self.blocks(&widths, columns.unwrap_or(usize::MAX));
        let texts: Vec<String> = blocks.iter().map(|shown| self.block(shown, &widths)).collect();
        texts.join("\n")
    }

    /// Returns the columns of each block.
    fn blocks(&self, widths: &[usize], columns: usize) -> Vec<Vec<usize>> {
        let (edge, gap) = match self.style {
            Style::Plain => (0, 2),
            Style::Markdown => (2, 3),
        };
        let first = widths[0] + gap + edge;
        let (mut blocks, mut used) = (vec![vec![0]], first);
        for (i, width) in widths.iter().enumerate().skip(1) {
            let fits = used.saturating_add(width + edge) <= columns;
            match blocks.last_mut() {
                // A block has at least one column after the first.
                Some(block) if fits || block.len() == 1 => block.push(i),
                _ => {
                    blocks.push(vec![0, i]);
                    used = first;
                }
            }
            used += width + gap;
        }
        blocks
    }

    fn block(&self, shown: &[usize], widths: &[usize]) -> String {
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> =
                shown.iter().map(|&i| self.padded(&row[i], i, widths[i])).collect();
            text += &self.line(&cells);
            if at == 0 && self.style == Style::Markdown {
                let rules: Vec<String> = shown.iter().map(|&i| self.rule(i, widths[i])).collect();
                text += &self.line(&rules);
            }
        }
        text
    }

    fn line(&self, cells: &[String]) -> String {
        match self.style {
            Style::Plain => format!("{}\n", cells.join("  ").trim_end()),
            Style::Markdown => format!("| {} |\n", cells.join(" | ")),
        }
    }

    fn padded(&self, cell: &str, column: usize, columns: usize) -> String {
        let blanks = " ".repeat(columns - width(cell));
        if column < self.names { format!("{cell}{blanks}") } else { format!("{blanks}{cell}") }
    }

    /// The line below the head, which says how the column is aligned.
    fn rule(&self, column: usize, columns: usize) -> String {
        match column < self.names {
            true => "-".repeat(columns),
            false => format!("{}:", "-".repeat(columns.saturating_sub(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(style: Style) -> Table {
        let mut table = Table::new(["name", "wall", "cpu"], 1, style);
        table.row(["open".to_owned(), "1.5 ms".to_owned(), "10 ms".to_owned()]);
        table.row(["日本é".to_owned(), "2 s".to_owned(), "?".to_owned()]);
        table
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        assert_eq!(
            some(Style::Plain).text(None),
            "name     wall    cpu\nopen   1.5 ms  10 ms\n日本é     2 s      ?\n"
        );
        assert_eq!(
            some(Style::Markdown).text(Some(27)),
            "| name  |   wall |   cpu |\n| ----- | -----: | ----: |\n| open  | 1.5 ms | 10 ms |\n| 日本é |    2 s |     ? |\n"
        );
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let below = "name     wall\nopen   1.5 ms\n日本é     2 s\n\nname     cpu\nopen   10 ms\n日本é      ?\n";
        assert_eq!(some(Style::Plain).text(Some(19)), below);
        assert_eq!(some(Style::Plain).text(Some(1)), below);
        assert_eq!(some(Style::Plain).text(Some(20)), some(Style::Plain).text(None));
        let markdown = some(Style::Markdown);
        let widest = |columns| markdown.text(Some(columns)).lines().map(width).max();
        assert_eq!([widest(26), widest(25)], [Some(26), Some(18)]);
    }
}
