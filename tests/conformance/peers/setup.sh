#!/usr/bin/env bash
# usage: setup.sh DIR
# Installs the peer systems from PyPI into DIR, one venv each. A peer that is already complete is skipped.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
dir=$(mkdir -p "$1" && cd "$1" && pwd)

# setup_peer NAME: create the venv and run install_NAME, unless an earlier run completed it
setup_peer() {
    [ ! -e "$dir/$1/ready" ] || return 0
    echo "installing $1 into $dir/$1"
    [ -x "$dir/$1/bin/python" ] || python3 -m venv "$dir/$1"
    "install_$1" "$dir/$1/bin/pip"
    touch "$dir/$1/ready"
}

# AllenNLP 0.9 pins packages that no current Python can install, so its source is used without them;
# worker.py replaces the modules that ELMo does not need.
install_allennlp() {
    "$1" install -q torch==2.13.0 'numpy<3' h5py tqdm requests six
    "$1" download -q --no-deps -d "$dir/wheels" allennlp==0.9.0
    python3 -m zipfile -e "$dir"/wheels/allennlp-0.9.0-*.whl "$dir/allennlp-src"
}

install_tensorflow() {
    "$1" install -q tensorflow-cpu==2.15.1 'numpy<2' h5py pandas smart_open
    "$1" install -q --no-deps simple-elmo==0.9.2
}

# ELMoForManyLangs declares no versions; newer versions of overrides reject its method signatures.
install_many_langs() {
    "$1" install -q torch==2.13.0 'numpy<3' h5py
    "$1" install -q --no-deps elmoformanylangs==0.0.4.post2 overrides==3.1.0
    "${1%pip}python" -W ignore -c 'import elmoformanylangs'
}

for peer in allennlp tensorflow many_langs; do
    setup_peer "$peer"
done
echo "peers are in $dir"
