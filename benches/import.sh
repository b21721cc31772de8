#!/usr/bin/env bash
# Imports a set of WARC files: once in peace, with times; once while the whole repository is killed (kill -9) again and again, in imports, in
# cycles and in streams. In the end every page has to be there with the digest that it came with, and after every kill whatever an import had
# said to be durable.
#
#   benches/import.sh FOLDER [KILLS]
#
# FOLDER has .warc or .warc.gz files with payload digests, each URL once. 12 kills, if not said. SEED=… repeats the moments of another run as far
# as a machine can. Needs target/release/webbase (or WEBBASE=…), and three times the set's room in TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
set_folder=$(realpath "$1") kills=${2:-12}
RANDOM=${SEED:=$RANDOM}
webbase=${WEBBASE:-$PWD/target/release/webbase}
work=$(mktemp -d)
up=
trap 'kill -9 $up 2>/dev/null || true; rm -rf "$work"' EXIT
files=("$set_folder"/*.warc*)
pages=$(cat "${files[@]}" | zcat -f | grep -ac '^WARC-Target-URI:' || true)
echo "seed $SEED; ${#files[@]} files, $(du -cb "${files[@]}" | tail -1 | cut -f1) bytes, $pages pages"

start() { # folder
    rm -f "$work/said"
    "$webbase" up --dir "$1" --http 127.0.0.1:0 >"$work/said" 2>>"$work/trouble" &
    up=$!
    until grep -qs "console is at" "$work/said"; do sleep 0.05; done
    WEBBASE_SERVER=$(grep -o 'http://[0-9.:]*' "$work/said" | head -1)
    export WEBBASE_SERVER
}
strike() { kill -9 "$up"; wait "$up" 2>/dev/null || true; }
seconds() { # command; its output goes to stderr
    local began=$EPOCHREALTIME
    "$@" >&2
    echo "$began $EPOCHREALTIME" | awk '{ printf "%.1f", $2 - $1 }'
}
digests() { grep -a '^WARC-Payload-Digest:' | tr -d '\r' | sort; }
count() { "$webbase" stream --format count | awk '{ print $3 }'; }

echo "== in peace"
start "$work/calm"
import=$(seconds "$webbase" import --no-cycle "${files[@]}")
cycle=$(seconds "$webbase" cycle)
began=$EPOCHREALTIME
"$webbase" stream >"$work/out.warc.gz"
echo "import $import s, cycle $cycle s, stream as WARC $(echo "$began $EPOCHREALTIME" | awk '{ printf "%.1f", $2 - $1 }') s"
"$webbase" status
cat "${files[@]}" | zcat -f | digests >"$work/in.digests"
zcat "$work/out.warc.gz" | digests | cmp - "$work/in.digests"
echo "what comes out has the digests of what went in"
kill -TERM "$up" && wait "$up"
rm -rf "$work/calm" "$work/out.warc.gz"

echo "== with $kills kills"
each=$(awk -v all="$import" -v files=${#files[@]} 'BEGIN { print all / files }')
sometime() { awk -v most="$1" -v random=$RANDOM 'BEGIN { print most * random / 32768 }'; }
acknowledged=0 struck=0
start "$work/killed"
for file in "${files[@]}"; do
    until
        "$webbase" import --no-cycle "$file" 2>"$work/import" & importing=$!
        if [ $((struck * ${#files[@]})) -lt $((kills * (acknowledged + 1))) ] && [ $struck -lt "$kills" ]; then
            sleep "$(sometime "$each")"
            strike
            struck=$((struck + 1))
            start "$work/killed"
        fi
        wait $importing
    do :; done
    acknowledged=$((acknowledged + 1))
done
# A cycle that is cut off is run again; a stream that is cut off says so.
"$webbase" cycle 2>/dev/null & cycling=$!
sleep "$(sometime "$cycle")"
strike; wait $cycling || true
start "$work/killed"
seconds "$webbase" cycle >/dev/null
"$webbase" stream >"$work/part" 2>/dev/null & streaming=$!
sleep 1
strike
if wait $streaming; then echo "the stream was over before its kill"; fi
start "$work/killed"
found=$(count)
"$webbase" stream | zcat | digests | cmp - "$work/in.digests"
echo "$((struck + 2)) kills, $acknowledged imports acknowledged: $found pages of $pages, all with their digests"
[ "$found" = "$pages" ]
kill -TERM "$up" && wait "$up"
