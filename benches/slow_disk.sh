#!/bin/sh
# Runs a command whose disk has a set speed: so many megabytes a second read, and as many written, past the page cache. As root.
#   benches/slow_disk.sh 500 target/release/multicast --megabytes 300 --dir benches/work/multicast
# The disk is that of the folder DIR (the current one, if not set).
set -eu
megabytes=$1
shift
device=$(stat -c %Hd:%Ld "${DIR:-.}")
bytes=$((megabytes * 1000000))
if [ -d /sys/fs/cgroup/blkio ]; then
    group=/sys/fs/cgroup/blkio/webbase-slow-disk-$$
    mkdir "$group"
    for way in read write; do
        echo "$device $bytes" >"$group/blkio.throttle.${way}_bps_device"
    done
else
    group=/sys/fs/cgroup/webbase-slow-disk-$$
    mkdir "$group"
    echo "$device rbps=$bytes wbps=$bytes" >"$group/io.max"
fi
trap 'rmdir "$group"' EXIT
# shellcheck disable=SC2016 # the inner shell's own
sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@"
