//! The fields of each endpoint's bodies, one line each: those that are read, refused and ignored. A field without a line is unknown: it is
//! removed before the endpoint reads its body, counted, and logged once.
//!
//! The tables of `docs/reference/server.md` are made of these lists; `ALIGHT_WRITE=1` has the test write them.

use alight_chat::body::declared::{
    CONSTRAINTS, CONVERSATION, Declared, OF_LLAMA, OF_VLLM, REFUSED, SAMPLING, STOP, TEMPLATE, Use,
    ignored, refused, taken,
};
use alight_chat::body::options::NO_LOGPROBS;
use alight_chat::body::refusal::Refusal;
use serde_json::{Map, Value};

/// The fields of the body of one endpoint, or of an object in it.
pub(crate) struct Endpoint {
    /// Its path.
    pub(crate) path: &'static str,
    /// The path of the object within the body.
    pub(crate) within: &'static str,
    /// Of several lines of one name, the first counts.
    pub(crate) fields: &'static [&'static [Declared]],
}

/// The fields of all requests for an answer.
const ASK: &[Declared] = &[
    taken("model", "one of the served models"),
    taken("lora", "the adapters of the answer, each with `id` or `name`, and `scale`"),
    taken("id_slot", "the slot of `/slots` that computes the answer; -1: any"),
    taken("stream", "the answer comes in pieces"),
];

/// OpenAI's fields that change no answer.
const OF_OPENAI: &[Declared] = &[
    ignored("user", "a key distinguishes users"),
    ignored("safety_identifier", "a key distinguishes users"),
    ignored("prompt_cache_key", "prompts that begin alike are found by their tokens"),
    ignored("prompt_cache_retention", "prompts that begin alike are found by their tokens"),
    ignored("prompt_cache_options", "prompts that begin alike are found by their tokens"),
    ignored("metadata", "nothing is stored"),
    ignored("store", "nothing is stored"),
    ignored("service_tier", "there is one"),
    ignored("verbosity", "no template has such a variable"),
];

const THINKING_APART: &str = "what the model thinks is always in `reasoning_content`";

pub(crate) static CHAT: Endpoint = Endpoint {
    path: "/v1/chat/completions",
    within: "",
    fields: &[
        &[
            taken("n", "how many answers"),
            taken("stream_options", "`include_usage`: a last piece with the numbers of tokens"),
            taken("logprobs", "how likely each token was"),
            taken("top_logprobs", "how many other tokens are reported with it"),
            taken("return_progress", "a stream reports how much of the prompt is read"),
            taken("timings_per_token", "each piece of a stream has `timings`"),
            ignored("prediction", "tokens are proposed from the conversation itself"),
            ignored("audio", "answers are text"),
            ignored("web_search_options", "nothing here searches the web"),
            ignored("reasoning_format", THINKING_APART),
            ignored("parse_tool_calls", "calls are always parsed where there are tools"),
        ],
        ASK,
        CONVERSATION,
        TEMPLATE,
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_OPENAI,
        OF_VLLM,
        OF_LLAMA,
    ],
};

pub(crate) static COMPLETIONS: Endpoint = Endpoint {
    path: "/v1/completions",
    within: "",
    fields: &[
        &[
            taken("prompt", "a text, tokens, both mixed, or several of these"),
            taken("parse_special", "names of special tokens in a text are these tokens (true)"),
            taken("suffix", "the text after the answer"),
            taken("n", "how many answers to each prompt"),
            taken("best_of", "the same as `n`; another number is refused"),
            taken("stream_options", "`include_usage`: a last piece with the numbers of tokens"),
            taken("logprobs", "how many likely tokens are reported with each"),
            taken("echo", "the prompt stands before the answer"),
            ignored("timings_per_token", "`/completion` has it"),
            ignored("return_progress", "`/completion` has it"),
        ],
        ASK,
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_OPENAI,
        OF_VLLM,
        OF_LLAMA,
    ],
};

const NOT_KEPT: &str = "conversations are not kept here: send the whole one as input";

pub(crate) static RESPONSES: Endpoint = Endpoint {
    path: "/v1/responses",
    within: "",
    fields: &[
        &[
            taken("input", "the conversation: a text, or items"),
            taken("instructions", "the system prompt"),
            taken("reasoning", "`effort`: how much the model should think"),
            taken("text", "`format`: JSON of a schema, or any object"),
            taken("max_output_tokens", "the largest number of tokens in an answer"),
            taken("include", "`message.output_text.logprobs` is refused, all else ignored"),
            taken("store", "`false`: the items of the answer are not remembered"),
            taken("return_progress", "a stream reports how much of the prompt is read"),
            taken("timings_per_token", "each new piece of a stream has `timings`"),
            refused("previous_response_id", &[], NOT_KEPT),
            refused("conversation", &[], NOT_KEPT),
            refused("prompt", &[], "no prompts are kept here"),
            refused("background", &["false"], "answers come while they are asked for"),
            refused("top_logprobs", &["0"], NO_LOGPROBS),
            ignored("truncation", "a prompt is never cut"),
            ignored("max_tool_calls", "tools are called by the client, as often as it wants"),
            ignored("stream_options", "nothing of a stream is obfuscated"),
            ignored("client_metadata", "nothing is stored"),
        ],
        ASK,
        TEMPLATE,
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_OPENAI,
        OF_VLLM,
        OF_LLAMA,
    ],
};

/// The fields of all requests for vectors.
const VECTORS: &[Declared] = &[
    taken("model", "one of the served models"),
    taken("input", "the texts, or their tokens"),
    taken("dimensions", "how many leading numbers of a vector are kept"),
    taken("pooling", POOLING),
    taken("prompt_name", PROMPT_NAME),
];

const POOLING: &str = "how the vectors of tokens become that of a text, if not as the model's file says: `mean`, `cls` or `last`";
const PROMPT_NAME: &str = "the prompt of the model's file that precedes each text";
const TRUNCATE: &str = "a text that is too long is cut to what the model reads";

pub(crate) static RERANK: Endpoint = Endpoint {
    path: "/v1/rerank",
    within: "",
    fields: &[
        &[
            taken("model", "one of the served models"),
            taken("query", "the text that documents are compared with"),
            taken("documents", "texts, or objects with `text`"),
            taken("texts", "the same; the answer is the list of Text Embeddings Inference"),
            taken("top_n", "how many of the best documents are listed (all)"),
            taken("return_documents", "each result has its `document` (false)"),
            taken("return_text", "of `texts`: each result has its `text` (false)"),
            taken(
                "raw_scores",
                "scores are what the classifier puts out, and no probabilities (false)",
            ),
            taken("truncate", "a document that is too long is cut to what the model reads (true)"),
            taken("max_tokens_per_doc", "the largest number of tokens of a query and a document"),
            ignored("truncation_direction", "the end is cut off"),
            ignored("rank_fields", "of an object, `text` is read"),
            ignored("priority", "requests are answered in their order"),
        ],
        OF_OPENAI,
    ],
};

pub(crate) static TEI_EMBED: Endpoint = Endpoint {
    path: "/embed",
    within: "",
    fields: &[&[
        taken("model", "one of the served models"),
        taken("inputs", "the texts, or their tokens"),
        taken("normalize", "vectors have length 1 (true)"),
        taken("truncate", TRUNCATE),
        taken("dimensions", "how many leading numbers of a vector are kept"),
        taken("pooling", POOLING),
        taken("prompt_name", PROMPT_NAME),
        ignored("truncation_direction", "the end is cut off"),
    ]],
};

pub(crate) static COHERE_EMBED: Endpoint = Endpoint {
    path: "/v2/embed",
    within: "",
    fields: &[&[
        taken("model", "one of the served models"),
        taken("texts", "the texts"),
        taken("inputs", "the same, each as `content` of one part of type `text`"),
        taken(
            "input_type",
            "the prompt of the model's file for it, if there is one, precedes each text",
        ),
        taken("embedding_types", "`float`, `base64`, `binary` or `ubinary`, also several"),
        taken("output_dimension", "how many leading numbers of a vector are kept"),
        taken("pooling", POOLING),
        taken("prompt_name", PROMPT_NAME),
        taken(
            "truncate",
            "`END`: a text that is too long is cut (the default); `NONE`: it is refused",
        ),
        taken("max_tokens", "the largest number of tokens of a text"),
        refused("images", &["[]"], NO_IMAGES),
        ignored("priority", "requests are answered in their order"),
    ]],
};

pub(crate) static EMBEDDINGS: Endpoint = Endpoint {
    path: "/v1/embeddings",
    within: "",
    fields: &[
        &[
            taken("encoding_format", "`float` or `base64`"),
            taken(
                "embd_normalize",
                "2: vectors have length 1; -1: as they are; 0: the largest number is 32760; p: the p-norm is 1",
            ),
            taken("truncate", TRUNCATE),
        ],
        VECTORS,
        OF_OPENAI,
    ],
};

pub(crate) static MESSAGES: Endpoint = Endpoint {
    path: "/v1/messages",
    within: "",
    fields: &[
        &[
            taken("system", "the system prompt: a text, or blocks"),
            taken("messages", "the conversation"),
            taken("tools", "functions that the model may call"),
            taken("tool_choice", "which of them it must call"),
            taken("thinking", "whether the model thinks, and `budget_tokens`"),
            taken("output_config", "`format`: JSON of a schema; `effort`"),
            taken("reasoning_effort", "how much the model should think, as its template has it"),
            taken("thinking_budget", "the largest number of tokens of thinking; -1: no limit"),
            taken("chat_template_kwargs", "further variables of the template"),
            taken("output_format", "an older name of `output_config.format`"),
            taken("stop_sequences", "texts that end an answer"),
            ignored("container", "nothing here runs tools"),
            ignored("context_management", "the client decides what it sends"),
            ignored("mcp_servers", "tools are run by the client"),
            ignored("inference_geo", "the answer is computed where the server is"),
            ignored("cache_control", "prompts that begin alike are found by their tokens"),
        ],
        ASK,
        CONSTRAINTS,
        SAMPLING,
        REFUSED,
        OF_OPENAI,
        OF_VLLM,
        OF_LLAMA,
    ],
};

/// The fields of Ollama's requests for an answer.
const OF_OLLAMA: &[Declared] = &[
    taken("model", "one of the served models"),
    taken("name", "an older name of `model`"),
    taken("stream", "the answer comes in lines (true)"),
    taken("format", "`json`, or a schema"),
    taken("options", "see below"),
    taken("think", "whether the model thinks, or how much"),
    refused("logprobs", &["false"], NO_LOGPROBS),
    refused("top_logprobs", &["0"], NO_LOGPROBS),
    ignored(
        "keep_alive",
        "the model is always ready; without a prompt, 0 has the answer say `unload`",
    ),
    ignored("truncate", "a prompt is never cut"),
    ignored("shift", "a prompt is never cut"),
];

/// Why pictures are refused.
pub(crate) const NO_IMAGES: &str = "only text is taken";

pub(crate) static OLLAMA_CHAT: Endpoint = Endpoint {
    path: "/api/chat",
    within: "",
    fields: &[
        &[
            taken("messages", "the conversation; `images` of a message are refused"),
            taken("tools", "functions that the model may call"),
        ],
        OF_OLLAMA,
    ],
};

pub(crate) static OLLAMA_GENERATE: Endpoint = Endpoint {
    path: "/api/generate",
    within: "",
    fields: &[
        &[
            taken("prompt", "the text"),
            taken("suffix", "the text after the answer"),
            taken("system", "the system prompt"),
            taken("raw", "the prompt is used as it is, without the template"),
            taken("parse_special", "with `raw`: names of special tokens are these tokens (true)"),
            refused("images", &["[]", "\"\""], NO_IMAGES),
            refused(
                "template",
                &["\"\""],
                "--chat-template-file gives the server another template",
            ),
            refused("context", &["[]"], "send the conversation to /api/chat"),
        ],
        OF_OLLAMA,
    ],
};

pub(crate) static OLLAMA_OPTIONS: Endpoint = Endpoint {
    path: "/api/chat, /api/generate",
    within: "options.",
    fields: &[
        &[
            taken("num_predict", "the largest number of tokens in an answer; below 0: no limit"),
            taken("id_slot", "the slot of `/slots` that computes the answer; -1: any"),
            ignored("num_ctx", "a sequence has the context of the server (--ctx-size)"),
            ignored("num_batch", "an option of the server (--batch-size)"),
            ignored("num_thread", "an option of the server (--threads)"),
            ignored("num_keep", "a prompt is never cut"),
            ignored("num_gpu", "the server computes on the CPU"),
            ignored("main_gpu", "the server computes on the CPU"),
            ignored("low_vram", "the server computes on the CPU"),
            ignored("use_mmap", "the model is open already"),
            ignored("use_mlock", "the model is open already"),
            ignored("vocab_only", "the model is open already"),
            ignored("numa", "the model is open already"),
            ignored("f16_kv", "an option of the server (--cache-type-k)"),
            ignored("penalize_newline", "a line break is a token like any other"),
        ],
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_VLLM,
        OF_LLAMA,
    ],
};

pub(crate) static OLLAMA_EMBED: Endpoint = Endpoint {
    path: "/api/embed",
    within: "",
    fields: &[
        &[
            taken("name", "an older name of `model`"),
            taken("truncate", "a text that is too long is cut to the context (true)"),
            ignored("keep_alive", "the model is always ready"),
            ignored("options", "none of them changes a vector"),
        ],
        VECTORS,
    ],
};

pub(crate) static OLLAMA_EMBEDDINGS: Endpoint = Endpoint {
    path: "/api/embeddings",
    within: "",
    fields: &[&[
        taken("prompt", "the text"),
        taken("model", "one of the served models"),
        taken("name", "an older name of `model`"),
        taken("dimensions", "how many leading numbers of a vector are kept"),
        taken("pooling", POOLING),
        taken("prompt_name", PROMPT_NAME),
        ignored("keep_alive", "the model is always ready"),
        ignored("options", "none of them changes a vector"),
    ]],
};

/// llama-server's own fields for a continued text.
const OF_COMPLETION: &[Declared] = &[
    taken("n_indent", "a line with fewer blanks at its beginning ends the answer"),
    taken("t_max_predict_ms", "the answer ends after this time and a line"),
    taken(
        "n_probs",
        "how many likely tokens are reported with each, in `completion_probabilities`",
    ),
    taken("logprobs", "another name of `n_probs`"),
    taken("return_tokens", "`tokens` of a whole answer has its ids"),
    taken("response_fields", "what an answer has; `a/b` is `b` of the object `a`"),
    taken("return_progress", "a stream reports how much of the prompt is read"),
    taken("timings_per_token", "each piece of a stream has `timings`"),
    refused(
        "post_sampling_probs",
        &["false"],
        "probabilities here are the model's own, before any token is ruled out",
    ),
    refused("echo", &["false"], "/v1/completions has it"),
    refused("image_data", &["[]"], NO_IMAGES),
    ignored("stream_options", "the last piece always has the numbers of tokens"),
    ignored("t_max_prompt_ms", "reading a prompt has no limit of time"),
    ignored("penalize_nl", "a line break is a token like any other"),
];

pub(crate) static COMPLETION: Endpoint = Endpoint {
    path: "/completion",
    within: "",
    fields: &[
        &[
            taken(
                "prompt",
                "a text, tokens, both mixed, `{\"prompt_string\": …}`, or several of these",
            ),
            taken("parse_special", "names of special tokens in a text are these tokens (true)"),
            taken("n", "how many answers to each prompt"),
            taken("n_cmpl", "another name of `n`"),
        ],
        OF_COMPLETION,
        ASK,
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_VLLM,
        OF_LLAMA,
    ],
};

pub(crate) static INFILL: Endpoint = Endpoint {
    path: "/infill",
    within: "",
    fields: &[
        &[
            taken("input_prefix", "the text before the gap"),
            taken("input_suffix", "the text after the gap"),
            taken("input_extra", "other files of the project"),
            taken("prompt", "more of the text before the gap, which is never cut"),
        ],
        OF_COMPLETION,
        ASK,
        CONSTRAINTS,
        STOP,
        SAMPLING,
        REFUSED,
        OF_VLLM,
        OF_LLAMA,
    ],
};

pub(crate) static TOKENIZE: Endpoint = Endpoint {
    path: "/tokenize",
    within: "",
    fields: &[&[
        taken("model", "one of the served models"),
        taken("content", "the text"),
        taken("add_special", "with the tokens that the model has before and after a text (false)"),
        taken("parse_special", "names of special tokens in a text are these tokens (true)"),
        taken("with_pieces", "each token with its text (false)"),
    ]],
};

pub(crate) static DETOKENIZE: Endpoint = Endpoint {
    path: "/detokenize",
    within: "",
    fields: &[&[
        taken("model", "one of the served models"),
        taken("tokens", "the ids of the tokens"),
    ]],
};

impl Endpoint {
    /// The line of a field.
    fn line(&self, name: &str) -> Option<&'static Declared> {
        self.fields.iter().copied().flatten().find(|declared| declared.name == name)
    }

    /// Removes fields that are unknown and those that are refused, and calls `unknown` with the paths of the former.
    ///
    /// # Errors
    /// A field is refused, and its value is not one of those that change nothing.
    pub(crate) fn check(
        &self,
        object: &mut Map<String, Value>,
        mut unknown: impl FnMut(String),
    ) -> Result<(), Refusal> {
        let mut outcome = Ok(());
        object.retain(|name, value| match self.line(name) {
            Some(declared @ Declared { used: Use::Refused { .. }, .. }) => {
                if outcome.is_ok() {
                    outcome = declared.check(value);
                }
                false
            }
            Some(_) => true,
            None => {
                if !value.is_null() {
                    unknown(format!("{}{name}", self.within));
                }
                false
            }
        });
        outcome.map_err(|refusal| refusal.within(self.within))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    /// The endpoints of each protocol.
    const PROTOCOLS: [(&str, &[&Endpoint]); 5] = [
        ("OpenAI", &[&CHAT, &COMPLETIONS, &RESPONSES, &EMBEDDINGS]),
        ("Anthropic", &[&MESSAGES]),
        (
            "Ollama",
            &[&OLLAMA_CHAT, &OLLAMA_GENERATE, &OLLAMA_OPTIONS, &OLLAMA_EMBED, &OLLAMA_EMBEDDINGS],
        ),
        ("rerankers", &[&RERANK, &TEI_EMBED, &COHERE_EMBED]),
        ("llama-server", &[&COMPLETION, &INFILL, &TOKENIZE, &DETOKENIZE]),
    ];

    /// A row of a table: what becomes of a field, its name, and the endpoints for which this is so.
    type Row = (String, String, Vec<&'static str>);

    fn fate(used: Use) -> (usize, String) {
        match used {
            Use::Taken(what) => (0, what.to_owned()),
            Use::Refused { unless: [], why } => (1, format!("**refused**: {why}")),
            Use::Refused { unless, why } => {
                let off: Vec<String> = unless.iter().map(|off| format!("`{off}`")).collect();
                (1, format!("**refused** unless it is {}: {why}", off.join(" or ")))
            }
            Use::Ignored(why) => (2, format!("ignored: {why}")),
        }
    }

    /// The rows of the fields that are taken, refused and ignored.
    fn rows(endpoints: &[&'static Endpoint]) -> [Vec<Row>; 3] {
        let mut rows = [const { Vec::<Row>::new() }; 3];
        for endpoint in endpoints {
            for declared in endpoint.fields.iter().copied().flatten() {
                if !std::ptr::eq(endpoint.line(declared.name).unwrap(), declared) {
                    continue;
                }
                let (kind, fate) = fate(declared.used);
                let name = format!("{}{}", endpoint.within, declared.name);
                let same = |row: &&mut Row| row.0 == fate && row.1 == name;
                match rows[kind].iter_mut().find(same) {
                    Some(row) => row.2.push(endpoint.path),
                    None => rows[kind].push((fate, name, vec![endpoint.path])),
                }
            }
        }
        rows
    }

    fn table(endpoints: &[&'static Endpoint]) -> String {
        let mut text = String::from("| Field | Of | What becomes of it |\n|---|---|---|\n");
        for (fate, name, paths) in rows(endpoints).into_iter().flatten() {
            let of = match paths.len() == endpoints.len() {
                true => "all".to_owned(),
                false => paths.join(", ").replace("/v1/", "").replace("/api/", ""),
            };
            text += &format!("| `{name}` | {of} | {} |\n", fate.replace('|', "\\|"));
        }
        text
    }

    #[test]
    fn the_page_has_every_field() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/server.md");
        let text = fs::read_to_string(&path).unwrap();
        let mut made = text.clone();
        for (protocol, endpoints) in PROTOCOLS {
            let begin = format!("<!-- fields of {protocol} -->\n");
            let end = format!("<!-- end of {protocol} -->");
            let (before, rest) = made.split_once(&begin).expect(protocol);
            let (_, after) = rest.split_once(&end).expect(protocol);
            made = format!("{before}{begin}\n{}\n{end}{after}", table(endpoints));
        }
        if std::env::var_os("ALIGHT_WRITE").is_some() {
            fs::write(&path, made).unwrap();
        } else if made != text {
            let new = made.lines().find(|line| !text.contains(line)).unwrap_or_default();
            panic!(
                "docs/reference/server.md is not what endpoints.rs says; ALIGHT_WRITE=1 writes it. New: {new}"
            );
        }
    }

    #[test]
    fn what_has_no_line_is_unknown_and_what_is_refused_is_named() {
        let body = |value: Value| value.as_object().unwrap().clone();
        let mut object = body(json!({"prompt": "a", "x": 1, "y": null, "typical_p": 1, "n": 2}));
        let mut unknown = Vec::new();
        COMPLETION.check(&mut object, |name| unknown.push(name)).unwrap();
        assert_eq!(object, body(json!({"prompt": "a", "n": 2})));
        assert_eq!(unknown, ["x"]);
        let mut object = body(json!({"typical_p": 0.5, "x": 1}));
        let mut unknown = Vec::new();
        let refusal = OLLAMA_OPTIONS.check(&mut object, |name| unknown.push(name)).unwrap_err();
        assert_eq!(refusal.param.as_deref(), Some("options.typical_p"));
        assert!(refusal.message.starts_with("options.typical_p: "), "{}", refusal.message);
        assert_eq!(unknown, ["options.x"]);
        // A line of an endpoint's own comes before one that it shares.
        let mut object = body(json!({"suffix": "b"}));
        COMPLETIONS.check(&mut object, |_| {}).unwrap();
        assert!(CHAT.check(&mut object, |_| {}).is_err());
    }

    #[test]
    fn a_field_has_one_line_in_each_list() {
        for (_, endpoints) in PROTOCOLS {
            for list in endpoints.iter().flat_map(|endpoint| endpoint.fields) {
                for (i, declared) in list.iter().enumerate() {
                    let twice = list[..i].iter().any(|other| other.name == declared.name);
                    assert!(!twice, "{}", declared.name);
                }
            }
        }
    }
}
