#!/bin/sh
# Gathers real HTML pages into one corpus file for the benchmarks.
#
#   benches/corpus.sh [OUT] [FOLDER|WARC ...]
#
# Without folders or WARCs: the documentation on this machine, then Debian documentation packages, downloaded and
# unpacked (never installed) until there are PAGES distinct pages. At most PER_SITE pages come from one package, so
# that no single documentation generator decides the compression ratio. Format: src/corpus.rs; the rest: src/bin/pack.rs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$here/work
out=${1:-$work/pages.corpus}
[ $# -gt 0 ] && shift
: "${PAGES:=200000}" "${PER_SITE:=1500}"
list=$work/list.tsv # site, path in the URL, file
mkdir -p "$work"
: >"$list"

from_folder() { # site, folder
    find "$2" -type f \( -name '*.html' -o -name '*.htm' \) -printf "$1\t%P\t%p\n" >>"$list"
}

from_this_machine() {
    find / -xdev \( -path /proc -o -path /sys -o -path /work -o -path /tmp -o -path "$work" \) -prune -o \
        -type f -name '*.html' -printf '%P\t/%P\n' | awk -F'\t' -v OFS='\t' '{
            site = "local"
            if (match($1, /(toolchains|share\/doc|gtk-doc\/html|node_modules)\/[^\/]+\//)) {
                site = substr($1, RSTART, RLENGTH - 1)
                sub(/.*\//, "", site)
                sub(/.*(toolchains|share\/doc|gtk-doc\/html|node_modules)\/[^\/]+\//, "", $1)
            }
            print site, $1, $2
        }' >>"$list"
}

# Documentation packages that are mostly text: they pack to a quarter or less. The giants are left out: their pages
# are generated lists far larger than real pages. Largest first.
packages() {
    apt-cache dumpavail | awk '
        /^Package: /        { name = $2 }
        /^Installed-Size: / { unpacked = $2 }
        /^Size: /           { packed = $2 / 1024 }
        /^$/ { if (name ~ /-(doc|docs|html|javadoc|refman)(-en)?(-html)?$/ &&
                   packed < 20000 && unpacked > 3000 && unpacked < 70000 && unpacked > 4 * packed) print unpacked, name
               name = ""; unpacked = 0 }' | sort -rn | awk '!seen[$2]++ { print $2 }'
}

from_package() { # name; only the HTML is unpacked
    rm -f "$work"/debs/*
    (cd "$work/debs" && apt-get download -qq -o APT::Sandbox::User=root "$1" 2>/dev/null) || return 0
    mkdir -p "$work/unpacked/$1"
    dpkg-deb --fsys-tarfile "$work"/debs/*.deb |
        tar -x -C "$work/unpacked/$1" --wildcards '*.html' '*.htm' 2>/dev/null || true
    from_folder "$1" "$work/unpacked/$1"
}

enough() { # a little more than asked for, because pack drops tiny pages and repeated ones
    awk -F'\t' -v cap="$PER_SITE" -v want="$PAGES" '
        ++n[$1] <= cap { pages++ }
        END { printf "%d pages listed\n", pages >"/dev/stderr"; exit pages < want * 1.05 }' "$list"
}

warcs=
if [ $# -gt 0 ]; then
    for source; do
        if [ -d "$source" ]; then from_folder "$(basename "$source")" "$source"; else warcs="$warcs $source"; fi
    done
else
    from_this_machine
    mkdir -p "$work/debs" "$work/unpacked"
    apt-get update -qq
    count=0
    for package in $(packages); do
        if [ $((count % 20)) -eq 0 ] && enough; then break; fi
        from_package "$package"
        count=$((count + 1))
    done
fi

# shellcheck disable=SC2086 # a list of files
cargo run --quiet --release --manifest-path "$here/Cargo.toml" --bin pack -- "$out" "$PER_SITE" $warcs <"$list"
rm -rf "$work/debs" "$work/unpacked" "$list"
