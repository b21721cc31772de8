#!/bin/sh
# Runs `webbase rank --bench` on disk in a control group of 80 MB of memory that counts the page cache. As root.
#   benches/rank.sh target/release/webbase PAGES [DIR]      MB=40 for another size; DISK_MB=500 for a disk that reads and writes
#                                                           so many megabytes a second each, whatever state it is in
# The links are made first, in a group of their own of the same size; the folder is removed afterwards.
set -eu
program=$1 pages=$2 dir=${3:-.}
: "${MB:=80}"
bytes=$((MB * 1000000))
group='' disk=''
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

slow() { # in a group whose disk has a set speed
    if [ -z "${DISK_MB:-}" ]; then return; fi
    device=$(stat -c %Hd:%Ld "$dir")
    if [ -d /sys/fs/cgroup/blkio ]; then
        disk=/sys/fs/cgroup/blkio/$name
        mkdir "$disk"
        for way in read write; do
            echo "$device $((DISK_MB * 1000000))" >"$disk/blkio.throttle.${way}_bps_device"
        done
    else
        echo "$device rbps=$((DISK_MB * 1000000)) wbps=$((DISK_MB * 1000000))" >"$group/io.max"
    fi
}

leave() {
    for peak in memory.peak memory.max_usage_in_bytes; do
        if [ -r "$group/$peak" ]; then echo "         group: at most $(cat "$group/$peak") of $bytes bytes, page cache too"; fi
    done
    rmdir "$group" ${disk:+"$disk"}
    group='' disk=''
}

trap 'if [ -n "$group" ]; then rmdir "$group" ${disk:+"$disk"}; fi; rm -rf "$dir/rank-bench-$pages"' EXIT
for part in build disk; do
    enter $part
    if [ $part = disk ]; then slow; fi
    # shellcheck disable=SC2016 # the inner shell's own
    sh -c 'echo $$ > "$0/cgroup.procs"; if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs"; fi; shift; exec "$@"' "$group" "$disk" "$program" rank --bench --bench-part $part \
        --bench-pages "$pages" --bench-budgets "$MB" --bench-dir "$dir" ${CONVERGE:+--bench-converge}
    leave
done
