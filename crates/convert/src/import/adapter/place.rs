//! The tensors of the base that the factors of a module are for, and what they are there.

use super::super::arch::BasePlace;
use super::super::tensor::{Place, Rule, Tensor};
use super::config::AdapterConfig;
use super::factors::{Factors, Stack};
use super::names::{ModuleTensors, Sorted};
use super::{Adapter, MAX_ELEMENTS, file_alpha};
use crate::ConvertError;
use crate::write::Change;

/// The version of PEFT from which on matrices of experts that are not transposed have their factors in their own orientation.
const OWN_ORIENTATION: (u64, u64) = (0, 21);

/// The change of one tensor of the base.
pub(super) struct PlacedFactors {
    /// Its name in GGUF.
    pub(super) name: String,
    pub(super) factors: Factors,
    /// `[out]`
    pub(super) magnitude: Option<Vec<f32>>,
    /// `[out]`
    pub(super) bias: Option<Vec<f32>>,
    /// The number of the expert, and how many there are, if the tensor has those of several modules.
    pub(super) expert: Option<(u64, u64)>,
}

/// Returns the names of the parameters of a module that the configuration targets.
pub(super) fn parameters(config: &AdapterConfig, module: &str) -> Vec<String> {
    let of = |target: &String| {
        let leaf = target.rsplit('.').next().unwrap_or(target);
        let name = format!("{module}.{leaf}");
        let fits = name == *target || name.ends_with(&format!(".{target}"));
        fits.then_some(name)
    };
    config.parameters.iter().filter_map(of).collect()
}

/// Returns the changes of all tensors. Those of a module that the file of the base does not have are left out, with the reason.
///
/// # Errors
/// A module is none of the base's, or its factors do not fit.
pub(super) fn all(
    adapter: &Adapter<'_>,
    sorted: &Sorted<'_>,
    skipped: &mut Vec<(String, &'static str)>,
) -> Result<Vec<PlacedFactors>, ConvertError> {
    let mut all = Vec::new();
    let mut taken: Vec<String> = Vec::new();
    for ((module, depth), tensors) in &sorted.modules {
        let (Some(a), Some(b)) = (tensors.a, tensors.b) else {
            let there = [tensors.a, tensors.b, tensors.bias, tensors.magnitude];
            let name = there.into_iter().flatten().next().map_or(&**module, |tensor| &*tensor.name);
            return Err(adapter.error(format!(
                "tensor \"{name}\" is there without the other half of the adapter of \"{module}\""
            )));
        };
        let weight = format!("{module}.weight");
        let is_inner = sorted.modules.contains_key(&(module.clone(), depth + 1));
        if *depth == 0 {
            taken.clear();
        }
        if let Some([Rule::Skip(reason)]) = adapter.place(&weight).map(|place| &place.rules[..]) {
            skipped.extend([a, b].map(|tensor| (tensor.name.clone(), *reason)));
            continue;
        }
        let plain = adapter.place(&weight).filter(|_| *depth == 0 && !is_inner);
        let found = match plain {
            Some(place) => Some((weight, place)),
            None => {
                let names = parameters(adapter.config, module);
                let free = names.into_iter().filter(|name| !taken.contains(name));
                let mut fitting = free.filter_map(|name| {
                    let place = adapter.place(&name)?;
                    let fits = oriented(adapter, place, a, b).is_ok();
                    fits.then_some((name, place))
                });
                fitting.next()
            }
        };
        let Some((name, place)) = found else {
            return Err(adapter.error(format!(
                "tensor \"{}\" is for the module \"{module}\", which the base does not have, or whose shape it does not fit (target_parameters)",
                a.name
            )));
        };
        taken.push(name.clone());
        one(adapter, (module, &name), tensors, (a, b), place, &mut all)?;
    }
    Ok(all)
}

/// How the factors of a module make the base's matrix `W`, as its source has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Orientation {
    /// `W = B A`
    Own,
    /// `W = (B A)ᵀ`
    Transposed,
    /// A stack: the rows of A and the columns of B are those of all matrices, those of B in turn; `W = B A`.
    OwnStack(usize),
    /// `W = (B A)ᵀ`
    TransposedStack(usize),
}

/// Finds the orientation of factors by their shapes.
fn oriented(
    adapter: &Adapter<'_>,
    place: &BasePlace,
    a: &Tensor,
    b: &Tensor,
) -> Result<Orientation, String> {
    let (&[ranks, columns], &[rows, of_b]) = (&a.shape[..], &b.shape[..]) else {
        return Err(format!("are {:?} and {:?}, expected two matrices", a.shape, b.shape));
    };
    let no = || {
        Err(format!(
            "are {:?} and {:?}, which does not fit the base's {:?}",
            a.shape, b.shape, place.shape
        ))
    };
    if ranks != of_b || ranks == 0 {
        return no();
    }
    let turned = place.rules.iter().any(|rule| {
        matches!(rule, Rule::Take { place: Place::Turned { .. } | Place::Blocks { .. }, .. })
    });
    match place.shape[..] {
        [d1, d2] if !turned && (rows, columns) == (d1, d2) => Ok(Orientation::Own),
        [d1, d2] if turned && (rows, columns) == (d2, d1) => Ok(Orientation::Transposed),
        [count, d1, d2] if ranks % count.max(1) == 0 && count > 0 => {
            let own = (rows, columns) == (d1, d2);
            let transposed = (rows, columns) == (d2, d1);
            let count = count as usize;
            match (own, transposed) {
                (false, false) => no(),
                (true, false) => Ok(Orientation::OwnStack(count)),
                (false, true) => Ok(Orientation::TransposedStack(count)),
                (true, true) if turned => Ok(Orientation::TransposedStack(count)),
                (true, true)
                    if adapter.config.version.is_some_and(|version| version >= OWN_ORIENTATION) =>
                {
                    Ok(Orientation::OwnStack(count))
                }
                (true, true) => Err(format!(
                    "are for square matrices, whose orientation follows from peft_version, expected {}.{} or later",
                    OWN_ORIENTATION.0, OWN_ORIENTATION.1
                )),
            }
        }
        _ => no(),
    }
}

/// Adds the changes of one tensor of the base's source.
fn one(
    adapter: &Adapter<'_>,
    (module, name): (&str, &str),
    tensors: &ModuleTensors<'_>,
    (a, b): (&Tensor, &Tensor),
    place: &BasePlace,
    all: &mut Vec<PlacedFactors>,
) -> Result<(), ConvertError> {
    let config = adapter.config;
    let wrong = |problem: String| adapter.error(format!("the factors of \"{module}\" {problem}"));
    let embedding = tensors.embedding;
    let orientation = match embedding {
        // `[r, vocabulary]` and `[hidden, r]`.
        true => match (&a.shape[..], &b.shape[..], &place.shape[..]) {
            (&[rank, vocab], &[hidden, of_b], expected)
                if rank == of_b && *expected == [vocab, hidden] =>
            {
                Orientation::Transposed
            }
            _ => {
                return Err(wrong(format!(
                    "are {:?} and {:?}, which does not fit the base's {:?}",
                    a.shape, b.shape, place.shape
                )));
            }
        },
        false => oriented(adapter, place, a, b).map_err(wrong)?,
    };
    let size = |tensor: &Tensor| tensor.shape.iter().product::<u64>();
    // Divided in heads, or repeated for them.
    let copies = place.rules.iter().map(|rule| match rule {
        Rule::Take { place: Place::Heads(runs), .. } => runs.len() as u64,
        Rule::Take { place: Place::Transposed { of, .. }, .. } => b.shape[0] / of.max(&1),
        _ => 1,
    });
    if copies.sum::<u64>().saturating_mul(size(a).max(size(b))) > MAX_ELEMENTS {
        return Err(wrong(format!("would have more than {MAX_ELEMENTS} elements")));
    }
    let stack = |tensor: &Tensor| -> Result<Stack, ConvertError> {
        let (rows, columns) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
        Ok(Stack::matrix(rows, columns, adapter.values(tensor)?))
    };
    let (a, b) = (stack(a)?, stack(b)?);
    let factors = match orientation {
        Orientation::Own => Factors { left: b, right: a },
        Orientation::Transposed => Factors { left: a.transposed(), right: b.transposed() },
        Orientation::OwnStack(count) => {
            Factors { left: b.by_columns(count), right: a.by_rows(count) }
        }
        Orientation::TransposedStack(count) => {
            Factors { left: a.by_rows(count).transposed(), right: b.by_columns(count).transposed() }
        }
    };
    let rank = factors.rank();
    let key = if matches!(orientation, Orientation::OwnStack(_) | Orientation::TransposedStack(_)) {
        name
    } else {
        module
    };
    // The file's numbers give alpha / rank to every tensor; what else there is to the scale goes into the second factor.
    let ratio = config.scale(key, rank as u64)? * rank as f64 / file_alpha(config);
    let vector = |tensor: Option<&Tensor>, len: usize| -> Result<Option<Stack>, ConvertError> {
        let Some(tensor) = tensor else { return Ok(None) };
        if tensor.shape != [len as u64] {
            return Err(adapter.error(format!(
                "tensor \"{}\" is {:?}, expected [{len}]",
                tensor.name, tensor.shape
            )));
        }
        Ok(Some(Stack::matrix(len, 1, adapter.values(tensor)?)))
    };
    let outputs = match orientation {
        Orientation::Transposed => factors.right.columns,
        _ => factors.left.rows,
    };
    if config.dora != tensors.magnitude.is_some() {
        return Err(wrong(format!(
            "have {} magnitudes, and use_dora is {}",
            if config.dora { "no" } else { "" },
            config.dora
        )));
    }
    if tensors.magnitude.is_some() && embedding {
        return Err(wrong(
            "are those of an embedding with use_dora, which GGUF adapters have no form for".into(),
        ));
    }
    let magnitude = vector(tensors.magnitude, outputs)?;
    let mut bias = vector(tensors.bias, outputs)?;
    if let Some(bias) = &mut bias {
        bias.scale(ratio);
    }
    for rule in &place.rules {
        let Rule::Take { name, heads, change, place } = rule else {
            return Err(wrong("are for a tensor without a place in GGUF".into()));
        };
        if *change != Change::None {
            return Err(wrong(format!(
                "are for \"{name}\", whose elements GGUF has in another form"
            )));
        }
        let mut placed = factors.clone().placed(*heads, place).map_err(wrong)?;
        // The factor that becomes .lora_b.
        match name == super::EMBEDDING {
            true => placed.right.scale(ratio),
            false => placed.left.scale(ratio),
        }
        let rows = |stack: &Option<Stack>| -> Result<Option<Vec<f32>>, ConvertError> {
            let Some(stack) = stack else { return Ok(None) };
            if placed.left.count > 1 || matches!(place, Place::Expert { .. }) {
                return Err(wrong("have a bias or magnitudes for a stack of matrices, which GGUF adapters have no form for".into()));
            }
            Ok(Some(stack.clone().placed_rows(*heads, place).map_err(wrong)?.values))
        };
        let (magnitude, bias) = (rows(&magnitude)?, rows(&bias)?);
        let expert = match place {
            Place::Expert { index, count } => Some((*index, *count)),
            _ => None,
        };
        all.push(PlacedFactors { name: name.clone(), factors: placed, magnitude, bias, expert });
    }
    Ok(())
}
