#!/bin/sh
# Runs `webbase rank --bench` on disk in a control group of 80 MB of memory that counts the page cache. As root.
#   benches/rank.sh target/release/webbase PAGES [DIR]      MB=40 for another size
# The links are made first, in a group of their own of the same size; the folder is removed afterwards.
set -eu
program=$1 pages=$2 dir=${3:-.}
: "${MB:=80}"
bytes=$((MB * 1000000))
group=
# As the program tells its own parts: the allocator keeps nothing that is free.
export MIMALLOC_PURGE_DELAY=1 MIMALLOC_ARENA_EAGER_COMMIT=0

enter() { # a fresh group, so that what one part left in the page cache is not the other's
    name=webbase-rank-$$-$1
    if [ -d /sys/fs/cgroup/memory ]; then
        group=/sys/fs/cgroup/memory/$name
        mkdir "$group"
        echo $bytes >"$group/memory.limit_in_bytes"
    else
        group=/sys/fs/cgroup/$name
        mkdir "$group"
        echo $bytes >"$group/memory.max"
        echo 0 >"$group/memory.swap.max" 2>/dev/null || true
    fi
}

leave() {
    for peak in memory.peak memory.max_usage_in_bytes; do
        if [ -r "$group/$peak" ]; then echo "         group: at most $(cat "$group/$peak") of $bytes bytes, page cache too"; fi
    done
    rmdir "$group"
    group=
}

trap 'if [ -n "$group" ]; then rmdir "$group"; fi; rm -rf "$dir/rank-bench-$pages"' EXIT
for part in build disk; do
    enter $part
    # shellcheck disable=SC2016 # the inner shell's own
    sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$program" rank --bench --bench-part $part \
        --bench-pages "$pages" --bench-budgets "$MB" --bench-dir "$dir" ${CONVERGE:+--bench-converge}
    leave
done
