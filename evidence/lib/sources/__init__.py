"""Model files as other programs write them, made by numpy from the descriptions of the formats alone.

`model` has the weights and a vocabulary, each other module one format: `hf` (Hugging Face), `meta` (consolidated.NN.pth),
`legacy` (ggml, ggmf, ggjt). Everything is a function of its arguments: the same call writes the same bytes.
"""
