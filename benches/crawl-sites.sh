#!/bin/sh
# Gathers documentation sites of Debian packages, for crawl.sh: each package's HTML is one site.
#
#   benches/crawl-sites.sh FOLDER [PACKAGE ...]
#
# Packages are downloaded and unpacked, never installed. A site's root is the folder below which all its HTML lies; `index.html` there
# leads to it, and is made where the package has none.
set -eu
out=$1
shift
[ $# -gt 0 ] || set -- python3.11-doc postgresql-doc-15 debian-handbook debian-reference-en cppreference-doc-en-html \
    libglib2.0-doc libgtk-3-doc libgtk-4-doc libcairo2-doc libpango1.0-doc gnuplot-doc sqlite3-doc openjdk-17-doc python-django-doc \
    python-numpy-doc python-matplotlib-doc python-sqlalchemy-doc libboost1.81-doc ruby-doc erlang-doc-html gcc-12-doc \
    libstdc++-12-doc qtbase5-doc-html apache2-doc python-scipy-doc python-pandas-doc scala-doc ocaml-doc octave-doc maxima-doc \
    libxml2-doc libreoffice-dev-doc clang-14-doc llvm-14-doc cmake-doc git-doc python-werkzeug-doc python-jinja2-doc \
    libgstreamer1.0-doc emacs-common-non-dfsg

mkdir -p "$out/debs"
for package; do
    [ -d "$out/sites/$package" ] && continue
    rm -f "$out"/debs/*
    (cd "$out/debs" && apt-get download -qq -o APT::Sandbox::User=root "$package" 2>/dev/null) || continue
    mkdir -p "$out/unpacked"
    dpkg-deb --fsys-tarfile "$out"/debs/*.deb |
        tar -x -C "$out/unpacked" --wildcards '*.html' '*.htm' '*.css' '*.png' 2>/dev/null || true
    # Down to where the HTML begins.
    root=$out/unpacked
    while [ -z "$(find "$root" -maxdepth 1 -name '*.html' -print -quit)" ]; do
        below=$(find "$root" -name '*.html' -printf '%P\n' | cut -d/ -f1 | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }')
        [ -n "$below" ] || break
        root=$root/$below
    done
    pages=0
    [ -n "$(find "$root" -name '*.html' -print -quit)" ] && pages=$(find "$root" -name '*.html' | wc -l)
    if [ "$pages" -ge 50 ]; then
        mkdir -p "$out/sites"
        mv "$root" "$out/sites/$package"
        # Links that leave the folder lead nowhere; what no page links to is listed here.
        find "$out/sites/$package" -name '*.html' -printf '<a href="%P">%P</a><br>\n' | sort >"$out/sites/$package/all-pages.html"
        [ -e "$out/sites/$package/index.html" ] || cp "$out/sites/$package/all-pages.html" "$out/sites/$package/index.html"
        echo "$package: $pages pages" >&2
    fi
    rm -rf "$out/unpacked"
done
rm -rf "$out/debs"
