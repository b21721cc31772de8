#!/usr/bin/env bash
# Installs libclang, which RocksDB's bindings need, then runs `peers` with the arguments given.
set -euo pipefail
ldconfig -p | grep -q libclang || apt-get install -y libclang-dev
exec cargo run --release -p webbase-benches --features peers --bin peers -- "$@"
