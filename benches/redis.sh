#!/usr/bin/env bash
# Installs redis-server, which `wire` starts on a free port, without persistence, to compare lookups with.
set -euo pipefail
command -v redis-server >/dev/null || apt-get install -y redis-server
redis-server --version
