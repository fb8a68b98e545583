//! The two factors of a change of low rank, as a matrix of the base that is known by its factors: what the converter does to the rows of
//! a matrix it does here to the rows of the left factor, what it does to columns to the columns of the right one, and a transposed
//! matrix has both exchanged and transposed.

use super::super::tensor::Place;

/// Matrices of one shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stack {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// `[count, rows, columns]`
    pub(super) values: Vec<f32>,
}

/// A stack of matrices, each the product of two.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Factors {
    /// `[count][rows, rank]`
    pub(super) left: Stack,
    /// `[count][rank, columns]`
    pub(super) right: Stack,
}

impl Stack {
    /// One matrix.
    pub(super) fn matrix(rows: usize, columns: usize, values: Vec<f32>) -> Stack {
        Stack { count: 1, rows, columns, values }
    }

    /// Makes a stack of other extents; `from` says where an element comes from: matrix, row, column.
    fn gathered(
        &self,
        (count, rows, columns): (usize, usize, usize),
        from: impl Fn(usize, usize, usize) -> (usize, usize, usize),
    ) -> Stack {
        let mut values = Vec::with_capacity(count * rows * columns);
        for matrix in 0..count {
            for row in 0..rows {
                for column in 0..columns {
                    let (matrix, row, column) = from(matrix, row, column);
                    values.push(self.values[(matrix * self.rows + row) * self.columns + column]);
                }
            }
        }
        Stack { count, rows, columns, values }
    }

    /// Each matrix transposed.
    pub(super) fn transposed(&self) -> Stack {
        self.gathered((self.count, self.columns, self.rows), |m, row, column| (m, column, row))
    }

    /// Reads the rows of one matrix as those of `count` matrices, one after the other.
    pub(super) fn by_rows(self, count: usize) -> Stack {
        Stack { count, rows: self.rows / count.max(1), ..self }
    }

    /// Reads the columns of one matrix as those of `count` matrices, which take turns.
    pub(super) fn by_columns(&self, count: usize) -> Stack {
        let columns = self.columns / count.max(1);
        self.gathered((count, self.rows, columns), |m, row, column| (0, row, column * count + m))
    }

    /// Multiplies all elements.
    pub(super) fn scale(&mut self, by: f64) {
        if by != 1.0 {
            self.values.iter_mut().for_each(|value| *value = (f64::from(*value) * by) as f32);
        }
    }

    /// Adds columns of zeros up to this number.
    fn padded_columns(&self, columns: usize) -> Stack {
        let mut values = Vec::with_capacity(self.count * self.rows * columns);
        for row in self.values.chunks_exact(self.columns.max(1)) {
            values.extend_from_slice(row);
            values.resize(values.len() + columns - self.columns, 0.0);
        }
        Stack { columns, values, ..*self }
    }

    /// Puts the rows of each matrix where the converter puts those of the base: the halves of each of `heads` heads alternate, and only some
    /// rows are taken.
    ///
    /// # Errors
    /// They cannot be divided so.
    pub(super) fn placed_rows(self, heads: Option<u64>, place: &Place) -> Result<Stack, String> {
        let stack = match heads {
            None => self,
            Some(heads) => {
                let head = self.rows / heads.max(1) as usize;
                if head == 0 || head * heads as usize != self.rows || !head.is_multiple_of(2) {
                    return Err(format!("{} rows are not those of {heads} heads", self.rows));
                }
                // Row 2j + k of a head comes from row k · head/2 + j.
                self.gathered((self.count, self.rows, self.columns), |m, row, column| {
                    let (start, inside) = (row / head * head, row % head);
                    (m, start + inside % 2 * (head / 2) + inside / 2, column)
                })
            }
        };
        let part = |part: u64, of: u64| {
            let rows = stack.rows / of.max(1) as usize;
            let first = rows * part as usize;
            stack.gathered((stack.count, rows, stack.columns), |m, row, column| {
                (m, first + row, column)
            })
        };
        Ok(match place {
            Place::Half(half) => part(*half, 2),
            Place::Turned { part: number, of } => part(*number, *of),
            Place::Blocks { first, step } => {
                let (first, step) = (*first as usize, *step as usize);
                let rows = stack.rows / step.max(1);
                stack.gathered((stack.count, rows, stack.columns), |m, row, column| {
                    (m, first + row * step, column)
                })
            }
            Place::Rows(runs) => {
                let rows = rows_of(runs, stack.rows)?;
                stack.gathered((stack.count, rows.len(), stack.columns), |m, row, column| {
                    (m, rows[row], column)
                })
            }
            _ => stack,
        })
    }
}

/// Returns the numbers in runs (first, count), which have to be below `limit`.
fn rows_of(runs: &[(u64, u64)], limit: usize) -> Result<Vec<usize>, String> {
    let fits = |(first, count): &(u64, u64)| {
        first.checked_add(*count).is_some_and(|end| end <= limit as u64)
    };
    if !runs.iter().all(fits) {
        return Err(format!("there are only {limit} rows or columns"));
    }
    Ok(runs.iter().flat_map(|(first, count)| *first as usize..(first + count) as usize).collect())
}

impl Factors {
    /// The rank.
    pub(super) fn rank(&self) -> usize {
        self.right.rows
    }

    /// Returns the product's transpose.
    fn transposed(&self) -> Factors {
        Factors { left: self.right.transposed(), right: self.left.transposed() }
    }

    /// Puts rows and columns where the converter puts those of the base.
    ///
    /// # Errors
    /// The base's tensor is not a matrix, or cannot be divided so.
    pub(super) fn placed(self, heads: Option<u64>, place: &Place) -> Result<Factors, String> {
        match place {
            Place::Whole | Place::Row | Place::Expert { .. } | Place::Half(_) | Place::Rows(_) => {
                Ok(Factors { left: self.left.placed_rows(heads, place)?, right: self.right })
            }
            // Blocks are transposed in memory, where adapters are trained.
            Place::Turned { .. } | Place::Blocks { .. } => {
                let Factors { left, right } = self.transposed();
                Ok(Factors { left: left.placed_rows(heads, place)?, right })
            }
            Place::Columns(runs) => {
                let columns = rows_of(runs, self.right.columns)?;
                let right = self.right.gathered(
                    (self.right.count, self.right.rows, columns.len()),
                    |m, row, column| (m, row, columns[column]),
                );
                Ok(Factors { left: self.left.placed_rows(heads, place)?, right })
            }
            Place::Heads(runs) => {
                let taken = rows_of(runs, self.left.rows)?;
                let heads = runs.len().max(1);
                let rows = taken.len() / heads;
                let left =
                    self.left.gathered((heads, rows, self.left.columns), |head, row, column| {
                        (0, taken[head * rows + row], column)
                    });
                Ok(Factors { left, right: self.right.repeated(heads) })
            }
            Place::Transposed { rows, of } => {
                let (rows, of) = (*rows as usize, *of as usize);
                let heads = self.left.rows / of.max(1);
                let left =
                    self.left.gathered((heads, rows, self.left.columns), |head, row, column| {
                        (0, head * of + row, column)
                    });
                Ok(Factors { left, right: self.right.repeated(heads) }.transposed())
            }
            Place::OfRows(_) | Place::Numbers { .. } => {
                Err("is no matrix that a product can be added to".into())
            }
        }
    }

    /// Makes one stack of the matrices of experts, with zeros for those that are not there.
    pub(super) fn stacked(experts: Vec<Option<Factors>>) -> Result<Factors, String> {
        let mut there = experts.iter().flatten();
        let Some(first) = there.next() else { return Err("has no experts".into()) };
        let (rows, columns) = (first.left.rows, first.right.columns);
        if there.any(|one| (one.left.rows, one.right.columns) != (rows, columns)) {
            return Err("has experts of several shapes".into());
        }
        let rank = experts.iter().flatten().map(Factors::rank).max().unwrap_or(1);
        let count = experts.len();
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for expert in experts {
            match expert {
                None => {
                    left.resize(left.len() + rows * rank, 0.0);
                    right.resize(right.len() + rank * columns, 0.0);
                }
                Some(expert) => {
                    left.extend(expert.left.padded_columns(rank).values);
                    let padding = (rank - expert.rank()) * columns;
                    right.extend(expert.right.values);
                    right.resize(right.len() + padding, 0.0);
                }
            }
        }
        let stack = |rows, columns, values| Stack { count, rows, columns, values };
        Ok(Factors { left: stack(rows, rank, left), right: stack(rank, columns, right) })
    }
}

impl Stack {
    /// One matrix several times.
    fn repeated(&self, count: usize) -> Stack {
        self.gathered((count, self.rows, self.columns), |_, row, column| (0, row, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[count][rows, columns]`, by definition.
    fn product(factors: &Factors) -> Vec<f32> {
        let (left, right) = (&factors.left, &factors.right);
        let mut all = Vec::new();
        for m in 0..left.count {
            for row in 0..left.rows {
                for column in 0..right.columns {
                    let terms = (0..left.columns).map(|k| {
                        left.values[(m * left.rows + row) * left.columns + k]
                            * right.values[(m * right.rows + k) * right.columns + column]
                    });
                    all.push(terms.sum());
                }
            }
        }
        all
    }

    fn some(rows: usize, columns: usize, seed: usize) -> Stack {
        // Small whole numbers: products are exact.
        let values = (0..rows * columns).map(|i| ((i * 7 + seed * 13) % 11) as f32 - 5.0);
        Stack::matrix(rows, columns, values.collect())
    }

    fn factors(rows: usize, columns: usize) -> Factors {
        Factors { left: some(rows, 3, 1), right: some(3, columns, 2) }
    }

    #[test]
    fn what_is_done_to_a_matrix_is_done_to_its_factors() {
        let (rows, columns) = (12, 10);
        let whole = product(&factors(rows, columns));
        let at = |row: usize, column: usize| whole[row * columns + column];
        let check = |heads, place: Place, expected: Vec<f32>| {
            let placed = factors(rows, columns).placed(heads, &place).unwrap();
            assert_eq!(product(&placed), expected, "{place:?}");
        };
        let by = |rows: &[usize], columns: &[usize]| -> Vec<f32> {
            rows.iter().flat_map(|row| columns.iter().map(|column| at(*row, *column))).collect()
        };
        let every = |n: usize| (0..n).collect::<Vec<usize>>();
        check(None, Place::Whole, whole.clone());
        // Two heads of six rows.
        check(Some(2), Place::Whole, by(&[0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11], &every(10)));
        check(None, Place::Half(1), by(&[6, 7, 8, 9, 10, 11], &every(10)));
        check(None, Place::Rows(vec![(9, 2), (1, 3)]), by(&[9, 10, 1, 2, 3], &every(10)));
        check(
            None,
            Place::Columns(vec![(4, 6), (0, 4)]),
            by(&every(12), &[4, 5, 6, 7, 8, 9, 0, 1, 2, 3]),
        );
        check(None, Place::Heads(vec![(2, 2), (8, 2)]), by(&[2, 3, 8, 9], &every(10)));
        let turned: Vec<f32> = (5..10)
            .flat_map(|column| (0..12).map(move |row| (row, column)))
            .map(|(row, column)| at(row, column))
            .collect();
        check(None, Place::Turned { part: 1, of: 2 }, turned);
        let every_second: Vec<f32> = (0..5)
            .flat_map(|row| (0..12).map(move |column| (column, 2 * row + 1)))
            .map(|(row, column)| at(row, column))
            .collect();
        check(None, Place::Blocks { first: 1, step: 2 }, every_second);
        let heads: Vec<f32> = [0, 6]
            .into_iter()
            .flat_map(|first| {
                (0..10).flat_map(move |column| (first..first + 4).map(move |row| (row, column)))
            })
            .map(|(row, column)| at(row, column))
            .collect();
        check(None, Place::Transposed { rows: 4, of: 6 }, heads);
        assert!(factors(5, 4).placed(Some(2), &Place::Whole).is_err());
        assert!(factors(5, 4).placed(None, &Place::Rows(vec![(4, 2)])).is_err());
    }

    #[test]
    fn experts_of_several_ranks_are_one_stack_and_those_that_are_missing_are_zero() {
        let one = Factors { left: some(4, 1, 3), right: some(1, 5, 4) };
        let two = factors(4, 5);
        let stacked = Factors::stacked(vec![Some(one.clone()), None, Some(two.clone())]).unwrap();
        assert_eq!((stacked.left.count, stacked.rank()), (3, 3));
        let expected = [product(&one), vec![0.0; 20], product(&two)].concat();
        assert_eq!(product(&stacked), expected);
        let other = Factors { left: some(3, 1, 3), right: some(1, 5, 4) };
        assert!(Factors::stacked(vec![Some(one), Some(other)]).is_err());
    }
}
