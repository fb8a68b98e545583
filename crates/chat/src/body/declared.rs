//! Declarations of the fields of requests: every field that is read, refused or ignored is one line of a list. The check for unknown
//! fields, the refusals and the tables of `docs/reference/server.md` read these lists.
//!
//! The lists here are of fields that several endpoints have; the server's `endpoints` has those of each endpoint.

use serde_json::Value;

use super::refusal::Refusal;

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Its name.
    pub name: &'static str,
    /// Its use.
    pub used: Use,
}

/// The use of a field.
#[derive(Clone, Copy, Debug)]
pub enum Use {
    /// It is read, for this.
    Taken(&'static str),
    /// It is refused, unless it has one of these values (as JSON), with which it changes nothing.
    Refused {
        /// These values.
        unless: &'static [&'static str],
        /// The reason.
        why: &'static str,
    },
    /// It is ignored, for this reason.
    Ignored(&'static str),
}

/// A field that is read.
pub const fn taken(name: &'static str, what: &'static str) -> Declared {
    Declared { name, used: Use::Taken(what) }
}

/// A field that is refused unless it has one of some values, as JSON.
pub const fn refused(
    name: &'static str,
    unless: &'static [&'static str],
    why: &'static str,
) -> Declared {
    Declared { name, used: Use::Refused { unless, why } }
}

/// A field that is ignored.
pub const fn ignored(name: &'static str, why: &'static str) -> Declared {
    Declared { name, used: Use::Ignored(why) }
}

impl Declared {
    /// Checks that the field is not refused with this value. A null field counts as absent.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self, value: &Value) -> Result<(), Refusal> {
        match self.used {
            Use::Refused { unless, why }
                if !value.is_null() && !unless.iter().any(|off| is_off(value, off)) =>
            {
                Err(Refusal::unsupported(self.name, why))
            }
            _ => Ok(()),
        }
    }
}

/// Returns true if the value is this one, which is JSON. Numbers may be written as `40.0`.
fn is_off(value: &Value, off: &str) -> bool {
    serde_json::from_str::<Value>(off).is_ok_and(|off| {
        *value == off || value.as_f64().is_some_and(|number| off.as_f64() == Some(number))
    })
}

/// How tokens are chosen, and how many.
pub const SAMPLING: &[Declared] = &[
    taken("temperature", "divides the logits; 0: always the most likely token"),
    taken("top_p", "the most likely tokens that make up this share"),
    taken("min_p", "tokens at least this likely, relative to the most likely one"),
    taken("top_k", "the k most likely tokens; -1 or 0: all"),
    taken("min_keep", "`top_p` and `min_p` leave at least as many tokens"),
    taken("repeat_penalty", "makes tokens of the last `repeat_last_n` less likely"),
    taken("repetition_penalty", "another name of `repeat_penalty`"),
    taken("repeat_last_n", "how many tokens count as recent; -1: the whole context"),
    taken("frequency_penalty", "subtracted for each time that a token came recently"),
    taken("presence_penalty", "subtracted once if a token came recently"),
    taken(
        "dry_multiplier",
        "subtracted from tokens that would continue a repetition, times a power of `dry_base`; 0: off",
    ),
    taken("dry_base", "the base of the power, at least 1"),
    taken(
        "dry_allowed_length",
        "the length of a repetition whose power is 0; shorter ones are free",
    ),
    taken(
        "dry_penalty_last_n",
        "how many tokens are searched for repetitions; -1: the whole context",
    ),
    taken("dry_sequence_breakers", "no repetition goes beyond these texts"),
    taken(
        "xtc_probability",
        "how often all likely tokens but the least likely of them are left out; 0: never",
    ),
    taken("xtc_threshold", "from this probability on a token is likely; above 0.5: off"),
    taken(
        "top_n_sigma",
        "tokens at most this many standard deviations below the greatest logit; 0 or less: all",
    ),
    taken(
        "mirostat",
        "1 or 2: this version of Mirostat instead of the penalties and of all limits; 0: off",
    ),
    taken("mirostat_tau", "Mirostat's target: the mean surprise of a token, in bits"),
    taken("mirostat_eta", "Mirostat's rate of learning"),
    taken(
        "samplers",
        "the stages that are on, by names or letters, always in the order in which `/props` has them",
    ),
    taken("seed", "the seed of the draws; -1: none"),
    taken("max_tokens", "the largest number of tokens in an answer; -1: no limit"),
    taken("max_completion_tokens", "the newer name of `max_tokens`"),
    taken("n_predict", "llama-server's name of `max_tokens`"),
    taken("logit_bias", "added to the logits of tokens, by id or by text"),
    taken("ignore_eos", "the answer continues where the model would end"),
];

/// The end of an answer.
pub const STOP: &[Declared] = &[taken("stop", "texts that end an answer")];

/// Constraints on an answer.
pub const CONSTRAINTS: &[Declared] = &[
    taken("response_format", "JSON of a schema, or any object"),
    taken("json_schema", "JSON of this schema"),
    taken("grammar", "a text of this grammar: GBNF, or llguidance's Lark"),
    taken("regex", "a text that this expression matches"),
    taken("guided_json", "vLLM's name of `json_schema`; a text of JSON, too"),
    taken("guided_grammar", "vLLM's name of `grammar`"),
    taken("guided_regex", "vLLM's name of `regex`"),
    taken("guided_choice", "one of these texts"),
    taken(
        "structured_outputs",
        "an object with one of these: `json`, `json_object`, `grammar`, `regex`, `choice`",
    ),
];

/// A conversation, and how its prompt ends.
pub const CONVERSATION: &[Declared] = &[
    taken("messages", "the conversation"),
    taken("continue_final_message", "the last message is continued, not answered"),
    taken("add_generation_prompt", "the prompt ends with the beginning of an answer"),
];

/// The tools and the other variables of a template.
pub const TEMPLATE: &[Declared] = &[
    taken("tools", "functions that the model may call"),
    taken("tool_choice", "which of them it must call"),
    taken("parallel_tool_calls", "whether an answer may have several calls"),
    taken("reasoning_effort", "how much the model should think, as its template has it"),
    taken("thinking_budget", "the largest number of tokens of thinking; -1: no limit"),
    taken("thinking_budget_tokens", "another name of `thinking_budget`"),
    taken("reasoning_budget", "another name of `thinking_budget`"),
    taken("reasoning_budget_tokens", "llama-server's name of `thinking_budget`"),
    taken("chat_template_kwargs", "further variables of the template"),
];

const NOT_HERE: &str = "this is not supported here";
const NO_STAGE: &str = "there is no such way to choose tokens here";

/// Fields that would change an answer, and that nothing here can do. Clients send many of them whether they use them or not.
pub const REFUSED: &[Declared] = &[
    refused("modalities", &["[\"text\"]"], "answers are text"),
    refused("suffix", &["\"\""], "a text is continued at its end"),
    // OpenAI's names before `tools`.
    refused("functions", &["[]"], "tools has them now"),
    refused("function_call", &["\"none\""], "tool_choice says it now"),
    // llama.cpp's.
    refused("dynatemp_range", &["0"], NO_STAGE),
    refused("typical_p", &["1"], NO_STAGE),
    refused("tfs_z", &["1"], NO_STAGE),
    refused("adaptive_target", &["-1"], NO_STAGE),
    refused("grammar_lazy", &["false"], "a grammar holds from the beginning of an answer"),
    refused("lora", &["[]"], "adapters are not chosen by requests"),
    // vLLM's.
    refused("min_tokens", &["0"], NOT_HERE),
    refused("stop_token_ids", &["[]"], NOT_HERE),
    refused("allowed_token_ids", &["[]"], NOT_HERE),
    refused("bad_words", &["[]"], NOT_HERE),
    refused("truncate_prompt_tokens", &["-1"], NOT_HERE),
    refused("include_stop_str_in_output", &["false"], NOT_HERE),
    refused("use_beam_search", &["false"], NOT_HERE),
    refused("prompt_logprobs", &["0"], NOT_HERE),
    refused("guided_whitespace_pattern", &[], "blanks in JSON are always left out here"),
];

const OF_A_STAGE: &str = "it belongs to a way to choose tokens that is refused unless it is off";

/// Fields of vLLM's that change no answer here.
pub const OF_VLLM: &[Declared] = &[
    ignored("guided_decoding_backend", "there is one program for constraints"),
    ignored("guided_decoding_disable_fallback", "there is one program for constraints"),
];

/// Fields of llama.cpp's that change no answer here.
pub const OF_LLAMA: &[Declared] = &[
    ignored("dynatemp_exponent", OF_A_STAGE),
    ignored("adaptive_decay", OF_A_STAGE),
    ignored(
        "grammar_triggers",
        "they belong to `grammar_lazy`, which is refused unless it is false",
    ),
    ignored(
        "preserved_tokens",
        "they belong to `grammar_lazy`, which is refused unless it is false",
    ),
    ignored("cache_prompt", "what is known of a prompt is always reused: no answer depends on it"),
    ignored("n_keep", "a prompt is never cut"),
    ignored("n_discard", "a prompt is never cut"),
    ignored("n_cache_reuse", "what is reused of a prompt is its beginning"),
    ignored("backend_sampling", "no answer depends on where its tokens are drawn"),
    ignored("sse_ping_interval", "a silent stream has a sign of life every 5 seconds"),
    ignored("verbose", "there is no more to say about an answer"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alight_model::SamplerOptions;
    use serde_json::json;

    #[test]
    fn a_refused_field_may_have_a_value_that_changes_nothing() {
        let field = refused("x", &["1", "[]", "\"none\""], "why");
        for fine in [json!(1), json!(1.0), json!([]), json!("none"), Value::Null] {
            assert_eq!(field.check(&fine), Ok(()), "{fine}");
        }
        for wrong in [json!(2), json!([1]), json!("1"), json!(true), json!({})] {
            let refusal = field.check(&wrong).unwrap_err();
            assert_eq!((refusal.code, &*refusal.message), ("unsupported", "x: why"), "{wrong}");
        }
        assert_eq!(ignored("x", "why").check(&json!(2)), Ok(()));
    }

    #[test]
    fn every_number_of_the_sampler_is_declared() {
        for count in &SamplerOptions::COUNTS {
            assert!(SAMPLING.iter().any(|declared| declared.name == count.name), "{}", count.name);
        }
        for number in &SamplerOptions::NUMBERS {
            for name in [number.name].iter().chain(number.also) {
                assert!(SAMPLING.iter().any(|declared| declared.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn values_that_change_nothing_are_json() {
        for declared in REFUSED {
            let Use::Refused { unless, .. } = declared.used else { panic!("{declared:?}") };
            for off in unless {
                assert!(serde_json::from_str::<Value>(off).is_ok(), "{declared:?}");
            }
        }
    }
}
