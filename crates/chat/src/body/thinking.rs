//! A client's wishes about thinking, as the variables of a template: families name and value them differently.

use alight_text::Vocabulary;
use alight_text::output::Format;
use serde_json::{Map, Value};

use super::fields::{Fields, whole};
use super::refusal::Refusal;

/// The variable and field for how much the model should think.
pub const EFFORT: &str = "reasoning_effort";
/// The variable that is false if it should not.
pub const SWITCH: &str = "enable_thinking";
/// The variable and field for the maximum number of tokens of thinking.
pub const BUDGET: &str = "thinking_budget";
/// llama-server's names for the last one.
const BUDGETS: [&str; 4] =
    [BUDGET, "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_tokens"];

/// The efforts of OpenAI's and Anthropic's interfaces, from none to the largest.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// How the templates of a family take an effort.
struct Efforts {
    /// A text that only these templates have.
    mark: &'static str,
    /// Their variable.
    variable: &'static str,
    /// Its values for [`EFFORTS`].
    values: [&'static str; 7],
    /// True if the first of them means that the model does not think.
    closes: bool,
}

const FAMILIES: [Efforts; 5] = [
    // Hy3 raises an error for any other value.
    Efforts {
        mark: "'no_think'",
        variable: EFFORT,
        values: ["no_think", "low", "low", "high", "high", "high", "high"],
        closes: true,
    },
    // So does Kimi K3.
    Efforts {
        mark: "thinking_effort",
        variable: "thinking_effort",
        values: ["low", "low", "low", "high", "high", "max", "max"],
        closes: false,
    },
    // Solar Open does not think with the two lowest.
    Efforts {
        mark: "[\"low\", \"minimal\"]",
        variable: EFFORT,
        values: ["minimal", "minimal", "low", "medium", "high", "high", "high"],
        closes: true,
    },
    // Command A+ knows none and others.
    Efforts {
        mark: "reasoning_effort | lower == \"none\"",
        variable: EFFORT,
        values: EFFORTS,
        closes: true,
    },
    // gpt-oss and its kin were trained with three.
    Efforts {
        mark: "reasoning_effort = \"medium\"",
        variable: EFFORT,
        values: ["low", "low", "low", "medium", "high", "high", "high"],
        closes: false,
    },
];

/// The texts of templates that end the thinking themselves where [`SWITCH`] is false, or where their own variable is.
const SWITCHES: [&str; 4] = [SWITCH, "if thinking", "thinking_mode ==", "if thinking_budget == 0"];

/// Takes the fields about thinking into the variables of a template.
pub(super) fn take(fields: &mut Fields, context: &mut Map<String, Value>) -> Result<(), Refusal> {
    if let Some(effort) = fields.string(EFFORT)? {
        context.insert(EFFORT.to_owned(), effort.into());
    }
    for name in BUDGETS {
        if let Some(tokens) = fields.count_or_all(name, usize::MAX)? {
            let tokens = if tokens == usize::MAX { (-1).into() } else { tokens.into() };
            context.insert(BUDGET.to_owned(), tokens);
        }
    }
    Ok(())
}

/// The limit on the thinking of an answer, and whether its template has a variable for the effort that was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FittedThinking {
    /// The maximum number of tokens.
    pub budget: Option<usize>,
    /// False if the template does not know the wanted effort.
    pub effort_is_known: bool,
}

/// Gives the wishes among the variables the names and values that the model's template has. Where thinking is not wanted, and the template has
/// no way to say so, the limit is 0. A second call changes nothing.
pub fn fit(context: &mut Map<String, Value>, vocabulary: &Vocabulary) -> FittedThinking {
    let has = |text: &str| vocabulary.template_has(text);
    fit_to(context, &has, vocabulary.output_format() == Format::Harmony)
}

/// [`fit`] for an answer in which the model may think, or may not, because a grammar has no place for thoughts. Thinking that the template opens
/// nevertheless is cut only at the limit that the client wants.
pub fn fit_for(
    context: &mut Map<String, Value>,
    vocabulary: &Vocabulary,
    may_think: bool,
) -> FittedThinking {
    let fitted = fit(context, vocabulary);
    if !may_think {
        context.entry(SWITCH).or_insert(false.into());
        fit(context, vocabulary);
    }
    fitted
}

/// The index of an effort.
fn level(effort: &str) -> Option<usize> {
    EFFORTS.iter().position(|known| *known == effort)
}

fn fit_to(
    context: &mut Map<String, Value>,
    has: &dyn Fn(&str) -> bool,
    harmony: bool,
) -> FittedThinking {
    let family = FAMILIES.iter().find(|family| has(family.mark));
    let given = context.get(EFFORT).and_then(Value::as_str);
    let (is_given, level) = (given.is_some(), given.and_then(level));
    if level == Some(0) {
        context.entry(SWITCH).or_insert(false.into());
        if family.is_none() {
            context.shift_remove(EFFORT);
        }
    }
    let wanted = context.get(SWITCH).and_then(Value::as_bool);
    let off = wanted == Some(false);
    let level = if off { Some(0) } else { level };
    if let (Some(level), Some(family)) = (level, family) {
        if family.variable != EFFORT {
            context.shift_remove(EFFORT);
        }
        context.insert(family.variable.to_owned(), family.values[level].into());
    }
    if let Some(wanted) = wanted {
        if has("if thinking") {
            context.entry("thinking").or_insert(wanted.into());
        }
        if has("thinking_mode ==") {
            let mode = if wanted { "enabled" } else { "disabled" };
            context.entry("thinking_mode").or_insert(mode.into());
        }
        if off && has("thinking_budget == 0") {
            context.insert(BUDGET.to_owned(), 0.into());
        }
    }
    let budget = context.get(BUDGET).and_then(whole);
    let budget = budget.and_then(|tokens| usize::try_from(tokens).ok());
    let closes =
        family.is_some_and(|family| family.closes) || SWITCHES.iter().any(|text| has(text));
    // gpt-oss's template has no way to say so, and its channel of thinking can be left out.
    let budget = if off && (!closes || harmony) { Some(0) } else { budget };
    let effort_is_known = !is_given || off || family.is_some() || has(EFFORT);
    FittedThinking { budget, effort_is_known }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fitted(context: Value, template: &str) -> (Value, FittedThinking) {
        let mut context = context.as_object().unwrap().clone();
        let has = |text: &str| template.contains(text);
        let fitted = fit_to(&mut context, &has, false);
        let before = context.clone();
        assert_eq!(fit_to(&mut context, &has, false), fitted, "a second time");
        assert_eq!(context, before, "a second time");
        (context.into(), fitted)
    }

    #[test]
    fn an_effort_is_one_that_the_template_takes() {
        let hy3 = "reasoning_effort not in ['high', 'low', 'no_think']";
        let gpt_oss = "{%- set reasoning_effort = \"medium\" %}";
        let k3 = "if thinking and thinking_effort not in ['low', 'high', 'max']";
        for (effort, template, variable, wanted) in [
            ("medium", hy3, EFFORT, "high"),
            ("minimal", hy3, EFFORT, "low"),
            ("none", hy3, EFFORT, "no_think"),
            ("no_think", hy3, EFFORT, "no_think"),
            ("xhigh", gpt_oss, EFFORT, "high"),
            ("medium", gpt_oss, EFFORT, "medium"),
            ("none", gpt_oss, EFFORT, "low"),
            ("medium", k3, "thinking_effort", "high"),
            ("max", k3, "thinking_effort", "max"),
            ("max", "reasoning_effort == 'max'", EFFORT, "max"),
        ] {
            let (context, fitted) = fitted(json!({EFFORT: effort}), template);
            assert_eq!(context[variable], wanted, "{effort} {template}");
            assert!(fitted.effort_is_known);
        }
        let (_, fitted) = fitted(json!({EFFORT: "high"}), "{{ messages }}");
        assert!(!fitted.effort_is_known);
    }

    #[test]
    fn thinking_that_is_not_wanted_is_closed_by_the_template_or_by_the_limit() {
        for (context, template, budget) in [
            (json!({EFFORT: "none"}), "{% if enable_thinking %}", None),
            (json!({EFFORT: "none"}), "{{ messages }}", Some(0)),
            (json!({SWITCH: false}), "{{ messages }}", Some(0)),
            (json!({SWITCH: false}), "reasoning_effort = \"medium\"", Some(0)),
            (json!({SWITCH: true}), "{{ messages }}", None),
            (json!({BUDGET: 7}), "{{ messages }}", Some(7)),
            (json!({BUDGET: -1}), "{{ messages }}", None),
            (json!({}), "{{ messages }}", None),
        ] {
            let (_, fitted) = fitted(context.clone(), template);
            assert_eq!(fitted.budget, budget, "{context} {template}");
        }
        let (context, _) = fitted(json!({SWITCH: false}), "{%- elif thinking_mode == \"disabled\"");
        assert_eq!(context["thinking_mode"], "disabled");
        let (context, _) = fitted(json!({SWITCH: false}), "{%- if thinking_budget == 0 %}");
        assert_eq!(context[BUDGET], 0);
        let (context, _) = fitted(json!({SWITCH: true}), "{%- elif thinking %}{%- if thinking -%}");
        assert_eq!(context["thinking"], true);
        let (context, _) = fitted(json!({SWITCH: false}), "'no_think'");
        assert_eq!(context[EFFORT], "no_think");
    }
}
