#!/usr/bin/env bash
# usage: setup_many_langs.sh DIR     puts ELMoForManyLangs' own code from PyPI into DIR/many_langs, a venv.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
[ -x "$dir/many_langs/bin/python" ] || python3 -m venv "$dir/many_langs"
"$dir/many_langs/bin/pip" install -q torch==2.13.0 'numpy<3' h5py
# It declares no versions; newer overrides refuse its signatures.
"$dir/many_langs/bin/pip" install -q --no-deps elmoformanylangs==0.0.4.post2 overrides==3.1.0
"$dir/many_langs/bin/python" -W ignore -c 'import elmoformanylangs'
echo "ELMoForManyLangs is in $dir/many_langs"
