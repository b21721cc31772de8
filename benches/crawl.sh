#!/bin/bash
# The crawler against nginx on loopback, beside Scrapy, wget and wrk on the same sites with the same settings.
#
#   benches/crawl.sh [ROUNDS]
#
# Sites are documentation packages (crawl-sites.sh), each at COPIES addresses of its own, 127.0.0.2 and on. Every contestant obeys robots
# files, makes no pauses and asks a site for one page at a time; so as many requests are out as there are sites. They take turns,
# ROUNDS times, each for TIME seconds:
#
#   wrk      all pages again and again: what nginx gives
#   fetch    the same through the web interface alone (src/bin/fetch.rs)
#   webbase  `webbase crawl` into `webbase up`: links, storing, metadata, from the sites' index pages
#   scrapy   a spider that follows links and stores bodies (crawl-spider.py), for SCRAPY_TIME seconds, of which the second half counts
#   wget     -r of each site, one process a site
#   million  (only when asked for) lists that lead to a million URLs at 100 sites: memory of the crawl as they become known
#
# Prints pages a second.
#
# Needs nginx, wrk, wget, python3; Scrapy is installed into a venv of its own. Release programs have to be built before:
# cargo build --release -p webbase -p webbase-benches --bin webbase --bin fetch
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$here/work/crawl
rounds=${1:-3}
: "${TIME:=15}" "${SCRAPY_TIME:=60}" "${COPIES:=4}" "${PORT:=8099}" "${TARGET:=$here/../target/release}" "${CONTESTANTS:=wrk fetch webbase scrapy wget}"
mkdir -p "$work"
[ -d "$work/sites" ] || "$here/crawl-sites.sh" "$work"
if [ ! -x "$work/venv/bin/scrapy" ] && [[ $CONTESTANTS == *scrapy* ]]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q scrapy
fi

run=$(mktemp -d "$work/run.XXXXXX")
chmod 755 "$run" # nginx reads the lists as another user
nginx_pid=
finish() {
    [ -n "$nginx_pid" ] && kill "$nginx_pid" 2>/dev/null
    rm -rf "$run"
}
trap finish EXIT

sites() { for _ in $(seq "$COPIES"); do ls -d "$work"/sites/*; done; }

# One nginx, a server for each site.
{
    echo "daemon off; worker_processes 1; pid $run/nginx.pid; error_log $run/error.log crit;"
    echo "events { worker_connections 4096; }"
    echo "http { include /etc/nginx/mime.types; access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;"
    echo "client_body_temp_path $run/t1; proxy_temp_path $run/t2; fastcgi_temp_path $run/t3; uwsgi_temp_path $run/t4; scgi_temp_path $run/t5;"
    echo "open_file_cache max=8000;"
    number=2
    for site in $(sites); do
        echo "server { listen 127.0.0.$number:$PORT; listen 127.0.0.1:$PORT; server_name 127.0.0.$number; root $site; }"
        number=$((number + 1))
    done
    for number in $(seq 2 101); do
        echo "server { listen 127.0.1.$number:$PORT; root $run/lists; location /p/ { default_type text/html; return 200 '<p>a page'; } }"
    done
    echo "}"
} >"$run/nginx.conf"
if [[ $CONTESTANTS == *million* ]]; then
    mkdir "$run/lists"
    for list in $(seq 10); do
        seq -f '<a href="/p/%.0f">x</a>' $(((list - 1) * 1000)) $((list * 1000 - 1)) >"$run/lists/$list.html"
    done
    seq -f '<a href="/%.0f.html">x</a>' 10 >"$run/lists/index.html"
    seq -f "http://127.0.1.%.0f:$PORT/" 2 101 >"$run/million"
fi
nginx -c "$run/nginx.conf" -e "$run/error.log" &
nginx_pid=$!
: >"$run/urls"
: >"$run/seeds"
number=2
for site in $(sites); do
    find "$site" -name '*.html' -printf "http://127.0.0.$number:$PORT/%P\n" >>"$run/urls"
    echo "http://127.0.0.$number:$PORT/" >>"$run/seeds"
    number=$((number + 1))
done
sites=$((number - 2))
shuf --random-source=<(yes) "$run/urls" | sed 's/ /%20/g' >"$run/shuffled"
mv "$run/shuffled" "$run/urls"
for _ in $(seq 50); do curl -s -o "$run/null" "http://127.0.0.2:$PORT/" && break || sleep 0.1; done
bytes=$(find "$work/sites" -name '*.html' -printf '%s\n' | awk '{ s += $1 } END { printf "%.0f", s / NR }')
echo "$sites sites, $(wc -l <"$run/urls") pages of $bytes bytes on average" >&2

cat >"$run/all.lua" <<'LUA'
local urls, at = {}, 0
function init(args)
    for line in io.lines(args[1]) do
        local host, path = line:match("^http://([^/]*)(.*)$")
        urls[#urls + 1] = wrk.format("GET", path, { Host = host })
    end
    at = math.random(#urls)
end
function request()
    at = at % #urls + 1
    return urls[at]
end
LUA

wrk_() {
    wrk -t2 -c"$sites" -d"${TIME}s" -s "$run/all.lua" "http://127.0.0.1:$PORT" -- "$run/urls" |
        awk '/Requests\/sec/ { printf "%.0f\n", $2 }'
}

fetch_() {
    "$TARGET/fetch" "$run/urls" "$sites" "$TIME" | awk '{ print $1 }'
}

webbase_() {
    rm -rf "$run/repository" "$run/crawl"
    "$TARGET/webbase" up --dir "$run/repository" --http 127.0.0.1:7799 >"$run/up.log" 2>&1 &
    local up=$!
    for _ in $(seq 100); do curl -s -o "$run/null" http://127.0.0.1:7799/status && break || sleep 0.1; done
    "$TARGET/webbase" crawl --server http://127.0.0.1:7799 --dir "$run/crawl" --allow-loopback --delay 0s --address-delay 0s \
        --workers "$sites" --no-sitemaps --no-cycle --time-limit "${TIME}s" --seeds "$run/seeds" --json >"$run/crawl.json" 2>"$run/crawl.log" || cat "$run/crawl.log" >&2
    kill "$up" && wait "$up" 2>/dev/null || true
    python3 -c 'import json, sys; p = json.load(open(sys.argv[1])); print(round(p["pages"] / p["seconds"]), p["pages"], "pages in", round(p["seconds"], 1), "s")' "$run/crawl.json"
}

million_() {
    rm -rf "$run/repository" "$run/crawl"
    "$TARGET/webbase" up --dir "$run/repository" --http 127.0.0.1:7799 >"$run/up.log" 2>&1 &
    local up=$!
    for _ in $(seq 100); do curl -s -o "$run/null" http://127.0.0.1:7799/status && break || sleep 0.1; done
    "$TARGET/webbase" crawl --server http://127.0.0.1:7799 --dir "$run/crawl" --allow-loopback --delay 0s --address-delay 0s \
        --workers 100 --no-sitemaps --no-cycle --time-limit "${MILLION_TIME:-100}s" --seeds "$run/million" 2>"$run/crawl.log" &
    local crawl=$!
    while kill -0 "$crawl" 2>/dev/null; do
        sleep 5
        known=$(tail -n 1 "$run/crawl.log" | grep -o '"pages":[0-9]*\|"known":[0-9]*' | tr '\n' ' ')
        echo "$known $(awk '/VmRSS/ { print $2 / 1024 " MiB" }' "/proc/$crawl/status" 2>/dev/null)"
    done
    kill "$up" && wait "$up" 2>/dev/null || true
}

scrapy_() {
    rm -rf "$run/scrapy"
    mkdir "$run/scrapy"
    "$work/venv/bin/python" "$here/crawl-spider.py" "$run/seeds" "$sites" "$run/scrapy/pages" "$SCRAPY_TIME" 2>"$run/scrapy.log"
}

wget_() {
    rm -rf "$run/wget"
    mkdir "$run/wget"
    local pids=() began=$EPOCHREALTIME
    for n in $(seq 2 $((sites + 1))); do
        # The links that the others follow, too: to pages, not to what they are made of.
        timeout "$TIME" wget -q -r -l inf -nH --follow-tags=a,area,frame,iframe -P "$run/wget/$n" "http://127.0.0.$n:$PORT/" &
        pids+=($!)
    done
    wait "${pids[@]}" || true
    local took pages
    took=$(echo "$EPOCHREALTIME - $began" | bc)
    pages=$(find "$run/wget" -type f ! -name robots.txt | wc -l)
    echo "$(echo "$pages / $took" | bc) $pages pages in $took s"
}

for round in $(seq "$rounds"); do
    for contestant in $CONTESTANTS; do
        echo "$round $contestant $("${contestant}_")"
    done
done
