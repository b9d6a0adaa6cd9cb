#!/bin/sh
# Set up the peers that benchmarks/simulation.py compares with, each in an environment of its own.
# They share PyTorch with the project's environment; a peer that cannot be installed is left out.
# Usage: set_up_peers.sh PYTHON FOLDER
python=$1
folder=$2
shared=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

peer() {
    name=$1
    shift
    [ -e "$folder/$name/.installed" ] && return
    echo "== $name"
    "$python" -m venv "$folder/$name" || return
    site=$("$folder/$name/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    echo "$shared" > "$site/shared.pth"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" &&
        touch "$folder/$name/.installed"
}

peer fedjax fedjax jax jaxlib
peer pfl pfl
peer flexible flexible-fl packaging
peer psi openmined.psi
peer flower 'flwr[simulation]' || {
    # Where its newest certifi is not to be had, its other pins will do.
    peer flower --no-deps flwr && peer flower ray
}
exit 0
