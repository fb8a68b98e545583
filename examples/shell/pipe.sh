#!/bin/sh
# What a command prints, and a question about it; the answer as JSON for the next program: sh examples/shell/pipe.sh model.gguf
set -eu
printf 'Paris is the capital of France. Rome is the capital of Italy.\n' |
    alight run "$1" "Which city is the capital of Italy?" --temp 0 -n 30 --json |
    sed 's/.*"answer":"\([^"]*\)".*/\1/'
