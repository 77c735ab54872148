#!/bin/sh
# quietly.sh TITLE COMMAND...: run the command, a dot every five seconds; show its output only if it fails.
title=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s ' "$title"
"$@" >"$log" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null; exit 130' INT TERM
while kill -0 $pid 2>/dev/null; do
    count=$((${count:-0} + 1))
    [ $((count % 25)) -eq 0 ] && printf '.'
    sleep 0.2
done
if wait $pid; then
    echo 'done'
else
    code=$?
    echo 'failed'
    cat "$log" >&2
    exit $code
fi
