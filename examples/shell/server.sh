#!/bin/sh
# A server, asked with curl: an answer, and one that is JSON of a schema: sh examples/shell/server.sh model.gguf [PORT]
set -eu
url=http://127.0.0.1:${2:-8080}
alight serve "$1" --port "${2:-8080}" &
trap 'kill $!' EXIT
curl -sS --retry 50 --retry-connrefused --retry-delay 1 "$url/health"
echo

curl -sS "$url/v1/chat/completions" -d '{
    "messages": [{"role": "user", "content": "What is the capital of Germany?"}], "temperature": 0, "max_tokens": 20}'
echo

curl -sS "$url/v1/chat/completions" -d '{
    "messages": [{"role": "user", "content": "Paris has two million inhabitants. Which city is this about?"}], "temperature": 0, "max_tokens": 60,
    "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "inhabitants": {"type": "integer"}},
        "required": ["city", "inhabitants"], "additionalProperties": false}}}}'
echo
