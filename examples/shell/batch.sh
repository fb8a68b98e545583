#!/bin/sh
# Many prompts, a line each, several at a time. Given again, it goes on where it was cut: sh examples/shell/batch.sh model.gguf
set -eu
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
for country in Germany Egypt Japan; do
    printf '{"custom_id": "%s", "prompt": "What is the capital of %s?"}\n' "$country" "$country"
done > "$folder/prompts.jsonl"
alight batch "$1" "$folder/prompts.jsonl" -o "$folder/answers.jsonl" --temp 0 -n 20
sed 's/.*"custom_id":"\([^"]*\)".*"content":"\([^"]*\)".*/\1: \2/' "$folder/answers.jsonl"
