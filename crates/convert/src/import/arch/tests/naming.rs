//! Comparisons with recorded guesses of the `gguf` package.

use crate::import::arch::naming::{parts, size_label};

#[test]
fn names_are_taken_apart_as_the_gguf_package_does() {
    // Name and parameters; name, organisation, family, tuning, version and size.
    for (id, parameters, expected) in [
        (
            "SmolLM2-135M-Instruct",
            134515008,
            ["SmolLM2 135M Instruct", "-", "SmolLM2", "Instruct", "-", "135M"],
        ),
        (
            "meta-llama/Llama-3.1-8B-Instruct",
            8030261248,
            ["Llama 3.1 8B Instruct", "Meta Llama", "Llama-3.1", "Instruct", "-", "8B"],
        ),
        ("Mistral-7B-v0.1", 7241732096, ["Mistral 7B v0.1", "-", "Mistral", "-", "v0.1", "7B"]),
        (
            "Qwen2.5-0.5B-Instruct",
            494032768,
            ["Qwen2.5 0.5B Instruct", "-", "Qwen2.5", "Instruct", "-", "0.5B"],
        ),
        ("Qwen/Qwen3-0.6B", 596049920, ["Qwen3 0.6B", "Qwen", "Qwen3", "-", "-", "0.6B"]),
        (
            "google/gemma-2-2b-it",
            2614341888,
            ["Gemma 2 2b It", "Google", "gemma-2", "it", "-", "2B"],
        ),
        ("gemma-3-270m-it", 268098176, ["Gemma 3 270m It", "-", "gemma-3", "it", "-", "270M"]),
        ("bloom-7b1-mt", 7069016064, ["Bloom 7b1 Mt", "-", "bloom", "mt", "-", "7.1B"]),
        (
            "Mixtral-8x7B-Instruct-v0.1",
            46702792704,
            ["Mixtral 8x7B Instruct v0.1", "-", "Mixtral", "Instruct", "v0.1", "8x7B"],
        ),
        ("Qwen3-30B-A3B", 30532122624, ["Qwen3 30B A3B", "-", "Qwen3", "-", "-", "30B-A3B"]),
        (
            "Phi-3-mini-4k-instruct",
            3821079552,
            ["Phi 3 Mini 4k Instruct", "-", "Phi-3", "4k-instruct", "-", "mini"],
        ),
        ("./model", 1000, ["Model", "-", "-", "-", "-", "-"]),
        ("a model with spaces", 1000, ["A Model With Spaces", "-", "-", "-", "-", "-"]),
        (
            "TinyLlama-1.1B-Chat-v1.0",
            1100048384,
            ["TinyLlama 1.1B Chat v1.0", "-", "TinyLlama", "Chat", "v1.0", "1.1B"],
        ),
        ("checkpoint-500", 1000000, ["Checkpoint 500", "-", "checkpoint", "-", "500", "-"]),
        ("v2", 10, ["v2", "-", "-", "-", "v2", "-"]),
        (
            "Yarn-Llama-2-7b-128k",
            6738415616,
            ["Yarn Llama 2 7b 128k", "-", "Yarn-Llama-2", "128k", "-", "7B"],
        ),
        ("model-F16", 1000, ["Model F16", "-", "-", "-", "-", "-"]),
        ("model-q4_0", 1000, ["Model Q4_0", "-", "-", "-", "-", "-"]),
        ("model-iq4_xs-x", 1000, ["Model Iq4_Xs X", "-", "-", "-", "-", "-"]),
        ("bf16-model-small", 1000, ["Bf16 Model Small", "-", "-", "model", "-", "small"]),
        (
            "Llama-xl-7B-small",
            7000000000,
            ["Llama Xl 7B Small", "-", "Llama-xl", "small", "-", "7B"],
        ),
        ("open_llama_3b", 3426473600, ["Open_Llama_3B", "-", "-", "-", "-", "-"]),
        (
            "DeepSeek-R1-Distill-Qwen-1.5B",
            1777088000,
            ["DeepSeek R1 Distill Qwen 1.5B", "-", "DeepSeek-R1-Distill-Qwen", "-", "-", "1.5B"],
        ),
        ("--a--", 1, ["A", "-", "-", "-", "-", "-"]),
        (
            "Nous-Hermes-2-Mistral-7B-DPO",
            7241732096,
            ["Nous Hermes 2 Mistral 7B DPO", "-", "Nous-Hermes-2-Mistral", "DPO", "-", "7B"],
        ),
        (
            "llama-3.2-1b-iter3-x",
            1235814400,
            ["Llama 3.2 1b Iter3 X", "-", "llama-3.2", "x", "iter3", "1B"],
        ),
        ("gpt2-l-9", 5, ["Gpt2 L 9", "-", "gpt2-l", "-", "9", "-"]),
        ("X-1_5b", 1500000000, ["X 1_5b", "-", "X", "-", "-", "1.5B"]),
        ("org/a/b-7B", 7000000000, ["A/B 7B", "Org", "a/b", "-", "-", "7B"]),
        (
            "mistral-nemo-12B-l-2407",
            12247782400,
            ["Mistral Nemo 12B L 2407", "-", "mistral-nemo", "l", "2407", "12B"],
        ),
        ("7B-chat", 7000000000, ["7B Chat", "-", "-", "7B-chat", "-", "-"]),
        ("model-v", 3, ["Model V", "-", "-", "-", "-", "-"]),
        (
            "dolly-vision-A14B",
            14000000000,
            ["Dolly Vision A14B", "-", "dolly", "vision", "-", "A14B"],
        ),
    ] {
        let found = parts(id, parameters);
        let found = [
            found.name,
            found.organization,
            found.basename,
            found.finetune,
            found.version,
            found.size_label,
        ];
        let found = found.map(|part| part.unwrap_or("-".into()));
        assert_eq!(found, expected, "{id}");
    }
}

#[test]
fn sizes_have_two_digits_or_more() {
    for (parameters, expected) in [
        (0, "0.00K"),
        (1, "0.00K"),
        (999, "1.0K"),
        (1000, "1.0K"),
        (9940, "10K"),
        (9960, "10K"),
        (99400, "99K"),
        (123456, "123K"),
        (999499, "999K"),
        (1000000, "1000K"),
        (1000001, "1.0M"),
        (134515008, "135M"),
        (999600000, "1000M"),
        (1100048384, "1.1B"),
        (9960000000, "10B"),
        (7241732096, "7.2B"),
        (70553706496, "71B"),
        (1000000000001, "1.0T"),
        (405000000000, "405B"),
    ] {
        assert_eq!(size_label(parameters), expected, "{parameters}");
    }
    size_label(u64::MAX);
}

#[test]
fn strange_names_are_names() {
    for id in [
        "",
        "-",
        "/",
        "//",
        "é-é7b-x",
        "-7b_-x7",
        "x-7b1b1",
        "x-é1",
        "A-Ax7.b",
        "ß-ǆ",
        "x-.7B",
        "x-7.B",
    ] {
        parts(id, 7_000_000_000);
    }
    let long = format!("a{}", "-7b".repeat(3000));
    assert_eq!(parts(&long, 7_000_000_000).size_label.unwrap(), "7B");
}
