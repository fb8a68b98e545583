#!/bin/sh
# Prints the first Python that is 3.11 or newer: $PYTHON if set, else python3, else python3.14 ... python3.11, python.
# Says what to do where there is none (exit status 1).

found=
for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    path=$(command -v "$name" 2>/dev/null) || continue
    if "$path" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        echo "$path"
        exit 0
    fi
    found="$found $name"
done
{
    if [ -n "$found" ]; then
        echo "too old:$found: needed is Python 3.11 or newer, with pip."
    else
        echo "missing: Python 3.11 or newer, with pip."
    fi
    echo "  Debian, Ubuntu: apt install python3 python3-pip   Fedora: dnf install python3 python3-pip"
    echo "  macOS: brew install python   If it has another name: make PYTHON=/path/to/python3 ..."
} >&2
exit 1
