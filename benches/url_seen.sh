#!/bin/sh
# Runs the benchmark of "have I seen this URL?" in a control group of 1 GB of memory that counts the page cache. As root.
#   benches/url_seen.sh target/release/url_seen [ARGUMENTS]
set -eu
name=webbase-url-seen-$$
bytes=1000000000
if [ -d /sys/fs/cgroup/memory ]; then
    group=/sys/fs/cgroup/memory/$name
    mkdir "$group"
    echo $bytes > "$group/memory.limit_in_bytes"
else
    group=/sys/fs/cgroup/$name
    mkdir "$group"
    echo $bytes > "$group/memory.max"
fi
trap 'rmdir "$group"' EXIT
sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@"
