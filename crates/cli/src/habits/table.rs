//! The options of llama.cpp's programs, and some of Ollama's, with their meaning here. docs/reference/llama-cpp.md is generated
//! from the command's replies.

use super::IgnoredValue::{No, One, Switch};
use super::Means::{
    self, EqualsValue, Half, Instead, Instruction, Model, NotNeeded, Repo, RepoDraft, RepoFile,
    Same, Second, Url, Which, Words,
};

/// Options by name; a name that ends with `*` matches all names with that prefix.
pub type Habits = &'static [(&'static [&'static str], Means)];

const CPU: &str = "all of the model is computed on the CPU";
const TOKEN: &str =
    "set HF_TOKEN, or log in with `hf auth login`: others can read what is on a command line";
const SAMPLERS: &str = "tokens are drawn with the stages that --samplers has, and with --mirostat";
const FILE: &str = "what the model's file says of its positions is what counts";
const LOG: &str = "nothing is logged but requests (`alight serve --log`); --stats and --explain-load report what was done";
const TASKSET: &str = "`taskset` chooses the CPUs";
const NICE: &str = "`nice` and `taskset` do that";
const TEXT: &str = "models take and give text alone";
const DRAFTS: &str =
    "tokens are computed ahead wherever that is faster; --speculate auto|off|N says how many";
const NO_THOUGHTS: &str = "there is no limit on thinking; --no-thinking turns it off";
const KNOWN: &str = "computed prompts are reused where another begins in the same way";
const TOOLS: &str = "requests bring their tools, and the client runs them";
const OF_ORIGINS: &str = "pages of the origins in --cors-origins may use every endpoint";
const NAME_IT: &str = "name the model: -hf USER/REPO";
const ALL_MAPPED: &str = "all models are mapped, and the system keeps in memory what is used";
const FIT: &str = "an error says what does not fit into memory, and what to do";

/// Returns the entries for one command, which precede [`ALL`].
pub fn of(command: &str) -> Habits {
    match command {
        "run" => RUN,
        "serve" => SERVE,
        "bench" => BENCH,
        "perplexity" => PERPLEXITY,
        "tokenize" => TOKENIZE,
        _ => &[],
    }
}

/// Returns the advice for a command that other programs have.
pub fn command(word: &str) -> Option<&'static str> {
    Some(match word {
        "chat" => "there is no command 'chat': `alight run MODEL` without a prompt is a chat",
        "ps" => {
            "there is no command 'ps': each `alight run` and `alight serve` is a process of its own, which the system's `ps` lists"
        }
        "show" => "there is no command 'show': `alight inspect MODEL` shows what is in it",
        "version" => "there is no command 'version': `alight --version` prints the version",
        "info" => "there is no command 'info': `alight inspect MODEL` shows what is in a model",
        "download" => "there is no command 'download': `alight pull USER/REPO` fetches a model",
        "create" => {
            "there is no command 'create': a .gguf file is a model by itself, and `alight convert` makes one; a system prompt and other \
             options can be set in config.toml"
        }
        "push" => "there is no command 'push': `hf upload` brings files to the hub",
        "stop" => {
            "there is no command 'stop': Ctrl-C ends an `alight run` or `alight serve`, and nothing else is running"
        }
        "embedding" | "embeddings" => {
            "there is no command 'embedding': `alight embed` makes vectors of texts"
        }
        "update" | "upgrade" => {
            "there is no command 'update': install the new version over this one, in the same way (docs/how-to/install.md)"
        }
        "-m" | "--model" | "-hf" | "--hf-repo" => {
            "a command comes first: `alight run` answers a prompt, `alight serve` answers programs"
        }
        _ => return None,
    })
}

const BENCH: Habits =
    &[(&["-pg"], Instead("-p and -n measure prompts and answers, and -d what stands before them"))];

const PERPLEXITY: Habits = &[
    (&["-f", "--file"], Second),
    (
        &["--kl-divergence-base", "--kl-divergence", "--save-all-logits"],
        Instead("--save-logits FILE writes the file, and --kl-base FILE compares with it"),
    ),
];

const TOKENIZE: Habits =
    &[(&["--stdin"], NotNeeded(No, "standard input is read where no text is given"))];

const RUN: Habits = &[
    (
        &["--format"],
        Which(
            &[("json", &["--json-schema", "{\"type\":\"object\"}"])],
            "--json-schema constrains the answer to a schema; --json writes the answer with its statistics",
        ),
    ),
    (&["-jf"], Same("--json-schema-file")),
    (&["-o", "--output", "--output-file"], Instead("write `> FILE` after the command")),
    (&["--show-timings"], Words(&["--stats"])),
    (
        &["--server-base"],
        Instead("`alight run` computes by itself; curl, or any client of OpenAI's, asks a server"),
    ),
    (
        &["--reasoning-effort"],
        Instead("--chat-template-kwargs '{\"reasoning_effort\": \"high\"}' is that variable"),
    ),
    (
        &["--reasoning-format"],
        NotNeeded(
            One,
            "a terminal dims the thinking, a pipe has it between <think> and </think>, and --json apart",
        ),
    ),
    (
        &["-np", "--parallel"],
        Instead(
            "`alight batch` answers many prompts at the same time, and `alight serve` many requests",
        ),
    ),
];

const SERVE: Habits = &[
    (
        &["-p", "--prompt", "-f", "--file", "-bf", "--binary-file"],
        Instead("prompts come with requests; known ones are kept in --cache-dir"),
    ),
    (
        &["-sys", "--system-prompt", "-sysf", "--system-prompt-file"],
        Instead("a request begins with a message of the role `system`"),
    ),
    (&["--server-base", "-o", "--output", "--output-file"], Instead("answers go to the client")),
    (&["-r", "--reverse-prompt"], Instead("a request says where its answer stops: `stop`")),
    (&["--ignore-eos"], Instead("a request asks for it: `ignore_eos`")),
    (
        &["--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"],
        Instead("a request brings its schema or grammar: `response_format`, `grammar`"),
    ),
    (&["-l", "--logit-bias"], Instead("a request brings it: `logit_bias`")),
    (&["-no-cnv", "--no-conversation"], NotNeeded(No, "/v1/completions continues a text as it is")),
    (&["-cnv", "--conversation"], NotNeeded(No, "/v1/chat/completions is for conversations")),
    (&["--perf", "--show-timings"], NotNeeded(No, "--metrics serves times at /metrics")),
    (
        &["--reasoning-effort"],
        Instead(
            "--chat-template-kwargs '{\"reasoning_effort\": \"high\"}' is that variable; a request's own comes first",
        ),
    ),
    (&["-rea"], Same("--reasoning")),
    (&["-cram"], Same("--cache-ram")),
    (
        &["--reasoning-budget-message"],
        Instead("the thinking ends with the mark that the model has for it"),
    ),
    (&["--reasoning-format"], NotNeeded(One, "what the model thinks is in `reasoning_content`")),
    (
        &["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"],
        Instead("known prompts are kept in --cache-dir, unless --no-cache is given"),
    ),
];

/// Entries for every command.
pub const ALL: Habits = &[
    // Requests for something other than an answer.
    (&["--usage"], Words(&["--help"])),
    (&["--version"], Instruction(&["--version"])),
    (&["-cl", "--cache-list"], Instruction(&["list"])),
    (&["--completion-bash"], Instruction(&["completions", "bash"])),
    (&["--list-devices"], Instead(CPU)),
    // The model, and its input.
    (&["-m", "--model"], Model),
    (&["-hf", "-hfr", "--hf-repo"], Repo),
    (&["-hff", "--hf-file"], RepoFile),
    (&["-mu", "--model-url"], Url),
    (&["-hft", "--hf-token"], Instead(TOKEN)),
    (
        &["-dr", "--docker-repo"],
        Instead("models come from the Hugging Face hub (-hf USER/REPO) or from files"),
    ),
    (&["--fim-*", "--gpt-oss-*", "--vision-*", "--embd-gemma-default"], Instead(NAME_IT)),
    (&["-sys"], Same("--system")),
    (&["-sysf", "--system-prompt-file"], Instead("write --system \"$(cat FILE)\"")),
    (&["-bf", "--binary-file"], Instead("a prompt is text: -f reads it from a file")),
    (&["-e", "--escape"], Instead("the shell makes line breaks: $'one\\ntwo'")),
    (&["--no-escape"], NotNeeded(No, "a backslash in a prompt is a backslash")),
    (&["-no-cnv", "--no-conversation"], Words(&["--raw"])),
    (
        &["-cnv", "--conversation", "-i", "--interactive", "-if", "--interactive-first"],
        NotNeeded(No, "a chat begins where there is no prompt"),
    ),
    (&["-st", "--single-turn"], NotNeeded(No, "with a prompt there is one answer")),
    (
        &["-mli", "--multiline-input"],
        NotNeeded(No, "a chat takes several lines between \"\"\" and \"\"\", or with Alt-Enter"),
    ),
    (
        &["--in-prefix-bos", "--in-prefix", "--in-suffix"],
        Instead("the chat template says what stands around a message: --chat-template-file"),
    ),
    (&["--jinja", "--no-jinja"], NotNeeded(No, "the model's own template is always used")),
    (&["--chat-template"], Instead("give the template as a file, with --chat-template-file")),
    (
        &["--skip-chat-parsing", "--no-skip-chat-parsing"],
        NotNeeded(No, "with --raw, and at /v1/completions, a text is a text"),
    ),
    (
        &["--prefill-assistant", "--no-prefill-assistant"],
        NotNeeded(No, "/v1/completions continues whatever an answer begins with"),
    ),
    (&["--spm-infill"], Instead("what /infill asks begins with the text before the gap")),
    (
        &["-rea", "--reasoning"],
        Which(&[("on", &[]), ("auto", &[]), ("off", &["--no-thinking"])], NO_THOUGHTS),
    ),
    (&["--reasoning-budget"], Which(&[("-1", &[]), ("0", &["--no-thinking"])], NO_THOUGHTS)),
    (&["--reasoning-budget-message"], Instead(NO_THOUGHTS)),
    // Ollama's.
    (
        &["--think"],
        EqualsValue(&[("", &[]), ("true", &[]), ("false", &["--no-thinking"])], NO_THOUGHTS),
    ),
    (&["--hidethinking"], Words(&["--no-thinking"])),
    (
        &["--keepalive"],
        NotNeeded(
            One,
            "a model is there as long as its command runs; `alight serve --sleep-idle-seconds N` gives memory back earlier",
        ),
    ),
    (
        &["--nowordwrap"],
        NotNeeded(No, "lines are broken between words in a chat alone, for its terminal"),
    ),
    (
        &["--reasoning-preserve", "--no-reasoning-preserve"],
        NotNeeded(No, "the chat template decides what stays of earlier thinking"),
    ),
    // Output.
    (&["-co", "--color"], NotNeeded(Switch, "a terminal gets colours, unless NO_COLOR is set")),
    (&["--simple-io"], NotNeeded(No, "a pipe gets nothing but the answer")),
    (&["--no-display-prompt"], NotNeeded(No, "the prompt is never repeated")),
    (&["--display-prompt"], Instead("the prompt is never repeated")),
    (
        &["--verbose-prompt"],
        Instead("`alight serve` shows prompts, at /apply-template and /tokenize"),
    ),
    (&["-sp", "--special"], Instead("special tokens are no part of an answer")),
    (&["-ptc", "--print-token-count"], Instead("--stats says how many tokens there were")),
    (&["--perf"], Words(&["--stats"])),
    (&["--no-perf", "--no-show-timings"], NotNeeded(No, "times are reported with --stats only")),
    (
        &["--log-disable", "-v", "--verbose", "--log-verbose", "--log-jsonl", "--no-log-*"],
        NotNeeded(No, LOG),
    ),
    (&["--log-prefix", "--log-timestamps"], NotNeeded(No, LOG)),
    (
        &[
            "-lv",
            "--verbosity",
            "--log-verbosity",
            "--log-file",
            "--log-colors",
            "--log-prompts-dir",
        ],
        NotNeeded(One, LOG),
    ),
    // Sampling, and the end of an answer.
    (&["-r", "--reverse-prompt"], Same("--stop")),
    (&["--typical*", "--dynatemp-*", "--adaptive-*", "--logit-bias", "-l"], Instead(SAMPLERS)),
    (&["-bs", "--backend-sampling"], NotNeeded(No, CPU)),
    (&["--keep"], NotNeeded(One, "a chat that grows too long forgets its oldest exchanges")),
    (
        &["--context-shift", "--no-context-shift"],
        NotNeeded(No, "an answer ends where the context does"),
    ),
    // Loading of weights.
    (&["--mlock"], Words(&["--lock"])),
    (&["--no-mmap"], Words(&["--load", "read"])),
    (&["--mmap"], Words(&["--load", "mmap"])),
    (&["-dio", "--direct-io"], Words(&["--load", "direct"])),
    (&["-ndio", "--no-direct-io"], Words(&["--load", "mmap"])),
    (&["--reclaim-mmap-source"], Words(&["--reclaim", "on"])),
    (&["--no-reclaim-mmap-source"], Words(&["--reclaim", "off"])),
    (
        &["-lm", "--load-mode"],
        Which(
            &[
                ("auto", &["--load", "auto"]),
                ("none", &["--load", "read"]),
                ("mmap", &["--load", "mmap"]),
                ("mlock", &["--load", "read", "--lock"]),
                ("mmap+mlock", &["--load", "mmap", "--lock"]),
                ("dio", &["--load", "direct"]),
            ],
            "it is auto, none, mmap, mlock, mmap+mlock or dio",
        ),
    ),
    (
        &["-lzm", "--lazy-mode"],
        NotNeeded(One, "where a token takes rows of a table, the rows alone are read"),
    ),
    (&["-nr", "--no-repack"], Words(&["--repack", "off"])),
    (&["--override-kv"], Instead("`gguf_set_metadata.py` of llama.cpp writes keys into a file")),
    (
        &["--lora-init-without-apply"],
        Instead("`alight serve --lora NAME=FILE`: only requests that name it have it"),
    ),
    (
        &["--lora*"],
        Instead(
            "`run`, `batch`, `serve` and `perplexity` have --lora; `alight merge` adds an adapter to a model's file",
        ),
    ),
    (&["--control-vector*"], Instead("control vectors are not read")),
    (
        &["-mm", "--mmproj", "-mmu", "--mmproj-url", "--image*", "--audio", "--video*"],
        Instead(TEXT),
    ),
    (&["-mmdev", "--mmproj-device", "--mtmd-batch-max-tokens", "--media-path"], Instead(TEXT)),
    (&["--mmproj-auto", "--no-mmproj*", "--mmproj-offload"], NotNeeded(No, TEXT)),
    (&["-fit", "--fit"], NotNeeded(Switch, FIT)),
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], NotNeeded(One, FIT)),
    // Devices and threads.
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], NotNeeded(One, CPU)),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], NotNeeded(One, CPU)),
    (&["-dev", "--device", "-ot", "--override-tensor"], NotNeeded(One, CPU)),
    (&["-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"], NotNeeded(One, CPU)),
    (
        &["-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"],
        NotNeeded(No, CPU),
    ),
    (&["--op-offload", "--no-op-offload", "--no-host"], NotNeeded(No, CPU)),
    (&["--moe-cache-mib"], NotNeeded(One, "--memory says how much memory experts may take")),
    (&["--rpc"], Instead("one machine computes")),
    (&["-tb", "--threads-batch"], NotNeeded(One, "prompts are computed with the threads of -t")),
    (&["--numa"], NotNeeded(One, "weights are read where they are")),
    (
        &[
            "-C",
            "--cpu-mask",
            "-Cr",
            "--cpu-range",
            "-Cb",
            "--cpu-mask-batch",
            "-Crb",
            "--cpu-range-batch",
        ],
        NotNeeded(One, TASKSET),
    ),
    (&["--cpu-strict*", "--prio*", "--poll*"], NotNeeded(One, NICE)),
    // Batch sizes and caches.
    (&["-np"], Same("--parallel")),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], Half("--cache-type")),
    (&["-fa", "--flash-attn"], NotNeeded(Switch, "attention is always computed that way")),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        NotNeeded(One, "prompts are computed in pieces of a size that suits the CPU"),
    ),
    (&["--no-warmup", "--warmup"], NotNeeded(No, "there is no run before the first")),
    (
        &["--prompt-cache*"],
        Instead("--cache keeps what was computed of prompts, all in one folder"),
    ),
    (&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], NotNeeded(One, KNOWN)),
    (&["-cms", "--checkpoint-min-step", "-cram", "--cache-ram"], NotNeeded(One, KNOWN)),
    (&["-sps", "--slot-prompt-similarity", "--cache-reuse"], NotNeeded(One, KNOWN)),
    (&["--cache-prompt", "--cache-idle-slots", "--no-cache-idle-slots"], NotNeeded(No, KNOWN)),
    (
        &["--no-cache-prompt"],
        NotNeeded(No, "an answer is the same with a known prompt and without"),
    ),
    (&["--swa-full"], NotNeeded(No, "keys and values of all positions are kept")),
    (
        &["-dt", "--defrag-thold"],
        NotNeeded(One, "keys and values are in pages, which leave no gaps"),
    ),
    (
        &["-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"],
        NotNeeded(No, "each sequence has its own context"),
    ),
    (&["--kv-unified-per-slot"], NotNeeded(One, "each sequence has its own context")),
    (&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"], Instead(FILE)),
    (&["--rope-*", "--yarn-*"], Instead(FILE)),
    // Drafts.
    (&["-md", "--spec-draft-model"], Same("--draft")),
    (&["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"], RepoDraft),
    (
        &["-td", "--threads-draft", "-tbd", "--threads-batch-draft", "--spec-draft-threads*"],
        NotNeeded(One, "the draft model has the threads of -t"),
    ),
    (
        &[
            "-Cd",
            "-Crd",
            "-Cbd",
            "-Crbd",
            "--cpu-mask*",
            "--cpu-range*",
            "--spec-draft-cpu-mask*",
            "--spec-draft-cpu-range*",
        ],
        NotNeeded(One, TASKSET),
    ),
    (
        &["--spec-draft-cpu-strict*", "--spec-draft-prio*", "--spec-draft-poll*"],
        NotNeeded(One, NICE),
    ),
    (
        &["-ctkd", "-ctvd", "--cache-type-k-draft", "--cache-type-v-draft", "--spec-draft-type-*"],
        NotNeeded(One, "the draft model keeps keys and values as f16"),
    ),
    (
        &["-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"],
        NotNeeded(One, CPU),
    ),
    (
        &["-devd", "--device-draft", "--spec-draft-device", "-otd", "--override-tensor-draft"],
        NotNeeded(One, CPU),
    ),
    (
        &[
            "--spec-draft-override-tensor",
            "-ncmoed",
            "--n-cpu-moe-draft",
            "--spec-draft-n-cpu-moe",
            "--spec-draft-ncmoe",
        ],
        NotNeeded(One, CPU),
    ),
    (&["-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"], NotNeeded(No, CPU)),
    (&["--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"], NotNeeded(No, CPU)),
    (&["--spec-default"], NotNeeded(No, DRAFTS)),
    (
        &["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic", "--spec-*"],
        NotNeeded(One, DRAFTS),
    ),
    (
        &["--draft-n", "--draft-max", "--draft-min", "--draft-n-min", "--draft-p-*"],
        NotNeeded(One, DRAFTS),
    ),
    // The server.
    (&["-cb", "--cont-batching"], NotNeeded(No, "requests are always computed together")),
    (
        &["-nocb", "--no-cont-batching"],
        Instead("--parallel 1 computes one request after the other"),
    ),
    (&["--embedding", "--embeddings"], NotNeeded(No, "every model answers at /v1/embeddings")),
    (&["--pooling"], Instead("a request to /v1/embeddings says it: `pooling`")),
    (&["--embd-normalize"], Instead("a request to /v1/embeddings says it: `embd_normalize`")),
    (
        &["--rerank", "--reranking"],
        NotNeeded(No, "every model that scores pairs of texts answers at /v1/rerank"),
    ),
    (
        &["-to", "--timeout"],
        NotNeeded(One, "an answer has no time limit, and ends when its client disconnects"),
    ),
    (
        &["--sse-ping-interval"],
        NotNeeded(One, "a silent stream gets a keep-alive comment every five seconds"),
    ),
    (
        &["--threads-http"],
        NotNeeded(One, "requests wait for the model, never for each other's bytes"),
    ),
    (&["--reuse-port"], Instead("one server listens at a port")),
    (&["--path"], Instead("there is the server's own page alone: another program serves files")),
    (&["--api-prefix"], Instead("a proxy in front of the server can add it")),
    (&["--ssl-*"], Instead("a proxy in front of the server speaks TLS")),
    (&["--cors-methods", "--cors-headers"], NotNeeded(One, OF_ORIGINS)),
    (&["--cors-credentials", "--no-cors-credentials"], NotNeeded(No, OF_ORIGINS)),
    (&["--ui", "--webui"], NotNeeded(No, "the page is there, unless --no-ui is given")),
    (&["--ui-config*", "--webui-config*"], Instead("the page keeps its settings in the browser")),
    (&["--no-ui-mcp-proxy", "--no-webui-mcp-proxy", "-no-ag", "--no-agent"], NotNeeded(No, TOOLS)),
    (
        &["--ui-mcp-proxy", "--webui-mcp-proxy", "--tools*", "--mcp-*", "-ag", "--agent"],
        Instead(TOOLS),
    ),
    (&["--props"], Instead("what the server was started with stays as it is")),
    (&["--tags"], NotNeeded(One, "-a names the model")),
    (&["--models-dir"], Instead("give the folder in place of the model")),
    (&["--models-preset"], Instead("config.toml has defaults: see docs/how-to/run.md")),
    (&["--models-max"], NotNeeded(One, ALL_MAPPED)),
    (&["--models-autoload", "--no-models-autoload"], NotNeeded(No, ALL_MAPPED)),
];
