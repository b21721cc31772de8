#!/usr/bin/env bash
# Installs nginx and wrk, and measures `GET /page` against nginx serving the same bodies as files; arguments go to the program.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in nginx wrk; do
    command -v "$program" >/dev/null || apt-get install -y "$program"
done
nginx -v
exec cargo run --release -p webbase-benches --bin http -- "$@"
