"""Unchanged clients of vectors and scores against `alight serve`: what they get is what `alight embed` and `alight rerank` print.

openai and ollama are in requirements.txt. cohere, and the classes of LangChain and LlamaIndex, are in requirements-vectors.txt: a package that is missing is
named and left out. Open WebUI is no package of its own that could be called: its three requests are made as it makes them.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import urllib.request
from pathlib import Path

from evidence.agree import encoders
from evidence.lib import common
from evidence.lib.checks import Checks

TEXTS = ["The sky is blue.", "A cat sleeps on the mat.", "日本語のテキスト"]
QUERY = "What is a panda?"
LIMIT = 1e-6


def models(folder: Path) -> tuple[Path, Path]:
    """A small encoder and a small reranker, with random weights."""
    bert = encoders.PEERS[0]
    head = encoders.biased(**{"cls": encoders.SQUARE, "cls.output": (1, encoders.HIDDEN)})
    scores = encoders.Peer("bert, pairs", bert.arch, bert.keys | {"pooling_type": 4}, bert.tensors | head, bert.layer)
    paths = folder / "vectors.gguf", folder / "scores.gguf"
    for case, path in zip((bert, scores), paths):
        encoders.write_peer(case, path, {})
    return paths


def lines(program: Path, command: str, model: Path, *more: str) -> list[dict]:
    """What the command prints for the texts."""
    given = "".join(json.dumps(text) + "\n" for text in TEXTS)
    done = subprocess.run([program, command, model, *more, "--json"], input=given, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def near(found, expected) -> bool:
    """The same numbers, but for the last digit."""
    rows = list(zip(found, expected, strict=True))
    return all(len(a) == len(b) and all(abs(x - y) <= LIMIT for x, y in zip(a, b)) for a, b in rows)


def post(address: str, body: dict):
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class VectorClients:
    """Compares what clients get."""

    def __init__(self, address: str, vectors: list, scores: list[float], checks: Checks):
        self.address, self.expected, self.scores, self.checks = address, vectors, scores, checks
        self.ranked = sorted(range(len(TEXTS)), key=lambda i: -scores[i])

    def embeds(self, who: str, all_texts, one_text=None) -> None:
        """Checks the vectors of all texts, and that of the first alone."""
        same = near(all_texts, self.expected) and (one_text is None or near([one_text], self.expected[:1]))
        self.checks.add(same, f"{who}: vectors are those of alight embed")

    def ranks(self, who: str, results: list[tuple[int, float]], top: int) -> None:
        """Checks indices and scores, the best first."""
        same = [index for index, _ in results] == self.ranked[:top] and near([[score for _, score in results]], [[self.scores[i] for i in self.ranked[:top]]])
        self.checks.add(same, f"{who}: scores are those of alight rerank")

    def with_openai(self) -> None:
        import openai

        client = openai.OpenAI(base_url=f"{self.address}/v1", api_key="none")
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            data = client.embeddings.create(model="vectors", input=TEXTS, **encoding).data
            if encoding.get("encoding_format") == "base64":
                self.checks.add(all(isinstance(one.embedding, str) for one in data), "openai: base64 stays so if it was asked for")
            else:
                self.embeds(f"openai {encoding or 'by default'}", [one.embedding for one in data])

    def with_ollama(self) -> None:
        import ollama

        client = ollama.Client(host=self.address)
        self.embeds("ollama", client.embed(model="vectors", input=TEXTS).embeddings, client.embed(model="vectors", input=TEXTS[0]).embeddings[0])

    def with_cohere(self) -> None:
        import cohere

        for name, client in (("Client", cohere.Client), ("ClientV2", cohere.ClientV2)):
            found = client("none", base_url=self.address).rerank(model="scores", query=QUERY, documents=TEXTS, top_n=2)
            self.ranks(f"cohere.{name}", [(one.index, one.relevance_score) for one in found.results], 2)
        first = cohere.Client("none", base_url=self.address).embed(model="vectors", texts=TEXTS, input_type="search_document")
        self.embeds("cohere.Client.embed", first.embeddings)
        second = cohere.ClientV2("none", base_url=self.address)
        found = second.embed(model="vectors", texts=TEXTS, input_type="search_query", embedding_types=["float", "ubinary"])
        self.embeds("cohere.ClientV2.embed", found.embeddings.float_)

    def with_langchain_openai(self) -> None:
        from langchain_openai import OpenAIEmbeddings

        # It would send tokens of OpenAI's own vocabulary otherwise.
        embeddings = OpenAIEmbeddings(base_url=f"{self.address}/v1", api_key="none", model="vectors", check_embedding_ctx_length=False)
        self.embeds("LangChain OpenAIEmbeddings", embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[0]))

    def with_langchain_ollama(self) -> None:
        from langchain_ollama import OllamaEmbeddings

        embeddings = OllamaEmbeddings(base_url=self.address, model="vectors")
        self.embeds("LangChain OllamaEmbeddings", embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[0]))

    def with_langchain_cohere(self) -> None:
        from langchain_cohere import CohereEmbeddings, CohereRerank
        from langchain_core.documents import Document

        rerank = CohereRerank(base_url=self.address, cohere_api_key="none", model="scores", top_n=3)
        found = rerank.rerank(TEXTS, QUERY)
        self.ranks("LangChain CohereRerank", [(one["index"], one["relevance_score"]) for one in found], 3)
        documents = rerank.compress_documents([Document(page_content=text) for text in TEXTS], QUERY)
        embeddings = CohereEmbeddings(base_url=self.address, cohere_api_key="none", model="vectors")
        self.embeds("LangChain CohereEmbeddings", embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[0]))
        self.ranks("LangChain CohereRerank, documents", [(TEXTS.index(one.page_content), one.metadata["relevance_score"]) for one in documents], 3)

    def with_llama_index_openai(self) -> None:
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding

        embeddings = OpenAILikeEmbedding(model_name="vectors", api_base=f"{self.address}/v1", api_key="none")
        self.embeds("LlamaIndex OpenAILikeEmbedding", embeddings.get_text_embedding_batch(TEXTS), embeddings.get_text_embedding(TEXTS[0]))

    def with_llama_index_ollama(self) -> None:
        from llama_index.embeddings.ollama import OllamaEmbedding

        embeddings = OllamaEmbedding(model_name="vectors", base_url=self.address)
        self.embeds("LlamaIndex OllamaEmbedding", embeddings.get_text_embedding_batch(TEXTS), embeddings.get_text_embedding(TEXTS[0]))

    def with_llama_index_tei(self) -> None:
        from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

        embeddings = TextEmbeddingsInference(model_name="vectors", base_url=self.address)
        self.embeds("LlamaIndex TextEmbeddingsInference", embeddings.get_text_embedding_batch(TEXTS), embeddings.get_text_embedding(TEXTS[0]))

    def with_llama_index_cohere(self) -> None:
        from llama_index.core.schema import NodeWithScore, TextNode
        from llama_index.postprocessor.cohere_rerank import CohereRerank

        rerank = CohereRerank(base_url=self.address, api_key="none", model="scores", top_n=2)
        nodes = rerank.postprocess_nodes([NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS], query_str=QUERY)
        self.ranks("LlamaIndex CohereRerank", [(TEXTS.index(node.node.text), node.score) for node in nodes], 2)

    def with_open_webui(self) -> None:
        """Its embedding engines `openai` and `ollama`, and its external reranker."""
        found = post(f"{self.address}/v1/embeddings", {"input": TEXTS, "model": "vectors"})
        self.embeds("Open WebUI, openai", [one["embedding"] for one in found["data"]])
        found = post(f"{self.address}/api/embed", {"input": TEXTS, "model": "vectors", "truncate": True})
        self.embeds("Open WebUI, ollama", found["embeddings"])
        found = post(f"{self.address}/v1/rerank", {"model": "scores", "query": QUERY, "documents": TEXTS, "top_n": len(TEXTS)})
        self.ranks("Open WebUI, external reranker", [(one["index"], one["relevance_score"]) for one in found["results"]], len(TEXTS))


# What a part needs, and the part.
PARTS = {
    "openai": VectorClients.with_openai,
    "ollama": VectorClients.with_ollama,
    "cohere": VectorClients.with_cohere,
    "langchain_openai": VectorClients.with_langchain_openai,
    "langchain_ollama": VectorClients.with_langchain_ollama,
    "langchain_cohere": VectorClients.with_langchain_cohere,
    "llama_index.embeddings.openai_like": VectorClients.with_llama_index_openai,
    "llama_index.embeddings.ollama": VectorClients.with_llama_index_ollama,
    "llama_index.embeddings.text_embeddings_inference": VectorClients.with_llama_index_tei,
    "llama_index.postprocessor.cohere_rerank": VectorClients.with_llama_index_cohere,
    "json": VectorClients.with_open_webui,
}


def run(program: Path, folder: Path, serving, checks: Checks) -> None:
    """Drives all clients that are installed; `serving(program, *arguments)` starts a server."""
    vectors, scores = models(folder)
    expected = [line["embedding"] for line in lines(program, "embed", vectors)]
    ranked = {line["index"]: line["relevance_score"] for line in lines(program, "rerank", scores, QUERY)}
    missing = []
    with serving(program, vectors, scores) as address:
        clients = VectorClients(address, expected, [ranked[i] for i in range(len(TEXTS))], checks)
        for package, part in PARTS.items():
            try:
                importlib.import_module(package)
            except ImportError:
                missing.append(package)
                continue
            try:
                part(clients)
            except Exception as error:  # of any client
                checks.wrong(package, f"{type(error).__name__}: {error}"[:800])
    if missing:
        common.say(f"left out, not installed: {', '.join(missing)} (evidence/requirements-vectors.txt)")
